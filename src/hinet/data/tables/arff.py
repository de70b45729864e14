"""Rows of ARFF files, whose labels may be a hierarchical attribute as in Clus and multi-label benchmarks."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet import memory
from hinet.data.tables.blocks import MAX_ROWS, FailFast, RowBlock, RowErrors, TableFile
from hinet.data.tables.cells import to_python
from hinet.errors import FileError, quoted
from hinet.files.delimited import width_message
from hinet.files.schema import FINITE
from hinet.files.streams import decode_text, read_text, read_to_end
from hinet.ragged import offsets_of
from hinet.taxonomy import Taxonomy
from hinet.taxonomy.arff import ArffHeader, Attribute, AttributeKind, hierarchy_draft, parse_header, split_values

LABEL_SEP = "@"  # between the labels of a row
INPUTS: tuple[AttributeKind, ...] = ("text", "number", "category")
BYTES_PER_CELL = 24  # memory for a number and its copies when sparse rows become a table

_SPACES = re.compile(r"[ \t]*,[ \t]*")
_LOOSE_QUOTE = re.compile(r"""[ \t]['"]|['"][ \t]""")

Errors = dict[int, str]  # why rows are invalid, keyed by row


@dataclass(frozen=True, eq=False)
class ArffData:
    """The rows of an ARFF file with the labels of each, and the hierarchy of the labels.

    Attributes
    ----------
    rows : pyarrow.Table or scipy.sparse.csr_array
        A column for each attribute: numbers, categories as a dictionary, texts; missing values are null. A CSR matrix
        if the rows of the file are sparse and all attributes are numbers.
    labels : list of frozenset of str
        The labels of each row as node ids, as they are written: their ancestors are not added. Empty for ``?``.
    taxonomy : Taxonomy
        The hierarchy that the file declares.
    columns : mapping of str to tuple of str
        The columns of ``rows`` by kind, for ``HiNetClassifier(columns=...)``; empty for a CSR matrix.
    """

    rows: Any
    labels: list[frozenset[str]]
    taxonomy: Taxonomy
    columns: Mapping[str, tuple[str, ...]]


def load_arff(path: str | Path, *, encoding: str = "utf-8") -> ArffData:
    """Load an ARFF file with a hierarchical attribute, plain or compressed.

    The hierarchy is a tree of paths ``01/01/03``, or a DAG of edges ``parent/child`` from ``root``; the labels of a row
    are joined by ``@``, and ``?`` is a missing value.

    Raises
    ------
    FileError
        If the file cannot be read, or a row does not fit the attributes; names the line.
    """
    text = read_text(path, encoding)
    header = parse_header(path, text)
    hierarchy = header.hierarchy
    if hierarchy is None:
        raise FileError(path, "no attribute is hierarchical, so rows have no labels; declare one")
    taxonomy = Taxonomy.from_draft(hierarchy_draft(path, hierarchy), source=str(path))
    lines = _data_lines(path, text, header)
    rows: Any
    if lines.are_sparse and not (header.names("category") or header.names("text")):
        rows, cells, numbers = _sparse_rows(lines, header, FailFast())
        columns = {}
    else:
        table, numbers = _table_rows(lines, header, FailFast())
        cells = table.column(hierarchy.name).to_pylist()
        rows = table.select([attribute.name for attribute in header.attributes if attribute.kind in INPUTS])
        columns = input_columns(header)
    return ArffData(rows, _label_sets(path, cells, numbers, taxonomy), taxonomy, columns)


def input_columns(header: ArffHeader) -> dict[str, tuple[str, ...]]:
    """Return the names of the input attributes by kind."""
    return {kind: header.names(kind) for kind in INPUTS if header.names(kind)}


def arff_blocks(file: TableFile) -> Iterator[RowBlock]:
    """Yield the rows of an ARFF file, which is read at once."""
    path, selection = file.path, file.selection
    text = decode_text(path, read_to_end(path, file.peeked.stream), file.options.encoding)
    header = parse_header(path, text)
    if problem := selection.missing_column([attribute.name for attribute in header.attributes]):
        raise FileError(path, problem)
    table, lines = _table_rows(_data_lines(path, text, header), header, file.row_errors)
    names = selection.select(table.column_names)
    stay_arrays = {*header.names("number"), *header.names("category")}
    for start in range(0, table.num_rows, MAX_ROWS):
        part = table.slice(start, MAX_ROWS)
        arrays = {name: part.column(name).combine_chunks() for name in names}
        cells = {name: to_python(array) for name, array in arrays.items() if name not in stay_arrays}
        numbers = lines[start : start + MAX_ROWS].tolist()
        yield RowBlock(path, "arff", numbers, cells, arrays, list(range(start, start + len(numbers))))


class _DataLines(NamedTuple):
    """The lines of the data section, without blank ones and comments."""

    path: str
    texts: list[str]
    numbers: NDArray[np.int64]

    @property
    def are_sparse(self) -> bool:
        return bool(self.texts) and self.texts[0].startswith("{")

    def reject(self, errors: Errors, row_errors: RowErrors) -> NDArray[np.int64]:
        """Report the rows with errors, and return the others."""
        for row, reason in sorted(errors.items()):
            row_errors.add(self.path, int(self.numbers[row]), reason, self.texts[row])
        return np.setdiff1d(np.arange(len(self.texts)), np.fromiter(errors, np.int64, len(errors)))


def _data_lines(path: str | Path, text: str, header: ArffHeader) -> _DataLines:
    data = text[header.data_start :]
    has_comments, has_quotes = "%" in data, "'" in data or '"' in data
    texts, numbers = [], []
    for number, line in enumerate(data.split("\n"), start=header.data_line):
        stripped = line.strip()
        if has_comments and stripped.startswith("%"):
            continue
        if has_comments and not has_quotes:  # a % may be part of a quoted value
            stripped = stripped.partition("%")[0].rstrip()
        if stripped:
            texts.append(stripped)
            numbers.append(number)
    return _DataLines(str(path), texts, np.array(numbers, np.int64))


def _label_sets(
    path: str | Path, cells: Sequence[str | None], lines: NDArray[np.int64], taxonomy: Taxonomy
) -> list[frozenset[str]]:
    known: dict[str | None, frozenset[str]] = {None: frozenset()}
    for cell, line in zip(cells, lines.tolist(), strict=True):
        if cell is None or cell in known:
            continue
        known[cell] = frozenset(label for part in cell.split(LABEL_SEP) if (label := part.strip()))
        if unknown := sorted(label for label in known[cell] if label not in taxonomy):
            message = f"the label {quoted(unknown[0])} is not in the hierarchy of the attribute; declare it there"
            raise FileError(path, message, line=line)
    return [known[cell] for cell in cells]


def _table_rows(lines: _DataLines, header: ArffHeader, row_errors: RowErrors) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return valid rows as typed columns, labels as text, and the line of every row."""
    if lines.are_sparse:
        return _dense_table(lines, header, row_errors)
    errors: Errors = {}
    table = _parse_fast(lines, header)
    if table is None:
        table, errors = _parse_slowly(lines, header)
    columns = []
    for attribute, column in zip(header.attributes, table.columns, strict=True):
        if attribute.kind == "number":
            column = _checked_numbers(attribute, column, errors)
        elif attribute.kind == "category":
            column = _checked_categories(attribute, column, errors)
        columns.append(column)
    table, valid = pa.table(columns, table.column_names), lines.reject(errors, row_errors)
    return table.take(pa.array(valid)) if errors else table, lines.numbers[valid]


def _parse_fast(lines: _DataLines, header: ArffHeader) -> pa.Table | None:
    """Return rows parsed by Arrow, or None if a row or its quotes need a closer look."""
    import pyarrow.csv as pacsv

    joined = "\n".join(lines.texts)
    quotes = [quote for quote in "\"'" if quote in joined]
    if not lines.texts or len(quotes) > 1 or (quotes and _LOOSE_QUOTE.search(joined)):
        return None
    if not quotes and (" " in joined or "\t" in joined):
        joined = _SPACES.sub(",", joined)
    try:
        return pacsv.read_csv(
            io.BytesIO(joined.encode()),
            read_options=pacsv.ReadOptions(
                column_names=[attribute.name for attribute in header.attributes],
                block_size=max(1 << 20, 8 * max(map(len, lines.texts))),
            ),
            parse_options=pacsv.ParseOptions(
                quote_char=quotes[0] if quotes else False,
                double_quote=False,
                escape_char="\\" if quotes and "\\" in joined else False,
                ignore_empty_lines=False,
            ),
            convert_options=pacsv.ConvertOptions(
                column_types={a.name: pa.float64() if a.kind == "number" else pa.string() for a in header.attributes},
                null_values=["?", ""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        return None


def _parse_slowly(lines: _DataLines, header: ArffHeader) -> tuple[pa.Table, Errors]:
    """Return rows parsed by Python, and why some are invalid."""
    errors: Errors = {}
    width = len(header.attributes)
    rows: list[list[str]] = []
    for row, line in enumerate(lines.texts):
        cells = split_values(line)
        if len(cells) != width:
            errors[row] = width_message(cells, width, ",")
        rows.append(cells if len(cells) == width else ["?"] * width)
    columns: dict[str, pa.Array] = {}
    for index, attribute in enumerate(header.attributes):
        texts = [None if cells[index] in ("?", "") else cells[index] for cells in rows]
        columns[attribute.name] = (
            _as_numbers(attribute, texts, errors) if attribute.kind == "number" else pa.array(texts, pa.string())
        )
    return pa.table(columns), errors


def _as_numbers(attribute: Attribute, texts: list[str | None], errors: Errors) -> pa.Array:
    values: list[float | None] = []
    for row, text in enumerate(texts):
        try:
            values.append(None if text is None else float(text))
        except ValueError:
            errors.setdefault(row, _number_error(attribute, text))
            values.append(None)
    return pa.array(values, pa.float64())


def _number_error(attribute: Attribute, text: str | None) -> str:
    return f"attribute {quoted(attribute.name)} is {quoted(text or '')}, expected a number; write ? if it is missing"


def _checked_numbers(attribute: Attribute, column: pa.ChunkedArray, errors: Errors) -> pa.Array:
    """Return numbers with null for NaN; infinite ones are errors."""
    values = np.asarray(column.to_numpy(), np.float64)
    for row in np.flatnonzero(np.abs(values) > FINITE).tolist():
        errors.setdefault(row, f"attribute {quoted(attribute.name)} is {values[row]}, expected a finite number")
    return pa.array(values, from_pandas=True)


def _checked_categories(attribute: Attribute, column: pa.ChunkedArray, errors: Errors) -> pa.Array:
    """Return values as codes of the declared ones; others are errors."""
    import pyarrow.compute as pc

    declared = pa.array(dict.fromkeys(attribute.values), pa.string())
    codes = pc.index_in(column, value_set=declared, skip_nulls=True)
    unknown = pc.and_(pc.is_null(codes), pc.is_valid(column)).to_numpy()
    for row in np.flatnonzero(unknown).tolist():
        errors.setdefault(row, _category_error(attribute, column[row].as_py()))
    return pa.DictionaryArray.from_arrays(codes.combine_chunks().cast(pa.int32()), declared)


def _category_error(attribute: Attribute, value: str) -> str:
    listed = ", ".join(map(quoted, attribute.values[:8]))
    return f"attribute {quoted(attribute.name)} is {quoted(value)}, which is not among its values {listed}; declare it"


class _SparseRows(NamedTuple):
    """Valid rows as a CSR matrix with a column per input attribute: a number, a category's code, NaN if missing."""

    values: Any  # csr_array
    labels: list[str | None]
    lines: NDArray[np.int64]


def _sparse_rows(lines: _DataLines, header: ArffHeader, row_errors: RowErrors) -> _SparseRows:
    """Return rows such as ``{0 3, 5 yes}``, in which values that are left out are 0, or the first category."""
    inputs = [index for index, attribute in enumerate(header.attributes) if attribute.kind in INPUTS]
    column_of = np.full(len(header.attributes), -1, np.int64)
    column_of[inputs] = np.arange(len(inputs))
    label = next((index for index, a in enumerate(header.attributes) if a.kind == "hierarchy"), -1)
    pattern = re.compile(rf"(?:^|,)\s*{label}\s+([^,]*)")
    labels: list[str | None] = []
    bodies: list[str] = []
    for line in lines.texts:
        body = line.strip("{} \t")
        match = pattern.search(body)
        cell = match[1].strip(" \t'\"") if match else "?"
        labels.append(None if cell in ("?", "") else cell)
        bodies.append((body[: match.start()] + body[match.end() :]).strip(", ") if match else body)
    counts = np.array([body.count(",") + 1 if body else 0 for body in bodies], np.int64)
    errors: Errors = {}
    pairs = _number_pairs(bodies, counts, len(header.attributes))
    if pairs is None or header.names("category") or header.names("text"):
        pairs, counts, errors = _any_pairs(lines, bodies, header)
    attributes, values = pairs[:, 0].astype(np.int64), pairs[:, 1]
    chosen = column_of[attributes] >= 0
    counts = np.bincount(np.repeat(np.arange(len(counts)), counts)[chosen], minlength=len(counts))
    shape = (len(counts), len(inputs))
    matrix = sp.csr_array((values[chosen], column_of[attributes[chosen]], offsets_of(counts)), shape=shape)
    valid = lines.reject(errors, row_errors)
    return _SparseRows(matrix[valid], [labels[row] for row in valid.tolist()], lines.numbers[valid])


def _number_pairs(bodies: list[str], counts: NDArray[np.int64], attributes: int) -> NDArray[np.float64] | None:
    """Return all pairs (attribute, number), or None if some are not numbers."""
    joined = " ".join(bodies).replace(",", " ").replace("?", "nan")
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # given where numbers end before the text does
        try:
            flat = np.fromstring(joined, np.float64, sep=" ")
        except (DeprecationWarning, ValueError):
            return None
    if len(flat) != 2 * counts.sum():
        return None
    pairs = flat.reshape(-1, 2)
    index = pairs[:, 0]
    valid = (index >= 0) & (index < attributes) & (index % 1 == 0) & ~(np.abs(pairs[:, 1]) > FINITE)
    return pairs if valid.all() else None


def _any_pairs(
    lines: _DataLines, bodies: list[str], header: ArffHeader
) -> tuple[NDArray[np.float64], NDArray[np.int64], Errors]:
    """Return pairs (attribute, number or code), the number of pairs per row, and why some rows are invalid."""
    pairs: list[tuple[int, float]] = []
    counts = np.zeros(len(bodies), np.int64)
    errors: Errors = {}
    for row, body in enumerate(bodies):
        try:
            row_pairs = [_pair(part, header) for part in split_values(body)] if body else []
        except ValueError as error:
            errors[row] = str(error)
            continue
        pairs += row_pairs
        counts[row] = len(row_pairs)
    return np.array(pairs, np.float64).reshape(-1, 2), counts, errors


def _pair(part: str, header: ArffHeader) -> tuple[int, float]:
    """Return an attribute and its number or code, or raise ValueError."""
    number, _, text = part.partition(" ")
    text = text.strip(" \t'\"")
    if not number.isdigit() or int(number) >= len(header.attributes) or not text:
        raise ValueError(f"expected the number of an attribute and its value, got {quoted(part)}")
    attribute = header.attributes[int(number)]
    if attribute.kind == "text":
        raise ValueError(f"attribute {quoted(attribute.name)} is text, which sparse rows cannot hold here")
    if text == "?" or attribute.kind not in INPUTS:
        return int(number), np.nan
    if attribute.kind == "category":
        if text not in attribute.values:
            raise ValueError(_category_error(attribute, text))
        return int(number), attribute.values.index(text)
    try:
        value = float(text)
    except ValueError:
        raise ValueError(_number_error(attribute, text)) from None
    if abs(value) > FINITE:
        raise ValueError(f"attribute {quoted(attribute.name)} is {text}, expected a finite number")
    return int(number), value


def _dense_table(lines: _DataLines, header: ArffHeader, row_errors: RowErrors) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return sparse rows as a table, and the line of every row."""
    if len(lines.texts) * len(header.attributes) * BYTES_PER_CELL > memory.total_memory():
        message = f"sparse rows of {len(header.attributes):,} attributes do not fit into memory as a table; load"
        raise FileError(lines.path, f"{message} them with hinet.data.load_arff, which keeps them sparse")
    sparse = _sparse_rows(lines, header, row_errors)
    by_column, arrays = sp.csc_array(sparse.values), {}
    inputs = [attribute for attribute in header.attributes if attribute.kind in INPUTS]
    for index, attribute in enumerate(inputs):
        values = by_column[:, [index]].toarray().ravel()
        if attribute.kind == "category":
            codes = pa.array(np.nan_to_num(values, nan=-1).astype(np.int32), mask=np.isnan(values))
            arrays[attribute.name] = pa.DictionaryArray.from_arrays(codes, pa.array(attribute.values, pa.string()))
        else:
            arrays[attribute.name] = pa.array(values, from_pandas=True)
    if header.hierarchy is not None:
        arrays[header.hierarchy.name] = pa.array(sparse.labels, pa.string())
    return pa.table(arrays), sparse.lines
