"""The ancestors of labels with the way up to them, and what truth and prediction have in common."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hinet.metrics.cases import Cases
from hinet.ragged import Bools, Ints, distinct, gather, group_by, offsets_of
from hinet.taxonomy import VIRTUAL_ROOT, Taxonomy

ENTRIES_AT_A_TIME = 2_000_000  # ancestors of true labels looked at together: bounds memory, about 0.3 GB


@dataclass(frozen=True, eq=False)
class Ancestry:
    """Each of some nodes with all its ancestors, the root among them, sorted by ancestor.

    What the root does not reach is no ancestor here, as it is in no layer. A virtual root is the node after the last.

    Attributes
    ----------
    nodes : int array of shape (d,)
        The nodes, ascending.
    offsets : int array of shape (d + 1,)
        The entries of node ``i``; each is one ancestor, or the node itself.
    ancestor, steps, below : int arrays, one value an entry
        The ancestor, the edges on the shortest way up to it, and the entry of the node before it on that way (the
        first, where several are as short).
    depth : int array of shape (n + 1,)
        Longest way from the root to each node of the taxonomy.
    root : int
        The root, also if it is virtual.
    """

    nodes: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ancestor: NDArray[np.int64]
    steps: NDArray[np.int64]
    below: NDArray[np.int64]
    depth: NDArray[np.int64]
    root: int

    @classmethod
    def of(cls, taxonomy: Taxonomy, nodes: Ints) -> Ancestry:
        """Walk up from distinct ascending ``nodes``, all of them a step at a time."""
        depth = np.append(taxonomy.depth, 0).astype(np.int64)
        root = len(taxonomy) if taxonomy.root == VIRTUAL_ROOT else taxonomy.root
        parents, parent_offsets = _parents(taxonomy, root)
        size = np.int64(len(depth))
        level = np.arange(len(nodes)) * size + nodes  # (place, ancestor) as one number
        keys, steps, came_from = [level], [np.zeros(len(nodes), np.int64)], [level]
        while len(level):
            above, splits = gather(parents, parent_offsets, level % size)
            reached, first = np.unique(np.repeat(level // size, splits) * size + above, return_index=True)
            keys.append(reached)
            steps.append(np.full(len(reached), len(steps)))
            came_from.append(np.repeat(level, splits)[first])
            level = reached
        key, order = np.unique(np.concatenate(keys), return_index=True)  # the first is the one with the fewest steps
        below = np.searchsorted(key, np.concatenate(came_from)[order])
        offsets = offsets_of(np.bincount(key // size, minlength=len(nodes)))
        return cls(np.asarray(nodes, np.int64), offsets, key % size, np.concatenate(steps)[order], below, depth, root)

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        """The (place, ancestor) of every entry as one number, ascending."""
        return np.repeat(np.arange(len(self.nodes)), np.diff(self.offsets)) * len(self.depth) + self.ancestor

    def places(self, nodes: Ints) -> NDArray[np.int64]:
        """Return where each of ``nodes`` stands in :attr:`nodes`."""
        return np.searchsorted(self.nodes, nodes)


@dataclass(frozen=True, eq=False)
class Common:
    """The common ancestors of the true labels and the predicted one, for some cases.

    Attributes
    ----------
    cases : Cases
        Whose labels they are.
    ancestry : Ancestry
        Of all these labels.
    pair : int array
        Of every common ancestor, the true label (a place in ``cases.true_nodes``); ascending, none left out.
    from_true, from_predicted : int arrays
        Of every common ancestor, its entry in the ancestry of the true and of the predicted label.
    """

    cases: Cases
    ancestry: Ancestry
    pair: NDArray[np.int64]
    from_true: NDArray[np.int64]
    from_predicted: NDArray[np.int64]

    @classmethod
    def of(cls, cases: Cases, ancestry: Ancestry) -> Common:
        """Look up every ancestor of the true labels among those of the predicted one."""
        true_places = ancestry.places(cases.true_nodes)
        entries, lengths = gather(np.arange(len(ancestry.ancestor)), ancestry.offsets, true_places)
        predicted = ancestry.places(cases.predicted)[cases.case_of] * len(ancestry.depth)
        wanted = np.repeat(predicted, lengths) + ancestry.ancestor[entries]
        found = np.minimum(np.searchsorted(ancestry.keys, wanted), len(ancestry.keys) - 1)
        shared = ancestry.keys[found] == wanted
        pair = np.repeat(np.arange(len(true_places)), lengths)[shared]
        return cls(cases, ancestry, pair, entries[shared], found[shared])

    @classmethod
    def of_all(cls, cases: Cases) -> Iterator[Common]:
        """Yield what all cases have in common, some cases at a time."""
        ancestry = Ancestry.of(cases.taxonomy, np.union1d(cases.true_nodes, cases.predicted))
        sizes = np.diff(ancestry.offsets)[ancestry.places(cases.true_nodes)]
        entries = offsets_of(sizes)[cases.offsets]  # (cases + 1,)
        start = 0
        while start < len(cases):
            fitting = int(np.searchsorted(entries, entries[start] + ENTRIES_AT_A_TIME, side="right")) - 1
            end = max(start + 1, fitting)
            yield cls.of(cases.between(start, end), ancestry)
            start = end

    @cached_property
    def case(self) -> NDArray[np.int64]:
        """The case of every common ancestor."""
        return self.cases.case_of[self.pair]

    @cached_property
    def ancestor(self) -> NDArray[np.int64]:
        """The common ancestors themselves."""
        return self.ancestry.ancestor[self.from_true]

    @cached_property
    def distance(self) -> NDArray[np.int64]:
        """The edges from the true label up to every common ancestor and down to the predicted label."""
        return self.ancestry.steps[self.from_true] + self.ancestry.steps[self.from_predicted]

    @cached_property
    def depth(self) -> NDArray[np.int64]:
        """The depth of every common ancestor."""
        return self.ancestry.depth[self.ancestor]

    def least_distance(self) -> NDArray[np.int64]:
        """Return for every case the edges between the predicted label and the nearest true one."""
        return np.asarray(np.minimum.reduceat(self.distance, _starts(self.case)))

    def greatest_depth(self) -> NDArray[np.int64]:
        """Return for every case the depth of the deepest common ancestor."""
        return np.asarray(np.maximum.reduceat(self.depth, _starts(self.case)))

    def set_sizes(self) -> NDArray[np.int64]:
        """Return (cases, 3): common, true and predicted nodes, ancestors included, the root left out."""
        ancestry, cases = self.ancestry, self.cases
        below_root = self.ancestor != ancestry.root
        common = distinct(self._keys(self.case[below_root], self.ancestor[below_root]))
        places = ancestry.places(cases.true_nodes)
        if len(places) == len(cases):
            true = np.diff(ancestry.offsets)[places]
        else:
            ancestors, lengths = gather(ancestry.ancestor, ancestry.offsets, places)
            true = self._counted(distinct(self._keys(np.repeat(cases.case_of, lengths), ancestors)))
        predicted = np.diff(ancestry.offsets)[ancestry.places(cases.predicted)]
        return np.stack([self._counted(common), true - 1, predicted - 1], axis=1)

    def lowest(self) -> Bools:
        """Mark the lowest common ancestor of every pair: the nearest, of these the deepest, of these the first."""
        starts = _starts(self.pair)
        nearest = np.flatnonzero(self.distance == np.minimum.reduceat(self.distance, starts)[self.pair])
        deepest = np.maximum.reduceat(self.depth[nearest], _starts(self.pair[nearest]))
        nearest = nearest[self.depth[nearest] == deepest[self.pair[nearest]]]
        mark = np.zeros(len(self.pair), bool)
        mark[nearest[_starts(self.pair[nearest])]] = True
        return mark

    def lowest_sizes(self) -> NDArray[np.int64]:
        """Return (cases, 3): common, true and predicted nodes on the ways up to the lowest common ancestors."""
        lowest = self.lowest()
        cases, up_true, up_predicted = self.case[lowest], self.from_true[lowest], self.from_predicted[lowest]
        if len(self.cases.true_nodes) == len(self.cases):  # two shortest ways meet in their lowest common ancestor only
            sizes = self.ancestry.steps[up_true] + 1, self.ancestry.steps[up_predicted] + 1
            return np.stack([np.ones(len(cases), np.int64), *sizes], axis=1)
        true, predicted = self._nodes_down(cases, up_true), self._nodes_down(cases, up_predicted)
        common = np.intersect1d(true, predicted, assume_unique=True)
        return np.stack([self._counted(nodes) for nodes in (common, true, predicted)], axis=1)

    def level_hits(self) -> NDArray[np.int64]:
        """Return (levels,): at each depth below the root, the rows with a common ancestor there."""
        levels = int(self.ancestry.depth.max()) + 1
        case, depth = np.divmod(distinct(self.case * np.int64(levels) + self.depth), levels)
        return np.bincount(depth, self.cases.counts[case], levels).astype(np.int64)[1:]

    def _nodes_down(self, cases: Ints, entries: Ints) -> NDArray[np.int64]:
        """Return the distinct (case, node) on the ways from entries down to the labels they are ancestors of."""
        found = []
        while len(entries):
            found.append(self._keys(cases, self.ancestry.ancestor[entries]))
            going = self.ancestry.steps[entries] > 0
            cases, entries = cases[going], self.ancestry.below[entries[going]]
        return distinct(np.concatenate(found))

    def _keys(self, cases: Ints, nodes: Ints) -> NDArray[np.int64]:
        """Return each (case, node) as one number."""
        return cases * np.int64(len(self.ancestry.depth)) + nodes

    def _counted(self, case_nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(case_nodes // len(self.ancestry.depth), minlength=len(self.cases))


def _parents(taxonomy: Taxonomy, root: int) -> tuple[Ints, Ints]:
    """Return the parents of every node, a virtual root included, those that the root does not reach left out."""
    reached = taxonomy.depth[taxonomy.edge_parent] >= 0
    parent, child = taxonomy.edge_parent[reached], taxonomy.edge_child[reached]
    if taxonomy.root == VIRTUAL_ROOT:
        parent = np.concatenate([parent, np.full(len(taxonomy.tops), root)])
        child = np.concatenate([child, taxonomy.tops])
    order, offsets = group_by(child, len(taxonomy) + 1)
    return parent[order], offsets


def _starts(ascending: Ints) -> NDArray[np.int64]:
    """Return where each run of an ascending array starts."""
    return np.flatnonzero(np.diff(ascending, prepend=-1))
