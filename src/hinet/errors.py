"""Every error hinet raises on purpose, as one tree.

::

    HiNetError
    ├── FileError        a file cannot be read or written as asked; names file and line
    ├── InputTypeError   rows are of a type that cannot be used; a TypeError as well
    ├── TaxonomyError    a hierarchy contradicts itself; carries the list of problems
    └── LabelError       a label or trace does not fit the taxonomy; names the row

The command line and the server translate these for their users; the library knows neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

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


class InputTypeError(HiNetError, TypeError):
    """Rows are of a type that cannot be used; a TypeError as well, as scikit-learn has it."""


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


def described(value: Any) -> str:
    """Return any value for a message: as Python writes it, with its type where that does not say it, on one line.

    >>> described("abc"), described([1, 2]), described(Path("model"))
    ("'abc'", '[1, 2]', "PosixPath('model')")
    """
    if isinstance(value, str):
        return shown(value)
    try:
        written = " ".join(repr(value).split())
    except Exception:  # of a class of the user's own
        return f"a value of type {type(value).__name__}"
    if len(written) > _LONGEST_SHOWN:
        written = written[: _LONGEST_SHOWN - 1] + "…"
    kind = type(value)
    return written if kind.__module__ == "builtins" or kind.__name__ in written else f"{kind.__name__} {written}"


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
