"""Which characters make words and which are blank, exactly as Python's ``re`` has it."""

from __future__ import annotations

import re
from functools import cache

import numpy as np

from hinet.data.text.hashing_kernels import BLANK, WORD, Bytes

_CODES = 0x110000
_ASCII_CODES = 0x80


@cache
def character_classes(ascii_only: bool) -> Bytes:
    """Return the class of every code point; the table of all is only built for texts that leave ASCII."""
    codes = np.arange(_ASCII_CODES if ascii_only else _CODES, dtype="<u4")
    everything = codes.tobytes().decode("utf-32-le", "surrogatepass")
    classes = np.zeros(len(codes), np.uint8)
    for pattern, kind in ((r"\w+", WORD), (r"\s+", BLANK)):
        for run in re.finditer(pattern, everything):
            classes[run.start() : run.end()] = kind
    return classes
