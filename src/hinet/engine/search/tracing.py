"""The best traces of rows by a fused model, found in blocks of rows; corrections of probabilities come later."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts.wide import FEW
from hinet.engine.model.fused import FusedModel
from hinet.engine.model.groups import Groups
from hinet.engine.search.search_kernels import best_traces
from hinet.parameters import resolve_threads
from hinet.ragged import gather, offsets_of
from hinet.taxonomy import Layers

INITIAL_CAPACITY = 384  # minimum entries of a search at first
MIN_BLOCK = 64  # fewer rows are not worth another thread
CAPACITY_PER_TRACE = 8  # entries that each of many traces is likely to need

Part = TypeVar("Part")
Tuple = TypeVar("Tuple", bound=tuple[Any, ...])


class BlockSizes(NamedTuple):
    """Maximum sizes of what a thread searches at a time."""

    rows: int = 4_096
    cells: int = 8_000_000  # maximum size of lists of labels or neurons


BLOCKS = BlockSizes()


class RawTraces(NamedTuple):
    """Best traces of rows, as the kernels return them."""

    counts: NDArray[np.int64]  # (n,) traces of each row; negative if the capacity was too small
    lengths: NDArray[np.int64]  # (traces,)
    log_p: NDArray[np.float64]  # (traces,)
    neurons: NDArray[np.int32]  # (neurons of all traces,)
    neuron_log_p: NDArray[np.float64]  # (neurons of all traces,)
    touched: NDArray[np.int64]  # (n,)

    def traces(self, layers: Layers, log_p: NDArray[np.float64] | None = None) -> Traces:
        """Return the traces, with other log probabilities if given."""
        log_p = self.log_p if log_p is None else log_p
        return Traces(layers, offsets_of(self.counts), offsets_of(self.lengths), self.neurons, log_p)

    def _with_rows(self, rows: NDArray[np.int64], other: RawTraces) -> RawTraces:
        """Return the traces with those of other ``rows`` inserted."""
        counts, touched = self.counts.copy(), self.touched.copy()
        counts[rows], touched[rows] = other.counts, other.touched
        own = np.repeat(np.arange(len(counts)), np.maximum(self.counts, 0))
        order = np.argsort(np.concatenate([own, np.repeat(rows, other.counts)]), kind="stable")
        lengths = np.concatenate([self.lengths, other.lengths])
        flat, _ = gather(np.arange(int(lengths.sum())), offsets_of(lengths), order)
        return RawTraces(
            counts,
            lengths[order],
            np.concatenate([self.log_p, other.log_p])[order],
            np.concatenate([self.neurons, other.neurons])[flat],
            np.concatenate([self.neuron_log_p, other.neuron_log_p])[flat],
            touched,
        )


def find_traces(
    model: FusedModel,
    matrix: SparseMatrix,
    k: int,
    threads: int | None = None,
    lowest: float = -np.inf,
    sizes: BlockSizes = BLOCKS,
    groups: Groups | None = None,
) -> RawTraces:
    """Return the ``k`` best traces of every row with a log probability of at least ``lowest``, exactly.

    ``groups`` are those of the model, some of whose options may be closed.
    """
    capacity = max(INITIAL_CAPACITY, CAPACITY_PER_TRACE * k)
    answer = partial(block_traces, model, k=k, lowest=lowest, capacity=capacity, sizes=sizes, groups=groups)
    return joined(in_blocks(matrix, answer, threads, sizes))


def block_traces(
    model: FusedModel,
    block: SparseMatrix,
    k: int = 1,
    lowest: float = -np.inf,
    capacity: int = INITIAL_CAPACITY,
    sizes: BlockSizes = BLOCKS,
    groups: Groups | None = None,
) -> RawTraces:
    """Return the best traces of a block; rows whose search exceeds the capacity are retried with a doubled one."""
    count, others = block.row_count, model.layers.other_parents
    per_neuron = sizes.cells // len(model.layers.node) if len(others[0]) else sizes.rows  # DAGs mark every neuron
    max_rows = max(1, min(sizes.rows * INITIAL_CAPACITY // capacity, per_neuron))
    if count > max_rows:
        parts = split(block, max_rows)
        return joined([block_traces(model, part, k, lowest, capacity, sizes, groups) for part in parts])
    capacity = max(capacity, FEW * INITIAL_CAPACITY // max(count, 1))
    traces = RawTraces(*best_traces(block, groups or model.groups, model.experts, others, k, lowest, capacity))
    needed = -int(traces.counts.min(initial=0))
    if not needed:
        return traces
    rows = np.flatnonzero(traces.counts < 0)
    rest = block_traces(model, block.take(rows), k, lowest, max(2 * capacity, needed), sizes, groups)
    return traces._with_rows(rows, rest)


def in_blocks(
    matrix: SparseMatrix,
    answer: Callable[..., Part],
    threads: int | None,
    sizes: BlockSizes,
    *per_row: NDArray[Any],
) -> list[Part]:
    """Answer blocks of rows in parallel; arrays ``per_row`` are split alike."""
    count, threads = matrix.row_count, resolve_threads(threads)
    size = min(sizes.rows, max(MIN_BLOCK, -(-count // threads)))
    blocks = split(matrix, size)
    threads = min(threads, len(blocks))
    parts = [[array[start : start + size] for start in range(0, max(count, 1), size)] for array in per_row]
    if threads == 1:
        return [answer(*block) for block in zip(blocks, *parts, strict=True)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(answer, blocks, *parts))


def joined(parts: list[Tuple]) -> Tuple:
    """Concatenate the answers to several blocks."""
    return parts[0] if len(parts) == 1 else type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))


def split(matrix: SparseMatrix, size: int) -> list[SparseMatrix]:
    """Split rows into blocks of at most ``size``; there is at least one block."""
    count = matrix.row_count
    return [matrix.block(start, min(start + size, count)) for start in range(0, max(count, 1), size)]
