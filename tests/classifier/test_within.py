"""Answers within a branch and without some labels, in every form of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hinet import HiNetClassifier, HiNetError, Taxonomy
from tests.classifier import test_several_labels as sets
from tests.classifier.data import PATHS, small, taxonomy, texts


@pytest.fixture(scope="module")
def classifier() -> HiNetClassifier:
    return small(taxonomy=taxonomy()).fit(*texts())


def test_answers_are_the_best_of_the_branch_with_conditional_probabilities(classifier: HiNetClassifier) -> None:
    rows, _ = texts(30, seed=1)
    every = classifier.predict_proba(rows)
    food = np.isin(classifier.classes_, ["bread", "milk"])
    conditional = every[:, food] / every[:, food].sum(1, keepdims=True)
    assert classifier.predict(rows, within="food").tolist() == classifier.classes_[food][conditional.argmax(1)].tolist()
    for traces, p in zip(classifier.predict_traces(rows, 5, within="food"), conditional, strict=True):
        assert [trace.probability for trace in traces] == pytest.approx(sorted(p, reverse=True), abs=1e-5)
        assert all(trace.probabilities[0] == pytest.approx(1) for trace in traces)
    assert set(classifier.predict(rows, within="food", min_confidence=0.999)) <= {"bread", "milk", "food"}
    two = np.array(["bread", "toy"])
    assert set(classifier.predict(rows, within=two, min_confidence=0.9)) <= {"bread", "toy", None}


def test_excluded_labels_are_never_answered(classifier: HiNetClassifier) -> None:
    rows, labels = texts(30, seed=2)
    without = classifier.predict(rows, exclude=["bread", "toy"])
    assert set(without) == {"milk"}
    kept = [label != "bread" for label in labels]
    assert (classifier.predict(rows, exclude="bread")[kept] == classifier.predict(rows)[kept]).mean() > 0.9
    labels_without = classifier.predict_labels(rows, 3, within=["food"], exclude=["milk"])
    assert {one.label for row in labels_without for one in row} == {"bread"}


def test_branches_are_named_as_labels_are() -> None:
    rows, labels = texts()
    paths = small().fit(rows, [PATHS[label] for label in labels])
    assert set(paths.predict(rows, within=("food",))) == {("food", "bread"), ("food", "milk")}
    styled = small().fit(rows, [" > ".join(PATHS[label]) for label in labels])
    assert set(styled.predict(rows, within="food")) == {"food > bread", "food > milk"}
    assert set(styled.predict(rows, exclude=["food > bread", "toy"])) == {"food > milk"}


@pytest.mark.parametrize("edges", [sets.TREE, sets.DAG], ids=["tree", "dag"])
def test_sets_keep_their_probabilities(edges: list[tuple[str, str]]) -> None:
    fitted = sets.quick(Taxonomy.from_edges(edges)).fit(sets.texts_of(sets.SETS), sets.SETS)
    rows = sets.texts_of(sets.SETS[:7])
    for whole, part in zip(fitted.predict(rows), fitted.predict(rows, within="food"), strict=True):
        assert part <= {"bread", "milk", "food"}
        assert whole & {"bread", "milk"} <= part
    every = [{one.label: one.probability for one in row} for row in fitted.predict_traces(rows, 9)]
    for row, traces in enumerate(fitted.predict_traces(rows, 9, within="toys")):
        assert {one.label: one.probability for one in traces} == pytest.approx(
            {label: p for label, p in every[row].items() if label in (*fitted.taxonomy_.children("toys"), "toys")}
        )
    assert not any("bread" in part for part in fitted.predict(rows, exclude=["bread"]))


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        ({"within": "fod"}, "'fod' is not in the taxonomy"),
        ({"within": "bread", "exclude": "food"}, "no label is left by `within` and `exclude`"),
        ({"within": []}, "no label is left by `within` and `exclude`"),
    ],
)
def test_what_cannot_be_allowed_is_an_error(classifier: HiNetClassifier, allowed: dict[str, Any], message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        classifier.predict(["rye"], **allowed)
