"""Arrow arrays of any type: as plain values, row by row, and how many bytes each row takes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hinet.ragged import Ints, offsets_of

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def plain_values(array: Any, encoding: str = "utf-8", errors: str = "surrogateescape") -> list[Any]:
    """Return the values of an array as text, numbers, lists and objects; times, decimals and the like as text.

    Bytes are text in ``encoding``; what is none is handled as ``errors`` says, and never raised.
    """
    import pyarrow as pa

    kind = array.type
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _extension_values(array, encoding, errors)
    if types.is_dictionary(kind):
        return plain_values(array.dictionary_decode(), encoding, errors)
    if _is_text(kind):
        return _texts(array, encoding, errors)
    if _is_bytes(kind):
        return [None if value is None else _decoded(value, encoding, errors) for value in array.to_pylist()]
    if types.is_struct(kind):
        return _objects(array, encoding, errors)
    if _is_list(kind):
        return _lists(array, encoding, errors)
    if types.is_duration(kind):
        return _durations(array)
    if types.is_temporal(kind) or types.is_decimal(kind):
        return _as_text(array)
    values: list[Any] = (array.cast(pa.float32()) if types.is_float16(kind) else array).to_pylist()
    return values


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    from pyarrow import types

    any_size = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(any_size or types.is_fixed_size_binary(kind))


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    of_any_size = types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind)
    return bool(of_any_size or types.is_fixed_size_list(kind))


def _extension_values(array: Any, encoding: str, errors: str) -> list[Any]:
    """Return values of a type that gives old ones a new meaning, such as a UUID: as text where they have one."""
    import pyarrow as pa

    if not pa.types.is_fixed_size_binary(array.storage.type):
        return plain_values(array.storage, encoding, errors)
    known = not isinstance(array.type, pa.UnknownExtensionType)
    values = array.to_pylist() if known else plain_values(array.storage, encoding, errors)
    return [value if value is None or isinstance(value, str) else str(value) for value in values]


def _texts(array: Any, encoding: str, errors: str) -> list[Any]:
    import pyarrow as pa

    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:  # other tools write bytes of any kind and call them text
        values = plain_values(array.cast(pa.large_binary()), encoding, errors)
    return values


def _decoded(value: bytes, encoding: str, errors: str) -> str:
    try:
        return value.decode(encoding)
    except UnicodeError:
        return value.decode("ascii", errors)


def _objects(array: Any, encoding: str, errors: str) -> list[Any]:
    fields = [plain_values(field, encoding, errors) for field in array.flatten()]
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    rows = zip(*fields, strict=True) if fields else iter([()] * len(array))
    return [
        dict(zip(names, row, strict=True)) if is_there else None
        for row, is_there in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _lists(array: Any, encoding: str, errors: str) -> list[Any]:
    """Return lists, and the pairs of maps as lists of two."""
    import pyarrow as pa

    flat, offsets = _flattened(array)
    values = plain_values(flat, encoding, errors)
    if pa.types.is_map(array.type):
        values = [list(pair.values()) for pair in values]
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    is_there = array.is_valid().to_pylist()
    return [values[start:end] if there else None for (start, end), there in zip(bounds, is_there, strict=True)]


def _flattened(array: Any) -> tuple[Any, Ints]:
    """Return the values of all lists one after the other, pairs as objects, and the offsets of the lists."""
    import pyarrow as pa

    if pa.types.is_map(array.type):
        pairs = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        array = array.cast(pa.list_(pairs))
    elif pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    lengths = _lengths(array) * np.array(array.is_valid().to_pylist(), np.int64)
    return array.flatten(), offsets_of(lengths)


def _lengths(array: Any) -> Ints:
    """Return the lengths of texts or lists with offsets, without the functions of Arrow that are slow to import."""
    import pyarrow as pa

    types = pa.types
    is_large = types.is_large_string(array.type) or types.is_large_binary(array.type) or types.is_large_list(array.type)
    offsets = _numbers(array.buffers()[1], np.int64 if is_large else np.int32, array.offset, len(array) + 1)
    return offsets[1:].astype(np.int64) - offsets[:-1] if len(array) else np.zeros(0, np.int64)


def _numbers(buffer: Any, kind: Any, start: int, count: int) -> Ints:
    numbers: Ints = np.frombuffer(buffer, kind)[start : start + count]
    return numbers


def _durations(array: Any) -> list[Any]:
    """Return spans of time as ISO 8601 writes seconds, such as PT1.5S."""
    import pyarrow as pa

    scale = NANOSECONDS[array.type.unit]
    found: list[str | None] = []
    for count in array.cast(pa.int64()).to_pylist():
        whole, rest = divmod(abs(count or 0) * scale, 10**9)
        seconds = f"{'-' * ((count or 0) < 0)}{whole}" + f".{rest:09}".rstrip("0").rstrip(".")
        found.append(None if count is None else f"PT{seconds}S")
    return found


def _as_text(array: Any) -> list[Any]:
    import pyarrow as pa

    try:
        values: list[Any] = array.cast(pa.string()).to_pylist()
    except pa.ArrowException:  # such as a time zone that nobody knows
        is_time = pa.types.is_timestamp(array.type)
        plain = array.cast(pa.timestamp(array.type.unit)).cast(pa.string()) if is_time else array.cast(pa.int64())
        values = [None if value is None else f"{value}{'Z' * is_time}" for value in plain.to_pylist()]
    return values


def taken(array: Any, rows: Any) -> Any:
    """Return the chosen rows of an array."""
    import pyarrow as pa

    chosen = np.array(rows, np.int64)
    places = pa.Array.from_buffers(pa.int64(), len(chosen), [None, pa.py_buffer(chosen)])  # pa.array imports pandas
    try:
        return array.take(places)
    except pa.ArrowNotImplementedError:  # for views, which few functions of Arrow know
        parts = [array.slice(row, 1) for row in chosen.tolist()] or [array.slice(0, 0)]
        return pa.concat_arrays(parts)


def bytes_of_rows(array: Any) -> Ints:
    """Return how many bytes each row takes, once values that a dictionary holds are written out."""
    import pyarrow as pa

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return bytes_of_rows(array.storage)
    if pa.types.is_dictionary(kind):
        sizes, indices = bytes_of_rows(array.dictionary), array.indices
        numbers = _numbers(indices.buffers()[1], indices.type.to_pandas_dtype(), indices.offset, len(array))
        return sizes[np.clip(numbers, 0, len(sizes) - 1)] if len(sizes) else np.zeros(len(array), np.int64)
    if pa.types.is_struct(kind):
        found: Ints = sum((bytes_of_rows(field) for field in array.flatten()), np.ones(len(array), np.int64))
        return found
    if _is_list(kind):
        flat, offsets = _flattened(array)
        return 8 + np.diff(offsets_of(bytes_of_rows(flat))[offsets])
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        array = array.cast(pa.large_binary())
    if _is_text(array.type) or (_is_bytes(array.type) and not pa.types.is_fixed_size_binary(kind)):
        return 8 + _lengths(array)
    return np.full(len(array), array.nbytes // max(len(array), 1) + 1, np.int64)
