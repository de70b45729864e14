"""The layers of neurons as index tensors, so that a head and its inference live on one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from hinet.ragged import Ints, group_by
from hinet.taxonomy import STOP, Layers


@dataclass(frozen=True)
class Round:
    """Edges into one layer, at most one into each neuron: the first edge into each, then the second, and so on."""

    options: Tensor  # (m,)
    parents: Tensor  # (m,) neurons
    children: Tensor  # (m,) neurons


class NeuronGraph(nn.Module):
    """Index tensors of :class:`~hinet.taxonomy.Layers`; ``.to(device)`` moves them along with the head.

    The edges into a layer are split into rounds in which no neuron occurs twice, ordered by parent. A maximum over
    parents is then a few vector operations: one for a tree, as many as a neuron has parents for a DAG.
    """

    neuron_node: Tensor  # (neurons,) node of the taxonomy, -1 for a virtual root
    option_neuron: Tensor  # (options,) neuron that an option leads to, -1 for stop
    option_parent: Tensor  # (options,) neuron whose group contains the option
    option_layer: Tensor  # (options,) layer that an option leads into, 1 to h + 1
    stop_options: Tensor  # (stops,)
    stop_neurons: Tensor  # (stops,) neuron that ends there
    round_options: Tensor
    round_parents: Tensor
    round_children: Tensor

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.layers = layers
        self.height = layers.height
        self.neurons = len(layers.node)
        self.options = len(layers.option_neuron)
        self.is_tree = layers.is_tree
        self.layer_neurons = [slice(s, e) for s, e in pairwise(layers.layer_offsets.tolist())]
        stops = np.flatnonzero(layers.option_neuron == STOP)
        self._register("neuron_node", layers.node)
        self._register("option_neuron", layers.option_neuron)
        self._register("option_parent", layers.option_parent)
        self._register("option_layer", layers.depth[layers.option_parent] + 1)
        self._register("stop_options", stops)
        self._register("stop_neurons", layers.option_parent[stops])
        self._rounds = self._register_rounds()

    def rounds(self, layer: int) -> Iterator[Round]:
        """Yield the edges into ``layer``, 1 to ``h``, in rounds."""
        for chosen in self._rounds[layer - 1]:
            yield Round(self.round_options[chosen], self.round_parents[chosen], self.round_children[chosen])

    def _register_rounds(self) -> list[list[slice]]:
        layers = self.layers
        real = np.flatnonzero(layers.option_neuron != STOP)
        child = layers.option_neuron[real]
        by_child, starts = group_by(child, self.neurons)
        turn = np.empty(len(real), np.int64)  # index among the edges into its child, by parent
        turn[by_child] = np.arange(len(real)) - starts[child[by_child]]
        layer = layers.depth[child]
        order = np.lexsort((child, turn, layer))
        options = real[order]
        self._register("round_options", options)
        self._register("round_parents", layers.option_parent[options])
        self._register("round_children", layers.option_neuron[options])
        changes = np.flatnonzero((np.diff(layer[order]) != 0) | (np.diff(turn[order]) != 0)) + 1
        bounds = np.concatenate([[0], changes, [len(order)]])
        rounds: list[list[slice]] = [[] for _ in range(self.height)]
        for start, end in pairwise(bounds.tolist()):
            rounds[layer[order[start]] - 1].append(slice(start, end))
        return rounds

    def _register(self, name: str, values: Ints) -> None:
        self.register_buffer(name, torch.from_numpy(np.array(values, np.int64)), persistent=False)
