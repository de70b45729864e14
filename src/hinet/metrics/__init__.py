"""Metrics of labels, hierarchies and probabilities, as functions and as scikit-learn scorers.

A label metric takes true and predicted labels as Traces, or as node ids with ``taxonomy=``. A prediction is one label
per row (of Traces, the first), or None. A row may have several true labels, any of which is correct. Metrics of sets
take sets of predicted labels; ranking metrics take labels in order, or scores of nodes.
"""

from hinet.metrics.labels import accuracy as accuracy
from hinet.metrics.labels import correct as correct
from hinet.metrics.labels import coverage as coverage
from hinet.metrics.labels import depth_of_agreement as depth_of_agreement
from hinet.metrics.labels import hierarchical_f1 as hierarchical_f1
from hinet.metrics.labels import hierarchical_precision as hierarchical_precision
from hinet.metrics.labels import hierarchical_recall as hierarchical_recall
from hinet.metrics.labels import label_f1 as label_f1
from hinet.metrics.labels import lca_f1 as lca_f1
from hinet.metrics.labels import lca_precision as lca_precision
from hinet.metrics.labels import lca_recall as lca_recall
from hinet.metrics.labels import level_accuracy as level_accuracy
from hinet.metrics.labels import top_k_accuracy as top_k_accuracy
from hinet.metrics.labels import tree_distance as tree_distance
from hinet.metrics.probability import CoverageRisk as CoverageRisk
from hinet.metrics.probability import brier_score as brier_score
from hinet.metrics.probability import confidence as confidence
from hinet.metrics.probability import coverage_risk as coverage_risk
from hinet.metrics.probability import expected_calibration_error as expected_calibration_error
from hinet.metrics.probability import level_calibration_error as level_calibration_error
from hinet.metrics.probability import log_loss as log_loss
from hinet.metrics.scoring import SCORES as SCORES
from hinet.metrics.scoring import SET_SCORES as SET_SCORES
from hinet.metrics.scoring import LabelReport as LabelReport
from hinet.metrics.scoring import Scorer as Scorer
from hinet.metrics.scoring import SetReport as SetReport
from hinet.metrics.scoring import label_report as label_report
from hinet.metrics.scoring import scorer as scorer
from hinet.metrics.scoring import set_report as set_report
from hinet.metrics.sets import PrecisionRecall as PrecisionRecall
from hinet.metrics.sets import au_prc as au_prc
from hinet.metrics.sets import exact_match as exact_match
from hinet.metrics.sets import label_propensities as label_propensities
from hinet.metrics.sets import ndcg_at_k as ndcg_at_k
from hinet.metrics.sets import pooled_curve as pooled_curve
from hinet.metrics.sets import precision_at_k as precision_at_k
from hinet.metrics.sets import propensity_scored_precision as propensity_scored_precision
from hinet.metrics.sets import set_f1 as set_f1
from hinet.metrics.sets import set_precision as set_precision
from hinet.metrics.sets import set_recall as set_recall
