"""Metrics of predicted sets of labels: precision, recall and F1 over pairs, labels or rows, and exact match.

None and an empty set both predict that a row has no label. Such rows count, unlike in metrics of single labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.errors import HiNetError, quoted
from hinet.metrics.cases import Labels, check_lengths, common_taxonomy, label_lists
from hinet.metrics.labels import Shares, shares_of
from hinet.ragged import Bools, Ints, distinct, gather, offsets_of
from hinet.taxonomy import Taxonomy


@dataclass(frozen=True, eq=False)
class NodeSets:
    """The set of labels of every row, which may be empty, as ascending numbers for the pairs (row, node)."""

    taxonomy: Taxonomy
    rows: int
    keys: NDArray[np.int64]  # row * len(taxonomy) + node

    @classmethod
    def of(cls, labels: Labels, taxonomy: Taxonomy, side: str) -> NodeSets:
        """Return the labels of rows; None and an empty set mean that there is no label."""
        nodes, offsets = label_lists(labels, taxonomy, side)
        row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return cls(taxonomy, len(offsets) - 1, distinct(row * np.int64(len(taxonomy)) + nodes))

    @property
    def row(self) -> NDArray[np.int64]:
        """The row of every label."""
        return self.keys // len(self.taxonomy)

    @property
    def node(self) -> NDArray[np.int64]:
        """The node of every label."""
        return self.keys % len(self.taxonomy)

    def with_ancestors(self) -> NodeSets:
        """Return the sets with all ancestors, without the root."""
        nodes, inverse = np.unique(self.node, return_inverse=True)
        above, counts = gather(*self.taxonomy.ancestor_lists(nodes), inverse)
        keys = np.repeat(self.row, counts) * np.int64(len(self.taxonomy)) + above
        return NodeSets(self.taxonomy, self.rows, distinct(keys))

    def only(self, chosen: Bools) -> NodeSets:
        """Return the sets with only the chosen nodes, a mask over the nodes of the taxonomy."""
        return NodeSets(self.taxonomy, self.rows, self.keys[chosen[self.node]])

    def has(self, row: Ints, node: Ints) -> Bools:
        """Return whether each node is in the set of the row next to it."""
        if not len(self.keys):
            return np.zeros(len(row), np.bool_)
        keys = row * np.int64(len(self.taxonomy)) + node
        return np.asarray(self.keys[np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)] == keys)


@dataclass(frozen=True, eq=False)
class NodeScores:
    """The positive scores of the nodes of every row; all other nodes have the score 0."""

    offsets: NDArray[np.int64]  # (n + 1,)
    node: NDArray[np.int64]
    score: NDArray[Any]

    @classmethod
    def of(cls, scores: Any, taxonomy: Taxonomy, labels: Sequence[str] | None) -> NodeScores:
        """Return the scores in a dense or CSR matrix with a column for each of ``labels``, or for each node."""
        matrix: Any = sp.csr_array(scores) if sp.issparse(scores) else np.asarray(scores)
        width = len(taxonomy) if labels is None else len(labels)
        if matrix.ndim != 2 or matrix.shape[1] != width:
            what = "node of the taxonomy" if labels is None else "label"
            raise HiNetError(
                f"scores: expected {width:,} columns, one per {what}, got an array of shape {matrix.shape}; "
                "name the columns with `labels`"
            )
        column = np.arange(width) if labels is None else taxonomy.positions(labels)
        values = matrix.data if sp.issparse(matrix) else matrix
        if not np.isfinite(values).all() or (values < 0).any():
            raise HiNetError("scores: expected finite numbers of at least 0, such as probabilities")
        if sp.issparse(matrix):
            row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
            positive = matrix.data > 0
            row, index, score = row[positive], matrix.indices[positive], matrix.data[positive]
        else:
            row, index = np.nonzero(matrix)
            score = matrix[row, index]
        return cls(offsets_of(np.bincount(row, minlength=matrix.shape[0])), column[index], score)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def row(self) -> NDArray[np.int64]:
        """The row of every score."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


def evaluated_nodes(taxonomy: Taxonomy, leave_out: Iterable[str]) -> Bools:
    """Return which nodes are evaluated: those below the root, without ``leave_out``, (nodes,)."""
    counts = taxonomy.depth > 0
    for name in leave_out:
        counts[taxonomy.position(name)] = False
    if not counts.any():
        raise HiNetError(f"no node is left to evaluate without {', '.join(map(quoted, leave_out))} and the root")
    return counts


SetAverage: TypeAlias = Literal["micro", "macro", "samples"]


def set_precision(
    y_true: Labels,
    y_pred: Labels,
    *,
    average: SetAverage = "micro",
    ancestors: bool = False,
    taxonomy: Taxonomy | None = None,
) -> float:
    """Return the share of predicted labels that are true; see :func:`set_f1`.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> set_precision([{"cat", "cow"}, {"dog"}], [{"cat"}, {"dog", "cow"}], taxonomy=animals)
    0.6666666666666666
    """
    return _shares(y_true, y_pred, average, ancestors, taxonomy).precision


def set_recall(
    y_true: Labels,
    y_pred: Labels,
    *,
    average: SetAverage = "micro",
    ancestors: bool = False,
    taxonomy: Taxonomy | None = None,
) -> float:
    """Return the share of true labels that are predicted; see :func:`set_f1`.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> set_recall([{"cat", "cow"}, {"dog"}], [{"cat"}, {"dog"}], average="samples", taxonomy=animals)
    0.75
    """
    return _shares(y_true, y_pred, average, ancestors, taxonomy).recall


def set_f1(
    y_true: Labels,
    y_pred: Labels,
    *,
    average: SetAverage = "micro",
    ancestors: bool = False,
    taxonomy: Taxonomy | None = None,
) -> float:
    """Return the F1 of predicted sets of labels.

    The average "micro" counts all pairs of a row and a label, "macro" is the mean over the labels that are true or
    predicted somewhere, and "samples", also called example-based, is the mean over rows. An empty set counts as 1 if
    the other set is empty too, else 0. With ``ancestors``, each label includes all its ancestors without the root:
    this is the hierarchical F1 of sets.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> set_f1([{"cat", "cow"}, {"dog"}], [{"cat"}, {"cat"}], taxonomy=animals)
    0.4
    >>> round(set_f1([{"cat", "cow"}, {"dog"}], [{"cat"}, {"cat"}], ancestors=True, taxonomy=animals), 3)
    0.667
    """
    return _shares(y_true, y_pred, average, ancestors, taxonomy).f1


def exact_match(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the share of rows whose predicted set equals the true one.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> exact_match([{"cat", "cow"}, {"dog"}], [{"cat"}, {"dog"}], taxonomy=animals)
    0.5
    """
    return matching_share(*set_pair(y_true, y_pred, taxonomy))


def set_pair(y_true: Labels, y_pred: Labels, taxonomy: Taxonomy | None) -> tuple[NodeSets, NodeSets]:
    """Return the true and the predicted sets of the same rows."""
    taxonomy = common_taxonomy(y_true, y_pred, taxonomy)
    truth, predicted = NodeSets.of(y_true, taxonomy, "y_true"), NodeSets.of(y_pred, taxonomy, "y_pred")
    check_lengths(truth.rows, predicted.rows)
    return truth, predicted


def matching_share(truth: NodeSets, predicted: NodeSets) -> float:
    """Return the share of rows with equal sets."""
    different = np.setxor1d(truth.keys, predicted.keys, assume_unique=True) // len(truth.taxonomy)
    return 1 - len(np.unique(different)) / truth.rows


def set_shares(truth: NodeSets, predicted: NodeSets, average: SetAverage) -> Shares:
    """Return precision, recall and F1 of sets."""
    sides = (np.intersect1d(truth.keys, predicted.keys, assume_unique=True), truth.keys, predicted.keys)
    size = len(truth.taxonomy)
    if average == "micro":
        sizes = np.array([[len(keys) for keys in sides]])
    elif average == "samples":
        sizes = _counts([keys // size for keys in sides], truth.rows)
    else:
        sizes = _counts([keys % size for keys in sides], size)
        sizes = sizes[sizes.any(1)]
    return Shares(*(float(share.mean()) if len(share) else 1.0 for share in shares_of(sizes)))


def _counts(groups: list[NDArray[np.int64]], size: int) -> NDArray[np.int64]:
    """Return the counts of the numbers below ``size`` in each of three arrays, (size, 3)."""
    return np.stack([np.bincount(numbers, minlength=size) for numbers in groups], axis=1)


def _shares(y_true: Labels, y_pred: Labels, average: SetAverage, ancestors: bool, taxonomy: Taxonomy | None) -> Shares:
    if average not in ("micro", "macro", "samples"):
        raise HiNetError(f"average: expected 'micro', 'macro' or 'samples', got {average!r}")
    truth, predicted = set_pair(y_true, y_pred, taxonomy)
    if ancestors:
        truth, predicted = truth.with_ancestors(), predicted.with_ancestors()
    return set_shares(truth, predicted, average)
