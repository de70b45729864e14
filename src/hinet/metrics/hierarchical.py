"""Hierarchical metrics: sets of ancestors, lowest common ancestors, distance, depth of agreement.

All use sets of nodes, not paths, so a DAG is not unrolled. If a row has several true labels, the sets are the unions
over its labels, and distance and depth are those of the label that matches the prediction best.
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
    """Return the F1 of the sets of labels with all their ancestors, the root left out.

    Micro sums the sizes of the sets over all rows and then divides; macro is the mean of the F1 of the rows. If a set
    is empty (the label is the root), its share is 1 if the other set is empty too, else 0.

    Notes
    -----
    On a tree these are the ``precision``, ``recall`` and ``f1`` of HiClass 5.0.8 for one label a row, with ``average``
    of the same name. There a label is a path without the root; the empty strings that pad short paths count neither as
    true nor as predicted, so a label at an inner node counts as here. Differences: HiClass compares the names on a
    path, so that one name below two parents is one node; it sees the ancestors on the given path only, where here a
    node of a DAG has all its ancestors; of rows with several labels it drops those beyond the number on the other side;
    a row whose path is all padding divides by zero there in the macro average, and an F1 of 0 warns.

    Examples
    --------
    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> hierarchical_f1(["cat", "dog"], ["cat", "cat"], taxonomy=animals)
    0.75
    """
    return _of_ancestors(y_true, y_pred, average, taxonomy).f1


def lca_precision(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean over rows of the share of nodes above the prediction that are true; see :func:`lca_f1`.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> lca_precision(["cow"], ["dog"], taxonomy=animals)
    0.3333333333333333
    """
    return _of_lowest(y_true, y_pred, taxonomy).precision


def lca_recall(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean over rows of the share of nodes above the true label that are predicted; see :func:`lca_f1`.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> lca_recall(["cow"], ["dog"], taxonomy=animals)
    0.5
    """
    return _of_lowest(y_true, y_pred, taxonomy).recall


def lca_f1(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean over rows of the F1 of the nodes up to the lowest common ancestor of truth and prediction.

    Unlike in :func:`hierarchical_f1`, deep errors count as much as shallow ones.

    Notes
    -----
    After Kosmopoulos et al. (2015), *Evaluation measures for hierarchical classification*. The lowest common ancestor
    of a true and the predicted label, the root and the labels themselves included, is the one with the fewest edges to
    both; of several the deepest, and of these the first in the taxonomy. The true set of a row holds the nodes on a
    shortest path from each true label up to its lowest common ancestor with the prediction, both ends included; the
    predicted set those on the shortest paths from the prediction up to the same ancestors. (If a DAG has several
    shortest paths, the first in the order of the taxonomy, from the top down, counts.) Precision, recall and F1
    are of these two sets. With one true label they share just that ancestor, so that precision is ``1 / (1 + edges up
    from the prediction)`` and recall ``1 / (1 + edges up from the truth)``.

    Examples
    --------
    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> lca_f1(["cat", "cat"], ["cat", "dog"], taxonomy=animals)
    0.75
    """
    return _of_lowest(y_true, y_pred, taxonomy).f1


def tree_distance(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean number of edges from the nearest true label over a common ancestor to the prediction.

    The common ancestor, which may be the root, is the one with the shortest path. 0 is best.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> tree_distance(["cat", "cow"], ["pet", "dog"], taxonomy=animals)
    2.0
    """
    cases = Cases.of(y_true, y_pred, taxonomy)
    return cases.mean(np.concatenate([common.least_distance() for common in Common.of_all(cases)]))


def depth_of_agreement(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean depth of the deepest common ancestor of prediction and truth; 0 if only the root is common.

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
