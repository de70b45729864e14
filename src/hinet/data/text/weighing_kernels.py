"""Kernels from n-grams to weighted rows of features: count n-grams over rows, find features by hash, weigh them."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined, kernel
from hinet.data.text.hashing_kernels import ZERO, Grams, Hashes, Ints32, Ints64, longest_row

Floats: TypeAlias = NDArray[np.float32]

_COMMON_TIMES = 64
_SUBLINEAR = (1 + np.log(np.maximum(np.arange(_COMMON_TIMES), 1))).astype(np.float32)


class Lookup(NamedTuple):
    """Features by hash, and their weights; without ``runs``, the number of a feature is the highest bits of a hash."""

    hashes: Hashes  # (features,), ascending
    runs: Ints32  # the features whose hash starts with the bits b are runs[b] to runs[b + 1]
    shift: np.uint64
    idf: Floats  # (features,), 0 where a feature is not used


@kernel
def count_runs(ascending: Hashes) -> Any:
    """Return the distinct hashes of an ascending array, and the count of each."""
    distinct = 0
    for index in range(len(ascending)):
        distinct += index == 0 or ascending[index] != ascending[index - 1]
    hashes, times = np.empty(distinct, np.uint64), np.zeros(distinct, np.int32)
    last = -1
    for index in range(len(ascending)):
        if index == 0 or ascending[index] != ascending[index - 1]:
            last += 1
            hashes[last] = ascending[index]
        times[last] += 1
    return hashes, times


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


@kernel
def row_buckets(offsets: Ints64, hashes: Hashes, shift: Any) -> Any:
    """Return the highest bits of the hashes, each value once per row."""
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
