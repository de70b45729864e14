"""Tables in any format read as blocks, in constant memory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hinet.choices import TableFormat
from hinet.data.tables.arff_rows import arff_blocks
from hinet.data.tables.blocks import ColumnSelection, RowBlock, in_blocks
from hinet.data.tables.excel_rows import excel_rows
from hinet.data.tables.formats import TableOptions, format_of
from hinet.data.tables.parquet import parquet_blocks
from hinet.data.tables.row_errors import RowErrors
from hinet.data.tables.text_rows import Sample, delimited_rows, json_rows, plain_rows
from hinet.errors import FileError, quoted
from hinet.files.delimited import LONGEST_CELL
from hinet.files.excel import EXCEL
from hinet.files.streams import PeekedStream, open_bytes, peek_stream, seekable_file
from hinet.files.text import ENCODING_REMEDY, check_not_binary, decoding_error, is_utf8


def read_blocks(
    paths: Sequence[str], selection: ColumnSelection, options: TableOptions, row_errors: RowErrors
) -> Iterator[RowBlock]:
    """Yield the rows of files, one file after the other; ``-`` is standard input.

    Raises
    ------
    FileError
        If a file cannot be read, or lacks a required column. Invalid rows go to ``row_errors``.
    """
    for path in paths:
        rows, errors_before = 0, row_errors.count
        with open_bytes(path) as raw:
            peeked = peek_stream(raw, on_read=options.on_read)
            format = format_of(path, peeked.head, options, selection.columns, selection.explicit)
            if format == "parquet":
                blocks = _parquet_blocks(path, peeked, selection, options.encoding, row_errors)
            elif format == "xlsx":
                blocks = _excel_blocks(path, peeked, selection, row_errors)
            elif format == "arff":
                blocks = arff_blocks(path, peeked, selection, options.encoding, row_errors)
            else:
                blocks = _text_blocks(path, peeked, format, selection, options, row_errors)
            for block in blocks:
                rows += len(block)
                yield block
        if not rows and row_errors.count == errors_before:
            raise FileError(path, "the file has no rows")


def _parquet_blocks(
    path: str, peeked: PeekedStream, selection: ColumnSelection, encoding: str, row_errors: RowErrors
) -> Iterator[RowBlock]:
    for block in parquet_blocks(path, peeked, selection, encoding):
        yield _reject_undecodable(block, encoding, row_errors)


def _excel_blocks(
    path: str, peeked: PeekedStream, selection: ColumnSelection, row_errors: RowErrors
) -> Iterator[RowBlock]:
    if not peeked.head.startswith(EXCEL):
        raise FileError(path, "is not an Excel file (.xlsx); save it as one, or set `format`")
    with seekable_file(path, peeked.stream, EXCEL) as file:
        yield from in_blocks(path, "xlsx", *excel_rows(path, file, selection), row_errors)


def _text_blocks(
    path: str,
    peeked: PeekedStream,
    format: TableFormat,
    selection: ColumnSelection,
    options: TableOptions,
    row_errors: RowErrors,
) -> Iterator[RowBlock]:
    """Yield blocks of a text file without rows that cannot be decoded."""
    if is_utf8(options.encoding):
        check_not_binary(path, peeked.head)
    encoding = "utf-8-sig" if is_utf8(options.encoding) else options.encoding
    # Undecodable bytes become lone surrogates, which are found when the block is complete.
    text = io.TextIOWrapper(peeked.stream, encoding, errors="surrogateescape", newline="")
    lines = _lines(path, text, row_errors)
    try:
        if format == "jsonl":
            rows = json_rows(lines, selection)
        elif format == "text":
            rows = plain_rows(path, lines, selection)
        else:
            sample = Sample(peeked.head.decode(encoding, errors="replace"), not peeked.is_all)
            rows = delimited_rows(path, lines, sample, format, selection, options)
        for block in in_blocks(path, format, *rows, row_errors):
            yield _reject_undecodable(block, options.encoding, row_errors)
    except UnicodeError as error:
        raise FileError(path, f"is not {options.encoding} text: {error}; {ENCODING_REMEDY}") from None
    finally:
        text.detach()


def _lines(path: str, text: io.TextIOWrapper, row_errors: RowErrors) -> Iterator[str]:
    """Yield lines with their endings; a line that is too long is reported and becomes blank."""
    number = 0
    while line := text.readline(LONGEST_CELL + 1):
        number += 1
        if len(line) > LONGEST_CELL:
            while (more := text.readline(LONGEST_CELL)) and not more.endswith(("\n", "\r")):
                pass
            row_errors.add(path, number, f"the line is longer than {LONGEST_CELL:,} characters; leave it out", line)
            line = "\n"
        yield line


def _reject_undecodable(block: RowBlock, encoding: str, row_errors: RowErrors) -> RowBlock:
    """Return the block without rows that have undecodable bytes or lone surrogates."""
    for name in block.names:
        if reason := decoding_error(name, encoding):
            raise FileError(block.path, f"the column {quoted(name)}: {reason}")
    bad: dict[int, str] = {}
    for column in block.cells.values():
        if not _is_encodable(column):
            for row, cell in enumerate(column):
                if reason := decoding_error(_text_of(cell), encoding):
                    bad.setdefault(row, reason)
    for row, reason in sorted(bad.items()):
        row_errors.add(block.path, block.numbers[row], reason, block.to_json(row), block.unit)
    return block if not bad else block.take([row for row in range(len(block)) if row not in bad])


def _is_encodable(column: list[Any]) -> bool:
    """Return whether all cells can be encoded, checking most columns at once."""
    try:
        "\n".join(column).encode()
    except TypeError:  # not all cells are text
        return _is_encodable([_text_of(cell) for cell in column])
    except UnicodeEncodeError:
        return False
    return True


def _text_of(cell: Any) -> str:
    """Return the text in a JSON value."""
    if isinstance(cell, (list, dict)):
        return json.dumps(cell, ensure_ascii=False, default=str)
    return cell if isinstance(cell, str) else ""
