"""A user's first call: no kernel is compiled yet, so the kernels for a few rows are interpreted."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hinet import HiNetClassifier
from tests.cli.conftest import CATEGORIES, HINET, run_inside
from tests.processes import run

SECONDS = 120.0  # time limit of a call; most of it is for a busy machine
TEXTS = ["dark loaf", "fresh milk litre", "colour screen"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model, labelled rows and texts."""
    folder = tmp_path_factory.mktemp("first")
    texts = [words for _, words in CATEGORIES.values()]
    labels = [(parent, label) for label, (parent, _) in CATEGORIES.items()]
    HiNetClassifier(epochs=5, random_state=0).fit(texts * 3, labels * 3).save(folder / "model")
    rows = [f"{words},{parent} > {label}\n" for label, (parent, words) in CATEGORIES.items()]
    (folder / "rows.csv").write_text("".join(["text,label\n", *rows]))
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    return folder


def call(folder: Path, kernels: Path, *arguments: str) -> str:
    """Return the output of a new process that finds no compiled kernel, and must not compile any."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(kernels)}
    done = run([HINET, *arguments], SECONDS, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    assert "compiling" not in done.stderr
    assert not list(kernels.rglob("*.nb?"))
    return str(done.stdout)


def call_compiled(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of this process, which compiles its kernels."""
    capsys.readouterr()
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert run_inside(*arguments) == 0
    finally:
        os.chdir(before)
    return capsys.readouterr().out


def assert_close(first: Any, second: Any) -> None:
    """Assert that values are equal, and numbers nearly equal."""
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for name in first:
            assert_close(first[name], second[name])
    elif isinstance(first, list):
        assert len(first) == len(second)
        for one, other in zip(first, second, strict=True):
            assert_close(one, other)
    elif isinstance(first, float):
        assert first == pytest.approx(second, abs=1e-4)
    else:
        assert first == second


@pytest.mark.parametrize("options", [[], ["--top", "2", "--titles"], ["--min-confidence", "0.5"]])
def test_predictions_are_those_of_compiled_kernels(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    command = ["predict", "model", "texts.txt", "--to", "csv", "-q", *options]
    outputs = call(folder, tmp_path, *command), call_compiled(folder, capsys, *command)
    first, second = (list(csv.DictReader(io.StringIO(output))) for output in outputs)
    assert len(first) == len(TEXTS)
    for row, compiled in zip(first, second, strict=True):
        for name, cell in row.items():
            is_number = name.startswith("probability") and cell
            assert_close(float(cell) if is_number else cell, float(compiled[name]) if is_number else compiled[name])


@pytest.mark.parametrize(
    "command",
    [["explain", "model", TEXTS[0], "--json"], ["inspect", "model", "--json"]],
    ids=lambda command: command[0],
)
def test_json_output_is_that_of_compiled_kernels(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    outputs = call(folder, tmp_path, *command), call_compiled(folder, capsys, *command)
    assert_close(*map(json.loads, outputs))


def test_an_evaluation_is_that_of_compiled_kernels(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "model", "rows.csv", "--json"]
    first = json.loads(call(folder, tmp_path, *command))
    second = json.loads(call_compiled(folder, capsys, *command))
    assert first.pop("rows_a_second") > 0
    assert second.pop("rows_a_second") > 0
    assert_close(first, second)
