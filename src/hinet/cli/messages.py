"""Messages of the library as command-line users know them: with options instead of parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

_PARAMETER = re.compile(r"`(\w+)`")
_OPTIONS = {"node_column": "--node-col", "parent_column": "--parent-col"}  # not named like the parameter


def with_options(message: str) -> str:
    """Return a message with the parameters in backticks replaced by the command-line options, where there are any.

    >>> with_options("set `label_sep` to the separator, or lower `min_df`")
    'set --label-sep to the separator, or lower min_df'
    """
    if not _PARAMETER.search(message):
        return message
    import typer

    from hinet.cli.main import app

    options = {*_options(typer.main.get_command(app))}

    def replacement(match: re.Match[str]) -> str:
        option = _OPTIONS.get(match[1], f"--{match[1].replace('_', '-')}")
        return option if option in options else match[1]

    return _PARAMETER.sub(replacement, message)


def _options(command: Any) -> Iterator[str]:
    """Yield the options of a command and of its subcommands."""
    for parameter in command.params:
        yield from parameter.opts
    for subcommand in getattr(command, "commands", {}).values():
        yield from _options(subcommand)
