"""The scikit-learn interface: one estimator that composes the packages below."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hinet.lazy import lazy_exports

if TYPE_CHECKING:
    from hinet.classifier.estimator import HiNetClassifier as HiNetClassifier
    from hinet.classifier.estimator import load as load
    from hinet.classifier.label_rows import paths_as_text as paths_as_text
    from hinet.classifier.predictions import PredictedLabel as PredictedLabel
    from hinet.classifier.predictions import PredictedLabels as PredictedLabels
    from hinet.classifier.predictions import PredictedTraces as PredictedTraces
    from hinet.classifier.predictions import Trace as Trace
    from hinet.classifier.vectorizer import TextVectorizer as TextVectorizer
else:  # a saved model predicts without the estimator, which needs scikit-learn
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "estimator": "HiNetClassifier load",
            "label_rows": "paths_as_text",
            "predictions": "PredictedLabel PredictedLabels PredictedTraces Trace",
            "vectorizer": "TextVectorizer",
        },
    )
