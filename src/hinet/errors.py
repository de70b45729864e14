"""Every error hinet raises on purpose, as one tree.

::

    HiNetError
    ├── FileError        a file cannot be read or written; names the file and the line
    ├── InputTypeError   the rows have an unsupported type; also a TypeError
    ├── TaxonomyError    a hierarchy is invalid; has the list of problems
    └── LabelError       a label or trace does not fit the taxonomy; names the row

The command line and the server translate them for their users. Messages put parameter names in backticks, which the
command line shows as options: `label_sep` becomes --label-sep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

_MAX_QUOTED = 60
_MAX_NAMES_COMPARED = 1_000


class HiNetError(ValueError):
    """Base class of all errors that a user can cause and fix; also a ValueError."""


class FileError(HiNetError):
    """A file cannot be read or written."""

    def __init__(self, path: str | Path, message: str, line: int | None = None) -> None:
        self.path = str(path)
        self.message = message
        self.line = line
        where = self.path if line is None else f"{self.path}:{line}"
        super().__init__(f"{where}: {message}")


class InputTypeError(HiNetError, TypeError):
    """The rows have an unsupported type; also a TypeError, as in scikit-learn."""


class TaxonomyError(HiNetError):
    """A hierarchy is invalid; ``problems`` lists all problems of its source."""

    def __init__(self, message: str, problems: Sequence[object] = ()) -> None:
        self.problems = tuple(problems)
        super().__init__(message)


class LabelError(HiNetError):
    """A label or trace does not fit the taxonomy."""


def quoted(value: str) -> str:
    """Return ``value`` in quotes for a message, shortened to fit a line.

    >>> quoted("Sheep")
    "'Sheep'"
    """
    return repr(value if len(value) <= _MAX_QUOTED else value[: _MAX_QUOTED - 1] + "…")


def printable(text: str) -> str:
    r"""Return ``text`` with escapes for characters that a terminal does not show as they are.

    >>> printable("tab\t, right to left \u202e, é")
    'tab\\t, right to left \\u202e, é'
    """
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def counted(number: int, noun: str) -> str:
    """Return a number with a noun such as ``"row"``, which is in the plural unless the number is 1.

    >>> counted(1, "row"), counted(1200, "training row"), counted(2, "more child/more children")
    ('1 row', '1,200 training rows', '2 more children')
    """
    one, _, several = noun.partition("/")
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def format_value(value: Any) -> str:
    """Return the repr of any value for a message, on one line, with the type if the repr does not show it.

    >>> format_value("abc"), format_value([1, 2]), format_value(Path("model"))
    ("'abc'", '[1, 2]', "PosixPath('model')")
    """
    if isinstance(value, str):
        return quoted(value)
    try:
        text = " ".join(repr(value).split())
    except Exception:  # the __repr__ of a user's class fails
        return f"a value of type {type(value).__name__}"
    if len(text) > _MAX_QUOTED:
        text = text[: _MAX_QUOTED - 1] + "…"
    kind = type(value)
    return text if kind.__module__ == "builtins" or kind.__name__ in text else f"{kind.__name__} {text}"


def did_you_mean(value: str, candidates: Iterable[str]) -> str:
    """Return ``"; did you mean 'Sheep'?"`` for the nearest known name, or an empty text if none is near.

    >>> did_you_mean("Sheeps", ["Cow", "Sheep"])
    "; did you mean 'Sheep'?"
    """
    names = list(candidates)
    stripped = value.strip()
    if stripped != value and stripped in names:
        return f"; did you mean {quoted(stripped)}, without the spaces around it?"
    # A fuzzy comparison is slow: compare only names of about the same length with the same first letter.
    start, slack = value[:1].casefold(), 2 + len(value) // 4
    alike = [name for name in names if abs(len(name) - len(value)) <= slack and name[:1].casefold() == start]
    typos = [name for name in alike if len(name) == len(value) and sum(map(str.__ne__, name, value)) == 1]
    ends = [
        name for name in names if value and name.endswith((f"/{value}", f"#{value}", f":{value}"))
    ]  # the last part of an IRI
    near = typos[:1] or ends[:1] or get_close_matches(value[:200], alike[:_MAX_NAMES_COMPARED], n=1, cutoff=0.75)
    return f"; did you mean {quoted(near[0])}?" if near else ""
