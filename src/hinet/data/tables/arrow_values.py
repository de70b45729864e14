"""Arrow arrays of any type as Python values, and the bytes of each row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from hinet.data.frames import is_list, is_text
from hinet.ragged import Ints, offsets_of

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}

_Convert = Callable[[Any], list[Any]]


def to_python(array: Any, encoding: str = "utf-8", errors: str = "surrogateescape") -> list[Any]:
    """Return the values of an array as strings, numbers, lists and dicts; times, decimals and similar as strings.

    Bytes are decoded with ``encoding``; invalid ones are handled as ``errors`` says, and never raise.
    """

    def convert(part: Any) -> list[Any]:
        return to_python(part, encoding, errors)

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _extension_values(array, convert)
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


def _extension_values(array: Any, convert: _Convert) -> list[Any]:
    """Return the values of an extension type, such as UUID, as strings where possible."""
    if not types.is_fixed_size_binary(array.storage.type):
        return convert(array.storage)
    is_known = not isinstance(array.type, pa.UnknownExtensionType)
    values = array.to_pylist() if is_known else convert(array.storage)
    return [value if value is None or isinstance(value, str) else str(value) for value in values]


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
