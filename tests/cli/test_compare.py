"""``hinet compare`` with the real executable on small files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hinet.cli import app
from hinet.evaluation import comparison
from tests.cli.conftest import run_hinet as hinet
from tests.cli.conftest import run_inside

WORDS = {"tv": "screen", "radio": "sound", "rye": "dark", "milk": "white"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "categories.csv").write_text(
        "node,parent\nelectronics,\nfood,\ntv,electronics\nradio,electronics\nrye,food\nmilk,food\n"
    )
    lines = [f"{word} thing {n},{label}" for n in range(12) for label, word in WORDS.items()]
    (tmp_path / "products.csv").write_text("\n".join(["title,category", *lines]) + "\n")
    return tmp_path


EXAMPLE = "compare products.csv --taxonomy categories.csv --text title --label category"


def test_the_example_of_the_help_runs(folder: Path) -> None:
    assert EXAMPLE in " ".join(hinet("compare", "--help", cwd=folder).stdout.split())
    few = ["--epochs", 2, "--width", 16, "--threads", 1, "--models", "default"]
    done = hinet(*EXAMPLE.split(), *few, cwd=folder, new_process=True)
    assert done.returncode == 0, done.stderr
    (outcome,) = json.loads((folder / "compare.json").read_text())["outcomes"]
    assert 0 < outcome["peak_gb"] < 4
    assert "│ default " in done.stdout
    assert (folder / "compare.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_printed_of_all_models_is_saved(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(comparison, "_run_in_process", lambda threads, *given: comparison.run_model(*given))
    assert run_inside(*EXAMPLE.split(), "--epochs", 30, "--width", 16) == 0
    printed = capsys.readouterr().out
    saved = json.loads((folder / "compare.json").read_text())
    assert list(saved["summary"]) == ["flatten", "paper", "default"]
    assert saved["train_rows"] + saved["test_rows"] == 48
    by_model = {outcome["model"]: outcome for outcome in saved["outcomes"]}
    assert by_model["default"]["accuracy"] == by_model["flatten"]["accuracy"] == 1.0
    row = next(line for line in printed.splitlines() if line.startswith("│ paper "))
    assert f"{100 * by_model['paper']['accuracy']:.1f}" == row.split("│")[2].strip()


def test_folders_of_lshtc_files_and_paths_as_labels_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "cat_hier.txt").write_text("1 2 3\n1 2 4\n1 5\n")
    (folder / "train.txt").write_text("3 0:1 7:1\n4 0:2 8:1\n5 0:3 9:1\n" * 4)
    (folder / "validation.txt").write_text("3 0:1 7:2\n5 0:2 9:1\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(comparison, "_run_in_process", lambda threads, *given: comparison.run_model(*given))
    options = ["--epochs", "2", "--width", "4", "--models", "default", "--out", "a.json", "--plot", "a.svg", "--quiet"]
    app(["compare", ".", *options, "--seeds", "2"], standalone_mode=False)
    saved = json.loads((folder / "a.json").read_text())
    assert [outcome["seed"] for outcome in saved["outcomes"]] == [0, 1]
    accuracies = [outcome["accuracy"] for outcome in saved["outcomes"]]
    assert saved["summary"]["default"]["accuracy_mean"] == pytest.approx(sum(accuracies) / 2, abs=1e-5)
    lines = [f"{word} {n},{('A' if n % 2 else 'B')} > {word}" for n in range(10) for word in ("x", "y")]
    (folder / "paths.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    app(["compare", "paths.csv", *options], standalone_mode=False)
    saved = json.loads((folder / "a.json").read_text())
    assert (saved["data"], saved["train_rows"] + saved["test_rows"]) == ("paths", 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["products.csv"], "error: products.csv:1: no column 'text' among 'title', 'category'"),
        (["nothing.csv"], "error: nothing.csv: cannot be read"),
        (
            ["products.csv", "--text", "title", "--label", "category", "--models", "magic"],
            "error: unknown model 'magic'",
        ),
        (
            [
                "products.csv",
                "--text",
                "title",
                "--label",
                "title",
                "--taxonomy",
                "categories.csv",
                "--test",
                "products.csv",
            ],
            "error: products.csv:2: label 'screen thing 0' is not in the taxonomy of 6 nodes",
        ),
        (["blank.csv", "--test", "blank.csv"], "error: none of the 2 training texts has a word"),
        (["products.csv", "--out", "."], "error: .: is a folder; name a file for the results"),
        (["products.csv", "--plot", "nowhere/p.png"], "error: nowhere/p.png: cannot be written"),
        (["products.csv", "--plot", "p.doc"], "error: p.doc: a plot is written as .png"),
        (["products.csv", "--text", "title", "--label", "category", "--split", "title"], "there are no train rows"),
        (["empty"], "error: empty: the folder has no cat_hier.txt or hierarchy.txt"),
    ],
)
def test_invalid_comparisons_are_reported(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "empty").mkdir()
    (folder / "blank.csv").write_text("text,label\n!,A\n?,B\n")
    done = hinet("compare", *arguments, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "compare.json").exists()
