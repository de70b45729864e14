"""Rows as tensors, feature networks, and whole networks: hierarchical or flat output layers above them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hinet.data import Traces
from hinet.data.matrices import check_rows, is_sparse
from hinet.engine.search.predictor import K
from hinet.errors import HiNetError
from hinet.networks.graph import NeuronGraph, TargetBatch, Targets, downpour
from hinet.networks.heads import WEIGHT_STD, HeadSettings, build_head
from hinet.parameters import GB, require_memory, whole
from hinet.ragged import Ints
from hinet.taxonomy import Layers

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
    if torch.empty(0).is_meta:  # only the shapes are wanted
        return
    needed = sum(4 * before * after for before, after in itertools.pairwise(sizes))
    shape = " x ".join(f"{size:,}" for size in sizes)
    require_memory(needed, f"a feature network of {shape} weights takes {needed / GB:.2f} GB", "lower the width")


class HiNet(nn.Module):
    """A feature network below a hierarchical head."""

    def __init__(self, features: nn.Module, layers: Layers, width: int, settings: HeadSettings | None = None) -> None:
        super().__init__()
        self.features = features
        self.layers = layers
        self.head = build_head(layers, width, settings)

    @property
    def graph(self) -> NeuronGraph:
        """The layers as tensors."""
        return self.head.graph

    def learn_prior(self, targets: Targets) -> None:
        """Let the head count before training how often each option occurs."""
        self.head.learn_prior(targets)

    def cost(self, rows: Any, targets: TargetBatch) -> Tensor:
        """Return the cost of every row, (b,)."""
        return self.head.cost(self.features(rows), targets)

    forward = cost  # which DistributedDataParallel calls

    def option_scores(self, rows: Any) -> Tensor:
        """Return the log factor of every option, (options, b)."""
        return self.head.option_scores(self.features(rows))


class FlattenNetwork(nn.Module):
    """The baseline: the same feature network below one softmax over all labels."""

    label_nodes: Tensor
    label_of_node: Tensor

    def __init__(self, features: nn.Module, layers: Layers, width: int, labels: Ints) -> None:
        super().__init__()
        self.features = features
        self.layers = layers
        nodes = np.unique(labels)
        label_index = np.full(len(layers.taxonomy), -1, np.int64)
        label_index[nodes] = np.arange(len(nodes))
        self.register_buffer("label_nodes", torch.from_numpy(nodes.astype(np.int64)), persistent=False)
        self.register_buffer("label_of_node", torch.from_numpy(label_index), persistent=False)
        self.weight = nn.Parameter(torch.randn(len(nodes), width) * WEIGHT_STD)  # (labels, k)
        self.bias = nn.Parameter(torch.zeros(len(nodes)))

    @classmethod
    def for_targets(cls, features: nn.Module, width: int, targets: Targets) -> FlattenNetwork:
        """Return a network over the labels that occur in ``targets``."""
        return cls(features, targets.traces.layers, width, targets.traces.end_nodes)

    def learn_prior(self, targets: Targets) -> None:
        """Do nothing: the baseline does not adjust its logits."""

    def label_scores(self, rows: Any) -> Tensor:
        """Return the log probability of every label, (b, labels)."""
        logits = nn.functional.linear(self.features(rows), self.weight, self.bias)
        return logits.log_softmax(1)

    def cost(self, rows: Any, targets: TargetBatch) -> Tensor:
        """Return the cross entropy of every row, (b,), averaged over its labels."""
        scores = self.label_scores(rows)
        label = self.label_of_node[targets.label_node]
        if (label < 0).any():
            raise HiNetError("a row has a label that the flat network does not have; build it with all labels")
        cost = -scores[targets.label_row, label]
        labels = torch.bincount(targets.label_row, minlength=targets.rows).clamp(min=1)
        return cost.new_zeros(targets.rows).index_add(0, targets.label_row, cost) / labels

    forward = cost


def count_output_parameters(network: HiNet | FlattenNetwork) -> int:
    """Return the number of parameters above the feature network."""
    below = sum(parameter.numel() for parameter in network.features.parameters())
    return sum(parameter.numel() for parameter in network.parameters()) - below


@torch.no_grad()
def feature_layer(network: HiNet, rows: Any) -> NDArray[np.float32]:
    """Return the feature layer of every row, (n, k)."""
    parts = [network.features(batch).cpu().numpy() for batch in batches(network, rows, network.head.width)]
    return np.concatenate(parts) if parts else np.zeros((0, network.head.width), np.float32)


@torch.no_grad()
def predict_traces(network: HiNet | FlattenNetwork, rows: Any, *, k: int = 1) -> Traces:
    """Return the ``k`` best traces of every row by downpour, or the traces of the best label of a flat network.

    In a DAG the best trace need not end at the most probable label, whose probability is a sum over its traces:
    :class:`hinet.networks.predictor.NetworkPredictor` finds that label.
    """
    k = (whole(1, 1) if isinstance(network, FlattenNetwork) else K).validate("k", k)
    layers = network.layers
    parts = []
    for batch in batches(network, rows, len(layers.option_neuron) * (1 if layers.is_tree else k)):
        if isinstance(network, FlattenNetwork):
            best = network.label_nodes[network.label_scores(batch).argmax(1)].cpu().numpy()
            parts.append(Traces.of_nodes(layers, best))
        else:
            parts.append(downpour(network.graph, network.option_scores(batch), k))
    return Traces.joined(layers, parts)
