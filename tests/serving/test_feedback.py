"""Feedback and the review queue: what is kept, what is shown, and what becomes of it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetClassifier, HiNetError
from hinet.classifier.saved_model import LoadedModel
from hinet.data.tables import Columns
from hinet.errors import FileError
from hinet.serving import schemas
from hinet.serving.answers import training_row
from hinet.serving.settings import Settings
from hinet.serving.store import Doubt, Entry, Store
from tests.serving.conftest import Service, serving


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(tmp_path / "feedback.db")
    yield opened
    opened.close()


@pytest.fixture
def fresh(shop: Path, tmp_path: Path) -> Iterator[Service]:
    """A service with empty queues."""
    yield from serving(Settings({"shop": shop}, feedback=tmp_path / "feedback.db", review=20))


def verdict(text: str, label: str, model: str = "shop", review: int | None = None) -> tuple[Entry, str, int | None]:
    row = {"title": text, "category": label}
    return Entry(0, "2026-11-17T00:00:00.000Z", model, "1", "correct", row, [label], []), text, review


def doubt(text: str, unsure: float, split: float = 0.0) -> Doubt:
    return Doubt("2026-11-17T00:00:00.000Z", "shop", text, unsure, split)


def test_feedback_is_kept_for_training(fresh: Service, tmp_path: Path) -> None:
    kept = fresh.post("/v1/feedback", {"text": "dark rye", "verdict": "accept", "nodes": ["rye"], "predicted": ["rye"]})
    schemas.FeedbackResponse.model_validate(kept)
    fresh.post("/v1/feedback", {"text": "goat", "verdict": "correct", "nodes": ["milk"], "predicted": ["rye"]})
    fresh.post("/v1/feedback", {"row": {"title": "dark rye"}, "verdict": "correct", "nodes": ["white"]})
    other = Store.open(tmp_path / "feedback.db")
    assert [kept.row for kept in other.training_rows("shop")] == [
        {"title": "goat", "category": "milk"}, {"title": "dark rye", "category": "white"},
    ]  # fmt: skip
    other.close()


def test_the_last_verdict_on_a_text_counts(store: Store) -> None:
    for text, label in (("a", "rye"), ("b", "milk"), ("a", "white")):
        store.add(*verdict(text, label))
    store.add(*verdict("a", "tv", model="other"))
    assert [kept.row["category"] for kept in store.training_rows("shop")] == ["milk", "white"]
    assert [tuple(count) for count in store.counts()] == [("other", "correct", 1), ("shop", "correct", 3)]


def test_only_new_verdicts_are_exported_again(store: Store) -> None:
    for text, label in (("a", "rye"), ("b", "milk")):
        store.add(*verdict(text, label))
    assert [kept.id for kept in store.training_rows("shop", only_new=True)] == [1, 2]
    store.mark_exported([1, 2])
    assert not store.training_rows("shop", only_new=True)
    store.add(*verdict("a", "white"))
    assert [kept.id for kept in store.training_rows("shop", only_new=True)] == [3]
    assert [kept.id for kept in store.training_rows("shop")] == [2, 3]


def test_an_earlier_verdict_counts_again_once_a_later_one_is_deleted(store: Store) -> None:
    for label in ("rye", "milk"):
        store.add(*verdict("a", label))
        store.mark_exported([kept.id for kept in store.training_rows("shop")])
    store.delete([2])
    assert [kept.row["category"] for kept in store.training_rows("shop", only_new=True)] == ["rye"]


def test_ids_that_are_not_there_delete_nothing(store: Store) -> None:
    store.add(*verdict("a", "rye"))
    assert store.delete([1, 7, 8]) == [7, 8]
    assert [entry.id for entry in store.entries()] == [1]
    assert store.delete([1]) == []
    assert not store.entries()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"text": "a", "verdict": "accept"}, "nodes"),
        ({"text": "a", "verdict": "accept", "nodes": ["rye", "none"]}, "nodes[1]"),
        ({"text": "a", "verdict": "maybe", "nodes": ["rye"]}, "verdict"),
        ({"verdict": "accept", "nodes": ["rye"]}, "text"),
        ({"text": "a", "verdict": "skip"}, "verdict"),
        ({"row": {"name": "a"}, "verdict": "accept", "nodes": ["rye"]}, "row"),
        ({"text": "a", "verdict": "accept", "nodes": ["rye"], "review": 0}, "review"),
        ({"text": "a", "verdict": "correct", "nodes": ["rye", "milk"]}, "nodes"),
        ({"text": "", "verdict": "accept", "nodes": ["rye"]}, "text"),
        ({"text": " \n", "verdict": "accept", "nodes": ["rye"]}, "text"),
        ({"text": "\u200b\ufeff \u2060", "verdict": "accept", "nodes": ["rye"]}, "text"),
        ({"text": "a\0b", "verdict": "accept", "nodes": ["rye"]}, "text"),
        ({"row": {"title": " "}, "verdict": "accept", "nodes": ["rye"]}, "row"),
        ({"row": {"title": None}, "verdict": "accept", "nodes": ["rye"]}, "row"),
    ],
)
def test_wrong_feedback_is_refused(service: Service, body: dict[str, object], field: str) -> None:
    assert service.problem(422, "/v1/feedback", body)["errors"][0]["field"] == field


def test_a_refusal_names_the_value_and_the_remedy(service: Service) -> None:
    body = {"text": "a", "verdict": "correct", "nodes": ["rye", "milk"]}
    assert service.problem(422, "/v1/feedback", body)["detail"] == (
        "nodes: the model predicts one label per text; got 'rye', 'milk'; send one node"
    )
    detail = service.problem(422, "/v1/feedback", {"text": " ", "verdict": "accept", "nodes": ["rye"]})["detail"]
    assert detail == "text: the text is blank: ' '; send the text that was classified"


def test_feedback_is_listed_and_deleted(fresh: Service) -> None:
    ids = [fresh.post("/v1/feedback", {"text": t, "verdict": "accept", "nodes": ["rye"]})["id"] for t in "abc"]
    page = schemas.FeedbackPage.model_validate(fresh.get("/v1/feedback", limit=2))
    assert (page.total, [item.id for item in page.items]) == (3, ids[:0:-1])
    assert page.items[0].row == {"title": "c", "category": "rye"}
    answer = fresh.client.delete(f"/v1/feedback/{ids[1]}")
    assert (answer.status_code, answer.content) == (204, b"")
    gone = fresh.client.delete(f"/v1/feedback/{ids[1]}")
    assert (gone.status_code, gone.headers["content-type"]) == (404, "application/problem+json")
    assert [item["id"] for item in fresh.get("/v1/feedback")["items"]] == [ids[2], ids[0]]


def test_doubtful_rows_come_up_for_review(fresh: Service) -> None:
    texts = ["screen", "dark loaf crust", "bread", "item3", "bread"]
    results = fresh.post("/v1/classify", {"texts": texts})["results"]
    unsure = {text: 1 - result["labels"][0]["probability"] for text, result in zip(texts, results, strict=True)}
    expected = sorted((text for text in unsure if unsure[text] >= 0.1), key=lambda text: -unsure[text])
    page = fresh.get("/v1/review")
    schemas.ReviewPage.model_validate(page)
    assert [item["text"] for item in page["items"]] == expected
    assert page["items"][0]["result"]["traces"][0]["steps"][0]["siblings"]["total"] == 1
    first = page["items"][0]["id"]
    fresh.post("/v1/feedback", {"verdict": "correct", "nodes": ["rye"], "review": first})
    second = fresh.get("/v1/review", order="split")["items"][0]["id"]
    fresh.post("/v1/feedback", {"verdict": "skip", "review": second})
    fresh.post("/v1/classify", {"texts": texts})  # what was looked at does not come back
    assert {item["id"] for item in fresh.get("/v1/review")["items"]}.isdisjoint({first, second})
    fresh.problem(404, "/v1/feedback", {"verdict": "skip", "review": first})
    other = {
        "text": "another",
        "verdict": "accept",
        "nodes": ["rye"],
        "review": fresh.get("/v1/review")["items"][0]["id"],
    }
    assert fresh.problem(422, "/v1/feedback", other)["errors"][0]["field"] == "review"


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 1), st.floats(0, 1)), max_size=30), st.integers(1, 5)
)
def test_the_queue_keeps_the_most_doubtful_rows(offers: list[tuple[str, float, float]], most: int) -> None:
    store = Store.open(Path(":memory:"))
    kept: dict[str, tuple[float, float]] = {}
    for text, unsure, split in offers:
        store.enqueue([doubt(text, unsure, split)], most)
        kept.setdefault(text, (unsure, split))
        while len(kept) > most:  # the later one of equal rows is removed
            worst = min(max(pair) for pair in kept.values())
            kept.pop([key for key, pair in kept.items() if max(pair) == worst][-1])
    for order, column in (("unsure", 0), ("split", 1)):
        items, total = store.queue("shop", order, 0, 100)  # type: ignore[arg-type]
        assert (total, {item.input for item in items}) == (len(kept), {*kept})
        assert [item[3 + column] for item in items] == sorted((pair[column] for pair in kept.values()), reverse=True)
    store.close()


def test_reviewed_rows_no_longer_hold_their_text(store: Store, tmp_path: Path) -> None:
    store.enqueue([doubt("secret words", 0.5)], 10)
    store.skip("shop", 1)
    assert store.queued("shop", 1) is None
    rows = sqlite3.connect(tmp_path / "feedback.db").execute("SELECT input FROM review").fetchall()
    assert rows == [(None,)]


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but a text that is long enough to be looked at " * 20)
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE a (b)")
    for name in ("text", "other"):
        with pytest.raises(FileError):
            Store.open(tmp_path / name)
    with pytest.raises(FileError, match="no such file"):
        Store.open(tmp_path / "missing", create=False)
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("columns", "labels", "nodes", "expected"),
    [
        (Columns(("t",), ("l",)), ["A > x", "A > y", "B"], ["A > y"], {"t": "words", "l": "A > y"}),
        (Columns(("t", "u"), ("l",)), ["A > x", "B"], ["B"], {"t": "words", "u": "", "l": "B"}),
        (Columns(("t",), ("l",), label_sep="|"), [{"p", "q"}, {"q"}], ["p", "q"], {"t": "words", "l": "p|q"}),
        (Columns(("t",), ("l",)), [{"p", "q"}, {"q"}], ["p", "q"], {"t": "words", "l": ["p", "q"]}),
        (Columns(("t",), ("top", "leaf")), [("A", "x"), ("B", "")], ["A"], {"t": "words", "top": "A", "leaf": ""}),
    ],
)
def test_labels_are_written_as_in_training(
    columns: Columns, labels: list[object], nodes: list[str], expected: dict[str, object]
) -> None:
    texts = [f"{word} thing" for word in ("one", "two", "three", "four", "five", "six")]
    fitted = HiNetClassifier().fit(texts, (labels * 6)[:6]).fitted_
    model = LoadedModel(fitted, {"notes": {"columns": columns.to_dict()}, "calibration": None})
    positions = [fitted.codec.taxonomy.position(node) for node in nodes]
    assert training_row(model, "words", positions) == expected
    assert json.loads(json.dumps(expected)) == expected
    if fitted.codec.sets is None:
        with pytest.raises(HiNetError, match="one node"):
            training_row(model, "words", positions * 2)


def test_a_label_that_has_the_separator_is_refused() -> None:
    columns = Columns(("t",), ("l",), label_sep="|")
    fitted = HiNetClassifier().fit(["one", "two", "three", "four"], [{"p|q", "r"}, {"r"}] * 2).fitted_
    model = LoadedModel(fitted, {"notes": {"columns": columns.to_dict()}, "calibration": None})
    with pytest.raises(HiNetError, match=r"'p\|q' has the separator '\|'"):
        training_row(model, "words", [fitted.codec.taxonomy.position("p|q")])
