"""ARFF files in the commands that read rows or hierarchies."""

from __future__ import annotations

import json
import lzma
import os
import random
from pathlib import Path

import pytest

from hinet import Taxonomy, load
from hinet.data.tables import TableOptions, declared_columns
from tests.cli.test_columns import main_error, main_ok

HEADER = """@relation genes
@attribute length numeric
@attribute weight numeric
@attribute strand {w,c}
@attribute class hierarchical 01,01/02,01/03,02,02/01
@data
"""
CENTRES = {"01/02": (0, "w"), "01/03": (5, "w"), "02/01": (10, "c")}


def rows(count: int, seed: int) -> str:
    chance = random.Random(seed)
    lines = []
    for _ in range(count):
        label, (centre, strand) = chance.choice(list(CENTRES.items()))
        weight = "?" if chance.random() < 0.2 else f"{chance.gauss(0, 1):.3f}"
        labels = label if chance.random() < 0.7 else f"{label}@{'02' if label.startswith('01') else '01'}"
        lines.append(f"{chance.gauss(centre, 1):.3f},{weight},{strand},{labels}")
    return HEADER + "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def genes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("genes")
    with lzma.open(folder / "train.arff.xz", "wt") as file:
        file.write(rows(200, 0))
    (folder / "valid.arff").write_text(rows(80, 1))
    (folder / "test.arff").write_text(rows(80, 2))
    main_ok(
        "train", folder / "train.arff.xz", "--valid", folder / "valid.arff", "--out", folder / "model", "--threads", 1
    )
    return folder


def test_training_needs_no_further_option(genes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(genes / "model")
    assert list(model.feature_names_in_) == ["length", "weight", "strand"]
    assert model.taxonomy_.ids == ("01", "01/02", "01/03", "02", "02/01")
    main_ok("evaluate", genes / "model", genes / "test.arff", "--json", "-q", "--plot", genes / "report.png")
    figures = json.loads(capsys.readouterr().out)
    assert figures["rows"] == 80
    assert figures["accuracy"] > 0.9
    sets = figures["sets"]
    assert sets["precision_at"]["1"] == pytest.approx(figures["accuracy"])
    assert 1 <= sets["predicted_labels_per_row"] < 2  # each row has one that can be told, and some another by chance
    assert 0.7 < sets["set_precision"] <= 1
    main_ok("evaluate", genes / "model", genes / "test.arff", "-q")
    assert "exact match" in capsys.readouterr().out


def test_predictions_are_a_table(genes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_ok("predict", genes / "model", genes / "test.arff", "--keep", "strand", "--out", genes / "predicted.csv", "-q")
    lines = (genes / "predicted.csv").read_text().splitlines()
    assert lines[0] == "strand,label,probability"
    assert len(lines) == 81
    error = main_error(capsys, "predict", genes / "model", genes / "test.arff", "--out", genes / "predicted.arff")
    assert "ARFF is not written" in error


def test_the_hierarchy_is_checked_shown_and_converted(genes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = genes / "test.arff"
    main_ok("taxonomy", "check", test, "--rows", test, "--json")
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert (summary["kind"], summary["nodes"], summary["rows"]["labels"]) == ("tree", 5, 5)
    main_ok("taxonomy", "show", test)
    assert "02/01" in capsys.readouterr().out
    main_ok("taxonomy", "convert", test, genes / "tree.csv", "-q")
    assert Taxonomy.from_file(genes / "tree.csv").ids == Taxonomy.from_file(test).ids


def test_invalid_rows_are_named_or_skipped(genes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = rows(60, 3).splitlines()
    lines[9], lines[11] = "1,2,x,01", "1,2,w,09"
    bad = tmp_path / "bad.arff"
    bad.write_text("\n".join(lines))
    error = main_error(capsys, "evaluate", genes / "model", bad)
    assert f"{bad}:10: attribute 'strand' is 'x', which is not among its values" in error
    main_ok(
        "evaluate", genes / "model", bad, "-q", "--json", "--on-error", "skip", "--rejects", tmp_path / "rejects.csv"
    )
    assert json.loads(capsys.readouterr().out)["rows"] == 58
    rejects = (tmp_path / "rejects.csv").read_text()
    assert "line 10" in rejects
    assert "line 12,label '09' is not in the taxonomy" in rejects


def test_some_rows_of_a_file(genes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main_ok("evaluate", genes / "model", genes / "test.arff", "--json", "-q", "--where", "strand=c")
    assert 0 < json.loads(capsys.readouterr().out)["rows"] < 80


def test_a_pipe_is_not_opened_for_what_it_declares(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.arff")
    assert declared_columns(str(tmp_path / "pipe.arff"), TableOptions()) is None
    assert declared_columns("-", TableOptions()) is None


def test_a_plain_class_is_not_an_input(tmp_path: Path) -> None:
    text = rows(120, 4).replace("hierarchical 01,01/02,01/03,02,02/01", "{01/02,01/03,02/01}")
    lines = [line.partition("@0")[0] if line[0] != "@" else line for line in text.splitlines()]
    (tmp_path / "flat.arff").write_text("\n".join(lines))
    main_ok("train", tmp_path / "flat.arff", "--label", "class", "--out", tmp_path / "model", "--threads", 1, "-q")
    assert list(load(tmp_path / "model").feature_names_in_) == ["length", "weight", "strand"]


def test_settings_of_sets_are_searched_on_given_validation_rows(genes: Path, tmp_path: Path) -> None:
    data = [genes / "train.arff.xz", "--valid", genes / "valid.arff", "--threads", 1, "-q"]
    main_ok("tune", *data, "--minutes", 0.005, "--metric", "macro_f1", "--out", tmp_path / "model")
    found = json.loads((tmp_path / "model.tune" / "settings.json").read_text())
    assert found["search"]["metric"] == "set_f1_macro"
    assert {"objective", "thresholds_by", "members"} <= found["parameters"].keys()
    assert "text" not in found["parameters"]
    assert load(tmp_path / "model").metrics_["validation"]["rows"] == 80
