"""Metrics of labels, hierarchies and probabilities, as functions and as scorers.

A label metric takes true and predicted labels as Traces, or as node ids with ``taxonomy=``. A prediction is one label
per row (of Traces, the first); a row may have several true labels, any of which is right.
"""

from hinet.metrics.hierarchical import (
    depth_of_agreement,
    hierarchical_f1,
    hierarchical_precision,
    hierarchical_recall,
    lca_f1,
    lca_precision,
    lca_recall,
    tree_distance,
)
from hinet.metrics.labels import accuracy, correct, label_f1, level_accuracy, top_k_accuracy
from hinet.metrics.probability import (
    CoverageRisk,
    brier_score,
    confidence,
    coverage_risk,
    expected_calibration_error,
    level_calibration_error,
    log_loss,
)
from hinet.metrics.scoring import SCORES, LabelReport, Scorer, label_report, scorer

__all__ = [
    "SCORES",
    "CoverageRisk",
    "LabelReport",
    "Scorer",
    "accuracy",
    "brier_score",
    "confidence",
    "correct",
    "coverage_risk",
    "depth_of_agreement",
    "expected_calibration_error",
    "hierarchical_f1",
    "hierarchical_precision",
    "hierarchical_recall",
    "label_f1",
    "label_report",
    "lca_f1",
    "lca_precision",
    "lca_recall",
    "level_accuracy",
    "level_calibration_error",
    "log_loss",
    "scorer",
    "top_k_accuracy",
    "tree_distance",
]
