"""Options that several commands share: gathered into one value, which the command receives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

Command = Callable[..., None]


def takes(gather: Callable[..., Any], name: str) -> Callable[[Command], Command]:
    """Give a command the options of ``gather``; it receives what that makes of them as ``name``.

    Arguments come before options, those that must be given first.
    """
    shared = inspect.signature(gather, eval_str=True).parameters

    def given(command: Command) -> Command:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != name]

        def with_shared(**arguments: Any) -> None:
            gathered = gather(**{option: arguments.pop(option) for option in shared})
            command(**{name: gathered}, **arguments)

        every = sorted([*own, *shared.values()], key=_place)
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in every]
        with_shared.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_shared.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        with_shared.__name__, with_shared.__doc__ = command.__name__, command.__doc__
        return with_shared

    return given


def _place(parameter: inspect.Parameter) -> int:
    marks = getattr(parameter.annotation, "__metadata__", ())
    if not any(isinstance(mark, typer.models.ArgumentInfo) for mark in marks):
        return 2
    return 0 if parameter.default is inspect.Parameter.empty else 1


def option(name: str, help: str, panel: str | None = None) -> Any:
    """Return an option without a default worth showing."""
    return typer.Option(name, help=help, show_default=False, rich_help_panel=panel)


@dataclass(frozen=True)
class Running:
    """How a command runs."""

    quiet: bool
    seed: int
    threads: int | None

    def say(self, text: str) -> None:
        """Tell a person something, on standard error, unless it should be quiet."""
        if not self.quiet:
            typer.echo(text, err=True)


_PANEL = "Running"


def _running(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results and errors alone.", rich_help_panel=_PANEL)
    ] = False,
    seed: Annotated[
        int,
        typer.Option("--seed", min=0, help="Of anything random; most commands have nothing.", rich_help_panel=_PANEL),
    ] = 0,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="By default one a core.", show_default=False, rich_help_panel=_PANEL),
    ] = None,
) -> Running:
    return Running(quiet, seed, threads)


runs = takes(_running, "running")
