"""Whole networks: a feature network and output layers, hierarchical or flat."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hinet.errors import HiNetError
from hinet.networks.graph import NeuronGraph
from hinet.networks.heads import WEIGHT_STD, HeadSettings, build_head
from hinet.networks.targets import TargetBatch, Targets
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
        """Let the head look at how often each option is taken, before training."""
        self.head.learn_prior(targets)

    def cost(self, rows: Any, targets: TargetBatch) -> Tensor:
        """Return the cost of every row, (b,)."""
        return self.head.cost(self.features(rows), targets)

    def option_scores(self, rows: Any) -> Tensor:
        """Return the log factor of every option, (options, b)."""
        return self.head.option_scores(self.features(rows))

    def output_parameters(self) -> int:
        """Count the parameters of the output layers."""
        return self.head.output_parameters()


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
        """Learn nothing: the baseline treats all labels alike."""

    def label_scores(self, rows: Any) -> Tensor:
        """Return the log probability of every label, (b, labels)."""
        logits = nn.functional.linear(self.features(rows), self.weight, self.bias)
        return logits.log_softmax(1)

    def cost(self, rows: Any, targets: TargetBatch) -> Tensor:
        """Return the cross entropy of every row, (b,), over its labels the mean."""
        scores = self.label_scores(rows)
        label = self.label_of_node[targets.label_node]
        if (label < 0).any():
            raise HiNetError("a row has a label that is not among the labels of the flat network; build it with them")
        cost = -scores[targets.label_row, label]
        labels = torch.bincount(targets.label_row, minlength=targets.rows).clamp(min=1)
        return cost.new_zeros(targets.rows).index_add(0, targets.label_row, cost) / labels

    def output_parameters(self) -> int:
        """Count the parameters of the output layer."""
        return self.weight.numel() + self.bias.numel()
