"""Tables out, a block at a time: CSV, TSV, JSON lines or Parquet, to a file that is all or nothing or to a pipe."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from hinet.data.tables.arrow_values import plain_values
from hinet.data.tables.formats import TableFormat, format_of_name
from hinet.errors import FileError, HiNetError, quoted
from hinet.files import new_file
from hinet.files.delimited import format_rows
from hinet.files.streams import STANDARD, compressed_writer, standard_output, strip_compression
from hinet.files.text import decoding_error

CellKind = Literal["text", "texts", "number", "place", "any"]  # "any" is carried over as it came
LIST_SEP = " > "  # between the steps of a trace where a cell is text


class TableWriter(Protocol):
    """Writes blocks of columns."""

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write a block: the same columns every time, a cell a row."""


def format_for_output(out: str, format: TableFormat | None, of_input: TableFormat) -> TableFormat:
    """Return the format to write: as asked, by the name, or that of the input; plain lines are answered by a TSV.

    Raises
    ------
    FileError
        If the name ends in what stands for no format.
    """
    chosen = format or (None if out == STANDARD else format_of_name(out))
    ending = Path(strip_compression(out)).suffix.lower()
    if chosen is None and ending not in ("", ".txt"):
        raise FileError(
            out, f"{ending!r} stands for no format; end the name in .csv, .tsv, .jsonl or .parquet, or name one"
        )
    chosen = chosen or of_input
    return "tsv" if chosen == "text" else chosen


@contextmanager
def new_table(out: str, format: TableFormat, kinds: Mapping[str, CellKind]) -> Iterator[TableWriter]:
    """Yield a writer of a table with such columns; ``-`` is standard output.

    A file is there as a whole when the block ends, or not at all.
    """
    for name in kinds:
        if decoding_error(name, "utf-8"):
            raise HiNetError(f"{quoted(name)} is no text, so no name of a column; type it in UTF-8")
    if out == STANDARD:
        stream = standard_output()
        if format == "parquet" and stream.isatty():
            raise FileError(out, "Parquet is no text for a terminal; write it to a file, or choose another format")
        with table_writer(out, stream, format, kinds) as writer:
            yield writer
        stream.flush()
        return
    with (
        new_file(out) as stream,
        compressed_writer(out, stream) as packed,
        table_writer(out, packed, format, kinds) as writer,
    ):
        yield writer


@contextmanager
def table_writer(
    path: str, stream: IO[bytes], format: TableFormat, kinds: Mapping[str, CellKind]
) -> Iterator[TableWriter]:
    """Yield a writer of a table to a stream; ``path`` is what errors call it."""
    if format == "jsonl":
        yield _JsonLines(stream, kinds)
    elif format == "parquet":
        with _Parquet(path, stream, kinds) as writer:
            yield writer
    else:
        yield _Delimited(stream, "\t" if format == "tsv" else ",", kinds)


class _Delimited:
    def __init__(self, stream: IO[bytes], delimiter: str, kinds: Mapping[str, CellKind]) -> None:
        self._stream, self._delimiter, self._kinds = stream, delimiter, kinds
        self._rows([list(kinds)])

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        cells = [[_CELL_OF[kind](value) for value in _values(columns[name])] for name, kind in self._kinds.items()]
        self._rows(list(zip(*cells, strict=True)))

    def _rows(self, rows: list[Any]) -> None:
        written = io.StringIO()
        csv.writer(written, delimiter=self._delimiter, lineterminator="\n").writerows(rows)
        text = written.getvalue()
        if "\r" in text:  # which the csv module leaves unquoted when lines end in a newline
            text = format_rows(rows, self._delimiter)
        self._stream.write(text.encode())


def _values(column: Any) -> Sequence[Any]:
    """Return a column as plain values: columns that are carried over may be Arrow arrays."""
    return plain_values(column, errors="backslashreplace") if hasattr(column, "type") else column


def _any_cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


_CELL_OF: dict[CellKind, Callable[[Any], str]] = {
    "text": lambda value: "" if value is None else value,
    "texts": lambda value: "" if value is None else LIST_SEP.join(value),
    "number": lambda value: "" if value is None else f"{value:.6g}",  # as many digits as a probability is good for
    "place": str,
    "any": _any_cell,
}


class _JsonLines:
    def __init__(self, stream: IO[bytes], kinds: Mapping[str, CellKind]) -> None:
        self._stream, self._kinds = stream, kinds

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        names = list(self._kinds)
        cells = [[_json_value(value, kind) for value in _values(columns[name])] for name, kind in self._kinds.items()]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True)]
        lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows]
        self._stream.write("".join(f"{line}\n" for line in lines).encode())


def _json_value(value: Any, kind: CellKind) -> Any:
    if isinstance(value, float):
        return None if value != value else float(f"{value:.6g}") if kind == "number" else value
    return value


class _Parquet:
    """Columns of kind ``any``, which are carried over, get their types from the first block."""

    def __init__(self, path: str, stream: IO[bytes], kinds: Mapping[str, CellKind]) -> None:
        self._path, self._stream, self._kinds = path, stream, kinds
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

        types = {"text": pa.string(), "texts": pa.list_(pa.string()), "number": pa.float64(), "place": pa.int64()}
        try:
            if self._writer is None:
                arrays = {name: _as_array(columns[name], types.get(kind)) for name, kind in self._kinds.items()}
                self._schema = pa.schema([(name, _some_type(array.type)) for name, array in arrays.items()])
                self._writer = pq.ParquetWriter(self._stream, self._schema)
            fitting = [_as_array(columns[field.name], field.type) for field in self._schema]
            table = pa.Table.from_arrays(fitting, schema=self._schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise FileError(self._path, f"a kept column changes its kind ({error}); keep other columns") from None
        self._writer.write_table(table)


def _as_array(column: Any, kind: Any) -> Any:
    import pyarrow as pa

    if not hasattr(column, "type"):
        return pa.array(column, kind)
    return column if kind is None or column.type == kind else column.cast(kind)


def _some_type(kind: Any) -> Any:
    """Return a type that later blocks can have too: nothing but nulls so far may become text."""
    import pyarrow as pa

    return pa.string() if pa.types.is_null(kind) else kind
