"""Evaluation of predicted sets and rankings of labels: all figures that are printed or plotted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.metrics import PrecisionRecall, SetReport, pooled_curve, set_report
from hinet.metrics.ranking import Ranking
from hinet.metrics.sets import set_pair, set_shares
from hinet.taxonomy import Taxonomy

RANKS = (1, 3, 5)  # ranks at which precision and nDCG are reported


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
        depths = range(1, self.taxonomy.height + 1)
        return [
            set_shares(truth.only(self.taxonomy.depth == d), predicted.only(self.taxonomy.depth == d), "micro").f1
            for d in depths
        ]

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
