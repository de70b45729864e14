"""Matrices of features: checked once at the border, then one form inside."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from numpy.typing import NDArray

from hinet.errors import HiNetError


class SparseMatrix(NamedTuple):
    """A CSR matrix as the three arrays that kernels read; the features of a row are sorted."""

    indptr: NDArray[np.int64]  # (n + 1,)
    indices: NDArray[np.int32]  # (nnz,)
    data: NDArray[np.float32]  # (nnz,)

    @classmethod
    def of(cls, rows: Any) -> SparseMatrix:
        """Return a SciPy CSR matrix in this form; arrays that have it already are shared."""
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        return cls(
            np.ascontiguousarray(rows.indptr, np.int64),
            np.ascontiguousarray(rows.indices, np.int32),
            np.ascontiguousarray(rows.data, np.float32),
        )

    @property
    def row_count(self) -> int:
        """Number of rows, ``n``."""
        return len(self.indptr) - 1


def is_sparse(rows: Any) -> bool:
    """Return whether rows are a SciPy sparse matrix or array."""
    return bool(scipy.sparse.issparse(rows))


def check_rows(rows: Any, expected: int | None = None) -> None:
    """Raise HiNetError for rows that cannot be used: a wrong number of them, or values that are not finite."""
    if is_sparse(rows) and rows.format != "csr":
        raise HiNetError(f"expected a CSR matrix, got {rows.format.upper()}; convert it with .tocsr()")
    if not is_sparse(rows) and getattr(rows, "ndim", 0) != 2:
        raise HiNetError(f"expected a CSR matrix or a 2-D array of features, got {type(rows).__name__}")
    if expected is not None and rows.shape[0] != expected:
        raise HiNetError(f"{rows.shape[0]:,} rows of features and {expected:,} rows of labels; give one label a row")
    with np.errstate(over="ignore"):  # what is too large for the network's numbers is not finite either
        values = np.asarray(rows.data if is_sparse(rows) else rows).astype(np.float32, copy=False).ravel()
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        if is_sparse(rows):
            row, column = int(np.searchsorted(rows.indptr, bad[0], side="right")) - 1, int(rows.indices[bad[0]])
            value = rows.data[bad[0]]
        else:
            row, column = divmod(int(bad[0]), rows.shape[1])
            value = rows[row, column]
        raise HiNetError(f"row {row}: feature {column} is {value}; replace missing and infinite values")


def checked_weights(weights: NDArray[np.floating[Any]], rows: int) -> NDArray[np.float64]:
    """Return one finite weight a row, none below zero, or raise HiNetError."""
    checked = np.asarray(weights, np.float64)
    if checked.shape != (rows,):
        raise HiNetError(f"{rows:,} rows and sample weights of shape {checked.shape}; give one weight a row")
    bad = np.flatnonzero(~(np.isfinite(checked) & (checked >= 0)))
    if len(bad):
        raise HiNetError(f"row {int(bad[0])}: sample weight {checked[bad[0]]}; weights are finite and not negative")
    if rows and not checked.any():
        raise HiNetError("all sample weights are zero; give at least one row a weight")
    return checked
