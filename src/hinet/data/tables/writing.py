"""Tables out, a block at a time: CSV, TSV, JSON lines or Parquet, to a file that is all or nothing or to a pipe."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Any, Literal, Protocol

from hinet.data.tables.formats import TableFormat, format_of_name
from hinet.errors import FileError
from hinet.files import new_file
from hinet.files.streams import STANDARD, compressing

CellKind = Literal["text", "texts", "number", "any"]
LIST_SEP = " > "  # between the steps of a trace where a cell is text


class TableWriter(Protocol):
    """Writes blocks of columns."""

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write a block: the same columns every time, a cell a row."""


def format_for_output(out: str, format: TableFormat | None, of_input: TableFormat) -> TableFormat:
    """Return the format to write: as asked, by the name, or that of the input; plain lines are answered by a TSV."""
    chosen = format or (None if out == STANDARD else format_of_name(out)) or of_input
    return "tsv" if chosen == "text" else chosen


@contextmanager
def new_table(out: str, format: TableFormat, kinds: Mapping[str, CellKind]) -> Iterator[TableWriter]:
    """Yield a writer of a table with such columns; ``-`` is standard output.

    A file is there as a whole when the block ends, or not at all.
    """
    if out == STANDARD:
        if format == "parquet" and sys.stdout.isatty():
            raise FileError(out, "Parquet is no text for a terminal; write it to a file, or choose another format")
        with _writer(sys.stdout.buffer, format, kinds) as writer:
            yield writer
        sys.stdout.buffer.flush()
        return
    with new_file(out) as stream, compressing(out, stream) as packed, _writer(packed, format, kinds) as writer:
        yield writer


@contextmanager
def _writer(stream: IO[bytes], format: TableFormat, kinds: Mapping[str, CellKind]) -> Iterator[TableWriter]:
    if format == "jsonl":
        yield _JsonLines(stream)
    elif format == "parquet":
        with _Parquet(stream, kinds) as writer:
            yield writer
    else:
        yield _Delimited(stream, "\t" if format == "tsv" else ",", list(kinds))


class _Delimited:
    def __init__(self, stream: IO[bytes], delimiter: str, names: list[str]) -> None:
        self._stream, self._delimiter = stream, delimiter
        self._rows([names])

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self._rows(zip(*(map(_cell, column) for column in columns.values()), strict=True))

    def _rows(self, rows: Any) -> None:
        text = io.StringIO()
        csv.writer(text, delimiter=self._delimiter, lineterminator="\n").writerows(rows)
        self._stream.write(text.getvalue().encode())


def _cell(value: Any) -> Any:
    """Return a value as a cell: nothing as an empty one, a probability with as many digits as it is good for."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return LIST_SEP.join(map(str, value))
    return value if isinstance(value, (str, int)) else json.dumps(value, ensure_ascii=False, default=str)


class _JsonLines:
    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        names = list(columns)
        rows = zip(*columns.values(), strict=True)
        lines = [json.dumps(dict(zip(names, map(_rounded, row), strict=True)), ensure_ascii=False) for row in rows]
        self._stream.write("".join(f"{line}\n" for line in lines).encode())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return value if value is None or isinstance(value, (str, int, list, tuple, dict)) else str(value)


class _Parquet:
    """Columns of kind ``any``, which are carried over, get their types from the first block."""

    def __init__(self, stream: IO[bytes], kinds: Mapping[str, CellKind]) -> None:
        self._stream, self._kinds = stream, kinds
        self._writer: Any = None

    def __enter__(self) -> _Parquet:
        return self

    def __exit__(self, kind: Any, *others: Any) -> None:
        if kind is None and self._writer is None:
            self.write({name: [] for name in self._kinds})
        if self._writer is not None:
            self._writer.close()

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {"text": pa.string(), "texts": pa.list_(pa.string()), "number": pa.float64(), "any": None}
        if self._writer is None:
            arrays = {name: pa.array(column, types[self._kinds[name]]) for name, column in columns.items()}
            fields = [(name, _some_type(array.type)) for name, array in arrays.items()]
            self._schema = pa.schema(fields)
            self._writer = pq.ParquetWriter(self._stream, self._schema)
        try:
            table = pa.table({name: list(column) for name, column in columns.items()}, schema=self._schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise FileError(STANDARD, f"a kept column changes its kind ({error}); keep other columns") from None
        self._writer.write_table(table)


def _some_type(kind: Any) -> Any:
    """Return a type that later blocks can have too: nothing but nulls so far may become text."""
    import pyarrow as pa

    return pa.string() if pa.types.is_null(kind) else kind
