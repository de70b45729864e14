"""The demo does the whole job on real data, with the real program."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hinet import load
from hinet.cli.demo import PHRASES
from tests.cli.conftest import run_hinet
from tests.processes import run


def test_the_demo_refuses_a_folder_that_it_cannot_write_before_it_trains(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("not a folder")
    done = run_hinet("demo", "--out", tmp_path / "model", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert str(tmp_path / "model") in done.stderr


@pytest.mark.slow  # .ci/wheel.py runs the demo on fewer rows
def test_the_demo_trains_evaluates_and_classifies(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("hinet"), "demo", "--out", str(tmp_path / "model")]
    done = run(command)
    assert done.returncode == 0, done.stderr
    assert "ICD-10-CM: tree of 23,774 nodes in 6 levels" in done.stdout
    assert "19,608 labels" in done.stdout
    accuracy = re.search(r"accuracy +│ +([\d.]+)%", done.stdout)
    assert accuracy is not None
    assert float(accuracy[1]) > 85
    for phrase in PHRASES:
        assert re.search(rf"^{re.escape(phrase)}(  unsure)?$", done.stdout, re.MULTILINE)
    assert "static vectors of wordllama" in done.stderr
    chances = [float(line.split()[0]) for line in done.stdout.splitlines() if re.match(r" +[01]\.\d\d  \S", line)]
    assert len(chances) > 3 * len(PHRASES)
    assert all(0 <= chance <= 1 for chance in chances)
    saved = load(tmp_path / "model")
    assert saved.predict(["Typhoid fever"])[0].startswith("A01")
    assert saved.metrics_["validation"]["accuracy"] > 0.85
    assert saved.calibration_.error_after < 0.03
