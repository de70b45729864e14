"""Labels in the shell: what tables write comes back, whatever form it has."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hinet import load
from tests.cli.conftest import run_inside as hinet

TEXTS = ["rye bread", "white bread", "whole milk", "skimmed milk"] * 5
SMALL = ["--epochs", "4", "--width", "8", "-q"]


def write(name: str, *columns: tuple[str, list[str]]) -> None:
    with Path(name).open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["text", *(column for column, _ in columns)])
        writer.writerows(zip(TEXTS, *(values * 5 for _, values in columns), strict=True))


def predicted(model: str, *asked: str) -> list[dict[str, str]]:
    assert hinet("predict", model, "rows.csv", "--text", "text", "--out", "out.csv", "-q", *asked) == 0
    with Path("out.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("several", [False, True])
def test_labels_that_the_model_does_not_know_are_wrong_at_their_full_depth(
    several: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tops = ["Cheap; ", ""] if several else ["", ""]  # so that some rows have two labels
    write("rows.csv", ("label", [top + path for path in ("Food > Bread", "Food > Milk") for top in tops]))
    separator = ["--label-sep", ";"] if several else []
    assert hinet("train", "rows.csv", *separator, "--out", "model", *SMALL) == 0
    known, unknown = "white bread,Food > Bread", "white bread,Food > Bread > White > Toast"
    Path("test.csv").write_text("\n".join(["text,label", known, unknown, "white bread,Art", ""]))
    capsys.readouterr()
    assert hinet("evaluate", "model", "test.csv", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["hierarchical_precision"] == pytest.approx((2 + 2 + 0) / (2 + 2 + 2))
    assert told["hierarchical_recall"] == pytest.approx((2 + 2 + 0) / (2 + 4 + 1))
    assert told["level_accuracy"] == pytest.approx([2 / 3, 1, 0, 0])
    if several:
        assert told["sets"]["hierarchical_set_recall"] == pytest.approx((2 + 2 + 0) / (2 + 4 + 1))
        assert told["sets"]["set_recall"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("form", ["text", "columns"])
def test_a_shared_top_is_written(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    leaves = ["Bread", "Bread", "Milk", ""]
    paths = [f"Food > {leaf}" if leaf else "Food" for leaf in leaves]
    names = ["--label", "label"] if form == "text" else ["--label", "top", "--label", "leaf"]
    write("rows.csv", ("label", paths), ("top", ["Food"] * 4), ("leaf", leaves))
    assert hinet("train", "rows.csv", *names, "--valid", "rows.csv", "--out", "model", *SMALL) == 0
    rows = predicted("model", "--levels")
    assert [row["label"] for row in rows] == [row["trace"] for row in rows] == paths * 5
    assert [(row["level_1"], row["level_2"]) for row in rows] == [("Food", leaf) for leaf in leaves] * 5
    assert {row["label"] for row in predicted("model", "--min-confidence", "1")} == {"Food"}
    capsys.readouterr()
    assert hinet("evaluate", "model", "rows.csv", "--json") == 0
    judged = json.loads(capsys.readouterr().out)
    assert judged["accuracy"] == judged["hierarchical_f1"] == 1
    label = ["--label", "Food > Bread"] if form == "text" else []
    assert hinet("explain", "model", "rye bread", *label, "--json") == 0
    assert json.loads(capsys.readouterr().out)["trace"]["label"] == "Food > Bread"
    assert load("model").predict(TEXTS[3:4])[0] == ("Food" if form == "text" else ("Food",))


def test_paths_come_back_as_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written = [r"Size \> 3 > Bread", r"Size \> 3 > Bread", "Food>Milk", "Food>Milk"]
    write("rows.csv", ("label", written))
    train = ["train", "rows.csv", "--valid-share", "0.2", "--out", "a", *SMALL[:-1]]
    assert hinet(*train) == 0
    assert " with 2 labels" in capsys.readouterr().err
    rows = predicted("a", "--keep", "text")
    assert [row["label"] for row in rows] == written * 5
    assert hinet("evaluate", "a", "out.csv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] == 1


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        (["--label", "top", "--label", "leaf"], r"Size \> 3 > Bread", r"a\>b"),
        (["--label", "dashed", "--path-sep", " - "], r"T\-Shirts \- old - Red", "T-Shirts - Blue"),
    ],
)
def test_steps_that_hold_the_mark_are_escaped(
    options: list[str], first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        "rows.csv",
        ("top", ["Size > 3", "Size > 3", "a>b", "a>b"]),
        ("leaf", ["Bread", "Bread", "", ""]),
        ("dashed", [r"T-Shirts \- old - Red"] * 2 + ["T-Shirts - Blue"] * 2),
    )
    assert hinet("train", "rows.csv", *options, "--out", "a", *SMALL) == 0
    assert [row["label"] for row in predicted("a")] == [first, first, second, second] * 5


def test_what_only_looks_like_a_path_is_a_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write("rows.csv", ("income", ["<=50K", "<=50K", ">50K", ">50K"]), ("both", [">50K", ">50K", "a > b", "c"]))
    train = ["train", "rows.csv", "--text", "text", *SMALL]
    assert hinet(*train, "--label", "income", "--out", "a") == 0
    assert {row["label"] for row in predicted("a")} == {"<=50K", ">50K"}
    assert hinet(*train, "--label", "both", "--out", "b") == 2
    message = "a step of the path '>50K' is empty; name every step, or set --path-sep to none if labels are not paths"
    assert message in capsys.readouterr().err
    assert hinet(*train, "--label", "both", "--path-sep", "none", "--out", "b") == 0
    assert [row["label"] for row in predicted("b")] == [">50K", ">50K", "a > b", "c"] * 5
    assert load("b").taxonomy_.height == 1
