"""Lowest common ancestors of true and predicted labels, and shortest paths to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hinet.metrics.cases import Cases, NodeSets
from hinet.ragged import Ints, gather, group_by, offsets_of
from hinet.taxonomy import VIRTUAL_ROOT, Taxonomy

CHUNK_ENTRIES = 2_000_000  # ancestors of true labels processed together: limits memory to about 0.3 GB


@dataclass(frozen=True, eq=False)
class Ancestry:
    """Distinct nodes with all their ancestors, including the root; a virtual root is the node after the last one.

    Attributes
    ----------
    offsets : int array of shape (d + 1,)
        The entries of each node; an entry is one ancestor, or the node itself.
    keys, steps, below : int arrays, one value per entry
        The index of the node and the ancestor as one number, ascending; the length of the shortest path up to the
        ancestor; and the entry of the previous node on that path (the first of several shortest paths).
    depth : int array of shape (n + 1,)
        Length of the longest path from the root to each node of the taxonomy.
    """

    offsets: NDArray[np.int64]
    keys: NDArray[np.int64]
    steps: NDArray[np.int64]
    below: NDArray[np.int64]
    depth: NDArray[np.int64]

    @classmethod
    def of(cls, taxonomy: Taxonomy, nodes: NDArray[np.int64]) -> Ancestry:
        """Return the ancestors of distinct, ascending ``nodes``."""
        depth = np.append(taxonomy.depth, 0).astype(np.int64)
        parents, parent_offsets = _parent_lists(taxonomy)
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
        return cls(offsets, key, np.concatenate(steps)[order], below, depth)

    @property
    def ancestor(self) -> NDArray[np.int64]:
        """The ancestor of each entry."""
        return self.keys % len(self.depth)


def _parent_lists(taxonomy: Taxonomy) -> tuple[Ints, Ints]:
    """Return the parents of every node, including a virtual root, without parents that the root does not reach."""
    reached = taxonomy.depth[taxonomy.edge_parent] >= 0
    parent, child = taxonomy.edge_parent[reached], taxonomy.edge_child[reached]
    if taxonomy.root == VIRTUAL_ROOT:
        parent = np.concatenate([parent, np.full(len(taxonomy.tops), len(taxonomy))])
        child = np.concatenate([child, taxonomy.tops])
    order, offsets = group_by(child, len(taxonomy) + 1)
    return parent[order], offsets


@dataclass(frozen=True, eq=False)
class LowestAncestors:
    """The lowest common ancestor of each true label and the predicted label of its row.

    It is the nearest common ancestor, of several the deepest, and then the first one. ``up_true`` and ``up_predicted``
    are its entries in the ancestry of the true and the predicted label.
    """

    truth: NodeSets
    ancestry: Ancestry
    up_true: NDArray[np.int64]  # (true labels,)
    up_predicted: NDArray[np.int64]  # (true labels,)

    @classmethod
    def of(cls, cases: Cases, chunk: int = CHUNK_ENTRIES) -> LowestAncestors:
        """Return the lowest common ancestors of cases, found in chunks of about ``chunk`` ancestors."""
        truth = cases.truth
        nodes = np.union1d(truth.node, cases.predicted.node)
        ancestry = Ancestry.of(truth.taxonomy, nodes)
        true = np.searchsorted(nodes, truth.node)
        predicted = np.searchsorted(nodes, cases.predicted.node)[truth.row]
        ends = offsets_of(np.diff(ancestry.offsets)[true])
        parts, start = [], 0
        while start < len(true):
            end = max(start + 1, int(np.searchsorted(ends, ends[start] + chunk, side="right")) - 1)
            parts.append(_lowest(ancestry, true[start:end], predicted[start:end]))
            start = end
        return cls(truth, ancestry, *np.concatenate(parts, axis=1))

    def distance(self) -> NDArray[np.int64]:
        """Return the distance between the predicted label and the nearest true label of every case."""
        length = self.ancestry.steps[self.up_true] + self.ancestry.steps[self.up_predicted]
        return np.asarray(np.minimum.reduceat(length, _starts(self.truth.row)))

    def paths(self) -> tuple[NodeSets, NodeSets]:
        """Return the nodes of each case from its lowest common ancestors to the true labels, and to the prediction."""
        return self._nodes_down(self.up_true), self._nodes_down(self.up_predicted)

    def _nodes_down(self, entries: Ints) -> NodeSets:
        """Return the nodes on the paths from entries down to their labels."""
        row, rows, nodes = self.truth.row, [], []
        while len(entries):
            rows.append(row)
            nodes.append(self.ancestry.ancestor[entries])
            has_child = self.ancestry.steps[entries] > 0
            row, entries = row[has_child], self.ancestry.below[entries[has_child]]
        return NodeSets.of_pairs(self.truth.taxonomy, self.truth.rows, np.concatenate(rows), np.concatenate(nodes))


def _lowest(ancestry: Ancestry, true: Ints, predicted: Ints) -> NDArray[np.int64]:
    """Return the entries of the lowest common ancestor of each pair of nodes, (2, pairs); nodes are indices."""
    entries, lengths = gather(np.arange(len(ancestry.keys)), ancestry.offsets, true)
    ancestor = ancestry.keys[entries] % len(ancestry.depth)
    key = np.repeat(predicted * len(ancestry.depth), lengths) + ancestor
    other = np.minimum(np.searchsorted(ancestry.keys, key), len(ancestry.keys) - 1)
    shared = ancestry.keys[other] == key
    pair, entries, other = np.repeat(np.arange(len(true)), lengths)[shared], entries[shared], other[shared]
    distance = ancestry.steps[entries] + ancestry.steps[other]
    rank = distance * len(ancestry.depth) - ancestry.depth[ancestor[shared]]  # the nearest, then the deepest
    best = np.flatnonzero(rank == np.minimum.reduceat(rank, _starts(pair))[pair])
    first = best[_starts(pair[best])]
    return np.stack([entries[first], other[first]])


def _starts(ascending: Ints) -> NDArray[np.int64]:
    """Return the start of each run of equal values in an ascending array."""
    return np.flatnonzero(np.diff(ascending, prepend=-1))
