"""Delimited text (CSV, TSV and kin) as columns that remember the line of every row."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hinet.errors import FileError, did_you_mean, shown
from hinet.files.text import numbered_lines

DELIMITERS = ("\t", ",", ";", "|")

_NAMES = {"\t": "tab", ",": "comma", ";": "semicolon", "|": "bar", " ": "blank"}
_NEEDS_QUOTES = re.compile(r'["\t,;|\r\n]|^\s|\s$')


@dataclass(frozen=True)
class DelimitedTable:
    """A header and rows of equal width, with the line each row starts at."""

    path: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    lines: list[int]

    def position(self, column: str) -> int:
        """Return the place of ``column`` in every row."""
        if column not in self.columns:
            raise FileError(
                self.path,
                f"no column {shown(column)} among {_listed(self.columns)}{did_you_mean(column, self.columns)}",
                line=1,
            )
        return self.columns.index(column)

    def column(self, column: str) -> list[str]:
        """Return the cells of ``column``, a cell a row."""
        place = self.position(column)
        return [row[place] for row in self.rows]


def guess_delimiter(header: str) -> str | None:
    """Return the delimiter that cuts ``header`` into most cells, or None if none cuts it.

    >>> guess_delimiter("node;parent;title")
    ';'
    """
    best = max(DELIMITERS, key=header.count)
    return best if best in header else None


def parse_delimited(path: str | Path, text: str, delimiter: str | None = None) -> DelimitedTable:
    r"""Cut ``text`` into a table; the first line holds the column names.

    Quotes follow the usual CSV rules. Many tab-separated files use none and have stray quotes in their cells:
    a tab-separated text that breaks the rules is read without them.
    """
    if delimiter is None:
        first = next((line for _, line in numbered_lines(path, text) if line.strip()), "")
        delimiter = guess_delimiter(first) or ","
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise FileError(path, f"a delimiter is one character, got {shown(delimiter)}")
    try:
        return _table(path, text, delimiter, quotes=True)
    except FileError:
        if delimiter != "\t" or '"' not in text:
            raise
    return _table(path, text, delimiter, quotes=False)


def format_delimited(rows: Iterable[Sequence[str]], delimiter: str) -> str:
    """Return rows as text that :func:`parse_delimited` reads back to the letter."""
    return "".join(delimiter.join(map(_cell, row)) + "\n" for row in rows)


def _cell(text: str) -> str:
    # The csv module leaves a lone carriage return unquoted when lines end in a newline.
    return '"' + text.replace('"', '""') + '"' if _NEEDS_QUOTES.search(text) else text


def _table(path: str | Path, text: str, delimiter: str, quotes: bool) -> DelimitedTable:
    records = _records(path, text, delimiter, quotes)
    header_line, header = next(records, (1, []))
    columns = tuple(name.strip() for name in header)
    for name in columns:
        if columns.count(name) > 1:
            raise FileError(path, f"two columns are called {shown(name)}; rename one", line=header_line)
    rows, lines = [], []
    width = len(columns)
    for line, row in records:
        if len(row) != width:
            raise FileError(path, _wrong_width(row, width, delimiter), line=line)
        rows.append(row)
        lines.append(line)
    return DelimitedTable(str(path), columns, rows, lines)


def _records(path: str | Path, text: str, delimiter: str, quotes: bool) -> Iterator[tuple[int, list[str]]]:
    """Yield each record that is not blank with the line it starts at."""
    reader = csv.reader(
        (line for _, line in numbered_lines(path, text)),
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE,
        strict=True,
    )
    while True:
        start = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise FileError(path, _csv_remedy(str(error)), line=start) from None
        if record is None:
            return
        if record:
            yield start, record


def _csv_remedy(error: str) -> str:
    if "field larger" in error:
        return f"a cell is longer than {csv.field_size_limit():,} characters; is a closing quote missing?"
    if "end of data" in error:
        return 'a cell opens with " and is never closed; close it, or double a quote that is part of the text'
    return f'misplaced quote ({error}); double a " that is part of the text and quote the whole cell'


def _wrong_width(row: list[str], width: int, delimiter: str) -> str:
    name = _NAMES.get(delimiter, shown(delimiter))
    message = f"expected {width} cells separated by {name}, got {len(row)}: {shown(delimiter.join(row))}"
    other = guess_delimiter(delimiter.join(row).replace(delimiter, ""))
    if len(row) == 1 and other is not None:
        return f"{message}; the line seems to use {_NAMES[other]}: use one separator in the whole file"
    return f"{message}; quote cells that contain the separator"


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(map(shown, columns[:12])) + (", …" if len(columns) > 12 else "")
