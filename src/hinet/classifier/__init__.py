"""The scikit-learn interface: one estimator that composes the packages below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.classifier.estimator import HiNetClassifier, load
    from hinet.classifier.label_rows import paths_as_text
    from hinet.classifier.predictions import PredictedLabel, PredictedLabels, PredictedTraces, Trace
    from hinet.classifier.vectorizer import TextVectorizer

# A saved model answers without the estimator, which needs scikit-learn.
_HOMES = {
    "HiNetClassifier": "hinet.classifier.estimator",
    "PredictedLabel": "hinet.classifier.predictions",
    "PredictedLabels": "hinet.classifier.predictions",
    "PredictedTraces": "hinet.classifier.predictions",
    "TextVectorizer": "hinet.classifier.vectorizer",
    "Trace": "hinet.classifier.predictions",
    "load": "hinet.classifier.estimator",
    "paths_as_text": "hinet.classifier.label_rows",
}

__all__ = [
    "HiNetClassifier",
    "PredictedLabel",
    "PredictedLabels",
    "PredictedTraces",
    "TextVectorizer",
    "Trace",
    "load",
    "paths_as_text",
]

if not TYPE_CHECKING:  # else a checker would take any name for one of these
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
