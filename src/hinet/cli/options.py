"""Options that several commands share, gathered into one object that the command receives; checks of outputs."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.errors import FileError, HiNetError
from hinet.extras import require

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet.cluster import Cluster

STANDARD = "-"  # standard input or output
PLOT_SUFFIXES = (".png", ".svg", ".pdf")
PLOT = "A .png, .svg or .pdf file; needs the extra 'plot'."
MAX_SEED = (1 << 63) - 1  # accepted by every random generator

Command = Callable[..., None]
Name = str | Path


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
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(item, typer.models.ArgumentInfo) for item in metadata)


def _in_panel(parameter: inspect.Parameter, panel: str) -> inspect.Parameter:
    """Return an option in a panel; its own annotation is not changed, because other commands may share it."""
    if _is_argument(parameter):
        return parameter
    declared = copy(parameter.annotation.__metadata__[0])
    declared.rich_help_panel = panel
    return parameter.replace(annotation=Annotated[parameter.annotation.__origin__, declared])


def option(help: str, *names: str, min: float | None = None, max: float | None = None) -> Any:
    """Return an option, by default named after its parameter; ``help`` describes a default of None."""
    return typer.Option(*names, help=help, min=min, max=max)


def given_options(context: typer.Context) -> set[str]:
    """Return the parameters of the command that the user gave, even if equal to the defaults."""
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


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


@dataclass(frozen=True)
class RunOptions:
    """Options that do not change what a command does."""

    seed: Annotated[int, option("Random seed.", min=0, max=MAX_SEED)] = 0
    threads: Annotated[int | None, option("Number of threads (default: one per core).", min=1)] = None
    quiet: Annotated[bool, option("Print only results and errors.", "--quiet", "-q")] = False

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a classifier that these options give."""
        return {"random_state": self.seed, "n_jobs": self.threads, "verbose": not self.quiet}

    def message(self, text: str) -> None:
        """Print a message to standard error, unless the command is quiet."""
        if not self.quiet:
            typer.echo(text, err=True)


quiet_option = shared_options(RunOptions, "run", "Run", "quiet")
thread_options = shared_options(RunOptions, "run", "Run", "threads", "quiet")
seed_options = shared_options(RunOptions, "run", "Run")


@dataclass(frozen=True)
class ClusterOptions:
    """Cluster to compute on, if any."""

    cluster: Annotated[
        str | None,
        option("Compute on Ray: 'local' starts it here, HOST:PORT is a running cluster; needs the extra 'cluster'."),
    ] = None
    workers: Annotated[
        int | None,
        option("Processes of --cluster (default: one per core of this machine; required with HOST:PORT).", min=1),
    ] = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.cluster is None:
            raise HiNetError("--workers requires --cluster; add --cluster local, or leave it out")

    def chosen(self, threads: int | None) -> Cluster | None:
        """Return the cluster, if one is wanted; each worker has ``threads`` threads, by default one."""
        if self.cluster is None:
            return None
        from hinet.cluster import Cluster

        if self.workers is None and self.cluster != "local":
            raise HiNetError(f"--cluster {self.cluster} needs --workers, the number of processes to use there")
        threads = threads or 1
        return Cluster(self.cluster, self.workers or max(1, (os.cpu_count() or 1) // threads), threads)


cluster_options = shared_options(ClusterOptions, "place", "Cluster")


def check_outputs(reads: Iterable[Name | None], writes: Mapping[str, Name | None], model: Name | None = None) -> None:
    """Raise FileError if an output is an input or another output, also through a link.

    ``writes`` maps the option of an output to its file or folder. Nothing may be written into the folder of the
    ``model`` that is read, or into one that is written.
    """
    folder = _resolve(model)
    used: dict[Path, str] = {path: "read" for name in reads if (path := _resolve(name)) is not None}
    for option, name in writes.items():
        path = _resolve(name)
        if name is None or path is None:
            continue
        for other, use in used.items():
            if path == other or (path.exists() and other.exists() and path.samefile(other)):
                raise FileError(name, f"{_conflict(option, use)}; name another file")
        models = {folder, *(other for other, use in used.items() if use != "read")}
        if models & {*path.parents}:
            raise FileError(name, f"{option} is in the folder of a model; name a file outside")
        used[path] = option


def _conflict(option: str, use: str) -> str:
    if use == "read":
        return f"{option} is an input file, which would be overwritten"
    return f"{option} and {use} are the same file, so one result would be overwritten"


def _resolve(name: Name | None) -> Path | None:
    """Return the path of a file that exists or will exist; None for pipes and devices."""
    if name is None or str(name) == STANDARD or "\0" in str(name):
        return None
    try:
        path = Path(name).resolve()
    except RuntimeError:  # raised before Python 3.13
        raise FileError(name, "is a link to itself; name another file") from None
    return None if path.exists() and not path.is_file() and not path.is_dir() else path


def check_plot(path: Path | None) -> None:
    """Raise FileError if a plot cannot be drawn to a file."""
    if path is None:
        return
    require("matplotlib", "a plot")
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise FileError(path, "a plot is written as .png, .svg or .pdf; rename it")
    check_parent(path)


def check_parent(path: Path) -> None:
    """Raise FileError if the folder of a file does not exist."""
    if not path.resolve().parent.is_dir():
        raise FileError(path, "cannot be written: the folder does not exist")
