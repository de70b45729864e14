"""Evaluation of models: metrics on labelled rows, risk thresholds, comparison of networks, plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.evaluation.comparison import ComparisonData, Outcome, compare, summarise_outcomes

# Reading the risk bound of a saved model does not import what compares models.
_MODULES = dict.fromkeys(("ComparisonData", "Outcome", "compare", "summarise_outcomes"), "hinet.evaluation.comparison")

__all__ = ["ComparisonData", "Outcome", "compare", "summarise_outcomes"]
__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
