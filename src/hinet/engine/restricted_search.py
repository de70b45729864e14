"""Answers among some of the labels, such as those within a branch: exact, with conditional probabilities.

The probability of a trace given that the label is an allowed one is its own divided by that of all allowed labels. The
part of a neuron's probability that belongs to allowed labels does not depend on the path to the neuron. So it is
computed from the leaves up, only for neurons with both allowed and other labels below them, and the best traces are
found by the usual search with the options closed below which no label is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine.fused_search import Search
from hinet.engine.model.groups import Groups
from hinet.engine.search.marginal_kernels import open_shares
from hinet.engine.search.odds_scaling import odds_shift, shifted_traces, trusted_traces
from hinet.engine.search.predictor import PROBABILITY, TYPICAL_F1, Found, FoundLabels, FoundNodes, K
from hinet.engine.search.tracing import find_traces
from hinet.errors import HiNetError
from hinet.ragged import gather, offsets_of
from hinet.taxonomy import STOP, Layers

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Restriction:
    """The labels that may be answered, and what follows for neurons and their options.

    Attributes
    ----------
    allowed : bool array of shape (nodes,)
        Whether a node may be the answer.
    groups : Groups
        The sibling groups, whose options are closed if no allowed label is below them.
    neurons : int array
        The neurons with both allowed and other labels below them, children first.
    position : int array of shape (neurons,)
        Index of a neuron in ``neurons``, -1 for all others.
    below : float array of shape (neurons,)
        1 if all labels below a neuron are allowed, else 0.
    """

    allowed: NDArray[np.bool_]
    groups: Groups
    neurons: NDArray[np.int64]
    position: NDArray[np.int64]
    below: Floats

    @classmethod
    def of(cls, layers: Layers, allowed: NDArray[np.bool_]) -> Restriction:
        """Return the restriction to some nodes; raise HiNetError if none of them is a label."""
        if not allowed[layers.node[layers.ends]].any():
            raise HiNetError("no label is left by `within` and `exclude`; allow more of the taxonomy")
        stop = layers.option_neuron == STOP
        some = np.zeros(len(stop), bool)  # (options,) whether an option leads to an allowed label, or only to such
        some[stop] = allowed[layers.node[layers.option_parent[stop]]]
        every = some.copy()
        has_some, has_only = np.zeros((2, len(layers.node)), bool)
        for start, end in reversed([*pairwise(layers.layer_offsets.tolist())]):
            options = slice(layers.option_offsets[start], layers.option_offsets[end])
            target, starts = layers.option_neuron[options], layers.option_offsets[start:end] - options.start
            below = target != STOP
            some[options][below], every[options][below] = has_some[target[below]], has_only[target[below]]
            has_some[start:end] = np.logical_or.reduceat(some[options], starts)
            has_only[start:end] = np.logical_and.reduceat(every[options], starts)
        neurons = np.flatnonzero(has_some & ~has_only)[::-1].astype(np.int64)
        position = np.full(len(has_some), -1, np.int64)
        position[neurons] = np.arange(len(neurons))
        groups = Groups.of(layers)._replace(closed=~some)
        return cls(allowed, groups, neurons, position, has_only.astype(np.float64))


@dataclass(frozen=True)
class RestrictedSearch(Search):
    """Predicts allowed labels alone; probabilities are conditional on these.

    If rows have several labels, each label keeps its own probability, as labels do not exclude each other.
    """

    restriction: Restriction = field(kw_only=True)

    @classmethod
    def of(cls, search: Search, allowed: NDArray[np.bool_]) -> Self:
        """Return a search among some nodes, (nodes,)."""
        restriction = Restriction.of(search.layers, allowed)
        return cls(search.model, search.threads, search.blocks, restriction=restriction)

    def traces(self, rows: Any, k: int = 1, *, least: float = 0.0) -> Found:
        """Return the ``k`` best allowed traces of every row, exactly.

        ``least`` only applies if rows have several labels: traces that are less probable are left out.
        """
        count = self.layers.count_traces()
        k = min(K.validate("k", k), count)
        if self.layers.multilabel:
            return _joined([self._best_of_sets(part, k, least) for part in self._slices(rows, count)])
        best = find_traces(
            self.model, self._checked(rows), k, self.threads, -np.inf, self.blocks, self.restriction.groups
        )
        traces = best.traces(self.layers)
        return Found(*self._conditional(rows, traces, best.neuron_log_p), best.touched)

    def _best_of_sets(self, rows: Any, k: int, least: float) -> Found:
        """Return the best allowed traces of rows with several labels."""
        if len(self.layers.other_parents[0]):  # a node waits for all its parents, of which some may not be allowed
            found = super().traces(rows, self.layers.count_traces(), least=least)
            return _taken(found, _first(found.traces.row_offsets, self._are_allowed(found.traces), k))
        raw = self._raw(least)
        lowest, groups = np.log(raw) if raw > 0 else -np.inf, self.restriction.groups
        best = find_traces(self.model, self._checked(rows), k, self.threads, lowest, self.blocks, groups)
        traces = best.traces(self.layers, self._mapped(best.log_p))
        return Found(traces, self._mapped(best.neuron_log_p), best.touched)

    def may_answer(self, node: int) -> bool:
        """Return whether a node is an allowed one."""
        return bool(self.restriction.allowed[node])

    def labels(self, rows: Any) -> FoundNodes:
        """Return the most probable allowed label of every row, summed over all its traces."""
        if self._has_one_trace_per_label:
            return self.decode(rows)
        nodes, probability = [], []
        for block in self._probabilities(rows):
            nodes.append(np.asarray(block.argmax(1)).ravel().astype(np.int64))
            probability.append(block.max(1).toarray().ravel())
        return FoundNodes(np.concatenate(nodes), np.concatenate(probability), self._touched(rows))

    def top_labels(self, rows: Any, k: int = 1) -> FoundLabels:
        """Return the ``k`` most probable allowed labels of every row, each summed over all its traces."""
        if self._has_one_trace_per_label:
            best = self.traces(rows, k)
            assert best.traces.log_p is not None
            return FoundLabels(best, np.exp(best.traces.log_p))
        cells = self._label_count * (self.layers.height + 1)
        parts = [self._top_labels(part, K.validate("k", k)) for part in self._slices(rows, cells)]
        return FoundLabels(
            _joined([part.found for part in parts]), np.concatenate([part.probability for part in parts])
        )

    def _top_labels(self, rows: Any, k: int) -> FoundLabels:
        layers = self.layers
        likely = self._likely_labels(rows, 0, 0.0, layers.height)
        owner = np.repeat(np.arange(len(likely.counts)), likely.counts)
        kept = np.flatnonzero(self.restriction.allowed[likely.node])
        kept = kept[np.lexsort((-likely.probability[kept], owner[kept]))]
        counts = np.bincount(owner[kept], minlength=len(likely.counts))
        kept = kept[_first(offsets_of(counts), np.ones(len(kept), bool), k)]
        counts = np.bincount(owner[kept], minlength=len(likely.counts))
        known = np.arange(layers.height) < likely.length[kept][:, None]
        with np.errstate(divide="ignore"):
            along, log_p = np.log(likely.along[kept][known]), np.log(likely.trace[kept])
        traces = Traces(layers, offsets_of(counts), offsets_of(likely.length[kept]), likely.neuron[kept][known], log_p)
        found = Found(*self._conditional(rows, traces, along), likely.touched)
        return FoundLabels(found, likely.probability[kept] / self._total(rows, self._shares(rows))[owner[kept]])

    def label_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probability of every allowed node to be the label, (n, nodes), where it is at least ``least``."""
        allowed = sp.diags_array(self.restriction.allowed.astype(np.float64), format="csr")
        if self.layers.multilabel:
            return sp.csr_array(super().label_probabilities(rows, least) @ allowed)
        probability = sp.csr_array(super().label_probabilities(rows) @ allowed)
        total = np.maximum(probability.sum(1), np.finfo(np.float64).tiny)
        probability.data /= np.repeat(total, np.diff(probability.indptr))
        probability.data[probability.data < least] = 0
        probability.eliminate_zeros()
        return probability

    def node_probabilities(self, rows: Any, least: float = 0.0) -> sp.csr_array:
        """Return the probabilities of allowed nodes of at least ``least``, (n, nodes), with several labels per row."""
        allowed = sp.diags_array(self.restriction.allowed.astype(np.float64), format="csr")
        return sp.csr_array(super().node_probabilities(rows, least) @ allowed)

    def deepest_confident(self, rows: Any, min_probability: float) -> FoundNodes:
        """Return the deepest allowed node whose conditional probability is at least ``min_probability``.

        If there is none, it is the most probable allowed node.
        """
        cut = PROBABILITY.validate("min_probability", min_probability)
        depth = self.layers.taxonomy.depth.astype(np.float64)
        return self._best_nodes(rows, lambda p: np.where(p >= cut, depth + np.minimum(p, 1) / 2, 0.0))

    def expected_f1(self, rows: Any, f1: float = TYPICAL_F1) -> FoundNodes:
        """Return the allowed node with the best expected hierarchical F1, given that the label is an allowed one."""
        cut, above = PROBABILITY.validate("f1", f1) / 2, self._above
        return self._best_nodes(rows, lambda p: np.where(p > 0, (p - cut) @ above.T, 0.0))

    def _best_nodes(self, rows: Any, gain: Any) -> FoundNodes:
        """Return the allowed node with the largest gain of every row, or the most probable one if none has any."""
        self._check_multilabel(False, "choosing nodes by probability")
        allowed = self.restriction.allowed
        nodes, probability = [], []
        for block in self._probabilities(rows):
            p = (block @ self._above).toarray()  # (n, nodes)
            gains = np.where(allowed, gain(p), 0.0)
            best = np.where(gains.max(1) > 0, gains.argmax(1), np.where(allowed, p, -1.0).argmax(1))
            nodes.append(best.astype(np.int64))
            probability.append(np.minimum(p[np.arange(len(p)), best], 1.0))
        return FoundNodes(np.concatenate(nodes), np.concatenate(probability), self._touched(rows))

    def _probabilities(self, rows: Any) -> Iterator[sp.csr_array]:
        """Yield the probabilities of labels, in blocks of rows."""
        for part in self._slices(rows, len(self.layers.taxonomy)):
            yield self.label_probabilities(part)

    def _slices(self, rows: Any, cells: int) -> list[Any]:
        """Return rows in slices whose answers, of ``cells`` numbers per row, fit into memory."""
        size = max(1, self.blocks.cells // cells)
        return [rows[start : start + size] for start in range(0, max(rows.shape[0], 1), size)]

    def _touched(self, rows: Any) -> NDArray[np.int64]:
        return np.full(rows.shape[0], self.model.outputs, np.int64)

    @cached_property
    def _above(self) -> sp.csr_array:
        """(nodes, nodes) Ones at each node and its ancestors."""
        flat, offsets = self._ancestors
        return sp.csr_array((np.ones(len(flat)), flat, offsets), shape=(len(offsets) - 1,) * 2)

    @cached_property
    def _has_one_trace_per_label(self) -> bool:
        return bool(self.layers.taxonomy.is_tree or self.layers.multilabel)

    def _are_allowed(self, traces: Traces) -> NDArray[np.bool_]:
        return np.asarray(self.restriction.allowed[traces.end_nodes])

    def _conditional(self, rows: Any, traces: Traces, log_p: Floats) -> tuple[Traces, Floats]:
        """Return allowed traces, and the log probabilities along them, given that the label is allowed."""
        shares, owner = self._shares(rows), np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        position = self.restriction.position[traces.neurons]
        of_neuron = np.repeat(owner, np.diff(traces.offsets))
        with np.errstate(divide="ignore"):
            part = np.log(shares[of_neuron, np.maximum(position, 0)]) if shares.shape[1] else np.zeros(len(log_p))
        log_p = log_p + np.where(position >= 0, part, 0.0)
        shift = self._shift(rows) if self.model.odds_scale != 1 else None
        if shift is not None:
            traces, log_p = shifted_traces(traces, log_p, *shift)
        if self._uses_trust(rows):
            traces, log_p = trusted_traces(traces, log_p, self.trust_in(rows), self._allowed_shares)
        assert traces.log_p is not None
        total = np.log(self._total(rows, shares, shift))
        whole = np.minimum(traces.log_p - total[owner], 0)
        conditional = Traces(traces.layers, traces.row_offsets, traces.offsets, traces.neurons, whole)
        return conditional, np.minimum(log_p - total[of_neuron], 0)

    def _shares(self, rows: Any) -> Floats:
        """Return the probability of allowed labels below the neurons of the restriction, given each, (n, neurons)."""
        restriction, experts = self.restriction, self.model.experts

        def answer(block: SparseMatrix) -> Floats:
            shares: Floats = open_shares(
                block, restriction.groups, experts, restriction.neurons, restriction.position, restriction.below
            )
            return shares

        return np.concatenate(self._in_blocks(rows, answer))

    def _total(self, rows: Any, shares: Floats, shift: tuple[Floats, NDArray[np.bool_]] | None = None) -> Floats:
        """Return the probability that the label is an allowed one, (n,)."""
        total = shares[:, -1] if shares.shape[1] else np.ones(rows.shape[0])  # the root comes last
        if shift is not None:
            total = (1 - shift[0]) * total + shift[0] * shift[1]
        if self._uses_trust(rows):
            trust = self.trust_in(rows)
            labels = np.count_nonzero(self._are_ends_allowed) * self._allowed_shares[-1]
            total = trust * total + (1 - trust) * labels
        return np.maximum(total, np.finfo(np.float64).tiny)

    def _shift(self, rows: Any) -> tuple[Floats, NDArray[np.bool_]]:
        """Return how far odds are shifted to the best trace of every row, and whether that is allowed."""
        best = find_traces(self.model, self._checked(rows), 1, self.threads, -np.inf, self.blocks)
        traces = best.traces(self.layers)
        return odds_shift(np.exp(best.log_p), self.model.odds_scale), self._are_allowed(traces)

    @cached_property
    def _are_ends_allowed(self) -> NDArray[np.bool_]:
        """Whether each neuron that ends a trace has an allowed node."""
        nodes = self._node_of[self.layers.ends]
        return np.where(nodes >= 0, self.restriction.allowed[nodes], False)

    @cached_property
    def _allowed_shares(self) -> Floats:
        """Share of all labels that are allowed and at or below every node, then the share of one label."""
        labels = self._node_of[self.layers.ends][self._are_ends_allowed]
        above = self.layers.taxonomy.ancestor_lists(labels)[0]
        counts = np.bincount(above, minlength=len(self.layers.taxonomy))
        return np.append(counts, 1) / len(self._are_ends_allowed)


def _first(row_offsets: NDArray[np.int64], allowed: NDArray[np.bool_], k: int) -> NDArray[np.int64]:
    """Return the indices of the first ``k`` allowed entries of every row."""
    rank = np.cumsum(allowed)
    before = np.append(0, rank)[row_offsets[:-1]]
    return np.flatnonzero(allowed & (rank - np.repeat(before, np.diff(row_offsets)) <= k))


def _taken(found: Found, chosen: NDArray[np.int64]) -> Found:
    """Return some of the traces."""
    traces = found.traces
    assert traces.log_p is not None
    owner = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))[chosen]
    flat, lengths = gather(np.arange(len(traces.neurons)), traces.offsets, chosen)
    row_offsets = offsets_of(np.bincount(owner, minlength=len(traces)))
    taken = Traces(traces.layers, row_offsets, offsets_of(lengths), traces.neurons[flat], traces.log_p[chosen])
    return Found(taken, found.log_p[flat], found.touched)


def _joined(parts: list[Found]) -> Found:
    """Return the answers to several slices of rows as one."""
    traces = [part.traces for part in parts]
    row_offsets = offsets_of(np.concatenate([np.diff(each.row_offsets) for each in traces]))
    offsets = offsets_of(np.concatenate([np.diff(each.offsets) for each in traces]))
    neurons, log_p = (np.concatenate([getattr(each, name) for each in traces]) for name in ("neurons", "log_p"))
    joined = Traces(traces[0].layers, row_offsets, offsets, neurons, log_p)
    along, touched = (np.concatenate([getattr(part, name) for part in parts]) for name in ("log_p", "touched"))
    return Found(joined, along, touched)
