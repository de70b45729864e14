"""The program ``hinet``: its commands, imported when they are used, its error messages and exit codes."""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from hinet import __version__
from hinet.errors import HiNetError

USAGE_ERROR = 2  # exit code, also for a wrong option
PANELS = {
    "Start from nothing": {
        "start": "Label rows and train a model with them, in the browser: the row most worth a label comes next.",
    },
    "Train and use a model": {
        "train": "Train a classifier on labelled texts, or on a taxonomy alone, and save it to a folder.",
        "tune": "Search for settings that score better than the defaults, on rows that are held out.",
        "predict": "Predict the labels of rows, in their order and format, in constant memory.",
        "evaluate": "Evaluate a model on labelled rows: accuracy, hierarchical F1, calibration, coverage.",
        "explain": "Explain every step of a prediction: the words for the chosen node against its strongest rival.",
        "serve": "Serve models over REST, with a page to classify, explore, correct and review.",
        "mcp": "Offer models to agents as tools (Model Context Protocol): classify, explain, search, feedback.",
    },
    "Manage a model": {
        "inspect": "Show the taxonomy, features, training, validation, calibration and files of a model.",
        "update": "Adapt a model to a changed taxonomy, train it on more rows, or both.",
        "export": "Export a model as an ONNX graph; needs the extra 'export'.",
        "compile": "Compile the whole engine for this machine, on all cores, so that nothing is compiled later.",
        "feedback": "Use the feedback that 'hinet serve' keeps.",
    },
    "Try and compare": {
        "demo": "Train on the built-in ICD-10-CM data set, evaluate on test rows, and classify some everyday phrases.",
        "compare": "Train flat and hierarchical networks with the same features and budget; needs the extra 'torch'.",
    },
    "Hierarchies": {"taxonomy": "Check, show and convert hierarchies."},
    "Word vectors": {"vectors": "Static vectors of words, distilled from a sentence encoder."},
}  # a test keeps the summaries equal to those of the commands
MODULES = {"inspect": "manage", "export": "manage", "compile": "manage", "mcp": "serve"}  # if the names differ

_PARAMETER = re.compile(r"`(\w+)(?:=([^`]+))?`")
_NAMES = """
allowed_host bundle_encoder category cluster decoding encoder encoding exclude format keep label label_sep language
levels memory_limit metric min_confidence min_df min_probability minutes number objective parent_sep path_sep patience
port prefix resume risk root scheme sep split taxonomy test text threads titles top valid valid_where vector vectors
where width within workers
"""
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in _NAMES.split()} | {
    "checkpoint": "--out",  # checkpoints are next to the model
    "node_column": "--node-col",
    "parent_column": "--parent-col",
    "texts": "--rows",
    "validation_fraction": "--valid-share",
}
_ASSIGNMENTS = {
    "engine='torch'": "--fine-tune",
    "keep_names=True": '"keep_names": true in the "text" of --settings',
    "multilabel=False": "--single-label",
    "multilabel=True": "--multilabel",
    "path_sep=None": "--path-sep none",
    "titles=False": "--no-titles",
    "titles=True": "--titles",
}
_QUOTE = "'"
_JSON = {"None": "null", "True": "true", "False": "false"}


class CommandList(TyperGroup):
    """The commands by name; listing them, as in --help, does not import them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help from the summaries."""
        listed = copy(self)
        listed.commands = {
            name: TyperCommand(name, help=summary, rich_help_panel=panel)
            for panel, summaries in PANELS.items()
            for name, summary in summaries.items()
        }
        super(CommandList, listed).format_help(ctx, formatter)


class _Commands(Mapping[str, Any]):
    def __iter__(self) -> Iterator[str]:
        return (name for summaries in PANELS.values() for name in summaries)

    def __len__(self) -> int:
        return sum(map(len, PANELS.values()))

    def __getitem__(self, name: str) -> Any:
        if name not in {*self}:
            raise KeyError(name)
        return _import_command(name)


@cache
def _import_command(name: str) -> Any:
    """Return a command, or a group of commands, from its module."""
    from hinet.cli.options import CommandGroup

    module, group = import_module(f"hinet.cli.{MODULES.get(name, name)}"), CommandGroup()
    if hasattr(module, "app"):
        group.add_typer(module.app, name=name)
    else:
        group.command(name)(getattr(module, name))
    return typer.main.get_group(group).commands[name]


app = typer.Typer(
    name="hinet",
    cls=CommandList,
    help="Classify rows into a large hierarchy.\n\nStart with 'hinet demo', or see 'hinet train --help'.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"hinet {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the program and exit: with 0, 2 for user errors, 130 when interrupted, 143 when terminated."""
    if arguments is None:
        _set_up_process()
    if sys.stderr is None:  # closed before the process started
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 open as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # question marks for characters that the terminal cannot show
    try:
        try:
            app(arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # a full disk is reported here, not when Python exits
            if arguments is None:
                gc.freeze()  # so that Python exits without a garbage collection
    except HiNetError as error:
        sys.stderr.write(f"error: {with_options(str(error))}\n")
        sys.exit(USAGE_ERROR)
    except MemoryError as error:
        sys.stderr.write(f"error: not enough memory: {error or 'use less data or smaller settings'}\n")
        sys.exit(USAGE_ERROR)
    except OSError as error:
        sys.stderr.write(f"error: the output cannot be written: {error.strerror}\n")
        sys.stdout = None  # its buffer cannot be written
        sys.exit(USAGE_ERROR)


def _set_up_process() -> None:
    """Set up signals, standard streams and garbage collection of the process."""
    for number in range(3):  # a file that reused the number of a closed standard stream would receive its output
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    gc.set_threshold(100_000, 50, 50)  # frequent collections of imported objects take a tenth of the start time
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by default under nohup and in background jobs
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a closed pipe ends the process, as with other tools


def _end(number: int, frame: object) -> None:
    """Exit as after an error, so that partial files are removed."""
    sys.exit(128 + number)


def with_options(message: str) -> str:
    """Return a library message with the parameters in backticks replaced by options or entries of a settings file.

    >>> with_options("set `label_sep` to the separator, or raise `members`")
    'set --label-sep to the separator, or raise "members" of --settings'
    >>> with_options("leave it out with `wide=False`, or set `decoding='label'` and `multilabel=False`")
    'leave it out with "wide": false of --settings, or set --decoding label and --single-label'
    """
    return _PARAMETER.sub(lambda match: _ASSIGNMENTS.get(match[0][1:-1]) or _option(match[1], match[2]), message)


def _option(name: str, value: str | None) -> str:
    if name in OPTIONS:
        return OPTIONS[name] if value is None else f"{OPTIONS[name]} {value.strip(_QUOTE)}"
    from hinet.classifier.parameters import SETTINGS

    if name in SETTINGS:
        return f'"{name}"{"" if value is None else f": {_JSON.get(value, value)}"} of --settings'
    return name if value is None else f"{name}={value}"
