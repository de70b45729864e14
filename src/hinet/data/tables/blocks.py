"""Blocks of rows from a file, with the line of each row, and the objects that receive invalid rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

from hinet.choices import TableFormat
from hinet.data.tables.arrow_values import row_bytes, take_rows, to_python
from hinet.data.tables.formats import TableOptions
from hinet.errors import FileError
from hinet.files.atomic import new_file
from hinet.files.delimited import missing_column_message
from hinet.files.streams import PeekedStream

MAX_ROWS = 8_192  # maximum rows per block
MAX_CHARACTERS = 4_000_000  # maximum characters per block of more than one row
MAX_REJECT_CHARACTERS = 10_000  # longer rows are cut in a file of rejects

Unit = Literal["line", "row"]  # what the number of a row counts
Cells = dict[str, list[Any]]


class RowErrors(Protocol):
    """Receives invalid rows."""

    count: int  # number of invalid rows so far
    fail_fast: bool  # whether the first one raises, so that rows before it must be checked first

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Add an invalid row: its file and number, why it is invalid, and its text."""


class FailFast:
    """Raises FileError at the first invalid row; ``hint`` is appended to the message."""

    count, fail_fast = 0, True

    def __init__(self, hint: str = "") -> None:
        self._hint = hint

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Raise FileError."""
        if unit == "row":
            raise FileError(path, f"row {number}: {reason}{self._hint}")
        raise FileError(path, f"{reason}{self._hint}", line=number)


class Skipped:
    """Leaves invalid rows out; with ``rows``, collects the arguments of `add` there, to report them later."""

    fail_fast = False

    def __init__(self, rows: list[tuple[str, int, str, str, Unit]] | None = None) -> None:
        self.count, self._rows = 0, rows

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Count the row."""
        self.count += 1
        if self._rows is not None:
            self._rows.append((path, number, reason, row, unit))


class Rejects:
    """Writes invalid rows to a CSV file with the columns file, place, reason and row; without rows, no file."""

    fail_fast = False

    def __init__(self, path: str | Path, open_files: ExitStack) -> None:
        self.path, self.count = Path(path), 0
        self._open_files = open_files
        self._stream: IO[bytes] | None = None

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Write the row."""
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        if self._stream is None:
            self._stream = self._open_files.enter_context(new_file(self.path))
            writer.writerow(("file", "place", "reason", "row"))
        self.count += 1
        text = row if len(row) <= MAX_REJECT_CHARACTERS else row[: MAX_REJECT_CHARACTERS - 1] + "…"
        writer.writerow((path, f"{unit} {number}", reason, text))
        self._stream.write(lines.getvalue().encode(errors="backslashreplace"))


@contextmanager
def collect_rejects(path: str | Path) -> Iterator[Rejects]:
    """Yield rejects whose file appears when the block ends, and not if it raises."""
    with ExitStack() as open_files:
        yield Rejects(path, open_files)


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a file: the selected columns, and the line of every row (in Parquet and Excel, its number)."""

    path: str
    format: TableFormat
    numbers: list[int]
    cells: Cells  # strings or None; any value in JSON lines and Parquet
    arrays: Mapping[str, Any] = field(default_factory=dict)  # Parquet and ARFF: these and other columns as Arrow arrays
    positions: list[int] = field(default_factory=list)  # row positions in the file from 0, invalid rows included

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def unit(self) -> Unit:
        """The unit of ``numbers``."""
        return unit_of(self.format)

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the Arrow arrays; 0 for text formats, whose files are not smaller than their rows."""
        return sum(int(row_bytes(array).sum()) for array in self.arrays.values())

    @property
    def names(self) -> list[str]:
        """The columns that were read."""
        return list(self.arrays or self.cells)

    def values(self, name: str) -> list[Any]:
        """Return a column as Python values."""
        return self.cells[name] if name in self.cells else to_python(self.arrays[name], errors="backslashreplace")

    def column(self, name: str) -> Any:
        """Return a column unchanged, as an Arrow array if there is one."""
        return self.arrays[name] if name in self.arrays else self.cells[name]

    def take(self, rows: Sequence[int]) -> RowBlock:
        """Return the selected rows."""
        cells = {name: [column[row] for row in rows] for name, column in self.cells.items()}
        arrays = {name: take_rows(array, rows) for name, array in self.arrays.items()}
        positions = [self.positions[row] for row in rows] if self.positions else []
        return RowBlock(self.path, self.format, [self.numbers[row] for row in rows], cells, arrays, positions)

    def to_json(self, row: int) -> str:
        """Return a row as JSON."""
        block = self.take([row])
        return json.dumps({name: block.values(name)[0] for name in block.names}, ensure_ascii=False, default=str)


def unit_of(format: TableFormat) -> Unit:
    """Return the unit of row numbers in files of a format."""
    return "row" if format in ("parquet", "xlsx") else "line"


@dataclass(frozen=True)
class ColumnSelection:
    """Columns to read: ``columns``, which every row must have, those to ``keep``, and with ``read_all`` all others.

    ``explicit`` means that the user named them, so that a file without them is an error.
    """

    columns: tuple[str, ...]
    keep: tuple[str, ...] = ()
    read_all: bool = False
    explicit: bool = True
    parameters: Mapping[str, str] = field(default_factory=dict)  # the parameter that names each column

    @property
    def required(self) -> tuple[str, ...]:
        """All columns that a file must have."""
        return tuple(dict.fromkeys([*self.columns, *self.keep]))

    def missing_column(self, names: Sequence[str]) -> str:
        """Return the message for the first required column that is not among ``names``, or an empty string."""
        known = {*names}
        missing = next((column for column in self.required if column not in known), None)
        return "" if missing is None else self.missing_message(missing, names)

    def missing_message(self, column: str, names: Sequence[str]) -> str:
        """Return the message for a column that is not among ``names``."""
        parameter = self.parameters.get(column)
        return missing_column_message(column, names) + (f"; set `{parameter}` to another column" if parameter else "")

    def select(self, names: Sequence[str]) -> list[str]:
        """Return the columns to read from a file with these names."""
        return list(names) if self.read_all else list(self.required)


@dataclass(frozen=True)
class TableFile:
    """An open file with everything needed to read it."""

    path: str
    peeked: PeekedStream
    format: TableFormat
    selection: ColumnSelection
    options: TableOptions
    row_errors: RowErrors


class Row(NamedTuple):
    """A valid row."""

    number: int
    values: Any  # a list of cells, or a dict by column
    characters: int


class BadRow(NamedTuple):
    """An invalid row; a fatal one makes it impossible to find the next row."""

    number: int
    reason: str
    text: str
    is_fatal: bool = False


class RowSource(NamedTuple):
    """The rows of a file, and a function that converts the values of some of them to columns."""

    rows: Iterator[Row | BadRow]
    cells_of: Callable[[list[Any]], Cells]


def in_blocks(file: TableFile, source: RowSource) -> Iterator[RowBlock]:
    """Yield rows in blocks; before an invalid row raises, the rows before it, which may be invalid too."""
    rows: list[Row] = []
    positions: list[int] = []
    characters = 0

    def block() -> RowBlock:
        cells = source.cells_of([row.values for row in rows])
        return RowBlock(file.path, file.format, [row.number for row in rows], cells, positions=positions)

    for position, row in enumerate(source.rows):
        if isinstance(row, Row):
            rows.append(row)
            positions.append(position)
            characters += row.characters
            is_full = len(rows) >= MAX_ROWS or characters >= MAX_CHARACTERS
        else:
            is_full = bool(rows) and (file.row_errors.fail_fast or row.is_fatal)
        if is_full:
            yield block()
            rows, positions, characters = [], [], 0
        if isinstance(row, BadRow):
            if row.is_fatal:
                raise FileError(file.path, row.reason, line=row.number)
            file.row_errors.add(file.path, row.number, row.reason, row.text, unit_of(file.format))
    if rows:
        yield block()
