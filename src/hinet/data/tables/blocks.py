"""Rows on their way from a file: gathered into blocks that know where each of them stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hinet.data.tables.arrow_values import plain_values, taken
from hinet.data.tables.faults import Faults, Unit
from hinet.data.tables.formats import TableFormat
from hinet.errors import FileError
from hinet.files.delimited import missing_column_message

MOST_ROWS = 8_192  # of a block
MOST_CHARACTERS = 4_000_000  # of a block, but for one row


@dataclass(frozen=True)
class RowBlock:
    """Some rows of a file: the wanted columns, and the line of every row (its number in a Parquet file)."""

    path: str
    format: TableFormat
    places: list[int]
    cells: dict[str, list[Any]]  # text or None; from JSON lines and Parquet any value
    arrays: Mapping[str, Any] = field(default_factory=dict)  # from Parquet, the same and kept columns as Arrow arrays

    def __len__(self) -> int:
        return len(self.places)

    @property
    def unit(self) -> Unit:
        """What places are counted in."""
        return "row" if self.format == "parquet" else "line"

    def described(self, row: int) -> str:
        """Return a row as text, for a person."""
        one = self.take([row])
        return json.dumps({name: one.values(name)[0] for name in one.names}, ensure_ascii=False, default=str)

    def take(self, rows: Sequence[int]) -> RowBlock:
        """Return the chosen rows."""
        cells = {name: [column[row] for row in rows] for name, column in self.cells.items()}
        arrays = {name: taken(array, rows) for name, array in self.arrays.items()}
        return RowBlock(self.path, self.format, [self.places[row] for row in rows], cells, arrays)

    @property
    def names(self) -> list[str]:
        """The columns that were read."""
        return list(self.arrays or self.cells)

    def values(self, name: str) -> list[Any]:
        """Return a column as plain values."""
        return self.cells[name] if name in self.cells else plain_values(self.arrays[name], errors="backslashreplace")

    def column(self, name: str) -> Any:
        """Return a column as it came, to be carried over."""
        return self.arrays[name] if name in self.arrays else self.cells[name]


@dataclass(frozen=True)
class Wanted:
    """Columns to read: these, which every row must have, those to ``keep``, and all others as well if ``every``.

    ``named`` says that a person named them, so that a file without them is an error.
    """

    columns: tuple[str, ...]
    keep: tuple[str, ...] = ()
    every: bool = False
    named: bool = True
    options: Mapping[str, str] = field(default_factory=dict)  # by which a person names each column

    @property
    def both(self) -> tuple[str, ...]:
        """All columns that a table must have."""
        return tuple(dict.fromkeys([*self.columns, *self.keep]))

    def missing_from(self, names: Sequence[str]) -> str:
        """Tell which column a table with such names lacks, and what to do; or nothing."""
        missing = next((column for column in self.both if column not in names), None)
        return "" if missing is None else self.lacks(missing, names)

    def lacks(self, column: str, names: Sequence[str]) -> str:
        """Return the message for a column that is not among those there are."""
        option = self.options.get(column)
        return missing_column_message(column, names) + (f"; name another with {option}" if option else "")

    def among(self, names: Sequence[str]) -> list[str]:
        """Return which of the columns of a table to read."""
        return list(names) if self.every else list(self.both)


class Row(NamedTuple):
    """A row that was read."""

    place: int
    values: Any  # the cells of a record, or an object by its columns
    characters: int


class BadRow(NamedTuple):
    """A row that cannot be used; if it ends the work, rows that may be skipped cannot be told from it."""

    place: int
    reason: str
    text: str
    ends: bool = False


Cells = dict[str, list[Any]]


def in_blocks(
    path: str,
    format: TableFormat,
    found: Iterator[Row | BadRow],
    cells_of: Callable[[list[Any]], Cells],
    faults: Faults,
) -> Iterator[RowBlock]:
    """Yield rows in blocks; before one that ends the work, those in front of it, which may have an error too."""
    rows: list[Row] = []
    characters = 0
    for row in found:
        if isinstance(row, Row):
            rows.append(row)
            characters += row.characters
            is_full = len(rows) >= MOST_ROWS or characters >= MOST_CHARACTERS
        else:
            is_full = bool(rows) and (faults.ends or row.ends)
        if is_full:
            yield _block(path, format, rows, cells_of)
            rows, characters = [], 0
        if isinstance(row, BadRow):
            if row.ends:
                raise FileError(path, row.reason, line=row.place)
            faults.found(path, row.place, row.reason, row.text)
    if rows:
        yield _block(path, format, rows, cells_of)


def _block(path: str, format: TableFormat, rows: list[Row], cells_of: Callable[[list[Any]], Cells]) -> RowBlock:
    return RowBlock(path, format, [row.place for row in rows], cells_of([row.values for row in rows]))
