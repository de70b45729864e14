"""Flat against hierarchical on the same footing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.evaluation.comparison import ComparisonData, Outcome, compare, summarise_outcomes

# A saved model tells its promise without what compares models.
_HOMES = dict.fromkeys(("ComparisonData", "Outcome", "compare", "summarise_outcomes"), "hinet.evaluation.comparison")

__all__ = ["ComparisonData", "Outcome", "compare", "summarise_outcomes"]
__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
