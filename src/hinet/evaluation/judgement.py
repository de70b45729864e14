"""How a classifier does on labelled rows, gathered block by block: one object with all that is told or drawn."""

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
from hinet.taxonomy import Taxonomy

RISKS = (0.01, 0.05, 0.1)  # shares of wrong answers whose coverage is told


class ErrorsBelow(NamedTuple):
    """The wrong rows below a top node: how many of them agree with the truth down to each depth, from 0 on."""

    top: str
    by_agreement: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Judgement:
    """Rows, their true labels by id, the traces found, and whether each was right."""

    taxonomy: Taxonomy
    labels: list[tuple[str, ...]]  # known ids of every row; a row whose labels no taxonomy knows has none
    found: Found
    right: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def _known(self) -> NDArray[np.int64]:
        """Rows whose place in the taxonomy is known, on which measures of the hierarchy are taken."""
        return np.flatnonzero([bool(ids) for ids in self.labels])

    @property
    def accuracy(self) -> float:
        """Share of rows whose label is right."""
        return float(self.right.mean())

    @cached_property
    def report(self) -> LabelReport:
        """Measures of labels and their place in the hierarchy."""
        return label_report([self.labels[row] for row in self._known.tolist()], self.found.traces.take(self._known))

    @cached_property
    def confidence(self) -> NDArray[np.float64]:
        """The probability of every answer."""
        return np.minimum(confidence(self.found.traces), 1.0)

    @property
    def calibration_error(self) -> float:
        """Expected calibration error of the labels."""
        return float(expected_calibration_error(self.confidence, self.right))

    @cached_property
    def level_calibration(self) -> list[float]:
        """Expected calibration error of each level."""
        traces = self.found.traces
        kept = traces.take(self._known)
        counts = np.diff(traces.offsets)[traces.row_offsets[:-1]]
        chosen = np.zeros(len(self), bool)
        chosen[self._known] = True
        log_p = self.found.log_p[np.repeat(chosen, counts)]
        return level_calibration_error([self.labels[row] for row in self._known.tolist()], kept, np.minimum(log_p, 0))

    @cached_property
    def coverage(self) -> CoverageRisk:
        """What answering only the surest rows costs."""
        return coverage_risk(self.confidence, self.right)

    def coverage_at(self, risk: float) -> float:
        """Return the largest share of rows that can be answered with at most so many wrong, on these very rows."""
        within = self.coverage.coverage[self.coverage.risk <= risk]
        return float(within.max(initial=0.0))

    def errors_by_top(self) -> list[ErrorsBelow]:
        """Return the wrong rows by the top node that their first true label is below, the most first."""
        wrong = self._known[~self.right[self._known]]
        if not len(wrong):
            return []
        cases = Cases.of([self.labels[row] for row in wrong.tolist()], self.found.traces.take(wrong))
        agreed = np.concatenate([common.greatest_depth() for common in Common.of_all(cases)])
        first = cases.true_nodes[cases.offsets[:-1]]
        tops = _top_of(self.taxonomy, first)
        counts = np.zeros((len(self.taxonomy), self.taxonomy.height + 1), np.int64)
        np.add.at(counts, (tops, agreed), cases.counts)
        order = np.argsort(-counts.sum(1), kind="stable")
        return [
            ErrorsBelow(self.taxonomy.titles[top], tuple(counts[top].tolist()))
            for top in order[: np.count_nonzero(counts.sum(1))].tolist()
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
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
    """Return a top node that each node is below."""
    distinct, inverse = np.unique(nodes, return_inverse=True)
    above, offsets = taxonomy.ancestor_lists(distinct)
    is_top = np.zeros(len(taxonomy), bool)
    is_top[taxonomy.tops] = True
    owner = np.repeat(np.arange(len(distinct)), np.diff(offsets))
    found = distinct.astype(np.int64)
    found[owner[is_top[above]]] = above[is_top[above]]
    return found[inverse]
