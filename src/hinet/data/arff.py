"""ARFF files whose labels are a hierarchical attribute, as Clus and the field of multi-label hierarchies use them."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet import memory
from hinet.errors import FileError, LabelError, quoted
from hinet.files.arff import ArffHeader, Attribute, AttributeKind, parse_header, split_values
from hinet.files.delimited import width_message
from hinet.files.schema import FINITE
from hinet.files.text import read_text
from hinet.ragged import offsets_of
from hinet.taxonomy import Taxonomy
from hinet.taxonomy.arff import hierarchy_draft

LABEL_SEP = "@"  # between the labels of a row
INPUTS: tuple[AttributeKind, ...] = ("text", "number", "category")
BYTES_OF_CELL = 24  # of a number, and of the copies that are made of it

_SPACES = re.compile(r"[ \t]*,[ \t]*")
_LOOSE_QUOTE = re.compile(r"""[ \t]['"]|['"][ \t]""")

Reject = Callable[[int, str, str], None]  # receives an invalid row: its line, why it is invalid, and its text


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

    def fail(line: int, reason: str, row: str) -> None:
        raise FileError(path, reason, line=line)

    lines = _data_lines(text, header)
    rows: Any
    if lines.are_sparse and not (header.names("category") or header.names("text")):
        sparse = _sparse_rows(lines, header, fail)
        rows, cells, numbers = sparse.values, sparse.labels, sparse.lines
    else:
        read = _table_rows(path, lines, header, fail)
        cells, numbers = read.table.column(hierarchy.name).to_pylist(), read.lines
        rows = read.table.select([a.name for a in header.attributes if a.kind in INPUTS])
    columns = {} if sp.issparse(rows) else input_columns(header)
    return ArffData(rows, _label_sets(path, cells, numbers, taxonomy), taxonomy, columns)


def input_columns(header: ArffHeader) -> dict[str, tuple[str, ...]]:
    """Return the attributes that tell the labels, by kind."""
    return {kind: header.names(kind) for kind in INPUTS if header.names(kind)}


class ArffRows(NamedTuple):
    """Valid rows of a file: all attributes as columns, labels as text, and the line of every row."""

    table: pa.Table
    lines: NDArray[np.int64]


def read_arff_rows(path: str | Path, text: str, header: ArffHeader, reject: Reject) -> ArffRows:
    """Return the rows of a file as a table, sparse ones too; invalid rows go to ``reject``."""
    return _table_rows(path, _data_lines(text, header), header, reject)


class _DataLines(NamedTuple):
    """The lines of rows, without blank ones and comments."""

    texts: list[str]
    numbers: NDArray[np.int64]

    @property
    def are_sparse(self) -> bool:
        return bool(self.texts) and self.texts[0].startswith("{")


def _data_lines(text: str, header: ArffHeader) -> _DataLines:
    data = text[header.data_start :]
    has_comments, has_quotes = "%" in data, "'" in data or '"' in data
    texts, numbers = [], []
    for number, line in enumerate(data.split("\n"), start=header.data_line):
        stripped = line.strip()
        if has_comments:  # after a row only in files without quotes, in which a % may be part of a value
            stripped = (
                "" if stripped.startswith("%") else stripped if has_quotes else stripped.partition("%")[0].rstrip()
            )
        if stripped:
            texts.append(stripped)
            numbers.append(number)
    return _DataLines(texts, np.array(numbers, np.int64))


def _label_sets(
    path: str | Path, cells: Sequence[str | None], lines: NDArray[np.int64], taxonomy: Taxonomy
) -> list[frozenset[str]]:
    known: dict[str | None, frozenset[str]] = {None: frozenset()}
    for cell, line in zip(cells, lines.tolist(), strict=True):
        if cell in known or cell is None:
            continue
        labels = frozenset(label for part in cell.split(LABEL_SEP) if (label := part.strip()))
        try:
            taxonomy.positions(sorted(labels))
        except LabelError:
            unknown = next(label for label in sorted(labels) if label not in taxonomy)
            message = f"the label {quoted(unknown)} is not in the hierarchy of the attribute; declare it there"
            raise FileError(path, message, line=line) from None
        known[cell] = labels
    return [known[cell] for cell in cells]


def _table_rows(path: str | Path, lines: _DataLines, header: ArffHeader, reject: Reject) -> ArffRows:
    """Return rows as columns of their types."""
    if lines.are_sparse:
        cells = len(lines.texts) * len(header.attributes) * BYTES_OF_CELL
        if cells > memory.total_memory():
            message = f"sparse rows of {len(header.attributes):,} attributes do not fit into memory as a table; load"
            raise FileError(path, f"{message} them with hinet.data.load_arff, which keeps them sparse")
        return _dense_columns(_sparse_rows(lines, header, reject), header)
    bad: dict[int, str] = {}
    table = _parse_fast(lines, header)
    if table is None:
        table, bad = _parse_slowly(lines, header)
    columns = []
    for attribute, column in zip(header.attributes, table.columns, strict=True):
        if attribute.kind == "number":
            columns.append(_checked_numbers(attribute, column, bad))
        elif attribute.kind == "category":
            columns.append(_checked_categories(attribute, column, bad))
        else:
            columns.append(column)
    _reject_rows(lines, bad, reject)
    table = pa.table(columns, table.column_names)
    if not bad:
        return ArffRows(table, lines.numbers)
    kept = np.setdiff1d(np.arange(table.num_rows), np.fromiter(bad, np.int64))
    return ArffRows(table.take(pa.array(kept)), lines.numbers[kept])


def _reject_rows(lines: _DataLines, bad: Mapping[int, str], reject: Reject) -> None:
    for row, reason in sorted(bad.items()):
        reject(int(lines.numbers[row]), reason, lines.texts[row])


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


def _parse_slowly(lines: _DataLines, header: ArffHeader) -> tuple[pa.Table, dict[int, str]]:
    """Return rows as Python reads them, and why some are invalid."""
    bad: dict[int, str] = {}
    width = len(header.attributes)
    rows: list[list[str]] = []
    for row, line in enumerate(lines.texts):
        cells = split_values(line)
        if len(cells) != width:
            bad[row] = width_message(cells, width, ",")
        rows.append(cells if len(cells) == width else ["?"] * width)
    arrays = []
    for index, attribute in enumerate(header.attributes):
        texts = [None if cells[index] in ("?", "") else cells[index] for cells in rows]
        if attribute.kind == "number":
            arrays.append(pa.array(_as_numbers(attribute, texts, bad), pa.float64()))
        else:
            arrays.append(pa.array(texts, pa.string()))
    return pa.table(arrays, [attribute.name for attribute in header.attributes]), bad


def _as_numbers(attribute: Attribute, texts: list[str | None], bad: dict[int, str]) -> list[float | None]:
    values: list[float | None] = []
    for row, text in enumerate(texts):
        try:
            values.append(None if text is None else float(text))
        except ValueError:
            bad.setdefault(row, _no_number(attribute, text or ""))
            values.append(None)
    return values


def _no_number(attribute: Attribute, text: str) -> str:
    return f"attribute {quoted(attribute.name)} is {quoted(text)}, expected a number; write ? if it is missing"


def _checked_numbers(attribute: Attribute, column: pa.ChunkedArray, bad: dict[int, str]) -> pa.Array:
    """Return numbers with null for NaN; rows with infinite ones are bad."""
    values = np.asarray(column.to_numpy(), np.float64)
    for row in np.flatnonzero(np.abs(values) > FINITE).tolist():
        bad.setdefault(row, f"attribute {quoted(attribute.name)} is {values[row]}, expected a finite number")
    return pa.array(values, from_pandas=True)


def _checked_categories(attribute: Attribute, column: pa.ChunkedArray, bad: dict[int, str]) -> pa.Array:
    """Return values as codes of the declared ones; rows with others are bad."""
    import pyarrow.compute as pc

    declared = pa.array(dict.fromkeys(attribute.values), pa.string())
    codes = pc.index_in(column, value_set=declared, skip_nulls=True)
    unknown = pc.and_(pc.is_null(codes), pc.is_valid(column)).to_numpy()
    for row in np.flatnonzero(unknown).tolist():
        bad.setdefault(row, _unknown_category(attribute, column[row].as_py()))
    return pa.DictionaryArray.from_arrays(codes.combine_chunks().cast(pa.int32()), declared)


def _unknown_category(attribute: Attribute, value: str) -> str:
    listed = ", ".join(map(quoted, attribute.values[:8]))
    return f"attribute {quoted(attribute.name)} is {quoted(value)}, which is not among its values {listed}; declare it"


class _SparseRows(NamedTuple):
    """Rows with a value for each attribute that tells the labels: a number, the code of a category, NaN if missing."""

    values: Any  # csr_array
    labels: list[str | None]
    lines: NDArray[np.int64]


def _sparse_rows(lines: _DataLines, header: ArffHeader, reject: Reject) -> _SparseRows:
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
    bad: dict[int, str] = {}
    pairs = _number_pairs(bodies, counts, len(header.attributes))
    if pairs is None or header.names("category") or header.names("text"):
        pairs, counts, bad = _any_pairs(lines, bodies, header)
    _reject_rows(lines, bad, reject)
    attributes, values = pairs[:, 0].astype(np.int64), pairs[:, 1]
    chosen = column_of[attributes] >= 0
    counts = np.bincount(np.repeat(np.arange(len(counts)), counts)[chosen], minlength=len(counts))
    shape = (len(counts), len(inputs))
    matrix = sp.csr_array((values[chosen], column_of[attributes[chosen]], offsets_of(counts)), shape=shape)
    kept = np.setdiff1d(np.arange(len(counts)), np.fromiter(bad, np.int64, len(bad)))
    return _SparseRows(matrix[kept], [labels[row] for row in kept.tolist()], lines.numbers[kept])


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
) -> tuple[NDArray[np.float64], NDArray[np.int64], dict[int, str]]:
    """Return pairs (attribute, number or code), how many each row has, and why some rows are invalid."""
    pairs: list[tuple[int, float]] = []
    counts = np.zeros(len(bodies), np.int64)
    bad: dict[int, str] = {}
    for row, body in enumerate(bodies):
        try:
            found = list(_pairs_of(body, header)) if body else []
        except ValueError as error:
            bad[row] = f"{error}" or f"expected '{{attribute value, …}}', got {quoted(lines.texts[row])}"
            continue
        pairs += found
        counts[row] = len(found)
    return np.array(pairs, np.float64).reshape(-1, 2), counts, bad


def _pairs_of(body: str, header: ArffHeader) -> Iterator[tuple[int, float]]:
    """Yield the pairs of a row, or raise ValueError."""
    for part in split_values(body):
        number, _, text = part.partition(" ")
        text = text.strip(" \t'\"")
        if not number.isdigit() or int(number) >= len(header.attributes) or not text:
            raise ValueError(f"expected the number of an attribute and its value, got {quoted(part)}")
        attribute = header.attributes[int(number)]
        if attribute.kind == "text":
            raise ValueError(f"attribute {quoted(attribute.name)} is text, which sparse rows cannot hold here")
        if text == "?":
            yield int(number), np.nan
        elif attribute.kind == "category":
            if text not in attribute.values:
                raise ValueError(_unknown_category(attribute, text))
            yield int(number), attribute.values.index(text)
        elif attribute.kind == "number":
            try:
                value = float(text)
            except ValueError:
                raise ValueError(_no_number(attribute, text)) from None
            if abs(value) > FINITE:
                raise ValueError(f"attribute {quoted(attribute.name)} is {text}, expected a finite number")
            yield int(number), value


def _dense_columns(sparse: _SparseRows, header: ArffHeader) -> ArffRows:
    inputs = [attribute for attribute in header.attributes if attribute.kind in INPUTS]
    by_column, arrays = sp.csc_array(sparse.values), {}
    for index, attribute in enumerate(inputs):
        values = by_column[:, [index]].toarray().ravel()
        if attribute.kind == "category":
            codes = pa.array(np.nan_to_num(values, nan=-1).astype(np.int32), mask=np.isnan(values))
            arrays[attribute.name] = pa.DictionaryArray.from_arrays(codes, pa.array(attribute.values, pa.string()))
        else:
            arrays[attribute.name] = pa.array(values, from_pandas=True)
    if header.hierarchy is not None:
        arrays[header.hierarchy.name] = pa.array(sparse.labels, pa.string())
    return ArffRows(pa.table(arrays), sparse.lines)
