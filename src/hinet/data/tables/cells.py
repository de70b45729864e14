"""Cells of a table as numbers, categories and vectors; a cell that cannot be one is an error of its row."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.errors import format_value, quoted
from hinet.files.schema import FINITE
from hinet.taxonomy import as_id

Errors = dict[int, str]  # by row
_NUMBER = "write it as 12.5, or leave the cell empty"
_VECTOR = "give a list of numbers, or leave the cell empty"


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
            errors[row] = f"column {quoted(name)} has {numbers[row]}, expected a number; {_NUMBER}"
        return pa.array(numbers, from_pandas=True)
    values: list[float | None] = []
    for row, cell in enumerate(cells):
        value = _as_number(cell)
        if value is None:
            errors[row] = f"column {quoted(name)} has {format_value(cell)}, expected a number; {_NUMBER}"
        values.append(None if value is None or math.isnan(value) else value)
    return pa.array(values, pa.float64())


def _as_number(cell: Any) -> float | None:
    """Return a cell as a number, NaN for a missing one; None if it is no finite number."""
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
    """Return cells, or an Arrow array of categories as a dictionary, as text, missing ones as null."""
    if isinstance(cells, pa.Array):
        return cells.dictionary_decode().cast(pa.large_string())
    texts = [as_text(cell) for cell in cells]
    for row, text in enumerate(texts):
        if text is None:
            errors[row] = f"column {quoted(name)} has a list or an object; set `category` to a column of text"
    return pa.array([text or None for text in texts], pa.large_string())


def vector_cells(name: str, cells: Any, widths: dict[str, int], errors: Errors) -> pa.Array:
    """Return lists of numbers, from a list of cells, an Arrow array or a matrix, as an Arrow array of one width.

    The first vector tells the width of a column that is not in ``widths`` yet.
    """
    vectors = _matrix(cells) if isinstance(cells, np.ndarray | pa.Array) else None
    if vectors is None:
        vectors = [_as_vector(cell) for cell in (cells.to_pylist() if isinstance(cells, pa.Array) else cells)]
    given = list(cells) if isinstance(cells, list) else None
    kept: list[Any] = [None] * len(vectors)
    for row, vector in enumerate(vectors):
        if vector is None:
            continue
        if not vector.size or not (np.abs(vector) <= FINITE).all():
            told = format_value(given[row] if given is not None else vector.tolist())
            errors[row] = f"column {quoted(name)} has {told}, expected finite numbers; {_VECTOR}"
        elif len(vector) != widths.setdefault(name, len(vector)):
            errors[row] = (
                f"column {quoted(name)} has {len(vector):,} numbers, expected {widths[name]:,} as in other rows or in "
                f"training; give the vectors of one encoder, or leave the cell empty"
            )
        else:
            kept[row] = vector
    return _as_array(kept, widths.get(name))


def _as_array(vectors: list[NDArray[Any] | None], width: int | None) -> pa.Array:
    if width is None:
        return pa.nulls(len(vectors))
    matrix = np.zeros((len(vectors), width), np.float32)
    missing = np.array([vector is None for vector in vectors], np.bool_)
    for row, vector in enumerate(vectors):
        if vector is not None:
            matrix[row] = vector
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), width, mask=pa.array(missing))


def _matrix(cells: Any) -> list[NDArray[Any] | None] | None:
    """Return the vectors of a matrix or of an Arrow array of lists of numbers; None for other arrays."""
    if isinstance(cells, np.ndarray):
        return list(cells)
    kind, types = cells.type, pa.types
    if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
        return None
    if not (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)):
        return None
    lists = cells.cast(pa.large_list(pa.float64()))
    flat = lists.values.to_numpy(zero_copy_only=False)
    offsets = lists.offsets.to_numpy(zero_copy_only=False).tolist()
    valid = lists.is_valid().to_pylist()
    return [flat[offsets[row] : offsets[row + 1]] if valid[row] else None for row in range(len(lists))]


def _as_vector(cell: Any) -> NDArray[Any] | None:
    """Return a cell as a vector, None if it is missing; an empty one if it is none."""
    if isinstance(cell, str):
        if not cell.strip():
            return None
        try:
            cell = json.loads(cell)
        except (ValueError, RecursionError):
            return np.zeros(0)
    if cell is None:
        return None
    if not isinstance(cell, list) or not all(type(value) in (int, float) for value in cell):
        return np.zeros(0)
    try:
        return np.array(cell, np.float64)
    except OverflowError:
        return np.zeros(0)
