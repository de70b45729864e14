"""Follow the tutorial page: write its files, run its commands and Python blocks, and compare the output."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE

import pytest

from hinet.cli import main
from tests.processes import run, started
from tests.serving.process import free_port, wait_until_ready

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"
INSTALLED = "pip install"  # skipped, because everything is installed


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return the file named right before each block, if any, with the language and text of the block."""
    return re.findall(r"^(?:[^\n]*`([^`\n]+)`:\n\n)?```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a block with the output that the page shows after it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def matches(shown: str, output: str) -> bool:
    """Return whether the output matches the page, where … stands for anything."""
    pattern = ".*".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


def run_here(command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """Run ``hinet`` or ``echo … | hinet`` in this process and return the output."""
    typed, _, program = command.rpartition(" | ")
    words = shlex.split(typed)
    typed_text = io.BytesIO((" ".join(words[1:]) + "\n").encode())
    assert words[:1] in ([], ["echo"]), command
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(typed_text)))
    name, *arguments = shlex.split(program)
    assert name == "hinet", command
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    written = capfd.readouterr()
    assert not ended.value.code, f"{command}\n{written}"
    return written.out + written.err


@contextmanager
def serving(command: str) -> Iterator[None]:
    program, *arguments = shlex.split(command)
    with started([Path(sys.executable).with_name(program), *arguments], stderr=PIPE) as service:
        try:
            wait_until_ready(service)
            yield
        finally:
            service.terminate()


@pytest.mark.skipif(shutil.which("curl") is None, reason="the tutorial uses curl, which is not installed")
def test_tutorial_works_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    port = free_port()
    with ExitStack() as services:
        for name, language, text in blocks(PAGE.read_text().replace("8000", str(port))):
            if language == "text":
                Path(name).write_text(text)
            elif language == "python":
                exec(compile(text, str(PAGE), "exec"), {})
            else:
                assert language == "console"
                for command, shown in commands(text):
                    if command.startswith("hinet serve "):
                        services.enter_context(serving(command))
                    elif command.startswith("curl "):
                        done = run(shlex.split(command))
                        assert matches(shown, done.stdout), f"{command}\n{done.stdout}{done.stderr}"
                    elif not command.startswith(INSTALLED):
                        output = run_here(command, monkeypatch, capfd)
                        assert matches(shown or "…", output), f"{command}\n{output}"
    assert Path("card.md").read_text().startswith("---\n")
    assert "rye crackers,Food > Bakery > Bread" in Path("corrected.csv").read_text()
