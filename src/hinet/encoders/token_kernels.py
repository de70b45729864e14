"""Kernels from UTF-8 bytes to sums of token vectors.

A word is looked up with the next one as a pair, then by itself, then in pieces. Pieces that start a word and pieces
that continue one have different hashes. Without an order of merges, the first piece is the longest at the start of the
word, the next is the longest at the start of the rest, and so on. With one, pieces are those of byte-pair encoding:
neighbours are merged, starting with characters, as long as a merged pair is a token; the first token in order goes
first.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.data.text.ngram_kernels import LETTER, SEED, SINGLE, character, finished, joined, longest_row, stepped

WITHIN = np.uint64(0x5851F42D4C957F2D)  # initial hash of pieces that continue a word
MAX_PIECE = 32  # characters
MAX_MERGED = 128  # characters of a word that are merged at a time, as the steps grow with their square
NEVER = np.int32(2**31 - 1)  # order of a pair that is not merged


class TokenTable(NamedTuple):
    """Vectors by the hash of their token; hashes that start with the bits b are at ``runs[b]:runs[b + 1]``."""

    hashes: Any  # (tokens,) ascending
    runs: Any
    shift: Any
    vectors: Any  # (tokens, width) in 8 bits
    scale: Any  # (tokens,)
    has_pairs: Any
    merges: Any  # (tokens,) order in which pairs of pieces are merged to tokens; (0,) if pieces are the longest ones


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
    """Return the hash of a pair of words, from their hashes."""
    return finished(stepped(stepped(SEED, first), second))


@inlined
def read_words(text, start, stop, classes, codes, begins, words):
    """Write the characters of the words of a row, and the start and hash of each word; return the number of words."""
    count, length, inside = 0, 0, False
    state = SEED
    position = start
    while position < stop:
        code, width = np.int64(text[position]), 1
        if code >= 0x80:
            code, width = character(text, position)
        if LETTER <= classes[code] <= SINGLE:
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
        position += width
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
    """Add the vectors of the pieces of a word; skip characters that start no known piece."""
    first = begin
    while first < end:
        state = SEED if first == begin else WITHIN
        longest, after = np.int64(-1), first + 1
        for last in range(first, min(end, first + MAX_PIECE)):
            state = joined(state, codes[last])
            token = find_token(finished(state), table)
            if token >= 0:
                longest, after = token, last + 1
        if longest >= 0:
            add_vector(longest, table, sums, row)
        first = after


@inlined
def find_piece(codes, first, last, starts, table):
    """Return the token of characters that start or continue a word, or -1."""
    if first == last or last - first > MAX_PIECE:
        return np.int64(-1)
    state = SEED if starts else WITHIN
    for index in range(first, last):
        state = joined(state, codes[index])
    return find_token(finished(state), table)


@inlined
def merge_order(codes, first, last, starts, table):
    """Return the order in which pieces are merged to this one."""
    token = find_piece(codes, first, last, starts, table)
    return NEVER if token < 0 else table.merges[token]


@inlined
def merge_pieces(codes, start, stop, starts, table, cuts, orders):
    """Write where the pieces of characters begin, and their end; return the number of pieces.

    If the characters start a word, the first piece is the mark of its start, which is empty until it is merged.
    """
    count = 0
    if starts:
        cuts[0] = start
        count = 1
    for index in range(start, stop):
        cuts[count] = index
        count += 1
    cuts[count] = stop
    for piece in range(count - 1):
        orders[piece] = merge_order(codes, cuts[piece], cuts[piece + 2], starts and piece == 0, table)
    while True:
        best = 0
        for piece in range(1, count - 1):
            if orders[piece] < orders[best]:
                best = piece
        if count < 2 or orders[best] == NEVER:
            return count
        count -= 1
        for piece in range(best + 1, count):
            cuts[piece] = cuts[piece + 1]
            orders[piece] = orders[piece + 1]
        cuts[count] = stop
        for piece in range(max(best - 1, 0), min(best + 1, count - 1)):
            orders[piece] = merge_order(codes, cuts[piece], cuts[piece + 2], starts and piece == 0, table)


@inlined
def add_merged_pieces(codes, begin, end, table, cuts, orders, sums, row):
    """Add the vectors of the pieces of a word that its characters are merged to; skip pieces without a vector."""
    for start in range(begin, end, MAX_MERGED):
        count = merge_pieces(codes, start, min(end, start + MAX_MERGED), start == begin, table, cuts, orders)
        for piece in range(count):
            token = find_piece(codes, cuts[piece], cuts[piece + 1], start == begin and piece == 0, table)
            if token >= 0:
                add_vector(token, table, sums, row)


def _steps_of_sums(text, offsets, classes, table):
    return (40 if len(table.merges) == 0 else 80) * len(text) + len(text) * table.vectors.shape[1] // 4


@kernel(steps=_steps_of_sums)
def token_sums(text, offsets, classes, table):
    """Return the sum of the token vectors of each row, (n, width)."""
    rows = len(offsets) - 1
    size = longest_row(offsets) + 1
    codes, begins, words = np.empty(size, np.uint64), np.empty(size + 1, np.int64), np.empty(size, np.uint64)
    sums = np.zeros((rows, table.vectors.shape[1]), np.float32)
    cuts, orders = np.empty(MAX_MERGED + 2, np.int64), np.empty(MAX_MERGED + 2, np.int32)
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
            elif len(table.merges) == 0:
                add_pieces(codes, begins[word], begins[word + 1], table, sums, row)
            else:
                add_merged_pieces(codes, begins[word], begins[word + 1], table, cuts, orders, sums, row)
            word += 1
    return sums


@kernel
def token_hashes(text, offsets, classes, within):
    """Return the hash of each row as a token (a word, a pair, or a piece that continues a word), and its words."""
    rows = len(offsets) - 1
    size = longest_row(offsets) + 1
    codes, begins, words = np.empty(size, np.uint64), np.empty(size + 1, np.int64), np.empty(size, np.uint64)
    hashes, counts = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
    for row in range(rows):
        count = read_words(text, offsets[row], offsets[row + 1], classes, codes, begins, words)
        counts[row] = count
        if within[row] and count == 1:
            state = WITHIN
            for index in range(begins[0], begins[1]):
                state = joined(state, codes[index])
            hashes[row] = finished(state)
        elif count == 1:
            hashes[row] = words[0]
        elif count == 2 and not within[row]:
            hashes[row] = pair_hash(words[0], words[1])
    return hashes, counts
