"""Flat metrics of labels: accuracy, top-k accuracy, F1, and accuracy by level."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError
from hinet.metrics.ancestry import Common
from hinet.metrics.cases import (
    NO_ANSWER,
    Cases,
    Labels,
    answered_rows,
    check_lengths,
    common_taxonomy,
    label_lists,
    predicted_labels,
    true_labels,
)
from hinet.ragged import Bools, Ints
from hinet.taxonomy import Taxonomy

Average: TypeAlias = Literal["micro", "macro"]


def accuracy(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the share of rows whose predicted label is a true label, among rows with a prediction.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> accuracy(["cat", "dog"], ["cat", "cat"], taxonomy=animals)
    0.5
    """
    return case_accuracy(Cases.of(y_true, y_pred, taxonomy))


def correct(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> Bools:
    """Return whether the predicted label of each row is a true label; False for rows without a prediction.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> correct([("cat", "dog"), "cow"], ["dog", "pet"], taxonomy=animals).tolist()
    [True, False]
    """
    taxonomy = common_taxonomy(y_true, y_pred, taxonomy)
    nodes, offsets = true_labels(y_true, taxonomy)
    predicted = predicted_labels(y_pred, taxonomy)
    check_lengths(len(offsets) - 1, len(predicted))
    return _any_in_row(nodes == np.repeat(predicted, np.diff(offsets)), offsets)


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
    true_nodes, true_offsets = true_labels(y_true, taxonomy)
    nodes, offsets = label_lists(candidates, taxonomy, "y_pred")
    check_lengths(len(true_offsets) - 1, len(offsets) - 1)
    answered = answered_rows(np.where(np.diff(offsets) > 0, 0, NO_ANSWER))
    lengths, size = np.diff(offsets), np.int64(len(taxonomy))
    rows = np.arange(len(lengths))
    true = np.repeat(rows, np.diff(true_offsets)) * size + true_nodes  # ascending
    keys = np.repeat(rows, lengths) * size + nodes
    hit = true[np.minimum(np.searchsorted(true, keys), len(true) - 1)] == keys
    if k is not None:
        hit &= np.arange(len(nodes)) - np.repeat(offsets[:-1], lengths) < k
    return float(_any_in_row(hit, np.append(offsets[answered], offsets[-1])).mean())


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
    return case_label_f1(Cases.of(y_true, y_pred, taxonomy), average)


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
    cases = Cases.of(y_true, y_pred, taxonomy)
    return level_shares(cases, [common.level_hits() for common in Common.of_all(cases)])


def check_average(average: str) -> None:
    """Raise HiNetError unless ``average`` is 'micro' or 'macro'."""
    if average not in ("micro", "macro"):
        raise HiNetError(f"average: expected 'micro' or 'macro', got {average!r}")


def case_accuracy(cases: Cases) -> float:
    """Return the accuracy over cases."""
    return cases.mean(_hits(cases))


def case_label_f1(cases: Cases, average: Average) -> float:
    """Return the F1 over labels of cases."""
    size = len(cases.taxonomy)
    hits = _weighted_counts(cases.predicted, cases.counts * _hits(cases), size)  # (n,)
    predicted = _weighted_counts(cases.predicted, cases.counts, size)
    true = _weighted_counts(cases.true_nodes, np.repeat(cases.counts, np.diff(cases.offsets)), size)
    total = true + predicted
    if average == "micro":
        return float(2 * hits.sum() / total.sum())
    seen = total > 0
    return float((2 * hits[seen] / total[seen]).mean())


def level_shares(cases: Cases, hits: list[NDArray[np.int64]]) -> list[float]:
    """Return the level accuracy of cases from the hits at each level of each chunk of cases."""
    depth = cases.taxonomy.depth[cases.true_nodes]
    deepest = np.maximum.reduceat(depth, cases.offsets[:-1])
    rows_ending = _weighted_counts(deepest, cases.counts, int(deepest.max()) + 1)
    rows_at_level = np.cumsum(rows_ending[::-1])[::-1][1:]  # rows with a true node at each level
    return [float(share) for share in np.sum(hits, axis=0)[: len(rows_at_level)] / rows_at_level]


def _hits(cases: Cases) -> Bools:
    same = cases.true_nodes == np.repeat(cases.predicted, np.diff(cases.offsets))
    return _any_in_row(same, cases.offsets)


def _any_in_row(marked: Bools, offsets: Ints) -> Bools:
    """Return whether any element of each list is marked; no list is empty."""
    return np.asarray(np.logical_or.reduceat(marked, offsets[:-1]))


def _weighted_counts(values: Ints, weights: Ints, size: int) -> NDArray[np.float64]:
    return np.asarray(np.bincount(values, weights, size), np.float64)
