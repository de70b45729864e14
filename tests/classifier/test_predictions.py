"""Predictions and explanations as HTML for notebooks, and as pandas frames."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hinet import HiNetClassifier, HiNetError, Taxonomy
from hinet.classifier.answers import MAX_HTML_ROWS
from hinet.data.text import TextSettings
from tests.classifier.data import small

EVIL = "<script>alert('&')</script>"
PATHS = [("A", EVIL), ("A", "b"), ("c", "<b>d")]
TEXTS = [f"{EVIL} rye", f"{EVIL} oat", "milk rye", "milk oat", "car rye", "car oat"]


@pytest.fixture(scope="module")
def classifier() -> HiNetClassifier:
    settings = TextSettings(word_ngrams=None, char_ngrams=(4, 8), min_df=1)  # so that features have the hostile text
    return small(text=settings).fit(TEXTS, [path for path in PATHS for _ in range(2)])


def shown(answer: Any) -> str:
    html: str = answer._repr_html_()
    assert {tag.lower() for tag in re.findall(r"</?([a-zA-Z]+)", html)} <= {
        "b", "p", "small", "span", "table", "tbody", "td", "th", "thead", "tr"
    }  # fmt: skip
    return html


def test_hostile_text_is_escaped_wherever_it_is_shown(classifier: HiNetClassifier) -> None:
    for answer in (
        classifier.predict_traces(TEXTS, k=3),
        classifier.predict_labels(TEXTS, k=3),
        classifier.predict_traces(TEXTS)[0][0],
        classifier.explain(f"{EVIL} <i>unseen</i>", PATHS[0]),
        classifier.explain("milk <i>unseen</i>", PATHS[0]),
    ):
        html = shown(answer)
        assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;" in html
        assert "color:" not in html.replace("background:", "")  # text has the colour of the page
    assert any(
        "<script" in reason.feature for step in classifier.explain(EVIL, most=999).steps for reason in step.reasons
    )


def test_a_trace_is_shown_with_falling_probabilities(classifier: HiNetClassifier) -> None:
    trace = classifier.predict_traces(["milk"])[0][0]
    numbers = [float(number) for number in re.findall(r"</span>(\d\.\d+)", shown(trace))]
    assert numbers == [round(p, 3) for p in (*trace.probabilities, trace.probability)]
    assert numbers == sorted(numbers, reverse=True)


def test_only_the_first_rows_are_shown(classifier: HiNetClassifier) -> None:
    html = shown(classifier.predict_traces(["milk"] * (MAX_HTML_ROWS + 3)))
    assert html.count("<tr>") == 1 + MAX_HTML_ROWS
    assert html.endswith("<p>and 3 more rows</p>")
    assert "<tbody></tbody>" in shown(classifier.predict_labels([]))


def test_predictions_become_frames(classifier: HiNetClassifier) -> None:
    for answers in (classifier.predict_traces(TEXTS, k=2), classifier.predict_labels(TEXTS, k=2)):
        frame = answers.to_frame()
        assert list(frame) == ["row", "rank", "label", "probability", "steps", "step_probabilities"]
        assert frame["row"].tolist() == np.repeat(np.arange(6), 2).tolist()
        assert frame["rank"].tolist() == [1, 2] * 6
        assert frame["label"].tolist() == [answer.label for row in answers for answer in row]
        assert frame["probability"].tolist() == [answer.probability for row in answers for answer in row]
    best = frame[frame["rank"] == 1]
    assert best["label"].tolist() == classifier.predict(TEXTS).tolist()
    assert [steps[-1] for steps in best["steps"]] == [ids[0] for ids in classifier.node_ids(best["label"].tolist())]
    assert classifier.predict_traces([]).to_frame().empty


def test_labels_of_a_dag_have_the_probability_of_all_their_traces() -> None:
    edges = [(None, "toys"), (None, "travel"), ("toys", "train"), ("travel", "train"), ("toys", "car")]
    dag = Taxonomy.from_edges(edges)
    labels = ["train", "train", "car", "car"]
    fitted = small(taxonomy=dag).fit(["toy train", "train ride", "toy car", "red car"], labels)
    answers = fitted.predict_labels(["old train"], k=2)
    assert answers.to_frame()["probability"].tolist() == [answer.probability for answer in answers[0]]
    assert answers.to_frame()["probability"].sum() == pytest.approx(1)


def test_the_pushes_of_an_explanation_add_up_in_its_frame(classifier: HiNetClassifier) -> None:
    explanation = classifier.explain("milk oat", most=3)
    frame = explanation.to_frame()
    assert list(frame) == ["step", "chosen", "rival", "feature", "push"]
    assert frame.groupby("step")["push"].sum().tolist() == pytest.approx([s.difference for s in explanation.steps])
    assert frame.groupby("step").size().tolist() == [len(step.reasons) + 2 for step in explanation.steps]
    assert isinstance(frame, pd.DataFrame)


def test_frames_need_pandas_and_html_does_not(classifier: HiNetClassifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.extras.find_spec", lambda name: None)
    answers = classifier.predict_traces(["milk"])
    for answer in (answers, classifier.predict_labels(["milk"]), classifier.explain("milk")):
        assert shown(answer)
        with pytest.raises(HiNetError, match=r"to_frame\(\) needs pandas; install it with: pip install pandas"):
            answer.to_frame()
