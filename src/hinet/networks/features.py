"""Feature networks: what turns a row into the feature layer that the output layers read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hinet.memory import GB, require_memory

WIDTH = 256  # k
DROPOUT = 0.5
LINEAR_SHARE = 0.5  # of the units of a sparse bag; the others are rectified
BAG_STD = 0.06


@dataclass(frozen=True)
class SparseRows:
    """Rows of a CSR matrix as tensors; never densified."""

    indices: Tensor  # (nnz,)
    offsets: Tensor  # (b,) where each row starts
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
        """Return what to build the same from."""
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
    """A multi-layer perceptron for dense rows; without ``widths`` they are the feature layer as they are."""

    def __init__(self, features: int, widths: Sequence[int] = (WIDTH,), *, dropout: float = DROPOUT) -> None:
        super().__init__()
        sizes = [features, *widths]
        self.width = sizes[-1]
        check_size(features, *widths)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.layers = nn.Sequential(*layers)
        self._shape = {"features": features, "widths": tuple(widths), "dropout": dropout}

    def shape(self) -> dict[str, Any]:
        """Return what to build the same from."""
        return dict(self._shape)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the feature layer, (b, k)."""
        hidden: Tensor = self.layers(rows)
        return hidden


def check_size(*sizes: int) -> None:
    """Refuse layers of units, each of which reads the one before, that would not fit into memory."""
    needed = sum(4 * before * after for before, after in itertools.pairwise(sizes))
    shape = " x ".join(f"{size:,}" for size in sizes)
    require_memory(needed, f"a feature network of {shape} weights takes {needed / GB:.2f} GB", "lower the width")


def dense_rows(matrix: NDArray[Any], start: int, end: int) -> Tensor:
    """Return rows ``start:end`` of a dense array as a tensor; whole numbers, such as tokens, stay whole."""
    chosen = np.asarray(matrix[start:end])
    whole = np.issubdtype(chosen.dtype, np.integer)
    return torch.from_numpy(np.require(chosen, np.int64 if whole else np.float32, ["C", "W"]))
