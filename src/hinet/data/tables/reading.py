"""Tables in any format read as blocks of bounded size, in constant memory, however well they are compressed."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import IO, Any, NamedTuple

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
    RowSource,
    TableFile,
    TableOptions,
    delimiter_of,
    format_of,
    has_quotes,
    in_blocks,
)
from hinet.data.tables.cells import row_bytes, take_rows, to_python
from hinet.errors import FileError, quoted
from hinet.files.delimited import (
    EXCEL,
    EXCEL_DELIMITER,
    MAX_CELL,
    QuoteError,
    Records,
    SheetRow,
    check_delimiter,
    column_names,
    sheet_rows,
    width_message,
)
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
MIN_BATCH_ROWS = 256  # columns whose values are too long for this many rows stay dictionary-encoded
MAX_PLANNED_GROUPS = 1_000  # row groups planned before the first of them is read
MIN_VALUE_BYTES = 8  # memory per value, even if the file uses a bit
NO_QUOTES = "; or read the file without quotes, if they have no meaning in it"


class _BatchPlan(NamedTuple):
    """How to read a row group: the rows per batch, and the columns that stay dictionary-encoded."""

    rows: int
    dictionary_columns: tuple[str, ...]


def parquet_blocks(file: TableFile) -> Iterator[RowBlock]:
    """Yield the rows of a Parquet file; bytes in text columns are decoded with the encoding of the options."""
    if not file.peeked.head.startswith(PARQUET):
        raise FileError(file.path, "is not a Parquet file; set `format`")
    try:
        with seekable_file(file.path, file.peeked.stream, PARQUET) as stream:
            yield from _blocks(file.path, stream, file.selection, file.options.encoding)
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileError(file.path, f"the Parquet file is damaged or cut short: {error}") from None


def _blocks(path: str, file: Any, selection: ColumnSelection, encoding: str) -> Iterator[RowBlock]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file)
    schema = table.schema_arrow
    names = dict(zip(column_names(path, schema.names, None), schema.names, strict=True))
    if problem := selection.missing_column(list(names)):
        raise FileError(path, problem)
    fields = {name: schema.field(names[name]) for name in selection.select(list(names))}
    row = 0
    for batch in _batches(file, table, [field.name for field in fields.values()]):
        for part in _small_parts(batch):
            arrays = {name: _decode_dictionary(part.column(field.name), field.type) for name, field in fields.items()}
            cells = {name: to_python(arrays[name], encoding) for name in selection.columns}
            positions = list(range(row, row + len(part)))
            yield RowBlock(path, "parquet", [position + 1 for position in positions], cells, arrays, positions)
            row += len(part)


def _batches(file: Any, table: Any, columns: list[str]) -> Iterator[Any]:
    """Yield batches; consecutive row groups with the same plan are read together."""
    import pyarrow.parquet as pq

    leaves = _leaves(table, columns)
    dictionary_file = pq.ParquetFile(file, read_dictionary=list(leaves.values()))
    plan_of = partial(_plan_batches, table, dictionary_file, leaves)
    groups = range(table.metadata.num_row_groups)
    for start in groups[::MAX_PLANNED_GROUPS]:
        for plan, alike in groupby(groups[start : start + MAX_PLANNED_GROUPS], plan_of):
            names = list(plan.dictionary_columns)
            reader = pq.ParquetFile(file, read_dictionary=names) if names else table
            yield from reader.iter_batches(plan.rows, row_groups=list(alike), columns=columns)


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


def _plan_batches(table: Any, dictionary_file: Any, leaves: Mapping[int, str], group: int) -> _BatchPlan:
    """Return how to read a row group so that a batch has a bounded size."""
    metadata = table.metadata.row_group(group)
    rows = max(metadata.num_rows, 1)
    row_size = 1.0
    dictionary_columns: list[str] = []
    for number, path in leaves.items():
        chunk = metadata.column(number)
        values = max(chunk.num_values, 1) / rows  # average per row
        width = max(table.schema.column(number).length or 0, MIN_VALUE_BYTES)
        average = SIZE_VARIATION * max(chunk.total_uncompressed_size / rows, values * width)
        longest = 0.0  # bytes of a value that all rows may repeat
        if chunk.has_dictionary_page and chunk.physical_type == "BYTE_ARRAY":
            longest = values * chunk.total_uncompressed_size
            if longest * min(rows, blocks.MAX_ROWS) > MAX_BATCH_BYTES:
                longest = values * _longest_repeated(dictionary_file, group, path)
        if longest * MIN_BATCH_ROWS > MAX_BATCH_BYTES:
            dictionary_columns.append(path)
            longest = 0.0
        row_size += max(average, longest)
    batch_rows = int(min(max(MAX_BATCH_BYTES // row_size, 1), blocks.MAX_ROWS))
    return _BatchPlan(1 << (batch_rows.bit_length() - 1), tuple(dictionary_columns))


def _longest_repeated(dictionary_file: Any, group: int, path: str) -> int:
    """Return the bytes of the longest value in the dictionary of a column."""
    first = next(dictionary_file.iter_batches(1, row_groups=[group], columns=[path]), None)
    return 0 if first is None or not len(first) else max(map(_longest, first.columns), default=0)


def _longest(array: Any) -> int:
    if pa.types.is_dictionary(array.type):
        return int(row_bytes(array.dictionary).max(initial=0))
    if pa.types.is_struct(array.type):
        return max(map(_longest, array.flatten()), default=0)
    if pa.types.is_nested(array.type):
        return _longest(array.values)
    return 0


def _decode_dictionary(array: Any, kind: Any) -> Any:
    """Return an array with the type of the file schema, decoding dictionaries."""
    if array.type == kind:
        return array
    if pa.types.is_nested(array.type):
        array = take_rows(array, np.arange(len(array)))  # a copy without the values of other parts of the batch
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:  # such as from a dictionary to string views
        return array.cast(_without_dictionaries(array.type)).cast(kind)


def _without_dictionaries(kind: Any) -> Any:
    """Return the type with dictionaries replaced by their values, also within lists and structs."""
    types = pa.types
    if types.is_dictionary(kind):
        return kind.value_type
    if not types.is_nested(kind):
        return kind
    inner = [field.with_type(_without_dictionaries(field.type)) for field in map(kind.field, range(kind.num_fields))]
    if types.is_struct(kind):
        return pa.struct(inner)
    if types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_without_dictionaries(kind.key_type)),
            kind.item_field.with_type(_without_dictionaries(kind.item_type)),
            kind.keys_sorted,
        )
    if types.is_fixed_size_list(kind):
        return pa.list_(inner[0], kind.list_size)
    return pa.large_list(inner[0]) if types.is_large_list(kind) else pa.list_(inner[0])


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


def _parquet_blocks(file: TableFile) -> Iterator[RowBlock]:
    for block in parquet_blocks(file):
        yield _reject_undecodable(block, file)


def _excel_blocks(file: TableFile) -> Iterator[RowBlock]:
    if not file.peeked.head.startswith(EXCEL):
        raise FileError(file.path, "is not an Excel file (.xlsx); save it as one, or set `format`")
    with seekable_file(file.path, file.peeked.stream, EXCEL) as stream:
        yield from in_blocks(file, _excel_rows(file.path, stream, file.selection))


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
        for block in in_blocks(file, source):
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


def _blank_first(lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines with the first one, Excel's ``sep=``, replaced by a blank one."""
    next(lines)
    yield "\n"
    yield from lines


def _delimited_rows(file: TableFile, lines: Iterator[str], sample: str) -> RowSource:
    """Read the header of a table, and return its rows."""
    options = file.options
    delimiter = options.delimiter or ("\t" if file.format == "tsv" else delimiter_of(sample))
    check_delimiter(file.path, delimiter)
    quotes = options.quotes
    if quotes is None:
        quotes = has_quotes(sample, delimiter, is_cut=not file.peeked.is_all)
    if EXCEL_DELIMITER.match(sample):
        lines = _blank_first(lines)
    records = Records(file.path, lines, delimiter, quotes=quotes, empty_rows=True)
    names = _header(file.path, records, file.selection, options.encoding)
    indices = column_indices(file.selection, names)

    def cells_of(rows: list[Any]) -> Cells:
        by_index = list(zip(*rows, strict=True))
        return {name: list(by_index[index]) for name, index in indices.items()}

    return RowSource(_records(records, len(names), delimiter), cells_of)


def column_indices(selection: ColumnSelection, names: Sequence[str]) -> dict[str, int]:
    """Return the index of every column to read in a table with these names."""
    index_of = {name: index for index, name in enumerate(names)}
    return {name: index_of[name] for name in selection.select(names)}


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


def _plain_rows(path: str, lines: Iterator[str], selection: ColumnSelection) -> RowSource:
    """Return plain lines as rows of one column, named like the text column."""
    column = selection.columns[0] if selection.columns else TEXT_COLUMN
    for other in selection.required[1:]:
        raise FileError(path, f"plain lines have no column {quoted(other)}; give a table, or set `format`")
    rows = (Row(number, line.rstrip("\r\n"), len(line)) for number, line in enumerate(lines, start=1))
    return RowSource(rows, lambda values: {column: values})


def _json_rows(lines: Iterator[str], selection: ColumnSelection) -> RowSource:
    """Return rows of JSON objects; those of the first block determine the columns."""
    columns: list[str] = []

    def cells_of(rows: list[Any]) -> Cells:
        if not columns:
            names = [name for row in rows for name in row] if selection.read_all else []
            columns.extend(dict.fromkeys([*names, *selection.required]))
        return {name: [row.get(name) for row in rows] for name in columns}

    rows = (_json_row(number, line, selection) for number, line in enumerate(lines, start=1) if line.strip())
    return RowSource(rows, cells_of)


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


def _excel_rows(path: str, file: IO[bytes], selection: ColumnSelection) -> RowSource:
    """Read the header of the first sheet, and return its rows."""
    rows = sheet_rows(path, file)
    header = next(rows, None)
    if header is None:
        raise FileError(path, "the first sheet is empty; its first row names the columns")
    names = column_names(path, [as_id(cell) for cell in header.cells], header.number)
    if problem := selection.missing_column(names):
        raise FileError(path, problem, line=header.number)
    indices = column_indices(selection, names)

    def cells_of(values: list[Any]) -> Cells:
        return {name: [cells[index] for cells in values] for name, index in indices.items()}

    return RowSource((_excel_row(row, len(names)) for row in rows), cells_of)


def _excel_row(row: SheetRow, width: int) -> Row | BadRow:
    number, cells = row
    if len(cells) > width:
        message = f"expected {width} cells, got {len(cells)}, the last {quoted(as_id(cells[-1]))}; name its column"
        return BadRow(number, message, " ".join(map(as_id, cells)))
    return Row(number, cells + [None] * (width - len(cells)), sum(len(cell) for cell in cells if isinstance(cell, str)))


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
