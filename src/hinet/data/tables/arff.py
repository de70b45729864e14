"""Rows of ARFF files, whose labels may be a hierarchical attribute as in Clus and multi-label benchmarks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    rows = _parse_rows(path, text, header)
    columns: dict[str, tuple[str, ...]] = {}
    if rows.are_sparse and not (header.names("category") or header.names("text")):
        inputs = _number_matrix(rows)
        rows.reject(FailFast())
    else:
        table, _ = _table_rows(rows, FailFast())
        inputs = table.select([attribute.name for attribute in header.attributes if attribute.kind in INPUTS])
        columns = input_columns(header)
    return ArffData(inputs, _label_sets(rows, header.attributes.index(hierarchy), taxonomy), taxonomy, columns)


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
    table, lines = _table_rows(_parse_rows(path, text, header), file.row_errors)
    names = selection.select(table.column_names)
    stay_arrays = {*header.names("number"), *header.names("category")}
    for start in range(0, table.num_rows, MAX_ROWS):
        part = table.slice(start, MAX_ROWS)
        arrays = {name: part.column(name).combine_chunks() for name in names}
        cells = {name: to_python(array) for name, array in arrays.items() if name not in stay_arrays}
        numbers = lines[start : start + MAX_ROWS].tolist()
        yield RowBlock(path, "arff", numbers, cells, arrays, list(range(start, start + len(numbers))))


@dataclass(frozen=True)
class _ArffRows:
    """The cells of the rows as text: a list per row, or in sparse rows a dict by the number of the attribute."""

    path: str
    attributes: tuple[Attribute, ...]
    texts: list[str]  # the lines
    numbers: NDArray[np.int64]  # the line numbers
    cells: list[Any]
    errors: Errors = field(default_factory=dict)

    @property
    def are_sparse(self) -> bool:
        return bool(self.texts) and self.texts[0].startswith("{")

    def column(self, index: int) -> list[str | None]:
        """Return the cells of an attribute; what a sparse row leaves out is 0, or the first category."""
        kind, values = self.attributes[index].kind, self.attributes[index].values
        default = "0" if kind == "number" else values[0] if kind == "category" and values else "?"
        texts = [row.get(index, default) if isinstance(row, dict) else row[index] for row in self.cells]
        return [None if text in ("?", "") else text for text in texts]

    def reject(self, row_errors: RowErrors) -> NDArray[np.int64]:
        """Report the rows with errors, and return the others."""
        for row, reason in sorted(self.errors.items()):
            row_errors.add(self.path, int(self.numbers[row]), reason, self.texts[row])
        return np.setdiff1d(np.arange(len(self.texts)), np.fromiter(self.errors, np.int64, len(self.errors)))


def _parse_rows(path: str | Path, text: str, header: ArffHeader) -> _ArffRows:
    """Return the rows of the data section, without blank lines and comments; invalid ones have empty cells."""
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
    rows = _ArffRows(str(path), header.attributes, texts, np.array(numbers, np.int64), [])
    parse = _sparse_cells if rows.are_sparse else _dense_cells
    for row, line in enumerate(texts):
        try:
            rows.cells.append(parse(line, header.attributes))
        except ValueError as error:
            rows.errors[row] = str(error)
            rows.cells.append({})
    return rows


def _dense_cells(line: str, attributes: Sequence[Attribute]) -> list[str]:
    cells = split_values(line)
    if len(cells) != len(attributes):
        raise ValueError(width_message(cells, len(attributes), ","))
    return cells


def _sparse_cells(line: str, attributes: Sequence[Attribute]) -> dict[int, str]:
    """Return the values in a row such as ``{0 3, 5 yes}``."""
    cells: dict[int, str] = {}
    body = line.strip("{} \t")
    for part in split_values(body) if body else ():
        number, value = (*part.split(maxsplit=1), "", "")[:2]
        value = value.strip(" \t'\"")
        if not number.isdigit() or int(number) >= len(attributes) or not value:
            raise ValueError(f"expected the number of an attribute and its value, got {quoted(part)}")
        attribute = attributes[int(number)]
        if attribute.kind == "text":
            raise ValueError(f"attribute {quoted(attribute.name)} is text, which sparse rows cannot hold here")
        if int(number) in cells:
            raise ValueError(f"attribute {number} occurs twice in the row; remove one of the values")
        cells[int(number)] = value
    return cells


def _label_sets(rows: _ArffRows, index: int, taxonomy: Taxonomy) -> list[frozenset[str]]:
    cells = rows.column(index)
    known: dict[str | None, frozenset[str]] = {None: frozenset()}
    for cell, line in zip(cells, rows.numbers.tolist(), strict=True):
        if cell is None or cell in known:
            continue
        known[cell] = frozenset(label for part in cell.split(LABEL_SEP) if (label := part.strip()))
        if unknown := sorted(label for label in known[cell] if label not in taxonomy):
            message = f"the label {quoted(unknown[0])} is not in the hierarchy of the attribute; declare it there"
            raise FileError(rows.path, message, line=line)
    return [known[cell] for cell in cells]


def _table_rows(rows: _ArffRows, row_errors: RowErrors) -> tuple[pa.Table, NDArray[np.int64]]:
    """Return valid rows as typed columns, labels as text, and the line of every row."""
    if rows.are_sparse and len(rows.texts) * len(rows.attributes) * BYTES_PER_CELL > memory.total_memory():
        message = f"sparse rows of {len(rows.attributes):,} attributes do not fit into memory as a table; load"
        raise FileError(rows.path, f"{message} them with hinet.data.load_arff, which keeps them sparse")
    columns: dict[str, pa.Array] = {}
    for index, attribute in enumerate(rows.attributes):
        texts = rows.column(index)
        if attribute.kind == "number":
            numbers = [_number(attribute, text, row, rows.errors) for row, text in enumerate(texts)]
            columns[attribute.name] = pa.array(np.array(numbers, np.float64), from_pandas=True)
        elif attribute.kind == "category":
            columns[attribute.name] = _categories(attribute, texts, rows.errors)
        else:
            columns[attribute.name] = pa.array(texts, pa.string())
    table, valid = pa.table(columns), rows.reject(row_errors)
    return table.take(pa.array(valid)) if rows.errors else table, rows.numbers[valid]


def _number(attribute: Attribute, text: str | None, row: int, errors: Errors) -> float:
    """Return a cell as a number, NaN for a missing or invalid one."""
    try:
        value = float(text or "nan")
    except ValueError:
        reason = f"is {quoted(text or '')}, expected a number; write ? if it is missing"
    else:
        if not abs(value) > FINITE:
            return value
        reason = f"is {value}, expected a finite number"
    errors.setdefault(row, f"attribute {quoted(attribute.name)} {reason}")
    return math.nan


def _categories(attribute: Attribute, texts: list[str | None], errors: Errors) -> pa.DictionaryArray:
    """Return cells as codes of the declared values; others are errors."""
    declared = {value: code for code, value in enumerate(dict.fromkeys(attribute.values))}
    for row, text in enumerate(texts):
        if text is not None and text not in declared:
            listed = ", ".join(map(quoted, attribute.values[:8]))
            reason = f"is {quoted(text)}, which is not among its values {listed}; declare it"
            errors.setdefault(row, f"attribute {quoted(attribute.name)} {reason}")
    codes = [None if text is None else declared.get(text) for text in texts]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array([*declared], pa.string()))


def _number_matrix(rows: _ArffRows) -> Any:
    """Return sparse rows of numbers as a CSR matrix with a column per input attribute."""
    inputs = [index for index, attribute in enumerate(rows.attributes) if attribute.kind in INPUTS]
    column_of = {index: column for column, index in enumerate(inputs)}
    values, columns, lengths = [], [], []
    for row, cells in enumerate(rows.cells):
        numbers = {index: text for index, text in cells.items() if index in column_of}
        columns += [column_of[index] for index in numbers]
        values += [
            _number(rows.attributes[index], None if text == "?" else text, row, rows.errors)
            for index, text in numbers.items()
        ]
        lengths.append(len(numbers))
    return sp.csr_array((values, columns, offsets_of(np.array(lengths))), shape=(len(lengths), len(inputs)))
