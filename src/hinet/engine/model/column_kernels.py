"""Kernels on the columns of rows, and numbers that look random."""

from __future__ import annotations

import numpy as np

from hinet.compiled import inlined, kernel

MIX = np.uint64(0x9E3779B97F4A7C15)


@kernel
def column_digests(rows, features):
    """Return a digest of each column, equal for equal columns, and its number of values."""
    digests, counts = np.zeros(features, np.uint64), np.zeros(features, np.int64)
    bits = rows.data.view(np.uint32)
    for row in range(len(rows.indptr) - 1):
        salt = scrambled(row)
        for entry in range(rows.indptr[row], rows.indptr[row + 1]):
            digests[rows.indices[entry]] += salt * (np.uint64(2) * np.uint64(bits[entry]) + np.uint64(1))
            counts[rows.indices[entry]] += 1
    return digests, counts


def _steps_of_merging(rows, number, count):
    return len(rows.indptr) + 4 * len(rows.indices)


@kernel(steps=_steps_of_merging)
def merge_columns(rows, number, count):
    """Return the arrays of rows with ``count`` renumbered columns; columns with the same number are summed."""
    last_index = np.full(count, -1, np.int64)  # last entry of a number; before the current row if it has none
    indptr = np.zeros(len(rows.indptr), np.int64)
    indices, data = np.empty(len(rows.indices), np.int32), np.empty(len(rows.indices), np.float32)
    filled = 0
    for row in range(len(rows.indptr) - 1):
        for entry in range(rows.indptr[row], rows.indptr[row + 1]):
            new = number[rows.indices[entry]]
            if last_index[new] >= indptr[row]:
                data[last_index[new]] += rows.data[entry]
            else:
                last_index[new], indices[filled], data[filled] = filled, new, rows.data[entry]
                filled += 1
        indptr[row + 1] = filled
    return indptr, indices[:filled], data[:filled]


@kernel
def mean_sizes(rows, feature_rank):
    """Return the mean absolute value of each feature, by its rank, over the rows where it is not zero."""
    sums, counts = np.zeros(len(feature_rank)), np.zeros(len(feature_rank), np.int64)
    for entry in range(len(rows.indices)):
        known = feature_rank[rows.indices[entry]]
        sums[known] += abs(rows.data[entry])
        counts[known] += 1
    return sums / np.maximum(counts, 1)


@inlined
def scrambled(number):
    """Return 64 pseudo-random bits for a non-negative number."""
    mixed = np.uint64(number + 1) * MIX
    return (mixed ^ (mixed >> np.uint64(29))) * MIX


@inlined
def random_offset(number, count):
    """Return a pseudo-random offset below ``count`` for a number."""
    return np.int64((scrambled(number) >> np.uint64(20)) % np.uint64(count))
