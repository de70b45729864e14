"""Checks of outputs before the work starts: that none overwrites an input or another output, and those of plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hinet.errors import FileError
from hinet.extras import require

STANDARD = "-"  # standard input or output
PLOT_SUFFIXES = (".png", ".svg", ".pdf")
PLOT = "A .png, .svg or .pdf file; needs the extra 'plot'."

Name = str | Path


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
                raise FileError(name, f"{_clash(option, use)}; name another file")
        models = {folder, *(other for other, use in used.items() if use != "read")}
        if models & {*path.parents}:
            raise FileError(name, f"{option} is in the folder of a model; name a file outside")
        used[path] = option


def _clash(option: str, use: str) -> str:
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
    """Refuse a plot that could not be drawn."""
    if path is None:
        return
    require("matplotlib", "a plot")
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise FileError(path, "a plot is written as .png, .svg or .pdf; rename it")
    if not path.resolve().parent.is_dir():
        raise FileError(path, "cannot be written: the folder does not exist")
