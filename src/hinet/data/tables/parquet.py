"""Rows of Parquet files, in blocks of bounded size however well the file is compressed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from hinet.data.tables import blocks
from hinet.data.tables.arrow_values import row_bytes, take_rows, to_python
from hinet.data.tables.blocks import ColumnSelection, RowBlock, TableFile
from hinet.data.tables.formats import PARQUET
from hinet.errors import FileError
from hinet.files.delimited import column_names
from hinet.files.streams import seekable_file
from hinet.ragged import offsets_of

MAX_BATCH_BYTES = 16 * blocks.MAX_CHARACTERS  # bytes decoded per batch; larger batches are split afterwards
SIZE_VARIATION = 4  # assumed ratio of the bytes of a batch to the average
MIN_BATCH_ROWS = 256  # columns whose values are too long for this many rows stay dictionary-encoded
MAX_PLANNED_GROUPS = 1_000  # row groups planned before the first of them is read
MIN_VALUE_BYTES = 8  # memory per value, even if the file uses a bit


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
