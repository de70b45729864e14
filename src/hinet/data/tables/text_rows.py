"""Rows out of lines of text: delimited records, JSON objects, or the lines themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from hinet.data.tables.blocks import BadRow, Cells, Row, Wanted
from hinet.data.tables.formats import TEXT_COLUMN, TableFormat, TableOptions, delimiter_of, has_quotes
from hinet.errors import FileError, quoted
from hinet.files.delimited import (
    EXCEL_DELIMITER,
    QuoteError,
    Records,
    check_delimiter,
    column_names,
    width_message,
)
from hinet.files.text import decoding_error

NO_QUOTES = "; or read the file without quotes, if they have no meaning in it"


class Sample(NamedTuple):
    """The first lines of a file."""

    text: str
    is_cut: bool  # whether there is more


class TextRows(NamedTuple):
    """Rows as they come, and what makes columns of the values of some of them."""

    found: Iterator[Row | BadRow]
    cells_of: Callable[[list[Any]], Cells]


def delimited_rows(
    path: str, lines: Iterator[str], sample: Sample, format: TableFormat, wanted: Wanted, options: TableOptions
) -> TextRows:
    """Read the header of a table, and return its rows."""
    delimiter = options.delimiter or ("\t" if format == "tsv" else delimiter_of(sample.text))
    check_delimiter(path, delimiter)
    quotes = has_quotes(sample.text, delimiter, sample.is_cut) if options.quotes is None else options.quotes
    if EXCEL_DELIMITER.match(sample.text):
        lines = _blank_first(lines)
    records = Records(path, lines, delimiter, quotes=quotes, empty_rows=True)
    names = _header(path, records, wanted, options.encoding)
    places = {name: names.index(name) for name in wanted.among(names)}

    def cells_of(rows: list[Any]) -> Cells:
        by_place = list(zip(*rows, strict=True))
        return {name: list(by_place[place]) for name, place in places.items()}

    return TextRows(_records(records, len(names), delimiter), cells_of)


def _blank_first(lines: Iterator[str]) -> Iterator[str]:
    """Yield lines with the first, which tells Excel the delimiter, made blank."""
    next(lines)
    yield "\n"
    yield from lines


def _header(path: str, records: Records, wanted: Wanted, encoding: str) -> list[str]:
    try:
        header = next(records, None)
    except QuoteError as error:
        raise FileError(path, error.message + NO_QUOTES, error.line) from None
    if header is None:
        raise FileError(path, "the file is empty; the first line names the columns", line=1)
    names = column_names(path, header, records.first)
    unknown = next(filter(None, (decoding_error(name, encoding) for name in names)), "")
    if unknown and (wanted.every or wanted.missing_from(names)):
        raise FileError(path, f"in the header, {unknown}", line=records.first)
    if problem := wanted.missing_from(names):
        passed = "; lines before it that start with # were taken for comments" if records.comments else ""
        raise FileError(path, problem + passed, line=records.first)
    return names


def _records(records: Records, width: int, delimiter: str) -> Iterator[Row | BadRow]:
    while True:
        try:
            record = next(records, None)
        except QuoteError as error:
            swallows = records.last > records.first  # rows that nobody could tell apart
            through = f" (it runs on to line {records.last:,})" if swallows else ""
            yield BadRow(records.first, error.message + through + NO_QUOTES, "", swallows)
            continue
        if record is None:
            return
        if len(record) == width:
            yield Row(records.first, record, sum(map(len, record)))
        else:
            yield BadRow(records.first, width_message(record, width, delimiter), delimiter.join(record))


def plain_rows(path: str, lines: Iterator[str], wanted: Wanted) -> TextRows:
    """Return plain lines as rows of one column, called as the column of the text is."""
    column = wanted.columns[0] if wanted.columns else TEXT_COLUMN
    for other in wanted.both[1:]:
        raise FileError(path, f"plain lines have no column {quoted(other)}; give a table, or name its format")
    rows = (Row(number, line.rstrip("\r\n"), len(line)) for number, line in enumerate(lines, start=1))
    return TextRows(rows, lambda values: {column: values})


def json_rows(lines: Iterator[str], wanted: Wanted) -> TextRows:
    """Return rows that are JSON objects; those of the first block say which columns there are."""
    columns: list[str] = []

    def cells_of(rows: list[Any]) -> Cells:
        if not columns:
            every = [name for row in rows for name in row] if wanted.every else []
            columns.extend(dict.fromkeys([*every, *wanted.both]))
        return {name: [row.get(name) for row in rows] for name in columns}

    return TextRows(_objects(lines, wanted), cells_of)


def _objects(lines: Iterator[str], wanted: Wanted) -> Iterator[Row | BadRow]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            reason, row = _json_row(line, wanted)
            yield BadRow(number, reason, line.rstrip("\r\n")) if reason else Row(number, row, len(line))


def _json_row(line: str, wanted: Wanted) -> tuple[str, dict[str, Any]]:
    """Return why a line is no row, or nothing, and the row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"no JSON object ({error}); write one object a line", {}
    if not isinstance(row, dict):
        return f"expected a JSON object, got {quoted(line.strip())}; write one object a line", {}
    missing = next((column for column in wanted.columns if column not in row), None)
    return ("" if missing is None else wanted.lacks(missing, list(row))), row
