"""Tables written block by block: CSV, TSV, JSON lines, Parquet or Excel, atomically to a file or to a pipe."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Literal, Protocol
from xml.sax.saxutils import escape

import pyarrow as pa

from hinet.choices import TableFormat
from hinet.data.tables.blocks import format_of_name
from hinet.data.tables.cells import to_python
from hinet.errors import FileError, HiNetError, quoted
from hinet.files.atomic import new_file
from hinet.files.delimited import format_rows
from hinet.files.sheets import MAX_ROWS
from hinet.files.streams import STANDARD, compressed_writer, decoding_error, standard_output, strip_compression
from hinet.taxonomy.draft import join_terms

# "labels", "titles" and "numbers" are lists, joined in a text cell; "any" is copied from the input.
CellKind = Literal["text", "texts", "labels", "titles", "number", "numbers", "integer", "any"]
LIST_SEP = " > "  # between the steps of a trace in a text cell
LABEL_SEP = "|"  # between several labels in a text cell, unless another is given

_BINARY: dict[TableFormat, str] = {"parquet": "Parquet", "xlsx": "Excel"}
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # also in full width
_NUMBER = re.compile(r"[+-]?[0-9.,]*[0-9][0-9.,]*(?:[eE][+-]?[0-9]+)?%?")
_TEXT, _TEXTS, _FLOAT = pa.string(), pa.list_(pa.string()), pa.float64()
_ARROW_TYPES: dict[CellKind, pa.DataType] = {
    "text": _TEXT, "texts": _TEXTS, "labels": _TEXTS, "titles": _TEXTS, "number": _FLOAT, "numbers": pa.list_(_FLOAT),
    "integer": pa.int64(),
}  # fmt: skip


MAX_COLUMNS = 1 << 14  # maximum columns per sheet in Excel
MAX_CELL = 32_767  # maximum characters per cell in Excel
MAX_EXACT = 2**53  # larger integers lose digits in Excel
MAX_BYTES = (1 << 31) - (1 << 20)  # maximum size of a sheet; Excel offers to repair larger ones
_TIME = (1980, 1, 1, 0, 0, 0)  # time stamp of all parts, so that the bytes are reproducible
_INVALID = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # characters that XML cannot hold
_ENTITIES = {"\r": "&#13;"}
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPES = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPES}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPES}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_LINKS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_LINKS}">'
    '<sheets><sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_LINKS}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}


class TableWriter(Protocol):
    """Writes blocks of columns."""

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write a block: the same columns every time, with one cell per row."""


def output_format(out: str, format: TableFormat | None, input_format: TableFormat) -> TableFormat:
    """Return the format to write: as given, by the suffix, or that of the input; for plain lines TSV.

    ARFF is not written: the default for such an input is CSV. Excel is written only to files.

    Raises
    ------
    FileError
        If the suffix is unknown, or the format is ARFF.
    """
    result = format or (None if out == STANDARD else format_of_name(out))
    suffix = Path(strip_compression(out)).suffix.lower()
    if result is None and suffix not in ("", ".txt"):
        known = ".csv, .tsv, .jsonl, .parquet or .xlsx"
        raise FileError(out, f"unknown extension {suffix!r}; use {known}, or set the format")
    if result == "arff":
        raise FileError(out, "ARFF is not written; use .csv, .tsv, .jsonl, .parquet or .xlsx")
    if result is None and out == STANDARD and input_format == "xlsx":
        return "csv"
    result = result or input_format
    return "tsv" if result == "text" else "csv" if result == "arff" else result


@contextmanager
def new_table(
    out: str,
    format: TableFormat,
    kinds: Mapping[str, CellKind],
    label_sep: str = LABEL_SEP,
    schema: Any = None,
    *,
    escape_formulas: bool = False,
    stream: IO[bytes] | None = None,
) -> Iterator[TableWriter]:
    """Yield a writer of a table with these columns; ``-`` is standard output.

    A file appears when the block ends, and not if it raises. ``label_sep`` joins several labels in a text cell;
    ``schema`` is that of Parquet, by default inferred from the first block. ``escape_formulas`` changes cells of CSV
    and TSV that a spreadsheet would compute. With a ``stream``, the table is written there, and errors name ``out``.
    """
    for name in kinds:
        if decoding_error(name, "utf-8"):
            raise HiNetError(f"{quoted(name)} is not valid text, so it cannot name a column; type it in UTF-8")
    cells = _text_cells(out, label_sep)
    with _output_stream(out, format) if stream is None else nullcontext(stream) as opened:
        if format == "jsonl":
            yield _Rows(kinds, lambda kind: partial(_json_value, kind), partial(_write_json, opened, list(kinds)))
        elif format == "parquet":
            with _Parquet(out, opened, kinds, schema) as writer:
                yield writer
        elif format == "xlsx":
            with _new_sheet(out, opened, list(kinds)) as sheet:
                yield _Rows(kinds, lambda kind: partial(_excel_value, kind, cells[kind]), sheet.write)
        else:
            header = [list(kinds)]  # written with the first rows, so that a failure before them writes nothing

            def write_rows(rows: Iterable[Sequence[str]]) -> None:
                _write_delimited(opened, [*header, *rows], "\t" if format == "tsv" else ",", escape_formulas)
                header.clear()

            yield _Rows(kinds, cells.__getitem__, write_rows)
            write_rows([])


@dataclass(frozen=True)
class _Rows:
    """Writes blocks of columns as rows of cells."""

    kinds: Mapping[str, CellKind]
    cell_of: Callable[[CellKind], Callable[[Any], Any]]  # returns the function that converts values of a kind to cells
    write_rows: Callable[[Iterable[Sequence[Any]]], None]

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        cells = [map(self.cell_of(kind), _values(columns[name])) for name, kind in self.kinds.items()]
        self.write_rows(zip(*cells, strict=True))


@contextmanager
def _output_stream(out: str, format: TableFormat) -> Iterator[IO[bytes]]:
    if out == STANDARD:
        stream = standard_output()
        if format in _BINARY and stream.isatty():
            raise FileError(out, f"{_BINARY[format]} is a binary format; write it to a file, or choose another format")
        yield stream
        stream.flush()
        return
    with new_file(out) as stream, compressed_writer(out, stream) as packed:
        yield packed


def escape_formula(cell: str) -> str:
    """Return a cell with an apostrophe in front if a spreadsheet would compute it; a number stays as it is.

    >>> escape_formula("=1+1"), escape_formula("-1.5"), escape_formula("rye")
    ("'=1+1", '-1.5', 'rye')
    """
    return f"'{cell}" if cell.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(cell) else cell


def _write_delimited(stream: IO[bytes], rows: Sequence[Sequence[str]], delimiter: str, escape_formulas: bool) -> None:
    if escape_formulas:
        rows = [[escape_formula(cell) for cell in row] for row in rows]
    lines = io.StringIO()
    csv.writer(lines, delimiter=delimiter, lineterminator="\n").writerows(rows)
    text = lines.getvalue()
    if "\r" in text:  # the csv module leaves it unquoted when lines end in a newline
        text = format_rows(rows, delimiter)
    stream.write(text.encode())


def _values(column: Any) -> Sequence[Any]:
    """Return a column as Python values; columns copied from the input may be Arrow arrays."""
    return to_python(column, errors="backslashreplace") if hasattr(column, "type") else column


def _any_cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


_TEXT_CELLS: dict[CellKind, Callable[[Any], str]] = {
    "text": lambda value: "" if value is None else value,
    "titles": lambda titles: join_terms(titles or ()),  # a title may contain any separator
    "texts": lambda value: "" if value is None else LIST_SEP.join(value),
    "number": lambda value: "" if value is None else f"{value:.6g}",  # the useful digits of a probability
    "integer": str,
    "any": _any_cell,
}


def _text_cells(path: str, label_sep: str) -> dict[CellKind, Callable[[Any], str]]:
    """Return the functions that convert values to text cells, by kind."""

    def labels(values: Any) -> str:
        for label in values or ():
            if label_sep in label:
                raise FileError(
                    path,
                    f"the label {quoted(label)} has the separator {quoted(label_sep)}; give another `label_sep`, or "
                    "write JSON lines or Parquet",
                )
        return label_sep.join(values or ())

    def numbers(values: Any) -> str:
        return label_sep.join(map(_TEXT_CELLS["number"], values or ()))

    return {**_TEXT_CELLS, "labels": labels, "numbers": numbers}


def _write_json(stream: IO[bytes], names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    objects = (dict(zip(names, row, strict=True)) for row in rows)
    lines = [json.dumps(row, ensure_ascii=False, default=str) for row in objects]
    stream.write("".join(f"{line}\n" for line in lines).encode())


def _json_value(kind: CellKind, value: Any) -> Any:
    if kind == "numbers" and value is not None:
        return [_json_value("number", each) for each in value]
    if isinstance(value, float):
        return None if value != value else float(f"{value:.6g}") if kind == "number" else value
    return value


def _excel_value(kind: CellKind, text_cell: Callable[[Any], str], value: Any) -> Any:
    """Return a number or boolean as it is, and everything else as the text of a CSV cell."""
    if value is None or value != value:
        return None
    if isinstance(value, int | float):
        return float(f"{value:.6g}") if kind == "number" else value
    return text_cell(value)


class _Sheet:
    """The sheet of a file, whose first row has the names of the columns."""

    def __init__(self, path: str, stream: IO[bytes], names: Sequence[str]) -> None:
        if len(names) > MAX_COLUMNS:
            raise FileError(path, f"{len(names):,} columns are more than the {MAX_COLUMNS:,} of Excel; write CSV")
        self._path, self._stream, self._rows, self._bytes = path, stream, 0, 0
        self._letters = [_letters(column) for column in range(len(names))]
        self.write([names])

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Write rows of texts, numbers, booleans, and None for empty cells."""
        content = "".join(map(self._row, rows)).encode()
        self._bytes += len(content)
        if self._bytes > MAX_BYTES:
            raise FileError(self._path, "the sheet has more than 2 GB; write CSV or Parquet")
        self._stream.write(content)

    def _row(self, cells: Sequence[Any]) -> str:
        self._rows += 1
        if self._rows > MAX_ROWS:
            raise FileError(self._path, f"a sheet of Excel has at most {MAX_ROWS:,} rows; write CSV or Parquet")
        number = self._rows
        written = [_cell(f"{letters}{number}", cell) for letters, cell in zip(self._letters, cells, strict=True)]
        return f'<row r="{number}">{"".join(written)}</row>'


@contextmanager
def _new_sheet(path: str, stream: IO[bytes], names: Sequence[str]) -> Iterator[_Sheet]:
    """Yield a sheet to write; the file is complete when the block ends. The stream need not be seekable."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _PARTS.items():
            archive.writestr(_part(name), _HEAD + content)
        with archive.open(_part("xl/worksheets/sheet1.xml"), "w") as part:
            part.write(f'{_HEAD}<worksheet xmlns="{_MAIN}"><sheetData>'.encode())
            yield _Sheet(path, part, names)
            part.write(b"</sheetData></worksheet>")


def _part(name: str) -> zipfile.ZipInfo:
    part = zipfile.ZipInfo(name, _TIME)
    part.compress_type = zipfile.ZIP_DEFLATED
    return part


def _cell(place: str, value: Any) -> str:
    """Return a cell. Texts are marked as texts, so that Excel computes none that looks like a formula."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, int | float) and abs(value) <= MAX_EXACT:
        return f'<c r="{place}"><v>{value!r}</v></c>'
    text = value if isinstance(value, str) else str(value)
    if not text:
        return ""
    if len(text) > MAX_CELL:
        text = f"{text[: MAX_CELL - 1]}…"
    text = escape(_INVALID.sub("\ufffd", text), _ENTITIES)
    return f'<c r="{place}" t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'


def _letters(column: int) -> str:
    """Return the letters of a column, counted from 0.

    >>> _letters(0), _letters(25), _letters(26), _letters(702)
    ('A', 'Z', 'AA', 'AAA')
    """
    letters = ""
    column += 1
    while column:
        column, letter = divmod(column - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


class _Parquet:
    """Columns of kind ``any`` get their types from the schema, or without one from the first block."""

    def __init__(self, path: str, stream: IO[bytes], kinds: Mapping[str, CellKind], schema: Any) -> None:
        self._path, self._stream, self._kinds, self._schema = path, stream, kinds, schema
        self._writer: Any = None

    def __enter__(self) -> _Parquet:
        return self

    def __exit__(self, kind: Any, *others: Any) -> None:
        if kind is None and self._writer is None:
            self.write({name: [] for name in self._kinds})
        if self._writer is not None:
            self._writer.close()

    def write(self, columns: Mapping[str, Sequence[Any]]) -> None:
        import pyarrow.parquet as pq

        try:
            if self._schema is None:
                self._schema = parquet_schema(columns, self._kinds)
            arrays = [_as_array(columns[field.name], field.type) for field in self._schema]
            table = pa.Table.from_arrays(arrays, schema=self._schema)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise FileError(self._path, f"a kept column changes its type ({error}); keep other columns") from None
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._stream, self._schema)
        self._writer.write_table(table)


def parquet_schema(columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, CellKind]) -> Any:
    """Return the schema of a table; columns of kind ``any`` have the types of these cells."""
    types = {name: _as_array(columns[name], _ARROW_TYPES.get(kind)).type for name, kind in kinds.items()}
    # A column of nulls may become text later.
    return pa.schema([(name, pa.string() if pa.types.is_null(type) else type) for name, type in types.items()])


def to_arrow(columns: Mapping[str, Sequence[Any]], kinds: Mapping[str, CellKind]) -> dict[str, Any]:
    """Return columns as Arrow arrays, but for those of kind ``any``, which stay as they are."""
    return {
        name: columns[name] if kind == "any" else _as_array(columns[name], _ARROW_TYPES[kind])
        for name, kind in kinds.items()
    }


def _as_array(column: Any, kind: Any) -> Any:
    if not hasattr(column, "type"):
        return pa.array(column, kind)
    return column if kind is None or column.type == kind else column.cast(kind)
