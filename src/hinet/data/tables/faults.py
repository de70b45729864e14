"""Rows that cannot be used: the first ends the work, or each is set aside in a file with its reason."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Literal, Protocol

from hinet.errors import FileError
from hinet.files import new_file

Unit = Literal["line", "row"]  # what a place in a file is counted in

LONGEST_REJECT = 10_000  # characters of a row that are kept


class Faults(Protocol):
    """Hears of rows that cannot be used."""

    count: int  # of such rows so far
    ends: bool  # whether the first of them ends the work, so that rows before it are to be looked at first

    def found(self, path: str, place: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Hear of a row: where it is, why it cannot be used, and its text."""


class Unforgiving:
    """Raises FileError at the first row that cannot be used, with another way out if there is one."""

    ends = True

    def __init__(self, way_out: str = "") -> None:
        self.count = 0
        self._way_out = way_out

    def found(self, path: str, place: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Raise."""
        if unit == "row":
            raise FileError(path, f"row {place}: {reason}{self._way_out}")
        raise FileError(path, f"{reason}{self._way_out}", line=place)


class Rejects:
    """Sets rows aside in a CSV file with the columns file, place, reason and row; no rows, no file."""

    ends = False

    def __init__(self, path: str | Path, open_files: ExitStack) -> None:
        self.path = Path(path)
        self.count = 0
        self._open_files = open_files
        self._stream: IO[bytes] | None = None

    def found(self, path: str, place: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Write the row down."""
        if self._stream is None:
            self._stream = self._open_files.enter_context(new_file(self.path))
            self._write(("file", "place", "reason", "row"))
        self.count += 1
        kept = row if len(row) <= LONGEST_REJECT else row[: LONGEST_REJECT - 1] + "…"
        self._write((path, f"{unit} {place}", reason, kept))

    def _write(self, cells: tuple[str, ...]) -> None:
        assert self._stream is not None
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self._stream.write(line.getvalue().encode(errors="backslashreplace"))


@contextmanager
def setting_aside(path: str | Path) -> Iterator[Rejects]:
    """Yield rejects whose file is complete if the block ends well, and not there if not."""
    with ExitStack() as open_files:
        yield Rejects(path, open_files)
