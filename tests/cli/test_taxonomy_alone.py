"""``hinet train`` without rows: a model from the titles of a taxonomy, and all commands that take it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import run_hinet, run_inside

CODES = """node,parent,title,synonyms,definition
food,,Groceries,,
bread,food,Rye bread,loaf|toast,
milk,food,Cow milk,,white liquid of mammals
toys,,Playthings,games,
rail,toys,Model railways,,
dolls,toys,Dolls,,
"""
ROWS = "text,label\nbrioche with butter,bread\nskimmed milk,milk\nmarionette,dolls\n"


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    """A folder with a taxonomy and a few rows."""
    (tmp_path / "codes.csv").write_text(CODES)
    (tmp_path / "rows.csv").write_text(ROWS)
    return tmp_path


@pytest.mark.parametrize(("options", "used"), [((), True), (("--vectors", "none"), False)], ids=["default", "none"])
def test_installed_vectors_are_used_unless_declined(codes: Path, options: tuple[str, ...], used: bool) -> None:
    done = run_hinet("train", "--taxonomy", "codes.csv", "--out", "model", *options, cwd=codes, new_process=True)
    assert done.returncode == 0, done.stderr
    assert ("static vectors of wordllama" in done.stderr) == used


def test_from_a_taxonomy_to_answers_and_to_the_first_rows(codes: Path) -> None:
    done = run_hinet("train", "--taxonomy", "codes.csv", "--out", "model", cwd=codes)
    assert done.returncode == 0, done.stderr
    assert "no training rows: the model learns from titles, synonyms and definitions of the taxonomy" in done.stderr
    assert "labels are nodes of a tree of 6 nodes in 2 levels" in done.stderr
    shown = run_hinet("inspect", "model", cwd=codes).stdout
    assert "trained on  no rows, only 10 texts of the taxonomy with 4 labels" in shown
    card = run_hinet("inspect", "model", "--card", cwd=codes).stdout
    for wanted in (
        "**It has seen no rows**",
        "| rows | none: it was trained on the taxonomy alone |",
        "| titles, synonyms and definitions, trained on like rows | 10 |",
        "It knows the words of its taxonomy.",
        "not calibrated** on rows, only on titles with words left out and added",
    ):
        assert wanted in card
    assert "training rows" not in card
    predicted = run_hinet("predict", "model", "--format", "text", "-", cwd=codes, stdin="some toast\nrailway\n").stdout
    assert [line.split("\t")[0] for line in predicted.splitlines()[1:]] == ["bread", "rail"]
    assert "bread" in run_hinet("explain", "model", "toast", cwd=codes).stdout
    assert run_hinet("evaluate", "model", "rows.csv", cwd=codes).returncode == 0

    updated = run_hinet("update", "model", "--rows", "rows.csv", "--json", cwd=codes)
    assert updated.returncode == 0, updated.stderr
    assert json.loads(updated.stdout)["warnings"] == []
    predicted = run_hinet("predict", "model", "rows.csv", cwd=codes).stdout
    assert [line.split(",")[0] for line in predicted.splitlines()[1:]] == ["bread", "milk", "dolls"]
    shown = run_hinet("inspect", "model", cwd=codes).stdout
    assert "trained on  3 rows and 10 titles with 4 labels" in shown
    assert "seen no rows" not in run_hinet("inspect", "model", "--card", cwd=codes).stdout


def test_a_changed_taxonomy_needs_no_rows(codes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(codes)
    assert run_inside("train", "--taxonomy", "codes.csv", "--out", "model", "-q") == 0
    Path("more.csv").write_text(CODES + "kites,toys,Kites and gliders,,\n")
    assert run_inside("update", "model", "--taxonomy", "more.csv", "-q") == 0
    predicted = run_hinet("predict", "model", "--format", "text", "-", cwd=codes, stdin="a glider\n").stdout
    assert predicted.splitlines()[1].startswith("kites\t")


def test_inner_labels_validation_rows_and_sets(
    codes: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(codes)
    assert run_inside("train", "--taxonomy", "codes.csv", "--inner-labels", "--out", "inner", "-q") == 0
    lines = "".join(f"{text},{label}\n" for text, label in (("groceries", "food"), ("toast", "bread")) * 60)
    Path("valid.csv").write_text("title,code\n" + lines)
    columns = ["--text", "title", "--label", "code"]
    options = ["--inner-labels", "--valid", "valid.csv", *columns, "--out", "checked"]
    assert run_inside("train", "--taxonomy", "codes.csv", *options) == 0
    shown = capsys.readouterr().err
    assert "120 validation rows" in shown
    assert "calibration error of 120 validation rows" in shown
    manifest = json.loads(Path("checked", "manifest.json").read_text())
    assert manifest["metrics"]["validation"]["accuracy"] == 1
    assert manifest["notes"]["columns"]["text"] == ["title"]
    assert run_inside("train", "--taxonomy", "codes.csv", "--label-sep", ";", "--out", "sets", "-q") == 0
    assert json.loads(Path("sets", "manifest.json").read_text())["set_rule"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "m"], "there is nothing to train on; name files of labelled rows, or give --taxonomy"),
        (["--taxonomy", "bare.csv", "--out", "m"], "the taxonomy has no titles to learn from; give it a column"),
        (
            ["--taxonomy", "codes.csv", "--valid-share", "0.1", "--out", "m"],
            "--valid-share cannot be used without rows",
        ),
        (["--taxonomy", "codes.csv", "--stream", "--out", "m"], "--stream cannot be used without rows"),
        (["--taxonomy", "codes.csv", "--cluster", "local", "--out", "m"], "--cluster cannot be used without rows"),
        (["--taxonomy", "codes.csv", "--number", "price", "--out", "m"], "--vector cannot be used without rows"),
        (["--taxonomy", "codes.csv", "--no-titles", "--out", "m"], "--no-titles cannot be used without rows"),
        (["--taxonomy", "codes.csv", "--risk", "0.1", "--out", "m"], "--risk needs validation rows"),
        (["rows.csv", "--taxonomy", "codes.csv", "--inner-labels", "--out", "m"], "--inner-labels is for training"),
    ],
)
def test_options_that_need_rows_are_refused(codes: Path, arguments: list[str], message: str) -> None:
    (codes / "bare.csv").write_text("node,parent\nfood,\nbread,food\nmilk,food\n")
    done = run_hinet("train", *arguments, cwd=codes)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (codes / "m").exists()
