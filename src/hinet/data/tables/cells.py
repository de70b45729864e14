"""Arrow arrays as Python values; cells of a table as numbers, categories and vectors.

A cell that cannot be converted is an error of its row. Vectors may also be in NumPy files next to a table:
``products.embedding.npy`` holds the column ``embedding`` of ``products.csv``, row by row.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from hinet.data.frames import is_list, is_text
from hinet.errors import FileError, format_value, quoted
from hinet.files.schema import FINITE
from hinet.files.streams import STANDARD, strip_compression
from hinet.ragged import Ints, offsets_of
from hinet.taxonomy import as_id

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_Convert = Callable[[Any], list[Any]]
Errors = dict[int, str]  # why rows are invalid, keyed by row
_NUMBER = "expected a number; write it as 12.5, or leave the cell empty"
_VECTOR = "expected finite numbers; give a list of numbers, or leave the cell empty"


def to_python(array: Any, encoding: str = "utf-8", errors: str = "surrogateescape") -> list[Any]:
    """Return the values of an array as strings, numbers, lists and dicts; times, decimals and similar as strings.

    Bytes are decoded with ``encoding``; invalid ones are handled as ``errors`` says, and never raise.
    """
    convert = partial(to_python, encoding=encoding, errors=errors)
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        if types.is_fixed_size_binary(array.storage.type) and not isinstance(kind, pa.UnknownExtensionType):
            return [value if value is None else str(value) for value in array.to_pylist()]  # such as UUIDs
        return convert(array.storage)
    if types.is_dictionary(kind):
        return convert(array.dictionary_decode())
    if _is_bytes(kind):
        return [None if value is None else _decode(value, encoding, errors) for value in array.to_pylist()]
    if types.is_struct(kind):
        return _objects(array, convert)
    if _is_list(kind):
        return _lists(array, convert)
    if types.is_duration(kind):
        return [None if count is None else _duration(count, kind.unit) for count in array.cast(pa.int64()).to_pylist()]
    if types.is_temporal(kind) or types.is_decimal(kind):
        return _as_text(array)
    try:
        values: list[Any] = (array.cast(pa.float32()) if types.is_float16(kind) else array).to_pylist()
    except UnicodeDecodeError:  # some tools write arbitrary bytes as strings
        values = convert(array.cast(pa.large_binary()))
    return values


def _is_bytes(kind: Any) -> bool:
    any_size = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(any_size or types.is_fixed_size_binary(kind))


def _is_list(kind: Any) -> bool:
    return is_list(kind) or types.is_map(kind)


def _decode(value: bytes, encoding: str, errors: str) -> str:
    try:
        return value.decode(encoding)
    except UnicodeError:
        return value.decode("ascii", errors)


def _objects(array: Any, convert: _Convert) -> list[Any]:
    fields = [convert(field) for field in array.flatten()]
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    rows = zip(*fields, strict=True) if fields else iter([()] * len(array))
    return [
        dict(zip(names, row, strict=True)) if is_valid else None
        for row, is_valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _lists(array: Any, convert: _Convert) -> list[Any]:
    """Return lists; maps are lists of pairs."""
    flat, offsets = _flatten(array)
    values = convert(flat)
    if types.is_map(array.type):
        values = [list(pair.values()) for pair in values]
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    valid = array.is_valid().to_pylist()
    return [values[start:end] if is_valid else None for (start, end), is_valid in zip(bounds, valid, strict=True)]


def _flatten(array: Any) -> tuple[Any, Ints]:
    """Return the concatenated values of all lists, pairs of maps as structs, and the offsets of the lists."""
    if types.is_map(array.type):
        pairs = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        array = array.cast(pa.list_(pairs))
    elif types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    lengths = _lengths(array) * np.array(array.is_valid().to_pylist(), np.int64)
    return array.flatten(), offsets_of(lengths)


def _lengths(array: Any) -> Ints:
    """Return the lengths of strings or lists, without ``pyarrow.compute``, which is slow to import."""
    if not len(array):
        return np.zeros(0, np.int64)
    is_large = types.is_large_string(array.type) or types.is_large_binary(array.type) or types.is_large_list(array.type)
    offsets = _buffer_values(array, np.int64 if is_large else np.int32, len(array) + 1)
    return offsets[1:].astype(np.int64) - offsets[:-1]


def _buffer_values(array: Any, dtype: Any, count: int) -> Ints:
    values: Ints = np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + count]
    return values


def _duration(count: int, unit: str) -> str:
    """Return a duration as ISO 8601 seconds, such as PT1.5S."""
    whole, rest = divmod(abs(count) * NANOSECONDS[unit], 10**9)
    return f"PT{'-' * (count < 0)}{whole}" + f".{rest:09}".rstrip("0").rstrip(".") + "S"


def _as_text(array: Any) -> list[Any]:
    try:
        values: list[Any] = array.cast(pa.string()).to_pylist()
    except pa.ArrowException:  # such as an unknown time zone
        is_time = types.is_timestamp(array.type)
        plain = array.cast(pa.timestamp(array.type.unit)).cast(pa.string()) if is_time else array.cast(pa.int64())
        values = [None if value is None else f"{value}{'Z' * is_time}" for value in plain.to_pylist()]
    return values


def take_rows(array: Any, rows: Any) -> Any:
    """Return the selected rows of an array."""
    numbers = np.array(rows, np.int64)
    indices = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])  # pa.array imports pandas
    try:
        return array.take(indices)
    except pa.ArrowNotImplementedError:  # string views
        return pa.concat_arrays([array.slice(row, 1) for row in numbers.tolist()] or [array.slice(0, 0)])


def row_bytes(array: Any) -> Ints:
    """Return the bytes of each row, with dictionaries decoded."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(array.storage)
    if types.is_dictionary(kind):
        sizes, indices = row_bytes(array.dictionary), array.indices
        numbers = _buffer_values(indices, indices.type.to_pandas_dtype(), len(array))
        return sizes[np.clip(numbers, 0, len(sizes) - 1)] if len(sizes) else np.zeros(len(array), np.int64)
    if types.is_struct(kind):
        total: Ints = sum((row_bytes(field) for field in array.flatten()), np.ones(len(array), np.int64))
        return total
    if _is_list(kind):
        flat, offsets = _flatten(array)
        return 8 + np.diff(offsets_of(row_bytes(flat))[offsets])
    if types.is_string_view(kind) or types.is_binary_view(kind):
        array = array.cast(pa.large_binary())
    if is_text(array.type) or (_is_bytes(array.type) and not types.is_fixed_size_binary(kind)):
        return 8 + _lengths(array)
    return np.full(len(array), array.nbytes // max(len(array), 1) + 1, np.int64)


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
    vectors: dict[int, NDArray[Any]] = {}
    for row, vector in enumerate(_matrix_rows(cells)):
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
            vectors[row] = vector
    if name not in widths:
        return pa.nulls(len(cells))
    matrix, missing = np.zeros((len(cells), widths[name]), np.float32), np.ones(len(cells), np.bool_)
    for row, vector in vectors.items():
        matrix[row], missing[row] = vector, False
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), widths[name], mask=pa.array(missing))


def _matrix_rows(cells: Any) -> list[NDArray[Any] | None]:
    """Return the vector of each row, None if it is missing; an empty one if a cell is not a vector."""
    if isinstance(cells, np.ndarray):
        return list(cells)
    if not isinstance(cells, pa.Array):
        return [_as_vector(cell) for cell in cells]
    kind = cells.type
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
