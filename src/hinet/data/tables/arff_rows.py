"""Rows of ARFF files."""

from __future__ import annotations

from collections.abc import Iterator

from hinet.data.arff import read_arff_rows
from hinet.data.tables.arrow_values import to_python
from hinet.data.tables.blocks import MAX_ROWS, ColumnSelection, RowBlock
from hinet.data.tables.row_errors import RowErrors
from hinet.errors import FileError
from hinet.files.arff import parse_header
from hinet.files.streams import PeekedStream
from hinet.files.text import decode_text, read_to_end

_AS_ARRAYS = ("number", "category")  # that are not needed as Python values


def arff_blocks(
    path: str, peeked: PeekedStream, selection: ColumnSelection, encoding: str, row_errors: RowErrors
) -> Iterator[RowBlock]:
    """Yield the rows of an ARFF file, which is read at once."""
    text = decode_text(path, read_to_end(path, peeked.stream), encoding)
    header = parse_header(path, text)
    if problem := selection.missing_column([attribute.name for attribute in header.attributes]):
        raise FileError(path, problem)

    def reject(line: int, reason: str, row: str) -> None:
        row_errors.add(path, line, reason, row)

    table, lines = read_arff_rows(path, text, header, reject)
    names = selection.select(table.column_names)
    kinds = {attribute.name: attribute.kind for attribute in header.attributes}
    for start in range(0, table.num_rows, MAX_ROWS):
        part = table.slice(start, MAX_ROWS)
        arrays = {name: part.column(name).combine_chunks() for name in names}
        cells = {name: to_python(array) for name, array in arrays.items() if kinds[name] not in _AS_ARRAYS}
        numbers = lines[start : start + MAX_ROWS].tolist()
        yield RowBlock(path, "arff", numbers, cells, arrays, list(range(start, start + len(numbers))))
