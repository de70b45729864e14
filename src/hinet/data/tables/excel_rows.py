"""Rows of Excel files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from hinet.data.tables.blocks import BadRow, Cells, ColumnSelection, Row
from hinet.data.tables.text_rows import TextRows, column_indices
from hinet.errors import FileError, quoted
from hinet.files.delimited import column_names
from hinet.files.excel import SheetRow, sheet_rows
from hinet.taxonomy import as_id


def excel_rows(path: str, file: IO[bytes], selection: ColumnSelection) -> TextRows:
    """Read the header of the first sheet, and return its rows."""
    rows = sheet_rows(path, file)
    header = next(rows, None)
    if header is None:
        raise FileError(path, "the first sheet is empty; its first row names the columns")
    names = column_names(path, [as_id(cell) for cell in header.cells], header.number)
    if problem := selection.missing_column(names):
        raise FileError(path, problem, line=header.number)
    indices = column_indices(selection, names)

    def cells_of(values: list[Any]) -> Cells:
        return {name: [cells[index] for cells in values] for name, index in indices.items()}

    return TextRows(_checked(rows, len(names)), cells_of)


def _checked(rows: Iterator[SheetRow], width: int) -> Iterator[Row | BadRow]:
    for number, cells in rows:
        if len(cells) > width:
            message = f"expected {width} cells, got {len(cells)}, the last {quoted(as_id(cells[-1]))}; name its column"
            yield BadRow(number, message, " ".join(map(as_id, cells)))
        else:
            characters = sum(len(cell) for cell in cells if isinstance(cell, str))
            yield Row(number, cells + [None] * (width - len(cells)), characters)
