"""Kernels from UTF-8 bytes to weighted n-grams: hash rows, count rows of features, look features up, spell them.

An n-gram is known by 64 bits of hash. Everything is ordered by hash: the n-grams of a row, the vocabulary, and thus the
numbers of features. So a sorted row stays sorted when hashes become numbers, and no order depends on threads or chunks.
Hashes are uniform, so their highest bits say nearly where in an order they stand; that is how rows are sorted and
features found in constant time a hash.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import kernel

Bytes: TypeAlias = NDArray[np.uint8]
Hashes: TypeAlias = NDArray[np.uint64]
Ints32: TypeAlias = NDArray[np.int32]
Ints64: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float32]

OTHER, WORD, BLANK = 0, 1, 2  # classes of characters

_SEED = np.uint64(0x9E3779B97F4A7C15)
_STEP = np.uint64(0xD6E8FEB86659FD93)
_MIX1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX2 = np.uint64(0xC4CEB9FE1A85EC53)
_HALF = np.uint64(32)
_MIX_SHIFT = np.uint64(33)
_FREE = np.uint64(0)
_ONE = np.uint64(1)
_PAD = 32  # the blank around a word
_ZERO: Any = np.int64(0)  # numba compiles a kernel once more for a literal
_COMMON_TIMES = 64
_SUBLINEAR = (1 + np.log(np.maximum(np.arange(_COMMON_TIMES), 1))).astype(np.float32)


class Grams(NamedTuple):
    """The different n-grams of some rows, by rising hash within each row; a tuple, for kernels take no dataclass."""

    offsets: Ints64  # (n + 1,)
    hashes: Hashes
    times: Ints32  # how often in its row
    places: Ints32  # byte of the block's text where one occurrence starts


class Lookup(NamedTuple):
    """Where features are found by hash, and what they weigh; without ``runs``, a hash's highest bits are its number."""

    hashes: Hashes  # (features,), rising
    runs: Ints32  # the features whose hash starts with the bits b are runs[b] to runs[b + 1]
    shift: np.uint64
    idf: Floats  # (features,), 0 where a feature is not used


@kernel
def _stepped(state: Any, value: Any) -> Any:
    state = (state ^ value) * _STEP
    return state ^ (state >> _HALF)


@kernel
def _joined(state: Any, code: Any) -> Any:
    """Take one more character into a hash; two operations, for this is the longest chain there is."""
    return (state + code) * _STEP


@kernel
def _finished(state: Any) -> Any:
    state = (state ^ (state >> _MIX_SHIFT)) * _MIX1
    state = (state ^ (state >> _MIX_SHIFT)) * _MIX2
    state ^= state >> _MIX_SHIFT
    return _ONE if state == _FREE else state


@kernel
def _character(text: Bytes, at: int) -> Any:
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


@kernel
def _hash_words(
    text: Bytes,
    start: int,
    stop: int,
    classes: Bytes,
    shortest: int,
    longest: int,
    work: Any,
    hashes: Hashes,
    places: Ints32,
) -> int:
    """Write the hash and start of every word n-gram of a row, and return their number."""
    words, starts = work
    count = 0
    inside = False
    state = _SEED
    at = start
    while at < stop:
        code, width = np.int64(text[at]), 1
        if code >= 0x80:
            code, width = _character(text, at)
        if classes[code] == WORD:
            if not inside:
                inside = True
                state = _SEED
                starts[count] = at
            state = _joined(state, np.uint64(code))
        elif inside:
            inside = False
            words[count] = _finished(state)
            count += 1
        at += width
    if inside:
        words[count] = _finished(state)
        count += 1
    emitted = 0
    for first in range(count):
        state = _SEED
        for size in range(1, min(longest, count - first) + 1):
            state = _stepped(state, words[first + size - 1])
            if size >= shortest:
                hashes[emitted] = _finished(state)
                places[emitted] = starts[first]
                emitted += 1
    return emitted


@kernel
def _hash_chars(
    text: Bytes,
    start: int,
    stop: int,
    classes: Bytes,
    shortest: int,
    longest: int,
    work: Any,
    hashes: Hashes,
    places: Ints32,
) -> int:
    """Write the hash and start of every character n-gram of a row, and return their number."""
    codes, starts = work
    emitted = 0
    at = start
    while at < stop:
        codes[0], starts[0] = np.uint64(_PAD), at
        length = 1
        width = 1
        while at < stop:
            code, width = np.int64(text[at]), 1
            if code >= 0x80:
                code, width = _character(text, at)
            if classes[code] == BLANK:
                break
            codes[length], starts[length] = np.uint64(code), at
            length += 1
            at += width
        if length > 1:
            codes[length], starts[length] = np.uint64(_PAD), at
            length += 1
            least = min(shortest, length)  # a word shorter than every n-gram counts once, as a whole
            for first in range(length - least + 1):
                state = _SEED
                for size in range(1, min(longest, length - first) + 1):
                    state = _joined(state, codes[first + size - 1])
                    if size >= least:
                        hashes[emitted] = _finished(state)
                        places[emitted] = starts[first]
                        emitted += 1
        at += width
    return emitted


@kernel
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
    """Write the different hashes of a row in rising order with how often they were found; return the new cursor.

    A hash's slot is given by its highest bits, or is the next free one; so slots in their order are nearly sorted.
    """
    bits = 1
    while 1 << bits < 2 * found:
        bits += 1
    shift = np.uint64(64 - bits)
    used = (1 << bits) + found  # no hash can run further
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
    for slot in range(used):  # no branch: which slots are free cannot be foreseen
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


@kernel
def _grown(array: Any, size: Any) -> Any:
    larger = np.empty(size, array.dtype)
    for at in range(len(array)):  # a slice would take numba seconds to compile
        larger[at] = array[at]
    return larger


@kernel
def hash_rows(text: Bytes, offsets: Ints64, classes: Bytes, chars: bool, shortest: int, longest: int) -> Any:
    """Return the different n-grams of each row, of characters or of words, as the parts of `Grams`."""
    rows = len(offsets) - 1
    longest_row = _longest_row(offsets)
    # A row of b bytes has up to (b + 1) / 2 words, and each pads two characters.
    most_units = 2 * longest_row + 3 if chars else longest_row // 2 + 1
    most = most_units * (longest - shortest + 1)
    work = np.empty(most_units, np.uint64), np.empty(most_units, np.int32)
    hashes, places = np.empty(most, np.uint64), np.empty(most, np.int32)
    slots, slot_times, slot_places = (
        np.empty(5 * most + 2, np.uint64),
        np.empty(5 * most + 2, np.int32),
        np.empty(5 * most + 2, np.int32),
    )
    size = np.int64(offsets[rows] - offsets[0]) * (longest - shortest + 1) * (3 if chars else 1) // 4 + most
    out_hashes, out_times, out_places = np.empty(size, np.uint64), np.empty(size, np.int32), np.empty(size, np.int32)
    out_offsets = np.zeros(rows + 1, np.int64)
    cursor = _ZERO
    for row in range(rows):
        if chars:
            found = _hash_chars(text, offsets[row], offsets[row + 1], classes, shortest, longest, work, hashes, places)
        else:
            found = _hash_words(text, offsets[row], offsets[row + 1], classes, shortest, longest, work, hashes, places)
        if cursor + found + 1 > size:
            size = cursor + found + 1 + size // 2
            out_hashes, out_times, out_places = (
                _grown(out_hashes, size),
                _grown(out_times, size),
                _grown(out_places, size),
            )
        cursor = _tally(
            found, hashes, places, slots, slot_times, slot_places, out_hashes, out_times, out_places, cursor
        )
        out_offsets[row + 1] = cursor
    return out_offsets, out_hashes[:cursor], out_times[:cursor], out_places[:cursor]


@kernel
def count_runs(rising: Hashes) -> Any:
    """Return the different hashes of a rising array, and how often each is there."""
    different = 0
    for at in range(len(rising)):
        different += at == 0 or rising[at] != rising[at - 1]
    hashes, times = np.empty(different, np.uint64), np.zeros(different, np.int32)
    last = -1
    for at in range(len(rising)):
        if at == 0 or rising[at] != rising[at - 1]:
            last += 1
            hashes[last] = rising[at]
        times[last] += 1
    return hashes, times


@kernel
def merge_counts(hashes: Hashes, times: Ints32, other_hashes: Hashes, other_times: Ints32) -> Any:
    """Return the sum of two counts, each with rising hashes."""
    most = len(hashes) + len(other_hashes)
    out_hashes, out_times = np.empty(most, np.uint64), np.empty(most, np.int32)
    here, there, cursor = 0, 0, 0
    while here < len(hashes) and there < len(other_hashes):
        ours, theirs = hashes[here], other_hashes[there]
        take, give = ours <= theirs, theirs <= ours
        # No branch: which of two hashes is lower cannot be foreseen.
        out_hashes[cursor] = min(ours, theirs)
        out_times[cursor] = times[here] * take + other_times[there] * give
        here += take
        there += give
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


@kernel
def run_starts(hashes: Hashes, shift: Any, size: int) -> Ints32:
    """Return ``runs`` of a `Lookup`: where among rising hashes each value of the highest bits starts."""
    runs = np.empty(size, np.int32)
    at = 0
    for bits in range(size):
        while at < len(hashes) and np.int64(hashes[at] >> shift) < bits:
            at += 1
        runs[bits] = at
    return runs


@kernel
def row_buckets(offsets: Ints64, hashes: Hashes, shift: Any) -> Any:
    """Return the highest bits of the hashes, each value once a row."""
    out = np.empty(len(hashes), np.uint64)
    cursor = 0
    for row in range(len(offsets) - 1):
        start = cursor
        for at in range(offsets[row], offsets[row + 1]):
            bucket = hashes[at] >> shift
            if cursor == start or out[cursor - 1] != bucket:
                out[cursor] = bucket
                cursor += 1
    return out[:cursor]


@kernel
def _find_features(
    gram_hashes: Hashes, start: int, stop: int, hashes: Hashes, runs: Ints32, shift: Any, idf: Floats, features: Ints32
) -> None:
    """Write the features of the n-grams from ``start`` to ``stop``, -1 for those that are none."""
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
        if last < 0 or hashes[feature] != value:  # most often the first of its run is the one
            run_stop = runs[bits + 1]
            while feature < run_stop and hashes[feature] < value:
                feature += 1
            if feature >= run_stop or hashes[feature] != value:
                feature = -1
        features[at - start] = feature


@kernel
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
) -> tuple[int, float]:
    """Write numbers and weights of one row's features of one kind; return the new cursor and the squared length."""
    offsets, gram_hashes, gram_times, _ = grams
    hashes, runs, shift, idf = lookup
    start, gram_start, gram_stop = cursor, offsets[row], offsets[row + 1]
    _find_features(gram_hashes, gram_start, gram_stop, hashes, runs, shift, idf, features)
    for at in range(gram_start, gram_stop):
        feature = features[at - gram_start]
        if feature < 0:
            continue
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
    return cursor, squares


@kernel
def _longest_row(offsets: Ints64) -> Any:
    longest: Any = 0
    for row in range(len(offsets) - 1):
        longest = max(longest, offsets[row + 1] - offsets[row])
    return longest


@kernel
def weigh_rows(
    words: Grams, word_lookup: Lookup, chars: Grams, char_lookup: Lookup, char_weight: float, sublinear: bool
) -> Any:
    """Return row offsets, feature numbers and weights of rows, words before characters, each row of length 1."""
    rows = len(words.offsets) - 1
    most = len(words.hashes) + len(chars.hashes)
    indices, values = np.empty(most, np.int32), np.empty(most, np.float32)
    offsets = np.zeros(rows + 1, np.int64)
    features = np.empty(max(_longest_row(words.offsets), _longest_row(chars.offsets)), np.int32)
    first_char = len(word_lookup.idf)
    cursor = _ZERO
    for row in range(rows):
        start = cursor
        middle, word_squares = _weigh_row(words, row, word_lookup, _ZERO, sublinear, features, indices, values, start)
        cursor, char_squares = _weigh_row(
            chars, row, char_lookup, first_char, sublinear, features, indices, values, middle
        )
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
    return offsets, indices[:cursor], values[:cursor]


@kernel
def locate(grams: Grams, lookup: Lookup, base: int, located: Ints64) -> None:
    """Set in ``located`` the byte where each feature among ``grams`` starts; the block's text starts at ``base``."""
    _, gram_hashes, _, places = grams
    hashes, runs, shift, idf = lookup
    features = np.empty(len(gram_hashes), np.int32)
    _find_features(gram_hashes, _ZERO, len(gram_hashes), hashes, runs, shift, idf, features)
    for at in range(len(gram_hashes)):
        if features[at] >= 0:
            located[features[at]] = base + places[at]


@kernel
def _next_word(text: Bytes, at: int, stop: int, classes: Bytes) -> tuple[int, int, Any]:
    """Return start, end and hash of the first word from ``at`` on; start is ``stop`` if there is none."""
    while at < stop:
        code, width = _character(text, at)
        if classes[code] == WORD:
            break
        at += width
    start, state = at, _SEED
    while at < stop:
        code, width = _character(text, at)
        if classes[code] != WORD:
            break
        state = _joined(state, np.uint64(code))
        at += width
    return start, at, _finished(state)


@kernel
def _spell_words(text: Bytes, at: int, stop: int, classes: Bytes, target: Any, out: Bytes, cursor: int) -> int:
    """Write words from ``at`` on, with a blank between, until they have the hash; return the new cursor."""
    state = _SEED
    while True:
        start, at, word = _next_word(text, at, stop, classes)
        assert start < stop
        for byte in range(start, at):
            out[cursor] = text[byte]
            cursor += 1
        state = _stepped(state, word)
        if _finished(state) == target:
            return cursor
        out[cursor] = _PAD
        cursor += 1


@kernel
def _spell_chars(text: Bytes, at: int, stop: int, classes: Bytes, target: Any, out: Bytes, cursor: int) -> int:
    """Write characters from ``at`` on until they have the hash; return the new cursor, or the old one if none has."""
    first = cursor
    state = _SEED
    if at < 0:  # the same place, with the blank before the word
        at = ~at
        state = _joined(state, np.uint64(_PAD))
        out[cursor] = _PAD
        cursor += 1
        if _finished(state) == target:
            return cursor
    while at < stop:
        code, width = _character(text, at)
        if classes[code] == BLANK:
            break
        state = _joined(state, np.uint64(code))
        for byte in range(at, at + width):
            out[cursor] = text[byte]
            cursor += 1
        if _finished(state) == target:
            return cursor
        at += width
    out[cursor] = _PAD
    return cursor + 1 if _finished(_joined(state, np.uint64(_PAD))) == target else first


@kernel
def spell(text: Bytes, starts: Ints64, stops: Ints64, classes: Bytes, chars: bool, hashes: Hashes) -> Any:
    """Return the n-grams with these hashes as bytes and offsets; each lies between its start and the stop of its row.

    Only the start of an n-gram is remembered while rows are counted; its end is where the hash is right again.
    """
    out = np.empty(16 * len(hashes) + 64, np.uint8)
    offsets = np.zeros(len(hashes) + 1, np.int64)
    cursor = _ZERO
    for feature in range(len(hashes)):
        start, stop, target = starts[feature], stops[feature], hashes[feature]
        most = cursor + 2 * (stop - start) + 2
        if most > len(out):
            out = _grown(out, most + len(out) // 2)
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
