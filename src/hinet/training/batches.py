"""Rows of features as batches: CSR stays CSR, dense stays dense, and both are checked once."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor, nn

from hinet.errors import HiNetError
from hinet.network import SparseBag, SparseRows
from hinet.network.features import dense_rows


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
        values = np.asarray(rows.data if is_sparse(rows) else rows).astype(np.float32).ravel()
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        if is_sparse(rows):
            row, column = int(np.searchsorted(rows.indptr, bad[0], side="right")) - 1, int(rows.indices[bad[0]])
            value = rows.data[bad[0]]
        else:
            row, column = divmod(int(bad[0]), rows.shape[1])
            value = rows[row, column]
        raise HiNetError(f"row {row}: feature {column} is {value}; replace missing and infinite values")


def check_width(network: nn.Module, rows: Any) -> None:
    """Raise HiNetError if rows do not have the features the network was made for, where that can be known."""
    for module in network.modules():
        if isinstance(module, SparseBag):
            if not is_sparse(rows):
                raise HiNetError("the network reads sparse rows, got a dense array; use a CSR matrix or DenseFeatures")
            if rows.shape[1] != len(module.weight):
                raise HiNetError(f"the network was made for {len(module.weight):,} features, got {rows.shape[1]:,}")


def row_batch(rows: Any, start: int, end: int, device: str) -> SparseRows | Tensor:
    """Return rows ``start:end`` as the feature network reads them."""
    batch = SparseRows.of(rows, start, end) if is_sparse(rows) else dense_rows(rows, start, end)
    return batch.to(torch.device(device))
