"""Metrics of predicted sets of labels: precision, recall and F1 over pairs, labels or rows, and exact match.

None and an empty set are both the prediction that a row has no label: it counts, unlike in metrics of single labels.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError
from hinet.metrics.cases import Labels, check_lengths, common_taxonomy
from hinet.metrics.hierarchical import Shares, shares_of
from hinet.metrics.node_sets import NodeSets
from hinet.taxonomy import Taxonomy

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

    Micro counts all pairs of a row and a label; macro is the mean over the labels that are true or predicted somewhere;
    samples, also called example-based, is the mean over rows. The share of an empty set is 1 if the other set is empty
    too, else 0. With ``ancestors``, labels stand for themselves and all nodes above them, the root left out, which is
    the hierarchical F1 of sets.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> set_f1([{"cat", "cow"}, {"dog"}], [{"cat"}, {"cat"}], taxonomy=animals)
    0.4
    >>> round(set_f1([{"cat", "cow"}, {"dog"}], [{"cat"}, {"cat"}], ancestors=True, taxonomy=animals), 3)
    0.667
    """
    return _shares(y_true, y_pred, average, ancestors, taxonomy).f1


def exact_match(y_true: Labels, y_pred: Labels, *, taxonomy: Taxonomy | None = None) -> float:
    """Return the share of rows whose predicted set is the true one.

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
    """Return how often each number up to ``size`` is in each of three arrays, (size, 3)."""
    return np.stack([np.bincount(numbers, minlength=size) for numbers in groups], axis=1)


def _shares(y_true: Labels, y_pred: Labels, average: SetAverage, ancestors: bool, taxonomy: Taxonomy | None) -> Shares:
    if average not in ("micro", "macro", "samples"):
        raise HiNetError(f"average: expected 'micro', 'macro' or 'samples', got {average!r}")
    truth, predicted = set_pair(y_true, y_pred, taxonomy)
    if ancestors:
        truth, predicted = truth.with_ancestors(), predicted.with_ancestors()
    return set_shares(truth, predicted, average)
