"""Labels of rows as sets of nodes, and true and predicted labels of the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.errors import LabelError, quoted
from hinet.ragged import Bools, Ints, distinct, gather, offsets_of
from hinet.taxonomy import VIRTUAL_ROOT, Taxonomy, as_id

Labels: TypeAlias = Traces | Sequence[Any] | NDArray[Any]
"""Traces, or node ids: one per row, None for none, or several per row as a list, tuple or set."""

NO_ANSWER = -1  # the predicted node of a row without a prediction

_COLLECTIONS = (list, tuple, set, frozenset, np.ndarray)


@dataclass(frozen=True, eq=False)
class NodeSets:
    """The set of nodes of every row, which may be empty, as ascending numbers for the pairs (row, node).

    A virtual root is the node after the last one.
    """

    taxonomy: Taxonomy
    rows: int
    keys: NDArray[np.int64]  # row * size + node

    @classmethod
    def of(cls, labels: Labels, taxonomy: Taxonomy, side: str) -> NodeSets:
        """Return the labels of rows; None and an empty set mean that there is no label."""
        nodes, offsets = label_lists(labels, taxonomy, side)
        row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return cls.of_pairs(taxonomy, len(offsets) - 1, row, nodes)

    @classmethod
    def of_pairs(cls, taxonomy: Taxonomy, rows: int, row: Ints, node: Ints) -> NodeSets:
        """Return the sets of pairs of a row and a node, in any order and with repetitions."""
        return cls(taxonomy, rows, distinct(row * np.int64(len(taxonomy) + 1) + node))

    @property
    def size(self) -> int:
        """Number of nodes, a virtual root included."""
        return len(self.taxonomy) + 1

    @property
    def row(self) -> NDArray[np.int64]:
        """The row of every node."""
        return self.keys // self.size

    @property
    def node(self) -> NDArray[np.int64]:
        """The node of every pair."""
        return self.keys % self.size

    @property
    def counts(self) -> NDArray[np.int64]:
        """(rows,) Number of nodes of every row."""
        return np.bincount(self.row, minlength=self.rows)

    def with_ancestors(self) -> NodeSets:
        """Return the sets with all ancestors, without the root and what it does not reach."""
        nodes, inverse = np.unique(self.node, return_inverse=True)
        above, counts = gather(*self.taxonomy.ancestor_lists(nodes), inverse)
        closed = NodeSets.of_pairs(self.taxonomy, self.rows, np.repeat(self.row, counts), above)
        return closed.only(self.taxonomy.depth > 0)

    def only(self, chosen: Bools) -> NodeSets:
        """Return the sets with only the chosen nodes, a mask over the nodes of the taxonomy."""
        return NodeSets(self.taxonomy, self.rows, self.keys[chosen[self.node]])

    def common(self, other: NodeSets) -> NodeSets:
        """Return the nodes that are in both sets of a row."""
        return NodeSets(self.taxonomy, self.rows, np.intersect1d(self.keys, other.keys, assume_unique=True))

    def take(self, rows: Ints) -> NodeSets:
        """Return the sets of some rows, in ascending order."""
        number = np.full(self.rows, -1)
        number[rows] = np.arange(len(rows))
        row = number[self.row]
        return NodeSets(self.taxonomy, len(rows), (row * self.size + self.node)[row >= 0])

    def has(self, row: Ints, node: Ints) -> Bools:
        """Return whether each node is in the set of the row next to it."""
        if not len(self.keys):
            return np.zeros(len(row), np.bool_)
        keys = row * np.int64(self.size) + node
        return np.asarray(self.keys[np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)] == keys)


@dataclass(frozen=True)
class Cases:
    """The rows with a prediction: their true labels, at least one each, and the predicted one.

    ``coverage`` is the share of rows with a prediction.
    """

    truth: NodeSets
    predicted: NodeSets
    coverage: float

    @classmethod
    def of(cls, y_true: Labels, y_pred: Labels, taxonomy: Taxonomy | None = None) -> Cases:
        """Return the cases of true and predicted labels; errors name the side and the row."""
        truth, predicted = answers(y_true, y_pred, taxonomy)
        rows = answered_rows(predicted != NO_ANSWER)
        nodes = NodeSets.of_pairs(truth.taxonomy, len(rows), np.arange(len(rows)), predicted[rows])
        return cls(truth.take(rows), nodes, len(rows) / len(predicted))

    @property
    def hits(self) -> Bools:
        """(cases,) Whether the predicted label is a true label."""
        return self.truth.has(self.predicted.row, self.predicted.node)

    @cached_property
    def closed(self) -> tuple[NodeSets, NodeSets]:
        """The true and the predicted nodes, with all ancestors but the root."""
        return self.truth.with_ancestors(), self.predicted.with_ancestors()

    def depth_of_agreement(self) -> NDArray[np.int64]:
        """Return the depth of the deepest common ancestor of every case."""
        true, predicted = self.closed
        common = true.common(predicted)
        deepest = np.zeros(true.rows, np.int64)
        np.maximum.at(deepest, common.row, true.taxonomy.depth[common.node])
        return deepest

    def level_accuracy(self) -> list[float]:
        """Return the share of cases with a common node at each level, among those with a true node there."""
        true, predicted = self.closed
        right, known = (_rows_by_level(sets) for sets in (true.common(predicted), true))
        return [float(share) for share in right[: np.count_nonzero(known)] / known[known > 0]]


def _rows_by_level(sets: NodeSets) -> NDArray[np.int64]:
    """Return the number of rows with a node at each level below the root, (levels,)."""
    levels = sets.taxonomy.height + 1
    depth = distinct(sets.row * np.int64(levels) + sets.taxonomy.depth[sets.node]) % levels
    return np.bincount(depth, minlength=levels)[1:]


class Shares(NamedTuple):
    """Precision, recall and F1 of the same sets."""

    precision: float
    recall: float
    f1: float


def shares(truth: NodeSets, predicted: NodeSets, average: str) -> Shares:
    """Return precision, recall and F1 of sets: "micro" over all pairs, "macro" over nodes or "samples" over rows.

    An empty set counts as 1 if the other set is empty too, else 0.
    """
    sides = (truth.common(predicted), truth, predicted)
    if average == "micro":
        sizes = np.array([[len(sets.keys)] for sets in sides])
    elif average == "samples":
        sizes = np.array([sets.counts for sets in sides])
    else:
        sizes = np.array([np.bincount(sets.node, minlength=truth.size) for sets in sides])
        sizes = sizes[:, sizes.any(0)]
    common, true, found = sizes
    parts = _share(common, found, true), _share(common, true, found), _share(2 * common, true + found, 0)
    return Shares(*(float(part.mean()) if len(part) else 1.0 for part in parts))


def _share(part: NDArray[np.int64], whole: NDArray[np.int64], other: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Return ``part / whole``; for an empty whole, 1 if the other side is empty too, else 0."""
    empty = np.where(np.asarray(other) == 0, 1.0, 0.0)
    return np.where(whole > 0, part / np.maximum(whole, 1), empty)


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


def true_labels(y_true: Labels, taxonomy: Taxonomy) -> NodeSets:
    """Return the true labels of every row, at least one each."""
    truth = NodeSets.of(y_true, taxonomy, "y_true")
    empty = np.flatnonzero(truth.counts == 0)
    if len(empty):
        raise LabelError(f"y_true: row {int(empty[0])}: there is no true label; leave rows without labels out")
    return truth


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


def answers(y_true: Labels, y_pred: Labels, taxonomy: Taxonomy | None) -> tuple[NodeSets, NDArray[np.int64]]:
    """Return the true labels of every row, and the predicted one or NO_ANSWER."""
    taxonomy = common_taxonomy(y_true, y_pred, taxonomy)
    truth, predicted = true_labels(y_true, taxonomy), predicted_labels(y_pred, taxonomy)
    check_lengths(truth.rows, len(predicted))
    return truth, predicted


def answered_rows(has_prediction: Bools) -> NDArray[np.int64]:
    """Return the rows with a prediction; raise LabelError if there are none."""
    rows = np.flatnonzero(has_prediction)
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
    one_each = all(issubclass(kind, (str, int, np.integer)) for kind in set(map(type, rows)))
    if one_each and "" not in rows:
        return _lookup(taxonomy, rows, np.arange(len(rows)), side), np.arange(len(rows) + 1)
    lists = [label if isinstance(label, _COLLECTIONS) else (label,) if as_id(label) else () for label in rows]
    offsets = offsets_of(np.fromiter(map(len, lists), np.int64, len(lists)))
    row_of = np.repeat(np.arange(len(lists)), np.diff(offsets))
    return _lookup(taxonomy, list(chain.from_iterable(lists)), row_of, side), offsets


def _lookup(taxonomy: Taxonomy, labels: list[Any], row_of: Ints, side: str) -> NDArray[np.int64]:
    positions = taxonomy.find(labels)
    missing = np.flatnonzero(positions < 0).tolist()
    if missing:
        label = taxonomy.unknown(as_id(labels[missing[0]]))
        raise LabelError(f"{side}: row {row_of[missing[0]]}: label {label}")
    return positions
