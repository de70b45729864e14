from __future__ import annotations

import warnings
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from hinet import HiNetError, Taxonomy, metrics
from hinet.metrics import exact_match, set_f1, set_precision, set_recall, set_report
from tests.metrics.oracle import ancestors
from tests.strategies import taxonomies

Sets = tuple[Taxonomy, list[set[str]], list[set[str]]]
ANIMALS = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])


@st.composite
def predicted_sets(draw: st.DrawFn) -> Sets:
    """A small tree or DAG, and the true and predicted sets of some rows, which may be empty."""
    taxonomy = draw(taxonomies())
    labels = st.sets(st.sampled_from(taxonomy.ids), max_size=4)
    rows = draw(st.lists(st.tuples(labels, labels), min_size=1, max_size=6))
    return taxonomy, [true for true, _ in rows], [predicted for _, predicted in rows]


def share(part: int, whole: int, other: int) -> float:
    return part / whole if whole else float(other == 0)


def f1(true: set[object], predicted: set[object]) -> float:
    return share(2 * len(true & predicted), len(true) + len(predicted), 0)


def closed(taxonomy: Taxonomy, sets: list[set[str]]) -> list[set[str]]:
    return [set().union(*(ancestors(taxonomy, label) for label in labels)) for labels in sets]


def pairs(sets: list[set[str]]) -> set[object]:
    return {(row, label) for row, labels in enumerate(sets) for label in labels}


@given(predicted_sets())
def test_sets_are_compared_as_python_compares_them(case: Sets) -> None:
    taxonomy, truth, predicted = case
    for ancestors_too in (False, True):
        true, found = (closed(taxonomy, s) if ancestors_too else s for s in (truth, predicted))
        options = {"taxonomy": taxonomy, "ancestors": ancestors_too}
        common = len(pairs(true) & pairs(found))
        sizes = len(pairs(true)), len(pairs(found))
        assert set_precision(truth, predicted, **options) == pytest.approx(share(common, sizes[1], sizes[0]))
        assert set_recall(truth, predicted, **options) == pytest.approx(share(common, sizes[0], sizes[1]))
        assert set_f1(truth, predicted, **options) == pytest.approx(f1(pairs(true), pairs(found)))
        by_row = [f1(t, p) for t, p in zip(true, found, strict=True)]
        assert set_f1(truth, predicted, average="samples", **options) == pytest.approx(np.mean(by_row))
        labels = set().union(*true, *found)
        rows_of = [[{row for row, s in enumerate(sets) if label in s} for sets in (true, found)] for label in labels]
        by_label = [f1(*rows) for rows in rows_of]
        assert set_f1(truth, predicted, average="macro", **options) == pytest.approx(np.mean(by_label or [1.0]))
    assert exact_match(truth, predicted, taxonomy=taxonomy) == pytest.approx(
        np.mean([t == p for t, p in zip(truth, predicted, strict=True)])
    )


@given(predicted_sets())
def test_sets_are_scored_as_scikit_learn_scores_them(case: Sets) -> None:
    taxonomy, truth, predicted = case
    labels = sorted(set().union(*truth, *predicted))
    if len(labels) < 2:  # scikit-learn needs at least two columns
        return
    true, found = (np.array([[label in s for label in labels] for s in sets]) for sets in (truth, predicted))
    for average in ("micro", "macro", "samples"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = f1_score(true, found, average=average, zero_division=1)
        assert set_f1(truth, predicted, average=average, taxonomy=taxonomy) == pytest.approx(expected)
    assert exact_match(truth, predicted, taxonomy=taxonomy) == pytest.approx(accuracy_score(true, found))


@given(predicted_sets())
def test_the_report_and_the_scorers_of_sets_agree(case: Sets) -> None:
    taxonomy, truth, predicted = case
    report = asdict(set_report(truth, predicted, taxonomy=taxonomy))
    scores = {name: score(truth, predicted, taxonomy=taxonomy) for name, score in metrics.SET_SCORES.items()}
    assert report == pytest.approx(scores)


def test_no_answer_is_an_empty_set() -> None:
    truth = [{"cat"}, {"dog"}]
    assert set_report(truth, [{"cat"}, None], taxonomy=ANIMALS) == set_report(truth, [{"cat"}, ()], taxonomy=ANIMALS)
    assert set_recall(truth, [{"cat"}, None], taxonomy=ANIMALS) == 0.5


def test_an_average_of_sets_has_a_name() -> None:
    with pytest.raises(HiNetError, match="average: expected 'micro', 'macro' or 'samples', got 'weighted'"):
        set_f1([{"cat"}], [{"cat"}], average="weighted", taxonomy=ANIMALS)  # type: ignore[arg-type]


def test_a_scorer_of_sets_asks_the_estimator_for_sets() -> None:
    class Fitted:
        taxonomy_ = ANIMALS

        def predict(self, X: list[str]) -> list[set[str]]:  # noqa: N803
            return [{"cat", "cow"} for _ in X]

    assert metrics.scorer("set_f1")(Fitted(), ["a", "b"], [{"cat", "cow"}, {"cat"}]) == pytest.approx(6 / 7)
