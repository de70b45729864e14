"""Invalid rows: the first one raises, or each is written to a file of rejects with its reason."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Literal, Protocol

from hinet.errors import FileError
from hinet.files.atomic import new_file

Unit = Literal["line", "row"]  # what the number of a row counts

LONGEST_REJECT = 10_000  # characters of a row that are written


class RowErrors(Protocol):
    """Receives invalid rows."""

    count: int  # of invalid rows so far
    fail_fast: bool  # whether the first one raises, so that rows before it must be checked first

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Add an invalid row: its file and number, why it is invalid, and its text."""


class FailFast:
    """Raises FileError at the first invalid row; ``hint`` is appended to the message."""

    fail_fast = True

    def __init__(self, hint: str = "") -> None:
        self.count = 0
        self._hint = hint

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Raise FileError."""
        if unit == "row":
            raise FileError(path, f"row {number}: {reason}{self._hint}")
        raise FileError(path, f"{reason}{self._hint}", line=number)


class Rejects:
    """Writes invalid rows to a CSV file with the columns file, place, reason and row; without rows, no file."""

    fail_fast = False

    def __init__(self, path: str | Path, open_files: ExitStack) -> None:
        self.path = Path(path)
        self.count = 0
        self._open_files = open_files
        self._stream: IO[bytes] | None = None

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Write the row."""
        if self._stream is None:
            self._stream = self._open_files.enter_context(new_file(self.path))
            self._write(("file", "place", "reason", "row"))
        self.count += 1
        kept = row if len(row) <= LONGEST_REJECT else row[: LONGEST_REJECT - 1] + "…"
        self._write((path, f"{unit} {number}", reason, kept))

    def _write(self, cells: tuple[str, ...]) -> None:
        assert self._stream is not None
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self._stream.write(line.getvalue().encode(errors="backslashreplace"))


@contextmanager
def collect_rejects(path: str | Path) -> Iterator[Rejects]:
    """Yield rejects whose file appears when the block ends, and not if it raises."""
    with ExitStack() as open_files:
        yield Rejects(path, open_files)
