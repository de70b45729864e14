"""Kernels that look at the features of all rows, column by column, in one pass over the rows."""

from __future__ import annotations

import numpy as np

from hinet.compiled import kernel
from hinet.engine.random_kernels import scrambled


@kernel
def column_digests(rows, features):
    """Return a digest of each column, the same for columns of the same values in the same rows, and its length."""
    digests, counts = np.zeros(features, np.uint64), np.zeros(features, np.int64)
    bits = rows.data.view(np.uint32)
    for row in range(len(rows.indptr) - 1):
        salt = scrambled(row)
        for entry in range(rows.indptr[row], rows.indptr[row + 1]):
            digests[rows.indices[entry]] += salt * (np.uint64(2) * np.uint64(bits[entry]) + np.uint64(1))
            counts[rows.indices[entry]] += 1
    return digests, counts


@kernel
def mean_sizes(rows, known_as):
    """Return the mean size of each feature, by the number it is known by, over the rows where it is not zero."""
    sums, counts = np.zeros(len(known_as)), np.zeros(len(known_as), np.int64)
    for entry in range(len(rows.indices)):
        known = known_as[rows.indices[entry]]
        sums[known] += abs(rows.data[entry])
        counts[known] += 1
    return sums / np.maximum(counts, 1)
