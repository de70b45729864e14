"""Kernels for logarithms of probabilities, for columns of rows, and for numbers that look random."""

from __future__ import annotations

import numpy as np

from hinet.compiled import inlined, kernel

F4 = np.float32
MIX = np.uint64(0x9E3779B97F4A7C15)
RARE = -15.0  # largest logit for which two options at once are too improbable for single precision


@inlined
def pooled(scores, first, last):
    """Return the log-sum-exp of ``scores[first:last]``."""
    top, total = largest(scores, first, last), F4(0)
    for index in range(first, last):
        total += np.exp(scores[index] - top)
    return top + np.log(total)


@inlined
def sum_of_softplus(logits, first, last):
    """Return minus the log probability that none of the independent options ``first:last`` is taken."""
    total = F4(0)
    for option in range(first, last):
        total += max(logits[option], F4(0)) + np.log1p(np.exp(-abs(logits[option])))
    return total


@inlined
def log_some(logits, first, last):
    """Return the log probability that at least one of the independent options ``first:last`` is taken."""
    if largest(logits, first, last) < RARE:
        return pooled(logits, first, last)
    return np.log(-np.expm1(-sum_of_softplus(logits, first, last)))


@inlined
def largest(values, first, last):
    """Return the largest of ``values[first:last]``."""
    top = values[first]
    for index in range(first + 1, last):
        top = max(top, values[index])
    return top


@inlined
def log_chances(logits, size, exhaustive):
    """Turn the first ``size`` logits into log probabilities, given that one applies if they are exhaustive."""
    shift = log_some(logits, 0, size) if exhaustive else F4(0)
    for option in range(size):
        logit = logits[option]
        log_p = min(logit, F4(0)) - np.log1p(np.exp(-abs(logit)))
        logits[option] = min(log_p - shift, F4(0))


@inlined
def log_options(neuron, groups, logits):
    """Turn the logits of a group into log probabilities; the option of a group without a choice is certain."""
    size = groups.first_row[neuron + 1] - groups.first_row[neuron]
    if size == 0:
        logits[0] = 0
    elif groups.several:
        log_chances(logits, size, groups.exhaustive[neuron])
    else:
        shift = pooled(logits, 0, size)
        for option in range(size):
            logits[option] -= shift


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


@inlined
def scrambled(number):
    """Return 64 pseudo-random bits for a non-negative number."""
    mixed = np.uint64(number + 1) * MIX
    return (mixed ^ (mixed >> np.uint64(29))) * MIX


@inlined
def random_offset(number, count):
    """Return a pseudo-random offset below ``count`` for a number."""
    return np.int64((scrambled(number) >> np.uint64(20)) % np.uint64(count))
