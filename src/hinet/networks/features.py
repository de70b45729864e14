"""Rows as tensors, and feature networks, which turn rows into the feature layer that the output layers read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hinet.data.matrices import check_rows, is_sparse
from hinet.errors import HiNetError
from hinet.memory import GB, require_memory

WIDTH = 256  # k
DROPOUT = 0.5
LINEAR_SHARE = 0.5  # share of linear units in a sparse bag; the others are rectified
BAG_STD = 0.06
BATCH_CELLS = 20_000_000  # scores per batch: 80 MB


@dataclass(frozen=True)
class SparseRows:
    """Rows of a CSR matrix as tensors; never densified."""

    indices: Tensor  # (nnz,)
    offsets: Tensor  # (b,) start of each row
    values: Tensor  # (nnz,)

    @classmethod
    def of(cls, matrix: Any, start: int, end: int) -> SparseRows:
        """Return rows ``start:end`` of a SciPy CSR matrix."""
        low, high = int(matrix.indptr[start]), int(matrix.indptr[end])
        return cls(
            torch.from_numpy(matrix.indices[low:high].astype(np.int64)),
            torch.from_numpy(matrix.indptr[start:end].astype(np.int64) - low),
            torch.from_numpy(np.require(matrix.data[low:high], np.float32, ["C", "W"])),
        )

    def to(self, device: torch.device) -> SparseRows:
        """Return the rows on ``device``."""
        return SparseRows(self.indices.to(device), self.offsets.to(device), self.values.to(device))

    def __len__(self) -> int:
        return len(self.offsets)


def row_batch(rows: Any, start: int, end: int, device: str) -> SparseRows | Tensor:
    """Return rows ``start:end`` as tensors: CSR as :class:`SparseRows`, integers such as tokens as integers."""
    if is_sparse(rows):
        return SparseRows.of(rows, start, end).to(torch.device(device))
    chosen = np.asarray(rows[start:end])
    dtype = np.int64 if np.issubdtype(chosen.dtype, np.integer) else np.float32
    return torch.from_numpy(np.require(chosen, dtype, ["C", "W"])).to(device)


def batches(network: nn.Module, rows: Any, cells: int) -> Iterator[SparseRows | Tensor]:
    """Yield validated rows in batches for prediction; a row needs memory for ``cells`` numbers."""
    check_rows(rows)
    check_width(network, rows)
    network.eval()
    device, size = str(next(network.parameters()).device), max(1, BATCH_CELLS // cells)
    for start in range(0, rows.shape[0], size):
        yield row_batch(rows, start, min(start + size, rows.shape[0]), device)


def check_width(network: nn.Module, rows: Any) -> None:
    """Raise HiNetError if the network has a sparse bag for other rows."""
    for module in network.modules():
        if isinstance(module, SparseBag):
            if not is_sparse(rows):
                raise HiNetError("the network reads sparse rows, got a dense array; use a CSR matrix or DenseFeatures")
            if rows.shape[1] != len(module.weight):
                raise HiNetError(f"the network was made for {len(module.weight):,} features, got {rows.shape[1]:,}")


class SparseBag(nn.Module):
    """A sparse row times an embedding per feature; half the units linear, half rectified; row-sparse gradients."""

    def __init__(
        self, features: int, width: int = WIDTH, *, dropout: float = DROPOUT, linear_share: float = LINEAR_SHARE
    ) -> None:
        super().__init__()
        check_size(features, width)
        self.width = width
        self.weight = nn.Parameter(torch.randn(features, width) * BAG_STD)
        self.bias = nn.Parameter(torch.zeros(width))
        self.dropout = nn.Dropout(dropout)
        self.linear_units = math.floor(linear_share * width + 0.5)
        self._linear_share = linear_share

    def shape(self) -> dict[str, Any]:
        """Return the arguments that build a network of the same shape."""
        return {
            "features": len(self.weight), "width": self.width, "dropout": self.dropout.p,
            "linear_share": self._linear_share,
        }  # fmt: skip

    def forward(self, rows: SparseRows) -> Tensor:
        """Return the feature layer, (b, k)."""
        summed = functional.embedding_bag(
            rows.indices,
            self.weight,
            rows.offsets,
            mode="sum",
            sparse=True,
            per_sample_weights=rows.values.to(self.weight.dtype),
        )
        units = summed + self.bias  # (b, k)
        linear, rectified = units[:, : self.linear_units], units[:, self.linear_units :]
        dropped: Tensor = self.dropout(torch.cat([linear, rectified.relu()], dim=1))
        return dropped


class DenseFeatures(nn.Module):
    """A multi-layer perceptron for dense rows; without ``widths`` the rows themselves are the feature layer."""

    def __init__(self, features: int, widths: Sequence[int] = (WIDTH,), *, dropout: float = DROPOUT) -> None:
        super().__init__()
        sizes = [features, *widths]
        self.width = sizes[-1]
        check_size(*sizes)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers)
        self._shape = {"features": features, "widths": tuple(widths), "dropout": dropout}

    def shape(self) -> dict[str, Any]:
        """Return the arguments that build a network of the same shape."""
        return dict(self._shape)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the feature layer, (b, k)."""
        hidden: Tensor = self.layers(rows)
        return hidden


def check_size(*sizes: int) -> None:
    """Raise HiNetError if consecutive layers of these sizes do not fit into memory."""
    needed = sum(4 * before * after for before, after in itertools.pairwise(sizes))
    shape = " x ".join(f"{size:,}" for size in sizes)
    require_memory(needed, f"a feature network of {shape} weights takes {needed / GB:.2f} GB", "lower the width")
