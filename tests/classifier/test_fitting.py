"""Training of a classifier."""

from __future__ import annotations

import numpy as np

from tests.classifier.data import numbers, small


def test_tiny_weights_train_the_same_model() -> None:
    rows, labels = numbers()
    plain, tiny = (small().fit(rows, labels, sample_weight=weight) for weight in (None, np.full(len(labels), 1e-300)))
    np.testing.assert_array_equal(tiny.predict_proba(rows), plain.predict_proba(rows))
