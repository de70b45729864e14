"""Numbers that look random, made from other numbers: the same in every process and thread."""

from __future__ import annotations

import numpy as np

from hinet.compiled import inlined

MIX = np.uint64(0x9E3779B97F4A7C15)


@inlined
def scrambled(number):
    """Return 64 bits that are about as good as random for a number that is not negative."""
    mixed = np.uint64(number + 1) * MIX
    return (mixed ^ (mixed >> np.uint64(29))) * MIX


@inlined
def random_place(number, places):
    """Return one of so many places for a number."""
    return np.int64((scrambled(number) >> np.uint64(20)) % np.uint64(places))
