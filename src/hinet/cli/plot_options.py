"""The check of a plot's file name before the work starts."""

from __future__ import annotations

from pathlib import Path

from hinet.errors import FileError
from hinet.extras import require

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
PLOT = "A .png, .svg or .pdf file; needs the extra 'plot'."


def check_plot(path: Path | None) -> None:
    """Refuse a plot that could not be drawn."""
    if path is None:
        return
    require("matplotlib", "a plot")
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise FileError(path, "a plot is written as .png, .svg or .pdf; rename it")
    if not path.resolve().parent.is_dir():
        raise FileError(path, "cannot be written: the folder does not exist")
