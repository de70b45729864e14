"""Rows of files in blocks, each with the place of every row: so that any file is read in constant memory."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hinet.data.tables.faults import Faults, Unit
from hinet.data.tables.formats import (
    PARQUET,
    TEXT_COLUMN,
    TableFormat,
    TableOptions,
    delimiter_of,
    format_of,
    has_quotes,
)
from hinet.errors import FileError, shown
from hinet.files.delimited import (
    EXCEL_DELIMITER,
    LONGEST_CELL,
    QuoteError,
    Records,
    check_delimiter,
    column_names,
    no_column,
    wrong_width,
)
from hinet.files.streams import STANDARD, Opened, open_bytes, with_head
from hinet.files.text import is_utf8, refuse_binary

MOST_ROWS = 8_192  # of a block
MOST_CHARACTERS = 4_000_000  # of a block, but for one row
NO_QUOTES = "; or read the file without quotes, if they have no meaning in it"


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a file: the wanted columns, and the line of every row (its number in a Parquet file)."""

    path: str
    format: TableFormat
    places: list[int]
    cells: dict[str, list[Any]]  # text or None; from JSON lines and Parquet any value
    arrays: Mapping[str, Any] = field(default_factory=dict)  # the same as Arrow arrays, from Parquet

    def __len__(self) -> int:
        return len(self.places)

    @property
    def unit(self) -> Unit:
        """What places are counted in."""
        return "row" if self.format == "parquet" else "line"

    def described(self, row: int) -> str:
        """Return a row as text, for a person."""
        return json.dumps({name: cells[row] for name, cells in self.cells.items()}, ensure_ascii=False, default=str)

    def take(self, rows: Sequence[int]) -> RowBlock:
        """Return the chosen rows."""
        cells = {name: [column[row] for row in rows] for name, column in self.cells.items()}
        arrays = {name: array.take(list(rows)) for name, array in self.arrays.items()}
        return RowBlock(self.path, self.format, [self.places[row] for row in rows], cells, arrays)

    def column(self, name: str) -> Any:
        """Return a column as it came, to be carried over."""
        return self.arrays.get(name, self.cells[name])


@dataclass(frozen=True)
class Wanted:
    """Columns to read: these, which every row must have, those to ``keep``, and all others as well if ``every``.

    ``named`` says that a person named them, so that a file without them is an error.
    """

    columns: tuple[str, ...]
    keep: tuple[str, ...] = ()
    every: bool = False
    named: bool = True

    @property
    def both(self) -> tuple[str, ...]:
        """All columns that a table must have."""
        return tuple(dict.fromkeys([*self.columns, *self.keep]))

    def among(self, names: Sequence[str]) -> list[str]:
        """Return which of the columns of a table to read."""
        return list(names) if self.every else list(self.both)


def read_blocks(paths: Sequence[str], wanted: Wanted, options: TableOptions, faults: Faults) -> Iterator[RowBlock]:
    """Yield the rows of files, one file after the other; ``-`` is standard input.

    Raises
    ------
    FileError
        If a file cannot be read, or lacks a wanted column. Rows that cannot be used go to ``faults``.
    """
    for path in paths:
        rows, faults_before = 0, faults.count
        with open_bytes(path) as raw:
            opened = with_head(raw)
            chosen = format_of(path, opened.head, options, wanted.columns, wanted.named)
            if chosen == "parquet":
                blocks = _parquet_blocks(path, opened, wanted, faults)
            else:
                blocks = _text_blocks(path, opened, chosen, wanted, options, faults)
            for block in blocks:
                rows += len(block)
                yield block
        if not rows and faults.count == faults_before:
            raise FileError(path, "there are no rows in the file")


def _text_blocks(
    path: str, opened: Opened, chosen: TableFormat, wanted: Wanted, options: TableOptions, faults: Faults
) -> Iterator[RowBlock]:
    """Yield blocks of a file of text, free of what is no text."""
    if is_utf8(options.encoding):
        refuse_binary(path, opened.head)
    encoding = "utf-8-sig" if is_utf8(options.encoding) else options.encoding
    # Bytes that are no text become lone surrogates, which are found when the block is complete.
    text = io.TextIOWrapper(opened.stream, encoding, errors="surrogateescape", newline="")
    lines = _lines(path, text, faults)
    try:
        if chosen == "jsonl":
            blocks = _json_blocks(path, lines, wanted, faults)
        elif chosen == "text":
            blocks = _line_blocks(path, lines, wanted)
        else:
            sample = _Sample(opened.head.decode(encoding, errors="replace"), not opened.is_all)
            blocks = _delimited_blocks(path, lines, sample, chosen, wanted, options, faults)
        for block in blocks:
            yield _readable(block, options.encoding, faults)
    except UnicodeError as error:
        raise FileError(path, f"is not {options.encoding} text: {error}; name its encoding") from None
    finally:
        text.detach()


def _lines(path: str, text: io.TextIOWrapper, faults: Faults) -> Iterator[str]:
    """Yield lines with their endings; one that is too long is told, and is blank."""
    number = 0
    while line := text.readline(LONGEST_CELL + 1):
        number += 1
        if len(line) > LONGEST_CELL:
            while (more := text.readline(LONGEST_CELL)) and not more.endswith(("\n", "\r")):
                pass
            faults.found(path, number, f"the line is longer than {LONGEST_CELL:,} characters; leave it out", line)
            line = "\n"
        yield line


class _Sample(NamedTuple):
    """The first lines of a file."""

    text: str
    is_cut: bool  # whether there is more


def _delimited_blocks(
    path: str,
    lines: Iterator[str],
    sample: _Sample,
    chosen: TableFormat,
    wanted: Wanted,
    options: TableOptions,
    faults: Faults,
) -> Iterator[RowBlock]:
    delimiter = options.delimiter or ("\t" if chosen == "tsv" else delimiter_of(sample.text))
    check_delimiter(path, delimiter)
    quotes = has_quotes(sample.text, delimiter, sample.is_cut) if options.quotes is None else options.quotes
    if EXCEL_DELIMITER.match(sample.text):
        lines = _blank_first(lines)
    records = Records(path, lines, delimiter, quotes=quotes, empty_rows=True)
    try:
        header = next(records, None)
    except QuoteError as error:
        raise FileError(path, error.message + NO_QUOTES, error.line) from None
    if header is None:
        raise FileError(path, "the file is empty; the first line names the columns", line=1)
    names = column_names(path, header, records.first)
    places = {name: at for at, name in enumerate(names)}
    for column in wanted.both:
        if column not in places:
            passed = "; lines before it that start with # were taken for comments" if records.comments else ""
            raise FileError(path, no_column(column, names) + passed, line=records.first)
    gathered = _Gathered(path, chosen, wanted.among(names))
    while True:
        try:
            record = next(records, None)
        except QuoteError as error:
            if gathered.rows and faults.ends:
                yield gathered.block(places)
            if records.last > records.first:  # it swallowed rows that nobody could tell apart
                through = f" (it runs on to line {records.last:,})"
                raise FileError(path, error.message + through + NO_QUOTES, error.line) from None
            faults.found(path, records.first, error.message + NO_QUOTES, "")
            continue
        if record is None:
            break
        if len(record) != len(names):
            if gathered.rows and faults.ends:
                yield gathered.block(places)
            faults.found(path, records.first, wrong_width(record, len(names), delimiter), delimiter.join(record))
            continue
        if gathered.add(records.first, record):
            yield gathered.block(places)
    if gathered.rows:
        yield gathered.block(places)


def _blank_first(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines with the first, which tells Excel the delimiter, made blank."""
    next(lines)
    yield "\n"
    yield from lines


class _Gathered:
    """Rows of a block on their way."""

    def __init__(self, path: str, format: TableFormat, columns: Sequence[str]) -> None:
        self._path, self._format, self._columns = path, format, columns
        self.rows: list[list[str]] = []
        self._places: list[int] = []
        self._characters = 0

    def add(self, place: int, row: list[str]) -> bool:
        """Add a row; return whether the block is full."""
        self.rows.append(row)
        self._places.append(place)
        self._characters += sum(map(len, row))
        return len(self.rows) >= MOST_ROWS or self._characters >= MOST_CHARACTERS

    def block(self, places: dict[str, int]) -> RowBlock:
        """Return the block, and start the next."""
        by_place = list(zip(*self.rows, strict=True))
        found = RowBlock(
            self._path, self._format, self._places, {name: list(by_place[places[name]]) for name in self._columns}
        )
        self.rows, self._places, self._characters = [], [], 0
        return found


def _line_blocks(path: str, lines: Iterator[str], wanted: Wanted) -> Iterator[RowBlock]:
    """Yield plain lines as rows of one column, called as the column of the text is."""
    column = wanted.columns[0] if wanted.columns else TEXT_COLUMN
    for other in wanted.both[1:]:
        raise FileError(path, f"plain lines have no column {shown(other)}; give a table, or name its format")
    gathered = _Gathered(path, "text", [column])
    for number, line in enumerate(lines, start=1):
        if gathered.add(number, [line.rstrip("\r\n")]):
            yield gathered.block({column: 0})
    if gathered.rows:
        yield gathered.block({column: 0})


def _json_blocks(path: str, lines: Iterator[str], wanted: Wanted, faults: Faults) -> Iterator[RowBlock]:
    """Yield rows that are JSON objects; those of the first block say which columns there are."""
    gathered = _GatheredObjects(path, wanted)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        reason, row = _json_row(line, wanted.columns)
        if reason:
            if gathered.rows and faults.ends:
                yield gathered.block()
            faults.found(path, number, reason, line.rstrip("\r\n"))
        elif gathered.add(number, row, len(line)):
            yield gathered.block()
    if gathered.rows:
        yield gathered.block()


class _GatheredObjects:
    """JSON objects of a block on their way."""

    def __init__(self, path: str, wanted: Wanted) -> None:
        self._path, self._wanted = path, wanted
        self._columns: list[str] = []
        self._clear()

    def _clear(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._places: list[int] = []
        self._characters = 0

    def add(self, place: int, row: dict[str, Any], characters: int) -> bool:
        """Add a row; return whether the block is full."""
        self.rows.append(row)
        self._places.append(place)
        self._characters += characters
        return len(self.rows) >= MOST_ROWS or self._characters >= MOST_CHARACTERS

    def block(self) -> RowBlock:
        """Return the block, and start the next."""
        if not self._columns:
            found = [name for row in self.rows for name in row] if self._wanted.every else []
            self._columns = list(dict.fromkeys([*found, *self._wanted.both]))
        cells = {name: [row.get(name) for row in self.rows] for name in self._columns}
        found_rows = RowBlock(self._path, "jsonl", self._places, cells)
        self._clear()
        return found_rows


def _json_row(line: str, columns: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return why a line is no row, or nothing, and the row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"no JSON object ({error}); write one object a line", {}
    if not isinstance(row, dict):
        return f"expected a JSON object, got {shown(line.strip())}; write one object a line", {}
    missing = next((column for column in columns if column not in row), None)
    return ("" if missing is None else no_column(missing, list(row))), row


def _readable(block: RowBlock, encoding: str, faults: Faults) -> RowBlock:
    """Return the rows without those that hold bytes or halves of characters that are no text."""
    bad: dict[int, str] = {}
    for column in block.cells.values():
        texts = [cell if isinstance(cell, str) else _all_text(cell) for cell in column]
        try:
            "\n".join(texts).encode()
        except UnicodeEncodeError:
            for row, text in enumerate(texts):
                if reason := _unreadable(text, encoding):
                    bad.setdefault(row, reason)
    for row, reason in sorted(bad.items()):
        faults.found(block.path, block.places[row], reason, block.described(row), block.unit)
    return block if not bad else block.take([row for row in range(len(block)) if row not in bad])


def _all_text(cell: Any) -> str:
    """Return all text in a value of JSON."""
    return json.dumps(cell, ensure_ascii=False, default=str) if isinstance(cell, (list, dict)) else ""


def _unreadable(cell: str, encoding: str) -> str:
    lone = next((character for character in cell if "\ud800" <= character <= "\udfff"), None)
    if lone is None:
        return ""
    if "\udc80" <= lone <= "\udcff":
        return f"byte 0x{ord(lone) - 0xDC00:02x} is not {encoding} text; save the file as UTF-8 or name its encoding"
    return "half of a surrogate pair; write the whole character"


def _parquet_blocks(path: str, opened: Opened, wanted: Wanted, faults: Faults) -> Iterator[RowBlock]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not opened.head.startswith(PARQUET):
        raise FileError(path, "is no Parquet file; name its format")
    try:
        with _seekable(path, opened.stream) as file:
            table = pq.ParquetFile(file)
            names = column_names(path, table.schema_arrow.names, None)
            for column in wanted.both:
                if column not in names:
                    raise FileError(path, no_column(column, names))
            columns = wanted.among(names)
            done = 0
            for batch in table.iter_batches(MOST_ROWS, columns=columns):
                for part in _small_parts(batch):
                    arrays = {name: part.column(name) for name in columns}
                    cells = {name: plain_values(array) for name, array in arrays.items()}
                    yield RowBlock(path, "parquet", list(range(done + 1, done + len(part) + 1)), cells, arrays)
                    done += len(part)
    except (pa.ArrowException, OSError) as error:
        raise FileError(path, f"the Parquet file is damaged or cut short: {error}") from None


def _small_parts(batch: Any) -> Iterator[Any]:
    """Yield a batch in parts of at most so many characters, but for one row."""
    rows = max(1, min(len(batch), len(batch) * MOST_CHARACTERS // max(batch.nbytes, 1)))
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


def plain_values(array: Any) -> list[Any]:
    """Return the values of an Arrow array as text, numbers, lists and objects; times and the like as text."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind):
        array = array.cast(pa.string())
    values: list[Any] = array.to_pylist()
    return values


def _seekable(path: str, stream: io.BufferedReader) -> Any:
    """Return what Parquet is read from: the file, or a copy of what comes through a pipe or is compressed."""
    if str(path) != STANDARD:
        file = Path(path).open("rb")  # noqa: SIM115 closed by who asked for it
        if file.read(len(PARQUET)) == PARQUET:
            return file
        file.close()
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(stream, copy)
    copy.seek(0)
    return copy
