"""Tables in any format read as blocks of bounded size, in constant memory, however well they are compressed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
import pyarrow as pa

from hinet.choices import TableFormat
from hinet.data.tables import blocks
from hinet.data.tables.arff import arff_blocks
from hinet.data.tables.blocks import (
    PARQUET,
    TEXT_COLUMN,
    BadRow,
    Cells,
    ColumnSelection,
    Row,
    RowBlock,
    RowErrors,
    TableFile,
    TableOptions,
    delimiter_of,
    format_of,
    has_quotes,
    in_blocks,
)
from hinet.data.tables.cells import row_bytes, to_python
from hinet.errors import FileError, quoted
from hinet.files.delimited import (
    EXCEL_DELIMITER,
    MAX_CELL,
    QuoteError,
    Records,
    check_delimiter,
    column_names,
    width_message,
)
from hinet.files.sheets import EXCEL, SheetRow, sheet_rows
from hinet.files.streams import (
    ENCODING_REMEDY,
    check_not_binary,
    decoding_error,
    is_utf8,
    open_bytes,
    peek_stream,
    seekable_file,
)
from hinet.ragged import offsets_of
from hinet.taxonomy import as_id

MAX_BATCH_BYTES = 16 * blocks.MAX_CHARACTERS  # bytes decoded per batch; larger batches are split afterwards
SIZE_VARIATION = 4  # assumed ratio of the bytes of a batch to the average
MIN_VALUE_BYTES = 8  # memory per value, even if the file uses a bit
_Source = tuple[Iterator[Row | BadRow], Callable[[list[Any]], Cells]]  # rows, and their values as columns
NO_QUOTES = "; or read the file without quotes, if they have no meaning in it"


def _parquet_blocks(file: TableFile) -> Iterator[RowBlock]:
    """Yield the rows of a Parquet file; bytes in text columns are decoded with the encoding of the options."""
    if not file.peeked.head.startswith(PARQUET):
        raise FileError(file.path, "is not a Parquet file; set `format`")
    path, selection, row = file.path, file.selection, 0
    try:
        with seekable_file(path, file.peeked.stream, PARQUET) as stream:
            for names, batch in _parquet_batches(path, stream, selection):
                for part in _small_parts(batch):
                    arrays = dict(zip(names, part.columns, strict=True))
                    cells = {name: to_python(arrays[name], file.options.encoding) for name in selection.columns}
                    positions = list(range(row, row + len(part)))
                    row += len(part)
                    numbers = [position + 1 for position in positions]
                    yield _reject_undecodable(RowBlock(path, "parquet", numbers, cells, arrays, positions), file)
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileError(path, f"the Parquet file is damaged or cut short: {error}") from None


def _parquet_batches(path: str, stream: Any, selection: ColumnSelection) -> Iterator[tuple[list[str], Any]]:
    """Yield batches of bounded size, with the names of their columns."""
    import pyarrow.parquet as pq

    table = pq.ParquetFile(stream)
    stored = table.schema_arrow.names
    index_of = {name: index for index, name in enumerate(column_names(path, stored, None))}
    if problem := selection.missing_column(list(index_of)):
        raise FileError(path, problem)
    names = selection.select(list(index_of))
    columns = [stored[index_of[name]] for name in names]
    leaves = _leaves(table, columns)
    dictionaries = pq.ParquetFile(stream, read_dictionary=list(leaves.values()))
    for group in range(table.metadata.num_row_groups):
        rows = _batch_rows(table, dictionaries, leaves, group)
        for batch in table.iter_batches(rows, row_groups=[group], columns=columns):
            yield names, batch.select(columns)


def _leaves(table: Any, columns: list[str]) -> dict[int, str]:
    """Return the paths of the physical columns by number; lists and structs have several."""
    selected = {*columns}
    paths = {number: table.schema.column(number).path for number in range(len(table.schema))}
    # A column is called like the path of its physical column up to a dot, or like the whole path.
    return {
        number: path
        for number, path in paths.items()
        if path in selected or any(path[: dot.start()] in selected for dot in re.finditer(r"\.", path))
    }


def _batch_rows(table: Any, dictionaries: Any, leaves: Mapping[int, str], group: int) -> int:
    """Return the number of rows of a row group that fit into a batch, also if all repeat its longest value."""
    metadata = table.metadata.row_group(group)
    rows = max(metadata.num_rows, 1)
    row_size = 1.0
    for number, path in leaves.items():
        chunk = metadata.column(number)
        values = max(chunk.num_values, 1) / rows  # average per row
        width = max(table.schema.column(number).length or 0, MIN_VALUE_BYTES)
        size = SIZE_VARIATION * max(chunk.total_uncompressed_size / rows, values * width)
        if chunk.has_dictionary_page and chunk.physical_type == "BYTE_ARRAY":
            longest = chunk.total_uncompressed_size
            if values * longest * min(rows, blocks.MAX_ROWS) > MAX_BATCH_BYTES:
                first = next(dictionaries.iter_batches(1, row_groups=[group], columns=[path]), None)
                longest = max(map(_longest, first.columns), default=0) if first else 0
            size = max(size, values * longest)
        row_size += size
    return int(min(max(MAX_BATCH_BYTES // row_size, 1), blocks.MAX_ROWS))


def _longest(array: Any) -> int:
    """Return the bytes of the longest value in a dictionary."""
    if pa.types.is_dictionary(array.type):
        return int(row_bytes(array.dictionary).max(initial=0))
    if pa.types.is_struct(array.type):
        return max(map(_longest, array.flatten()), default=0)
    return _longest(array.values) if pa.types.is_nested(array.type) else 0


def _small_parts(batch: Any) -> Iterator[Any]:
    """Yield a batch in parts of bounded size, each with at least one row."""
    sizes = sum((row_bytes(column) for column in batch.columns), np.zeros(len(batch), np.int64))
    ends = offsets_of(sizes)
    start = 0
    while start < len(batch):
        end = max(int(np.searchsorted(ends, ends[start] + blocks.MAX_CHARACTERS, side="right")) - 1, start + 1)
        yield batch.slice(start, end - start)
        start = end


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
            file = TableFile(path, peeked, format, selection, options, row_errors)
            for block in _READERS.get(format, _text_blocks)(file):
                rows += len(block)
                yield block
        if not rows and row_errors.count == errors_before:
            raise FileError(path, "the file has no rows")


def _excel_blocks(file: TableFile) -> Iterator[RowBlock]:
    """Yield the rows of the first sheet, whose first row is the header."""
    path, selection, options = file.path, file.selection, file.options
    if not file.peeked.head.startswith(EXCEL):
        raise FileError(path, "is not an Excel file (.xlsx); save it as one, or set `format`")
    with seekable_file(path, file.peeked.stream, EXCEL) as stream:
        rows = sheet_rows(path, stream, max_bytes=options.max_unpacked, on_read=options.on_read)
        header = next(rows, None)
        if header is None:
            raise FileError(path, "the first sheet is empty; its first row names the columns")
        names = column_names(path, [as_id(cell) for cell in header.cells], header.number)
        if problem := selection.missing_column(names):
            raise FileError(path, problem, line=header.number)
        yield from in_blocks(file, (_excel_row(row, len(names)) for row in rows), _cells_by_index(selection, names))


def _excel_row(row: SheetRow, width: int) -> Row | BadRow:
    number, cells = row
    if len(cells) > width:
        message = f"expected {width} cells, got {len(cells)}, the last {quoted(as_id(cells[-1]))}; name its column"
        return BadRow(number, message, " ".join(map(as_id, cells)))
    return Row(number, cells + [None] * (width - len(cells)), sum(len(cell) for cell in cells if isinstance(cell, str)))


_READERS: dict[TableFormat, Callable[[TableFile], Iterator[RowBlock]]] = {
    "arff": arff_blocks,
    "parquet": _parquet_blocks,
    "xlsx": _excel_blocks,
}


def _text_blocks(file: TableFile) -> Iterator[RowBlock]:
    """Yield blocks of a text file without rows that cannot be decoded."""
    path, selection, encoding = file.path, file.selection, file.options.encoding
    if is_utf8(encoding):
        check_not_binary(path, file.peeked.head)
        encoding = "utf-8-sig"
    # Undecodable bytes become lone surrogates, which are found when the block is complete.
    text = io.TextIOWrapper(file.peeked.stream, encoding, errors="surrogateescape", newline="")
    lines = _lines(path, text, file.row_errors)
    try:
        if file.format == "jsonl":
            source = _json_rows(lines, selection)
        elif file.format == "text":
            source = _plain_rows(path, lines, selection)
        else:
            source = _delimited_rows(file, lines, file.peeked.head.decode(encoding, errors="replace"))
        for block in in_blocks(file, *source):
            yield _reject_undecodable(block, file)
    except UnicodeError as error:
        raise FileError(path, f"is not {file.options.encoding} text: {error}; {ENCODING_REMEDY}") from None
    finally:
        text.detach()


def _lines(path: str, text: io.TextIOWrapper, row_errors: RowErrors) -> Iterator[str]:
    """Yield lines with their endings; a line that is too long is reported and becomes blank."""
    number = 0
    while line := text.readline(MAX_CELL + 1):
        number += 1
        if len(line) > MAX_CELL:
            while (more := text.readline(MAX_CELL)) and not more.endswith(("\n", "\r")):
                pass
            row_errors.add(path, number, f"the line is longer than {MAX_CELL:,} characters; leave it out", line)
            line = "\n"
        yield line


def _delimited_rows(file: TableFile, lines: Iterator[str], sample: str) -> _Source:
    """Read the header of a table, and return its rows."""
    options = file.options
    delimiter = options.delimiter or ("\t" if file.format == "tsv" else delimiter_of(sample))
    check_delimiter(file.path, delimiter)
    quotes = options.quotes
    if quotes is None:
        quotes = has_quotes(sample, delimiter, is_cut=not file.peeked.is_all)
    if EXCEL_DELIMITER.match(sample):
        lines = chain(["\n"], islice(lines, 1, None))  # a blank line keeps the line numbers
    records = Records(file.path, lines, delimiter, quotes=quotes, empty_rows=True)
    names = _header(file.path, records, file.selection, options.encoding)
    rows = _records(records, len(names), delimiter, file.row_errors)
    return rows, _cells_by_index(file.selection, names)


def _cells_by_index(selection: ColumnSelection, names: Sequence[str]) -> Callable[[list[Any]], Cells]:
    """Return a function that picks the columns to read from rows of cells."""
    index_of = {name: index for index, name in enumerate(names)}
    indices = {name: index_of[name] for name in selection.select(names)}
    return lambda rows: {name: [cells[index] for cells in rows] for name, index in indices.items()}


def _header(path: str, records: Records, selection: ColumnSelection, encoding: str) -> list[str]:
    try:
        header = next(records, None)
    except QuoteError as error:
        raise FileError(path, error.message + NO_QUOTES, error.line) from None
    if header is None:
        raise FileError(path, "the file is empty; the first line names the columns", line=1)
    names = column_names(path, header, records.first)
    problem = selection.missing_column(names)
    undecodable = next(filter(None, (decoding_error(name, encoding) for name in names)), "")
    if undecodable and (selection.read_all or problem):
        raise FileError(path, f"in the header, {undecodable}", line=records.first)
    if problem:
        note = "; lines before it that start with # were taken for comments" if records.comments else ""
        raise FileError(path, problem + note, line=records.first)
    return names


def _records(records: Records, width: int, delimiter: str, row_errors: RowErrors) -> Iterator[Row | BadRow]:
    while True:
        last = records.last
        try:
            record = next(records, None)
        except QuoteError as error:
            is_open = records.last > records.first  # it may have swallowed further rows
            extent = f" (it runs on to line {records.last:,})" if is_open else ""
            yield BadRow(records.first, error.message + extent + NO_QUOTES, "", is_open)
            continue
        if record is None:
            return
        row_errors.blank_lines += records.first - last - 1
        if len(record) == width:
            yield Row(records.first, record, sum(map(len, record)))
        else:
            yield BadRow(records.first, width_message(record, width, delimiter), delimiter.join(record))


def _plain_rows(path: str, lines: Iterator[str], selection: ColumnSelection) -> _Source:
    """Return plain lines as rows of one column, named like the text column."""
    column = selection.columns[0] if selection.columns else TEXT_COLUMN
    for other in selection.required[1:]:
        raise FileError(path, f"plain lines have no column {quoted(other)}; give a table, or set `format`")
    rows = (Row(number, line.rstrip("\r\n"), len(line)) for number, line in enumerate(lines, start=1))
    return rows, lambda values: {column: values}


def _json_rows(lines: Iterator[str], selection: ColumnSelection) -> _Source:
    """Return rows of JSON objects; those of the first block determine the columns."""
    columns: list[str] = []

    def cells_of(rows: list[Any]) -> Cells:
        if not columns:
            names = [name for row in rows for name in row] if selection.read_all else []
            columns.extend(dict.fromkeys([*names, *selection.required]))
        return {name: [row.get(name) for row in rows] for name in columns}

    rows = (_json_row(number, line, selection) for number, line in enumerate(lines, start=1) if line.strip())
    return rows, cells_of


def _json_row(number: int, line: str, selection: ColumnSelection) -> Row | BadRow:
    text = line.rstrip("\r\n")
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRow(number, f"not a JSON object ({error}); write one object per line", text)
    if not isinstance(row, dict):
        reason = f"expected a JSON object, got {quoted(line.strip())}; write one object per line"
        return BadRow(number, reason, text)
    missing = next((column for column in selection.columns if column not in row), None)
    if missing is not None:
        return BadRow(number, selection.missing_message(missing, list(row)), text)
    return Row(number, row, len(line))


def _reject_undecodable(block: RowBlock, file: TableFile) -> RowBlock:
    """Return the block without rows that have undecodable bytes or lone surrogates."""
    for name in block.names:
        if reason := decoding_error(name, file.options.encoding):
            raise FileError(block.path, f"the column {quoted(name)}: {reason}")
    bad: dict[int, str] = {}
    for column in block.cells.values():
        if not _is_encodable(column):
            for row, cell in enumerate(column):
                if reason := decoding_error(_text_of(cell), file.options.encoding):
                    bad.setdefault(row, reason)
    for row, reason in sorted(bad.items()):
        file.row_errors.add(block.path, block.numbers[row], reason, block.to_json(row), block.unit)
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
