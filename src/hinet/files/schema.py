"""Named arrays in safetensors files, and schemas of arrays and JSON values, checked when a file is loaded.

Kernels check no bounds, so arrays from a file are validated once, in one pass over each. JSON values are checked
against type hints.
"""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import (
    IO,
    Any,
    Literal,
    NotRequired,
    TypeAlias,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import numpy as np
from numpy.typing import NDArray

from hinet.errors import FileError, HiNetError, quoted
from hinet.files.atomic import write_bytes

MAX_DEPTH = 50  # levels of nested lists and mappings
INT_LIMIT = 1 << 63  # integers are below this limit
LARGEST = 1e12  # weights of a valid model are far smaller; the product of two such numbers is still finite
FINITE = float(np.finfo(np.float32).max)
HALF = float(np.finfo(np.float16).max)

Size: TypeAlias = int | str  # a number, or the name of a size that arrays share; "name+1" is one more
_KINDS = {
    "f": "floats", "fb": "floats", "i": "integers", "iu": "integers", "u": "unsigned integers",
}  # fmt: skip
_HALF_EXPONENT = 0x7C00  # the exponent bits, all set in a number that is not finite
_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32,
    "I32": np.int32, "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}  # fmt: skip
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True)
class ArraySpec:
    """The allowed dtype, shape and values of an array."""

    shape: tuple[Size, ...]
    kinds: str  # allowed values of ``dtype.kind``
    low: float | None = None
    high: float | str | None = None  # the largest value; the name of a size is an exclusive limit
    rising: bool = False  # values are strictly ascending
    values: str | None = None  # size of the array that offsets split into lists
    filled: bool = False  # offsets: no list is empty
    optional: bool = False
    bits: int | None = None  # required bits per number


Schema: TypeAlias = Mapping[str, ArraySpec]


def floats(
    *shape: Size, low: float = -LARGEST, high: float = LARGEST, kinds: str = "f", optional: bool = False
) -> ArraySpec:
    """Return the spec of finite floats."""
    return ArraySpec(shape, kinds, low, high, optional=optional)


def indices(*shape: Size, below: str, rising: bool = False) -> ArraySpec:
    """Return the spec of integers from 0 up to a size."""
    return ArraySpec(shape, "iu", 0, below, rising=rising)


def bytes_of(*shape: Size) -> ArraySpec:
    """Return the spec of 8-bit integers."""
    return ArraySpec(shape, "i", bits=8)


def offsets(lists: str, values: str, *, filled: bool = False) -> ArraySpec:
    """Return the spec of offsets that split ``values`` into ``lists``."""
    return ArraySpec((f"{lists}+1",), "iu", values=values, filled=filled)


def check_arrays(arrays: Mapping[str, NDArray[Any]], schema: Schema, sizes: Mapping[str, int]) -> dict[str, int]:
    """Raise HiNetError, which names the array, unless arrays match a schema; return all sizes.

    The first array that has an unknown size determines it; the others must agree. Nothing is allocated before all
    shapes agree, so a forged size costs no memory.

    >>> check_arrays({"a": np.array([0, 7])}, {"a": indices("n", below="m")}, {"m": 5})
    Traceback (most recent call last):
    hinet.errors.HiNetError: the array 'a' holds 7 at index 1, expected 0 to 4
    """
    known_sizes = dict(sizes)
    present = {name: spec for name, spec in schema.items() if name in arrays}
    for name, spec in schema.items():
        if name not in arrays and not spec.optional:
            raise HiNetError(f"the arrays have no {name!r}")
    for name, spec in present.items():
        _check_kind(name, arrays[name], spec)
        _check_shape(name, arrays[name], spec, known_sizes)
    for name, spec in present.items():
        _check_values(name, arrays[name], spec, known_sizes)
    return known_sizes


def _check_kind(name: str, array: NDArray[Any], spec: ArraySpec) -> None:
    if array.dtype.kind not in spec.kinds or spec.bits not in (None, 8 * array.dtype.itemsize):
        bits = "" if spec.bits is None else f" of {spec.bits} bits"
        raise HiNetError(f"the array {name!r} is of {array.dtype}, expected {_KINDS[spec.kinds]}{bits}")


def _check_shape(name: str, array: NDArray[Any], spec: ArraySpec, sizes: dict[str, int]) -> None:
    fits = array.ndim == len(spec.shape)
    for size, expected_size in zip(array.shape, spec.shape, strict=False):
        if isinstance(expected_size, str):
            base, plus, _ = expected_size.partition("+")
            expected_size = sizes.setdefault(base, size - bool(plus)) + bool(plus)
        fits &= size == expected_size and size >= 0
    if not fits or any(sizes[str(size).partition("+")[0]] < 0 for size in spec.shape if isinstance(size, str)):
        expected = ", ".join(f"{size} {_size_text(size, sizes)}".strip() for size in spec.shape)
        raise HiNetError(f"the array {name!r} has the shape {array.shape}, expected ({expected})")


def _size_text(size: Size, sizes: Mapping[str, int]) -> str:
    base, plus, _ = str(size).partition("+")
    return f"= {sizes[base] + bool(plus):,}" if base in sizes else ""


def _check_values(name: str, array: NDArray[Any], spec: ArraySpec, sizes: Mapping[str, int]) -> None:
    if spec.values is not None:
        _check_offsets(name, array, sizes[spec.values], spec.filled)
    if not array.size:
        return
    if spec.low is not None and spec.high is not None:
        high = sizes[spec.high] - 1 if isinstance(spec.high, str) else spec.high
        _check_range(name, array, spec.low, high)
    if spec.rising:
        _check_order(name, array[1:] > array[:-1], array)


def _check_range(name: str, array: NDArray[Any], low: float, high: float) -> None:
    if array.dtype == np.float16 and high > HALF and low < -HALF:
        valid = bool((array.view(np.uint16) & _HALF_EXPONENT).max() < _HALF_EXPONENT)  # far faster than a comparison
    else:
        valid = bool(array.min().item() >= low and array.max().item() <= high)  # NaN is neither
    if not valid:
        flat = array.ravel()
        wide = flat.astype(np.float64) if array.dtype.kind == "f" else flat
        index = int(np.argmin((wide >= low) & (wide <= high)))
        expected = f"{low:,} to {high:,}" if array.dtype.kind in "iu" else f"numbers from {low:g} to {high:g}"
        raise HiNetError(f"the array {name!r} holds {flat[index]} at index {index:,}, expected {expected}")


def _check_offsets(name: str, array: NDArray[Any], values: int, filled: bool) -> None:
    if array[0] != 0 or array[-1] != values:
        raise HiNetError(
            f"the array {name!r} ranges from {array[0]} to {array[-1]}, expected offsets from 0 to {values:,}"
        )
    _check_order(name, array[1:] > array[:-1] if filled else array[1:] >= array[:-1], array)


def _check_order(name: str, rises: NDArray[np.bool_], array: NDArray[Any]) -> None:
    if not rises.all():
        index = int(np.argmin(rises))
        raise HiNetError(
            f"the array {name!r} holds {array[index]} at index {index:,} and {array[index + 1]} after it, "
            "expected ascending values"
        )


def check_plain(value: Any, kind: Any, where: str) -> None:
    """Raise HiNetError, which names the entry, unless a JSON value matches a type hint.

    ``kind`` is a plain type, a union, a literal, a list, tuple or dict of such hints, a dataclass or a TypedDict,
    whose fields a mapping must have; ``Any`` is any JSON value. Integers are valid floats. A mapping may have more
    keys than a TypedDict, but not more than the fields of a dataclass.

    >>> check_plain({"rows": "many"}, dict[str, int], "metrics")
    Traceback (most recent call last):
    hinet.errors.HiNetError: metrics.rows is 'many', expected a whole number
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        _check_union(value, parts, where)
    elif origin is Literal:
        _require(isinstance(value, str) and value in parts, value, where, f"one of {', '.join(map(repr, parts))}")
    elif origin in (list, tuple):
        is_fixed = origin is tuple and parts[-1] is not Ellipsis
        _require(isinstance(value, (list, tuple)), value, where, "a list")
        _require(not is_fixed or len(value) == len(parts), value, where, f"a list of {len(parts)}")
        for index, item in enumerate(value):
            check_plain(item, parts[index if is_fixed else 0], f"{where}[{index}]")
    elif origin is dict:
        _require(isinstance(value, dict), value, where, "a mapping")
        for name, item in value.items():
            check_plain(item, parts[1], f"{where}.{name}")
    elif is_typeddict(kind) or dataclasses.is_dataclass(kind):
        _check_fields(value, kind, where)
    elif kind is Any:
        _check_depth(value, where)
    else:
        fits, name = _PLAIN[kind]
        _require(fits(value), value, where, name)


def _is_int(value: Any) -> bool:
    return type(value) is int and -INT_LIMIT <= value < INT_LIMIT


_PLAIN: Mapping[Any, tuple[Callable[[Any], bool], str]] = {
    int: (_is_int, "a whole number"),
    float: (lambda value: isinstance(value, float) or _is_int(value), "a number"),
    str: (lambda value: isinstance(value, str), "text"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    list: (lambda value: isinstance(value, list), "a list"),
    types.NoneType: (lambda value: value is None, "nothing"),
}


def _require(valid: bool, value: Any, where: str, expected: str) -> None:
    if not valid:
        raise HiNetError(f"{where} is {_format(value)}, expected {expected}")


def _format(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value):,}"
    if type(value) is int and not _is_int(value):
        return "a number beyond 64 bits"
    return quoted(value) if isinstance(value, str) else repr(value)


def _check_union(value: Any, kinds: tuple[Any, ...], where: str) -> None:
    if value is None and types.NoneType in kinds:
        return
    messages = []
    for kind in kinds:
        try:
            check_plain(value, kind, where)
            return
        except HiNetError as error:
            messages.append(str(error))
    raise HiNetError(max(messages, key=lambda message: message.partition(" ")[0].count(".")))  # the best match


def _check_fields(value: Any, kind: Any, where: str) -> None:
    _require(isinstance(value, dict), value, where, "a mapping")
    hints, needed = _fields_of(kind)
    for name in value.keys() - hints.keys():
        if not is_typeddict(kind):
            raise HiNetError(f"{where} has the unknown entry {quoted(str(name))}")
        check_plain(value[name], Any, f"{where}.{name}")
    for name, field_kind in hints.items():
        if name in value:
            check_plain(value[name], field_kind, f"{where}.{name}")
        elif name in needed:
            raise HiNetError(f"{where} has no entry {name!r}")


@cache
def _fields_of(kind: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the type hints of all fields of a TypedDict or dataclass, and the names of the required ones."""
    hints = get_type_hints(kind)  # strips NotRequired from a TypedDict
    if is_typeddict(kind):  # its __required_keys__ ignore NotRequired in string annotations
        extras = get_type_hints(kind, include_extras=True)
        return hints, frozenset(name for name, hint in extras.items() if get_origin(hint) is not NotRequired)
    missing = dataclasses.MISSING
    fields = [
        field for field in dataclasses.fields(kind) if field.default is missing and field.default_factory is missing
    ]
    return hints, frozenset(field.name for field in fields)


def _check_depth(value: Any, where: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH):
        below = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, (dict, list))]
        level = [item for items in below for item in items]
        if not level:
            return
    raise HiNetError(f"{where} has more than {MAX_DEPTH} levels of nested lists and mappings")


def write_arrays(
    path: str | Path, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write arrays and their metadata to a file, one array at a time."""
    write_bytes(path, _parts(arrays, dict(metadata or {})))


def _parts(arrays: Mapping[str, NDArray[Any]], metadata: dict[str, str]) -> Iterator[Any]:
    """Yield the bytes of a file: the length of the header, the header, and the arrays, the largest item size first.

    This order keeps every array aligned, so that it can be mapped into memory.
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    offset = 0
    for name in names:
        array = arrays[name]
        end = offset + array.nbytes
        dtype = _NAMES[array.dtype.newbyteorder("=")]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        little = arrays[name].astype(arrays[name].dtype.newbyteorder("<"), order="C", copy=False)
        yield little.reshape(-1).view(np.uint8).data


def narrowest(array: NDArray[Any]) -> NDArray[Any]:
    """Return non-negative integers in the smallest dtype that holds them, and other numbers unchanged.

    >>> narrowest(np.array([0, 300])).dtype
    dtype('uint16')
    """
    if array.dtype.kind not in "iu":
        return array
    return array.astype(np.min_scalar_type(int(array.max(initial=0))), copy=False)


def read_arrays(path: str | Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read the arrays of a file and their metadata.

    Raises
    ------
    FileError
        If the file is missing, truncated, or not a safetensors file.
    """
    try:
        data = bytearray(Path(path).read_bytes())
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None
    return _parse(path, data)


class MappedFile:
    """A file that stays mapped into memory as long as this object or one of its arrays exists.

    Reading the memory of a truncated file kills the process, so call ``check`` first.
    """

    def __init__(self, path: str | Path, memory: mmap.mmap | None) -> None:
        self.path = str(path)
        self._memory = memory

    def check(self) -> None:
        """Raise FileError if the file was truncated since it was mapped."""
        if self._memory is not None and self._memory.size() < len(self._memory):
            raise FileError(self.path, "was truncated while the model was in use; copy the folder and load it again")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the mapped memory: copies and pickles have arrays of their own."""
        return {"path": self.path, "_memory": None}


def map_arrays(
    path: str | Path, stream: IO[bytes], *, mapped: bool = True
) -> tuple[dict[str, NDArray[Any]], MappedFile]:
    """Return the arrays of an open file, mapped into memory: loaded on first access, shared between processes.

    The arrays are copy-on-write, as kernels are compiled for writable arrays. With ``mapped=False`` they are read
    at once, and later changes of the file do not affect them.

    Raises
    ------
    FileError
        If the file is truncated or not a safetensors file.
    """
    try:
        memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) if mapped else None
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        raise FileError(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    stream.seek(0)
    return _parse(path, bytearray(stream.read()) if memory is None else memory)[0], MappedFile(path, memory)


def _parse(path: str | Path, data: Any) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the arrays in the bytes of a file, and their metadata."""
    try:
        entries, metadata, start = _header(data)
        return {name: _array(data, start, entry) for name, entry in entries.items()}, metadata
    except (ValueError, RecursionError) as error:
        reason = "too many nested lists" if isinstance(error, RecursionError) else error
        raise FileError(path, f"the arrays cannot be read ({reason}); the file is damaged or of another kind") from None


class ArrayEntry(TypedDict):
    """An entry of the safetensors header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def _header(data: Any) -> tuple[dict[str, ArrayEntry], dict[str, str], int]:
    """Return the entries of the header, the metadata, and the offset of the first array; arrays have no gaps."""
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 <= start <= len(data):
        raise HiNetError(f"a header of {start - 8:,} bytes in a file of {len(data):,}")
    header = json.loads(bytes(data[8:start]))
    metadata = header.pop("__metadata__", {}) if isinstance(header, dict) else {}
    check_plain(metadata, dict[str, str], "the metadata")
    check_plain(header, dict[str, ArrayEntry], "the header")
    end = 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        low, high = entry["data_offsets"]
        if entry["dtype"] not in _DTYPES:
            raise HiNetError(f"the array {name!r} has the unknown dtype {entry['dtype']!r}")
        expected = np.dtype(_DTYPES[entry["dtype"]]).itemsize * math.prod(entry["shape"])
        if low != end or high - low != expected or min(entry["shape"], default=0) < 0:
            raise HiNetError(f"the array {name!r} of the shape {entry['shape']} has the bytes from {low:,} to {high:,}")
        end = high
    if end != len(data) - start:
        raise HiNetError(f"arrays of {end:,} bytes in a file with {len(data) - start:,} bytes of them")
    return header, metadata, start


def _array(data: Any, start: int, entry: ArrayEntry) -> NDArray[Any]:
    low, high = entry["data_offsets"]
    dtype = np.dtype(_DTYPES[entry["dtype"]])
    array = np.ndarray(entry["shape"], dtype, data, start + low) if high > low else np.empty(entry["shape"], dtype)
    return array if array.flags.aligned else array.copy()
