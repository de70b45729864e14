"""Formats of tables, and blocks of their rows: the line of each row, and the objects that receive invalid rows.

The format is as given, by the file name, or by the first bytes.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from hinet.choices import TableFormat
from hinet.data.tables.cells import row_bytes, take_rows, to_python
from hinet.errors import FileError
from hinet.files.atomic import new_file
from hinet.files.delimited import (
    EXCEL_DELIMITER,
    QuoteError,
    Records,
    first_line,
    guess_delimiter,
    missing_column_message,
)
from hinet.files.sheets import EXCEL
from hinet.files.streams import STANDARD, PeekedStream, check_encoding, open_bytes, peek_stream, strip_compression
from hinet.taxonomy.arff import is_arff

TEXT_COLUMN = "text"  # the column of plain lines
PARQUET = b"PAR1"
MAX_CELL_LINES = 100  # lines that a quoted cell may span
SAMPLE_BYTES = 1 << 20  # size of the sample from which the number of rows is estimated
COMPRESSION_RATIO = 4  # typical ratio for compressed text

_HEADER = re.compile(r"\w+([,;|\t]\w+)+")  # single words with delimiters and no spaces between them
_BY_SUFFIX: dict[str, TableFormat] = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet", ".arff": "arff", ".xlsx": "xlsx", ".xlsm": "xlsx",
}  # fmt: skip
MAX_ROWS = 8_192  # maximum rows per block
MAX_CHARACTERS = 4_000_000  # maximum characters per block of more than one row
MAX_REJECT_CHARACTERS = 10_000  # longer rows are cut in a file of rejects
Unit = Literal["line", "row"]  # what the number of a row counts
Cells = dict[str, list[Any]]


@dataclass(frozen=True)
class TableOptions:
    """How to read tables; None means detect."""

    format: TableFormat | None = None
    delimiter: str | None = None
    quotes: bool | None = None  # whether cells may be quoted
    encoding: str = "utf-8"
    on_read: Callable[[], None] | None = None  # called before each read of a text or Excel file; may raise to stop
    max_unpacked: int | None = None  # maximum bytes of an unpacked Excel file; by default what memory allows

    def __post_init__(self) -> None:
        check_encoding(self.encoding)


def format_of_name(path: str | Path) -> TableFormat | None:
    """Return the format of the file suffix, ignoring that of the compression."""
    return _BY_SUFFIX.get(Path(strip_compression(path)).suffix.lower())


def format_of(
    path: str | Path, head: bytes, options: TableOptions, columns: Sequence[str], explicit: bool
) -> TableFormat:
    """Return the format of a file from its name and first bytes.

    If the suffix is unknown, text that does not start with a header of the ``columns`` is plain lines, unless the
    columns are ``explicit`` or its first line looks like a header.
    """
    if options.format is not None:
        return options.format
    if head.startswith(PARQUET):
        return "parquet"
    if head.startswith(EXCEL):
        return "xlsx"
    named_format = None if str(path) == STANDARD else format_of_name(path)
    if named_format is not None:
        return named_format
    text = head.decode(options.encoding, errors="replace").lstrip("\ufeff")
    if text.lstrip().startswith("{"):
        return "jsonl"
    if is_arff(text):
        return "arff"
    delimiter = options.delimiter or delimiter_of(text)
    line = first_line(io.StringIO(text, newline="")).strip()
    header = [name.strip().strip('"') for name in line.split(delimiter)]
    if explicit or all(column in header for column in columns) or _HEADER.fullmatch(line):
        return "tsv" if delimiter == "\t" else "csv"
    return "text"


def delimiter_of(text: str) -> str:
    """Return the delimiter of a table, guessed from its first lines."""
    excel = EXCEL_DELIMITER.match(text)
    return excel[1] if excel else guess_delimiter(first_line(io.StringIO(text, newline=""))) or ","


def has_quotes(text: str, delimiter: str, is_cut: bool) -> bool:
    """Return whether cells may be quoted: always, except in tab-separated files that break the quoting rules."""
    if delimiter != "\t":
        return True
    lines = io.StringIO(text, newline="").readlines()
    try:
        for _ in Records("", lines[:-1] if is_cut else lines, delimiter, quotes=True):
            pass
    except QuoteError as error:
        return is_cut and (error.line or 0) > len(lines) - MAX_CELL_LINES  # the text may end within a cell
    return True


def estimate_rows(paths: Sequence[str]) -> int:
    """Return the approximate number of rows in files: exact for Parquet, else estimated from the first lines."""
    rows = 0
    for path in paths:
        with open_bytes(path) as raw:
            sample = peek_stream(raw).stream.read(SAMPLE_BYTES)
        if sample.startswith(PARQUET):
            import pyarrow.parquet as pq

            rows += int(pq.read_metadata(path).num_rows)
        else:
            size = Path(path).stat().st_size * (1 if strip_compression(path) == path else COMPRESSION_RATIO)
            rows += max(1, round(sample.count(b"\n") * size / max(len(sample), 1)))
    return rows


class RowErrors:
    """Receives invalid rows."""

    count = 0  # number of invalid rows so far
    blank_lines = 0  # number of blank lines before rows so far; they are not rows
    fail_fast = False  # whether the first one raises, so that rows before it must be checked first

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Add an invalid row: its file and number, why it is invalid, and its text."""
        raise NotImplementedError


class FailFast(RowErrors):
    """Raises FileError at the first invalid row; ``hint`` is appended to the message."""

    fail_fast = True

    def __init__(self, hint: str = "") -> None:
        self._hint = hint

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Raise FileError."""
        if unit == "row":
            raise FileError(path, f"row {number}: {reason}{self._hint}")
        raise FileError(path, f"{reason}{self._hint}", line=number)


class Skipped(RowErrors):
    """Leaves invalid rows out; with ``rows``, collects the arguments of `add` there, to report them later."""

    def __init__(self, rows: list[tuple[str, int, str, str, Unit]] | None = None) -> None:
        self._rows = rows

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Count the row."""
        self.count += 1
        if self._rows is not None:
            self._rows.append((path, number, reason, row, unit))


class Rejects(RowErrors):
    """Writes invalid rows to a CSV file with the columns file, place, reason and row; without rows, no file."""

    def __init__(self, path: str | Path, open_files: ExitStack) -> None:
        self.path, self._open_files = Path(path), open_files
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
        """Size of the Arrow arrays or Excel texts; 0 for text formats, whose files are not smaller than their rows."""
        if self.format == "xlsx":
            return sum(len(cell) for column in self.cells.values() for cell in column if isinstance(cell, str))
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


def in_blocks(
    file: TableFile, source: Iterable[Row | BadRow], cells_of: Callable[[list[Any]], Cells]
) -> Iterator[RowBlock]:
    """Yield rows in blocks; before an invalid row raises, the rows before it, which may be invalid too.

    ``cells_of`` converts the values of rows to columns.
    """
    rows: list[Row] = []
    positions: list[int] = []
    characters = 0

    def block() -> RowBlock:
        cells = cells_of([row.values for row in rows])
        return RowBlock(file.path, file.format, [row.number for row in rows], cells, positions=positions)

    for position, row in enumerate(source):
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
