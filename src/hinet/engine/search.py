"""Answers of a fused model: exact best traces, labels and nodes, found without scoring the whole taxonomy."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix, check_rows, is_sparse
from hinet.engine.leaning import gifts, leaned
from hinet.engine.model import FusedModel
from hinet.engine.scoring_kernels import FEW
from hinet.engine.search_kernels import best_traces
from hinet.engine.spreading_kernels import Leaning, best_labels, best_nodes
from hinet.errors import HiNetError
from hinet.ragged import gather, offsets_of

BLOCK = 4_096  # rows that a thread takes at a time, at most
LEAST_BLOCK = 64  # fewer are not worth another thread
ROOM = 384  # entries that a search has room for at first, at least
ROOM_FOR_TRACE = 8  # entries that each of many traces is likely to need
FLOOR = 1e-4  # probability below which a neuron is left aside at first
TYPICAL_F1 = 0.8  # the hierarchical F1 that `expected_f1` reckons with, unless told

Decoding = Literal["map", "expected_f1", "label"]


@dataclass(frozen=True)
class Found:
    """Answers to rows.

    Attributes
    ----------
    traces : Traces
        The traces of every row, the best first.
    log_p : float array, as long as ``traces.neurons``
        Log probability of the path down to each neuron; in a tree, of the node itself.
    touched : int array of shape (n,)
        How many rows of output weights were looked at for each row.
    """

    traces: Traces
    log_p: NDArray[np.float64]
    touched: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.traces)


@dataclass(frozen=True)
class FoundNodes:
    """A node for every row, its probability summed over its paths, and the output rows looked at."""

    nodes: NDArray[np.int64]  # positions in the taxonomy
    probability: NDArray[np.float64]
    touched: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nodes)


class Answering(ABC):
    """What gives every row a node, whichever engine the model belongs to."""

    @abstractmethod
    def traces(self, rows: Any, k: int = 1, *, least: float = 0.0) -> Found:
        """Return the ``k`` best traces of every row; those less probable than ``least`` are left out."""

    @abstractmethod
    def labels(self, rows: Any) -> FoundNodes:
        """Return the most probable label of every row, summed over all its traces."""

    @abstractmethod
    def expected_f1(self, rows: Any, f1: float = TYPICAL_F1) -> FoundNodes:
        """Return the node with the best expected hierarchical F1, over many rows on which it is about ``f1``."""

    def decode(self, rows: Any, decoding: Decoding = "map") -> FoundNodes:
        """Return a node for every row: of the best trace, of the best expected F1, or the best label."""
        if decoding == "label":
            return self.labels(rows)
        if decoding == "expected_f1":
            return self.expected_f1(rows)
        if decoding != "map":
            raise HiNetError(f"decoding is map, expected_f1 or label; got {decoding!r}")
        found = self.traces(rows)
        assert found.traces.log_p is not None
        return FoundNodes(found.traces.end_nodes.astype(np.int64), np.exp(found.traces.log_p), found.touched)


class _Answers(NamedTuple):
    """The traces of rows, as the kernel returns them."""

    counts: NDArray[np.int64]  # (n,) traces of each row; less than 0 where there was too little room
    lengths: NDArray[np.int64]  # (traces,)
    log_p: NDArray[np.float64]  # (traces,)
    neurons: NDArray[np.int32]  # (neurons of all traces,)
    neuron_log_p: NDArray[np.float64]  # (neurons of all traces,)
    touched: NDArray[np.int64]  # (n,)

    @classmethod
    def joined(cls, parts: list[_Answers]) -> _Answers:
        """Return the answers to rows of several blocks."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def filled_in(self, left: NDArray[np.int64], rest: _Answers) -> _Answers:
        """Return the answers with those to the rows ``left`` out put in their places."""
        counts, touched = self.counts.copy(), self.touched.copy()
        counts[left], touched[left] = rest.counts, rest.touched
        own = np.repeat(np.arange(len(counts)), np.maximum(self.counts, 0))
        traces = np.argsort(np.concatenate([own, np.repeat(left, rest.counts)]), kind="stable")
        lengths = np.concatenate([self.lengths, rest.lengths])
        flat, _ = gather(np.arange(int(lengths.sum())), offsets_of(lengths), traces)
        return _Answers(
            counts,
            lengths[traces],
            np.concatenate([self.log_p, rest.log_p])[traces],
            np.concatenate([self.neurons, rest.neurons])[flat],
            np.concatenate([self.neuron_log_p, rest.neuron_log_p])[flat],
            touched,
        )


@dataclass(frozen=True)
class Search(Answering):
    """Finds answers by a model; holds no state, so any number of threads may ask at once.

    Many rows are cut into blocks for ``threads`` threads, by default one a core. Few rows are answered in the
    caller's own thread.
    """

    model: FusedModel
    threads: int | None = None

    def traces(self, rows: Any, k: int = 1, *, least: float = 0.0) -> Found:
        """Return the ``k`` best traces of every row, exactly; those less probable than ``least`` are left out.

        ``least`` is a bound before the model's slope, if it has one, is applied.
        """
        if k < 1:
            raise HiNetError(f"k is at least 1; got {k}")
        k = min(k, self.model.layers.count_traces())
        matrix = self._checked(rows)
        lowest = np.log(least) if least > 0 else -np.inf
        layers = self.model.layers
        room = max(ROOM, ROOM_FOR_TRACE * k)
        parts = self._in_blocks(matrix, lambda block: self._best_traces(block, k, lowest, room))
        found = _Answers.joined(parts)
        traces = Traces(layers, offsets_of(found.counts), offsets_of(found.lengths), found.neurons, found.log_p)
        if self.model.slope == 1:
            return Found(traces, found.neuron_log_p, found.touched)
        return Found(*leaned(traces, found.neuron_log_p, self.model.slope), found.touched)

    def _best_traces(self, block: SparseMatrix, k: int, lowest: float, room: int) -> _Answers:
        """Search rows with so much room, or more if they are few, and those for which it was too little with twice."""
        count = len(block.indptr) - 1
        most = max(1, BLOCK * ROOM // room)
        if count > most:
            parts = [_block(block, start, min(start + most, count)) for start in range(0, count, most)]
            return _Answers.joined([self._best_traces(part, k, lowest, room) for part in parts])
        room = max(room, FEW * ROOM // max(count, 1))
        found = _Answers(*best_traces(block, self.model.groups, self.model.experts, k, lowest, room))
        wanted = -int(found.counts.min(initial=0))
        if not wanted:
            return found
        left = np.flatnonzero(found.counts < 0)
        return found.filled_in(left, self._best_traces(_chosen(block, left), k, lowest, max(2 * room, wanted)))

    def label_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probability of every node to be the label, (n, nodes), by its traces of at least ``least``."""
        traces = self.traces(rows, self.model.layers.count_traces(), least=least).traces
        assert traces.log_p is not None
        row = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        shape = (len(traces), len(self.model.layers.taxonomy))
        found = sp.csr_array((np.exp(traces.log_p), (row, traces.end_nodes)), shape=shape)
        found.sum_duplicates()
        return found

    def labels(self, rows: Any) -> FoundNodes:
        """Return the most probable label of every row, summed over all its traces; exact in trees and DAGs.

        Its probability leaves out what could not change the answer, so that it may be a little too low.
        """
        if self.model.slope != 1:  # a label of a tree has one trace
            return self.decode(rows)
        experts, groups, node_of = self.model.experts, self.model.groups, self._node_of
        return self._nodes(rows, lambda block: best_labels(block, groups, experts, node_of, FLOOR))

    def as_deep_as_sure(self, rows: Any, least: float) -> FoundNodes:
        """Return the deepest node whose probability is at least ``least``, or a top node if there is none."""
        if not 0 < least <= 1:
            raise HiNetError(f"the least probability is more than 0 and at most 1; got {least}")
        return self._by_nodes(rows, least, True)

    def expected_f1(self, rows: Any, f1: float = TYPICAL_F1) -> FoundNodes:
        """Return the node with the best expected hierarchical F1, over many rows on which it is about ``f1``.

        That node has the largest sum over itself and its ancestors of ``P(ancestor) - f1 / 2``.
        """
        if not 0 < f1 <= 1:
            raise HiNetError(f"f1 is more than 0 and at most 1; got {f1}")
        return self._by_nodes(rows, f1 / 2, False)

    def _by_nodes(self, rows: Any, cut: float, surest: bool) -> FoundNodes:
        experts, groups = self.model.experts, self.model.groups
        flat, offsets = self._ancestors
        depth = self.model.layers.taxonomy.depth.astype(np.int64)

        def answer(block: SparseMatrix) -> Any:
            leaning = self._leaning(block, cut / 64)
            return best_nodes(block, groups, experts, self._node_of, flat, offsets, depth, leaning, cut, surest)

        return self._nodes(rows, answer)

    def _leaning(self, block: SparseMatrix, floor: float) -> Leaning:
        """Return which node each row leans to and how much, and the probability below which neurons are left aside."""
        count = len(block.indptr) - 1
        if self.model.slope == 1:
            return Leaning(np.full(count, -1), np.zeros(count), np.full(count, floor))
        found = _Answers(*self._best_traces(block, 1, -np.inf, ROOM))
        best = np.exp(found.log_p)
        ends = np.cumsum(found.lengths)
        node = np.where(found.lengths > 0, self._node_of[found.neurons[np.maximum(ends - 1, 0)]], -1)
        return Leaning(node, gifts(best, self.model.slope), np.minimum(floor, best / 2))

    def _nodes(self, rows: Any, answer: Callable[[SparseMatrix], Any]) -> FoundNodes:
        parts = self._in_blocks(self._checked(rows), answer)
        return FoundNodes(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    @cached_property
    def _node_of(self) -> NDArray[np.int64]:
        return self.model.layers.node.astype(np.int64)

    @cached_property
    def _ancestors(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every node with its ancestors, the root left out, as a ragged array."""
        taxonomy = self.model.layers.taxonomy
        flat, offsets = taxonomy.ancestor_lists(np.arange(len(taxonomy)))
        return np.asarray(flat, np.int64), np.asarray(offsets, np.int64)

    def _checked(self, rows: Any) -> SparseMatrix:
        if not is_sparse(rows):
            raise HiNetError(f"the model reads rows of a CSR matrix, got {type(rows).__name__}")
        check_rows(rows)
        if rows.shape[1] != self.model.features:
            raise HiNetError(f"the model was trained on {self.model.features:,} features, got {rows.shape[1]:,}")
        return SparseMatrix.of(rows)

    def _in_blocks(self, matrix: SparseMatrix, answer: Callable[[SparseMatrix], Any]) -> list[Any]:
        """Answer blocks of rows, side by side if there are several."""
        count = len(matrix.indptr) - 1
        threads = self.threads or os.cpu_count() or 1
        size = min(BLOCK, max(LEAST_BLOCK, -(-count // threads)))
        blocks = [_block(matrix, start, min(start + size, count)) for start in range(0, max(count, 1), size)]
        threads = min(threads, len(blocks))
        if threads == 1:
            return [answer(block) for block in blocks]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(answer, blocks))


def _chosen(matrix: SparseMatrix, rows: NDArray[np.int64]) -> SparseMatrix:
    places, lengths = gather(np.arange(len(matrix.indices)), matrix.indptr, rows)
    return SparseMatrix(offsets_of(lengths), matrix.indices[places], matrix.data[places])


def _block(matrix: SparseMatrix, start: int, end: int) -> SparseMatrix:
    low, high = matrix.indptr[start], matrix.indptr[end]
    return SparseMatrix(matrix.indptr[start : end + 1] - low, matrix.indices[low:high], matrix.data[low:high])
