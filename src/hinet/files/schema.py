"""Schemas of named arrays and of JSON values, checked when a file is loaded.

Kernels check no bounds, so arrays from a file are validated once, in one pass over each. JSON values are checked
against type hints.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NotRequired, TypeAlias, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError, quoted

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
        _check_items(value, origin, parts, where)
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


def _check_items(value: Any, origin: Any, kinds: tuple[Any, ...], where: str) -> None:
    _require(isinstance(value, (list, tuple)), value, where, "a list")
    if origin is tuple and kinds[-1] is not Ellipsis:
        _require(len(value) == len(kinds), value, where, f"a list of {len(kinds)}")
    for index, item in enumerate(value):
        kind = kinds[index] if origin is tuple and kinds[-1] is not Ellipsis else kinds[0]
        check_plain(item, kind, f"{where}[{index}]")


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
