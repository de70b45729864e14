"""Evaluation of labels, sets and rankings on labelled rows: figures to print, plot or save with the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.engine import Found
from hinet.metrics import (
    CoverageRisk,
    LabelReport,
    PrecisionRecall,
    SetReport,
    brier_score,
    confidence,
    coverage_risk,
    expected_calibration_error,
    label_report,
    level_calibration_error,
    pooled_curve,
    set_report,
)
from hinet.metrics.cases import Cases, shares
from hinet.metrics.probability import BINS
from hinet.metrics.sets import Ranking, set_pair
from hinet.taxonomy import Taxonomy

RISKS = (0.01, 0.05, 0.1)  # shares of wrong answers whose coverage is reported
MAX_POINTS = 200  # maximum points of the curve of risk against coverage
MAX_PAIRS = 50  # maximum pairs of confused labels
MAX_BRANCHES = 500  # maximum nodes with errors
DIGITS = 6
RANKS = (1, 3, 5)  # ranks at which precision and nDCG are reported


class TopErrors(NamedTuple):
    """Number of wrong rows below a top node, by the depth of agreement with the true label, from 0."""

    top: str
    by_agreement: tuple[int, ...]


class Bin(NamedTuple):
    """Rows of similar confidence: mean confidence, accuracy, and share of all rows."""

    confidence: float
    accuracy: float
    share: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """True labels of rows, the predicted traces, and which predictions are correct.

    The taxonomy is that of the traces, possibly with further nodes for true labels that no trace leads to.
    """

    taxonomy: Taxonomy
    labels: list[tuple[str, ...]]  # ids of the true nodes of every row, at least one
    found: Found
    right: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def predicted(self) -> list[str]:
        """The predicted node id of every row."""
        traces = self.found.traces
        return [self.taxonomy.ids[node] for node in traces.end_nodes[traces.row_offsets[:-1]].tolist()]

    @property
    def accuracy(self) -> float:
        """Share of rows with a correct label."""
        return float(self.right.mean())

    @cached_property
    def report(self) -> LabelReport:
        """Metrics of labels and of the hierarchy."""
        return label_report(self.labels, self.predicted, taxonomy=self.taxonomy)

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """The probability of every predicted label."""
        return np.minimum(confidence(self.found.traces), 1.0)

    def reliability(self) -> list[Bin]:
        """Return the rows in bins of equal width by confidence, without empty bins."""
        bins = np.minimum((self.confidence * BINS).astype(int), BINS - 1)
        counts = np.bincount(bins, minlength=BINS)
        used = np.flatnonzero(counts)
        sure, right = (np.bincount(bins, values, BINS)[used] / counts[used] for values in (self.confidence, self.right))
        shares = counts[used] / len(self)
        return [Bin(*values) for values in zip(sure.tolist(), right.tolist(), shares.tolist(), strict=True)]

    @property
    def calibration_error(self) -> float:
        """Expected calibration error of the labels."""
        return float(expected_calibration_error(self.confidence, self.right))

    @cached_property
    def coverage(self) -> CoverageRisk:
        """The curve of risk against coverage."""
        return coverage_risk(self.confidence, self.right)

    def coverage_at(self, risk: float) -> float:
        """Return the largest coverage with at most this risk on these rows."""
        within = self.coverage.coverage[self.coverage.risk <= risk]
        return float(within.max(initial=0.0))

    def errors_by_top(self) -> list[TopErrors]:
        """Return the wrong rows by the top node above their first true label, most errors first."""
        wrong = np.flatnonzero(~self.right).tolist()
        if not wrong:
            return []
        cases = Cases.of([self.labels[row] for row in wrong], [self.predicted[row] for row in wrong], self.taxonomy)
        first = np.unique(cases.truth.row, return_index=True)[1]
        tops = _top_of(self.taxonomy, cases.truth.node[first])
        counts = np.zeros((len(self.taxonomy), self.taxonomy.height + 1), np.int64)
        np.add.at(counts, (tops, cases.depth_of_agreement()), 1)
        order = np.argsort(-counts.sum(1), kind="stable")
        return [
            TopErrors(self.taxonomy.titles[top] or self.taxonomy.ids[top], tuple(counts[top].tolist()))
            for top in order[: np.count_nonzero(counts.sum(1))].tolist()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as a dict."""
        found, taxonomy = self.found, self.taxonomy
        by_level = level_calibration_error(self.labels, found.traces, np.minimum(found.log_p, 0), taxonomy=taxonomy)
        return {
            "rows": len(self),
            **asdict(self.report),
            "accuracy": self.accuracy,
            "brier_score": float(brier_score(self.confidence, self.right)),
            "calibration_error": self.calibration_error,
            "level_calibration_error": by_level,
            "coverage_risk_area": self.coverage.area,
            "coverage_at_risk": {str(risk): self.coverage_at(risk) for risk in RISKS},
        }


def _top_of(taxonomy: Taxonomy, nodes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the top node above each node."""
    distinct, inverse = np.unique(nodes, return_inverse=True)
    above, offsets = taxonomy.ancestor_lists(distinct)
    is_top = np.zeros(len(taxonomy), bool)
    is_top[taxonomy.tops] = True
    owner = np.repeat(np.arange(len(distinct)), np.diff(offsets))
    tops = distinct.astype(np.int64)
    tops[owner[is_top[above]]] = above[is_top[above]]
    return tops[inverse]


def figures_of(evaluation: Evaluation, name: str) -> dict[str, Any]:
    """Return the figures of an evaluation on the named rows, as plain values for JSON."""
    figures = evaluation.as_dict()
    single = {key: value for key, value in figures.items() if isinstance(value, int | float) and key != "rows"}
    return {
        "name": name,
        "evaluated": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "rows": len(evaluation),
        "metrics": {key: round(float(value), DIGITS) for key, value in single.items()},
        "level_accuracy": [round(float(share), DIGITS) for share in evaluation.report.level_accuracy],
        "calibration": [_rounded(each._asdict()) for each in evaluation.reliability()],
        "coverage": _coverage(evaluation),
        "confused": _confused(evaluation),
        "branches": _branches(evaluation),
    }


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(float(value), DIGITS) for name, value in values.items()}


def _coverage(evaluation: Evaluation) -> list[dict[str, float]]:
    curve = evaluation.coverage
    count = len(curve.coverage)
    chosen = np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).round().astype(int))
    columns = (curve.threshold, curve.coverage, curve.risk)
    points = zip(*(column[chosen].tolist() for column in columns), strict=True)
    return [_rounded(dict(zip(("threshold", "coverage", "risk"), point, strict=True))) for point in points]


def _confused(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the most frequent pairs of a true and a different predicted label; of several true labels the first."""
    traces, taxonomy = evaluation.found.traces, evaluation.taxonomy
    ends = traces.end_nodes[traces.row_offsets[:-1]].tolist()
    wrong = [row for row in np.flatnonzero(~evaluation.right).tolist() if ends[row] >= 0]
    pairs = Counter((taxonomy.position(evaluation.labels[row][0]), ends[row]) for row in wrong)
    return [
        {"true": _node(taxonomy, true), "predicted": _node(taxonomy, predicted), "rows": count}
        for (true, predicted), count in pairs.most_common(MAX_PAIRS)
        if true != predicted
    ]


def _node(taxonomy: Taxonomy, node: int) -> dict[str, Any]:
    return {"node": taxonomy.ids[node], "title": taxonomy.titles[node] or taxonomy.ids[node], "stops": False}


def _branches(evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the nodes with most errors at or below them, each with its first parent; parents come first."""
    taxonomy = evaluation.taxonomy
    true = np.array([taxonomy.position(labels[0]) for labels in evaluation.labels], np.int64)
    rows = np.bincount(true, minlength=len(taxonomy))
    errors = np.bincount(true, ~evaluation.right, len(taxonomy))
    parents, depth = _first_parents(taxonomy), np.ones(len(taxonomy), np.int64)
    by_level = [np.flatnonzero((taxonomy.depth == level) & (parents >= 0)) for level in range(2, taxonomy.height + 1)]
    for nodes in reversed(by_level):  # each node adds its rows to those of its parent
        np.add.at(rows, parents[nodes], rows[nodes])
        np.add.at(errors, parents[nodes], errors[nodes])
    for nodes in by_level:
        depth[nodes] = depth[parents[nodes]] + 1
    if taxonomy.root >= 0:
        errors[taxonomy.root] = 0
    order = np.argsort(-errors, kind="stable")[:MAX_BRANCHES]  # no node has more errors than its parent
    listed = {int(node) for node in order[errors[order] > 0]}
    return [
        {
            "node": taxonomy.ids[node],
            "title": taxonomy.titles[node] or taxonomy.ids[node],
            "parent": taxonomy.ids[parents[node]] if int(parents[node]) in listed else None,
            "depth": int(depth[node]),
            "rows": int(rows[node]),
            "errors": int(errors[node]),
        }
        for node in sorted(listed, key=lambda node: (depth[node], -errors[node], node))
    ]


def _first_parents(taxonomy: Taxonomy) -> NDArray[np.int64]:
    """Return the first parent of each node, or -1 for top nodes, the root's children."""
    flat, offsets = taxonomy.parent_lists
    has_parent = np.diff(offsets) > 0
    parents = np.full(len(taxonomy), -1, np.int64)
    parents[has_parent] = flat[offsets[:-1][has_parent]]
    parents[parents == taxonomy.root] = -1
    return parents


@dataclass(frozen=True, eq=False)
class SetEvaluation:
    """True and predicted sets of labels of rows, as node ids, with optional rankings and scores.

    Attributes
    ----------
    taxonomy : Taxonomy
        The taxonomy of the labels.
    truth, predicted : list of collections of str
        The true and the predicted labels of every row, possibly none.
    ranked : list of lists of str, or a matrix of scores, optional
        The labels of every row, best first; for metrics at k.
    scores : dense or CSR matrix of shape (rows, nodes), optional
        The probability of every node of the taxonomy; for AU(PRC).
    propensities : float array of shape (nodes,), optional
        Propensities of the labels, from ``hinet.metrics.label_propensities``.
    """

    taxonomy: Taxonomy
    truth: Sequence[Collection[str]]
    predicted: Sequence[Collection[str]]
    ranked: Any = None
    scores: Any = None
    propensities: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.truth)

    @cached_property
    def report(self) -> SetReport:
        """Metrics of the predicted sets."""
        return set_report(self.truth, self.predicted, taxonomy=self.taxonomy)

    @property
    def labels_per_row(self) -> tuple[float, float]:
        """The mean number of true and of predicted labels of a row."""
        return float(np.mean(self.true_counts)), float(np.mean(self.predicted_counts))

    @property
    def true_counts(self) -> NDArray[np.int64]:
        """(n,) The number of true labels of every row."""
        return np.array([len(labels) for labels in self.truth], np.int64)

    @property
    def predicted_counts(self) -> NDArray[np.int64]:
        """(n,) The number of predicted labels of every row."""
        return np.array([len(labels) for labels in self.predicted], np.int64)

    @cached_property
    def ranking(self) -> Ranking | None:
        """The first labels of every row with a true label, if ``ranked`` is given."""
        if self.ranked is None:
            return None
        rows = np.flatnonzero(self.true_counts)
        truth = [self.truth[row] for row in rows.tolist()]
        ranked = self.ranked[rows] if hasattr(self.ranked, "shape") else [self.ranked[row] for row in rows.tolist()]
        return Ranking.of(truth, ranked, max(RANKS), None, self.taxonomy)

    @cached_property
    def curve(self) -> PrecisionRecall | None:
        """The precision-recall curve of all nodes pooled, if ``scores`` are given."""
        return None if self.scores is None else pooled_curve(self.truth, self.scores, taxonomy=self.taxonomy)

    @cached_property
    def f1_by_level(self) -> list[float]:
        """The F1 of the predicted nodes at each depth, for sets with all ancestors."""
        truth, predicted = (side.with_ancestors() for side in set_pair(self.truth, self.predicted, self.taxonomy))
        levels = [self.taxonomy.depth == depth for depth in range(1, self.taxonomy.height + 1)]
        return [shares(truth.only(level), predicted.only(level), "micro").f1 for level in levels]

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as a dict."""
        true, predicted = self.labels_per_row
        figures: dict[str, Any] = {
            "rows": len(self),
            "true_labels_per_row": true,
            "predicted_labels_per_row": predicted,
            **asdict(self.report),
            "f1_by_level": self.f1_by_level,
        }
        if (ranking := self.ranking) is not None:
            figures["precision_at"] = {str(k): ranking.precision(k) for k in RANKS}
            figures["ndcg_at"] = {str(k): ranking.ndcg(k) for k in RANKS}
            if (rare := self.propensities) is not None:
                figures["propensity_scored_precision_at"] = {
                    str(k): ranking.propensity_scored_precision(k, rare) for k in RANKS
                }
        if self.curve is not None:
            figures["au_prc"] = self.curve.area
        return figures
