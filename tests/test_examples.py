"""Examples run, and the documentation matches the program."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

from tests.processes import run

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    done = run([sys.executable, "-W", "error", example], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("notebook", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(notebook.read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [], "clear the outputs before you commit"
            source = ast.parse("".join(cell["source"]))
            shown = source.body.pop() if isinstance(source.body[-1], ast.Expr) else None
            exec(compile(source, notebook.name, "exec"), names)
            if isinstance(shown, ast.Expr):  # the notebook would display it
                value = eval(compile(ast.Expression(shown.value), notebook.name, "eval"), names)
                assert value is None or getattr(value, "_repr_html_", value.__repr__)()


def test_command_line_reference_is_up_to_date(tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("typer"), "hinet.cli", "utils", "docs", "--name", "hinet"]
    done = run([*command, "--output", tmp_path / "cli.md"])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cli.md").read_text() == (ROOT / "docs" / "cli.md").read_text(), "run make docs"


def test_links_in_the_docs_resolve() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link in page.read_text().split("](")[1:]:
            target = link.partition(")")[0].partition("#")[0]
            assert "://" in target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
