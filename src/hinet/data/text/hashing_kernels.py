"""Kernels from UTF-8 bytes to hashed n-grams of each row, and from the hashes of features back to their text.

An n-gram is identified by a 64-bit hash. Everything is ordered by hash: the n-grams of a row, the vocabulary, and thus
the numbers of features. So a sorted row stays sorted when hashes become numbers, and no order depends on threads or
chunks. Hashes are uniform, so their highest bits give nearly the position in sorted order: rows are sorted and features
are found in constant time per hash.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined, kernel

Bytes: TypeAlias = NDArray[np.uint8]
Hashes: TypeAlias = NDArray[np.uint64]
Ints32: TypeAlias = NDArray[np.int32]
Ints64: TypeAlias = NDArray[np.int64]

OTHER, WORD, BLANK = 0, 1, 2  # classes of characters
SEED = np.uint64(0x9E3779B97F4A7C15)  # the hash of an empty n-gram
PAD = 32  # the space around a word
ZERO: Any = np.int64(0)  # numba would compile a kernel again for a literal

_STEP = np.uint64(0xD6E8FEB86659FD93)
_MIX1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX2 = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)
_MIX_SHIFT = np.uint64(33)
_FREE = np.uint64(0)
_ONE = np.uint64(1)


class Grams(NamedTuple):
    """The distinct n-grams of some rows, by ascending hash within each row; kernels take tuples, but no dataclass."""

    offsets: Ints64  # (n + 1,)
    hashes: Hashes
    times: Ints32  # occurrences in its row
    places: Ints32  # the byte in the text of the block at which one occurrence starts


@inlined
def stepped(state: Any, value: Any) -> Any:
    """Return the hash of some words and one more, given by its hash."""
    state = (state ^ value) * _STEP
    return state ^ (state >> _HALF)


@inlined
def joined(state: Any, code: Any) -> Any:
    """Return the hash of some characters and one more; only two operations, as this is the longest chain."""
    return (state + code) * _STEP


@inlined
def finished(state: Any) -> Any:
    """Return a hash with its bits mixed; never 0, which marks a free slot."""
    state = (state ^ (state >> _MIX_SHIFT)) * _MIX1
    state = (state ^ (state >> _MIX_SHIFT)) * _MIX2
    state ^= state >> _MIX_SHIFT
    return _ONE if state == _FREE else state


@inlined
def character(text: Bytes, at: int) -> Any:
    """Return the code point at a byte and its width in bytes; texts are valid UTF-8."""
    lead: Any = np.int64(text[at])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        return (lead & 0x1F) << 6 | np.int64(text[at + 1]) & 0x3F, 2
    middle = (np.int64(text[at + 1]) & 0x3F) << 6 | np.int64(text[at + 2]) & 0x3F
    if lead < 0xF0:
        return (lead & 0x0F) << 12 | middle, 3
    return (lead & 0x07) << 18 | middle << 6 | np.int64(text[at + 3]) & 0x3F, 4


@inlined
def _hash_words(text: Bytes, row: Any, classes: Bytes, sizes: Any, work: Any, hashes: Hashes, places: Ints32) -> int:
    """Write the hash and start of every word n-gram of a row, and return their number."""
    (start, stop), (shortest, longest), (words, starts) = row, sizes, work
    count = 0
    inside = False
    state = SEED
    at = start
    while at < stop:
        code, width = np.int64(text[at]), 1
        if code >= 0x80:
            code, width = character(text, at)
        if classes[code] == WORD:
            if not inside:
                inside = True
                state = SEED
                starts[count] = at
            state = joined(state, np.uint64(code))
        elif inside:
            inside = False
            words[count] = finished(state)
            count += 1
        at += width
    if inside:
        words[count] = finished(state)
        count += 1
    emitted = 0
    for first in range(count):
        state = SEED
        for size in range(1, min(longest, count - first) + 1):
            state = stepped(state, words[first + size - 1])
            if size >= shortest:
                hashes[emitted] = finished(state)
                places[emitted] = starts[first]
                emitted += 1
    return emitted


@inlined
def _hash_chars(text: Bytes, row: Any, classes: Bytes, sizes: Any, work: Any, hashes: Hashes, places: Ints32) -> int:
    """Write the hash and start of every character n-gram of a row, and return their number."""
    (start, stop), (shortest, longest), (codes, starts) = row, sizes, work
    emitted = 0
    at = start
    while at < stop:
        codes[0], starts[0] = np.uint64(PAD), at
        length = 1
        width = 1
        while at < stop:
            code, width = np.int64(text[at]), 1
            if code >= 0x80:
                code, width = character(text, at)
            if classes[code] == BLANK:
                break
            codes[length], starts[length] = np.uint64(code), at
            length += 1
            at += width
        if length > 1:
            codes[length], starts[length] = np.uint64(PAD), at
            length += 1
            min_size = min(shortest, length)  # a word shorter than every n-gram counts once, as a whole
            for first in range(length - min_size + 1):
                state = SEED
                for size in range(1, min(longest, length - first) + 1):
                    state = joined(state, codes[first + size - 1])
                    if size >= min_size:
                        hashes[emitted] = finished(state)
                        places[emitted] = starts[first]
                        emitted += 1
        at += width
    return emitted


@inlined
def _tally(
    found: int,
    hashes: Hashes,
    places: Ints32,
    slots: Hashes,
    slot_times: Ints32,
    slot_places: Ints32,
    out_hashes: Hashes,
    out_times: Ints32,
    out_places: Ints32,
    cursor: int,
) -> int:
    """Write the distinct hashes of a row in ascending order with their counts; return the new cursor.

    The slot of a hash is given by its highest bits, or is the next free one, so slots are nearly sorted.
    """
    bits = 1
    while 1 << bits < 2 * found:
        bits += 1
    shift = np.uint64(64 - bits)
    used = (1 << bits) + found  # no hash is stored further
    for free in range(used):
        slots[free] = _FREE
    for emitted in range(found):
        value = hashes[emitted]
        slot: Any = np.int64(value >> shift)
        while slots[slot] != value and slots[slot] != _FREE:
            slot += 1
        if slots[slot] == value:
            slot_times[slot] += 1
        else:
            slots[slot] = value
            slot_times[slot] = 1
            slot_places[slot] = places[emitted]
    first = cursor
    for slot in range(used):  # without a branch, as free slots are unpredictable
        out_hashes[cursor], out_times[cursor], out_places[cursor] = slots[slot], slot_times[slot], slot_places[slot]
        cursor += slots[slot] != _FREE
    for unsorted in range(first + 1, cursor):
        value = out_hashes[unsorted]
        if out_hashes[unsorted - 1] > value:
            times, place = out_times[unsorted], out_places[unsorted]
            at = unsorted
            while at > first and out_hashes[at - 1] > value:
                out_hashes[at], out_times[at], out_places[at] = (
                    out_hashes[at - 1],
                    out_times[at - 1],
                    out_places[at - 1],
                )
                at -= 1
            out_hashes[at], out_times[at], out_places[at] = value, times, place
    return cursor


@inlined
def grown(array: Any, size: Any) -> Any:
    """Return a copy of an array with more room at its end."""
    larger = np.empty(size, array.dtype)
    for index in range(len(array)):  # a slice would take numba seconds to compile
        larger[index] = array[index]
    return larger


@inlined
def longest_row(offsets: Ints64) -> Any:
    """Return the length of the longest row."""
    longest: Any = 0
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    return longest


def _steps_of_hashing(text: Bytes, offsets: Ints64, *options: Any) -> float:
    _, _, shortest, longest = options
    steps: float = 20 * (longest - shortest + 2) * len(text) + 20 * len(offsets)
    return steps


@kernel(steps=_steps_of_hashing)
def hash_rows(text: Bytes, offsets: Ints64, classes: Bytes, chars: bool, shortest: int, longest: int) -> Any:
    """Return the distinct n-grams of each row, of characters or of words, as the fields of `Grams`."""
    rows = len(offsets) - 1
    longest_bytes = longest_row(offsets)
    # A row of b bytes has up to (b + 1) / 2 words, each padded with two characters.
    max_units = 2 * longest_bytes + 3 if chars else longest_bytes // 2 + 1
    max_grams = max_units * (longest - shortest + 1)
    work = np.empty(max_units, np.uint64), np.empty(max_units, np.int32)
    hashes, places = np.empty(max_grams, np.uint64), np.empty(max_grams, np.int32)
    slots, slot_times, slot_places = (
        np.empty(5 * max_grams + 2, np.uint64),
        np.empty(5 * max_grams + 2, np.int32),
        np.empty(5 * max_grams + 2, np.int32),
    )
    size = np.int64(offsets[rows] - offsets[0]) * (longest - shortest + 1) * (3 if chars else 1) // 4 + max_grams
    out_hashes, out_times, out_places = np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int32)
    out_offsets = np.zeros(rows + 1, np.int64)
    cursor = ZERO
    for row in range(rows):
        bounds = offsets[row], offsets[row + 1]
        if chars:
            found = _hash_chars(text, bounds, classes, (shortest, longest), work, hashes, places)
        else:
            found = _hash_words(text, bounds, classes, (shortest, longest), work, hashes, places)
        if cursor + found + 1 > size:
            size = cursor + found + 1 + size // 2
            out_hashes, out_times, out_places = (
                grown(out_hashes, size),
                grown(out_times, size),
                grown(out_places, size),
            )
        cursor = _tally(
            found, hashes, places, slots, slot_times, slot_places, out_hashes, out_times, out_places, cursor
        )
        out_offsets[row + 1] = cursor
    return out_offsets, out_hashes[:cursor], out_times[:cursor], out_places[:cursor]


@inlined
def _next_word(text: Bytes, at: int, stop: int, classes: Bytes) -> tuple[int, int, Any]:
    """Return start, end and hash of the first word from byte ``at``; start is ``stop`` if there is none."""
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
    """Write words from byte ``at``, separated by a space, until they have the hash; return the new cursor."""
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
    """Write characters from byte ``at`` until they have the hash; return the new cursor, or the old one if none has."""
    first = cursor
    state = SEED
    if at < 0:  # the complement of a byte: start with the space before the word
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

    Counting keeps only the start of an n-gram; it ends where the hash matches.
    """
    out = np.empty(16 * len(hashes) + 64, np.uint8)
    offsets = np.zeros(len(hashes) + 1, np.int64)
    cursor = ZERO
    for feature in range(len(hashes)):
        start, stop, target = starts[feature], stops[feature], hashes[feature]
        max_end = cursor + 2 * (stop - start) + 2
        if max_end > len(out):
            out = grown(out, max_end + len(out) // 2)
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
