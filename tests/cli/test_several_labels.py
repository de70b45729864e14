"""Rows with several labels in the shell: trained by --label-sep, predicted into one cell or a list."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from hinet.classifier.model_folder import sealed
from hinet.classifier.predicted_sets import SetRule
from hinet.cli.training_rows import label_separator
from tests.cli.conftest import run_inside as run

LINES = ["rye bread,bread", "whole milk,milk", "bread and milk,bread;milk", "toy car,car", "toy train,train"] * 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows and a model of sets."""
    folder = tmp_path_factory.mktemp("sets")
    (folder / "rows.csv").write_text("\n".join(["text,label", *LINES]) + "\n")
    options = ["--label-sep", ";", "--valid-share", "0.3", "--epochs", "3", "--quiet"]
    assert run("train", folder / "rows.csv", *options, "--out", folder / "model") == 0
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def predict(folder: Path, out: str, *options: object) -> Path:
    assert run("predict", folder / "model", folder / "rows.csv", "--out", folder / out, "--quiet", *options) == 0
    return folder / out


def test_labels_are_joined_as_they_were_in_training(folder: Path) -> None:
    rows = rows_of(predict(folder, "out.csv"))
    assert {*rows[2]["label"].split(";")} == {"bread", "milk"}
    assert rows[0]["label"] == "bread"
    assert len(rows[2]["probability"].split(";")) == 2
    other = rows_of(predict(folder, "other.csv", "--label-sep", " & "))
    assert " & " in other[2]["label"]


def test_labels_are_lists_where_there_are_lists(folder: Path) -> None:
    lines = [json.loads(line) for line in predict(folder, "out.jsonl", "--top", 2).read_text().splitlines()]
    assert all(len(line["label"]) == len(line["probability"]) == 2 for line in lines)
    assert {*lines[2]["label"]} == {"bread", "milk"}
    table = pq.read_table(predict(folder, "out.parquet", "--min-probability", 0.0001, "--titles"))
    assert {*table.column("label")[2].as_py()} >= {"bread", "milk"}
    assert table.column("title")[2].as_py() == table.column("label")[2].as_py()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--min-confidence", "0.5"], "--min-confidence is for one label per row; give --min-probability"),
        (["--levels"], "--decoding and --levels are for one label per row"),
        (["--min-probability", "2"], "--min-probability: expected"),
        (["--label-sep", "r", "--top", "9"], "has the separator 'r'; give another --label-sep"),
    ],
)
def test_refusals(folder: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", folder / "model", folder / "rows.csv", "--out", folder / "no.csv", *options) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (folder / "no.csv").exists()


def test_nothing_is_written_before_the_first_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("predict", folder / "model", folder / "rows.csv", "--label-sep", "r", "--top", "9") == 2
    assert capsys.readouterr().out == ""


def test_the_metrics_of_sets_come_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", folder / "model", folder / "rows.csv") == 0
    out = capsys.readouterr().out
    names = [
        "hierarchical F1 of sets",
        "exact match",
        "accuracy of the first label",
        "hierarchical F1 of the first label",
        "hierarchical precision, recall of the first label",
    ]
    assert sorted(names, key=out.index) == names


def test_sets_are_evaluated_and_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", folder / "model", folder / "rows.csv", "--json") == 0
    figures = json.loads(capsys.readouterr().out)["sets"]
    assert figures["set_f1"] > 0.8
    assert figures["au_prc"] > 0.8
    assert run("explain", folder / "model", "bread and milk") == 0
    assert "(not there)" in capsys.readouterr().out
    assert run("export", folder / "model", folder / "onnx") == 2
    assert "cannot be exported" in capsys.readouterr().err


def test_inspect_shows_thresholds_and_metrics_of_sets(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", folder / "model") == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    manifest = json.loads((folder / "model" / "manifest.json").read_text())
    figures, rule = manifest["metrics"]["validation"], manifest["set_rule"]
    shares = {name: f"{100 * figures[name]:.1f}%" for name in figures}
    assert (
        f"validation 9 rows: sets: micro-F1 {shares['micro_f1']}, hierarchical F1 {shares['hierarchical_set_f1']}, "
        f"exact match {shares['exact_match']}; first label: accuracy {shares['accuracy']}, hierarchical F1 "
        f"{shares['hierarchical_f1']}"
    ) in lines
    least = f"sets labels of at least probability {rule['thresholds'][0]:.3g}, learned for micro-F1 on 9 rows"
    assert any(line.startswith(least) for line in lines), lines
    assert run("inspect", folder / "model", "--card") == 0
    card = capsys.readouterr().out
    assert f"sets: micro-F1 {shares['micro_f1']}" in card
    assert least.partition(" ")[2] in card


@pytest.mark.parametrize(
    ("forged", "message"),
    [
        ({"thresholds": []}, "thresholds should be numbers from 0 to 2, got []"),
        ({"thresholds": [0.5, -1]}, "thresholds should be numbers from 0 to 2, got [0.5, -1]"),
        ({"objective": 0}, "a precision should be above 0 and at most 1, got 0"),
        ({"rows": None}, "manifest.set_rule.rows is None, expected a whole number"),
    ],
)
@pytest.mark.parametrize("options", [[], ["--json"], ["--card"]])
def test_a_forged_rule_is_named(
    folder: Path, tmp_path: Path, forged: Any, message: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    copied = shutil.copytree(folder / "model", tmp_path / "model")
    manifest = json.loads((copied / "manifest.json").read_text())
    rule = manifest["set_rule"] | forged
    (copied / "manifest.json").write_text(json.dumps(sealed({**manifest, "set_rule": rule})))
    assert run("inspect", copied, *options) == 2
    assert f"manifest.json: the manifest is damaged ({message}); save the model again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (SetRule(), "labels of at least probability 0.5, not learned; the most probable label always"),
        (
            SetRule((0.25,), False, 0.9, 1),
            "labels of at least probability 0.25, learned for a precision of 0.9 on 1 row",
        ),
        (
            SetRule((0.25,), False, 1, 2),
            "labels of at least probability 0.25, learned for a precision of 1 on 2 rows",
        ),
        (
            SetRule((0.25, 2.0), False, "macro_f1", 40),
            "labels of at least the probability of their level (0.25, none from the top level down), learned for "
            "macro-F1 on 40 rows",
        ),
    ],
)
def test_a_rule_describes_its_answers(rule: SetRule, said: str) -> None:
    assert str(rule) == said


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["Food > Bread; Toys > Car", "Food > Milk", "Toys > Car"], (";", "Food > Bread; Toys > Car")),
        (["Food > Bread | Food > Milk"], ("|", "Food > Bread | Food > Milk")),
        (["Food > Bread, Toys > Car", "Toys > Car", "Food > Milk"], (",", "Food > Bread, Toys > Car")),
        (["Food > Salt; Oil", "Toys > Car; Food > Oil"], (";", "Toys > Car; Food > Oil")),  # the first is one path
        (["Home > Kitchen, Bath > Taps", "Home > Garden"], None),  # a step with a comma
        (["Home > Kitchen; Bath > Taps"], None),
        (["Home > Kitchen | Bath > Taps", "Home > Garden"], None),
        (["Clothing, Shoes > Women, Girls > Dresses", "Girls > Shoes"], None),
        (["Bread; Milk", "Food > Bread; dark", "Food > Bread"], None),
        (["Food > Bread; Food > Rye", *["Food > Milk"] * 9], None),  # too rare
        ([frozenset({"Food > Bread", "Toys > Car"})], None),
        ([], None),
    ],
)
def test_several_paths_in_a_cell_are_detected(labels: list[Any], found: tuple[str, str] | None) -> None:
    assert label_separator(labels) == found


def test_several_paths_in_a_cell_cause_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["rye bread,Food > Bread", "toy car,Toys > Car", "milk and toy car,Food > Milk; Toys > Car"] * 6
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    train = ["train", tmp_path / "rows.csv", "--epochs", "1", "--out", tmp_path / "model"]
    assert run(*train) == 0
    warning = (
        "warning: labels such as 'Food > Milk; Toys > Car' look like several paths in a cell, and are read as one; add"
    )
    assert f"{warning} --label-sep ';' if they are several\n" in capsys.readouterr().err
    assert run(*train, "--label-sep", ";") == 0
    assert "warning" not in capsys.readouterr().err


def test_one_label_can_be_forced(folder: Path) -> None:
    options = ["--label-sep", ";", "--single-label", "--epochs", "2", "--quiet", "--out", folder / "single"]
    assert run("train", folder / "rows.csv", *options) == 0
    assert "sets" not in json.loads((folder / "single" / "manifest.json").read_text())["labels"]


def test_titles_may_have_the_separator_of_labels(folder: Path) -> None:
    nodes = ["node,title", "bread,Rye bread|loaf", "milk,Whole milk", "car,Toy car", "train,Toy train"]
    (folder / "nodes.csv").write_text(
        "\n".join(f"{node},{'' if number else 'parent'}" for number, node in enumerate(nodes))
    )
    options = ["--label-sep", ";", "--epochs", "3", "--quiet", "--taxonomy", folder / "nodes.csv"]
    assert run("train", folder / "rows.csv", *options, "--out", folder / "titled") == 0
    command = ["predict", folder / "titled", folder / "rows.csv", "--titles", "--label-sep", " ", "--top", 2, "--quiet"]
    assert run(*command, "--out", folder / "titles.csv") == 0
    first = rows_of(folder / "titles.csv")[2]
    titles = {"bread": r"Rye bread\|loaf", "milk": "Whole milk"}
    assert {*first["label"].split(" ")} == {"bread", "milk"}
    assert first["title"] == "|".join(titles[label] for label in first["label"].split(" "))
