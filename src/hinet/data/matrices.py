"""Matrices of features, validated once before kernels use them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from hinet.errors import HiNetError, counted, format_value
from hinet.ragged import gather, offsets_of

MAX_FEATURES = np.iinfo(np.int32).max  # kernels use 32-bit feature numbers
MIN_WEIGHT = 1e-6  # largest weights below this, or above its inverse, are scaled in any case
LEVELS = 127  # largest 8-bit integer of a quantised row
MIN_PEAK = 1e-30  # rows without a larger value become zero
_LEVEL_BITS = 7  # bits that a scale leaves for the product
_CHUNK_VALUES = 1 << 17  # values per chunk, which fit a processor's cache

_KERNEL_FLAGS: Final = ("C", "A", "W")  # kernels would be compiled again for other arrays, such as read-only ones
_REBUILD = "the CSR matrix is damaged; rebuild it"


@dataclass(frozen=True, eq=False)
class MixedRows:
    """Rows of a CSR matrix with dense columns, which are numbered after the sparse ones.

    ``unknown`` is the share of the n-grams of each text that are not features.
    """

    sparse: Any  # SciPy CSR, (n, s)
    dense: NDArray[np.float32]  # (n, d)
    unknown: NDArray[np.float32] | None = None  # (n,)

    def __post_init__(self) -> None:
        if self.sparse.shape[0] != len(self.dense):
            raise HiNetError(
                f"{self.sparse.shape[0]:,} sparse rows and {len(self.dense):,} dense ones; give as many of both"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of columns, ``s + d``."""
        return self.sparse.shape[0], self.sparse.shape[1] + self.dense.shape[1]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return 2

    def __getitem__(self, rows: Any) -> MixedRows:
        unknown = None if self.unknown is None else self.unknown[rows]
        return MixedRows(self.sparse[rows], self.dense[rows], unknown)

    def features(self) -> Any:
        """Return the features alone: CSR rows if there are no dense columns."""
        return MixedRows(self.sparse, self.dense) if self.dense.shape[1] else self.sparse

    def without_last(self, count: int) -> MixedRows:
        """Return the rows without the last ``count`` columns, which are dense."""
        dense = np.ascontiguousarray(self.dense[:, : self.dense.shape[1] - count])
        return replace(self, dense=dense)

    def tocsr(self) -> Any:
        """Return all columns as one CSR matrix."""
        if not self.dense.shape[1]:
            return self.sparse
        rows = scipy.sparse.hstack([self.sparse, scipy.sparse.csr_array(self.dense)], format="csr")
        return scipy.sparse.csr_array(rows, dtype=np.float32)


class SparseMatrix(NamedTuple):
    """A CSR matrix as arrays for kernels, with dense columns; the features of a row are sorted."""

    indptr: NDArray[np.int64]  # (n + 1,)
    indices: NDArray[np.int32]  # (nnz,)
    data: NDArray[np.float32]  # (nnz,)
    dense: NDArray[np.float32]  # (n, d) columns whose numbers are the last ones
    near_label: NDArray[np.int32] = np.zeros((0, 0), np.int32)  # (n, k) labels most like each row, ascending
    near_score: NDArray[np.float32] = np.zeros((0, 0), np.float32)  # (n, k)

    @classmethod
    def of(cls, rows: Any) -> SparseMatrix:
        """Convert a SciPy CSR matrix or MixedRows, without a copy where possible.

        Raises
        ------
        HiNetError
            If it is not a CSR matrix of finite numbers, or its arrays are inconsistent; names the row.
        """
        if isinstance(rows, MixedRows):
            _check_dense(rows.dense)
            return cls.of(rows.sparse)._replace(dense=_as_float(rows.dense))
        indptr, indices, data, is_sorted = _valid_arrays(rows)
        if not is_sorted:
            canonical = scipy.sparse.csr_array((data, indices, indptr), shape=rows.shape, copy=True)
            canonical.has_canonical_format = False
            canonical.sum_duplicates()
            return cls.of(canonical)  # validated again, as a sum may be infinite
        nothing = np.zeros((rows.shape[0], 0), np.float32)
        return cls(indptr, indices.astype(np.int32, copy=False), data, nothing)

    @property
    def mean_features(self) -> float:
        """Average number of sparse features per row."""
        return len(self.indices) / max(self.row_count, 1)

    def take(self, rows: NDArray[np.int64]) -> SparseMatrix:
        """Return the chosen rows."""
        entries, lengths = gather(np.arange(len(self.indices)), self.indptr, rows)
        return SparseMatrix(
            offsets_of(lengths),
            self.indices[entries],
            self.data[entries],
            self.dense[rows],
            self.near_label[rows] if len(self.near_label) else self.near_label,
            self.near_score[rows] if len(self.near_score) else self.near_score,
        )

    def without_last(self, columns: int, count: int) -> SparseMatrix:
        """Return rows of ``columns`` features without the last ``count``, which are dense or, in kept rows, sparse."""
        dense = self.dense.shape[1]
        if 0 < dense < count:
            raise HiNetError(f"rows have {dense:,} dense columns, and the model compares {count:,}")
        if dense >= count:
            return self._replace(dense=np.ascontiguousarray(self.dense[:, : dense - count]))
        kept = self.indices < columns - count
        if kept.all():
            return self
        row = np.repeat(np.arange(self.row_count), np.diff(self.indptr))[kept]
        indptr = offsets_of(np.bincount(row, minlength=self.row_count))
        return self._replace(indptr=indptr, indices=self.indices[kept], data=self.data[kept])

    def entries(self, columns: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return all features and values of a matrix with one row and this many ``columns``."""
        dense = np.arange(columns - self.dense.shape[1], columns)
        values = np.concatenate([self.data, self.dense.ravel()]).astype(np.float64)
        return np.concatenate([self.indices.astype(np.int64), dense]), values

    def block(self, start: int, end: int) -> SparseMatrix:
        """Return the rows from ``start`` to ``end``, without a copy."""
        low, high = self.indptr[start], self.indptr[end]
        return SparseMatrix(
            self.indptr[start : end + 1] - low,
            self.indices[low:high],
            self.data[low:high],
            self.dense[start:end],
            self.near_label[start:end],
            self.near_score[start:end],
        )

    @property
    def row_count(self) -> int:
        """Number of rows, ``n``."""
        return len(self.indptr) - 1


def without_unseen(held_out: Any, seen: NDArray[np.bool_], words: int) -> MixedRows:
    """Return held-out rows as those of later texts: features that no training row has, ``~seen``, are unknown.

    The first ``words`` features are word n-grams; their unknown share counts as that of the text.
    """
    rows, dense = (held_out.sparse, held_out.dense) if isinstance(held_out, MixedRows) else (held_out, None)
    count = rows.shape[0]
    row, known, word = np.repeat(np.arange(count), np.diff(rows.indptr)), seen[rows.indices], rows.indices < words
    of_words, known_words, left = (np.bincount(row[chosen], minlength=count) for chosen in (word, word & known, known))
    unknown = np.where(of_words, 1 - known_words / np.maximum(of_words, 1), 0).astype(np.float32)
    square, kept_square = (np.bincount(row, weight, count) for weight in (rows.data**2, rows.data**2 * known))
    scale = np.sqrt(square / np.maximum(kept_square, 1e-12)).astype(np.float32)  # rows keep their length
    kept = scipy.sparse.csr_array(((rows.data * scale[row])[known], rows.indices[known], offsets_of(left)), rows.shape)
    return MixedRows(kept, np.zeros((count, 0), np.float32) if dense is None else dense, unknown)


def seen_features(rows: Any) -> NDArray[np.bool_]:
    """Return whether any row has each sparse feature."""
    sparse = rows.sparse if isinstance(rows, MixedRows) else rows
    return np.bincount(sparse.indices, minlength=sparse.shape[1]) > 0


def unit_rows(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows of length 1; a row of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32, copy=False)


def is_sparse(rows: Any) -> bool:
    """Return whether rows are a SciPy sparse matrix or array."""
    return bool(scipy.sparse.issparse(rows))


def is_for_kernels(rows: Any) -> bool:
    """Return whether kernels can read the rows: sparse ones, with or without dense columns."""
    return is_sparse(rows) or isinstance(rows, MixedRows)


def check_rows(rows: Any, expected: int | None = None) -> None:
    """Raise HiNetError for a wrong number of rows, or values that are not finite."""
    if is_sparse(rows):
        _valid_arrays(rows)
    else:
        _check_dense(rows)
    if expected is not None:
        check_count(rows.shape[0], expected)


def check_count(rows: int, labels: int) -> None:
    """Raise HiNetError unless there are as many rows of features as of labels."""
    if rows != labels:
        raise HiNetError(
            f"{counted(rows, 'row')} of features and {counted(labels, 'row')} of labels; give one label per row"
        )


def as_csr(rows: Any) -> Any:
    """Return a SciPy sparse matrix of any format as a valid CSR matrix, or raise HiNetError."""
    try:
        if rows.format in ("csc", "bsr", "coo"):  # SciPy converts these without a check
            _check_convertible(rows)
        if rows.ndim == 2 and rows.format != "csr":
            rows = rows.tocsr()
    except (ValueError, TypeError, IndexError) as error:
        raise HiNetError(f"the {rows.format.upper()} matrix is damaged: {error}; rebuild it") from None
    check_rows(rows)
    return rows


def _check_convertible(rows: Any) -> None:
    if rows.format != "coo":
        rows.check_format(full_check=True)
        return
    for axis, (coordinates, size) in enumerate(zip(rows.coords, rows.shape, strict=True)):
        if len(coordinates) != len(rows.data):
            raise ValueError(f"{len(coordinates):,} coordinates on axis {axis} for {len(rows.data):,} values")
        if len(coordinates) and not 0 <= coordinates.min() <= coordinates.max() < size:
            raise ValueError(
                f"coordinates on axis {axis} are from {coordinates.min()} to {coordinates.max()}, its size is {size:,}"
            )


def _check_dense(rows: Any) -> None:
    if getattr(rows, "ndim", 0) != 2:
        raise HiNetError(f"expected a CSR matrix or a 2-D array of features, got {type(rows).__name__}")
    values = _as_float(np.asarray(rows)).ravel()
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        row, column = divmod(int(bad[0]), rows.shape[1])
        _refuse_value(row, column, np.asarray(rows)[row, column])


def _as_float(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as float32, as the engines use them."""
    if values.dtype.kind not in "biuf":
        raise HiNetError(f"expected features that are real numbers, got values of type {values.dtype}; convert them")
    with np.errstate(over="ignore"):  # values too large for float32 become infinite
        return np.require(values, np.float32, _KERNEL_FLAGS)


def _valid_arrays(rows: Any) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float32], bool]:
    """Return offsets, feature numbers and values of a CSR matrix, and whether the features of each row are ascending.

    Raises
    ------
    HiNetError
        If it is not a CSR matrix, or its arrays are invalid.
    """
    if rows.format != "csr":
        raise HiNetError(f"expected a CSR matrix, got {rows.format.upper()}; convert it with .tocsr()")
    if rows.ndim != 2:
        raise HiNetError(f"expected a CSR matrix of two axes, got {rows.ndim}; reshape it to (rows, features)")
    if rows.shape[1] > MAX_FEATURES:
        raise HiNetError(f"{rows.shape[1]:,} features, at most {MAX_FEATURES:,} are possible; renumber or hash them")
    indptr, indices, data = rows.indptr, rows.indices, rows.data
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise HiNetError(f"indptr is of type {indptr.dtype} and indices of {indices.dtype}, not integers; {_REBUILD}")
    if indptr.shape != (rows.shape[0] + 1,):
        raise HiNetError(f"indptr has shape {indptr.shape} for {rows.shape[0]:,} rows, expected one more; {_REBUILD}")
    if indices.ndim != 1 or indices.shape != data.shape:
        raise HiNetError(f"indices have shape {indices.shape} and values {data.shape}, not the same; {_REBUILD}")
    offsets = np.require(indptr, np.int64, _KERNEL_FLAGS)
    end = min(max(int(offsets[-1]), 0), len(indices))  # SciPy allows unused elements after it
    if end < len(indices):
        indices, data = indices[:end], data[:end]
    kind = np.int32 if indices.dtype == np.int32 else np.int64
    arrays = offsets, np.require(indices, kind, _KERNEL_FLAGS), _as_float(data)
    return *arrays, _check_values(rows, *arrays)


def _check_values(rows: Any, indptr: NDArray[np.int64], indices: NDArray[Any], data: NDArray[np.float32]) -> bool:
    """Return whether the features of each row are ascending; raise HiNetError for an invalid value."""
    stored, features = len(rows.indices), rows.shape[1]
    falls = indptr[1:] < indptr[:-1]  # a difference could overflow
    if indptr[0] != 0 or indptr[-1] > stored or falls.any():
        entry = int(np.append(indptr[0] != 0, falls | (indptr[1:] > stored)).argmax())
        context = f"after {indptr[entry - 1]}" if entry else "at the start"
        raise HiNetError(
            f"row {max(entry - 1, 0)}: indptr is {indptr[entry]} {context}, of {stored:,} stored values; {_REBUILD}"
        )
    if len(indices) and not 0 <= indices.min() <= indices.max() < features:
        entry, row = _first(indptr, (indices < 0) | (indices >= features))
        raise HiNetError(f"row {row}: feature {indices[entry]} is not one of {features:,}; {_REBUILD}")
    finite = np.isfinite(data)
    if not finite.all():
        entry, row = _first(indptr, ~finite)
        _refuse_value(row, int(indices[entry]), rows.data[entry])
    ascends = indices[1:] > indices[:-1]
    starts = indptr[1:-1]
    ascends[starts[(starts > 0) & (starts < len(indices))] - 1] = True  # features may descend at the start of a row
    return bool(ascends.all())


def _first(indptr: NDArray[np.int64], invalid: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first invalid entry and its row."""
    entry = int(invalid.argmax())
    return entry, int(np.searchsorted(indptr, entry, side="right")) - 1


def _refuse_value(row: int, column: int, value: Any) -> NoReturn:
    raise HiNetError(f"row {row}: feature {column} is {value}; replace missing and infinite values")


def check_weights(weights: Any, rows: int, first: int = 0) -> NDArray[np.float64]:
    """Return one finite, non-negative weight per row, or raise HiNetError, which numbers rows from ``first``."""
    try:
        array = np.asarray(weights)
        weights_array = np.asarray(array.tolist() if array.dtype.kind in "cO" else array, np.float64)
    except (TypeError, ValueError):
        raise HiNetError(f"sample_weight: expected one number per row, got {format_value(weights)}") from None
    if weights_array.shape != (rows,):
        raise HiNetError(f"{rows:,} rows and sample weights of shape {weights_array.shape}; give one weight per row")
    bad = np.flatnonzero(~(np.isfinite(weights_array) & (weights_array >= 0)))
    if len(bad):
        raise HiNetError(
            f"row {first + int(bad[0])}: sample weight {weights_array[bad[0]]}; weights are finite and not negative"
        )
    return weights_array


def validate_weights(weights: Any, rows: int, *, scaled: bool = True) -> NDArray[np.float64]:
    """Return one finite, non-negative weight per row, or raise HiNetError; positive ones are ``scaled`` to mean 1.

    So only their ratios count, and weights such as 1e-300 do not vanish in single precision.
    """
    weights_array = check_weights(weights, rows)
    if not rows:
        return weights_array
    if not weights_array.any():
        raise HiNetError("all sample weights are zero; give at least one row a positive weight")
    if not scaled and MIN_WEIGHT <= weights_array.max() <= 1 / MIN_WEIGHT:
        return weights_array
    relative = weights_array / weights_array.max()
    return np.asarray(relative / relative[relative > 0].mean(), np.float64)


def quantise_rows(values: NDArray[np.floating[Any]]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return rows as 8-bit integers, and the scale of each row.

    >>> quantise_rows(np.array([[127, -63.6], [0, 0]], np.float32))[0].tolist()
    [[127, -64], [0, 0]]
    """
    levels = np.empty(values.shape, np.int8)
    scale = np.ones(len(values), np.float32)
    step = max(1, _CHUNK_VALUES // max(values.shape[1], 1))
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        chunk = values[rows].astype(np.float32, copy=False)
        peak = np.abs(chunk).max(1, initial=0)
        filled = peak > MIN_PEAK
        scale[rows][filled] = _rounded_up(peak[filled] / np.float32(LEVELS))
        levels[rows] = np.rint(chunk / scale[rows, None])
    return levels, scale


def float_rows(values: NDArray[Any], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return rows in single precision, given their scales."""
    fractions = values.astype(np.float32)
    if values.dtype == np.int8:
        fractions *= scale[:, None]
    return fractions


def _rounded_up(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round up to the next numbers whose last bits of the fraction are zero."""
    low = np.uint32((1 << _LEVEL_BITS) - 1)
    return ((scale.view(np.uint32) + low) & ~low).view(np.float32)
