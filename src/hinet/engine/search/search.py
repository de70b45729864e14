"""Answers of a fused model: exact best traces, labels and nodes, found without scoring the whole taxonomy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix, is_for_kernels
from hinet.engine.model.fused import FusedModel
from hinet.engine.model.trust import Trust
from hinet.engine.search.contributions import contributions
from hinet.engine.search.marginal_kernels import Correction, best_nodes, likely_labels
from hinet.engine.search.odds_scaling import (
    map_log_odds,
    odds_shift,
    scaled_labels,
    scaled_traces,
    trusted_traces,
    unmap_log_odds,
)
from hinet.engine.search.predictor import (
    PROBABILITY,
    TYPICAL_F1,
    Found,
    FoundLabels,
    FoundNodes,
    K,
    Predictor,
    RowParts,
)
from hinet.engine.search.scoring_kernels import FEW, expert_logits
from hinet.engine.search.search_kernels import best_traces
from hinet.engine.search.set_search_kernels import all_nodes, best_labels
from hinet.engine.settings import TWO_LAYER_RATE
from hinet.errors import HiNetError
from hinet.parameters import resolve_threads
from hinet.ragged import gather, offsets_of

if TYPE_CHECKING:  # a model answers without what trains one
    from hinet.engine.model.targets import Targets
    from hinet.engine.settings import EngineSettings
    from hinet.progress import Progress
    from hinet.taxonomy import Layers

BLOCK = 4_096  # rows that a thread takes at a time, at most
LEAST_BLOCK = 64  # fewer are not worth another thread
ROOM = 384  # entries that a search has room for at first, at least
ROOM_FOR_TRACE = 8  # entries that each of many traces is likely to need
FLOOR = 1e-4  # probability below which a neuron is left aside at first
EPOCHS_OF_MORE_ROWS = 4  # enough to learn them, few enough to forget little
ROUNDING = 1e-6  # of probabilities in single precision
MOST_CELLS = 8_000_000  # of lists of labels that a thread has room for at a time

Part = TypeVar("Part", "_Answers", "_Labels")


class _Answers(NamedTuple):
    """The traces of rows, as the kernel returns them."""

    counts: NDArray[np.int64]  # (n,) traces of each row; less than 0 where there was too little room
    lengths: NDArray[np.int64]  # (traces,)
    log_p: NDArray[np.float64]  # (traces,)
    neurons: NDArray[np.int32]  # (neurons of all traces,)
    neuron_log_p: NDArray[np.float64]  # (neurons of all traces,)
    touched: NDArray[np.int64]  # (n,)

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


class _Labels(NamedTuple):
    """The labels of rows, as the kernel returns them."""

    counts: NDArray[np.int64]  # (n,) labels of each row
    node: NDArray[np.int64]  # (labels,)
    probability: NDArray[np.float64]  # (labels,) summed over all traces
    trace: NDArray[np.float64]  # (labels,) probability of the best trace
    length: NDArray[np.int64]  # (labels,) of the best trace
    neuron: NDArray[np.int32]  # (labels, height) its neurons
    along: NDArray[np.float64]  # (labels, height) probability of the path down to each of them
    touched: NDArray[np.int64]  # (n,)


@dataclass(frozen=True)
class Search(Predictor):
    """Finds answers by a model; holds no state, so any number of threads may ask at once.

    Many rows are cut into blocks for ``threads`` threads, by default one a core. Few rows are answered in the
    caller's own thread.
    """

    engine = "fused"
    model: FusedModel
    threads: int | None = None

    def traces(self, rows: Any, k: int = 1, *, least: float = 0.0) -> Found:
        """Return the ``k`` best traces of every row, exactly; those less probable than ``least`` are left out.

        ``least`` is a bound before probabilities are corrected, but with several labels per row after that.
        """
        k = min(K.validate("k", k), self.model.layers.count_traces())
        matrix = self._checked(rows)
        layers = self.model.layers
        least = self._raw(least)
        lowest = np.log(least) if least > 0 else -np.inf
        room = max(ROOM, ROOM_FOR_TRACE * k)
        parts = self._in_blocks(matrix, lambda block: self._best_traces(block, k, lowest, room))
        best = _joined(parts)
        log_p = self._mapped(best.log_p)
        traces = Traces(layers, offsets_of(best.counts), offsets_of(best.lengths), best.neurons, log_p)
        log_p = self._mapped(best.neuron_log_p)
        if self.model.odds_scale != 1 and not layers.multilabel:
            traces, log_p = scaled_traces(traces, log_p, self.model.odds_scale)
        if self._corrects_trust(rows):
            traces, log_p = trusted_traces(traces, log_p, self.trust_in(rows), self.label_shares)
        return Found(traces, log_p, best.touched)

    @property
    def _is_mapped(self) -> bool:
        """Whether the log odds of nodes and labels are mapped: with several labels per row alone."""
        return self.layers.multilabel and (self.model.odds_scale, self.model.odds_offset) != (1.0, 0.0)

    def _mapped(self, log_p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return calibrated log probabilities of nodes or labels of rows with several labels; others as they are."""
        return map_log_odds(log_p, self.model.odds_scale, self.model.odds_offset) if self._is_mapped else log_p

    def _raw(self, probability: float) -> float:
        """Return the probability before it was mapped, a little less so that rounding withholds nothing."""
        if not self._is_mapped:
            return probability
        return (1 - ROUNDING) * unmap_log_odds(probability, self.model.odds_scale, self.model.odds_offset)

    def _best_traces(self, block: SparseMatrix, k: int, lowest: float, room: int) -> _Answers:
        """Search rows with so much room, or more if they are few, and those for which it was too little with twice."""
        count = len(block.indptr) - 1
        most = max(1, min(BLOCK * ROOM // room, self._most_waiting))
        if count > most:
            return _joined([self._best_traces(part, k, lowest, room) for part in _parts(block, most)])
        room = max(room, FEW * ROOM // max(count, 1))
        groups, experts = self.model.groups, self.model.experts
        if self.layers.multilabel:
            answers = _Answers(*best_labels(block, groups, experts, self.layers.other_parents, k, lowest, room))
        else:
            answers = _Answers(*best_traces(block, groups, experts, k, lowest, room))
        wanted = -int(answers.counts.min(initial=0))
        if not wanted:
            return answers
        left = np.flatnonzero(answers.counts < 0)
        return answers.filled_in(left, self._best_traces(block.take(left), k, lowest, max(2 * room, wanted)))

    def labels(self, rows: Any) -> FoundNodes:
        """Return the most probable label of every row, summed over all its traces; exact in trees and DAGs.

        Its probability leaves out what could not change the answer, so that it may be a little too low.
        """
        # a label of a tree has one trace
        if self.model.odds_scale != 1 or self._corrects_trust(rows) or self.layers.multilabel:
            return self.decode(rows)
        likely = self._likely_labels(rows, 1, FLOOR)
        return FoundNodes(likely.node, likely.probability, likely.touched)

    def top_labels(self, rows: Any, k: int = 1) -> FoundLabels:
        """Return the ``k`` most probable labels of every row, each summed over all its traces, exactly.

        In a DAG the probability of a label leaves out what could not change the answer, as that of :meth:`labels` does.
        """
        layers = self.model.layers
        if layers.taxonomy.is_tree or layers.multilabel:  # a label has one trace
            best = self.traces(rows, k)
            assert best.traces.log_p is not None
            return FoundLabels(best, np.exp(best.traces.log_p))
        k = K.validate("k", k)
        likely = self._likely_labels(rows, min(k, self._labels), FLOOR, layers.height)
        known = np.arange(layers.height) < likely.length[:, None]
        with np.errstate(divide="ignore"):
            along, log_p = np.log(likely.along[known]), np.log(likely.trace)
        traces = Traces(layers, offsets_of(likely.counts), offsets_of(likely.length), likely.neuron[known], log_p)
        return FoundLabels(Found(traces, along, likely.touched), likely.probability)

    def label_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probability of every node to be the label, (n, nodes), summed over all its traces.

        With ``least``, only where it is at least that, before probabilities are corrected; of a DAG,
        paths through neurons that are less probable are then left out of the sums.
        """
        if self.layers.multilabel:
            return self._all_nodes(rows, least, 1)
        likely = self._likely_labels(rows, 0, least)
        row_offsets = offsets_of(likely.counts)
        probability = likely.probability
        if self.model.odds_scale != 1:
            probability = scaled_labels(probability, row_offsets, self.model.odds_scale)
        if self._corrects_trust(rows):
            trust = np.repeat(self.trust_in(rows), likely.counts)
            probability = trust * probability + (1 - trust) * self.label_shares[-1]
        shape = (len(likely.counts), len(self.model.layers.taxonomy))
        matrix = sp.csr_array((probability, likely.node, row_offsets), shape=shape)
        matrix.sort_indices()
        return matrix

    def node_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probability of every node, (n, nodes), where it is at least ``least``; for several labels a row.

        No node is more probable than one of its parents.
        """
        self._check_multilabel(True, "node_probabilities")
        return self._all_nodes(rows, least, 0)

    def _all_nodes(self, rows: Any, least: float, which: int) -> sp.csr_array:
        """Return the probability of nodes, or of the labels that end there, of at least ``least``."""
        layers, experts, groups = self.layers, self.model.experts, self.model.groups
        named = np.flatnonzero(layers.node >= 0)
        shape, least = len(layers.taxonomy), self._raw(least)

        def answer(block: SparseMatrix) -> sp.csr_array:
            parts = []
            for part in _parts(block, max(1, MOST_CELLS // len(layers.node))):
                probability = all_nodes(part, groups, experts, layers.other_parents, self._order, least)[which]
                row, neuron = np.nonzero((probability >= max(least, np.finfo(np.float32).tiny))[:, named])
                nodes = layers.node[named[neuron]]
                values = np.exp(self._mapped(np.log(probability[row, named[neuron]].astype(np.float64))))
                parts.append(sp.csr_array((values, (row, nodes)), shape=(len(probability), shape)))
            return sp.vstack(parts, format="csr")

        return sp.csr_array(sp.vstack(self._in_blocks(self._checked(rows), answer), format="csr"))

    def _check_multilabel(self, wanted: bool, method: str) -> None:
        if self.layers.multilabel != wanted:
            kind = "several labels" if wanted else "one label"
            raise HiNetError(f"{method} is for models of rows with {kind}")

    def _likely_labels(self, rows: Any, k: int, floor: float, height: int = 0) -> _Labels:
        """Return the ``k`` best labels of rows, or all of at least ``floor``; with the layers' height, traces too."""
        most = k or (min(self._labels, int(2 / floor) + 1) if floor else self._labels)
        size = max(1, MOST_CELLS // (max(most, 1) * (height + 1)))
        experts, groups, node_of = self.model.experts, self.model.groups, self._node_of

        def answer(block: SparseMatrix) -> _Labels:
            parts = _parts(block, size)
            return _joined(
                [_Labels(*likely_labels(part, groups, experts, node_of, k, floor, most, height)) for part in parts]
            )

        parts: list[_Labels] = self._in_blocks(self._checked(rows), answer)
        return _joined(parts)

    def logits_along(self, rows: Any, targets: Targets) -> NDArray[np.float64]:
        """Return the logits of all options of every choice on the way to targets, one a row, in the order of steps."""
        experts = self.model.experts
        by_expert = expert_logits(
            self._checked(rows), np.arange(len(targets)), targets.arrays, self.model.groups, experts
        )
        mixed: NDArray[np.float64] = by_expert.astype(np.float64) @ experts.mix.astype(np.float64)
        return mixed

    def deepest_confident(self, rows: Any, min_probability: float) -> FoundNodes:
        """Return the deepest node whose probability is at least ``min_probability``, or a top node if there is none."""
        return self._by_nodes(rows, PROBABILITY.validate("min_probability", min_probability), True)

    def expected_f1(self, rows: Any, f1: float = TYPICAL_F1) -> FoundNodes:
        """Return the node with the best expected hierarchical F1, over many rows on which it is about ``f1``.

        That node has the largest sum over itself and its ancestors of ``P(ancestor) - f1 / 2``.
        """
        return self._by_nodes(rows, PROBABILITY.validate("f1", f1) / 2, False)

    def _by_nodes(self, rows: Any, cut: float, surest: bool) -> FoundNodes:
        self._check_multilabel(False, "deepest_confident" if surest else "expected_f1")
        experts, groups = self.model.experts, self.model.groups
        flat, offsets = self._ancestors
        taxonomy = self.layers.taxonomy
        depth, is_tree = taxonomy.depth.astype(np.int64), taxonomy.is_tree

        def answer(block: SparseMatrix, trust: NDArray[np.float64]) -> Any:
            corrected = self._correction(block, trust, cut)
            nodes = self._node_of
            return best_nodes(block, groups, experts, nodes, flat, offsets, depth, corrected, cut, surest, is_tree)

        parts = self._in_blocks(self._checked(rows), answer, self.trust_in(rows))
        return FoundNodes(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _correction(self, block: SparseMatrix, trust: NDArray[np.float64], cut: float) -> Correction:
        """Return how probabilities are corrected, and the probability below which neurons are left aside.

        Nothing is left aside where the share of a node of the labels alone might reach ``cut``.
        """
        count = len(block.indptr) - 1
        floor, shares = np.full(count, cut / 64), np.zeros(len(self.layers.taxonomy) + 1)
        if (trust < 1).any():
            shares = self.label_shares
            floor[(1 - trust) * self._largest_inner_share + floor >= cut] = 0.0
        if self.model.odds_scale == 1:
            return Correction(np.full(count, -1), np.zeros(count), floor, trust, shares)
        traces = _Answers(*self._best_traces(block, 1, -np.inf, ROOM))
        best = np.exp(traces.log_p)
        ends = np.cumsum(traces.lengths)
        last = np.append(traces.neurons, 0)[ends - 1]  # that of an empty trace does not count; all may be empty
        node = np.where(traces.lengths > 0, self._node_of[last], -1)
        shift = odds_shift(best, self.model.odds_scale)
        return Correction(node, shift, np.minimum(floor, best / 2), trust, shares)

    @property
    def odds_scale(self) -> float:
        """What the log odds of best traces, or with several labels per row of all labels, are multiplied by."""
        return self.model.odds_scale

    @property
    def odds_offset(self) -> float:
        """Number added to the log odds of all labels, with several labels per row."""
        return self.model.odds_offset

    @property
    def can_scale_odds(self) -> bool:
        """Whether the log odds of best traces can be scaled: those of a tree can."""
        return self.layers.taxonomy.is_tree and not self.layers.multilabel

    @property
    def trust(self) -> Trust | None:
        """Parameters of the trust in rows with unknown n-grams."""
        return self.model.trust

    def with_trust(self, trust: Trust | None) -> Self:
        """Return the same with other parameters of the trust in rows with unknown n-grams."""
        return replace(self, model=replace(self.model, trust=trust))

    def _corrects_trust(self, rows: Any) -> bool:
        """Return whether unknown n-grams change the probabilities of rows."""
        return self.model.trust is not None and getattr(rows, "unknown", None) is not None

    def trust_in(self, rows: Any) -> NDArray[np.float64]:
        """Return the trust in every row, (n,)."""
        if self.model.trust is None or not self._corrects_trust(rows):
            return np.ones(rows.shape[0])
        return self.model.trust.of(rows.unknown)

    @cached_property
    def label_shares(self) -> NDArray[np.float64]:
        """Share of every node of the labels, (nodes + 1,): those at and below it; the last is that of one label."""
        nodes = len(self.layers.taxonomy)
        labels = self._node_of[self.layers.ends]
        above = self.layers.taxonomy.ancestor_lists(labels[labels >= 0])[0]
        return np.append(np.bincount(above, minlength=nodes), 1) / len(labels)

    @cached_property
    def _largest_inner_share(self) -> float:
        """Largest share of the labels that a node below the top level has."""
        return float(self.label_shares[:-1][self.layers.taxonomy.depth > 1].max(initial=0.0))

    def scaled(self, factor: float, odds_scale: float | None = None, odds_offset: float = 0.0) -> Self:
        """Return the same with all logits multiplied by ``factor``, and another odds scale and offset if given."""
        experts = self.model.experts
        mix = (experts.mix * factor).astype(np.float32)
        model = replace(self.model, experts=experts._replace(mix=mix))
        if odds_scale is not None:
            model = replace(model, odds_scale=odds_scale, odds_offset=odds_offset)
        return replace(self, model=model)

    def row_parts(self, row: Any) -> RowParts:
        """Return what each feature adds to the logits, for a matrix of one row."""
        matrix = SparseMatrix.of(row)
        return RowParts(lambda group: contributions(self.model, matrix, group), matrix.entries(self.model.features)[0])

    def to_arrays(self, *, half: bool = False) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return what is kept on disk: plain values that describe the model, and named arrays."""
        return {"half": half}, self.model.to_arrays(half=half)

    @classmethod
    def restored(
        cls, layers: Layers, metadata: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], network: Any = None
    ) -> Self:
        """Return the model of some layers that was kept as these arrays, or raise HiNetError."""
        return cls(FusedModel.from_arrays(layers, arrays))

    def moved_to(self, layers: Layers, came_from: NDArray[np.int64]) -> Self:
        """Return the same knowledge over other layers; ``came_from`` gives the old node of each new one, or -1."""
        from hinet.engine.training.taxonomy_transfer import transferred

        return replace(self, model=transferred(self.model, layers, came_from))

    def taught(self, learns: NDArray[np.bool_], targets: sp.csc_array, rows: Any) -> Self:
        """Return a model whose output rows that learn were fitted to targets of options on rows."""
        from hinet.engine.training.taxonomy_transfer import taught

        return replace(self, model=taught(self.model, learns, targets, SparseMatrix.of(rows)))

    def continued(
        self,
        rows: Any,
        traces: Traces,
        settings: EngineSettings,
        *,
        sample_weight: NDArray[np.float64] | None = None,
        device: str | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Return the model after learning from more rows, over the same layers."""
        from hinet.engine.training.fit import fit

        epochs = settings.deep_epochs or EPOCHS_OF_MORE_ROWS
        settings = replace(settings, deep_epochs=epochs, wide_epochs=epochs)
        if self.model.experts.deep.has_two_layers:
            settings = replace(settings, deep_rate=TWO_LAYER_RATE)
        model = fit(rows, traces, settings, sample_weight=sample_weight, start=self.model, progress=progress)
        return replace(self, model=replace(model, trust=self.model.trust))

    @cached_property
    def _node_of(self) -> NDArray[np.int64]:
        return self.model.layers.node.astype(np.int64)

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        """The neurons of several labels a row, each after all parents of its node."""
        depth = np.append(0, self.layers.taxonomy.depth[self.layers.node[1:]])
        return np.argsort(depth, kind="stable")

    @cached_property
    def _most_waiting(self) -> int:
        """How many rows to search at a time, where a search keeps a note of every neuron."""
        return MOST_CELLS // len(self.layers.node) if len(self.layers.other_parents[0]) else BLOCK

    @cached_property
    def _labels(self) -> int:
        """How many labels there are."""
        return len(np.unique(self._node_of[self.model.layers.ends]))

    @cached_property
    def _ancestors(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Every node with its ancestors, the root left out, as a ragged array."""
        taxonomy = self.model.layers.taxonomy
        flat, offsets = taxonomy.ancestor_lists(np.arange(len(taxonomy)))
        return np.asarray(flat, np.int64), np.asarray(offsets, np.int64)

    def _checked(self, rows: Any) -> SparseMatrix:
        if not is_for_kernels(rows):
            raise HiNetError(f"the model reads rows of a CSR matrix, got {type(rows).__name__}")
        matrix = SparseMatrix.of(rows)
        if rows.shape[1] != self.model.features:
            raise HiNetError(f"the model was trained on {self.model.features:,} features, got {rows.shape[1]:,}")
        return self.model.read(matrix)

    def _in_blocks(self, matrix: SparseMatrix, answer: Callable[..., Any], *per_row: NDArray[Any]) -> list[Any]:
        """Answer blocks of rows, side by side if there are several; ``per_row`` arrays are cut alike."""
        count = len(matrix.indptr) - 1
        threads = resolve_threads(self.threads)
        size = min(BLOCK, max(LEAST_BLOCK, -(-count // threads)))
        blocks = _parts(matrix, size)
        threads = min(threads, len(blocks))
        cut = [[array[start : start + size] for start in range(0, max(count, 1), size)] for array in per_row]
        if threads == 1:
            return [answer(*block) for block in zip(blocks, *cut, strict=True)]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(answer, blocks, *cut))


def _joined(parts: list[Part]) -> Part:
    """Return the answers to rows of several blocks as one."""
    return parts[0] if len(parts) == 1 else type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))


def _parts(matrix: SparseMatrix, size: int) -> list[SparseMatrix]:
    """Return the rows in blocks of at most ``size``, of which there is at least one."""
    count = len(matrix.indptr) - 1
    return [matrix.block(start, min(start + size, count)) for start in range(0, max(count, 1), size)]
