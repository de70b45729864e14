"""Delimited text (CSV, TSV and kin) as columns that remember the line of every row."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from hinet.errors import FileError, did_you_mean, shown
from hinet.files.text import checked_lines

DELIMITERS = ("\t", ",", ";", "|")
LONGEST_CELL = 10_000_000  # characters, documents included; a longer one is a binary file or a lost quote
LONGEST_SHORT_CELL = 1 << 17  # characters of a cell in a table that is read as a whole

_NAMES = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar", " ": "blank"}
_NEEDS_QUOTES = re.compile(r'["\r\n]|^\s|\s$')
_QUOTED = re.compile(r'"(?:[^"]|"")*"')
EXCEL_DELIMITER = re.compile(r"sep=(.)\r?\n")  # a first line that Excel writes and reads


csv.field_size_limit(LONGEST_CELL)  # Python's own limit is below what documents have


class QuoteError(FileError):
    """A cell breaks the rules of quoting."""


class Records:
    """The records of delimited lines, one by one, with the lines they run over.

    Passed over are blank lines, comments (#) before the first record, as in all formats of hierarchies, and unless they
    are wanted the rows of empty cells that spreadsheets leave. After a QuoteError it goes on with the next line.
    """

    def __init__(
        self, path: str | Path, lines: Iterable[str], delimiter: str, *, quotes: bool, empty_rows: bool = False
    ) -> None:
        quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
        self._reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
        self._path, self._empty_rows = path, empty_rows
        self._at_head = True
        self.comments = 0  # lines at the head that were passed over
        self.first = 0  # line of the last record
        self.last = 0  # line it ends at

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
    long_records: list[int]  # lines of records that run over several lines, by a quoted line break

    def column(self, column: str) -> Sequence[str]:
        """Return the cells of ``column``, a cell a row."""
        if column not in self.columns:
            raise FileError(self.path, no_column(column, list(self.columns)), line=self.header_line)
        return self.columns[column]


def guess_delimiter(header: str) -> str | None:
    """Return the delimiter that cuts ``header`` into most cells, a tab before all others, or None if none cuts it.

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
    """Raise FileError for a delimiter that cannot be one."""
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise FileError(path, f"a delimiter is one character, got {shown(delimiter)}")


def parse_delimited(path: str | Path, text: str, delimiter: str | None = None) -> DelimitedTable:
    r"""Cut ``text`` into a table; the first line holds the column names.

    Quotes follow the usual CSV rules. Many tab-separated files use none and have stray quotes in their cells:
    a tab-separated text that breaks the rules is read without them.
    """
    if delimiter is None and (excel := EXCEL_DELIMITER.match(text)):
        delimiter = excel[1]
        text = "\n" + text[excel.end() :]  # the blank line keeps the line numbers
    if delimiter is None:
        delimiter = guess_delimiter(first_line(checked_lines(path, text))) or ","
    check_delimiter(path, delimiter)
    try:
        return _table(path, text, delimiter, quotes=True)
    except QuoteError:
        if delimiter != "\t":
            raise
    return _table(path, text, delimiter, quotes=False)


def format_delimited(header: Sequence[str], rows: Iterable[Sequence[str]], delimiter: str) -> str:
    """Return a table as text that :func:`parse_delimited` reads back to the letter."""
    head = delimiter.join(_cell(name, "".join(DELIMITERS)) for name in header)  # so that the delimiter can be guessed
    return f"{head}\n{format_rows(rows, delimiter)}"


def format_rows(rows: Iterable[Sequence[str]], delimiter: str) -> str:
    """Return rows as lines of a table."""
    return "".join(delimiter.join(_cell(text, delimiter) for text in row) + "\n" for row in rows)


def _cell(text: str, delimiters: str) -> str:
    # The csv module leaves a lone carriage return unquoted when lines end in a newline.
    quoted = any(mark in text for mark in delimiters) or _NEEDS_QUOTES.search(text)
    return '"' + text.replace('"', '""') + '"' if quoted else text


def _table(path: str | Path, text: str, delimiter: str, quotes: bool) -> DelimitedTable:
    records, lines, long_records = _records(path, text, delimiter, quotes)
    if not records:
        raise FileError(path, "the file is empty", line=1)
    names = column_names(path, records[0], lines[0])
    width = len(names)
    for line, record in zip(lines, records, strict=True):
        if len(record) != width:
            raise FileError(path, wrong_width(record, width, delimiter), line=line)
        if max(map(len, record)) > LONGEST_SHORT_CELL:
            raise QuoteError(path, _too_long(LONGEST_SHORT_CELL), line=line)
    cells: Iterable[Sequence[str]] = zip(*records[1:], strict=True) if len(records) > 1 else [()] * width
    return DelimitedTable(str(path), dict(zip(names, cells, strict=True)), lines[1:], lines[0], long_records)


def column_names(path: str | Path, header: Sequence[str], line: int | None) -> list[str]:
    """Return the names in a header, no two the same."""
    names = [name.strip() for name in header]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise FileError(path, f"two columns are called {shown(twice)}; rename one", line=line)
    return names


def _records(
    path: str | Path, text: str, delimiter: str, quotes: bool
) -> tuple[list[tuple[str, ...]], list[int], list[int]]:
    """Return each record, the line each starts at, and the lines of those longer than a line."""
    reader = Records(path, checked_lines(path, text), delimiter, quotes=quotes)
    records: list[tuple[str, ...]] = []
    lines: list[int] = []
    long_records: list[int] = []
    for record in reader:
        records.append(tuple(record))  # unlike lists, tuples of text cost the garbage collector nothing
        lines.append(reader.first)
        if reader.last > reader.first:
            long_records.append(reader.first)
    return records, lines, long_records


def _csv_remedy(error: str) -> str:
    if "field larger" in error:
        return _too_long(csv.field_size_limit())
    if "end of data" in error:
        return 'a cell opens with " and is never closed; close it, or double a quote that is part of the text'
    return f'misplaced quote ({error}); double a " that is part of the text and quote the whole cell'


def _too_long(most: int) -> str:
    return f"a cell is longer than {most:,} characters; is a closing quote missing?"


def wrong_width(row: Sequence[str], width: int, delimiter: str) -> str:
    """Return the message for a row with more or fewer cells than the header."""
    name = _NAMES.get(delimiter, shown(delimiter))
    message = f"expected {width} cells separated by {name}, got {len(row)}: {shown(delimiter.join(row))}"
    other = guess_delimiter(delimiter.join(row).replace(delimiter, ""))
    if len(row) == 1 and other is not None:
        return f"{message}; the line seems to use {_NAMES[other]}: use one separator in the whole file"
    if len(row) < width:
        return f"{message}; fill in the missing cells"
    return f"{message}; quote a cell that contains the separator, with no blank before its quote"


def no_column(column: str, columns: Sequence[str]) -> str:
    """Return the message for a column that is not among those of a table."""
    listed = ", ".join(map(shown, columns[:12])) + (", …" if len(columns) > 12 else "")
    return f"no column {shown(column)} among {listed}{did_you_mean(column, columns)}"
