"""Use with scikit-learn: the library's own checks, cross validation, grid search, clones, pipelines, joblib."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import parametrize_with_checks

from hinet import HiNetClassifier
from tests.classifier.data import small, taxonomy, texts

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "a stochastic fit visits a repeated row twice, a heavy one once",
    "check_sample_weight_equivalence_on_sparse_data": "a stochastic fit visits a repeated row twice, a heavy one once",
}


def expected_failures(estimator: Any) -> dict[str, str]:
    return EXPECTED


@parametrize_with_checks([HiNetClassifier(n_jobs=1, epochs=40)], expected_failed_checks=expected_failures)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("tree", [False, True])
def test_log_loss_is_scored_without_a_warning(tree: bool) -> None:
    found, labels = texts(rows=40)
    classifier = small(taxonomy=taxonomy() if tree else None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = cross_val_score(classifier, found, labels, scoring="neg_log_loss", cv=2, error_score="raise")
    assert np.isfinite(scores).all()
    sums = classifier.fit(found, labels).predict_proba(found).sum(1)
    np.testing.assert_allclose(sums, 1, rtol=1e-12)
