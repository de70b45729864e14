"""How much the features of rows repeat each other.

Character n-grams do: those of a rare word are found in the same rows, as often, and so have the same values. Rows of
such features have many to spare, and an expert learns not to rely on single ones if some are dropped at random. Where
every word counts, the same costs accuracy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.column_kernels import column_digests, merge_columns

LEAST_ROWS = 1_000  # in fewer, columns are equal by chance
LEAST_FEATURES = 32  # of a row, on average, that can spare some
LEAST_REPEATED = 0.2  # of all values; of words and pairs of words an eighth at most, of character n-grams a quarter


def repeated_share(rows: SparseMatrix, features: int) -> float:
    """Return the share of all values in columns that equal another; columns of a single value do not count."""
    digests, counts = column_digests(rows, features)
    digests, counts = digests[counts > 1], counts[counts > 1]
    _, place, columns = np.unique(digests, return_inverse=True, return_counts=True)
    return float(counts[columns[place] > 1].sum() / max(len(rows.indices), 1))


def merged_columns(rows: SparseMatrix, features: int) -> NDArray[np.int32]:
    """Return a number for each column, the same for columns that are equal; in the order of their first ones."""
    digests, _ = column_digests(rows, features)
    _, first, place = np.unique(digests, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[place]


def with_merged(rows: SparseMatrix, numbers: NDArray[np.int32], count: int) -> SparseMatrix:
    """Return rows whose columns are numbered anew, below ``count``, those of one number summed; they are not sorted."""
    return SparseMatrix(*merge_columns(rows, numbers, count))


def has_features_to_spare(rows: SparseMatrix, features: int) -> bool:
    """Return whether many rows have many features that repeat each other."""
    many = rows.row_count >= LEAST_ROWS and len(rows.indices) >= LEAST_FEATURES * rows.row_count
    return many and repeated_share(rows, features) >= LEAST_REPEATED
