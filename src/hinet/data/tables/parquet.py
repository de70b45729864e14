"""Rows of Parquet files, which know their types."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hinet.data.tables import blocks
from hinet.data.tables.blocks import RowBlock, Wanted
from hinet.data.tables.formats import PARQUET
from hinet.errors import FileError
from hinet.files.delimited import column_names, no_column
from hinet.files.streams import STANDARD, Opened


def parquet_blocks(path: str, opened: Opened, wanted: Wanted) -> Iterator[RowBlock]:
    """Yield the rows of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not opened.head.startswith(PARQUET):
        raise FileError(path, "is no Parquet file; name its format")
    try:
        with _seekable(path, opened.stream) as file:
            table = pq.ParquetFile(file)
            names = column_names(path, table.schema_arrow.names, None)
            for column in wanted.both:
                if column not in names:
                    raise FileError(path, no_column(column, names))
            columns = wanted.among(names)
            done = 0
            for batch in table.iter_batches(blocks.MOST_ROWS, columns=columns):
                for part in _small_parts(batch):
                    arrays = {name: part.column(name) for name in columns}
                    cells = {name: plain_values(array) for name, array in arrays.items()}
                    yield RowBlock(path, "parquet", list(range(done + 1, done + len(part) + 1)), cells, arrays)
                    done += len(part)
    except (pa.ArrowException, OSError) as error:
        raise FileError(path, f"the Parquet file is damaged or cut short: {error}") from None


def _small_parts(batch: Any) -> Iterator[Any]:
    """Yield a batch in parts of at most so many characters, but for one row."""
    rows = max(1, min(len(batch), len(batch) * blocks.MOST_CHARACTERS // max(batch.nbytes, 1)))
    for start in range(0, len(batch), rows):
        yield batch.slice(start, rows)


def plain_values(array: Any) -> list[Any]:
    """Return the values of an Arrow array as text, numbers, lists and objects; times and the like as text."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind):
        array = array.cast(pa.string())
    values: list[Any] = array.to_pylist()
    return values


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
