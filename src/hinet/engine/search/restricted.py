"""Answers among some of the labels, such as those within a branch: exact, with conditional probabilities.

The probability of a trace given that the label is an allowed one is its own divided by that of all allowed labels. The
part of a neuron's probability that belongs to allowed labels does not depend on the path to the neuron. So it is
computed from the leaves up, only for neurons with both allowed and other labels below them, and the best traces are
found by the usual search with the options closed below which no label is allowed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.groups import Groups
from hinet.engine.search.best_first import RawTraces, TraceSearch
from hinet.engine.search.corrections import odds_shift, shifted_traces, trusted_traces
from hinet.engine.search.marginal_kernels import open_shares
from hinet.engine.search.predictor import PROBABILITY, TYPICAL_F1, Found, FoundLabels, FoundNodes, K, Labels, Search
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
            return Found.joined([self._best_of_sets(part, k, least) for part in self._slices(rows, count)])
        best = self._best(rows, k, -np.inf)
        traces = best.traces(self.layers)
        return Found(*self._conditional(rows, traces, best.neuron_log_p), best.touched)

    def _best_of_sets(self, rows: Any, k: int, least: float) -> Found:
        """Return the best allowed traces of rows with several labels."""
        if len(self.layers.other_parents[0]):  # a node waits for all its parents, of which some may not be allowed
            found = super().traces(rows, self.layers.count_traces(), least=least)
            return _first_allowed(found, self._are_allowed(found.traces), k)
        raw = self._raw(least)
        best = self._best(rows, k, np.log(raw) if raw > 0 else -np.inf)
        traces = best.traces(self.layers, self._mapped(best.log_p))
        return Found(traces, self._mapped(best.neuron_log_p), best.touched)

    def _best(self, rows: Any, k: int, lowest: float) -> RawTraces:
        search = TraceSearch(self.model, k, lowest, self.blocks, self.restriction.groups)
        return search.find(self._checked(rows), self.threads)

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
        return FoundNodes(np.concatenate(nodes), np.concatenate(probability))

    def top_labels(self, rows: Any, k: int = 1) -> FoundLabels:
        """Return the ``k`` most probable allowed labels of every row, each summed over all its traces."""
        if self._has_one_trace_per_label:
            best = self.traces(rows, k)
            assert best.traces.log_p is not None
            return FoundLabels(best, np.exp(best.traces.log_p))
        cells = self._label_count * (self.layers.height + 1)
        parts = [self._top_labels(part, K.validate("k", k)) for part in self._slices(rows, cells)]
        found = Found.joined([part.found for part in parts])
        return FoundLabels(found, np.concatenate([part.probability for part in parts]))

    def _top_labels(self, rows: Any, k: int) -> FoundLabels:
        likely = self._likely_labels(rows, 0, 0.0, self.layers.height)
        owner = np.repeat(np.arange(len(likely.counts)), likely.counts)
        kept = np.flatnonzero(self.restriction.allowed[likely.node])
        kept = kept[np.lexsort((-likely.probability[kept], owner[kept]))]
        kept = kept[_first(owner[kept], k)]
        counts = np.bincount(owner[kept], minlength=len(likely.counts))
        best = Labels._make([counts, *(part[kept] for part in likely[1:-1]), likely.touched])
        found = Found(*self._conditional(rows, *best.traces(self.layers)), likely.touched)
        return FoundLabels(found, best.probability / self._total(rows, self._shares(rows))[owner[kept]])

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
        return FoundNodes(np.concatenate(nodes), np.concatenate(probability))

    def _probabilities(self, rows: Any) -> Iterator[sp.csr_array]:
        """Yield the probabilities of labels, in blocks of rows."""
        for part in self._slices(rows, len(self.layers.taxonomy)):
            yield self.label_probabilities(part)

    def _slices(self, rows: Any, cells: int) -> list[Any]:
        """Return rows in slices whose answers, of ``cells`` numbers per row, fit into memory."""
        size = max(1, self.blocks.cells // cells)
        return [rows[start : start + size] for start in range(0, max(rows.shape[0], 1), size)]

    @cached_property
    def _above(self) -> sp.csr_array:
        """(nodes, nodes) Ones at each node and its ancestors."""
        flat, offsets = self._ancestors
        return sp.csr_array((np.ones(len(flat)), flat, offsets), shape=(len(offsets) - 1,) * 2)

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
            traces, log_p = trusted_traces(traces, log_p, self.trust_in(rows), self.label_shares)
        assert traces.log_p is not None
        total = np.log(self._total(rows, shares, shift))
        conditional = replace(traces, log_p=np.minimum(traces.log_p - total[owner], 0))
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
            total = trust * total + (1 - trust) * len(self._label_nodes()) * self.label_shares[-1]
        return np.maximum(total, np.finfo(np.float64).tiny)

    def _shift(self, rows: Any) -> tuple[Floats, NDArray[np.bool_]]:
        """Return how far odds are shifted to the best trace of every row, and whether that is allowed."""
        best = TraceSearch(self.model, sizes=self.blocks).find(self._checked(rows), self.threads)
        traces = best.traces(self.layers)
        return odds_shift(np.exp(best.log_p), self.model.odds_scale), self._are_allowed(traces)

    def _label_nodes(self) -> NDArray[np.int64]:
        """Return the allowed node of each neuron that ends a trace at one."""
        nodes = super()._label_nodes()
        return nodes[self.restriction.allowed[nodes]]


def _first(owner: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """Return which entries are among the first ``k`` of their row, given the ascending row of each."""
    first: NDArray[np.bool_] = np.arange(len(owner)) - np.searchsorted(owner, owner) < k
    return first


def _first_allowed(found: Found, allowed: NDArray[np.bool_], k: int) -> Found:
    """Return the first ``k`` allowed traces of every row."""
    traces = found.traces
    assert traces.log_p is not None
    owner, chosen = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets)), np.flatnonzero(allowed)
    chosen = chosen[_first(owner[chosen], k)]
    flat, lengths = gather(np.arange(len(traces.neurons)), traces.offsets, chosen)
    row_offsets = offsets_of(np.bincount(owner[chosen], minlength=len(traces)))
    taken = Traces(traces.layers, row_offsets, offsets_of(lengths), traces.neurons[flat], traces.log_p[chosen])
    return Found(taken, found.log_p[flat], found.touched)
