"""The evaluation of a classifier on labelled rows: all figures that are printed or plotted."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.engine import Found
from hinet.metrics import (
    CoverageRisk,
    LabelReport,
    brier_score,
    confidence,
    coverage_risk,
    expected_calibration_error,
    label_report,
    level_calibration_error,
)
from hinet.metrics.ancestry import Common
from hinet.metrics.cases import Cases
from hinet.metrics.probability import BINS
from hinet.taxonomy import Taxonomy

RISKS = (0.01, 0.05, 0.1)  # shares of wrong answers whose coverage is reported


class TopErrors(NamedTuple):
    """The number of wrong rows below a top node, by the depth of their agreement with the true label, from 0."""

    top: str
    by_agreement: tuple[int, ...]


class Bin(NamedTuple):
    """Rows of about one confidence: its mean, the share of them that is right, and their share of all rows."""

    confidence: float
    accuracy: float
    share: float


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The true labels of rows, the predicted traces, and which of them are right.

    The taxonomy is that of the traces, perhaps with further nodes after its own: true labels that no trace leads to.
    """

    taxonomy: Taxonomy
    labels: list[tuple[str, ...]]  # true node ids of every row, at least one
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
        """Share of rows with a right label."""
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
        """Return the rows in bins of equal width by their confidence, without empty ones."""
        bins = np.minimum((self.confidence * BINS).astype(int), BINS - 1)
        counts = np.bincount(bins, minlength=BINS)
        used = np.flatnonzero(counts)
        sums = (np.bincount(bins, weights, BINS)[used] / counts[used] for weights in (self.confidence, self.right))
        return [
            Bin(*values)
            for values in zip(*(each.tolist() for each in sums), (counts[used] / len(self)).tolist(), strict=True)
        ]

    @property
    def calibration_error(self) -> float:
        """Expected calibration error of the labels."""
        return float(expected_calibration_error(self.confidence, self.right))

    @cached_property
    def level_calibration(self) -> list[float]:
        """Expected calibration error of each level."""
        log_p = np.minimum(self.found.log_p, 0)
        return level_calibration_error(self.labels, self.found.traces, log_p, taxonomy=self.taxonomy)

    @cached_property
    def coverage(self) -> CoverageRisk:
        """The curve of risk against coverage."""
        return coverage_risk(self.confidence, self.right)

    def coverage_at(self, risk: float) -> float:
        """Return the largest coverage with at most this risk, on these rows."""
        within = self.coverage.coverage[self.coverage.risk <= risk]
        return float(within.max(initial=0.0))

    def errors_by_top(self) -> list[TopErrors]:
        """Return the wrong rows by the top node above their first true label, most errors first."""
        wrong = np.flatnonzero(~self.right).tolist()
        if not wrong:
            return []
        cases = Cases.of([self.labels[row] for row in wrong], [self.predicted[row] for row in wrong], self.taxonomy)
        agreed = np.concatenate([common.greatest_depth() for common in Common.of_all(cases)])
        first = cases.true_nodes[cases.offsets[:-1]]
        tops = _top_of(self.taxonomy, first)
        counts = np.zeros((len(self.taxonomy), self.taxonomy.height + 1), np.int64)
        np.add.at(counts, (tops, agreed), cases.counts)
        order = np.argsort(-counts.sum(1), kind="stable")
        return [
            TopErrors(self.taxonomy.titles[top] or self.taxonomy.ids[top], tuple(counts[top].tolist()))
            for top in order[: np.count_nonzero(counts.sum(1))].tolist()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as a dict."""
        return {
            "rows": len(self),
            **asdict(self.report),
            "accuracy": self.accuracy,
            "brier_score": float(brier_score(self.confidence, self.right)),
            "calibration_error": self.calibration_error,
            "level_calibration_error": self.level_calibration,
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
