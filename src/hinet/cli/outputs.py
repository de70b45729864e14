"""What a command reads and what it writes: no result is written over an input, or over another result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hinet.errors import FileError

STANDARD = "-"  # standard input or output, which is no file

Name = str | Path


def check_outputs(reads: Iterable[Name | None], writes: Mapping[str, Name | None], model: Name | None = None) -> None:
    """Refuse, before any work, a result whose file is an input or another result, by whatever name or link.

    ``writes`` maps the option that names a result to its file or folder. Nothing may be written into the folder of the
    ``model`` that is read, or into one that is written.
    """
    folder = _place(model)
    taken: dict[Path, str] = {place: "read" for name in reads if (place := _place(name)) is not None}
    for option, name in writes.items():
        place = _place(name)
        if name is None or place is None:
            continue
        for other, by in taken.items():
            if _is_same(place, other):
                raise FileError(name, f"{_clash(option, by)}; name another file")
        models = {folder, *(other for other, by in taken.items() if by != "read")}
        if models & {*place.parents}:
            raise FileError(name, f"{option} lies in the folder of a model; name a file outside")
        taken[place] = option


def _clash(option: str, by: str) -> str:
    if by == "read":
        return f"{option} is a file that is read, which would be lost"
    return f"{option} and {by} are one file, so that one result would be lost"


def _place(name: Name | None) -> Path | None:
    """Return where a file is or will be; nothing for pipes and devices, which hold nothing that could be lost."""
    if name is None or str(name) == STANDARD or "\0" in str(name):
        return None
    try:
        place = Path(name).resolve()
    except RuntimeError:  # as Python says it before 3.13
        raise FileError(name, "is a link to itself; name another file") from None
    return None if place.exists() and not place.is_file() and not place.is_dir() else place


def _is_same(place: Path, other: Path) -> bool:
    return place == other or (place.exists() and other.exists() and place.samefile(other))
