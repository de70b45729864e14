"""Every error hinet raises on purpose, as one tree.

::

    HiNetError
    ├── FileError        a file cannot be read or written as asked; names file and line
    ├── TaxonomyError    a hierarchy contradicts itself; carries the list of problems
    └── LabelError       a label or trace does not fit the taxonomy; names the row

The command line and the server translate these for their users; the library knows neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path

_LONGEST_SHOWN = 60
_MOST_NAMES_COMPARED = 1_000


class HiNetError(ValueError):
    """Root of all errors that a user of hinet can cause and mend; a ValueError, as callers of such libraries expect."""


class FileError(HiNetError):
    """A file cannot be read or written as asked."""

    def __init__(self, path: str | Path, message: str, line: int | None = None) -> None:
        self.path = str(path)
        self.message = message
        self.line = line
        where = self.path if line is None else f"{self.path}:{line}"
        super().__init__(f"{where}: {message}")


class TaxonomyError(HiNetError):
    """A hierarchy contradicts itself; ``problems`` lists all that was found where a source was checked."""

    def __init__(self, message: str, problems: Sequence[object] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class LabelError(HiNetError):
    """A label or trace does not fit the taxonomy."""


def shown(value: str) -> str:
    """Quote ``value`` for a message, shortened so that it fits a line.

    >>> shown("Sheep")
    "'Sheep'"
    """
    return repr(value if len(value) <= _LONGEST_SHOWN else value[: _LONGEST_SHOWN - 1] + "…")


def did_you_mean(value: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'Sheep'?"`` for the nearest known name, or nothing.

    >>> did_you_mean("Sheeps", ["Cow", "Sheep"])
    "; did you mean 'Sheep'?"
    """
    names = list(known)
    stripped = value.strip()
    if stripped != value and stripped in names:
        return f"; did you mean {shown(stripped)}, without the blanks around it?"
    # A fuzzy comparison is slow: only names of about the same length and the same first letter are compared.
    start, slack = value[:1].casefold(), 2 + len(value) // 4
    alike = [name for name in names if abs(len(name) - len(value)) <= slack and name[:1].casefold() == start]
    typos = [name for name in alike if len(name) == len(value) and sum(map(str.__ne__, name, value)) == 1]
    near = typos[:1] or get_close_matches(value[:200], alike[:_MOST_NAMES_COMPARED], n=1, cutoff=0.75)
    return f"; did you mean {shown(near[0])}?" if near else ""
