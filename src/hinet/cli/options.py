"""Options that several commands share, gathered into one object that the command receives."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

Command = Callable[..., None]


def shared_options(gather: Callable[..., Any], name: str, panel: str, *only: str) -> Callable[[Command], Command]:
    """Return a decorator that adds the options of ``gather``, or ``only`` some, to a command, in a panel of its help.

    The command receives the result of ``gather``, a function or a dataclass, as ``name``. The arguments of ``gather``
    come before those of the command, required ones first; its options come last.
    """
    parameters = inspect.signature(gather, eval_str=True).parameters
    shared = {option: _in_panel(parameters[option], panel) for option in only or parameters}

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


def _in_panel(parameter: inspect.Parameter, panel: str) -> inspect.Parameter:
    """Return an option in a panel; its own annotation stays as it is, for other commands may share it."""
    if _is_argument(parameter):
        return parameter
    declared = copy(parameter.annotation.__metadata__[0])
    declared.rich_help_panel = panel
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, declared])


def option(help: str, *names: str, least: float | None = None, most: float | None = None) -> Any:
    """Return an option, by default named after its parameter; a default of None is told in ``help``."""
    return typer.Option(*names, help=help, min=least, max=most)


def given_options(context: typer.Context) -> set[str]:
    """Return the parameters of the command that the user gave, be they equal to the defaults or not."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


ModelFolder = Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)]
EncoderFolder = Annotated[
    str | None,
    option(
        "Encoder of the model, if it moved: a folder, a folder that holds it, or a name (default: in the model, where "
        "it was in training, or in a folder of $HINET_ENCODERS).",
        "--encoder",
    ),
]
AsJson = Annotated[bool, option("Print machine-readable output.", "--json")]


def help_with_example(command: Command, example: str) -> str:
    """Return the help of a command: its first paragraph, an example, and the rest of its docstring."""
    summary, _, details = (inspect.getdoc(command) or "").partition("\n\n")
    return f"{summary}\n\nExample: {example}\n\n{details}".rstrip()


MAX_SEED = (1 << 63) - 1  # accepted by every random generator


@dataclass(frozen=True)
class RunOptions:
    """Options that do not change what a command does."""

    seed: Annotated[int, option("Random seed.", least=0, most=MAX_SEED)] = 0
    threads: Annotated[int | None, option("Number of threads (default: one per core).", least=1)] = None
    quiet: Annotated[bool, option("Print only results and errors.", "--quiet", "-q")] = False

    def message(self, text: str) -> None:
        """Print a message to standard error, unless the command is quiet."""
        if not self.quiet:
            typer.echo(text, err=True)


quiet_option = shared_options(RunOptions, "run", "Run", "quiet")
thread_options = shared_options(RunOptions, "run", "Run", "threads", "quiet")
seed_options = shared_options(RunOptions, "run", "Run")
