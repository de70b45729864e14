"""Every endpoint with models of every kind: sets of labels, DAGs, tables of several columns, sentence encoders."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hinet import HiNetClassifier, Taxonomy, load
from hinet.classifier.saved_model import COLUMNS
from hinet.data.tables import Columns
from hinet.serving import schemas
from hinet.serving.settings import Settings
from tests.encoders.conftest import make_encoder
from tests.serving.conftest import Service, serving

EDGES = [("food", "bread"), ("food", "milk"), ("drinks", "tea"), ("goods", "toys")]
DAG = [*EDGES, ("drinks", "milk")]
TEXTS = ["rye bread", "white bread", "whole milk", "skimmed milk", "toy car", "toy train", "green tea", "black tea"]
LABELS = ["bread", "bread", "milk", "milk", "toys", "toys", "tea", "tea"]
PAIRS = [(first, second) for first in range(0, 8, 2) for second in range(1, 8, 2)]
PAIR_TEXTS = [f"{TEXTS[first]} {TEXTS[second]}" for first, second in PAIRS]
PAIR_LABELS = [{LABELS[first], LABELS[second]} for first, second in PAIRS]
KINDS = ("sets", "plain_sets", "sets_of_dag", "dag", "frame", "frame_of_sets", "encoder")
SETS = {"sets", "plain_sets", "sets_of_dag", "frame_of_sets"}


def train(kind: str, folder: Path) -> None:
    """Save a model of a kind."""
    edges = DAG if "dag" in kind else EDGES
    taxonomy = None if kind == "plain_sets" else Taxonomy.from_edges(edges)
    texts, labels = (
        (PAIR_TEXTS + TEXTS, [*PAIR_LABELS, *({label} for label in LABELS)]) if kind in SETS else (TEXTS, LABELS)
    )
    inputs: Any = list(texts) * 4
    settings: dict[str, Any] = {}
    notes = {COLUMNS: Columns(text=("text",), label=("label",), label_sep=";" if kind in SETS else None).to_dict()}
    if kind.startswith("frame"):
        import pandas as pd

        inputs = pd.DataFrame({"title": inputs, "price": [float(len(text)) for text in inputs]})
        settings, notes = {"columns": {"text": ["title"], "number": ["price"]}}, {}
    if kind == "encoder":
        settings = {"encoder": make_encoder(folder.parent / "tiny")}
    classifier = HiNetClassifier(taxonomy, random_state=0, n_jobs=1, epochs=3, **settings)
    classifier.fit(inputs, list(labels) * 4).save(folder, notes=notes)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A small model of each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for kind in KINDS:
            train(kind, folder / kind)
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(scope="module")
def service(folders: dict[str, Path]) -> Iterator[Service]:
    store = next(iter(folders.values())).parent / "feedback.db"
    yield from serving(Settings(folders, feedback=store, review=20))


def given(kind: str, text: str) -> dict[str, Any]:
    """Return a text as the model reads it."""
    return {"row": {"title": text, "price": float(len(text))}} if kind.startswith("frame") else {"text": text}


def asked(kind: str, *texts: str) -> dict[str, Any]:
    """Return some texts as a request to classify them."""
    return {"rows": [given(kind, text)["row"] for text in texts]} if kind.startswith("frame") else {"texts": [*texts]}


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_of_the_classifier(kind: str, service: Service, folders: dict[str, Path]) -> None:
    options = {"top": 3, "siblings": 3, "unknown_words": True}
    answered = service.post("/v1/classify", {"model": kind, **asked(kind, *PAIR_TEXTS), **options})
    schemas.ClassifyResponse.model_validate(answered)
    inputs: Any = PAIR_TEXTS
    if kind.startswith("frame"):
        import pandas as pd

        inputs = pd.DataFrame({"title": PAIR_TEXTS, "price": [float(len(text)) for text in PAIR_TEXTS]})
    expected = [{*labels} if kind in SETS else {labels} for labels in load(folders[kind]).predict(inputs)]
    assert [{label["label"] for label in result["labels"]} for result in answered["results"]] == expected
    sure = service.post("/v1/classify", {"model": kind, **asked(kind, *PAIR_TEXTS), "min_confidence": 0.4})
    assert all(label["probability"] >= 0.4 for result in sure["results"] for label in result["labels"])


@pytest.mark.parametrize("kind", KINDS)
def test_every_trace_is_explained(kind: str, service: Service) -> None:
    best = service.post("/v1/explain", {"model": kind, **given(kind, PAIR_TEXTS[1])})
    schemas.ExplainResponse.model_validate(best)
    assert best["steps"]
    for node in ("bread", "milk", "tea", "toys"):
        explained = service.post("/v1/explain", {"model": kind, **given(kind, PAIR_TEXTS[1]), "node": node})
        schemas.ExplainResponse.model_validate(explained)
        assert explained["trace"]["node"] == node
        for step in explained["steps"]:
            assert (step["rival"] is None) == (kind in SETS)
            pushed = sum(reason["push"] for reason in step["reasons"]) + step["others"] + step["rest"]
            assert pushed == pytest.approx(step["difference"], abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_taxonomies_and_models_are_shown(kind: str, service: Service) -> None:
    shown = schemas.ModelDetails.model_validate(service.get(f"/v1/models/{kind}"))
    assert (shown.several_labels, shown.is_tree) == (kind in SETS, "dag" not in kind)
    top = schemas.NodePage.model_validate(service.get("/v1/taxonomy", model=kind))
    assert len(top.children) == (4 if kind == "plain_sets" else 3)
    milk = schemas.NodePage.model_validate(service.get("/v1/taxonomy", model=kind, node="milk"))
    assert milk.node is not None
    assert milk.node.is_label
    found = schemas.MatchPage.model_validate(service.get("/v1/taxonomy/search", model=kind, q="mil"))
    assert [match.node for match in found.matches] == ["milk"]


@pytest.mark.parametrize("kind", KINDS)
def test_feedback_is_kept_and_doubts_are_reviewed(kind: str, service: Service) -> None:
    text = "an odd thing"
    service.post("/v1/classify", {"model": kind, **asked(kind, text)})
    queue = schemas.ReviewPage.model_validate(service.get("/v1/review", model=kind))
    items = [item for item in queue.items if (item.row or {"title": item.text})["title"] == text]
    nodes = ["bread", "milk"] if kind in SETS and not kind.startswith("frame") else ["bread"]
    verdict = {"model": kind, "verdict": "correct", "nodes": nodes}
    done = {"review": items[0].id} if items else given(kind, text)
    schemas.FeedbackResponse.model_validate(service.post("/v1/feedback", {**verdict, **done}))
    left = service.get("/v1/review", model=kind)["items"]
    assert text not in [item["text"] or item["row"]["title"] for item in left]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["csv", "jsonl"])
@pytest.mark.parametrize("least", [None, 0.9])
def test_tables_are_classified_as_texts_are(kind: str, format: str, least: float | None, service: Service) -> None:
    rows = [given(kind, text).get("row") or {"text": text} for text in PAIR_TEXTS]
    options = {"model": kind, "format": format, "titles": True, "keep_all": True, "prefix": "p_"}
    confidence = {} if least is None else {"min_confidence": least}
    content = table_text(rows, format).encode()
    answer = service.client.post("/v1/classify/file", params={**options, **confidence}, content=content)
    assert (answer.status_code, answer.headers["hinet-rows"]) == (200, str(len(rows))), answer.text
    if format == "csv":
        separator = "|" if kind == "frame_of_sets" else ";"  # the separator of training, if known
        cells = [row["p_label"] for row in csv.DictReader(io.StringIO(answer.text))]
        found = [{*cell.split(separator)} - {""} for cell in cells]
    else:
        lines = [json.loads(line)["p_label"] for line in answer.text.splitlines()]
        found = [{*(line if isinstance(line, list) else [line])} - {None} for line in lines]
    results = service.post("/v1/classify", {"model": kind, **asked(kind, *PAIR_TEXTS), **confidence})["results"]
    assert found == [{label["label"] for label in result["labels"]} for result in results]
    assert kind not in SETS or any(len(labels) > 1 for labels in found) or least


def table_text(rows: list[dict[str, Any]], format: str) -> str:
    """Return rows as CSV or JSON lines."""
    if format == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in rows)
    lines = io.StringIO()
    writer = csv.DictWriter(lines, [*rows[0]])
    writer.writeheader()
    writer.writerows(rows)
    return lines.getvalue()
