"""Rows of features as batches: CSR stays CSR, dense stays dense."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hinet.data.matrices import is_sparse
from hinet.errors import HiNetError
from hinet.networks.features import SparseBag, SparseRows, dense_rows


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
