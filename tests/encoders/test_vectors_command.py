"""``hinet vectors``: the examples of its help, and error messages."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest

from hinet.cli import main


@pytest.fixture
def work(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the examples name."""
    shutil.copytree(tiny, tmp_path / "encoder")
    lines = ["id,title", *(f"{row},{text}" for row, text in enumerate(["rye bread", "sour rye bread", "coffee shop"]))]
    (tmp_path / "products.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def hinet(command: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(command))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_examples_run(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hinet("vectors distill encoder --rows products.csv --text title --out vectors") == 0
    assert "wrote vectors: " in capsys.readouterr().err
    assert {path.name for path in work.iterdir()} == {"encoder", "products.csv", "cache", "vectors"}
    assert hinet("vectors inspect vectors") == 0
    assert "tokens of width 16" in capsys.readouterr().out
    assert hinet("vectors inspect vectors --json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["width"], found["pairs"], found["fitted_texts"]) == (16, 1, 3)


def test_no_cache_writes_no_cache(work: Path) -> None:
    assert hinet("vectors distill encoder --rows products.csv --text title --out vectors --no-cache --quiet") == 0
    assert not (work / "cache").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("distill ./nothing --out vectors", "./nothing: no such folder"),
        ("distill encoder --out encoder", "encoder: --out is an input file"),
        ("distill encoder --out full", "full: exists and is not a folder of static vectors"),
        ("distill encoder --out vectors --text title", "--text names a column of --rows"),
        ("distill encoder --out vectors --rows products.csv --text name", "no column 'name' among 'id', 'title'"),
        ("distill encoder --out vectors --rows none.csv", "none.csv"),
        ("distill encoder --out vectors --cache x --no-cache", "--cache cannot be combined with --no-cache"),
        ("inspect encoder", "encoder: is not a folder of static vectors"),
    ],
)
def test_bad_input_is_rejected_in_one_line(
    work: Path, capsys: pytest.CaptureFixture[str], command: str, message: str
) -> None:
    (work / "full").mkdir()
    (work / "full" / "mine.txt").write_text("mine")
    before = {path.name for path in work.iterdir()}
    assert hinet(f"vectors {command}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert {path.name for path in work.iterdir()} == before
