"""The list of commands, which imports the module of a command when the command is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from hinet.cli.options import help_with_example

PANELS = {
    "Train and use a model": {
        "train": "Train a classifier on labelled texts and save it to a folder.",
        "tune": "Search for settings that score better than the defaults, on rows that are held out.",
        "predict": "Predict the labels of rows, in their order and format, in constant memory.",
        "evaluate": "Evaluate a model on labelled rows: accuracy, hierarchical F1, calibration, coverage.",
        "explain": "Explain every step of a prediction: the words for the chosen node against its strongest rival.",
        "serve": "Serve models by REST, with a page to classify, explore, correct and review.",
    },
    "Manage a model": {
        "inspect": "Show the taxonomy, features, training, validation, calibration and files of a model.",
        "update": "Adapt a model to a changed taxonomy, train it on more rows, or both.",
        "export": "Export a model as an ONNX graph; needs the extra 'export'.",
        "compile": "Compile the engine for this machine, all of it, on all cores, so that nothing is compiled later.",
        "feedback": "Use the feedback that 'hinet serve' keeps.",
    },
    "Try and compare": {
        "demo": "Train on the built-in ICD-10-CM data set, evaluate on test rows, and classify some phrases.",
        "compare": "Train flat and hierarchical networks with the same features and budget; needs the extra 'torch'.",
    },
    "Hierarchies": {"taxonomy": "Check, show and convert hierarchies."},
    "Vectors of words": {"vectors": "Static vectors of words, distilled from a sentence encoder."},
}  # a test keeps the summaries equal to those of the commands


class CommandList(TyperGroup):
    """The commands by name; a list of them, as in --help, imports none."""

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
        return _imported(name)


@cache
def _imported(name: str) -> Any:
    """Return a command, or a group of commands, from its module."""
    module, app = import_module(f"hinet.cli.{name}"), typer.Typer()
    if hasattr(module, "app"):
        app.add_typer(module.app, name=name)
    else:
        function = getattr(module, name)
        app.command(name, help=help_with_example(function, module.EXAMPLE))(function)
    return typer.main.get_group(app).commands[name]
