"""True and predicted labels of rows as nodes, and the common ancestors of both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.errors import LabelError, counted, quoted
from hinet.ragged import Bools, Ints, distinct, gather, group_by, offsets_of
from hinet.taxonomy import VIRTUAL_ROOT, Taxonomy
from hinet.taxonomy.draft import as_id

Labels: TypeAlias = Traces | Sequence[Any] | NDArray[Any]
"""Traces, or node ids: one per row, None for none, or several per row as a list, tuple or set."""

NO_ANSWER = -1  # the predicted node of a row without a prediction

_COLLECTIONS = (list, tuple, set, frozenset, np.ndarray)
CHUNK_ENTRIES = 2_000_000  # ancestors of true labels processed together: limits memory to about 0.3 GB


@dataclass(frozen=True)
class Cases:
    """True labels and the predicted label of the rows with a prediction.

    Attributes
    ----------
    taxonomy : Taxonomy
        The taxonomy of the labels.
    true_nodes, offsets : int arrays
        The true labels of case ``i`` are ``true_nodes[offsets[i]:offsets[i + 1]]``: distinct, at least one.
    predicted : int array of shape (c,)
        The predicted label of every case.
    coverage : float
        The share of rows with a prediction; rows without one are ignored.
    """

    taxonomy: Taxonomy
    true_nodes: Ints
    offsets: NDArray[np.int64]
    predicted: Ints
    coverage: float = 1.0

    def __len__(self) -> int:
        return len(self.predicted)

    @classmethod
    def of(cls, y_true: Labels, y_pred: Labels, taxonomy: Taxonomy | None = None) -> Cases:
        """Return the cases of true and predicted labels; errors name the side and the row."""
        taxonomy = common_taxonomy(y_true, y_pred, taxonomy)
        true_nodes, offsets = true_labels(y_true, taxonomy)
        predicted = predicted_labels(y_pred, taxonomy)
        check_lengths(len(offsets) - 1, len(predicted))
        answered = answered_rows(predicted)
        nodes, lengths = gather(true_nodes, offsets, answered)
        return cls(taxonomy, nodes, offsets_of(lengths), predicted[answered], len(answered) / len(predicted))

    @property
    def case_of(self) -> NDArray[np.int64]:
        """The case that each of ``true_nodes`` belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def between(self, start: int, end: int) -> Cases:
        """Return the cases from ``start`` up to ``end``."""
        first, last = self.offsets[start], self.offsets[end]
        nodes, offsets = self.true_nodes[first:last], self.offsets[start : end + 1] - first
        return Cases(self.taxonomy, nodes, offsets, self.predicted[start:end], self.coverage)


def common_taxonomy(y_true: Labels, y_pred: Labels, taxonomy: Taxonomy | None) -> Taxonomy:
    """Return the taxonomy of both sides; raise LabelError if there is none, or if they differ."""
    if taxonomy is not None and not hasattr(taxonomy, "positions"):
        raise LabelError(
            f"`taxonomy`: expected a Taxonomy, got {type(taxonomy).__name__}; read a file with Taxonomy.from_file"
        )
    taxonomies = [taxonomy] if taxonomy is not None else []
    taxonomies += [side.layers.taxonomy for side in (y_true, y_pred) if isinstance(side, Traces)]
    if not taxonomies:
        raise LabelError("labels that are node ids need a hierarchy; set `taxonomy`")
    for other in taxonomies[1:]:
        if other is not taxonomies[0] and other != taxonomies[0]:
            raise LabelError(f"true and predicted labels have two taxonomies, {taxonomies[0]!r} and {other!r}; use one")
    return taxonomies[0]


def check_lengths(true_rows: int, predicted_rows: int) -> None:
    """Raise LabelError if the sides differ in length or there are no rows."""
    if true_rows != predicted_rows:
        raise LabelError(f"{true_rows:,} true rows and {predicted_rows:,} predicted ones; they must be the same rows")
    if not true_rows:
        raise LabelError("there are no rows to evaluate; give at least one")


def true_labels(y_true: Labels, taxonomy: Taxonomy) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct true labels of every row as a ragged array, ascending; at least one per row."""
    nodes, offsets = label_lists(y_true, taxonomy, "y_true")
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty):
        raise LabelError(f"y_true: row {int(empty[0])}: there is no true label; leave rows without labels out")
    if len(nodes) == len(offsets) - 1:
        return nodes, offsets
    rows = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    keys = distinct(rows * np.int64(len(taxonomy)) + nodes)  # a label with several paths has several traces
    rows, nodes = np.divmod(keys, len(taxonomy))
    return nodes, offsets_of(np.bincount(rows, minlength=len(offsets) - 1))


def predicted_labels(y_pred: Labels, taxonomy: Taxonomy) -> NDArray[np.int64]:
    """Return the predicted label of every row, of Traces that of the first trace; NO_ANSWER if there is none."""
    nodes, offsets = label_lists(y_pred, taxonomy, "y_pred")
    lengths = np.diff(offsets)
    if not isinstance(y_pred, Traces) and (lengths > 1).any():  # a set has no first label
        row = int(np.flatnonzero(lengths > 1)[0])
        raise LabelError(
            f"y_pred: row {row}: expected one label, got {lengths[row]}; name the best one, or see set_report for "
            "sets, top_k_accuracy for candidates and Traces.encode_paths for paths"
        )
    return np.where(lengths > 0, np.append(nodes, NO_ANSWER)[offsets[:-1]], NO_ANSWER)


def answered_rows(predicted: Ints) -> NDArray[np.int64]:
    """Return the rows with a prediction; raise LabelError if there are none."""
    rows = np.flatnonzero(predicted != NO_ANSWER)
    if not len(rows):
        raise LabelError("y_pred: no row has a prediction, so there is nothing to evaluate; answer at least one")
    return rows


def check_predicted(offsets: Ints) -> None:
    """Raise LabelError if a row has no prediction."""
    empty = np.flatnonzero(np.diff(offsets) == 0)
    if len(empty):
        raise LabelError(f"y_pred: row {int(empty[0])}: nothing is predicted; give a label for every row")


def label_lists(labels: Labels, taxonomy: Taxonomy, side: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the labels of every row, in their order, as a ragged array of positions in the taxonomy.

    Missing values, such as None, are rows without labels.
    """
    if isinstance(labels, Traces):
        nodes, offsets = labels.end_nodes.astype(np.int64), labels.row_offsets
    else:
        nodes, offsets = _positions(labels, taxonomy, side)
    invalid = np.flatnonzero((nodes == VIRTUAL_ROOT) | (taxonomy.depth[nodes] < 0))
    if len(invalid):
        row = int(np.searchsorted(offsets, invalid[0], side="right")) - 1
        node = int(nodes[invalid[0]])
        name = "the virtual root" if node == VIRTUAL_ROOT else quoted(taxonomy.ids[node])
        raise LabelError(f"{side}: row {row}: {name} cannot be reached from the root; name a node below the root")
    return nodes, offsets


def _positions(labels: Any, taxonomy: Taxonomy, side: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if isinstance(labels, str) or not hasattr(labels, "__len__"):
        raise LabelError(f"{side}: expected Traces or a list of labels, got {quoted(str(labels))}; put it into a list")
    rows: list[Any] = labels.tolist() if isinstance(labels, np.ndarray) else list(labels)
    kinds = set(map(type, rows))
    if not (any(map(_may_be_missing, kinds)) or "" in rows or any(issubclass(kind, _COLLECTIONS) for kind in kinds)):
        return _lookup(taxonomy, rows, np.arange(len(rows)), side), np.arange(len(rows) + 1)
    lists = [label if isinstance(label, _COLLECTIONS) else (label,) if as_id(label) else () for label in rows]
    offsets = offsets_of(np.fromiter(map(len, lists), np.int64, len(lists)))
    row_of = np.repeat(np.arange(len(lists)), np.diff(offsets))
    return _lookup(taxonomy, list(chain.from_iterable(lists)), row_of, side), offsets


def _may_be_missing(kind: type) -> bool:
    """Return whether values of this type may mean that there is no label: None, NaN, or NA and NaT of pandas."""
    return not issubclass(kind, (str, int, np.integer, *_COLLECTIONS))


def _lookup(taxonomy: Taxonomy, labels: list[Any], row_of: Ints, side: str) -> NDArray[np.int64]:
    try:
        return taxonomy.positions(labels)
    except LabelError:  # raise an error that names the side and the row
        index = next(index for index, label in enumerate(labels) if label not in taxonomy)
    row, name = row_of[index], as_id(labels[index])
    hint = taxonomy.hint_for(name)
    raise LabelError(
        f"{side}: row {row}: label {quoted(name)} is not in the taxonomy of {counted(len(taxonomy), 'node')}{hint}"
    )


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
        """Return the number of cases with a common ancestor at each depth below the root, (levels,)."""
        levels = int(self.ancestry.depth.max()) + 1
        depth = distinct(self.case * np.int64(levels) + self.depth) % levels
        return np.bincount(depth, minlength=levels)[1:]

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
