"""Rows of Parquet files, which know their types, in blocks of so many bytes however well the file is packed."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hinet.data.tables import blocks
from hinet.data.tables.arrow_values import bytes_of_rows, plain_values, taken
from hinet.data.tables.blocks import RowBlock, Wanted
from hinet.data.tables.formats import PARQUET
from hinet.errors import FileError
from hinet.files.delimited import column_names
from hinet.files.streams import STANDARD, PeekedStream
from hinet.ragged import offsets_of

MOST_BATCH_BYTES = 16 * blocks.MOST_CHARACTERS  # that Arrow may decode at a time; more is cut once it is known
UNEVEN = 4  # times as many bytes as on average that a batch is taken to have
LEAST_BATCH_ROWS = 256  # that are read at a time, before values repeated are kept as a dictionary instead
LEAST_VALUE = 8  # bytes that a value takes in memory, even where the file spends a bit on many


class _Batches(NamedTuple):
    """How to read a row group: so many rows at a time, with these columns kept as a dictionary and its indices."""

    rows: int
    packed: tuple[str, ...]


def parquet_blocks(path: str, opened: PeekedStream, wanted: Wanted, encoding: str) -> Iterator[RowBlock]:
    """Yield the rows of a Parquet file; bytes in columns of text are read in ``encoding``."""
    import pyarrow as pa

    if not opened.head.startswith(PARQUET):
        raise FileError(path, "is no Parquet file; name its format")
    try:
        with _seekable(path, opened.stream) as file:
            yield from _blocks(path, file, wanted, encoding)
    except pa.ArrowMemoryError:
        raise  # which is no fault of the file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FileError(path, f"the Parquet file is damaged or cut short: {error}") from None


def _blocks(path: str, file: Any, wanted: Wanted, encoding: str) -> Iterator[RowBlock]:
    import pyarrow.parquet as pq

    table = pq.ParquetFile(file)
    schema = table.schema_arrow
    names = dict(zip(column_names(path, schema.names, None), schema.names, strict=True))
    if problem := wanted.missing_from(list(names)):
        raise FileError(path, problem)
    fields = {name: schema.field(names[name]) for name in wanted.among(list(names))}
    done = 0
    for batch in _batches(file, table, [field.name for field in fields.values()]):
        for part in _small_parts(batch):
            arrays = {name: _unpacked(part.column(field.name), field.type) for name, field in fields.items()}
            cells = {name: plain_values(arrays[name], encoding) for name in wanted.columns}
            yield RowBlock(path, "parquet", list(range(done + 1, done + len(part) + 1)), cells, arrays)
            done += len(part)


def _batches(file: Any, table: Any, columns: list[str]) -> Iterator[Any]:
    """Yield batches, each of several row groups that can be read in one way."""
    import pyarrow.parquet as pq

    leaves = _leaves(table, columns)
    packs = pq.ParquetFile(file, read_dictionary=list(leaves.values()))
    ways = [_batches_of(table, packs, group, leaves) for group in range(table.metadata.num_row_groups)]
    for way, groups in groupby(range(len(ways)), ways.__getitem__):
        reader = pq.ParquetFile(file, read_dictionary=list(way.packed)) if way.packed else table
        yield from reader.iter_batches(way.rows, row_groups=list(groups), columns=columns)


def _leaves(table: Any, columns: list[str]) -> dict[int, str]:
    """Return the paths of the columns as the file has them, of which lists and objects have several, by number."""
    paths = {number: table.schema.column(number).path for number in range(len(table.schema))}
    return {
        number: path
        for number, path in paths.items()
        if any(path == name or path.startswith(f"{name}.") for name in columns)
    }


def _batches_of(table: Any, packs: Any, group: int, leaves: Mapping[int, str]) -> _Batches:
    """Return how to read a row group, so that a batch takes a bounded number of bytes."""
    metadata = table.metadata.row_group(group)
    rows = max(metadata.num_rows, 1)
    bytes_a_row = 1.0
    packed: list[str] = []
    for number, path in leaves.items():
        chunk = metadata.column(number)
        values = max(chunk.num_values, 1) / rows  # of a row, on average
        width = max(table.schema.column(number).length or 0, LEAST_VALUE)
        average = UNEVEN * max(chunk.total_uncompressed_size / rows, values * width)
        longest = 0.0  # value that all rows may repeat
        if chunk.has_dictionary_page and chunk.physical_type == "BYTE_ARRAY":
            longest = values * chunk.total_uncompressed_size
            if longest * min(rows, blocks.MOST_ROWS) > MOST_BATCH_BYTES:
                longest = values * _longest_repeated(packs, group, path)
        if longest * LEAST_BATCH_ROWS > MOST_BATCH_BYTES:
            packed.append(path)
            longest = 0.0
        bytes_a_row += max(average, longest)
    fitting = int(min(max(MOST_BATCH_BYTES // bytes_a_row, 1), blocks.MOST_ROWS))
    return _Batches(1 << (fitting.bit_length() - 1), tuple(packed))


def _longest_repeated(packs: Any, group: int, path: str) -> int:
    """Return the bytes of the longest value in the dictionary of a column."""
    first = next(packs.iter_batches(1, row_groups=[group], columns=[path]), None)
    return 0 if first is None or not len(first) else max(map(_longest, first.columns), default=0)


def _longest(array: Any) -> int:
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        return int(bytes_of_rows(array.dictionary).max(initial=0))
    if pa.types.is_struct(array.type):
        return max(map(_longest, array.flatten()), default=0)
    if pa.types.is_nested(array.type):
        return _longest(array.values)
    return 0


def _unpacked(array: Any, kind: Any) -> Any:
    """Return an array in the type the file says, with values instead of places in a dictionary."""
    import pyarrow as pa

    if array.type == kind:
        return array
    if pa.types.is_nested(array.type):
        array = taken(array, np.arange(len(array)))  # alone, without the values of other parts of the batch
    try:
        return array.cast(kind)
    except pa.ArrowNotImplementedError:  # as from a dictionary to views
        return array.cast(_without_dictionaries(array.type)).cast(kind)


def _without_dictionaries(kind: Any) -> Any:
    """Return the type of the values instead of places in a dictionary, within lists and objects too."""
    import pyarrow as pa

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
    """Yield a batch in parts of at most so many bytes, but for one row."""
    sizes = sum((bytes_of_rows(column) for column in batch.columns), np.zeros(len(batch), np.int64))
    ends = offsets_of(sizes)
    start = 0
    while start < len(batch):
        end = int(np.searchsorted(ends, ends[start] + blocks.MOST_CHARACTERS, side="right")) - 1
        end = max(end, start + 1)
        yield batch.slice(start, end - start)
        start = end


def _seekable(path: str, stream: io.BufferedReader) -> Any:
    """Return what Parquet is read from: the file, or a copy of what comes through a pipe or is compressed."""
    if str(path) != STANDARD:
        file = Path(path).open("rb")  # noqa: SIM115 closed by who asked for it
        if file.read(len(PARQUET)) == PARQUET:
            return file
        file.close()
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(stream, copy)
    copy.seek(0)
    return copy
