"""What a scikit-learn user does: the library's own checks, cross validation, grid search, clones, pipelines, joblib."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from hinet import HiNetClassifier

EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": "a stochastic fit visits a repeated row twice, a heavy one once",
    "check_sample_weight_equivalence_on_sparse_data": "a stochastic fit visits a repeated row twice, a heavy one once",
}


def expected_failures(estimator: Any) -> dict[str, str]:
    return EXPECTED


@parametrize_with_checks([HiNetClassifier(n_jobs=1, epochs=40)], expected_failed_checks=expected_failures)
def test_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)
