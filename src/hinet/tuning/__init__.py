"""The search for parameters that score better than the defaults, under a time budget."""

from hinet.tuning.search import Tuning, tune, validate_metric

__all__ = ["Tuning", "tune", "validate_metric"]
