"""Hierarchical metrics: sets of ancestors, lowest common ancestors, distance, depth of agreement.

All metrics use sets of nodes, not paths, so that a DAG is not unrolled. If a row has several true labels, the sets are
unions over its labels, and distance and depth are those of the label that matches the prediction best.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.metrics.ancestry import Common
from hinet.metrics.cases import Cases, Labels
from hinet.metrics.labels import Average, check_average
from hinet.taxonomy import Taxonomy


class Shares(NamedTuple):
    """Precision, recall and F1 of the same sets."""

    precision: float
    recall: float
    f1: float


def hierarchical_precision(
    y_true: Labels, y_pred: Labels, *, average: Average = "micro", taxonomy: Taxonomy | None = None
) -> float:
    """Return the share of predicted nodes, ancestors included, that are true; see :func:`hierarchical_f1`.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> hierarchical_precision(["cat", "cow"], ["pet", "dog"], taxonomy=animals)
    0.3333333333333333
    >>> hierarchical_precision(["cat", "cow"], ["pet", "dog"], average="macro", taxonomy=animals)
    0.5
    """
    return _of_ancestors(y_true, y_pred, average, taxonomy).precision


def hierarchical_recall(
    y_true: Labels, y_pred: Labels, *, average: Average = "micro", taxonomy: Taxonomy | None = None
) -> float:
    """Return the share of true nodes, ancestors included, that are predicted; see :func:`hierarchical_f1`.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> hierarchical_recall(["cat", "cow"], ["pet", "dog"], taxonomy=animals)
    0.3333333333333333
    >>> hierarchical_recall(["cat", "cow"], ["pet", "dog"], average="macro", taxonomy=animals)
    0.25
    """
    return _of_ancestors(y_true, y_pred, average, taxonomy).recall


def hierarchical_f1(
    y_true: Labels, y_pred: Labels, *, average: Average = "micro", taxonomy: Taxonomy | None = None
) -> float:
    """Return the F1 of labels with all their ancestors, without the root.

    The micro average sums the sizes of the sets over all rows and then divides; the macro average is the mean of the F1
    of the rows. An empty set (the label is the root) counts as 1 if the other set is empty too, else 0.

    Notes
    -----
    On a tree with one label per row, these metrics equal ``precision``, ``recall`` and ``f1`` of HiClass 5.0.8 with the
    same ``average``. There a label is a path without the root, and the empty strings that pad short paths are ignored,
    so that labels at inner nodes count as they do here. The differences: HiClass compares the names on a path, so that
    one name below two parents is one node. It only sees the ancestors on the given path, while here a node of a DAG has
    all its ancestors. If rows have several labels, it drops those beyond the number on the other side. In its macro
    average, a row whose path is all padding divides by zero, and an F1 of 0 warns.

    Examples
    --------
    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> hierarchical_f1(["cat", "dog"], ["cat", "cat"], taxonomy=animals)
    0.75
    """
    return _of_ancestors(y_true, y_pred, average, taxonomy).f1


def lca_precision(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean share of nodes above the prediction that are true; see :func:`lca_f1`.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> lca_precision(["cow"], ["dog"], taxonomy=animals)
    0.3333333333333333
    """
    return _of_lowest(y_true, y_pred, taxonomy).precision


def lca_recall(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean share of nodes above the true label that are predicted; see :func:`lca_f1`.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> lca_recall(["cow"], ["dog"], taxonomy=animals)
    0.5
    """
    return _of_lowest(y_true, y_pred, taxonomy).recall


def lca_f1(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean F1 of the nodes up to the lowest common ancestor of truth and prediction.

    Unlike in :func:`hierarchical_f1`, deep errors count as much as shallow ones.

    Notes
    -----
    See Kosmopoulos et al. (2015), *Evaluation measures for hierarchical classification*. The lowest common ancestor of
    a true and the predicted label is the one with the fewest edges to both. It may be the root or one of the labels. Of
    several, it is the deepest, and then the first in the taxonomy. The true set of a row holds the nodes on a shortest
    path from each true label up to its lowest common ancestor with the prediction, including both ends. The predicted
    set holds the nodes on the shortest paths from the prediction up to the same ancestors. (If a DAG has several
    shortest paths, the first in the order of the taxonomy, from the top down, counts.) Precision, recall and F1
    compare these two sets. With one true label they share only that ancestor, so that precision is ``1 / (1 + edges up
    from the prediction)`` and recall is ``1 / (1 + edges up from the truth)``.

    Examples
    --------
    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> lca_f1(["cat", "cat"], ["cat", "dog"], taxonomy=animals)
    0.75
    """
    return _of_lowest(y_true, y_pred, taxonomy).f1


def tree_distance(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean number of edges from the nearest true label via a common ancestor to the prediction.

    The common ancestor, which may be the root, is the one with the shortest path. The best value is 0.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> tree_distance(["cat", "cow"], ["pet", "dog"], taxonomy=animals)
    2.0
    """
    cases = Cases.of(y_true, y_pred, taxonomy)
    return cases.mean(np.concatenate([common.least_distance() for common in Common.of_all(cases)]))


def depth_of_agreement(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean depth of the deepest common ancestor of prediction and truth; the depth of the root is 0.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> depth_of_agreement(["cat", "cat", "cat"], ["cat", "dog", "cow"], taxonomy=animals)
    1.0
    """
    cases = Cases.of(y_true, y_pred, taxonomy)
    return cases.mean(np.concatenate([common.greatest_depth() for common in Common.of_all(cases)]))


def case_shares(cases: Cases, sizes: NDArray[np.int64], average: Average) -> Shares:
    """Return precision, recall and F1 of (cases, 3) set sizes: common, true, predicted."""
    if average == "micro":
        return Shares(*(float(share[0]) for share in shares_of(cases.counts @ sizes)))
    return Shares(*(cases.mean(share) for share in shares_of(sizes)))


def shares_of(sizes: NDArray[np.int64]) -> tuple[NDArray[np.float64], ...]:
    """Return precision, recall and F1 for each of (k, 3) set sizes: common, true, predicted."""
    common, true, predicted = sizes.reshape(-1, 3).T
    return _share(common, predicted, true), _share(common, true, predicted), _share(2 * common, true + predicted, 0)


def _share(part: NDArray[np.int64], whole: NDArray[np.int64], other: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Return ``part / whole``; for an empty whole, 1 if the other side is empty too, else 0."""
    empty = np.where(np.asarray(other) == 0, 1.0, 0.0)
    return np.where(whole > 0, part / np.maximum(whole, 1), empty)


def _of_ancestors(y_true: Labels, y_pred: Labels, average: Average, taxonomy: Taxonomy | None) -> Shares:
    check_average(average)
    cases = Cases.of(y_true, y_pred, taxonomy)
    return case_shares(cases, np.concatenate([common.set_sizes() for common in Common.of_all(cases)]), average)


def _of_lowest(y_true: Labels, y_pred: Labels, taxonomy: Taxonomy | None) -> Shares:
    cases = Cases.of(y_true, y_pred, taxonomy)
    return case_shares(cases, np.concatenate([common.lowest_sizes() for common in Common.of_all(cases)]), "macro")
