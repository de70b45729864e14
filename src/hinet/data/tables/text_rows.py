"""Rows of text files: delimited records, JSON objects, or plain lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from hinet.choices import TableFormat
from hinet.data.tables.blocks import BadRow, Cells, ColumnSelection, Row
from hinet.data.tables.formats import TEXT_COLUMN, TableOptions, delimiter_of, has_quotes
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
    is_cut: bool  # whether the file is longer


class TextRows(NamedTuple):
    """The rows of a file, and a function that converts the values of some of them to columns."""

    source: Iterator[Row | BadRow]
    cells_of: Callable[[list[Any]], Cells]


def delimited_rows(
    path: str,
    lines: Iterator[str],
    sample: Sample,
    format: TableFormat,
    selection: ColumnSelection,
    options: TableOptions,
) -> TextRows:
    """Read the header of a table, and return its rows."""
    delimiter = options.delimiter or ("\t" if format == "tsv" else delimiter_of(sample.text))
    check_delimiter(path, delimiter)
    quotes = has_quotes(sample.text, delimiter, sample.is_cut) if options.quotes is None else options.quotes
    if EXCEL_DELIMITER.match(sample.text):
        lines = _blank_first(lines)
    records = Records(path, lines, delimiter, quotes=quotes, empty_rows=True)
    names = _header(path, records, selection, options.encoding)
    indices = column_indices(selection, names)

    def cells_of(rows: list[Any]) -> Cells:
        by_index = list(zip(*rows, strict=True))
        return {name: list(by_index[index]) for name, index in indices.items()}

    return TextRows(_records(records, len(names), delimiter), cells_of)


def column_indices(selection: ColumnSelection, names: Sequence[str]) -> dict[str, int]:
    """Return the index of every column to read in a table with these names."""
    index_of = {name: index for index, name in enumerate(names)}
    return {name: index_of[name] for name in selection.select(names)}


def _blank_first(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines with the first one, Excel's ``sep=``, replaced by a blank one."""
    next(lines)
    yield "\n"
    yield from lines


def _header(path: str, records: Records, selection: ColumnSelection, encoding: str) -> list[str]:
    try:
        header = next(records, None)
    except QuoteError as error:
        raise FileError(path, error.message + NO_QUOTES, error.line) from None
    if header is None:
        raise FileError(path, "the file is empty; the first line names the columns", line=1)
    names = column_names(path, header, records.first)
    undecodable = next(filter(None, (decoding_error(name, encoding) for name in names)), "")
    if undecodable and (selection.read_all or selection.missing_column(names)):
        raise FileError(path, f"in the header, {undecodable}", line=records.first)
    if problem := selection.missing_column(names):
        note = "; lines before it that start with # were taken for comments" if records.comments else ""
        raise FileError(path, problem + note, line=records.first)
    return names


def _records(records: Records, width: int, delimiter: str) -> Iterator[Row | BadRow]:
    while True:
        try:
            record = next(records, None)
        except QuoteError as error:
            is_open = records.last > records.first  # it may have swallowed further rows
            extent = f" (it runs on to line {records.last:,})" if is_open else ""
            yield BadRow(records.first, error.message + extent + NO_QUOTES, "", is_open)
            continue
        if record is None:
            return
        if len(record) == width:
            yield Row(records.first, record, sum(map(len, record)))
        else:
            yield BadRow(records.first, width_message(record, width, delimiter), delimiter.join(record))


def plain_rows(path: str, lines: Iterator[str], selection: ColumnSelection) -> TextRows:
    """Return plain lines as rows of one column, named like the text column."""
    column = selection.columns[0] if selection.columns else TEXT_COLUMN
    for other in selection.required[1:]:
        raise FileError(path, f"plain lines have no column {quoted(other)}; give a table, or set `format`")
    rows = (Row(number, line.rstrip("\r\n"), len(line)) for number, line in enumerate(lines, start=1))
    return TextRows(rows, lambda values: {column: values})


def json_rows(lines: Iterator[str], selection: ColumnSelection) -> TextRows:
    """Return rows of JSON objects; those of the first block determine the columns."""
    columns: list[str] = []

    def cells_of(rows: list[Any]) -> Cells:
        if not columns:
            names = [name for row in rows for name in row] if selection.read_all else []
            columns.extend(dict.fromkeys([*names, *selection.required]))
        return {name: [row.get(name) for row in rows] for name in columns}

    return TextRows(_objects(lines, selection), cells_of)


def _objects(lines: Iterator[str], selection: ColumnSelection) -> Iterator[Row | BadRow]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            reason, row = _json_row(line, selection)
            yield BadRow(number, reason, line.rstrip("\r\n")) if reason else Row(number, row, len(line))


def _json_row(line: str, selection: ColumnSelection) -> tuple[str, dict[str, Any]]:
    """Return why a line is invalid, or an empty string, and the row."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"not a JSON object ({error}); write one object per line", {}
    if not isinstance(row, dict):
        return f"expected a JSON object, got {quoted(line.strip())}; write one object per line", {}
    missing = next((column for column in selection.columns if column not in row), None)
    return ("" if missing is None else selection.missing_message(missing, list(row))), row
