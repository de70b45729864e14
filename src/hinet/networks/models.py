"""Whole networks: a feature network below hierarchical or flat output layers, and their predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hinet.data import Traces
from hinet.engine.search.predictor import K
from hinet.errors import HiNetError
from hinet.networks.features import batches
from hinet.networks.graph import NeuronGraph
from hinet.networks.heads import WEIGHT_STD, HeadSettings, build_head
from hinet.networks.inference import downpour
from hinet.networks.targets import TargetBatch, Targets
from hinet.parameters import whole
from hinet.ragged import Ints
from hinet.taxonomy import Layers


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
