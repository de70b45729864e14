"""The scikit-learn interface: one estimator that composes the packages below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.classifier.answers import PredictedLabel as PredictedLabel
    from hinet.classifier.answers import PredictedLabels as PredictedLabels
    from hinet.classifier.answers import PredictedTraces as PredictedTraces
    from hinet.classifier.answers import Trace as Trace
    from hinet.classifier.estimator import HiNetClassifier as HiNetClassifier
    from hinet.classifier.estimator import TextVectorizer as TextVectorizer
    from hinet.classifier.estimator import load as load
    from hinet.classifier.labels import paths_as_text as paths_as_text
else:  # a saved model predicts without the estimator, which needs scikit-learn
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "answers": "PredictedLabel PredictedLabels PredictedTraces Trace",
            "estimator": "HiNetClassifier TextVectorizer load",
            "labels": "paths_as_text",
        },
    )
