"""Flat against hierarchical on the same footing."""

from hinet.evaluation.comparison import ComparisonData, Outcome, compare, summarise_outcomes

__all__ = ["ComparisonData", "Outcome", "compare", "summarise_outcomes"]
