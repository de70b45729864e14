"""Answers as columns say what the classifier says, for trees, DAGs and every form of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hinet import HiNetClassifier, HiNetError, Taxonomy
from hinet.classifier.answers import PredictionOptions
from hinet.classifier.prediction_table import PredictionTable
from hinet.engine import Found

TEXTS = ["rye bread", "white bread", "whole milk", "skimmed milk", "toy car", "toy train", "car wash", "train ride"] * 3
DAG = Taxonomy.from_edges(
    [
        (None, "food"),
        (None, "play"),
        (None, "travel"),
        ("food", "bread"),
        ("food", "milk"),
        ("play", "model"),
        ("travel", "model"),
        ("travel", "ride"),
    ]
)
IDS = ["bread", "bread", "milk", "milk", "model", "model", "ride", "ride"] * 3


def fitted(labels: list[Any], taxonomy: Taxonomy | None = None) -> HiNetClassifier:
    return HiNetClassifier(taxonomy, width=8, epochs=8, members=1).fit(TEXTS, labels)


def columns(classifier: HiNetClassifier, **asked: Any) -> dict[str, list[Any]]:
    table = PredictionTable(classifier.fitted_, PredictionOptions(**asked))
    found = table.columns(TEXTS)
    assert list(found) == list(table.kinds)
    assert all(len(column) == len(TEXTS) for column in found.values())
    return found


def test_traces_of_a_dag_are_the_paths_that_were_found() -> None:
    classifier = fitted(IDS, DAG)
    found = columns(classifier, top=3, levels=True, titles=True)
    traces = classifier.predict_traces(TEXTS, k=3)
    for row, best in enumerate(traces):
        for rank, trace in enumerate(best):
            mark = f"_{rank + 1}" if rank else ""
            assert found[f"label{mark}"][row] == found[f"title{mark}"][row] == trace.label
            assert found[f"trace{mark}"][row] == list(trace.steps)
            assert found[f"probability{mark}"][row] == pytest.approx(min(trace.probability, 1))
        assert [found["level_1"][row], found["level_2"][row]] == list(best[0].steps)
        assert found["level_2_probability"][row] <= found["level_1_probability"][row] + 1e-9
    assert ["play", "model"] in found["trace"] or ["travel", "model"] in found["trace"]


def test_labels_of_a_dag_are_different_and_summed_over_their_paths() -> None:
    classifier = fitted(IDS, DAG)
    found = columns(classifier, decoding="label", top=4, titles=True)
    probability = classifier.predict_proba(TEXTS)
    classes = classifier.classes_.tolist()
    for row, best in enumerate(classifier.predict_labels(TEXTS, k=4)):
        marks = ["", "_2", "_3", "_4"]
        assert sorted(found[f"label{mark}"][row] for mark in marks) == sorted(classes)
        for mark, label in zip(marks, best, strict=True):
            summed = probability[row, classes.index(label.label)]
            assert found[f"label{mark}"][row] == found[f"title{mark}"][row] == label.label == label.trace.label
            assert found[f"trace{mark}"][row] == list(label.trace.steps)
            assert found[f"probability{mark}"][row] == pytest.approx(min(label.probability, 1))
            assert label.probability == pytest.approx(summed, abs=1e-3)
            assert label.trace.probability <= label.probability + 1e-9


@pytest.mark.parametrize(
    ("labels", "label", "trace"),
    [
        (
            [("Food", "Bread > Rye"), ("Toys",)] * 12,
            {r"Food > Bread \> Rye", "Toys"},  # cut back into the same steps
            [["Food", "Bread > Rye"], ["Toys"]],
        ),
        ([7, 8] * 12, {"7", "8"}, [["7"], ["8"]]),
        (["x", "y"] * 12, {"x", "y"}, [["x"], ["y"]]),
        (np.array([["A", "B"], ["C", ""]] * 12, object), {"A > B", "C"}, [["A", "B"], ["C"]]),
    ],
)
def test_labels_are_text_and_steps_are_names_in_every_form(labels: Any, label: set[str], trace: Any) -> None:
    classifier = HiNetClassifier(width=8, epochs=8, members=1).fit(TEXTS, labels)
    found = columns(classifier)
    assert {*found["label"]} <= label
    assert all(steps in trace for steps in found["trace"])


def test_answers_by_node_are_those_of_predict() -> None:
    classifier = fitted(IDS, DAG)
    for least in (0.3, 0.99):
        found = columns(classifier, min_confidence=least)
        assert found["label"] == classifier.predict(TEXTS, min_confidence=least).tolist()
        for label, trace, probability in zip(*found.values(), strict=True):
            assert (label is None) == (trace is None) == (probability is None)
            assert trace is None or trace[-1] == label
    assert (
        columns(classifier, decoding="label")["label"]
        == classifier.set_params(decoding="label").predict(TEXTS).tolist()
    )


def test_wishes_that_contradict_each_other_are_refused() -> None:
    for wish in (
        {"min_confidence": 0.5, "top": 2},
        {"decoding": "expected_f1", "top": 2},
        {"min_confidence": 0.5, "levels": True},
        {"min_confidence": 0.5, "decoding": "label"},
    ):
        with pytest.raises(HiNetError, match=r"leave|must be 1"):
            PredictionOptions(**wish)  # type: ignore[arg-type]


def test_no_more_answers_are_given_than_there_are() -> None:
    classifier = fitted(IDS, DAG)
    traces = columns(classifier, top=1_000_000, levels=True, titles=True)
    assert [name for name in traces if name.startswith("label")] == ["label", *(f"label_{n}" for n in range(2, 6))]
    labels = columns(classifier, decoding="label", top=1_000_000)
    assert [name for name in labels if name.startswith("label")] == ["label", "label_2", "label_3", "label_4"]
    assert list(columns(fitted(["a", "b"] * 12), top=3))[-1] == "probability_2"
    options = PredictionOptions(top=9, levels=True, titles=True)
    assert PredictionTable(classifier.fitted_, options, max_cells=100).rows_at_a_time == 100 // 24
    with pytest.raises(HiNetError, match=r"top = 1,000,000 makes 15 columns, more than 14; ask for fewer"):
        PredictionTable(classifier.fitted_, PredictionOptions(top=1_000_000), max_columns=14)


def test_answers_of_blocks_join_to_those_of_all_rows() -> None:
    classifier = fitted(IDS, DAG)
    rows = classifier.features_of(TEXTS)
    whole = classifier.fitted_.predictor.traces(rows, 2)
    parts = Found.joined([classifier.fitted_.predictor.traces(rows[start : start + 5], 2) for start in range(0, 24, 5)])
    for name in ("row_offsets", "offsets", "neurons", "log_p"):
        np.testing.assert_array_equal(getattr(parts.traces, name), getattr(whole.traces, name))
    np.testing.assert_array_equal(parts.log_p, whole.log_p)


def test_levels_come_with_the_share_of_words_that_are_known() -> None:
    table = PredictionTable(fitted(IDS, DAG).fitted_, PredictionOptions(levels=True))
    found = table.columns([TEXTS[0], f"{TEXTS[0]} okapi", "okapi", "?"])["known_words"]
    words = len(TEXTS[0].split())
    assert found == [1.0, words / (words + 1), 0.0, None]
    assert "known_words" not in PredictionTable(fitted(IDS, DAG).fitted_, PredictionOptions()).kinds
