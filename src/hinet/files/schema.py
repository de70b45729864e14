"""Schemas of named arrays: the dtype, shape and range of each, checked when a file is loaded.

Kernels check no bounds, so arrays from a file are validated once, in one pass over each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError

LARGEST = 1e12  # weights of a valid model are far smaller, and products of such numbers are still finite
FINITE = float(np.finfo(np.float32).max)
HALF = float(np.finfo(np.float16).max)

Size: TypeAlias = int | str  # a number, or the name of a size that arrays share; "name+1" is one more
_KINDS = {
    "f": "fractions", "fb": "fractions", "i": "whole numbers", "iu": "whole numbers", "u": "whole numbers from 0",
}  # fmt: skip
_HALF_EXPONENT = 0x7C00  # all ones in a number that is not finite


@dataclass(frozen=True)
class ArraySpec:
    """The allowed dtype, shape and values of an array."""

    shape: tuple[Size, ...]
    kinds: str  # allowed values of ``dtype.kind``
    low: float | None = None
    high: float | str | None = None  # the largest value; the name of a size is an exclusive limit
    rising: bool = False  # values are strictly ascending
    values: str | None = None  # of offsets: the size of the array that they split into lists
    filled: bool = False  # of offsets: no list is empty
    optional: bool = False
    bits: int | None = None  # of each number, if no others will do


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
    """Return the spec of whole numbers in 8 bits, any of them."""
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
        of_bits = "" if spec.bits is None else f" of {spec.bits} bits"
        raise HiNetError(f"the array {name!r} is of {array.dtype}, expected {_KINDS[spec.kinds]}{of_bits}")


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
            f"the array {name!r} goes from {array[0]} to {array[-1]}, expected offsets from 0 to {values:,}"
        )
    _check_order(name, array[1:] > array[:-1] if filled else array[1:] >= array[:-1], array)


def _check_order(name: str, rises: NDArray[np.bool_], array: NDArray[Any]) -> None:
    if not rises.all():
        index = int(np.argmin(rises))
        raise HiNetError(
            f"the array {name!r} holds {array[index]} at index {index:,} and {array[index + 1]} after it, "
            "expected ascending values"
        )
