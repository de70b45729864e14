"""The tutorial, done from its page alone: every file is written, every command and Python block run, answers compared."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import NamedTuple

import pytest

from tests.processes import run, started
from tests.serving.process import free_port, wait_until_ready

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
INSTALLED = "pip install"  # what the page installs is there


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    for language, text in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        yield Block(language, text)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a block with the output that the page shows after it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def matches(shown: str, output: str) -> bool:
    """Tell whether output is what the page shows, where … stands for anything."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of a reader: the hinet of this installation is first in the path."""
    folder = Path(sys.executable).parent
    return {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "120"}


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial asks the service with curl, which is not installed")
def test_the_tutorial_does_what_it_says(tmp_path: Path, environment: dict[str, str]) -> None:
    port = str(free_port())
    with ExitStack() as services:
        for block in blocks(PAGE.read_text().replace("8000", port)):
            if block.language == "text":
                name, _, content = block.text.partition("\n")
                (tmp_path / name.removeprefix("# ")).write_text(content)
            elif block.language == "python":
                done = run([sys.executable, "-W", "error", "-c", block.text], cwd=tmp_path, env=environment)
                assert done.returncode == 0, done.stderr
            else:
                assert block.language == "console"
                for command, shown in commands(block.text):
                    if command.startswith(INSTALLED):
                        continue
                    if command.startswith("hinet serve "):
                        service = services.enter_context(started(command.split(), stderr=PIPE, cwd=tmp_path, env=environment))
                        services.callback(service.terminate)
                        wait_until_ready(service)
                        continue
                    done = run(["bash", "-c", command], cwd=tmp_path, env=environment, stdout=PIPE, stderr=STDOUT)
                    assert done.returncode == 0, f"{command}\n{done.stdout}"
                    assert matches(shown or "…", done.stdout), f"{command}\n{done.stdout}"
    assert (tmp_path / "card.md").read_text().startswith("---\n")
    assert "rye crackers,Food > Bakery > Bread" in (tmp_path / "corrected.csv").read_text()
