"""Arithmetic on ragged arrays: many short lists held in one flat array and its offsets.

List ``i`` of a ragged array is ``flat[offsets[i]:offsets[i + 1]]``.
"""

from __future__ import annotations

from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.integer[Any]]
Bools: TypeAlias = NDArray[np.bool_]
Array = TypeVar("Array", bound=NDArray[Any])


def frozen(array: Array) -> Array:
    """Make an array read-only and return it."""
    array.setflags(write=False)
    return array


def freeze(*arrays: NDArray[Any]) -> None:
    """Make several arrays read-only."""
    for array in arrays:
        frozen(array)


def offsets_of(lengths: Ints) -> NDArray[np.int64]:
    """Return the offsets of lists with these ``lengths``.

    >>> offsets_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2, 5]
    """
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def evenly_spaced(count: int, max_count: int) -> NDArray[np.int64]:
    """Return at most ``max_count`` of the first ``count`` numbers, evenly spaced; at least one.

    >>> evenly_spaced(10, 4).tolist(), evenly_spaced(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.linspace(0, count - 1, min(count, max(max_count, 1))).astype(np.int64)


def positions(starts: Ints, lengths: Ints) -> NDArray[np.int64]:
    """Return the ranges ``start, start + 1, …`` of the given lengths, concatenated.

    >>> positions(np.array([7, 2]), np.array([2, 3])).tolist()
    [7, 8, 2, 3, 4]
    """
    offsets = offsets_of(lengths)
    return np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])


def gather(flat: Array, offsets: Ints, lists: Ints) -> tuple[Array, NDArray[np.int64]]:
    """Return the selected ``lists`` of a ragged array, concatenated, and their lengths.

    >>> values, lengths = gather(np.array([5, 6, 7, 8]), np.array([0, 2, 2, 4]), np.array([2, 0]))
    >>> values.tolist(), lengths.tolist()
    ([7, 8, 5, 6], [2, 2])
    """
    starts = offsets[lists].astype(np.int64)
    lengths = offsets[lists + 1] - starts
    return cast("Array", flat[positions(starts, lengths)]), lengths


def group_by(keys: Ints, groups: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return a stable order that sorts ``keys``, and the offsets of each of the ``groups`` in it.

    >>> order, offsets = group_by(np.array([1, 0, 1]), 2)
    >>> order.tolist(), offsets.tolist()
    ([1, 0, 2], [0, 1, 3])
    """
    return np.argsort(keys, kind="stable"), offsets_of(np.bincount(keys, minlength=groups))


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the distinct values, ascending; faster than ``np.unique`` where most are distinct.

    >>> distinct(np.array([3, 1, 3])).tolist()
    [1, 3]
    """
    ordered = np.sort(values)
    return np.asarray(ordered[np.diff(ordered, prepend=ordered[:1] - 1) != 0])


def first_seen(values: Ints, scratch: Ints) -> Bools:
    """Mark the first occurrence of each value; ``scratch`` has an element for every possible value.

    The time depends only on the number of values, so it is cheap to call once per level.

    >>> first_seen(np.array([4, 1, 4]), np.empty(5, np.int64)).tolist()
    [True, True, False]
    """
    order = np.arange(len(values))
    scratch[values[::-1]] = order[::-1]
    return np.asarray(scratch[values] == order)
