"""Arrow arrays of any type as Python values, and the bytes of each row."""

from __future__ import annotations

from typing import Any

import numpy as np

from hinet.ragged import Ints, offsets_of

NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def to_python(array: Any, encoding: str = "utf-8", errors: str = "surrogateescape") -> list[Any]:
    """Return the values of an array as strings, numbers, lists and dicts; times, decimals and similar as strings.

    Bytes are decoded with ``encoding``; invalid ones are handled as ``errors`` says, and never raise.
    """
    import pyarrow as pa

    kind = array.type
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _extension_values(array, encoding, errors)
    if types.is_dictionary(kind):
        return to_python(array.dictionary_decode(), encoding, errors)
    if _is_text(kind):
        return _texts(array, encoding, errors)
    if _is_bytes(kind):
        return [None if value is None else _decode(value, encoding, errors) for value in array.to_pylist()]
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
    """Return the values of an extension type, such as UUID, as strings where possible."""
    import pyarrow as pa

    if not pa.types.is_fixed_size_binary(array.storage.type):
        return to_python(array.storage, encoding, errors)
    is_known = not isinstance(array.type, pa.UnknownExtensionType)
    values = array.to_pylist() if is_known else to_python(array.storage, encoding, errors)
    return [value if value is None or isinstance(value, str) else str(value) for value in values]


def _texts(array: Any, encoding: str, errors: str) -> list[Any]:
    import pyarrow as pa

    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:  # some tools write arbitrary bytes as strings
        values = to_python(array.cast(pa.large_binary()), encoding, errors)
    return values


def _decode(value: bytes, encoding: str, errors: str) -> str:
    try:
        return value.decode(encoding)
    except UnicodeError:
        return value.decode("ascii", errors)


def _objects(array: Any, encoding: str, errors: str) -> list[Any]:
    fields = [to_python(field, encoding, errors) for field in array.flatten()]
    names = [array.type.field(number).name for number in range(array.type.num_fields)]
    rows = zip(*fields, strict=True) if fields else iter([()] * len(array))
    return [
        dict(zip(names, row, strict=True)) if is_valid else None
        for row, is_valid in zip(rows, array.is_valid().to_pylist(), strict=True)
    ]


def _lists(array: Any, encoding: str, errors: str) -> list[Any]:
    """Return lists; maps are lists of pairs."""
    import pyarrow as pa

    flat, offsets = _flatten(array)
    values = to_python(flat, encoding, errors)
    if pa.types.is_map(array.type):
        values = [list(pair.values()) for pair in values]
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    valid = array.is_valid().to_pylist()
    return [values[start:end] if is_valid else None for (start, end), is_valid in zip(bounds, valid, strict=True)]


def _flatten(array: Any) -> tuple[Any, Ints]:
    """Return the concatenated values of all lists, pairs of maps as structs, and the offsets of the lists."""
    import pyarrow as pa

    if pa.types.is_map(array.type):
        pairs = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        array = array.cast(pa.list_(pairs))
    elif pa.types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    lengths = _lengths(array) * np.array(array.is_valid().to_pylist(), np.int64)
    return array.flatten(), offsets_of(lengths)


def _lengths(array: Any) -> Ints:
    """Return the lengths of strings or lists, without ``pyarrow.compute``, which is slow to import."""
    import pyarrow as pa

    types = pa.types
    is_large = types.is_large_string(array.type) or types.is_large_binary(array.type) or types.is_large_list(array.type)
    offsets = _numbers(array.buffers()[1], np.int64 if is_large else np.int32, array.offset, len(array) + 1)
    return offsets[1:].astype(np.int64) - offsets[:-1] if len(array) else np.zeros(0, np.int64)


def _numbers(buffer: Any, kind: Any, start: int, count: int) -> Ints:
    numbers: Ints = np.frombuffer(buffer, kind)[start : start + count]
    return numbers


def _durations(array: Any) -> list[Any]:
    """Return durations as ISO 8601 seconds, such as PT1.5S."""
    import pyarrow as pa

    scale = NANOSECONDS[array.type.unit]
    texts: list[str | None] = []
    for count in array.cast(pa.int64()).to_pylist():
        whole, rest = divmod(abs(count or 0) * scale, 10**9)
        seconds = f"{'-' * ((count or 0) < 0)}{whole}" + f".{rest:09}".rstrip("0").rstrip(".")
        texts.append(None if count is None else f"PT{seconds}S")
    return texts


def _as_text(array: Any) -> list[Any]:
    import pyarrow as pa

    try:
        values: list[Any] = array.cast(pa.string()).to_pylist()
    except pa.ArrowException:  # such as an unknown time zone
        is_time = pa.types.is_timestamp(array.type)
        plain = array.cast(pa.timestamp(array.type.unit)).cast(pa.string()) if is_time else array.cast(pa.int64())
        values = [None if value is None else f"{value}{'Z' * is_time}" for value in plain.to_pylist()]
    return values


def take_rows(array: Any, rows: Any) -> Any:
    """Return the selected rows of an array."""
    import pyarrow as pa

    row_numbers = np.array(rows, np.int64)
    indices = pa.Array.from_buffers(
        pa.int64(), len(row_numbers), [None, pa.py_buffer(row_numbers)]
    )  # pa.array imports pandas
    try:
        return array.take(indices)
    except pa.ArrowNotImplementedError:  # for string views
        parts = [array.slice(row, 1) for row in row_numbers.tolist()] or [array.slice(0, 0)]
        return pa.concat_arrays(parts)


def row_bytes(array: Any) -> Ints:
    """Return the bytes of each row, with dictionaries decoded."""
    import pyarrow as pa

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        sizes, indices = row_bytes(array.dictionary), array.indices
        numbers = _numbers(indices.buffers()[1], indices.type.to_pandas_dtype(), indices.offset, len(array))
        return sizes[np.clip(numbers, 0, len(sizes) - 1)] if len(sizes) else np.zeros(len(array), np.int64)
    if pa.types.is_struct(kind):
        total: Ints = sum((row_bytes(field) for field in array.flatten()), np.ones(len(array), np.int64))
        return total
    if _is_list(kind):
        flat, offsets = _flatten(array)
        return 8 + np.diff(offsets_of(row_bytes(flat))[offsets])
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        array = array.cast(pa.large_binary())
    if _is_text(array.type) or (_is_bytes(array.type) and not pa.types.is_fixed_size_binary(kind)):
        return 8 + _lengths(array)
    return np.full(len(array), array.nbytes // max(len(array), 1) + 1, np.int64)
