"""Kernels from UTF-8 bytes to sums of token vectors.

A word is looked up with the next one as a pair, then by itself, then in pieces: the longest piece that it starts with,
then the longest that the rest goes on with. Pieces that start a word and pieces that go on with one have hashes of
their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.data.text.hashing_kernels import SEED, WORD, character, finished, joined, longest_row, stepped

WITHIN = np.uint64(0x5851F42D4C957F2D)  # the hash of nothing, for pieces within a word
LONGEST_PIECE = 32  # characters


class TokenTable(NamedTuple):
    """Vectors by the hash of their token; those whose hash starts with the bits b are ``runs[b]:runs[b + 1]``."""

    hashes: Any  # (tokens,) rising
    runs: Any
    shift: Any
    vectors: Any  # (tokens, width) of 8 bits
    scale: Any  # (tokens,)
    has_pairs: Any


@inlined
def find_token(value, table):
    """Return the token of a hash, or -1."""
    bits = np.int64(value >> table.shift)
    for token in range(table.runs[bits], table.runs[bits + 1]):
        if table.hashes[token] == value:
            return token
    return np.int64(-1)


@inlined
def pair_hash(first, second):
    """Return the hash of two words, by theirs."""
    return finished(stepped(stepped(SEED, first), second))


@inlined
def read_words(text, start, stop, classes, codes, begins, words):
    """Write the characters of a row's words, where each word begins among them, and its hash; return their number."""
    count, length, inside = 0, 0, False
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
                begins[count] = length
            state = joined(state, np.uint64(code))
            codes[length] = np.uint64(code)
            length += 1
        elif inside:
            inside = False
            words[count] = finished(state)
            count += 1
        at += width
    if inside:
        words[count] = finished(state)
        count += 1
    begins[count] = length
    return count


@inlined
def add_vector(token, table, sums, row):
    """Add the vector of a token to the sum of a row."""
    scale = table.scale[token]
    for column in range(sums.shape[1]):
        sums[row, column] += scale * np.float32(table.vectors[token, column])


@inlined
def add_pieces(codes, begin, end, table, sums, row):
    """Add the vectors of the pieces of a word; characters that start none are passed over."""
    at = begin
    while at < end:
        state = SEED if at == begin else WITHIN
        found, after = np.int64(-1), at + 1
        for last in range(at, min(end, at + LONGEST_PIECE)):
            state = joined(state, codes[last])
            token = find_token(finished(state), table)
            if token >= 0:
                found, after = token, last + 1
        if found >= 0:
            add_vector(found, table, sums, row)
        at = after


def _steps_of_sums(text, offsets, classes, table):
    return 40 * len(text) + len(text) * table.vectors.shape[1] // 4


@kernel(steps=_steps_of_sums)
def token_sums(text, offsets, classes, table):
    """Return the sum of the vectors of the tokens of each row, (n, width)."""
    rows = len(offsets) - 1
    most = longest_row(offsets) + 1
    codes, begins, words = np.empty(most, np.uint64), np.empty(most + 1, np.int64), np.empty(most, np.uint64)
    sums = np.zeros((rows, table.vectors.shape[1]), np.float32)
    for row in range(rows):
        count = read_words(text, offsets[row], offsets[row + 1], classes, codes, begins, words)
        word = 0
        while word < count:
            token = np.int64(-1)
            if table.has_pairs and word + 1 < count:
                token = find_token(pair_hash(words[word], words[word + 1]), table)
                if token >= 0:
                    word += 1
            if token < 0:
                token = find_token(words[word], table)
            if token >= 0:
                add_vector(token, table, sums, row)
            else:
                add_pieces(codes, begins[word], begins[word + 1], table, sums, row)
            word += 1
    return sums


@kernel
def token_hashes(text, offsets, classes, within):
    """Return the hash of each row as a token: of one word or two, or of a piece that goes on with a word."""
    rows = len(offsets) - 1
    most = longest_row(offsets) + 1
    codes, begins, words = np.empty(most, np.uint64), np.empty(most + 1, np.int64), np.empty(most, np.uint64)
    hashes, counts = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
    for row in range(rows):
        count = read_words(text, offsets[row], offsets[row + 1], classes, codes, begins, words)
        counts[row] = count
        if within[row] and count == 1:
            state = WITHIN
            for at in range(begins[0], begins[1]):
                state = joined(state, codes[at])
            hashes[row] = finished(state)
        elif count == 1:
            hashes[row] = words[0]
        elif count == 2 and not within[row]:
            hashes[row] = pair_hash(words[0], words[1])
    return hashes, counts
