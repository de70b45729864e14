"""Which characters are word characters and which are spaces, as in Python's ``re``."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from hinet.data.text.hashing_kernels import BLANK, WORD, Bytes

_CODES = 0x110000
_ASCII_CODES = 0x80


@cache
def character_classes(ascii_only: bool) -> Bytes:
    """Return the class of every code point, or only of ASCII, which is faster."""
    codes = np.arange(_ASCII_CODES if ascii_only else _CODES, dtype="<u4")
    everything = codes.tobytes().decode("utf-32-le", "surrogatepass")
    classes = np.zeros(len(codes), np.uint8)
    for pattern, kind in ((r"\w+", WORD), (r"\s+", BLANK)):
        for run in re.finditer(pattern, everything):
            classes[run.start() : run.end()] = kind
    return classes
