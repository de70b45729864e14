"""Options that several commands share, as one object that the command receives; checks of outputs."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

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


class SharedOptions:
    """Options that several commands share: the fields of a dataclass, in a panel of the help of each command."""

    panel: ClassVar[str]


class CommandGroup(typer.Typer):
    """Commands whose parameters may be shared options: a :class:`SharedOptions`, or ``Annotated`` with some fields."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Return a decorator that adds a command with its shared options."""
        add = super().command(name, **settings)

        def decorate(command: Command) -> Command:
            return add(with_shared_options(command))

        return decorate


def with_shared_options(command: Command) -> Command:
    """Return a command that takes the fields of its shared options as options of its own.

    Arguments among them come before those of the command, required ones first; options come after those of the command.
    """
    own: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[SharedOptions], list[inspect.Parameter]]] = {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        kind = getattr(parameter.annotation, "__origin__", parameter.annotation)
        if isinstance(kind, type) and issubclass(kind, SharedOptions):
            fields = inspect.signature(kind, eval_str=True).parameters
            names = getattr(parameter.annotation, "__metadata__", fields)
            groups[parameter.name] = kind, [_in_panel(fields[name], kind.panel) for name in names]
        else:
            own.append(parameter)

    def with_groups(**values: Any) -> None:
        for name, (kind, fields) in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields})
        command(**values)

    shared = [field for _, fields in groups.values() for field in fields]
    arguments = sorted(filter(_is_argument, [*shared, *own]), key=lambda p: p.default is not p.empty)
    ordered = [*arguments, *(p for p in [*own, *shared] if not _is_argument(p))]
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in ordered]
    with_groups.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_groups.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    with_groups.__name__, with_groups.__doc__ = command.__name__, command.__doc__
    return with_groups


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
class RunOptions(SharedOptions):
    """Options that do not change what a command does."""

    panel = "Run"
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


QuietRun = Annotated[RunOptions, "quiet"]
ThreadedRun = Annotated[RunOptions, "threads", "quiet"]


@dataclass(frozen=True)
class ClusterOptions(SharedOptions):
    """Cluster to compute on, if any."""

    panel = "Cluster"
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
                both = f"{option} and {use} are the same file, so one result would be overwritten"
                conflict = f"{option} is an input file, which would be overwritten" if use == "read" else both
                raise FileError(name, f"{conflict}; name another file")
        models = {folder, *(other for other, use in used.items() if use != "read")}
        if models & {*path.parents}:
            raise FileError(name, f"{option} is in the folder of a model; name a file outside")
        used[path] = option


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
