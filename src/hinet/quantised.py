"""Rows of 8-bit integers with a scale per row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LEVELS = 127
MIN_PEAK = 1e-30  # rows without a larger value become zero
_LEVEL_BITS = 7  # bits that a scale leaves for the product
_CHUNK = 1 << 17  # values per chunk, which fit a processor's cache


def quantise_rows(values: NDArray[np.floating[Any]]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return rows of integers and the scale of each row.

    >>> quantise_rows(np.array([[127, -63.6], [0, 0]], np.float32))[0].tolist()
    [[127, -64], [0, 0]]
    """
    levels = np.empty(values.shape, np.int8)
    scale = np.ones(len(values), np.float32)
    step = max(1, _CHUNK // max(values.shape[1], 1))
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        chunk = values[rows].astype(np.float32, copy=False)
        peak = np.abs(chunk).max(1, initial=0)
        filled = peak > MIN_PEAK
        scale[rows][filled] = _rounded_up(peak[filled] / np.float32(LEVELS))
        levels[rows] = np.rint(chunk / scale[rows, None])
    return levels, scale


def float_rows(values: NDArray[Any], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows in single precision, given their scales."""
    fractions = values.astype(np.float32)
    if values.dtype == np.int8:
        fractions *= scale[:, None]
    return fractions


def _rounded_up(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round up to the next numbers whose last bits of the fraction are zero."""
    low = np.uint32((1 << _LEVEL_BITS) - 1)
    return ((scale.view(np.uint32) + low) & ~low).view(np.float32)
