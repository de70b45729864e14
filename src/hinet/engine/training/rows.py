"""Training rows, in memory or streamed from disk in blocks, and all else that the trainings of experts share.

Features are redundant if many columns equal each other. Character n-grams are: those of a rare word occur in the same
rows with the same values. Dropping redundant features at random makes an expert rely less on single ones. If every word
counts, dropping features costs accuracy.

Dense columns are whitened for training by linear discriminant analysis. Variation among rows of one label says little
about labels, and so do directions in which labels hardly differ. Experts train on columns times a matrix that shrinks
the former and drops the latter. The matrix is then multiplied into their embeddings, so that models read the original
columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hinet.compiled import Kernel
from hinet.data import Traces
from hinet.data.matrices import SparseMatrix, check_count, is_for_kernels, validate_weights
from hinet.data.spill import Spill, StoredBlock
from hinet.engine.model.experts import DeepExpert, Floats, Memory
from hinet.engine.model.fused import FusedModel, with_merged
from hinet.engine.model.groups import Groups, LabelSpans, TargetArrays, Targets
from hinet.engine.model.kernels import MIX, column_digests
from hinet.engine.settings import Dropout, EngineSettings, MemoryPlan
from hinet.errors import HiNetError
from hinet.files.schema import FINITE, ArraySpec, Schema, check_arrays, floats
from hinet.parameters import GB, total_memory
from hinet.taxonomy import Layers

if TYPE_CHECKING:
    from hinet.engine.training.checkpoints import Averaged, SharedRows

Arrays: TypeAlias = dict[str, NDArray[Any]]

CHUNK = 4_096  # rows between cancellation checks
SHRINKAGE = 0.3  # shrinkage of the covariance towards the identity; more with few rows
MAX_COLUMNS = 128  # columns that are kept if there are more labels
SAMPLE_SHARE = 0.1  # share of memory for streamed rows that the wide expert trains on
VALUE_BYTES = 8  # bytes per value in memory
MAX_VALUES = 1 << 40  # values of the sample if the memory limit is infinite
MIN_SAMPLE = 10_000  # rows of the sample that are kept when memory is short
MAX_TITLE_VALUES = 1 << 27  # neurons times columns; with more, titles are only training rows
TITLE_ARRAYS = 4  # arrays of that size in memory at a time
MIN_REDUNDANT_ROWS = 1_000  # columns of fewer rows are equal by chance
MIN_REDUNDANT_FEATURES = 32  # minimum mean number of features per row
MIN_REPEATED = 0.2  # share of all values; at most 1/8 for words and pairs of words, 1/4 for character n-grams
EPOCH_ROWS = 2_000_000  # rows per epoch if they are in blocks, enough for a checkpoint and a line of progress
SMOOTHING = 0.5  # rows added to every option before shares are computed
LEARNED_ACCUMULATOR = 2.0  # smaller lets new rows overwrite old ones, larger keeps them from being learned


def whitening(columns: Floats, label: NDArray[np.int64]) -> Floats:
    """Return the matrix that whitens columns within labels and keeps the most discriminative ones, (d, kept).

    The mean square of all rows is preserved.
    """
    with threadpool_limits(1):  # another order of sums would change the model
        return _whitening(columns, label)


def whitened(columns: Floats, matrix: Floats) -> Floats:
    """Return columns times the matrix."""
    with threadpool_limits(1):
        product: Floats = columns @ matrix
        return product


def _whitening(columns: Floats, label: NDArray[np.int64]) -> Floats:
    count, width = columns.shape
    _, group, sizes = np.unique(label, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    starts = np.cumsum(sizes) - sizes
    means = np.add.reduceat(columns[order].astype(np.float64), starts, axis=0) / sizes[:, None]  # (labels, d)
    total = float(np.square(columns, dtype=np.float64).sum())
    within = _gram(columns - means[group].astype(np.float32))
    spread = float(np.trace(within)) / width
    if not spread > 0:
        return np.eye(width, dtype=np.float32)
    share = max(SHRINKAGE, width / (width + count - len(sizes)))
    shrunk = (1 - share) / spread * within + share * np.eye(width)
    values, directions = np.linalg.eigh(shrunk)
    matrix = (directions / np.sqrt(values)) @ directions.T
    if width > MAX_COLUMNS and len(sizes) > MAX_COLUMNS:  # fewer labels differ in fewer directions
        apart = (means - sizes @ means / count) * np.sqrt(sizes)[:, None]  # (labels, d)
        _, directions = np.linalg.eigh(matrix @ (apart.T @ apart) @ matrix)
        matrix = matrix @ directions[:, -MAX_COLUMNS:]
    after = float((_gram(columns) * (matrix @ matrix.T)).sum())
    scaled: Floats = (matrix * np.sqrt(total / max(after, 1e-12))).astype(np.float32)
    return scaled


def read_directly(expert: DeepExpert, matrix: Floats) -> DeepExpert:
    """Return an expert trained on whitened columns as one that reads the original columns.

    Its embedding has rows for all columns; the last ones, one per kept column, were trained.
    """
    embedding = expert.embedding.copy()
    columns, kept = matrix.shape
    embedding[len(embedding) - columns :] = whitened(matrix, embedding[len(embedding) - kept :])
    return expert._replace(embedding=embedding)


def _gram(columns: Floats) -> NDArray[np.float64]:
    """Return the Gram matrix of the columns, (d, d)."""
    product: NDArray[np.float64] = (columns.T @ columns).astype(np.float64)
    return product


class ColumnDigests(NamedTuple):
    """Digest and number of values of each column; equal columns have equal digests."""

    digests: NDArray[np.uint64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: SparseMatrix, features: int) -> ColumnDigests:
        """Return the digests of the columns of rows."""
        return cls(*column_digests(rows, features))

    def with_block(self, number: int, more: ColumnDigests) -> ColumnDigests:
        """Return the digests after one more block of rows with this number."""
        salt = np.uint64((2 * number + 1) * int(MIX) % (1 << 64))  # odd, and different for each block
        return ColumnDigests(self.digests + salt * more.digests, self.counts + more.counts)

    def repeated_share(self) -> float:
        """Return the share of values in columns that equal another column; columns with one value do not count."""
        digests, counts = self.digests[self.counts > 1], self.counts[self.counts > 1]
        _, inverse, columns = np.unique(digests, return_inverse=True, return_counts=True)
        return float(counts[columns[inverse] > 1].sum() / max(int(self.counts.sum()), 1))

    def merged(self) -> NDArray[np.int32]:
        """Return a number for each column, the same for equal columns, in order of first appearance."""
        _, first, inverse = np.unique(self.digests, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int32)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[inverse]


class TrainingSet(NamedTuple):
    """Rows with their targets in sibling groups, and the logit adjustment of training."""

    rows: SparseMatrix
    targets: TargetArrays
    groups: Groups
    max_sizes: tuple[int, int, int]  # maximum groups, options and steps of a row
    adjustment: Floats  # (output rows,)

    @classmethod
    def of(cls, rows: SparseMatrix, targets: TargetArrays, groups: Groups, adjustment: Floats) -> TrainingSet:
        """Return the training set of rows and targets."""
        return cls(rows, targets, groups, targets.max_sizes(groups), adjustment)


class RowSums(NamedTuple):
    """Counts over all training rows."""

    options: NDArray[np.float64]  # (options,) rows that take each option
    groups: NDArray[np.float64]  # (neurons,) rows with sets of labels that reach each group; zero with one label
    columns: ColumnDigests | None  # None if there are too few rows or values for redundant features

    @property
    def is_redundant(self) -> bool:
        """Whether many rows have many redundant features."""
        return self.columns is not None and self.columns.repeated_share() >= MIN_REPEATED


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Rows with their targets: all in memory, or in blocks on disk with a random sample of them in memory."""

    matrix: SparseMatrix  # rows in memory
    targets: Targets
    columns: int
    spill: Spill | None = None  # all rows, if they are on disk
    merged: NDArray[np.int32] | None = None  # number of each column, if equal ones are merged
    whitening: Floats | None = None  # matrix that dense columns are multiplied by

    @classmethod
    def of_spill(cls, spill: Spill, layers: Layers, max_values: int) -> TrainingRows:
        """Return the rows of a spill; blocks with up to ``max_values`` values, at least one, stay in memory."""
        held: list[StoredBlock] = []
        values = 0
        for number, info in enumerate(spill.blocks):
            values += info.values + info.rows * spill.dense
            if held and values > max_values:
                break
            held.append(spill.load(number, layers))
        matrix, targets = _joined(held)
        return cls(matrix, targets, spill.columns, spill)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of rows of each block; rows in memory are one block."""
        return (self.matrix.row_count,) if self.spill is None else tuple(block.rows for block in self.spill.blocks)

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return sum(self.sizes)

    @property
    def value_count(self) -> int:
        """Number of values of all rows without dense columns."""
        return len(self.matrix.indices) if self.spill is None else self.spill.value_count

    @property
    def is_whole(self) -> bool:
        """Whether all rows are in memory."""
        return self.matrix.row_count == self.row_count

    @property
    def epochs_per_pass(self) -> int:
        """Number of epochs of a deep expert per pass over all rows."""
        return min(len(self.sizes), max(1, round(self.row_count / EPOCH_ROWS)))

    def load(self, number: int) -> tuple[SparseMatrix, Targets]:
        """Return the rows of a block with their targets."""
        if self.spill is None:
            return self.matrix, self.targets
        matrix, targets = _joined([self.spill.load(number, self.targets.layers)])
        if self.merged is not None:
            matrix = with_merged(matrix, self.merged, self.columns)
        return (matrix if self.whitening is None else _whitened(matrix, self.whitening)), targets

    def sums(self) -> RowSums:
        """Return the counts over all blocks."""
        layers, columns = self.targets.layers, None
        options, groups = np.zeros(len(layers.option_neuron)), np.zeros(len(layers.node))
        may_be_redundant = (
            self.row_count >= MIN_REDUNDANT_ROWS and self.value_count >= MIN_REDUNDANT_FEATURES * self.row_count
        )
        for number in range(len(self.sizes)):
            rows, targets = self.load(number)
            options += targets.option_counts()
            if layers.multilabel:
                groups += targets.group_counts()
            if may_be_redundant:
                own = ColumnDigests.of(rows, self.columns - rows.dense.shape[1])
                columns = own if columns is None else columns.with_block(number, own)
        return RowSums(options, groups, columns)

    def with_merged(self, numbers: NDArray[np.int32], count: int) -> TrainingRows:
        """Return rows with renumbered columns."""
        return replace(self, matrix=with_merged(self.matrix, numbers, count), columns=count, merged=numbers)

    def with_whitened(self, matrix: Floats) -> TrainingRows:
        """Return rows whose dense columns are multiplied by a matrix."""
        return replace(self, matrix=_whitened(self.matrix, matrix), whitening=matrix)

    def without_last(self, count: int) -> TrainingRows:
        """Return rows in memory without their last ``count`` columns."""
        assert self.spill is None
        return replace(self, matrix=self.matrix.without_last(self.columns, count), columns=self.columns - count)

    def without_dense(self) -> TrainingRows:
        """Return rows without their dense columns."""
        dense = self.matrix.dense
        columns = dense.shape[1] if self.whitening is None else len(self.whitening)
        nothing = np.zeros((columns, 0), np.float32)
        return replace(self, matrix=self.matrix._replace(dense=dense[:, :0].copy()), whitening=nothing)

    def smaller(self) -> TrainingRows | None:
        """Return the same with half as many rows in memory, or None if all are needed there."""
        half = np.arange(self.matrix.row_count // 2)
        if self.spill is None or len(half) < MIN_SAMPLE:
            return None
        return replace(self, matrix=self.matrix.take(half), targets=self.targets.take(half))

    def fingerprint(self) -> list[Any]:
        """Return values that identify the rows."""
        if self.spill is None:
            return [*self.matrix, *self.targets.arrays]
        return [self.matrix.row_count, *(vars(block) for block in self.spill.blocks)]


def _whitened(rows: SparseMatrix, matrix: Floats) -> SparseMatrix:
    return rows._replace(dense=whitened(rows.dense, matrix))


def _joined(blocks: list[StoredBlock]) -> tuple[SparseMatrix, Targets]:
    """Concatenate blocks; return their rows and targets."""
    matrix, traces, weights = StoredBlock.joined(blocks)
    targets = Targets.of(traces)
    return matrix, targets if weights is None else targets.weighted(weights)


def sample_values(memory_limit: float | None) -> int:
    """Return the maximum number of values of the sample of a stream, given the limit in GB."""
    memory = total_memory() if memory_limit is None else memory_limit * GB
    return int(min(SAMPLE_SHARE * memory / VALUE_BYTES, MAX_VALUES))


def training_rows(
    rows: Any, traces: Traces | Layers, settings: EngineSettings, sample_weight: NDArray[np.floating[Any]] | None
) -> TrainingRows:
    """Return the rows to train on, in memory or on disk."""
    if isinstance(rows, Spill):
        assert isinstance(traces, Layers)
        flat = settings.wants_flat(int(traces.ends.sum()), rows.row_count, traces)
        wide = settings.wants_wide(flat=flat)
        return TrainingRows.of_spill(rows, traces, sample_values(settings.memory_limit) if wide else 0)
    assert isinstance(traces, Traces)
    columns = int(rows.shape[1]) if getattr(rows, "ndim", 0) == 2 else 0
    matrix, targets = checked_rows(rows, traces, traces.layers)
    if sample_weight is not None:
        targets = targets.weighted(validate_weights(sample_weight, len(traces), scaled=False))
    return TrainingRows(matrix, targets, columns)


def checked_rows(rows: Any, traces: Traces, layers: Any, kind: str = "") -> tuple[SparseMatrix, Targets]:
    """Return rows and targets in the form that kernels read, or raise HiNetError if they are not valid."""
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


class TitleColumns(NamedTuple):
    """Dense columns and nodes of titles; titles that are also training rows are the last of these."""

    columns: Floats  # (titles, d), without columns if rows have no dense ones
    nodes: NDArray[np.int64]  # (titles,)

    def memory(self, layers: Layers) -> int:
        """Return the bytes needed to compute the units."""
        values = len(layers.node) * self.columns.shape[1]
        return TITLE_ARRAYS * 4 * values if values <= MAX_TITLE_VALUES else 0


@dataclass(frozen=True)
class ValidationRows:
    """Rows that are not trained on: they decide the mix of the experts, and when to stop with ``patience``."""

    rows: Any  # CSR
    traces: Traces
    later: Any = None  # the same rows as later texts, whose n-grams may be unknown; None if ``rows`` are such texts


@dataclass(frozen=True, eq=False)
class TrainingContext:
    """The data in the form that kernels read, and sizes that all experts share."""

    settings: EngineSettings
    start: FusedModel | None  # model that is trained further
    rows: TrainingRows
    data: TrainingSet  # rows in memory
    groups: Groups
    spans: LabelSpans
    sums: RowSums
    prior: Floats  # (output rows,) initial biases
    log_shares: Floats  # (output rows,) log share of each option among the rows of its group
    titles: TitleColumns | None
    memory: Memory  # memory of ``start``, if it is given
    members: int
    has_flat: bool
    has_margin: bool
    dropout: Dropout
    plain_dropout: Dropout  # dropout of members that ignore dense columns
    valid: tuple[SparseMatrix, Targets] | None
    valid_unknown: NDArray[Any] | None  # share of unknown n-grams of each validation row
    later: SparseMatrix | None  # validation rows as later texts, if only neighbours read vectors
    monitored: ValidationRows | None  # rows whose accuracy is recorded after every epoch

    @property
    def layers(self) -> Layers:
        """The layers of the taxonomy."""
        return self.targets.layers

    @property
    def targets(self) -> Targets:
        """Targets of the rows in memory."""
        return self.rows.targets

    @property
    def has_plain_member(self) -> bool:
        """Whether the last member ignores dense columns."""
        return self.members > 1 and self.rows.matrix.dense.shape[1] > 0

    @property
    def features(self) -> int:
        """Number of features of the experts."""
        return self.rows.columns

    @property
    def row_count(self) -> int:
        """Number of rows without titles."""
        return self.rows.row_count - (0 if self.titles is None else len(self.titles.nodes))

    def trains(self, expert: str) -> bool:
        """Return whether an expert is trained, given its name; all that are not named here are."""
        wide = self.settings.wants_wide(flat=self.has_flat, margin=self.has_margin)
        wanted: dict[str, bool] = {
            "wide": wide if self.start is None else self.start.mix.wide > 0,
            "flat": self.has_flat,
            "neighbours": self.memory.vector.shape[1] > 0,
            "margin": self.has_margin,
        }
        return wanted.get(expert, True)

    @property
    def counts(self) -> NDArray[np.float64]:
        """(options,) Rows that take each option."""
        return self.sums.options

    @property
    def is_streamed(self) -> bool:
        """Whether the rows are on disk."""
        return self.rows.spill is not None

    @property
    def deep_epochs(self) -> int:
        """Epochs of the deep expert."""
        several, margin = self.layers.multilabel, self.has_margin
        shape = self.rows.row_count, self.data.rows.mean_features
        return self.settings.epochs_of_deep(*shape, streamed=self.is_streamed, several=several, margin=margin)

    @property
    def sizes(self) -> dict[str, int]:
        """Sizes of empty experts."""
        return {
            "features": self.features,
            "neurons": len(self.layers.node),
            "rows": self.groups.rows,
            "labels": len(self.spans.neuron),
        }

    def initial_accumulator(self, usual: float) -> float:
        """Return the initial sum of squared gradients: larger if the weights are trained already."""
        return usual if self.start is None else max(usual, LEARNED_ACCUMULATOR)


class RowChunk(NamedTuple):
    """Rows of an epoch in training order; the rate decays linearly over the whole epoch."""

    order: NDArray[np.int64]
    first: int  # number of earlier rows in the epoch
    total: int  # rows of the epoch
    rates: tuple[float, float]  # rates at the start and the end of the epoch


class Job(ABC):
    """Trains one expert, or a part of one."""

    name: str
    epochs: int
    shared: SharedRows | None = None  # this worker's part if several workers share the rows

    @abstractmethod
    def work(self) -> float:
        """Return an estimate of the work, so that the longest job starts first."""

    @abstractmethod
    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train for one epoch and return the mean cost; ``advance`` takes numbers of finished rows and may raise."""

    @abstractmethod
    def state(self) -> Arrays:
        """Return the arrays that an epoch changes."""

    def best_state(self) -> Arrays:
        """Return the part of the state that is kept for the best epoch."""
        return self.state()

    def fault_of(self, state: Mapping[str, NDArray[Any]]) -> str | None:
        """Return an error in the integers of a state whose arrays have the right shapes, if there is one."""
        return None

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Copy a state into the arrays of the job."""
        for name, array in self.state().items():
            array[...] = state[name]

    def averaged(self) -> list[Averaged]:
        """Return the weights to average if workers share the rows; empty if they cannot."""
        return []

    def train_rows(
        self,
        order: NDArray[np.int64],
        rate: float,
        epoch: int,
        advance: Callable[[int], None],
        train: Callable[[RowChunk], float],
        before: int = 0,
        total: int | None = None,
    ) -> float:
        """Train on rows chunk by chunk and return their share of the mean cost of the epoch.

        The rate decays to zero over all epochs. An epoch has ``total`` rows, by default these, and ``before`` of them
        came earlier. Workers that share the rows train on their own ones, with regular exchanges.
        """
        rates = rate * (1 - epoch / self.epochs), rate * (1 - (epoch + 1) / self.epochs)
        shared, pieces = self.shared, [order]
        if shared is not None:
            shared.start()
            pieces = shared.own(order)
        total = sum(map(len, pieces)) if total is None or shared is not None else total
        done, cost = before if shared is None else 0, 0.0
        for piece in pieces:
            for first in range(0, len(piece), CHUNK):
                chunk = RowChunk(piece[first : first + CHUNK], done, total, rates)
                cost += float(train(chunk))
                done += len(chunk.order)
                advance(len(chunk.order))
            if shared is not None:
                shared.exchange()
        return cost / max(total, 1) if shared is None else shared.mean_cost(cost, total)


class ExpertTraining(ABC):
    """The training of one expert."""

    kernels: ClassVar[tuple[Kernel, ...]] = ()  # kernels that training on a tree needs, to be compiled early

    def __init__(self, context: TrainingContext) -> None:
        self.context = context

    def memory(self) -> MemoryPlan:
        """Return the memory that training takes."""
        return MemoryPlan(0, 0, 0, 0)

    def jobs(self) -> list[Job]:
        """Return the jobs, with their weights allocated."""
        return []

    @abstractmethod
    def trained(self) -> Any:
        """Return the arrays of the expert after its jobs are done."""

    def alone(self, job: Job) -> Any | None:
        """Return the arrays of the expert that one of its jobs gives; None if it cannot be evaluated alone."""
        return None

    def candidates(self) -> Mapping[float, Callable[[], Any]]:
        """Return versions of the expert by a parameter; the best is added if validation rows gain by it."""
        return {}


def schema_of(state: Arrays) -> Schema:
    """Return the schema of other states of a job: the same types and shapes, and finite."""
    return {
        name: floats(*array.shape, low=-FINITE, high=FINITE)
        if array.dtype.kind == "f"
        else ArraySpec(array.shape, "iu")
        for name, array in state.items()
    }


def check_finite(name: str, state: Arrays) -> None:
    """Raise HiNetError if the weights of a job are not finite."""
    try:
        check_arrays(state, schema_of(state), {})
    except HiNetError as error:
        raise HiNetError(f"{name} is no longer finite: {error}; scale the features to length 1") from None
