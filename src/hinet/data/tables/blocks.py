"""Blocks of rows from a file, with the line of each row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hinet.choices import TableFormat
from hinet.data.tables.arrow_values import row_bytes, take_rows, to_python
from hinet.data.tables.row_errors import RowErrors, Unit
from hinet.errors import FileError
from hinet.files.delimited import missing_column_message

MAX_ROWS = 8_192  # of a block
MAX_CHARACTERS = 4_000_000  # of a block with more than one row


def unit_of(format: TableFormat) -> Unit:
    """Return what the numbers of rows count in a file of this format."""
    return "row" if format in ("parquet", "xlsx") else "line"


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a file: the selected columns, and the line of every row (in Parquet and Excel, its number)."""

    path: str
    format: TableFormat
    numbers: list[int]
    cells: dict[str, list[Any]]  # strings or None; from JSON lines and Parquet any value
    arrays: Mapping[str, Any] = field(default_factory=dict)  # from Parquet, these and kept columns as Arrow arrays
    positions: list[int] = field(default_factory=list)  # of the rows in the file, counted from 0, invalid ones too

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def unit(self) -> Unit:
        """What ``numbers`` count."""
        return unit_of(self.format)

    @property
    def decoded_bytes(self) -> int:
        """Bytes of the Arrow arrays; 0 for text formats, whose files are not smaller than their rows."""
        return sum(int(row_bytes(array).sum()) for array in self.arrays.values())

    def to_json(self, row: int) -> str:
        """Return a row as JSON."""
        block = self.take([row])
        return json.dumps({name: block.values(name)[0] for name in block.names}, ensure_ascii=False, default=str)

    def take(self, rows: Sequence[int]) -> RowBlock:
        """Return the selected rows."""
        cells = {name: [column[row] for row in rows] for name, column in self.cells.items()}
        arrays = {name: take_rows(array, rows) for name, array in self.arrays.items()}
        positions = [self.positions[row] for row in rows] if self.positions else []
        return RowBlock(self.path, self.format, [self.numbers[row] for row in rows], cells, arrays, positions)

    @property
    def names(self) -> list[str]:
        """The columns that were read."""
        return list(self.arrays or self.cells)

    def values(self, name: str) -> list[Any]:
        """Return a column as Python values."""
        return self.cells[name] if name in self.cells else to_python(self.arrays[name], errors="backslashreplace")

    def column(self, name: str) -> Any:
        """Return a column unchanged, as an Arrow array if there is one."""
        return self.arrays[name] if name in self.arrays else self.cells[name]


@dataclass(frozen=True)
class ColumnSelection:
    """Columns to read: ``columns``, which every row must have, those to ``keep``, and with ``read_all`` all others.

    ``explicit`` means that the user named them, so that a file without them is an error.
    """

    columns: tuple[str, ...]
    keep: tuple[str, ...] = ()
    read_all: bool = False
    explicit: bool = True
    parameters: Mapping[str, str] = field(default_factory=dict)  # the parameter that names each column

    @property
    def required(self) -> tuple[str, ...]:
        """All columns that a file must have."""
        return tuple(dict.fromkeys([*self.columns, *self.keep]))

    def missing_column(self, names: Sequence[str]) -> str:
        """Return the message for the first required column that is not among ``names``, or an empty string."""
        known = {*names}
        missing = next((column for column in self.required if column not in known), None)
        return "" if missing is None else self.missing_message(missing, names)

    def missing_message(self, column: str, names: Sequence[str]) -> str:
        """Return the message for a column that is not among ``names``."""
        parameter = self.parameters.get(column)
        return missing_column_message(column, names) + (f"; set `{parameter}` to another column" if parameter else "")

    def select(self, names: Sequence[str]) -> list[str]:
        """Return the columns to read from a file with these names."""
        return list(names) if self.read_all else list(self.required)


class Row(NamedTuple):
    """A valid row."""

    number: int
    values: Any  # a list of cells, or a dict by column
    characters: int


class BadRow(NamedTuple):
    """An invalid row; a fatal one makes it impossible to find the next row."""

    number: int
    reason: str
    text: str
    is_fatal: bool = False


Cells = dict[str, list[Any]]


def in_blocks(
    path: str,
    format: TableFormat,
    source: Iterator[Row | BadRow],
    cells_of: Callable[[list[Any]], Cells],
    row_errors: RowErrors,
) -> Iterator[RowBlock]:
    """Yield rows in blocks; before an invalid row raises, the rows before it, which may be invalid too."""
    rows: list[Row] = []
    positions: list[int] = []
    characters = 0
    for position, row in enumerate(source):
        if isinstance(row, Row):
            rows.append(row)
            positions.append(position)
            characters += row.characters
            is_full = len(rows) >= MAX_ROWS or characters >= MAX_CHARACTERS
        else:
            is_full = bool(rows) and (row_errors.fail_fast or row.is_fatal)
        if is_full:
            yield _block(path, format, rows, positions, cells_of)
            rows, positions, characters = [], [], 0
        if isinstance(row, BadRow):
            if row.is_fatal:
                raise FileError(path, row.reason, line=row.number)
            row_errors.add(path, row.number, row.reason, row.text, unit_of(format))
    if rows:
        yield _block(path, format, rows, positions, cells_of)


def _block(
    path: str, format: TableFormat, rows: list[Row], positions: list[int], cells_of: Callable[[list[Any]], Cells]
) -> RowBlock:
    cells = cells_of([row.values for row in rows])
    return RowBlock(path, format, [row.number for row in rows], cells, positions=positions)
