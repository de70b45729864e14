"""Marginals: the probability of every node and label, by sum-product over the layers, for sibling softmaxes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hinet.networks.graph import NeuronGraph


@dataclass(frozen=True)
class Marginals:
    """Probabilities of a batch of rows.

    Attributes
    ----------
    neuron : tensor of shape (neurons, b)
        Probability that the trace of a row passes the neuron.
    node : tensor of shape (nodes, b)
        Probability that it passes the node, the sum over the node's neurons; never above 1.
    label : tensor of shape (nodes, b)
        Probability that it ends at the node.
    """

    neuron: Tensor
    node: Tensor
    label: Tensor


def marginals(graph: NeuronGraph, scores: Tensor) -> Marginals:
    """Return the marginals of option scores ``log p(option | parent)``, (options, b): the forward pass."""
    neuron = forward(graph, scores)
    ended = neuron[graph.stop_neurons] * scores[graph.stop_options].exp()  # (stops, b)
    return Marginals(neuron, _by_node(graph, neuron), _by_node(graph, ended, graph.stop_neurons))


def forward(graph: NeuronGraph, scores: Tensor) -> Tensor:
    """Return the probability that a trace passes every neuron, (neurons, b)."""
    mass = [scores.new_ones(1, scores.shape[1])]
    for layer in range(1, graph.height + 1):
        above, here = graph.layer_neurons[layer - 1], graph.layer_neurons[layer]
        poured = scores.new_zeros(here.stop - here.start, scores.shape[1])
        for edges in graph.rounds(layer):
            sent = mass[-1][edges.parents - above.start] * scores[edges.options].exp()
            poured = poured.index_add(0, edges.children - here.start, sent)
        mass.append(poured)
    return torch.cat(mass)


def _by_node(graph: NeuronGraph, values: Tensor, neurons: Tensor | None = None) -> Tensor:
    node = graph.neuron_node if neurons is None else graph.neuron_node[neurons]
    named = node >= 0  # all but a virtual root
    total = values.new_zeros(len(graph.layers.taxonomy), values.shape[1])
    return total.index_add(0, node[named], values[named])
