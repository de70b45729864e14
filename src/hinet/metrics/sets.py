"""Metrics of predicted sets of labels and of ranked labels.

Sets: precision, recall and F1 over pairs, labels or rows, and exact match. None and an empty set both predict that a
row has no label. Such rows count, unlike in metrics of single labels. Rankings and scores: area under the
precision-recall curve, precision and nDCG at k.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.errors import HiNetError, LabelError, quoted
from hinet.metrics.cases import (
    Labels,
    NodeSets,
    Shares,
    check_lengths,
    common_taxonomy,
    label_lists,
    shares,
    true_labels,
)
from hinet.ragged import Bools, offsets_of
from hinet.taxonomy import Taxonomy


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
    different = np.setxor1d(truth.keys, predicted.keys, assume_unique=True) // truth.size
    return 1 - len(np.unique(different)) / truth.rows


def _shares(y_true: Labels, y_pred: Labels, average: SetAverage, ancestors: bool, taxonomy: Taxonomy | None) -> Shares:
    if average not in ("micro", "macro", "samples"):
        raise HiNetError(f"average: expected 'micro', 'macro' or 'samples', got {average!r}")
    truth, predicted = set_pair(y_true, y_pred, taxonomy)
    if ancestors:
        truth, predicted = truth.with_ancestors(), predicted.with_ancestors()
    return shares(truth, predicted, average)


Ranked: TypeAlias = Any
"""The labels of every row, best first, as lists or Traces; or scores of nodes as a dense or CSR matrix."""

PROPENSITY_A, PROPENSITY_B = 0.55, 1.5  # values of Jain et al. (2016) for all data sets except Wikipedia and Amazon


def au_prc(
    y_true: Labels,
    scores: Any,
    *,
    labels: Sequence[str] | None = None,
    leave_out: Iterable[str] = (),
    taxonomy: Taxonomy | None = None,
) -> float:
    """Return the area under the precision-recall curve of all nodes pooled, without the root.

    A pair of a row and a node is positive if the node is a label of the row or an ancestor of one. All pairs are ranked
    together by score; the area is the average precision, ``Σ P_i (R_i - R_{i-1})`` over the distinct scores. A CSR
    matrix needs only the positive scores.

    Parameters
    ----------
    y_true : Traces or list
        The true labels of every row.
    scores : array or CSR matrix of shape (rows, columns)
        The score of every node, such as its probability; at least 0.
    labels : list of str, optional
        The node of each column, by default the nodes of the taxonomy in order. Nodes without a column have score 0.
    leave_out : list of str, optional
        Further nodes to ignore. Results on the Gene Ontology data sets of Clus-HMC leave out the three top terms,
        ``GO0003674``, ``GO0005575`` and ``GO0008150``, which nearly all rows have.
    taxonomy : Taxonomy
        The taxonomy of the labels.

    Notes
    -----
    This is AU(PRC) with a bar over PRC in Vens et al. (2008), *Decision trees for hierarchical multi-label
    classification*. As in C-HMCNN and other work, it is computed without interpolation, like scikit-learn's
    ``average_precision_score(average="micro")``.

    Examples
    --------
    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> round(au_prc([{"cat"}, {"cow"}], [[0.9, 0.3, 0.8], [0.6, 0.7, 0.1]], labels=["pet", "cow", "cat"],
    ...              taxonomy=animals), 3)
    1.0
    """
    return pooled_curve(y_true, scores, labels=labels, leave_out=leave_out, taxonomy=taxonomy).area


@dataclass(frozen=True, eq=False)
class PrecisionRecall:
    """Precision-recall curve: a point for every distinct score, highest first; the last point is for score 0."""

    threshold: NDArray[np.float64]
    precision: NDArray[np.float64]
    recall: NDArray[np.float64]

    @property
    def area(self) -> float:
        """The average precision."""
        return float(np.dot(self.precision, np.diff(self.recall, prepend=0.0)))


def pooled_curve(
    y_true: Labels,
    scores: Any,
    *,
    labels: Sequence[str] | None = None,
    leave_out: Iterable[str] = (),
    taxonomy: Taxonomy | None = None,
) -> PrecisionRecall:
    """Return the precision-recall curve of all nodes pooled; see :func:`au_prc`.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> curve = pooled_curve([{"cow"}], [[0.9, 0.3]], labels=["pet", "cow"], taxonomy=animals)
    >>> curve.precision.tolist(), curve.recall.tolist()
    ([0.0, 0.5, 0.25], [0.0, 1.0, 1.0])
    """
    taxonomy = common_taxonomy(y_true, (), taxonomy)
    given = NodeScores.of(scores, taxonomy, labels)
    counts = evaluated_nodes(taxonomy, leave_out)
    truth = NodeSets.of(y_true, taxonomy, "y_true")
    check_lengths(truth.rows, len(given))
    truth = truth.with_ancestors().only(counts)
    positives, cases = len(truth.keys), len(given) * int(counts.sum())
    if not positives:
        raise LabelError("y_true: no row has a label below the root; AU(PRC) needs one")
    chosen = np.flatnonzero(counts[given.node])
    order = np.argsort(-given.score[chosen])
    hits = np.cumsum(truth.has(given.row[chosen], given.node[chosen])[order])
    score = np.append(given.score[chosen[order]], 0)  # 0 is the score of all other pairs
    last = np.flatnonzero(score[1:] != score[:-1])  # the last entry of each distinct score
    precision = np.append(hits[last] / (last + 1), positives / cases)
    recall = np.append(hits[last] / positives, 1.0)
    return PrecisionRecall(np.append(score[last], 0.0), precision, recall)


def precision_at_k(
    y_true: Labels, ranked: Ranked, k: int, *, labels: Sequence[str] | None = None, taxonomy: Taxonomy | None = None
) -> float:
    """Return the mean share of true labels among the first ``k``; missing labels count as wrong.

    ``labels`` are the nodes of the columns of scores, by default those of the taxonomy.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> precision_at_k([{"cat", "cow"}, {"dog"}], [["cat", "dog", "cow"], ["cow", "dog"]], 2, taxonomy=animals)
    0.5
    """
    return Ranking.of(y_true, ranked, k, labels, taxonomy).precision(k)


def ndcg_at_k(
    y_true: Labels, ranked: Ranked, k: int, *, labels: Sequence[str] | None = None, taxonomy: Taxonomy | None = None
) -> float:
    """Return the mean discounted gain of the first ``k`` labels, as a share of the best possible gain.

    A true label at rank r gains ``1 / log2(r + 1)``; at best the first ``min(k, |Y|)`` labels are true.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> round(ndcg_at_k([{"cat", "cow"}], [["cat", "dog", "cow"]], 3, taxonomy=animals), 3)
    0.92
    """
    return Ranking.of(y_true, ranked, k, labels, taxonomy).ndcg(k)


def label_propensities(
    y_train: Labels, *, a: float = PROPENSITY_A, b: float = PROPENSITY_B, taxonomy: Taxonomy | None = None
) -> NDArray[np.float64]:
    """Return the probability that a row which should have a label was given it, for every node of the taxonomy.

    With ``N`` training rows, ``N_l`` of them with the label, this is ``1 / (1 + C exp(-a ln(N_l + b)))`` where
    ``C = (ln N - 1) (b + 1)^a``, from Jain, Prabhu and Varma (2016), *Extreme multi-label loss functions*. It is at
    most 1, also for few rows.

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> label_propensities([{"cat"}] * 90 + [{"dog"}] * 10, taxonomy=animals).round(2).tolist()
    [0.17, 0.17, 0.17, 0.67, 0.39]
    """
    taxonomy = common_taxonomy(y_train, (), taxonomy)
    sets = NodeSets.of(y_train, taxonomy, "y_train")
    counts = np.bincount(sets.node, minlength=len(taxonomy))
    scale = max(np.log(max(sets.rows, 1)) - 1, 0) * (b + 1) ** a
    return np.asarray(1 / (1 + scale * np.exp(-a * np.log(counts + b))))


def propensity_scored_precision(
    y_true: Labels,
    ranked: Ranked,
    k: int,
    propensities: NDArray[np.float64],
    *,
    labels: Sequence[str] | None = None,
    taxonomy: Taxonomy | None = None,
) -> float:
    """Return the precision at ``k`` with more weight for rarer labels, as a share of the best possible value.

    Each hit counts ``1 / p``, with ``p`` from :func:`label_propensities`. The sum over all rows is divided by that of
    the best ``k`` true labels, as is usual in extreme classification (Jain et al., 2016).

    >>> from hinet import Taxonomy
    >>> animals = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])
    >>> rare = label_propensities([{"cat"}] * 90 + [{"dog"}] * 10, taxonomy=animals)
    >>> round(propensity_scored_precision([{"cat", "dog"}], [["cat"]], 1, rare, taxonomy=animals), 3)
    0.586
    """
    return Ranking.of(y_true, ranked, k, labels, taxonomy).propensity_scored_precision(k, propensities)


@dataclass(frozen=True, eq=False)
class Ranking:
    """The first labels of every row with their ranks, and whether they are true."""

    truth: NodeSets
    row: NDArray[np.int64]
    rank: NDArray[np.int64]  # starts at 0
    node: NDArray[np.int64]
    hit: Bools

    @classmethod
    def of(
        cls, y_true: Labels, ranked: Ranked, k: int, labels: Sequence[str] | None, taxonomy: Taxonomy | None
    ) -> Ranking:
        """Return the first ``k`` distinct labels of every row."""
        if k < 1:
            raise HiNetError(f"k: expected a whole number of at least 1, got {k}")
        is_matrix = sp.issparse(ranked) or getattr(getattr(ranked, "dtype", None), "kind", "O") == "f"
        taxonomy = common_taxonomy(y_true, () if is_matrix else ranked, taxonomy)
        truth = true_labels(y_true, taxonomy)
        if is_matrix:
            scores = NodeScores.of(ranked, taxonomy, labels)
            order = np.lexsort((-scores.score, scores.row))
            node, offsets = scores.node[order], scores.offsets
        else:
            node, offsets = label_lists(ranked, taxonomy, "y_pred")
        check_lengths(truth.rows, len(offsets) - 1)
        row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        if not is_matrix:  # a label of a DAG may have several traces
            first = np.sort(np.unique(row * np.int64(len(taxonomy)) + node, return_index=True)[1])
            row, node = row[first], node[first]
            offsets = offsets_of(np.bincount(row, minlength=len(offsets) - 1))
        rank = np.arange(len(row)) - offsets[row]
        row, rank, node = (values[rank < k] for values in (row, rank, node))
        return cls(truth, row, rank, node, truth.has(row, node))

    def precision(self, k: int) -> float:
        """Return the mean share of true labels among the first ``k``."""
        return float(self.hit[self.rank < k].sum() / (k * self.truth.rows))

    def ndcg(self, k: int) -> float:
        """Return the mean discounted gain of the first ``k``, as a share of the best possible gain."""
        gain = 1 / np.log2(np.arange(2, k + 2))
        hits = self.hit & (self.rank < k)
        gained = np.bincount(self.row[hits], gain[self.rank[hits]], self.truth.rows)
        best = np.cumsum(gain)[np.minimum(self.truth.counts, k) - 1]
        return float((gained / best).mean())

    def propensity_scored_precision(self, k: int, propensities: NDArray[np.float64]) -> float:
        """Return the sum of ``1 / p`` of the hits among the first ``k``, as a share of the best possible sum."""
        weight = 1 / np.asarray(propensities, np.float64)
        hits = self.hit & (self.rank < k)
        possible, row = weight[self.truth.node], self.truth.row
        rank = np.arange(len(row)) - offsets_of(self.truth.counts)[row]
        best = possible[np.lexsort((-possible, row))][rank < k].sum()
        return float(weight[self.node[hits]].sum() / best)
