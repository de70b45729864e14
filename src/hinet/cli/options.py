"""Options that several commands share, gathered into one object that the command receives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Command = Callable[..., None]


def shared_options(gather: Callable[..., Any], name: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of ``gather`` to a command, which receives its result as ``name``.

    The arguments of ``gather`` come before those of the command, required ones first; its options come last.
    """
    shared = inspect.signature(gather, eval_str=True).parameters

    def decorate(command: Command) -> Command:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != name]

        def with_shared(**values: Any) -> None:
            gathered = gather(**{option: values.pop(option) for option in shared})
            command(**{name: gathered}, **values)

        arguments = sorted(filter(_is_argument, [*shared.values(), *own]), key=lambda p: p.default is not p.empty)
        all_parameters = [*arguments, *(p for p in [*own, *shared.values()] if not _is_argument(p))]
        parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in all_parameters]
        with_shared.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_shared.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        with_shared.__name__, with_shared.__doc__ = command.__name__, command.__doc__
        return with_shared

    return decorate


def _is_argument(parameter: inspect.Parameter) -> bool:
    marks = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(mark, typer.models.ArgumentInfo) for mark in marks)


def option(name: str, help: str, panel: str | None = None, *, least: float | None = None) -> Any:
    """Return an option whose help says the default."""
    return typer.Option(name, help=help, show_default=False, rich_help_panel=panel, min=least)


ModelFolder = Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print machine-readable output.")]


def help_with_example(command: Command, example: str) -> str:
    """Return the help of a command: its first paragraph, an example, and the rest of its docstring."""
    summary, _, details = (inspect.getdoc(command) or "").partition("\n\n")
    return f"{summary}\n\nExample: {example}\n\n{details}".rstrip()


@dataclass(frozen=True)
class RunOptions:
    """Options that do not change what a command does."""

    quiet: bool
    threads: int | None = None
    seed: int = 0

    def message(self, text: str) -> None:
        """Print a message to standard error, unless the command is quiet."""
        if not self.quiet:
            typer.echo(text, err=True)


_PANEL = "Run"
MAX_SEED = (1 << 63) - 1  # accepted by every random generator

_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only results and errors.", rich_help_panel=_PANEL)]
_Threads = Annotated[int | None, option("--threads", "Number of threads (default: one per core).", _PANEL, least=1)]
_Seed = Annotated[int, typer.Option("--seed", min=0, max=MAX_SEED, help="Random seed.", rich_help_panel=_PANEL)]


def _quiet(quiet: _Quiet = False) -> RunOptions:
    return RunOptions(quiet)


def _threads(threads: _Threads = None, quiet: _Quiet = False) -> RunOptions:
    return RunOptions(quiet, threads)


def _seed(seed: _Seed = 0, threads: _Threads = None, quiet: _Quiet = False) -> RunOptions:
    return RunOptions(quiet, threads, seed)


quiet_option = shared_options(_quiet, "run")
thread_options = shared_options(_threads, "run")
seed_options = shared_options(_seed, "run")
