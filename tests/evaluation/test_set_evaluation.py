from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from hinet import Taxonomy
from hinet.evaluation.evaluation import SetEvaluation
from hinet.evaluation.plots import plot_set_evaluation
from hinet.metrics import au_prc, label_propensities, ndcg_at_k, precision_at_k, propensity_scored_precision, set_report

ANIMALS = Taxonomy.from_edges([(None, "pet"), (None, "farm"), ("pet", "cat"), ("pet", "dog"), ("farm", "cow")])
TRUTH = [{"cat", "cow"}, {"dog"}, set(), {"pet"}]
PREDICTED = [{"cat"}, {"dog", "cow"}, {"dog"}, set()]
RANKED = [["cat", "dog"], ["cow", "dog"], ["dog"], []]
SCORES = np.array([[0.9, 0.3, 0.8, 0.2, 0.1], [0.7, 0.4, 0.1, 0.6, 0.4], [0.5, 0, 0, 0.5, 0], [0.2, 0.1, 0, 0, 0]])


def test_figures_of_sets_are_those_of_the_metrics() -> None:
    rare = label_propensities(TRUTH, taxonomy=ANIMALS)
    figures = SetEvaluation(ANIMALS, TRUTH, PREDICTED, RANKED, SCORES, rare).as_dict()
    report = asdict(set_report(TRUTH, PREDICTED, taxonomy=ANIMALS))
    assert {name: figures[name] for name in report} == report
    known = [0, 1, 3]
    truth, ranked = [TRUTH[row] for row in known], [RANKED[row] for row in known]
    for k in (1, 3, 5):
        assert figures["precision_at"][str(k)] == precision_at_k(truth, ranked, k, taxonomy=ANIMALS)
        assert figures["ndcg_at"][str(k)] == ndcg_at_k(truth, ranked, k, taxonomy=ANIMALS)
        scored = propensity_scored_precision(truth, ranked, k, rare, taxonomy=ANIMALS)
        assert figures["propensity_scored_precision_at"][str(k)] == scored
    assert figures["au_prc"] == pytest.approx(au_prc(TRUTH, SCORES, taxonomy=ANIMALS))
    assert (figures["true_labels_per_row"], figures["predicted_labels_per_row"]) == (1.0, 1.0)
    # level 1: pet 3, farm 1 are true, pet 3, farm 1 are predicted, 2 of them right; level 2: 1 + 1 of 3 and 4
    assert figures["f1_by_level"] == pytest.approx([4 / 8, 4 / 7])


def test_sets_alone_can_be_evaluated_and_plotted(tmp_path: Path) -> None:
    sets = SetEvaluation(ANIMALS, TRUTH, PREDICTED)
    assert not {"precision_at", "au_prc"} & sets.as_dict().keys()
    plot_set_evaluation(sets, tmp_path / "sets.png", "title")
    plot_set_evaluation(SetEvaluation(ANIMALS, TRUTH, PREDICTED, RANKED, SCORES), tmp_path / "all.png", "title")
    assert (tmp_path / "sets.png").stat().st_size < (tmp_path / "all.png").stat().st_size
