"""Kernels from the hashes of features back to their text."""

from __future__ import annotations

from typing import Any

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.data.text.hashing_kernels import (
    BLANK,
    PAD,
    SEED,
    WORD,
    ZERO,
    Bytes,
    Hashes,
    Ints64,
    character,
    finished,
    grown,
    joined,
    stepped,
)


@inlined
def _next_word(text: Bytes, at: int, stop: int, classes: Bytes) -> tuple[int, int, Any]:
    """Return start, end and hash of the first word from ``at`` on; start is ``stop`` if there is none."""
    while at < stop:
        code, width = character(text, at)
        if classes[code] == WORD:
            break
        at += width
    start, state = at, SEED
    while at < stop:
        code, width = character(text, at)
        if classes[code] != WORD:
            break
        state = joined(state, np.uint64(code))
        at += width
    return start, at, finished(state)


@inlined
def _spell_words(text: Bytes, at: int, stop: int, classes: Bytes, target: Any, out: Bytes, cursor: int) -> int:
    """Write words from ``at`` on, with a blank between, until they have the hash; return the new cursor."""
    state = SEED
    while True:
        start, at, word = _next_word(text, at, stop, classes)
        assert start < stop
        for byte in range(start, at):
            out[cursor] = text[byte]
            cursor += 1
        state = stepped(state, word)
        if finished(state) == target:
            return cursor
        out[cursor] = PAD
        cursor += 1


@inlined
def _spell_chars(text: Bytes, at: int, stop: int, classes: Bytes, target: Any, out: Bytes, cursor: int) -> int:
    """Write characters from ``at`` on until they have the hash; return the new cursor, or the old one if none has."""
    first = cursor
    state = SEED
    if at < 0:  # the same place, with the blank before the word
        at = ~at
        state = joined(state, np.uint64(PAD))
        out[cursor] = PAD
        cursor += 1
        if finished(state) == target:
            return cursor
    while at < stop:
        code, width = character(text, at)
        if classes[code] == BLANK:
            break
        state = joined(state, np.uint64(code))
        for byte in range(at, at + width):
            out[cursor] = text[byte]
            cursor += 1
        if finished(state) == target:
            return cursor
        at += width
    out[cursor] = PAD
    return cursor + 1 if finished(joined(state, np.uint64(PAD))) == target else first


@kernel
def spell(text: Bytes, starts: Ints64, stops: Ints64, classes: Bytes, chars: bool, hashes: Hashes) -> Any:
    """Return the n-grams with these hashes as bytes and offsets; each lies between its start and the stop of its row.

    Only the start of an n-gram is remembered while rows are counted; its end is where the hash is right again.
    """
    out = np.empty(16 * len(hashes) + 64, np.uint8)
    offsets = np.zeros(len(hashes) + 1, np.int64)
    cursor = ZERO
    for feature in range(len(hashes)):
        start, stop, target = starts[feature], stops[feature], hashes[feature]
        most = cursor + 2 * (stop - start) + 2
        if most > len(out):
            out = grown(out, most + len(out) // 2)
        if chars:
            end = _spell_chars(text, ~start, stop, classes, target, out, cursor)
            if end == cursor:
                end = _spell_chars(text, start, stop, classes, target, out, cursor)
        else:
            end = _spell_words(text, start, stop, classes, target, out, cursor)
        assert end > cursor
        cursor = end
        offsets[feature + 1] = cursor
    return out[:cursor].copy(), offsets
