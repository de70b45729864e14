"""The check of a plot's file name before the work starts."""

from __future__ import annotations

from pathlib import Path

from hinet.errors import FileError

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
PLOT = "A .png, .svg or .pdf file; needs the extra 'plot'."


def check_plot(path: Path | None) -> None:
    """Raise HiNetError if a plot could not be saved."""
    from hinet.evaluation.plots import require_matplotlib

    if path is None:
        return
    require_matplotlib()
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise FileError(path, "a plot is written as .png, .svg or .pdf; rename it")
    if not path.resolve().parent.is_dir():
        raise FileError(path, "cannot be written: the folder does not exist")
