"""Metrics of labels, hierarchies and probabilities, as functions and as scorers.

A label metric takes true and predicted labels as Traces, or as node ids with ``taxonomy=``. A prediction is one label
per row (of Traces, the first), or None; a row may have several true labels, any of which is right. Metrics of sets take
sets of predicted labels, and ranked ones the scores of nodes or labels in order.
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
from hinet.metrics.labels import accuracy, correct, coverage, label_f1, level_accuracy, top_k_accuracy
from hinet.metrics.probability import (
    CoverageRisk,
    brier_score,
    confidence,
    coverage_risk,
    expected_calibration_error,
    level_calibration_error,
    log_loss,
)
from hinet.metrics.ranking import (
    PrecisionRecall,
    au_prc,
    label_propensities,
    ndcg_at_k,
    pooled_curve,
    precision_at_k,
    propensity_scored_precision,
)
from hinet.metrics.scoring import SCORES, SET_SCORES, LabelReport, Scorer, SetReport, label_report, scorer, set_report
from hinet.metrics.sets import exact_match, set_f1, set_precision, set_recall

__all__ = [
    "SCORES",
    "SET_SCORES",
    "CoverageRisk",
    "LabelReport",
    "PrecisionRecall",
    "Scorer",
    "SetReport",
    "accuracy",
    "au_prc",
    "brier_score",
    "confidence",
    "correct",
    "coverage",
    "coverage_risk",
    "depth_of_agreement",
    "exact_match",
    "expected_calibration_error",
    "hierarchical_f1",
    "hierarchical_precision",
    "hierarchical_recall",
    "label_f1",
    "label_propensities",
    "label_report",
    "lca_f1",
    "lca_precision",
    "lca_recall",
    "level_accuracy",
    "level_calibration_error",
    "log_loss",
    "ndcg_at_k",
    "pooled_curve",
    "precision_at_k",
    "propensity_scored_precision",
    "scorer",
    "set_f1",
    "set_precision",
    "set_recall",
    "set_report",
    "top_k_accuracy",
    "tree_distance",
]
