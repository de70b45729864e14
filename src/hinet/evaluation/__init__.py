"""How good it is: hierarchical metrics, and flat against hierarchical on the same footing."""

from hinet.evaluation.comparison import ComparisonData, Outcome, compare, summarise_outcomes
from hinet.evaluation.metrics import accuracy, hierarchical_f1, level_accuracy

__all__ = [
    "ComparisonData",
    "Outcome",
    "accuracy",
    "compare",
    "hierarchical_f1",
    "level_accuracy",
    "summarise_outcomes",
]
