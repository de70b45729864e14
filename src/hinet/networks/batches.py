"""Rows of features as batches: CSR stays CSR, dense stays dense."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hinet.data.matrices import check_rows, is_sparse
from hinet.errors import HiNetError
from hinet.networks.features import SparseBag, SparseRows, dense_rows

BATCH_CELLS = 20_000_000  # scores held at once: 80 MB


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


def batches(network: nn.Module, rows: Any, cells: int) -> Iterator[SparseRows | Tensor]:
    """Yield checked rows in batches for a network that answers; each row takes so many ``cells`` of memory."""
    check_rows(rows)
    check_width(network, rows)
    network.eval()
    device, size = str(next(network.parameters()).device), max(1, BATCH_CELLS // cells)
    for start in range(0, rows.shape[0], size):
        yield row_batch(rows, start, min(start + size, rows.shape[0]), device)
