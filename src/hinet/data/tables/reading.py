"""Files of rows in any format as blocks: so that any file is read in constant memory."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from hinet.data.tables.blocks import RowBlock, Wanted, in_blocks
from hinet.data.tables.faults import Faults
from hinet.data.tables.formats import TableFormat, TableOptions, format_of
from hinet.data.tables.parquet import parquet_blocks
from hinet.data.tables.text_rows import Sample, delimited_rows, json_rows, plain_rows
from hinet.errors import FileError, quoted
from hinet.files.delimited import LONGEST_CELL
from hinet.files.streams import PeekedStream, open_bytes, peek_stream
from hinet.files.text import ENCODING_REMEDY, check_not_binary, decoding_error, is_utf8


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
            opened = peek_stream(raw)
            chosen = format_of(path, opened.head, options, wanted.columns, wanted.named)
            if chosen == "parquet":
                blocks = _readable_parquet(path, opened, wanted, options.encoding, faults)
            else:
                blocks = _text_blocks(path, opened, chosen, wanted, options, faults)
            for block in blocks:
                rows += len(block)
                yield block
        if not rows and faults.count == faults_before:
            raise FileError(path, "there are no rows in the file")


def _readable_parquet(
    path: str, opened: PeekedStream, wanted: Wanted, encoding: str, faults: Faults
) -> Iterator[RowBlock]:
    for block in parquet_blocks(path, opened, wanted, encoding):
        yield _readable(block, encoding, faults)


def _text_blocks(
    path: str, opened: PeekedStream, chosen: TableFormat, wanted: Wanted, options: TableOptions, faults: Faults
) -> Iterator[RowBlock]:
    """Yield blocks of a file of text, free of what is no text."""
    if is_utf8(options.encoding):
        check_not_binary(path, opened.head)
    encoding = "utf-8-sig" if is_utf8(options.encoding) else options.encoding
    # Bytes that are no text become lone surrogates, which are found when the block is complete.
    text = io.TextIOWrapper(opened.stream, encoding, errors="surrogateescape", newline="")
    lines = _lines(path, text, faults)
    try:
        if chosen == "jsonl":
            rows = json_rows(lines, wanted)
        elif chosen == "text":
            rows = plain_rows(path, lines, wanted)
        else:
            sample = Sample(opened.head.decode(encoding, errors="replace"), not opened.is_all)
            rows = delimited_rows(path, lines, sample, chosen, wanted, options)
        for block in in_blocks(path, chosen, *rows, faults):
            yield _readable(block, options.encoding, faults)
    except UnicodeError as error:
        raise FileError(path, f"is not {options.encoding} text: {error}; {ENCODING_REMEDY}") from None
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


def _readable(block: RowBlock, encoding: str, faults: Faults) -> RowBlock:
    """Return the rows without those that hold bytes or halves of characters that are no text."""
    for name in block.names:
        if reason := decoding_error(name, encoding):
            raise FileError(block.path, f"the column {quoted(name)}: {reason}")
    bad: dict[int, str] = {}
    for column in block.cells.values():
        if not _can_be_written(column):
            for row, cell in enumerate(column):
                if reason := decoding_error(_all_text(cell), encoding):
                    bad.setdefault(row, reason)
    for row, reason in sorted(bad.items()):
        faults.found(block.path, block.places[row], reason, block.described(row), block.unit)
    return block if not bad else block.take([row for row in range(len(block)) if row not in bad])


def _can_be_written(column: list[Any]) -> bool:
    """Return whether all text of a column is text, told at once for most columns."""
    try:
        "\n".join(column).encode()
    except TypeError:  # not all cells are text
        return _can_be_written([_all_text(cell) for cell in column])
    except UnicodeEncodeError:
        return False
    return True


def _all_text(cell: Any) -> str:
    """Return all text in a value of JSON."""
    if isinstance(cell, (list, dict)):
        return json.dumps(cell, ensure_ascii=False, default=str)
    return cell if isinstance(cell, str) else ""
