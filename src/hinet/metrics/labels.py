"""Metrics of labels: accuracy, top-k accuracy, F1, accuracy by level; and hierarchical ones.

Hierarchical metrics use sets of nodes, not paths, so that a DAG is not unrolled. If a row has several true labels, the
sets are unions over its labels, and distance and depth are those of the label that matches the prediction best.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from hinet.errors import HiNetError
from hinet.metrics.cases import (
    NO_ANSWER,
    Cases,
    Labels,
    Shares,
    answered_rows,
    answers,
    check_lengths,
    common_taxonomy,
    label_lists,
    predicted_labels,
    shares,
    true_labels,
)
from hinet.metrics.lca import LowestAncestors
from hinet.ragged import Bools
from hinet.taxonomy import Taxonomy

Average: TypeAlias = Literal["micro", "macro"]


def accuracy(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the share of rows whose predicted label is a true label, among rows with a prediction.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> accuracy(["cat", "dog"], ["cat", "cat"], taxonomy=animals)
    0.5
    """
    return float(Cases.of(y_true, y_pred, taxonomy).hits.mean())


def correct(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> Bools:
    """Return whether the predicted label of each row is a true label; False for rows without a prediction.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> correct([("cat", "dog"), "cow"], ["dog", "pet"], taxonomy=animals).tolist()
    [True, False]
    """
    truth, predicted = answers(y_true, y_pred, taxonomy)
    return np.asarray(truth.has(np.arange(truth.rows), predicted) & (predicted != NO_ANSWER))


def top_k_accuracy(
    y_true: Labels, candidates: Labels, k: int | None = None, *, taxonomy: Taxonomy | None = None
) -> float:
    """Return the share of rows with a true label among their first ``k`` candidates, or among all if ``k`` is None.

    Candidates are the traces of a row, or a list of node ids per row, best first. A row may have fewer than ``k``; rows
    without candidates do not count.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> top_k_accuracy(["cat", "cow"], [["dog", "cat"], ["pet", "dog", "cow"]], k=2, taxonomy=animals)
    0.5
    """
    if k is not None and k < 1:
        raise HiNetError(f"k: expected a whole number of at least 1, got {k}")
    taxonomy = common_taxonomy(y_true, candidates, taxonomy)
    truth = true_labels(y_true, taxonomy)
    nodes, offsets = label_lists(candidates, taxonomy, "y_pred")
    check_lengths(truth.rows, len(offsets) - 1)
    lengths = np.diff(offsets)
    hit = truth.has(np.repeat(np.arange(truth.rows), lengths), nodes)
    if k is not None:
        hit &= np.arange(len(nodes)) - np.repeat(offsets[:-1], lengths) < k
    starts = offsets[answered_rows(lengths > 0)]
    return float(np.logical_or.reduceat(hit, starts).mean())


def coverage(y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the share of rows with a prediction; metrics of single labels only count these rows.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> accuracy(["cat", "dog"], ["cat", None], taxonomy=animals), coverage(["cat", None], taxonomy=animals)
    (1.0, 0.5)
    """
    taxonomy = common_taxonomy(y_pred, y_pred, taxonomy)
    predicted = predicted_labels(y_pred, taxonomy)
    check_lengths(len(predicted), len(predicted))
    return float((predicted != NO_ANSWER).mean())


def label_f1(y_true: Labels, y_pred: Labels, *, average: Average = "micro", taxonomy: Taxonomy | None = None) -> float:
    """Return the F1 over labels, ignoring the hierarchy.

    The micro average counts true positives, false positives and false negatives over all rows; with one true label per
    row it is the accuracy. The macro average is the mean over all labels that are true or predicted somewhere.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> round(label_f1(["cat", "cat", "dog"], ["cat", "cat", "cat"], average="macro", taxonomy=animals), 3)
    0.4
    """
    check_average(average)
    cases = Cases.of(y_true, y_pred, taxonomy)
    return shares(cases.truth, cases.predicted, average).f1


def level_accuracy(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> list[float]:
    """Return the accuracy at each level, over the rows with a true node at that level.

    The nodes of a label at level ``l`` are the label and its ancestors whose depth (the longest path from the root) is
    ``l``: one in a tree, and at least one down to the depth of the label in a DAG. A row is correct at a level if its
    predicted and true labels have a common node there. A prediction that ends above a level is wrong there.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> level_accuracy(["cat", "dog", "cow"], ["cat", "cat", "pet"], taxonomy=animals)
    [0.6666666666666666, 0.5]
    """
    return Cases.of(y_true, y_pred, taxonomy).level_accuracy()


def check_average(average: str) -> None:
    """Raise HiNetError unless ``average`` is 'micro' or 'macro'."""
    if average not in ("micro", "macro"):
        raise HiNetError(f"average: expected 'micro' or 'macro', got {average!r}")


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
    return float(LowestAncestors.of(Cases.of(y_true, y_pred, taxonomy)).distance().mean())


def depth_of_agreement(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the mean depth of the deepest common ancestor of prediction and truth; the depth of the root is 0.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> depth_of_agreement(["cat", "cat", "cat"], ["cat", "dog", "cow"], taxonomy=animals)
    1.0
    """
    return float(Cases.of(y_true, y_pred, taxonomy).depth_of_agreement().mean())


def _of_ancestors(y_true: Labels, y_pred: Labels, average: Average, taxonomy: Taxonomy | None) -> Shares:
    check_average(average)
    cases = Cases.of(y_true, y_pred, taxonomy)
    return shares(*cases.closed, "micro" if average == "micro" else "samples")


def _of_lowest(y_true: Labels, y_pred: Labels, taxonomy: Taxonomy | None) -> Shares:
    cases = Cases.of(y_true, y_pred, taxonomy)
    return shares(*LowestAncestors.of(cases).paths(), "samples")
