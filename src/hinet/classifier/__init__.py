"""The scikit-learn face: one estimator that composes the rooms below and adds no mathematics."""

from hinet.classifier.answers import PredictedTraces, Trace
from hinet.classifier.estimator import HiNetClassifier, load

__all__ = ["HiNetClassifier", "PredictedTraces", "Trace", "load"]
