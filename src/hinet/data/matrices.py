"""Matrices of features: checked once at the border, then one form inside."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, NoReturn

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from hinet.data.matrix_kernels import BAD_FEATURES, BAD_OFFSETS, BAD_VALUES, SORTED, survey
from hinet.errors import HiNetError, described

MOST_FEATURES = np.iinfo(np.int32).max  # kernels number features in 32 bits
_IN_KERNELS: Final = ("C", "A", "W")  # for other arrays, such as read-only ones, every kernel would be compiled anew
_DAMAGED = "the CSR matrix is damaged: build it anew"


class SparseMatrix(NamedTuple):
    """A CSR matrix as the three arrays that kernels read; the features of a row are sorted."""

    indptr: NDArray[np.int64]  # (n + 1,)
    indices: NDArray[np.int32]  # (nnz,)
    data: NDArray[np.float32]  # (nnz,)

    @classmethod
    def of(cls, rows: Any) -> SparseMatrix:
        """Return a SciPy CSR matrix in this form; arrays that have it already are shared.

        Raises
        ------
        HiNetError
            If it is no CSR matrix of finite numbers, or its arrays contradict each other; names the row.
        """
        indptr, indices, data = _arrays_of(rows)
        if _surveyed(rows, indptr, indices, data) != SORTED:
            mended = scipy.sparse.csr_array((data, indices, indptr), shape=rows.shape, copy=True)
            mended.has_canonical_format = False
            mended.sum_duplicates()
            return cls.of(mended)  # a sum may be infinite
        return cls(indptr, indices.astype(np.int32, copy=False), data)

    @property
    def row_count(self) -> int:
        """Number of rows, ``n``."""
        return len(self.indptr) - 1


def is_sparse(rows: Any) -> bool:
    """Return whether rows are a SciPy sparse matrix or array."""
    return bool(scipy.sparse.issparse(rows))


def check_rows(rows: Any, expected: int | None = None) -> None:
    """Raise HiNetError for rows that cannot be used: a wrong number of them, or values that are not finite."""
    if is_sparse(rows):
        _surveyed(rows, *_arrays_of(rows))
    else:
        _check_dense(rows)
    if expected is not None:
        check_count(rows.shape[0], expected)


def check_count(rows: int, labels: int) -> None:
    """Raise HiNetError unless there are as many rows of features as of labels."""
    if rows != labels:
        raise HiNetError(f"{rows:,} rows of features and {labels:,} rows of labels; give one label a row")


def as_csr(rows: Any) -> Any:
    """Return a SciPy sparse matrix of any format as a sound CSR matrix, or raise HiNetError."""
    try:
        if rows.format in ("csc", "bsr", "coo"):  # SciPy converts these without a check of its own
            _check_convertible(rows)
        if rows.ndim == 2 and rows.format != "csr":
            rows = rows.tocsr()
    except (ValueError, TypeError, IndexError) as error:
        raise HiNetError(f"the {rows.format.upper()} matrix is damaged: {error}; build it anew") from None
    check_rows(rows)
    return rows


def _check_convertible(rows: Any) -> None:
    if rows.format != "coo":
        rows.check_format(full_check=True)
        return
    for axis, (places, size) in enumerate(zip(rows.coords, rows.shape, strict=True)):
        if len(places) != len(rows.data):
            raise ValueError(f"{len(places):,} places on axis {axis} for {len(rows.data):,} values")
        if len(places) and not 0 <= places.min() <= places.max() < size:
            raise ValueError(f"places on axis {axis} are from {places.min()} to {places.max()}, its size is {size:,}")


def _check_dense(rows: Any) -> None:
    if getattr(rows, "ndim", 0) != 2:
        raise HiNetError(f"expected a CSR matrix or a 2-D array of features, got {type(rows).__name__}")
    values = _as_float(np.asarray(rows)).ravel()
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        row, column = divmod(int(bad[0]), rows.shape[1])
        _refuse_value(row, column, np.asarray(rows)[row, column])


def _as_float(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as the engines compute with them."""
    if values.dtype.kind not in "biuf":
        raise HiNetError(f"expected features that are real numbers, got values of type {values.dtype}; convert them")
    with np.errstate(over="ignore"):  # what is too large for 32 bits is not finite either
        return np.require(values, np.float32, _IN_KERNELS)


def _arrays_of(rows: Any) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[np.float32]]:
    """Return offsets, feature numbers and values of a CSR matrix, none of them beyond the last offset."""
    if rows.format != "csr":
        raise HiNetError(f"expected a CSR matrix, got {rows.format.upper()}; convert it with .tocsr()")
    if rows.ndim != 2:
        raise HiNetError(f"expected a CSR matrix of two axes, got {rows.ndim}; reshape it to (rows, features)")
    if rows.shape[1] > MOST_FEATURES:
        raise HiNetError(
            f"{rows.shape[1]:,} features, at most {MOST_FEATURES:,} are possible; number or hash them anew"
        )
    indptr, indices, data = rows.indptr, rows.indices, rows.data
    if indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        raise HiNetError(f"indptr is of type {indptr.dtype} and indices of {indices.dtype}, not whole; {_DAMAGED}")
    if indptr.shape != (rows.shape[0] + 1,):
        raise HiNetError(f"indptr has shape {indptr.shape} for {rows.shape[0]:,} rows, one more is right; {_DAMAGED}")
    if indices.ndim != 1 or indices.shape != data.shape:
        raise HiNetError(f"indices have shape {indices.shape} and values {data.shape}, not the same; {_DAMAGED}")
    offsets = np.require(indptr, np.int64, _IN_KERNELS)
    end = min(max(int(offsets[-1]), 0), len(indices))  # SciPy allows room after it
    if end < len(indices):
        indices, data = indices[:end], data[:end]
    kind = np.int32 if indices.dtype == np.int32 else np.int64
    return offsets, np.require(indices, kind, _IN_KERNELS), _as_float(data)


def _surveyed(rows: Any, indptr: NDArray[np.int64], indices: NDArray[Any], data: NDArray[np.float32]) -> int:
    """Return whether the features of all rows are sorted; raise HiNetError for what is wrong with the arrays."""
    found: int = survey(indptr, indices, data, rows.shape[1])
    if found == BAD_OFFSETS:
        stored = len(rows.indices)
        wrong = np.append(indptr[0] != 0, (np.diff(indptr) < 0) | (indptr[1:] > stored))
        at = int(np.flatnonzero(wrong)[0])
        before = f"after {indptr[at - 1]}" if at else "at the start"
        raise HiNetError(
            f"row {max(at - 1, 0)}: indptr is {indptr[at]} {before}, of {stored:,} stored values; {_DAMAGED}"
        )
    if found == BAD_FEATURES:
        at, row = _first(indptr, (indices < 0) | (indices >= rows.shape[1]))
        raise HiNetError(f"row {row}: feature {indices[at]} is not one of {rows.shape[1]:,}; {_DAMAGED}")
    if found == BAD_VALUES:
        at, row = _first(indptr, ~np.isfinite(data))
        _refuse_value(row, int(indices[at]), rows.data[at])
    return found


def _first(indptr: NDArray[np.int64], wrong: NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first entry that is wrong, and its row."""
    at = int(np.flatnonzero(wrong)[0])
    return at, int(np.searchsorted(indptr, at, side="right")) - 1


def _refuse_value(row: int, column: int, value: Any) -> NoReturn:
    raise HiNetError(f"row {row}: feature {column} is {value}; replace missing and infinite values")


def checked_weights(weights: Any, rows: int) -> NDArray[np.float64]:
    """Return one finite weight a row, none below zero, or raise HiNetError."""
    try:
        given = np.asarray(weights)
        checked = np.asarray(given.tolist() if given.dtype.kind in "cO" else given, np.float64)
    except (TypeError, ValueError):
        raise HiNetError(f"sample_weight: expected one number a row, got {described(weights)}") from None
    if checked.shape != (rows,):
        raise HiNetError(f"{rows:,} rows and sample weights of shape {checked.shape}; give one weight a row")
    bad = np.flatnonzero(~(np.isfinite(checked) & (checked >= 0)))
    if len(bad):
        raise HiNetError(f"row {int(bad[0])}: sample weight {checked[bad[0]]}; weights are finite and not negative")
    if rows and not checked.any():
        raise HiNetError("all sample weights are zero; give at least one row a weight")
    return checked
