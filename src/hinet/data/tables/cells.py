"""Cells of a table as numbers, categories and vectors; a cell that cannot be converted is an error of its row.

Vectors may also be in NumPy files next to a table: ``products.embedding.npy`` holds the column ``embedding`` of
``products.csv``, row by row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.data.frames import is_list
from hinet.errors import FileError, format_value, quoted
from hinet.files.schema import FINITE
from hinet.files.streams import STANDARD, strip_compression
from hinet.taxonomy import as_id

Errors = dict[int, str]  # why rows are invalid, keyed by row
_NUMBER = "expected a number; write it as 12.5, or leave the cell empty"
_VECTOR = "expected finite numbers; give a list of numbers, or leave the cell empty"


def as_text(cell: Any) -> str | None:
    """Return a cell as text, a missing one as an empty string; None for a list or an object.

    >>> as_text(7.0), as_text(True), as_text(None), as_text(["a"])
    ('7', 'true', '', None)
    """
    if isinstance(cell, bool):
        return str(cell).lower()
    return None if isinstance(cell, (list, dict)) else as_id(cell)


def number_cells(name: str, cells: Sequence[Any] | pa.Array, errors: Errors) -> pa.Array:
    """Return cells, or an Arrow array of numbers, as numbers, missing ones as null."""
    if isinstance(cells, pa.Array):
        numbers = np.asarray(cells.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False), np.float64)
        for row in np.flatnonzero(np.abs(numbers) > FINITE).tolist():
            errors[row] = f"column {quoted(name)} has {numbers[row]}, {_NUMBER}"
        return pa.array(numbers, from_pandas=True)
    values: list[float | None] = []
    for row, cell in enumerate(cells):
        value = _as_number(cell)
        if value is None:
            errors[row] = f"column {quoted(name)} has {format_value(cell)}, {_NUMBER}"
        values.append(None if value is None or math.isnan(value) else value)
    return pa.array(values, pa.float64())


def _as_number(cell: Any) -> float | None:
    """Return a cell as a number, NaN for a missing one; None if it is not a finite number."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return math.nan
    if isinstance(cell, list | dict) or (isinstance(cell, str) and "_" in cell):
        return None
    try:
        value = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if abs(value) > FINITE else value


def category_cells(name: str, cells: Sequence[Any] | pa.Array, errors: Errors) -> pa.Array:
    """Return cells, or a dictionary-encoded Arrow array, as text, missing ones as null."""
    if isinstance(cells, pa.Array):
        return cells.dictionary_decode().cast(pa.large_string())
    texts = [as_text(cell) for cell in cells]
    for row, text in enumerate(texts):
        if text is None:
            errors[row] = f"column {quoted(name)} has a list or an object; set `category` to a column of text"
    return pa.array([text or None for text in texts], pa.large_string())


def vector_cells(name: str, cells: Any, widths: dict[str, int], errors: Errors) -> pa.Array:
    """Return lists of numbers, from a list of cells, an Arrow array or a matrix, as an Arrow array of one width.

    The first vector sets the width of a column that is not in ``widths`` yet.
    """
    vectors = _matrix_rows(cells)
    for row, vector in enumerate(vectors):
        if vector is None:
            continue
        if not vector.size or not (np.abs(vector) <= FINITE).all():
            value = format_value(cells[row] if isinstance(cells, list) else vector.tolist())
            errors[row] = f"column {quoted(name)} has {value}, {_VECTOR}"
        elif len(vector) != widths.setdefault(name, len(vector)):
            errors[row] = (
                f"column {quoted(name)} has {len(vector):,} numbers, expected {widths[name]:,} as in other rows or in "
                f"training; give the vectors of one encoder, or leave the cell empty"
            )
        else:
            continue
        vectors[row] = None
    width = widths.get(name)
    if width is None:
        return pa.nulls(len(vectors))
    matrix = np.zeros((len(vectors), width), np.float32)
    for row, vector in enumerate(vectors):
        if vector is not None:
            matrix[row] = vector
    missing = np.array([vector is None for vector in vectors], np.bool_)
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), width, mask=pa.array(missing))


def _matrix_rows(cells: Any) -> list[NDArray[Any] | None]:
    """Return the vector of each row, None if it is missing; an empty one if a cell is not a vector."""
    if isinstance(cells, np.ndarray):
        return list(cells)
    if not isinstance(cells, pa.Array):
        return [_as_vector(cell) for cell in cells]
    kind, types = cells.type, pa.types
    if not is_list(kind) or not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        return [_as_vector(cell) for cell in cells.to_pylist()]
    lists = cells.cast(pa.large_list(pa.float64()))
    flat = lists.values.to_numpy(zero_copy_only=False)
    offsets = lists.offsets.to_numpy(zero_copy_only=False).tolist()
    valid = lists.is_valid().to_pylist()
    return [flat[offsets[row] : offsets[row + 1]] if valid[row] else None for row in range(len(lists))]


def _as_vector(cell: Any) -> NDArray[Any] | None:
    invalid = np.zeros(0)
    if isinstance(cell, str):
        if not cell.strip():
            return None
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return invalid
    if cell is None:
        return None
    if not isinstance(cell, list) or not all(type(value) in (int, float) for value in cell):
        return invalid
    try:
        return np.array(cell, np.float64)
    except OverflowError:
        return invalid


@dataclass(frozen=True, eq=False)
class VectorFile:
    """The vectors of the rows of a table, mapped into memory."""

    path: Path
    vectors: NDArray[Any]  # (rows of the table, width)

    def take(self, positions: list[int]) -> NDArray[Any]:
        """Return the vectors of the rows at these positions in the table, counted from 0."""
        if positions and positions[-1] >= len(self.vectors):
            raise FileError(self.path, f"has {len(self.vectors):,} rows, and the table has more; give one for each row")
        return np.asarray(self.vectors[positions])

    def check_length(self, min_rows: int, max_rows: int) -> None:
        """Raise FileError unless the number of vectors is in the range; invalid rows may or may not have one."""
        if not min_rows <= len(self.vectors) <= max_rows:
            message = f"has {len(self.vectors):,} rows, and the table {max_rows:,}; give one for each row of the table"
            raise FileError(self.path, message)


def vector_files(table: str, columns: Iterable[str]) -> dict[str, VectorFile]:
    """Return the files next to a table that hold some of these vector columns."""
    file = Path(strip_compression(table))
    if table == STANDARD or not file.name:
        return {}
    stem = file.with_suffix("")
    paths = {column: stem.with_name(f"{stem.name}.{column}.npy") for column in columns if "/" not in column}
    return {column: VectorFile(path, _read_array(path)) for column, path in paths.items() if path.is_file()}


def _read_array(path: Path) -> NDArray[Any]:
    try:
        vectors: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(path, f"cannot be read as a NumPy array: {error}; write it with numpy.save") from None
    if vectors.ndim != 2 or vectors.dtype.kind not in "iuf":
        message = f"has the shape {vectors.shape} and values of type {vectors.dtype}, expected rows of numbers"
        raise FileError(path, message)
    return vectors
