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

    Its arguments come before the command's own, those that must be given first; its options come last.
    """
    shared = inspect.signature(gather, eval_str=True).parameters

    def given(command: Command) -> Command:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != name]

        def with_shared(**values: Any) -> None:
            gathered = gather(**{option: values.pop(option) for option in shared})
            command(**{name: gathered}, **values)

        arguments = sorted(filter(_is_argument, [*shared.values(), *own]), key=lambda p: p.default is not p.empty)
        every = [*arguments, *(p for p in [*own, *shared.values()] if not _is_argument(p))]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in every]
        with_shared.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_shared.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        with_shared.__name__, with_shared.__doc__ = command.__name__, command.__doc__
        return with_shared

    return given


def _is_argument(parameter: inspect.Parameter) -> bool:
    marks = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(mark, typer.models.ArgumentInfo) for mark in marks)


def option(name: str, help: str, panel: str | None = None, *, least: float | None = None) -> Any:
    """Return an option without a default worth showing."""
    return typer.Option(name, help=help, show_default=False, rich_help_panel=panel, min=least)


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
MOST_SEED = (1 << 63) - 1  # so that every generator of random numbers takes it


def _running(
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print results and errors alone.", rich_help_panel=_PANEL)
    ] = False,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            min=0,
            max=MOST_SEED,
            help="Of anything random; most commands have nothing.",
            rich_help_panel=_PANEL,
        ),
    ] = 0,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, help="By default one a core.", show_default=False, rich_help_panel=_PANEL),
    ] = None,
) -> Running:
    return Running(quiet, seed, threads)


runs = takes(_running, "running")
