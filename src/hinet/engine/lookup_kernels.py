"""Kernels that look values up in sorted runs."""

from __future__ import annotations

from hinet.compiled import inlined


@inlined
def find_first(values, low, high, wanted):
    """Return the first of the sorted values ``low:high`` that is at least the wanted one."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def find_near(values, low, high, wanted):
    """Return what :func:`find_first` does, faster where it is close to ``low``."""
    step = 1
    while low + step < high and values[low + step] < wanted:
        low += step
        step *= 2
    return find_first(values, low, min(high, low + step), wanted)
