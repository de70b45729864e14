"""Delimited text (CSV, TSV and similar) as columns with the line of every row."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from hinet.errors import FileError, did_you_mean, quoted
from hinet.files.streams import split_lines

DELIMITERS = ("\t", ",", ";", "|")
MAX_CELL = 10_000_000  # characters; a longer cell is a binary file or a missing quote
MAX_SHORT_CELL = 1 << 17  # characters per cell of a table that is read at once

_NAMES = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar", " ": "blank"}
_NEEDS_QUOTES = re.compile(r'["\r\n]|^\s|\s$')
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
EXCEL_DELIMITER = re.compile(r"sep=(.)\r?\n")  # first line of some Excel exports

csv.field_size_limit(MAX_CELL)  # Python's default is too small for documents


class QuoteError(FileError):
    """A cell breaks the quoting rules of CSV."""


class Records:
    """Iterates over the records of delimited lines, with the first and last line of each.

    Skips blank lines, comments (#) before the first record, and rows of empty cells unless ``empty_rows``. After a
    QuoteError the iteration continues with the next line.
    """

    def __init__(
        self, path: str | Path, lines: Iterable[str], delimiter: str, *, quotes: bool, empty_rows: bool = False
    ) -> None:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
        self._reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
        self._path, self._empty_rows = path, empty_rows
        self._at_head = True
        self.comments = 0  # comment lines skipped before the first record
        self.first = 0  # first line of the current record
        self.last = 0  # last line of the current record

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[str]:
        while True:
            self.first = self.last + 1
            try:
                record = next(self._reader)
            except csv.Error as error:
                self.last = self._reader.line_num
                raise QuoteError(self._path, _csv_remedy(str(error)), line=self.first) from None
            self.last = self._reader.line_num
            if self._at_head and record and record[0].startswith("#"):
                self.comments += 1
                continue
            if (self._empty_rows and record and not self._at_head) or any(map(str.strip, record)):
                self._at_head = False
                return record


@dataclass(frozen=True)
class DelimitedTable:
    """A header and rows of equal width, with the line each row starts at."""

    path: str
    columns: dict[str, Sequence[str]]
    lines: list[int]
    header_line: int
    long_records: list[int]  # first lines of records with a quoted line break

    def column(self, column: str) -> Sequence[str]:
        """Return the cells of ``column``, one per row."""
        if column not in self.columns:
            raise FileError(self.path, missing_column_message(column, list(self.columns)), line=self.header_line)
        return self.columns[column]


def guess_delimiter(header: str) -> str | None:
    """Return the delimiter that splits ``header`` into most cells, preferring a tab, or None if none does.

    >>> guess_delimiter("node;parent;title")
    ';'
    """
    bare = _QUOTED.sub("", header)
    best = "\t" if "\t" in bare else max(DELIMITERS, key=bare.count)
    return best if best in bare else None


def first_line(lines: Iterable[str]) -> str:
    """Return the first line that is neither blank nor a comment."""
    return next((line for line in lines if line.strip() and not line.startswith("#")), "")


def check_delimiter(path: str | Path, delimiter: str) -> None:
    """Raise FileError for an invalid delimiter."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise FileError(path, f"a delimiter is one character, got {quoted(delimiter)}")


def parse_delimited(path: str | Path, text: str, delimiter: str | None = None) -> DelimitedTable:
    """Parse ``text`` as a table; the first line holds the column names.

    Quotes follow the usual CSV rules. Many tab-separated files have stray quotes in their cells: one that breaks the
    rules is read without quoting.
    """
    if delimiter is None and (excel := EXCEL_DELIMITER.match(text)):
        delimiter = excel[1]
        text = "\n" + text[excel.end() :]  # the blank line keeps the line numbers
    if delimiter is None:
        delimiter = guess_delimiter(first_line(split_lines(path, text))) or ","
    check_delimiter(path, delimiter)
    try:
        return _table(path, text, delimiter, quotes=True)
    except QuoteError:
        if delimiter != "\t":
            raise
    return _table(path, text, delimiter, quotes=False)


def format_delimited(header: Sequence[str], rows: Iterable[Sequence[str]], delimiter: str) -> str:
    """Return a table as text that :func:`parse_delimited` reads back unchanged."""
    head = delimiter.join(_cell(name, "".join(DELIMITERS)) for name in header)  # so that the delimiter can be guessed
    return f"{head}\n{format_rows(rows, delimiter)}"


def format_rows(rows: Iterable[Sequence[str]], delimiter: str) -> str:
    """Return rows as lines of a table."""
    return "".join(delimiter.join(_cell(text, delimiter) for text in row) + "\n" for row in rows)


def _cell(text: str, delimiters: str) -> str:
    # The csv module leaves a lone carriage return unquoted when lines end in a newline.
    needs_quotes = any(mark in text for mark in delimiters) or _NEEDS_QUOTES.search(text)
    return '"' + text.replace('"', '""') + '"' if needs_quotes else text


def _table(path: str | Path, text: str, delimiter: str, quotes: bool) -> DelimitedTable:
    reader = Records(path, split_lines(path, text), delimiter, quotes=quotes)
    records: list[tuple[str, ...]] = []
    lines: list[int] = []  # the first of each record
    long_records: list[int] = []
    for record in reader:
        records.append(tuple(record))  # unlike lists, tuples of strings are not tracked by the garbage collector
        lines.append(reader.first)
        if reader.last > reader.first:
            long_records.append(reader.first)
    if not records:
        raise FileError(path, "the file is empty", line=1)
    names = column_names(path, records[0], lines[0])
    width = len(names)
    for line, cells_of_row in zip(lines, records, strict=True):
        if len(cells_of_row) != width:
            raise FileError(path, width_message(cells_of_row, width, delimiter), line=line)
        if max(map(len, cells_of_row)) > MAX_SHORT_CELL:
            raise QuoteError(path, _too_long(MAX_SHORT_CELL), line=line)
    cells: Iterable[Sequence[str]] = zip(*records[1:], strict=True) if len(records) > 1 else [()] * width
    return DelimitedTable(str(path), dict(zip(names, cells, strict=True)), lines[1:], lines[0], long_records)


def column_names(path: str | Path, header: Sequence[str], line: int | None) -> list[str]:
    """Return the names in a header, or raise FileError if a name is repeated."""
    names = [name.strip() for name in header]
    if (repeated := first_repeated(names)) is not None:
        raise FileError(path, f"two columns are called {quoted(repeated)}; rename one", line=line)
    return names


def first_repeated(names: Iterable[str]) -> str | None:
    """Return the first name that occurs more than once, or None.

    >>> first_repeated(["a", "b", "a"])
    'a'
    """
    return next((name for name, count in Counter(names).items() if count > 1), None)


def _csv_remedy(error: str) -> str:
    if "field larger" in error:
        return _too_long(csv.field_size_limit())
    if "end of data" in error:
        return 'a cell opens with " and is never closed; close it, or double a quote that is part of the text'
    return f'misplaced quote ({error}); double a " that is part of the text and quote the whole cell'


def _too_long(limit: int) -> str:
    return f"a cell is longer than {limit:,} characters; is a closing quote missing?"


def width_message(row: Sequence[str], width: int, delimiter: str) -> str:
    """Return the message for a row with more or fewer cells than the header."""
    name = _NAMES.get(delimiter, quoted(delimiter))
    message = f"expected {width} cells separated by {name}, got {len(row)}: {quoted(delimiter.join(row))}"
    other = guess_delimiter(delimiter.join(row).replace(delimiter, ""))
    if len(row) == 1 and other is not None:
        return f"{message}; the line seems to use {_NAMES[other]}: use one separator in the whole file"
    if len(row) < width:
        return f"{message}; fill in the missing cells"
    return f"{message}; quote a cell that contains the separator, with no space before its quote"


def missing_column_message(column: str, columns: Sequence[str]) -> str:
    """Return the message for a column that a table does not have."""
    listed = ", ".join(map(quoted, columns[:12])) + (", …" if len(columns) > 12 else "")
    return f"no column {quoted(column)} among {listed}{did_you_mean(column, columns)}"
