"""Feedback that counts in the next answer: learned, forgotten when deleted, and there again after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hinet.classifier.saved_model import COLUMNS
from hinet.data.tables import Columns
from hinet.serving import schemas
from hinet.serving.settings import Settings
from tests.classifier.test_neighbours import DAG, EDGES, trained
from tests.serving.conftest import Service, serving


@pytest.fixture(scope="module", params=[EDGES, DAG], ids=["tree", "dag"])
def remembering(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A folder with a model that has a memory."""
    folder = tmp_path_factory.mktemp("remembering") / "shop"
    trained(request.param).save(folder, notes={COLUMNS: Columns(text=("text",), label=("label",)).to_dict()})
    return folder


@pytest.fixture
def service(remembering: Path, tmp_path: Path) -> Iterator[Service]:
    yield from serving(Settings({"shop": remembering}, feedback=tmp_path / "feedback.db"))


def answer(service: Service, text: str) -> str:
    node: str = service.post("/v1/classify", {"texts": [text]})["results"][0]["traces"][0]["node"]
    return node


def correct(service: Service, text: str, node: str) -> int:
    kept = service.post("/v1/feedback", {"text": text, "verdict": "correct", "nodes": [node]})
    assert schemas.FeedbackResponse.model_validate(kept).learned
    return int(kept["id"])


def test_a_correction_counts_in_the_next_answer_until_it_is_deleted(service: Service) -> None:
    before = answer(service, "kite kite")
    assert before != "vehicles"
    number = correct(service, "kite", "vehicles")
    assert answer(service, "kite kite") == "vehicles"
    nearest = service.post("/v1/explain", {"text": "kite"})["nearest"]
    assert (nearest[0]["text"], nearest[0]["node"], nearest[0]["origin"]) == ("kite", "vehicles", "correction")
    assert service.get("/v1/models")["models"][0]["corrections"] == 1
    assert service.client.delete(f"/v1/feedback/{number}").status_code == 204
    assert answer(service, "kite kite") == before


def test_corrections_are_there_after_a_restart(remembering: Path, tmp_path: Path) -> None:
    settings = Settings({"shop": remembering}, feedback=tmp_path / "feedback.db")
    for first in serving(settings):
        correct(first, "kite", "bread")
        correct(first, "kite", "vehicles")
    for second in serving(settings):
        assert answer(second, "kite kite") == "vehicles"


def test_a_model_without_a_memory_keeps_feedback_for_an_update(shop: Path, tmp_path: Path) -> None:
    for service in serving(Settings({"shop": shop}, feedback=tmp_path / "feedback.db")):
        kept = service.post("/v1/feedback", {"text": "goat", "verdict": "correct", "nodes": ["milk"]})
        assert not schemas.FeedbackResponse.model_validate(kept).learned
        assert service.post("/v1/explain", {"text": "dark bread"})["nearest"] == []
