"""The rows that experts train on: all in memory, or streamed from disk in blocks with a sample in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix, check_count, is_for_kernels, validate_weights
from hinet.data.spill import Spill, StoredBlock
from hinet.engine.model.experts import Floats
from hinet.engine.model.fused import with_merged
from hinet.engine.model.targets import Targets
from hinet.engine.settings import EngineSettings
from hinet.engine.training.cooccurrence import (
    LEAST_REPEATED,
    ColumnDigests,
    has_features_to_spare,
    may_have_features_to_spare,
    merged_columns,
)
from hinet.engine.training.deep import BlockObjectives, Objective
from hinet.engine.training.whitening import whitened
from hinet.errors import HiNetError
from hinet.memory import GB, total_memory
from hinet.taxonomy import Layers

SAMPLE_SHARE = 0.1  # of memory, for the rows of a stream that the wide expert trains on
VALUE_BYTES = 8  # of a value in memory
MOST_VALUES = 1 << 40  # of them, where the limit is infinite
LEAST_SAMPLE = 10_000  # rows of it, that are kept when memory is short

OfRows: TypeAlias = Callable[[SparseMatrix, Targets], Objective]


@dataclass(frozen=True, eq=False)
class HeldRows:
    """Rows in memory, with what they are trained towards."""

    matrix: SparseMatrix
    targets: Targets
    columns: int

    @property
    def row_count(self) -> int:
        """How many rows there are."""
        return self.matrix.row_count

    def option_counts(self) -> NDArray[np.float64]:
        """Return how much of the rows takes each option."""
        return self.targets.option_counts()

    def group_counts(self) -> NDArray[np.float64]:
        """Return how much of the rows passes through each group, of sets of labels."""
        return self.targets.group_counts()

    def has_features_to_spare(self) -> bool:
        """Return whether many rows have many features that repeat each other."""
        return has_features_to_spare(self.matrix, self.columns)

    def merged_columns(self) -> NDArray[np.int32]:
        """Return a number for each column, the same for columns that are equal."""
        return merged_columns(self.matrix, self.columns)

    def with_merged(self, numbers: NDArray[np.int32], count: int) -> HeldRows:
        """Return rows whose columns are numbered anew."""
        return replace(self, matrix=with_merged(self.matrix, numbers, count), columns=count)

    def with_whitened(self, matrix: Floats) -> HeldRows:
        """Return rows whose dense columns are multiplied by a matrix."""
        return replace(self, matrix=_whitened(self.matrix, matrix))

    def objectives(self, of: OfRows, *, plain: bool = False) -> Objective | BlockObjectives:
        """Return what deep experts are trained towards; ``plain`` leaves dense columns out."""
        return of(_plain(self.matrix) if plain else self.matrix, self.targets)

    def fingerprint(self) -> list[Any]:
        """Return what the rows are recognised by."""
        return [*self.matrix, *self.targets.arrays]


@dataclass(frozen=True, eq=False)
class StreamedRows(HeldRows):
    """Rows on disk; those in memory are a random part of them."""

    spill: Spill
    numbers: NDArray[np.int32] | None = None  # of merged columns
    whitening: Floats | None = None  # what dense columns are multiplied by

    @classmethod
    def of(cls, spill: Spill, layers: Layers, most_values: int) -> StreamedRows:
        """Return the rows of a spill, with as many blocks in memory as have so many values; one at least."""
        held: list[StoredBlock] = []
        values = 0
        for number, info in enumerate(spill.blocks):
            values += info.values + info.rows * spill.dense
            if held and values > most_values:
                break
            held.append(spill.load(number, layers))
        matrix, targets = _joined(held, layers)
        return cls(matrix, targets, spill.columns, spill)

    @property
    def row_count(self) -> int:
        """How many rows there are, on disk."""
        return self.spill.row_count

    @property
    def is_whole(self) -> bool:
        """Whether all rows are in memory too."""
        return self.matrix.row_count == self.row_count

    @cached_property
    def _sums(self) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, ColumnDigests | None]:
        """Counts of options and groups, and the columns, over all blocks in one go."""
        several = self.targets.layers.multilabel
        looks = may_have_features_to_spare(self.row_count, self.spill.value_count)
        options, groups, columns = self.targets.option_counts() * 0, None, None
        for number in range(len(self.spill.blocks)):
            rows, targets = self.load(number)
            options += targets.option_counts()
            if several:
                more = targets.group_counts()
                groups = more if groups is None else groups + more
            if looks:
                own = ColumnDigests.of(rows, self.columns - self.spill.dense)
                columns = own if columns is None else columns.with_block(number, own)
        return options, groups, columns

    def option_counts(self) -> NDArray[np.float64]:
        """Return how much of the rows takes each option."""
        return self._sums[0]

    def group_counts(self) -> NDArray[np.float64]:
        """Return how much of the rows passes through each group, of sets of labels."""
        assert self._sums[1] is not None
        return self._sums[1]

    def has_features_to_spare(self) -> bool:
        """Return whether many rows have many features that repeat each other."""
        columns = self._sums[2]
        return columns is not None and columns.repeated_share() >= LEAST_REPEATED

    def merged_columns(self) -> NDArray[np.int32]:
        """Return a number for each column, the same for columns that are equal."""
        assert self._sums[2] is not None
        return self._sums[2].merged(self.spill.dense)

    def with_merged(self, numbers: NDArray[np.int32], count: int) -> StreamedRows:
        """Return rows whose columns are numbered anew."""
        return replace(self, matrix=with_merged(self.matrix, numbers, count), columns=count, numbers=numbers)

    def with_whitened(self, matrix: Floats) -> StreamedRows:
        """Return rows whose dense columns are multiplied by a matrix."""
        return replace(self, matrix=_whitened(self.matrix, matrix), whitening=matrix)

    def smaller(self) -> StreamedRows:
        """Return the same with half as many rows in memory."""
        half = np.arange(self.matrix.row_count // 2)
        return replace(self, matrix=self.matrix.take(half), targets=self.targets.take(half))

    def can_be_smaller(self) -> bool:
        """Return whether half as many rows in memory are still some."""
        return self.matrix.row_count >= 2 * LEAST_SAMPLE

    def load(self, number: int) -> tuple[SparseMatrix, Targets]:
        """Return the rows of a block, with what they are trained towards."""
        matrix, targets = _joined([self.spill.load(number, self.targets.layers)], self.targets.layers)
        if self.numbers is not None:
            matrix = with_merged(matrix, self.numbers, self.columns)
        return (matrix if self.whitening is None else _whitened(matrix, self.whitening)), targets

    def objectives(self, of: OfRows, *, plain: bool = False) -> BlockObjectives:
        """Return what deep experts are trained towards; ``plain`` leaves dense columns out."""

        def load(number: int) -> Objective:
            rows, targets = self.load(number)
            return of(_plain(rows) if plain else rows, targets)

        spill, sample = self.spill, of(self.matrix, self.targets)
        outputs = sample.outputs * self.row_count / max(self.matrix.row_count, 1)
        sizes = tuple(block.rows for block in spill.blocks)
        return BlockObjectives(sizes, spill.value_count, 0 if plain else self.matrix.dense.shape[1], outputs, load)

    def fingerprint(self) -> list[Any]:
        """Return what the rows are recognised by."""
        return [self.matrix.row_count, *(vars(block) for block in self.spill.blocks)]


def _plain(rows: SparseMatrix) -> SparseMatrix:
    return rows._replace(dense=rows.dense[:, :0].copy())


def _whitened(rows: SparseMatrix, matrix: Floats) -> SparseMatrix:
    return rows._replace(dense=whitened(rows.dense, matrix))


def _joined(blocks: list[StoredBlock], layers: Layers) -> tuple[SparseMatrix, Targets]:
    """Return the rows of blocks as one, with what they are trained towards."""
    if len(blocks) == 1:
        matrix, traces, weights = blocks[0]
    else:
        lengths = np.concatenate([np.diff(block.rows.indptr) for block in blocks])
        matrix = SparseMatrix(
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            *(np.concatenate([block.rows[part] for block in blocks]) for part in (1, 2, 3)),
        )
        traces = Traces.joined(layers, [block.traces for block in blocks])
        all_weights = [block.weights for block in blocks if block.weights is not None]
        weights = np.concatenate(all_weights) if all_weights else None
    targets = Targets.of(traces)
    return matrix, targets if weights is None else targets.weighted(weights)


def sample_values(memory_limit: float | None) -> int:
    """Return how many values the rows of a stream that are held in memory may have, given the limit in GB."""
    memory = total_memory() if memory_limit is None else memory_limit * GB
    return int(min(SAMPLE_SHARE * memory / VALUE_BYTES, MOST_VALUES))


def training_rows(
    rows: Any, traces: Traces | Layers, settings: EngineSettings, sample_weight: NDArray[np.floating[Any]] | None
) -> HeldRows:
    """Return the rows to train on, in memory or from disk."""
    if isinstance(rows, Spill):
        assert isinstance(traces, Layers)
        flat = settings.wants_flat(int(traces.ends.sum()), rows.row_count, traces)
        wide = settings.wants_wide(flat=flat)
        return StreamedRows.of(rows, traces, sample_values(settings.memory_limit) if wide else 0)
    assert isinstance(traces, Traces)
    columns = int(rows.shape[1]) if getattr(rows, "ndim", 0) == 2 else 0
    matrix, targets = checked_rows(rows, traces, traces.layers)
    if sample_weight is not None:
        targets = targets.weighted(validate_weights(sample_weight, len(traces), scaled=False))
    return HeldRows(matrix, targets, columns)


def checked_rows(rows: Any, traces: Traces, layers: Any, kind: str = "") -> tuple[SparseMatrix, Targets]:
    """Return rows and labels in the form kernels read, or raise HiNetError if they cannot be used."""
    if not is_for_kernels(rows):
        raise HiNetError(f"the fused engine reads {kind}rows of a CSR matrix, got {type(rows).__name__}")
    matrix = SparseMatrix.of(rows)
    check_count(matrix.row_count, len(traces))
    if not len(traces):
        raise HiNetError(f"there are no {kind}rows")
    if not traces.layers.same_as(layers):
        raise HiNetError(f"the {kind}rows have other layers than the training rows; build both from the same Layers")
    empty = np.flatnonzero(np.diff(traces.row_offsets) == 0)
    if len(empty):
        raise HiNetError(f"{kind}row {int(empty[0])}: no label ({len(empty):,} such rows); leave these rows out")
    return matrix, Targets.of(traces)
