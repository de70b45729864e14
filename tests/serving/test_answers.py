"""Answers against what the model itself computes, in trees and DAGs."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetClassifier, Layers, Taxonomy
from hinet.classifier.labels import LabelCodec
from hinet.classifier.saved_model import LoadedModel, RowError
from hinet.compiled import interpreting
from hinet.serving.answers import Answerer, Question, TextSpans
from hinet.serving.models import EXAMPLES, ServedModel
from hinet.serving.nodes import Nodes
from hinet.serving.settings import Settings
from tests.serving.conftest import serving

EDGES = [("food", "bread"), ("food", "milk"), ("drinks", "milk"), ("drinks", "tea"), ("milk", "goat"), ("milk", "cow")]
TEXTS = ["dark loaf", "white loaf", "goat litre", "cow litre", "green leaf", "black leaf", "litre", "leaf loaf"]
STRANGE = ["dark xyzzy leaf", "qux"]  # unknown words
LABELS = ["bread", "bread", "goat", "cow", "tea", "tea", "milk", "food"]


def answerer_of(classifier: HiNetClassifier) -> Answerer:
    return Answerer(LoadedModel(classifier.fitted_, {"calibration": None}), Nodes(classifier.fitted_.codec))


@pytest.fixture(scope="module", params=["tree", "dag", "scaled"])
def classifier(request: pytest.FixtureRequest) -> HiNetClassifier:
    edges = [edge for edge in EDGES if edge != ("drinks", "milk") or request.param == "dag"]
    fitted = HiNetClassifier(Taxonomy.from_edges(edges), random_state=0).fit(TEXTS * 8, LABELS * 8)
    if request.param == "scaled":  # log odds of the best traces, as calibration may do
        fitted.fitted_ = fitted.fitted_.scaled(1.0, 0.6)
    return fitted


def test_the_options_of_a_step_share_the_probability_of_the_node_above(classifier: HiNetClassifier) -> None:
    results = answerer_of(classifier).answer([*TEXTS, *STRANGE], Question(top=2, siblings=50))
    for result in results:
        best, *others = result["traces"]
        above = 1.0
        for step in best["steps"]:
            shared = step["probability"] + sum(each["probability"] for each in step["siblings"]["nodes"])
            assert shared == pytest.approx(above, abs=1e-5)
            assert len(step["siblings"]["nodes"]) == step["siblings"]["total"]
            above = step["probability"]
        assert best["probability"] + sum(each["probability"] for each in best["below"]["nodes"]) == pytest.approx(
            above, abs=1e-5
        )
        assert all(other["below"] is None for other in others)


def test_siblings_are_the_most_probable_ones_in_order(classifier: HiNetClassifier) -> None:
    answerer = answerer_of(classifier)
    everything = answerer.answer(TEXTS, Question(siblings=50))
    for some, whole in zip(answerer.answer(TEXTS, Question(siblings=1)), everything, strict=True):
        for step, full in zip(some["traces"][0]["steps"], whole["traces"][0]["steps"], strict=True):
            probabilities = [each["probability"] for each in full["siblings"]["nodes"]]
            assert probabilities == sorted(probabilities, reverse=True)
            assert step["siblings"]["nodes"] == full["siblings"]["nodes"][:1]


def test_siblings_have_the_probabilities_that_their_own_traces_have(classifier: HiNetClassifier) -> None:
    count = classifier.fitted_.codec.layers.count_traces()
    (result,) = answerer_of(classifier).answer(["goat loaf"], Question(siblings=50))
    down_to: dict[tuple[str, ...], float] = {}
    for trace in classifier.predict_traces(["goat loaf"], count)[0]:
        for length, probability in enumerate(trace.probabilities, 1):
            down_to[trace.steps[:length]] = probability
    path: tuple[str, ...] = ()
    for step in result["traces"][0]["steps"]:
        for each in step["siblings"]["nodes"]:
            if not each["stops"]:
                assert each["probability"] == pytest.approx(down_to[(*path, each["node"])], abs=1e-5)
        path = (*path, step["node"])


def test_rows_of_a_table_are_named_when_they_cannot_be_read() -> None:
    import pandas as pd

    frame = pd.DataFrame({"name": TEXTS * 8, "price": np.arange(64.0)})
    fitted = HiNetClassifier(columns={"text": ["name"], "number": ["price"]}).fit(frame, LABELS * 8)
    answerer = answerer_of(fitted)
    good = [{"name": "dark loaf", "price": 3}, {"name": "goat", "price": None}]
    results = answerer.answer(answerer.model.inputs_of(good), Question(unknown_words=True))
    assert [len(result["labels"]) for result in results] == [1, 1]
    for bad in ({"name": "x"}, {"name": "x", "price": "much"}, {"name": ["x"], "price": 1}):
        with pytest.raises(RowError) as raised:
            answerer.model.inputs_of([*good, bad])
        assert raised.value.row == 2


@given(st.text(), st.text(alphabet="ab ﬁÄ-"))
def test_spans_of_words_are_within_the_text(text: str, more: str) -> None:
    text = f"{text} {more}"
    spans = TextSpans(text)
    for word in text.split():
        for start, end in spans.of_term(unicodedata.normalize("NFKC", word).lower()):
            assert 0 <= start < end <= len(text)
    normal = unicodedata.normalize("NFKC", text).lower()
    for feature in {normal[start : start + 3] for start in range(len(normal) - 2)}:
        for start, end in spans.of_feature(f"[{feature}]"):
            assert 0 <= start <= end <= len(text)


@pytest.mark.parametrize(
    ("feature", "found"),
    [
        ("rye", ["Rye", "RYE"]),
        ("rye bread", ["Rye  bread"]),
        ("bread (meaning)", ["bread"]),
        ("[ry]", ["Ry", "RY"]),
        ("[ye ]", ["ye", "YE"]),
        ("[ﬁne]", []),
        ("fine", ["ﬁne"]),
        ("price", []),
    ],
)
def test_features_are_found_in_the_text_as_it_was_typed(feature: str, found: list[str]) -> None:
    text = "Rye  bread, ﬁne RYE"
    assert [text[start:end] for start, end in TextSpans(text).of_feature(feature)] == found


def brute_force(taxonomy: Taxonomy, query: str) -> set[str]:
    words = query.casefold().split()
    texts: list[tuple[str, str]] = [*zip(taxonomy.ids, taxonomy.ids, strict=True)]
    texts += zip(taxonomy.ids, taxonomy.titles, strict=True)
    synonyms: Any = taxonomy.attributes.get("synonyms", ())
    texts += [(node, each) for node, cell in zip(taxonomy.ids, synonyms, strict=False) for each in cell.split("|")]
    return {node for node, text in texts if words and all(word in text.casefold() for word in words)}


@given(st.data())
def test_a_search_finds_what_has_all_words(data: st.DataObject) -> None:
    names = st.text(alphabet="abß C", min_size=1).filter(str.strip)
    ids = data.draw(st.lists(names.map(str.strip), min_size=2, max_size=8, unique=True))
    attributes = {
        "title": {node: data.draw(names) for node in ids},
        "synonyms": {node: "|".join(data.draw(st.lists(names, max_size=2))) for node in ids[1:]},
    }
    taxonomy = Taxonomy.from_edges([(None, node) for node in ids], attributes=attributes)
    nodes = Nodes(LabelCodec("ids", Layers.of(taxonomy)))
    query = data.draw(st.text(alphabet="abßs C", max_size=4))
    found = nodes.search(query, 0, 100)
    assert {match["node"] for match in found["matches"]} == brute_force(taxonomy, query)
    pages = [nodes.search(query, offset, 2)["matches"] for offset in range(0, found["total"], 2)]
    assert [match for page in pages for match in page] == found["matches"]


@pytest.mark.parametrize("kinds", [("text", "number", "category", "vector"), ("number", "category")])
def test_models_of_several_columns_are_served(kinds: tuple[str, ...], tmp_path: Path) -> None:
    import pandas as pd

    columns = {
        "text": TEXTS * 8,
        "number": np.arange(64.0),
        "category": ["a", "b"] * 32,
        "vector": [[float(number % 3), 1.0] for number in range(64)],
    }
    frame = pd.DataFrame({f"the_{kind}": columns[kind] for kind in kinds})
    named = {kind: [f"the_{kind}"] for kind in kinds}
    HiNetClassifier(columns=named, random_state=0).fit(frame, LABELS * 8).save(tmp_path / "model")
    settings = Settings({"model": tmp_path / "model"}, feedback=tmp_path / "feedback.db", review=5)
    row = {f"the_{kind}": frame[f"the_{kind}"][0] for kind in kinds}
    for service in serving(settings):
        told = service.get("/v1/models")["models"][0]
        assert (told["kind"], told["columns"], told["examples"]) == ("row", list(row), [])
        answered = service.post("/v1/classify", {"rows": [row, row], "unknown_words": True, "siblings": 2})
        assert answered["results"][0] == answered["results"][1]
        node = answered["results"][0]["labels"][0]["node"]
        assert service.post("/v1/explain", {"row": row})["trace"]["node"] == node
        service.post("/v1/feedback", {"row": row, "verdict": "accept", "nodes": [node]})
        assert service.problem(422, "/v1/classify", {"text": "a"})["errors"][0]["field"] == "text"
        lines = "\n".join([json.dumps(row)] * 3).encode()
        answer = service.client.post("/v1/classify/file?format=jsonl", content=lines)
        assert (answer.status_code, answer.headers["hinet-rows"]) == (200, "3"), answer.text


def test_several_labels_are_those_that_the_model_predicts() -> None:
    texts = [f"{first} {second}" for first in TEXTS[:6] for second in TEXTS[:6]]
    labels = [{first, second} for first in LABELS[:6] for second in LABELS[:6]]
    edges = [edge for edge in EDGES if edge != ("drinks", "milk")]
    several = HiNetClassifier(Taxonomy.from_edges(edges), random_state=0).fit(texts * 4, labels * 4)
    answers = answerer_of(several).answer(texts, Question(top=3, siblings=5))
    assert [{label["label"] for label in answer["labels"]} for answer in answers] == list(several.predict(texts))
    assert any(len(answer["labels"]) == 2 for answer in answers)
    assert all(len(answer["traces"]) == 3 for answer in answers)
    for answer in answerer_of(several).answer(texts, Question(min_confidence=0.7)):
        assert all(label["probability"] >= 0.7 for label in answer["labels"])


def test_examples_come_from_all_branches() -> None:
    screws = [f"screw {number}" for number in range(40)]
    edges = [("screws", screw) for screw in screws] + [("food", "milk"), ("food", "bread"), ("tools", "hammer")]
    labels = [child for _, child in edges]
    fitted = HiNetClassifier(Taxonomy.from_edges(edges), epochs=1, n_jobs=1).fit(labels * 2, labels * 2).fitted_
    model = ServedModel("shop", Path("shop"), LoadedModel(fitted, {"calibration": None}), Nodes(fitted.codec))
    assert len(model.examples) == EXAMPLES
    assert {"milk", "bread", "hammer"} <= {*model.examples}


def test_warming_up_runs_all_kernels_of_answers(classifier: HiNetClassifier) -> None:
    fitted = classifier.fitted_
    model = ServedModel("shop", Path("shop"), LoadedModel(fitted, {"calibration": None}), Nodes(fitted.codec))

    def kernels(answer: Callable[[], Any]) -> set[str]:
        names = set()
        with interpreting(lambda kernel, arguments: names.add(kernel.__name__)):
            answer()
        return names

    ahead, (best,) = kernels(model.warm_up), model.answerer.answer(["dark loaf"], Question())
    assert "open_shares" in ahead
    for question in (Question(top=2), Question(siblings=3), Question(exclude=(best["traces"][0]["node"],))):
        assert kernels(partial(model.answerer.answer, ["dark loaf"], question)) <= ahead
