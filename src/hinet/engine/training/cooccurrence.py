"""Which features go with which outputs, and which with each other.

Character n-grams repeat each other: those of a rare word are found in the same rows, as often, and so have the same
values. Rows of such features have many to spare, and an expert learns not to rely on single ones if some are dropped at
random. Where every word counts, the same costs accuracy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.column_kernels import MIX, column_digests
from hinet.engine.model.experts import Prototypes
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.targets import Targets

LEAST_ROWS = 1_000  # in fewer, columns are equal by chance
LEAST_FEATURES = 32  # of a row, on average, that can spare some
LEAST_REPEATED = 0.2  # of all values; of words and pairs of words an eighth at most, of character n-grams a quarter


def seen_together(
    rows: SparseMatrix, features: int, targets: Targets, groups: Groups
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the output rows on the way of some training row with each feature: offsets by feature, sorted rows."""
    arrays = targets.arrays
    row_of_option = np.full(len(groups.option_neuron), -1, np.int64)
    row_of_option[groups.row_options()] = np.arange(groups.rows)
    choice_row = row_of_option[targets.choice_options()]
    count = len(arrays.step_offsets) - 1
    target_of_choice = np.repeat(np.arange(count), np.diff(arrays.choice_offsets[arrays.step_offsets]))
    owns = choice_row >= 0
    target_rows = _pattern(target_of_choice[owns], choice_row[owns], (count, groups.rows))
    by_target = _by_target(rows, features, targets)
    pairs = (by_target.T.tocsr() @ target_rows).tocsr()
    pairs.sort_indices()
    return pairs.indptr.astype(np.int64), pairs.indices.astype(np.int32)


def prototypes(
    rows: SparseMatrix, features: int, targets: Targets, spans: LabelSpans, temperature: float
) -> Prototypes:
    """Return the mean row of each label, of length ``temperature``."""
    by_target = _by_target(rows, features, targets, values=True)
    label = spans.labels_at(targets.arrays.end_neurons())  # of each target
    by_label = (_pattern(label, np.arange(len(label)), (len(spans.neuron), len(label))) @ by_target).tocsr()
    row = np.repeat(np.arange(by_label.shape[0]), np.diff(by_label.indptr))
    length = np.sqrt(np.bincount(row, by_label.data**2, by_label.shape[0]))
    scale = temperature / np.maximum(length, 1e-12)
    by_label.data *= scale[row].astype(np.float32)
    by_feature = by_label.T.tocsr()
    by_feature.sort_indices()
    return Prototypes(by_feature.indptr.astype(np.int64), by_feature.indices.astype(np.int32), by_feature.data)


def rank_features(rows: SparseMatrix, features: int, buckets: int | None) -> NDArray[np.int32]:
    """Return a number for each feature, the most frequent first; hashed into ``buckets``, where there are more."""
    hashed = np.arange(features)
    if buckets is not None and buckets < features:
        mixed = np.arange(1, features + 1, dtype=np.uint64) * MIX
        hashed = ((mixed >> np.uint64(32)) % np.uint64(buckets)).astype(np.int64)
    counts = np.bincount(hashed, np.bincount(rows.indices, minlength=features))
    rank = np.empty(len(counts), np.int32)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return rank[hashed]


def _by_target(rows: SparseMatrix, features: int, targets: Targets, *, values: bool = False) -> sp.csr_array:
    """Return the sum of the rows of each target by their shares; without ``values``, how many have each feature."""
    arrays = targets.arrays
    row_of_entry = np.repeat(np.arange(len(targets)), np.diff(arrays.row_offsets))
    data, share = (rows.data, arrays.entry_share) if values else map(np.ones_like, (rows.data, arrays.entry_share))
    shape = len(arrays.step_offsets) - 1, len(targets)
    members = sp.csr_array((share, (arrays.entry_target, row_of_entry)), shape=shape)
    return (members @ sp.csr_array((data, rows.indices, rows.indptr), shape=(len(targets), features))).tocsr()


def _pattern(row: NDArray[np.int64], column: NDArray[np.int64], shape: tuple[int, int]) -> sp.csr_array:
    return sp.csr_array((np.ones(len(row), np.float32), (row, column)), shape=shape)


class ColumnDigests(NamedTuple):
    """A digest of each column of rows, the same for columns that are equal, and how many values it has."""

    digests: NDArray[np.uint64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, rows: SparseMatrix, features: int) -> ColumnDigests:
        """Return the columns of rows."""
        return cls(*column_digests(rows, features))

    def with_block(self, number: int, more: ColumnDigests) -> ColumnDigests:
        """Return the columns of these rows and of the block of this number."""
        salt = np.uint64((2 * number + 1) * int(MIX) % (1 << 64))  # odd, and another one for each block
        return ColumnDigests(self.digests + salt * more.digests, self.counts + more.counts)

    def repeated_share(self) -> float:
        """Return the share of all values in columns that equal another; columns of a single value do not count."""
        digests, counts = self.digests[self.counts > 1], self.counts[self.counts > 1]
        _, inverse, columns = np.unique(digests, return_inverse=True, return_counts=True)
        return float(counts[columns[inverse] > 1].sum() / max(int(self.counts.sum()), 1))

    def merged(self, dense: int) -> NDArray[np.int32]:
        """Return a number for each column, the same for columns that are equal; in the order of their first ones.

        So many dense columns stand after them, no two of which are equal.
        """
        _, first, inverse = np.unique(self.digests, return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int32)
        rank[np.argsort(first)] = np.arange(len(first))
        return np.append(rank[inverse], len(first) + np.arange(dense, dtype=np.int32))


def repeated_share(rows: SparseMatrix, features: int) -> float:
    """Return the share of all values in columns that equal another; columns of a single value do not count."""
    return ColumnDigests.of(rows, features).repeated_share()


def merged_columns(rows: SparseMatrix, features: int) -> NDArray[np.int32]:
    """Return a number for each column, the same for columns that are equal; in the order of their first ones."""
    dense = rows.dense.shape[1]
    return ColumnDigests.of(rows, features - dense).merged(dense)


def may_have_features_to_spare(rows: int, values: int) -> bool:
    """Return whether there are enough rows, with enough values each, to ask whether these repeat each other."""
    return rows >= LEAST_ROWS and values >= LEAST_FEATURES * rows


def has_features_to_spare(rows: SparseMatrix, features: int) -> bool:
    """Return whether many rows have many features that repeat each other."""
    many = may_have_features_to_spare(rows.row_count, len(rows.indices))
    return many and repeated_share(rows, features) >= LEAST_REPEATED
