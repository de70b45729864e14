"""Every example runs, and what the docs say of the program is what the program says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.processes import run

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_the_example_runs(example: Path, tmp_path: Path) -> None:
    done = run([sys.executable, "-W", "error", example], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_command_line_reference_is_up_to_date(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("typer"), "hinet.cli", "utils", "docs", "--name", "hinet"]
    done = run([*command, "--output", tmp_path / "cli.md"])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cli.md").read_text() == (ROOT / "docs" / "cli.md").read_text(), "run make docs"


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link in page.read_text().split("](")[1:]:
            target = link.partition(")")[0].partition("#")[0]
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"
