"""``hinet feedback``: listing, deleting and exporting, and rows that cannot be exported."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from hinet.data.tables import Columns, FailFast, RowQuery, TableOptions, labelled_blocks
from hinet.serving.store import Entry, Store
from tests.cli.conftest import run_inside


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def keep(*rows: tuple[str, str | list[str]], model: str = "shop") -> None:
    """Keep feedback as a service of a model of texts does."""
    with closing(Store.open(Path("feedback.db"))) as store:
        for text, label in rows:
            nodes = [label] if isinstance(label, str) else label
            row = {"title": text, "category": label}
            store.add(Entry(0, "2026-11-17T09:30:00.000Z", model, "1", "correct", row, nodes, []), text)


def exported(out: str, *options: str) -> Sequence[str]:
    assert run_inside("feedback", "export", "feedback.db", "--out", out, *options) == 0
    return Path(out).read_text().splitlines()


def test_rows_that_a_format_cannot_hold_do_not_stop_an_export(capsys: pytest.CaptureFixture[str]) -> None:
    keep(("dark loaf", "rye"), ("pair", ["rye", "milk"]), ("cow", "milk"))
    assert exported("rows.csv") == ["title,category", "dark loaf,rye", "cow,milk"]
    assert capsys.readouterr().err.splitlines() == [
        "2 rows",
        "1 row was not exported; correct them at the source, or delete them with 'hinet feedback delete':",
        "  2: has several labels ('rye', 'milk'), which csv cannot hold; write .jsonl",
    ]
    assert [json.loads(line)["category"] for line in exported("rows.jsonl")] == ["rye", ["rye", "milk"], "milk"]
    assert capsys.readouterr().err == "3 rows\n"


def test_exported_rows_are_read_as_training_rows() -> None:
    keep(("dark loaf", "rye"), ("pair", ["rye", "milk"]), ("cow", "milk"))
    query = RowQuery(Columns(("title",), ("category",)))
    for out, texts in (("rows.csv", ["dark loaf", "cow"]), ("rows.jsonl", ["dark loaf", "pair", "cow"])):
        exported(out)
        (block,) = labelled_blocks([out], query, TableOptions(), FailFast())
        assert block.texts == texts


def test_an_export_without_a_row_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    keep(("pair", ["rye", "milk"]))
    assert run_inside("feedback", "export", "feedback.db", "--out", "rows.csv") == 2
    error = capsys.readouterr().err
    assert "1: has several labels" in error
    assert "feedback.db: there is no feedback to export" in error
    assert not Path("rows.csv").exists()


def test_since_last_exports_only_what_is_new(capsys: pytest.CaptureFixture[str]) -> None:
    keep(("a", "rye"), ("pair", ["rye", "milk"]))
    assert exported("rows.csv", "--since-last") == ["title,category", "a,rye"]
    assert run_inside("feedback", "export", "feedback.db", "--out", "none.csv", "--since-last") == 2
    assert "there is no feedback to export since the last export" in capsys.readouterr().err
    assert not Path("none.csv").exists()
    keep(("b", "milk"), ("a", "white"))
    assert exported("rows.csv", "--since-last") == ["title,category", "b,milk", "a,white"]
    assert len(exported("rows.jsonl", "--since-last")) == 1  # the pair, which was reported until now
    assert len(exported("rows.jsonl")) == 3


def test_an_export_that_fails_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    keep(("a", "rye"))
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", broken)
        assert run_inside("feedback", "export", "feedback.db", "--out", "rows.csv", "--since-last") == 2
    assert not Path("rows.csv").exists()
    assert len(exported("rows.csv", "--since-last")) == 2


def broken(file: int) -> None:
    raise OSError(28, "No space left on device")


def test_characters_that_a_terminal_hides_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    keep(("\u202eabc\u200b\x9b31m é", "rye"))
    assert run_inside("feedback", "list", "feedback.db") == 0
    assert capsys.readouterr().out.endswith('{"title": "\\u202eabc\\u200b\\x9b31m é", "category": "rye"}\n')


def test_feedback_is_listed_and_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    keep(("a", "rye"), ("b\tc", "milk"))
    keep(("d", "tv"), model="other")
    exported("rows.csv", "--model", "shop", "--quiet")
    assert run_inside("feedback", "list", "feedback.db", "--model", "shop") == 0
    assert capsys.readouterr().out.splitlines() == [
        'id 1  2026-11-17T09:30:00.000Z  shop  correct  exported  {"title": "a", "category": "rye"}',
        'id 2  2026-11-17T09:30:00.000Z  shop  correct  exported  {"title": "b\\tc", "category": "milk"}',
    ]
    assert run_inside("feedback", "delete", "feedback.db", "1", "9") == 2
    assert "there is no feedback 9; nothing was deleted" in capsys.readouterr().err
    assert run_inside("feedback", "delete", "feedback.db", "1", "3") == 0
    assert capsys.readouterr().err == "2 rows deleted\n"
    assert run_inside("feedback", "list", "feedback.db", "--json") == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["id"], entry["nodes"], entry["exported"] is None) == (2, ["milk"], False)
