"""Every command has help with an example that runs, and only the options that it uses."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from hinet.cli import app
from hinet.cli.main import PANELS
from tests.cli.conftest import HINET, TRAIN_EXAMPLE, run_hinet
from tests.processes import run


def commands(group: Any = None, words: tuple[str, ...] = ()) -> dict[str, Any]:
    group = group or typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            found |= commands(command, (*words, name))
        else:
            found[" ".join((*words, name))] = command
    return found


COMMANDS = commands()
EXAMPLES = {
    name: " ".join(command.help.partition("Example: hinet ")[2].partition("\n\n")[0].split())
    for name, command in COMMANDS.items()
}
VECTORS = {"vectors distill", "vectors inspect"}  # their examples run in tests/encoders, with an encoder
COMPILED = {"compile"}  # its example runs in tests/engine/test_compiling.py
SERVED = {
    "start",
    "serve",
    "mcp",
    "feedback export",
    "feedback show",
    "feedback list",
    "feedback delete",
}  # their examples run in test_serve.py, test_start.py and tests/serving/test_agents.py
RANDOM = {"train", "tune", "update", "compare", "demo"}
THREADED = RANDOM | {
    "predict", "evaluate", "explain", "export", "compile", "serve", "start", "mcp", "vectors distill",
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example_and_takes_a_seed_and_threads_only_if_it_uses_them(name: str) -> None:
    options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
    assert "--quiet" in options
    assert ("--seed" in options) == (name in RANDOM)
    assert ("--threads" in options) == (name in THREADED)
    assert EXAMPLES[name].startswith(f"{name} ")
    assert not COMMANDS[name].help.startswith("Example")
    assert all(parameter.help for parameter in COMMANDS[name].params if parameter.name != "help")


@pytest.mark.parametrize("name", ["train", "tune", "update", "demo"])
def test_every_command_that_saves_a_model_takes_the_same_option_for_its_folder(name: str) -> None:
    assert "--out" in {option for parameter in COMMANDS[name].params for option in parameter.opts}


@pytest.mark.parametrize(("name", "panel"), [("compare", None), ("taxonomy check", None), ("train", "Columns")])
def test_an_option_that_several_commands_declare_is_in_the_panel_of_each(name: str, panel: str | None) -> None:
    panels = {
        parameter.name: parameter.rich_help_panel for parameter in COMMANDS[name].params if parameter.name != "help"
    }
    assert panels["label_sep"] == panels["label"] == panel


def test_an_error_of_the_library_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("name,kind\nrye,bread\n")
    refused = run_hinet("train", "rows.csv", "--out", "model", cwd=tmp_path)
    assert "no column 'text' among 'name', 'kind'; set --text: 'name' and 'kind' look like text" in refused.stderr


def test_the_example_of_train_is_what_the_other_tests_work_with() -> None:
    assert EXAMPLES["train"] == TRAIN_EXAMPLE


@pytest.mark.parametrize(
    "name",
    [name for name in EXAMPLES if name not in {"train", "tune", "demo", "compare", *VECTORS, *COMPILED, *SERVED}],
)
def test_the_example_runs(name: str, shop: Path) -> None:
    before = {path.name for path in shop.iterdir()}
    done = run_hinet(*shlex.split(EXAMPLES[name]), cwd=shop, new_process=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    made = {path.name for path in shop.iterdir()} - before
    assert made == {
        "predict": {"predictions.csv"},
        "evaluate": {"report.png"},
        "export": {"onnx_model"},
        "taxonomy convert": {"categories.tsv"},
    }.get(name, set())
    assert done.stdout or made


def test_the_list_of_commands_has_their_summaries() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    summaries = {name: command.help.partition("\n")[0] for name, command in commands.items()}
    assert summaries == {name: text for panel in PANELS.values() for name, text in panel.items()}


def test_help_lists_every_command_and_its_example() -> None:
    text = run_hinet("--help", cwd=Path.cwd()).stdout
    for name in COMMANDS:
        assert f" {name.split()[0]} " in text
    for command in ("taxonomy", "train"):
        assert "Usage: hinet" in run_hinet(command, "--help", cwd=Path.cwd()).stdout
    assert EXAMPLES["train"] in " ".join(run_hinet("train", "--help", cwd=Path.cwd()).stdout.split())


def test_the_shell_completes_commands_and_options() -> None:
    for words, wanted in (("hinet ex", "explain"), ("hinet train --checkp", "--checkpoint-every")):
        asked = {"_HINET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = run([HINET], env={**os.environ, **asked})
        assert wanted in done.stdout, done.stderr
