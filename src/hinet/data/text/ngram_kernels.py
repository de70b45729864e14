"""Kernels from UTF-8 bytes to hashed n-grams of each row, and from n-grams to weighted features or back to text.

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

# Classes of characters. A word is a run of letters and marks, or a single character or picture with the marks after it.
OTHER, BLANK, LETTER, MARK, SINGLE, PICTURE = range(6)
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
Floats: TypeAlias = NDArray[np.float32]
_COMMON_TIMES = 64
_SUBLINEAR = (1 + np.log(np.maximum(np.arange(_COMMON_TIMES), 1))).astype(np.float32)


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


def _steps_of_replacing(text: Bytes, *_: Any) -> int:
    return 5 * len(text)


@kernel(steps=_steps_of_replacing)
def replace_characters(text: Bytes, offsets: Ints64, replacements: Any) -> Any:
    """Return rows with every character replaced by that of a table, which is below U+0800, or left out if it is 0."""
    out, out_offsets = np.empty(len(text), np.uint8), np.zeros(len(offsets), np.int64)
    cursor = ZERO
    for row in range(len(offsets) - 1):
        at = offsets[row]
        while at < offsets[row + 1]:
            code, width = character(text, at)
            replacement = np.int64(replacements[code])
            if replacement == code:
                for byte in range(at, at + width):
                    out[cursor] = text[byte]
                    cursor += 1
            elif replacement >= 0x80:
                out[cursor], out[cursor + 1] = 0xC0 | replacement >> 6, 0x80 | replacement & 0x3F
                cursor += 2
            elif replacement > 0:
                out[cursor] = replacement
                cursor += 1
            at += width
        out_offsets[row + 1] = cursor
    return out[:cursor].copy(), out_offsets


@inlined
def next_word(text: Bytes, at: int, stop: int, classes: Bytes) -> tuple[int, int, Any]:
    """Return start, end and hash of the first word from byte ``at``; start is ``stop`` if there is none."""
    code, width, kind = 0, 0, OTHER
    while at < stop:
        code, width = character(text, at)
        kind = classes[code]
        if kind >= LETTER:
            break
        at += width
    start, state = at, SEED
    lowest = MARK if kind >= SINGLE else LETTER
    while at < stop:
        state = joined(state, np.uint64(code))
        at += width
        if at < stop:
            code, width = character(text, at)
            if not lowest <= classes[code] < SINGLE:
                break
    return start, at, finished(state)


@inlined
def _hash_words(text: Bytes, row: Any, classes: Bytes, sizes: Any, work: Any, hashes: Hashes, places: Ints32) -> int:
    """Write the hash and start of every word n-gram of a row, and return their number."""
    (at, stop), (shortest, longest), (words, starts) = row, sizes, work
    count = 0
    while True:
        start, at, word = next_word(text, at, stop, classes)
        if start >= stop:
            break
        words[count], starts[count] = word, start
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
def _tally(found: int, grams: Any, table: Any, target: Any, cursor: int) -> int:
    """Write the distinct hashes of a row in ascending order with their counts; return the new cursor.

    The slot of a hash is given by its highest bits, or is the next free one, so slots are nearly sorted.
    """
    (hashes, places), (slots, slot_times, slot_places), (out, out_times, out_places) = grams, table, target
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
        out[cursor], out_times[cursor], out_places[cursor] = slots[slot], slot_times[slot], slot_places[slot]
        cursor += slots[slot] != _FREE
    for unsorted in range(first + 1, cursor):
        value = out[unsorted]
        if out[unsorted - 1] > value:
            times, place = out_times[unsorted], out_places[unsorted]
            at = unsorted
            while at > first and out[at - 1] > value:
                out[at], out_times[at], out_places[at] = out[at - 1], out_times[at - 1], out_places[at - 1]
                at -= 1
            out[at], out_times[at], out_places[at] = value, times, place
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
    room = 5 * max_grams + 2
    slots = np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.int32)
    size = np.int64(offsets[rows] - offsets[0]) * (longest - shortest + 1) * (3 if chars else 1) // 4 + max_grams
    out = np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int32)
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
            out = grown(out[0], size), grown(out[1], size), grown(out[2], size)
        cursor = _tally(found, (hashes, places), slots, out, cursor)
        out_offsets[row + 1] = cursor
    return out_offsets, out[0][:cursor], out[1][:cursor], out[2][:cursor]


@inlined
def _spell_words(text: Bytes, at: int, stop: int, classes: Bytes, target: Any, out: Bytes, cursor: int) -> int:
    """Write words from byte ``at`` until they have the hash, and return the new cursor.

    A space separates them, except between single characters.
    """
    state, first, is_single = SEED, cursor, False
    while True:
        start, at, word = next_word(text, at, stop, classes)
        assert start < stop
        follows_single, is_single = is_single, classes[character(text, start)[0]] >= SINGLE
        if cursor > first and not (follows_single and is_single):
            out[cursor] = PAD
            cursor += 1
        for byte in range(start, at):
            out[cursor] = text[byte]
            cursor += 1
        state = stepped(state, word)
        if finished(state) == target:
            return cursor


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


class Lookup(NamedTuple):
    """Features by hash, and their weights; without ``runs``, the number of a feature is the highest bits of a hash."""

    hashes: Hashes  # (features,), ascending
    runs: Ints32  # the features whose hash starts with the bits b are runs[b] to runs[b + 1]
    shift: np.uint64
    idf: Floats  # (features,), 0 where a feature is not used


@kernel
def merge_counts(hashes: Hashes, times: Ints32, other_hashes: Hashes, other_times: Ints32) -> Any:
    """Return the sum of two counts, each with ascending hashes."""
    size = len(hashes) + len(other_hashes)
    out_hashes, out_times = np.empty(size, np.uint64), np.empty(size, np.int32)
    here, there, cursor = 0, 0, 0
    while here < len(hashes) and there < len(other_hashes):
        ours, theirs = hashes[here], other_hashes[there]
        use_ours, use_theirs = ours <= theirs, theirs <= ours
        # Without a branch, as it is unpredictable which of two hashes is lower.
        out_hashes[cursor] = min(ours, theirs)
        out_times[cursor] = times[here] * use_ours + other_times[there] * use_theirs
        here += use_ours
        there += use_theirs
        cursor += 1
    while here < len(hashes):
        out_hashes[cursor], out_times[cursor] = hashes[here], times[here]
        here += 1
        cursor += 1
    while there < len(other_hashes):
        out_hashes[cursor], out_times[cursor] = other_hashes[there], other_times[there]
        there += 1
        cursor += 1
    return out_hashes[:cursor], out_times[:cursor]


@inlined
def _find_features(
    gram_hashes: Hashes, start: int, stop: int, hashes: Hashes, runs: Ints32, shift: Any, idf: Floats, features: Ints32
) -> None:
    """Write the features of the n-grams from ``start`` to ``stop``, -1 for n-grams that are not features."""
    if len(runs) == 0:
        for at in range(start, stop):
            bucket = np.int64(gram_hashes[at] >> shift)
            features[at - start] = bucket if idf[bucket] > 0 else -1
        return
    last: Any = len(hashes) - 1
    for at in range(start, stop):
        value = gram_hashes[at]
        bits: Any = np.int64(value >> shift)
        feature: Any = min(runs[bits], last)
        if last < 0 or hashes[feature] != value:  # usually it is the first of its run
            run_stop = runs[bits + 1]
            while feature < run_stop and hashes[feature] < value:
                feature += 1
            if feature >= run_stop or hashes[feature] != value:
                feature = -1
        features[at - start] = feature


@inlined
def _weigh_row(
    grams: Grams,
    row: int,
    lookup: Lookup,
    first: int,
    sublinear: bool,
    features: Ints32,
    indices: Ints32,
    values: Floats,
    cursor: int,
) -> tuple[int, float, int]:
    """Write the numbers and weights of the features of one kind in a row.

    Return the new cursor, the squared length, and the number of n-grams of the row that are features.
    """
    offsets, gram_hashes, gram_times, _ = grams
    hashes, runs, shift, idf = lookup
    start, gram_start, gram_stop = cursor, offsets[row], offsets[row + 1]
    _find_features(gram_hashes, gram_start, gram_stop, hashes, runs, shift, idf, features)
    known = 0
    for at in range(gram_start, gram_stop):
        feature = features[at - gram_start]
        if feature < 0:
            continue
        known += gram_times[at]
        if cursor > start and indices[cursor - 1] == first + feature:  # hashes that share a number
            values[cursor - 1] += gram_times[at]
        else:
            indices[cursor] = first + feature
            values[cursor] = gram_times[at]
            cursor += 1
    squares = 0.0
    for at in range(start, cursor):
        times = values[at]
        if sublinear:
            times = _SUBLINEAR[np.int64(times)] if times < _COMMON_TIMES else np.float32(1 + np.log(times))
        weight = times * idf[indices[at] - first]
        values[at] = weight
        squares += np.float64(weight) * np.float64(weight)
    return cursor, squares, known


def _steps_of_weighing(words: Grams, _lookup: Lookup, chars: Grams, *_: Any) -> int:
    return 10 * (len(words.hashes) + len(chars.hashes) + len(words.offsets))


@kernel(steps=_steps_of_weighing)
def weigh_rows(
    words: Grams, word_lookup: Lookup, chars: Grams, char_lookup: Lookup, char_weight: float, sublinear: bool
) -> Any:
    """Return row offsets, feature numbers and weights of rows, words before characters, each row of length 1.

    Also return the share of the word n-grams of each row that are not features, 1 if it has none; without word
    features, that of its character n-grams.
    """
    rows = len(words.offsets) - 1
    size = len(words.hashes) + len(chars.hashes)
    indices, values = np.empty(size, np.int32), np.empty(size, np.float32)
    offsets = np.zeros(rows + 1, np.int64)
    features = np.empty(max(longest_row(words.offsets), longest_row(chars.offsets)), np.int32)
    first_char = len(word_lookup.idf)
    unknown = np.ones(rows, np.float32)
    cursor = ZERO
    for row in range(rows):
        start = cursor
        middle, word_squares, known = _weigh_row(
            words, row, word_lookup, ZERO, sublinear, features, indices, values, start
        )
        cursor, char_squares, known_chars = _weigh_row(
            chars, row, char_lookup, first_char, sublinear, features, indices, values, middle
        )
        total = _times_of_row(words, row)
        if first_char == 0:
            known, total = known_chars, _times_of_row(chars, row)
        if total > 0:
            unknown[row] = np.float32(total - known) / np.float32(total)
        both = np.sqrt((middle > start) + (cursor > middle) * char_weight * char_weight)
        if middle > start:
            scale = np.float32(1 / (np.sqrt(word_squares) * both))
            for at in range(start, middle):
                values[at] *= scale
        if cursor > middle:
            scale = np.float32(char_weight / (np.sqrt(char_squares) * both))
            for at in range(middle, cursor):
                values[at] *= scale
        offsets[row + 1] = cursor
    return offsets, indices[:cursor], values[:cursor], unknown


@inlined
def _times_of_row(grams: Grams, row: int) -> int:
    """Return the number of n-grams in a row, repeated ones included."""
    total = 0
    for at in range(grams.offsets[row], grams.offsets[row + 1]):
        total += grams.times[at]
    return total


@kernel
def locate(grams: Grams, lookup: Lookup, base: int, located: Ints64) -> None:
    """Set in ``located`` the byte where each feature among ``grams`` starts; the block's text starts at ``base``."""
    _, gram_hashes, _, places = grams
    hashes, runs, shift, idf = lookup
    features = np.empty(len(gram_hashes), np.int32)
    _find_features(gram_hashes, ZERO, len(gram_hashes), hashes, runs, shift, idf, features)
    for at in range(len(gram_hashes)):
        if features[at] >= 0:
            located[features[at]] = base + places[at]
