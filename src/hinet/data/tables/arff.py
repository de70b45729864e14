"""Rows of ARFF files, whose labels may be a hierarchical attribute as in Clus and multi-label benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from hinet import parameters
from hinet.data.tables.blocks import BadRow, Row, RowBlock, TableFile, in_blocks
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
    lines = _data_lines(text, header)
    rows = []
    for row in _parsed_rows(lines, header.attributes):
        if isinstance(row, BadRow):
            raise FileError(path, row.reason, line=row.number)
        rows.append(row)
    inputs = {index: attribute for index, attribute in enumerate(header.attributes) if attribute.kind in INPUTS}
    values = [row.values for row in rows]
    labels = _label_sets(path, _column(values, header.attributes.index(hierarchy), hierarchy), rows, taxonomy)
    if _are_sparse(lines) and not (header.names("category") or header.names("text")):
        return ArffData(_number_matrix(values, list(inputs)), labels, taxonomy, {})
    _check_memory(path, lines, header)
    table = {attribute.name: _array(attribute, _column(values, i, attribute)) for i, attribute in inputs.items()}
    return ArffData(pa.table(table), labels, taxonomy, input_columns(header))


def input_columns(header: ArffHeader) -> dict[str, tuple[str, ...]]:
    """Return the names of the input attributes by kind."""
    return {kind: header.names(kind) for kind in INPUTS if header.names(kind)}


def arff_blocks(file: TableFile) -> Iterator[RowBlock]:
    """Yield the rows of an ARFF file, whose text is read at once."""
    path, selection = file.path, file.selection
    text = decode_text(path, read_to_end(path, file.peeked.stream), file.options.encoding)
    header = parse_header(path, text)
    attributes = {attribute.name: (index, attribute) for index, attribute in enumerate(header.attributes)}
    if problem := selection.missing_column(list(attributes)):
        raise FileError(path, problem)
    lines = _data_lines(text, header)
    _check_memory(path, lines, header)
    selected = {name: attributes[name] for name in selection.select(list(attributes))}

    def cells_of(rows: list[Any]) -> dict[str, list[Any]]:
        return {name: _column(rows, index, attribute) for name, (index, attribute) in selected.items()}

    for block in in_blocks(file, _parsed_rows(lines, header.attributes), cells_of):
        yield replace(block, arrays={name: _array(attributes[name][1], cells) for name, cells in block.cells.items()})


def _data_lines(text: str, header: ArffHeader) -> list[tuple[int, str]]:
    """Return the lines of the data section with their numbers, without blank lines and comments."""
    data = text[header.data_start :]
    has_comments, has_quotes = "%" in data, "'" in data or '"' in data
    lines = []
    for number, line in enumerate(data.split("\n"), start=header.data_line):
        stripped = line.strip()
        if has_comments and stripped.startswith("%"):
            continue
        if has_comments and not has_quotes:  # a % may be part of a quoted value
            stripped = stripped.partition("%")[0].rstrip()
        if stripped:
            lines.append((number, stripped))
    return lines


def _are_sparse(lines: Sequence[tuple[int, str]]) -> bool:
    return bool(lines) and lines[0][1].startswith("{")


def _check_memory(path: str | Path, lines: Sequence[tuple[int, str]], header: ArffHeader) -> None:
    """Raise FileError if sparse rows are too large as a table."""
    attributes = len(header.attributes)
    if _are_sparse(lines) and len(lines) * attributes * BYTES_PER_CELL > parameters.total_memory():
        message = f"sparse rows of {attributes:,} attributes do not fit into memory as a table; load"
        raise FileError(path, f"{message} them with hinet.data.load_arff, which keeps them sparse")


def _parsed_rows(lines: Sequence[tuple[int, str]], attributes: Sequence[Attribute]) -> Iterator[Row | BadRow]:
    """Yield rows of values: lists, or in sparse files dicts by the number of the attribute."""
    split: Callable[[str, Sequence[Attribute]], Any] = _sparse_cells if _are_sparse(lines) else _dense_cells
    declared = [{*attribute.values} for attribute in attributes]
    for number, line in lines:
        try:
            cells = split(line, attributes)
            if isinstance(cells, dict):
                values: Any = {index: _value(attributes[index], declared[index], cells[index]) for index in cells}
            else:
                values = list(map(_value, attributes, declared, cells))
        except ValueError as error:
            yield BadRow(number, str(error), line)
        else:
            yield Row(number, values, len(line))


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


def _value(attribute: Attribute, declared: set[str], text: str) -> float | str | None:
    """Return a cell as a number or text, None for a missing one; raise ValueError for an invalid one."""
    if text in ("?", ""):
        return None
    if attribute.kind == "number":
        try:
            value = float(text)
        except ValueError:
            reason = f"is {quoted(text)}, expected a number; write ? if it is missing"
        else:
            if not abs(value) > FINITE:
                return None if value != value else value
            reason = f"is {value}, expected a finite number"
    elif attribute.kind == "category" and text not in declared:
        listed = ", ".join(map(quoted, attribute.values[:8]))
        reason = f"is {quoted(text)}, which is not among its values {listed}; declare it"
    else:
        return text
    raise ValueError(f"attribute {quoted(attribute.name)} {reason}")


def _column(rows: Sequence[Any], index: int, attribute: Attribute) -> list[Any]:
    """Return the values of an attribute; what a sparse row leaves out is 0, or the first category."""
    default: float | str | None = 0.0 if attribute.kind == "number" else None
    if attribute.kind == "category" and attribute.values:
        default = attribute.values[0]
    return [row.get(index, default) if isinstance(row, dict) else row[index] for row in rows]


def _array(attribute: Attribute, values: list[Any]) -> pa.Array:
    """Return the values of an attribute as an Arrow array; categories are codes of the declared values."""
    if attribute.kind != "category":
        return pa.array(values, pa.float64() if attribute.kind == "number" else pa.string())
    declared = {value: code for code, value in enumerate(dict.fromkeys(attribute.values))}
    codes = [None if value is None else declared[value] for value in values]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array([*declared], pa.string()))


def _label_sets(
    path: str | Path, cells: Sequence[str | None], rows: Sequence[Row], taxonomy: Taxonomy
) -> list[frozenset[str]]:
    known: dict[str | None, frozenset[str]] = {None: frozenset()}
    for cell, row in zip(cells, rows, strict=True):
        if cell is None or cell in known:
            continue
        known[cell] = frozenset(label for part in cell.split(LABEL_SEP) if (label := part.strip()))
        if unknown := sorted(label for label in known[cell] if label not in taxonomy):
            message = f"the label {quoted(unknown[0])} is not in the hierarchy of the attribute; declare it there"
            raise FileError(path, message, line=row.number)
    return [known[cell] for cell in cells]


def _number_matrix(rows: Sequence[Mapping[int, Any]], inputs: Sequence[int]) -> Any:
    """Return sparse rows of numbers as a CSR matrix with a column per input attribute."""
    column_of = {index: column for column, index in enumerate(inputs)}
    cells = [[(column_of[index], value) for index, value in row.items() if index in column_of] for row in rows]
    columns = [column for row in cells for column, _ in row]
    values = [np.nan if value is None else value for row in cells for _, value in row]
    lengths = np.array([len(row) for row in cells], np.int64)
    return sp.csr_array((values, columns, offsets_of(lengths)), shape=(len(rows), len(inputs)))
