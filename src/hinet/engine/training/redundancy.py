"""Redundant features: columns that equal each other.

Character n-grams repeat each other: those of a rare word occur in the same rows with the same values. If features are
that redundant, dropping some at random makes an expert rely less on single ones. If every word counts, dropping them
costs accuracy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.column_kernels import MIX, column_digests

MIN_ROWS = 1_000  # columns of fewer rows are equal by chance
MIN_FEATURES = 32  # minimum mean number of features per row
MIN_REPEATED = 0.2  # share of all values; at most 1/8 for words and pairs of words, 1/4 for character n-grams


class ColumnDigests(NamedTuple):
    """Digest and number of values of each column; equal columns have equal digests."""

    digests: NDArray[np.uint64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: SparseMatrix, features: int) -> ColumnDigests:
        """Return the digests of the columns of rows."""
        return cls(*column_digests(rows, features))

    def with_block(self, number: int, more: ColumnDigests) -> ColumnDigests:
        """Return the digests after one more block of rows with this number."""
        salt = np.uint64((2 * number + 1) * int(MIX) % (1 << 64))  # odd, and different for each block
        return ColumnDigests(self.digests + salt * more.digests, self.counts + more.counts)

    def repeated_share(self) -> float:
        """Return the share of values in columns that equal another column; columns with one value do not count."""
        digests, counts = self.digests[self.counts > 1], self.counts[self.counts > 1]
        _, inverse, columns = np.unique(digests, return_inverse=True, return_counts=True)
        return float(counts[columns[inverse] > 1].sum() / max(int(self.counts.sum()), 1))

    def merged(self, dense: int) -> NDArray[np.int32]:
        """Return a number for each column, the same for equal columns, then for ``dense`` distinct columns."""
        _, first, inverse = np.unique(self.digests, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int32)
        rank[np.argsort(first)] = np.arange(len(first))
        return np.append(rank[inverse], len(first) + np.arange(dense, dtype=np.int32))


def repeated_share(rows: SparseMatrix, features: int) -> float:
    """Return the share of values in columns that equal another column; columns with one value do not count."""
    return ColumnDigests.of(rows, features).repeated_share()


def merged_columns(rows: SparseMatrix, features: int) -> NDArray[np.int32]:
    """Return a number for each column, the same for equal columns, in order of first appearance."""
    dense = rows.dense.shape[1]
    return ColumnDigests.of(rows, features - dense).merged(dense)


def may_be_redundant(rows: int, values: int) -> bool:
    """Return whether there are enough rows and values for features to be redundant."""
    return rows >= MIN_ROWS and values >= MIN_FEATURES * rows


def is_redundant(rows: SparseMatrix, features: int) -> bool:
    """Return whether many rows have many redundant features."""
    many = may_be_redundant(rows.row_count, len(rows.indices))
    return many and repeated_share(rows, features) >= MIN_REPEATED
