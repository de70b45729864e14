from __future__ import annotations

import pickle
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import GridSearchCV, cross_val_score

import hinet.metrics as metrics
from hinet import HiNetError, Taxonomy
from tests.metrics.oracle import Rows, judged

PETS = Taxonomy.from_edges([("r", "pet"), ("r", "cow"), ("pet", "cat"), ("pet", "dog")])


class Always(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Predicts one label whatever the row."""

    def __init__(self, label: str = "pet") -> None:
        self.label = label

    def fit(self, rows: Any, labels: Any) -> Always:
        self.taxonomy_ = PETS
        self.classes_ = np.unique(labels)
        return self

    def predict(self, rows: Any) -> list[str]:
        return [self.label] * len(rows)


@given(judged())
def test_the_report_and_the_scorers_agree_with_the_metrics(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    report = asdict(metrics.label_report(truth, predicted, taxonomy=taxonomy))
    assert list(report.pop("level_accuracy")) == metrics.level_accuracy(truth, predicted, taxonomy=taxonomy)
    assert report.pop("coverage") == 1
    report["neg_tree_distance"] = -report.pop("tree_distance")
    assert report == {name: score(truth, predicted, taxonomy=taxonomy) for name, score in metrics.SCORES.items()}


def test_scorers_select_models() -> None:
    rows, labels = np.zeros((12, 1)), np.array(["cat", "cow"] * 6)
    scores = cross_val_score(Always(), rows, labels, scoring=metrics.scorer("hierarchical_f1"), cv=3)
    assert scores == pytest.approx([0.4, 0.4, 0.4])
    scoring = {name: metrics.scorer(name) for name in metrics.SCORES}
    search = GridSearchCV(Always(), {"label": ["dog", "cat"]}, scoring=scoring, refit="neg_tree_distance", cv=2)
    assert search.fit(rows, labels).best_params_ == {"label": "cat"}
    assert search.cv_results_["mean_test_neg_tree_distance"] == pytest.approx([-2.5, -1.5])


def test_a_scorer_travels_to_other_processes() -> None:
    scorer = pickle.loads(pickle.dumps(metrics.scorer("lca_f1")))
    assert scorer == metrics.scorer("lca_f1")
    assert scorer(Always("cat").fit(None, ["cat"]), [0], ["cat"]) == 1.0


def test_scorers_say_what_they_need() -> None:
    with pytest.raises(HiNetError, match=r"unknown scorer 'hierarchical_F1'; did you mean 'hierarchical_f1'\?"):
        metrics.scorer("hierarchical_F1")
    with pytest.raises(HiNetError, match="unknown scorer 'x'; choose one of accuracy, "):
        metrics.scorer("x")
    with pytest.raises(HiNetError, match="needs a fitted estimator with a taxonomy_, got Always"):
        metrics.scorer("accuracy")(Always(), [0], ["cat"])
