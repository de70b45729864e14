"""The ancestors of labels with the shortest paths to them, and the common ancestors of true and predicted labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hinet.metrics.cases import Cases
from hinet.ragged import Bools, Ints, distinct, gather, group_by, offsets_of
from hinet.taxonomy import VIRTUAL_ROOT, Taxonomy

CHUNK_ENTRIES = 2_000_000  # ancestors of true labels processed together: limits memory to about 0.3 GB


@dataclass(frozen=True, eq=False)
class Ancestry:
    """Nodes with all their ancestors, including the root, sorted by ancestor.

    Nodes that cannot be reached from the root are left out. A virtual root is the node after the last one.

    Attributes
    ----------
    nodes : int array of shape (d,)
        The nodes, ascending.
    offsets : int array of shape (d + 1,)
        The entries of node ``i``; each is one ancestor, or the node itself.
    ancestor, steps, below : int arrays, one value per entry
        The ancestor, the length of the shortest path up to it, and the entry of the previous node on that path (the
        first of several shortest paths).
    depth : int array of shape (n + 1,)
        Length of the longest path from the root to each node of the taxonomy.
    root : int
        The root, which may be virtual.
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
        """Return the ancestors of distinct, ascending ``nodes``."""
        depth = np.append(taxonomy.depth, 0).astype(np.int64)
        root = len(taxonomy) if taxonomy.root == VIRTUAL_ROOT else taxonomy.root
        parents, parent_offsets = _parent_lists(taxonomy, root)
        size = np.int64(len(depth))
        level = np.arange(len(nodes)) * size + nodes  # (index, ancestor) as one number
        keys, steps, source = [level], [np.zeros(len(nodes), np.int64)], [level]
        while len(level):
            above, splits = gather(parents, parent_offsets, level % size)
            reached, first = np.unique(np.repeat(level // size, splits) * size + above, return_index=True)
            keys.append(reached)
            steps.append(np.full(len(reached), len(steps)))
            source.append(np.repeat(level, splits)[first])
            level = reached
        key, order = np.unique(np.concatenate(keys), return_index=True)  # the first of equal keys has the fewest steps
        below = np.searchsorted(key, np.concatenate(source)[order])
        offsets = offsets_of(np.bincount(key // size, minlength=len(nodes)))
        return cls(np.asarray(nodes, np.int64), offsets, key % size, np.concatenate(steps)[order], below, depth, root)

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        """Each entry (index, ancestor) as one number, ascending."""
        return np.repeat(np.arange(len(self.nodes)), np.diff(self.offsets)) * len(self.depth) + self.ancestor

    def indices(self, nodes: Ints) -> NDArray[np.int64]:
        """Return the index of each of ``nodes`` in :attr:`nodes`."""
        return np.searchsorted(self.nodes, nodes)


@dataclass(frozen=True, eq=False)
class Common:
    """Common ancestors of the true labels and the predicted label of some cases.

    Attributes
    ----------
    cases : Cases
        The cases of the labels.
    ancestry : Ancestry
        The ancestors of all these labels.
    pair : int array
        The true label of each common ancestor, as an ascending index in ``cases.true_nodes``; each label has at least
        one.
    from_true, from_predicted : int arrays
        The entries of each common ancestor in the ancestry of the true and of the predicted label.
    """

    cases: Cases
    ancestry: Ancestry
    pair: NDArray[np.int64]
    from_true: NDArray[np.int64]
    from_predicted: NDArray[np.int64]

    @classmethod
    def of(cls, cases: Cases, ancestry: Ancestry) -> Common:
        """Return the common ancestors of cases."""
        true_index = ancestry.indices(cases.true_nodes)
        entries, lengths = gather(np.arange(len(ancestry.ancestor)), ancestry.offsets, true_index)
        predicted = ancestry.indices(cases.predicted)[cases.case_of] * len(ancestry.depth)
        key = np.repeat(predicted, lengths) + ancestry.ancestor[entries]
        entry = np.minimum(np.searchsorted(ancestry.keys, key), len(ancestry.keys) - 1)
        shared = ancestry.keys[entry] == key
        pair = np.repeat(np.arange(len(true_index)), lengths)[shared]
        return cls(cases, ancestry, pair, entries[shared], entry[shared])

    @classmethod
    def of_all(cls, cases: Cases) -> Iterator[Common]:
        """Yield the common ancestors of all cases in chunks of limited size."""
        ancestry = Ancestry.of(cases.taxonomy, np.union1d(cases.true_nodes, cases.predicted))
        sizes = np.diff(ancestry.offsets)[ancestry.indices(cases.true_nodes)]
        entries = offsets_of(sizes)[cases.offsets]  # (cases + 1,)
        start = 0
        while start < len(cases):
            last = int(np.searchsorted(entries, entries[start] + CHUNK_ENTRIES, side="right")) - 1
            end = max(start + 1, last)
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
        """Length of the path from the true label via each common ancestor to the predicted label."""
        return self.ancestry.steps[self.from_true] + self.ancestry.steps[self.from_predicted]

    @cached_property
    def depth(self) -> NDArray[np.int64]:
        """The depth of every common ancestor."""
        return self.ancestry.depth[self.ancestor]

    def least_distance(self) -> NDArray[np.int64]:
        """Return the distance between the predicted label and the nearest true label of every case."""
        return np.asarray(np.minimum.reduceat(self.distance, _starts(self.case)))

    def greatest_depth(self) -> NDArray[np.int64]:
        """Return the depth of the deepest common ancestor of every case."""
        return np.asarray(np.maximum.reduceat(self.depth, _starts(self.case)))

    def set_sizes(self) -> NDArray[np.int64]:
        """Return the numbers of common, true and predicted nodes, with ancestors but without the root, (cases, 3)."""
        ancestry, cases = self.ancestry, self.cases
        below_root = self.ancestor != ancestry.root
        common = distinct(self._keys(self.case[below_root], self.ancestor[below_root]))
        index = ancestry.indices(cases.true_nodes)
        if len(index) == len(cases):
            true = np.diff(ancestry.offsets)[index]
        else:
            ancestors, lengths = gather(ancestry.ancestor, ancestry.offsets, index)
            true = self._counted(distinct(self._keys(np.repeat(cases.case_of, lengths), ancestors)))
        predicted = np.diff(ancestry.offsets)[ancestry.indices(cases.predicted)]
        return np.stack([self._counted(common), true - 1, predicted - 1], axis=1)

    def lowest(self) -> Bools:
        """Mark the lowest common ancestor of every pair: the nearest, then the deepest, then the first one."""
        starts = _starts(self.pair)
        nearest = np.flatnonzero(self.distance == np.minimum.reduceat(self.distance, starts)[self.pair])
        deepest = np.maximum.reduceat(self.depth[nearest], _starts(self.pair[nearest]))
        nearest = nearest[self.depth[nearest] == deepest[self.pair[nearest]]]
        mark = np.zeros(len(self.pair), bool)
        mark[nearest[_starts(self.pair[nearest])]] = True
        return mark

    def lowest_sizes(self) -> NDArray[np.int64]:
        """Return the numbers of common, true and predicted nodes up to the lowest common ancestors, (cases, 3)."""
        lowest = self.lowest()
        cases, up_true, up_predicted = self.case[lowest], self.from_true[lowest], self.from_predicted[lowest]
        if len(self.cases.true_nodes) == len(self.cases):  # shortest paths meet only in the lowest common ancestor
            sizes = self.ancestry.steps[up_true] + 1, self.ancestry.steps[up_predicted] + 1
            return np.stack([np.ones(len(cases), np.int64), *sizes], axis=1)
        true, predicted = self._nodes_down(cases, up_true), self._nodes_down(cases, up_predicted)
        common = np.intersect1d(true, predicted, assume_unique=True)
        return np.stack([self._counted(nodes) for nodes in (common, true, predicted)], axis=1)

    def level_hits(self) -> NDArray[np.int64]:
        """Return the number of rows with a common ancestor at each depth below the root, (levels,)."""
        levels = int(self.ancestry.depth.max()) + 1
        case, depth = np.divmod(distinct(self.case * np.int64(levels) + self.depth), levels)
        return np.bincount(depth, self.cases.counts[case], levels).astype(np.int64)[1:]

    def _nodes_down(self, cases: Ints, entries: Ints) -> NDArray[np.int64]:
        """Return the distinct pairs (case, node) on the paths from entries down to their labels."""
        keys = []
        while len(entries):
            keys.append(self._keys(cases, self.ancestry.ancestor[entries]))
            has_child = self.ancestry.steps[entries] > 0
            cases, entries = cases[has_child], self.ancestry.below[entries[has_child]]
        return distinct(np.concatenate(keys))

    def _keys(self, cases: Ints, nodes: Ints) -> NDArray[np.int64]:
        """Return each (case, node) as one number."""
        return cases * np.int64(len(self.ancestry.depth)) + nodes

    def _counted(self, case_nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(case_nodes // len(self.ancestry.depth), minlength=len(self.cases))


def _parent_lists(taxonomy: Taxonomy, root: int) -> tuple[Ints, Ints]:
    """Return the parents of every node, including a virtual root, without parents that the root does not reach."""
    reached = taxonomy.depth[taxonomy.edge_parent] >= 0
    parent, child = taxonomy.edge_parent[reached], taxonomy.edge_child[reached]
    if taxonomy.root == VIRTUAL_ROOT:
        parent = np.concatenate([parent, np.full(len(taxonomy.tops), root)])
        child = np.concatenate([child, taxonomy.tops])
    order, offsets = group_by(child, len(taxonomy) + 1)
    return parent[order], offsets


def _starts(ascending: Ints) -> NDArray[np.int64]:
    """Return the start of each run of equal values in an ascending array."""
    return np.flatnonzero(np.diff(ascending, prepend=-1))
