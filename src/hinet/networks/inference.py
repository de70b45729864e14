"""Inference over the layers: exact best traces by downpour, and the probability of every node by the forward pass.

Downpour is max-product in log space, in one pass over the edges: the score of a neuron is the best over its parents of
their scores plus the log factor of the edge. The answer is the stop with the largest score over all levels, traced
back. Ties go to the lowest parent, then to the shallowest stop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hinet.data import Traces
from hinet.errors import HiNetError
from hinet.networks.graph import NeuronGraph
from hinet.ragged import offsets_of

UNREACHED = -torch.inf


@dataclass(frozen=True)
class Poured:
    """Scores and predecessors of the best partial traces of every neuron; predecessors that cannot vary are None."""

    score: Tensor  # (neurons, ways, b)
    parent: Tensor | None  # (neurons, ways, b)
    parent_way: Tensor | None  # (neurons, ways, b)


@torch.no_grad()
def downpour(graph: NeuronGraph, scores: Tensor, k: int = 1) -> Traces:
    """Return the ``k`` best traces of every row, best first; fewer if the taxonomy has fewer.

    Parameters
    ----------
    graph : NeuronGraph
        The layers that the scores belong to.
    scores : tensor of shape (options, b)
        Log factor of every option: ``log p(child | parent)``, or ``log y(child)`` for softmaxes over layers.
    """
    invalid = scores.sum(0).isnan().nonzero()
    if len(invalid):
        row = int(invalid[0])
        raise HiNetError(f"row {row} of the batch: a score is not a number; check the features and weights")
    poured = pour(graph, scores, 1 if graph.is_tree else k)
    return _trace_back(graph, poured, *_best_stops(graph, poured, scores, k))


@torch.no_grad()
def best_traces_to(graph: NeuronGraph, scores: Tensor, nodes: Tensor) -> Traces:
    """Return the best trace to each of the end nodes ``nodes``, (k, b), in the same order."""
    poured = pour(graph, scores, 1)
    ended = poured.score[graph.stop_neurons, 0] + scores[graph.stop_options]  # (stops, b)
    label = graph.neuron_node[graph.stop_neurons][:, None].expand_as(ended)
    best = ended.new_full((len(graph.layers.taxonomy), ended.shape[1]), UNREACHED)
    best = best.scatter_reduce(0, label, ended, "amax")
    stops = torch.arange(len(ended), device=scores.device)[:, None].expand_as(ended)
    others = len(ended)
    first = torch.where(ended == best.gather(0, label), stops, others)  # the shallowest of equals
    index = torch.full_like(best, others, dtype=torch.long).scatter_reduce(0, label, first, "amin").gather(0, nodes)
    return _trace_back(graph, poured, best.gather(0, nodes), graph.stop_neurons[index], torch.zeros_like(index))


def pour(graph: NeuronGraph, scores: Tensor, ways: int) -> Poured:
    """Return the ``ways`` best partial traces of every neuron."""
    shape = graph.neurons, ways, scores.shape[1]
    score = scores.new_full(shape, UNREACHED)
    score[0, 0] = 0
    parent = None if graph.is_tree else torch.zeros(shape, dtype=torch.int32, device=scores.device)
    parent_way = None if parent is None or ways == 1 else torch.zeros_like(parent)
    for layer in range(1, graph.height + 1):
        for number, edges in enumerate(graph.rounds(layer)):
            poured = score[edges.parents] + scores[edges.options][:, None]  # (m, ways, b)
            if number == 0:  # the first edge into each neuron of the layer, in their order
                score[graph.layer_neurons[layer]] = poured
            if parent is None:
                continue
            source = edges.parents.to(torch.int32)[:, None, None].expand_as(poured)
            if number == 0:
                parent[graph.layer_neurons[layer]] = source
                if parent_way is not None:
                    parent_way[graph.layer_neurons[layer]] = _ranks(ways, poured)
            elif parent_way is None:
                better = poured > score[edges.children]
                score[edges.children] = torch.where(better, poured, score[edges.children])
                parent[edges.children] = torch.where(better, source, parent[edges.children])
            else:
                _merge(Poured(score, parent, parent_way), edges.children, poured, source)
    return Poured(score, parent, parent_way)


def _merge(best: Poured, children: Tensor, poured: Tensor, source: Tensor) -> None:
    """Keep the best of the current ways and those of one more parent, in place; earlier parents win ties."""
    assert best.parent is not None
    assert best.parent_way is not None
    ways = poured.shape[1]
    both = torch.cat([best.score[children], poured], 1)  # (m, 2 ways, b)
    order = both.sort(dim=1, descending=True, stable=True).indices[:, :ways]
    best.score[children] = both.gather(1, order)
    best.parent[children] = torch.cat([best.parent[children], source], 1).gather(1, order)
    best.parent_way[children] = torch.cat([best.parent_way[children], _ranks(ways, poured)], 1).gather(1, order)


def _ranks(ways: int, like: Tensor) -> Tensor:
    return torch.arange(ways, dtype=torch.int32, device=like.device)[:, None].expand(like.shape)


def _best_stops(graph: NeuronGraph, poured: Poured, scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return score, neuron and way of the ``k`` best complete traces of every row, each (k, b)."""
    ways = poured.score.shape[1]
    ended = poured.score[graph.stop_neurons] + scores[graph.stop_options][:, None]  # (stops, ways, b)
    flat = ended.flatten(0, 1)  # (stops * ways, b), shallow stops first
    values, indices = [], []
    for _ in range(min(k, len(flat))):
        value, index = flat.max(dim=0)  # the first of equals
        values.append(value)
        indices.append(index)
        if k > 1:
            flat.scatter_(0, index[None], UNREACHED)
    index = torch.stack(indices)
    return torch.stack(values), graph.stop_neurons[index // ways], index % ways


def _trace_back(graph: NeuronGraph, poured: Poured, value: Tensor, neuron: Tensor, way: Tensor) -> Traces:
    """Return the traces from the chosen stops back to the root."""
    rows = torch.arange(neuron.shape[1], device=neuron.device).expand_as(neuron)
    exists = value > UNREACHED  # a DAG may have fewer traces than k
    keep = exists.T.reshape(-1).cpu().numpy()
    neuron, way, rows = (part.T.reshape(-1)[keep] for part in (neuron, way, rows))  # row after row
    layers = graph.layers
    lengths = layers.depth[neuron.cpu().numpy()].astype(np.int64)
    offsets = offsets_of(lengths)
    path = np.empty(offsets[-1], np.int32)
    flat, starts = layers.parent_lists
    for above in range(int(lengths.max(initial=0))):
        active = np.flatnonzero(lengths > above)
        index = torch.from_numpy(active).to(neuron.device)
        current = neuron[index]
        path[offsets[active + 1] - 1 - above] = current.cpu().numpy()
        if poured.parent is None:
            parents = flat[starts[current.cpu().numpy()]].astype(np.int64)
            neuron[index] = torch.from_numpy(parents).to(neuron.device)
        else:
            neuron[index] = poured.parent[current, way[index], rows[index]].long()
            if poured.parent_way is not None:
                way[index] = poured.parent_way[current, way[index], rows[index]].long()
    log_p = value.T.reshape(-1)[keep].double().cpu().numpy()
    return Traces(layers, offsets_of(exists.sum(0).cpu().numpy()), offsets, path, log_p)


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
    """Return the marginals for option scores ``log p(option | parent)``, (options, b), by sum-product."""
    neuron = forward(graph, scores)
    ended = neuron[graph.stop_neurons] * scores[graph.stop_options].exp()  # (stops, b)
    label = _sum_by_node(graph, ended, graph.neuron_node[graph.stop_neurons])
    return Marginals(neuron, _sum_by_node(graph, neuron, graph.neuron_node), label)


def forward(graph: NeuronGraph, scores: Tensor) -> Tensor:
    """Return the probability that a trace passes every neuron, (neurons, b)."""
    mass = [scores.new_ones(1, scores.shape[1])]
    for layer in range(1, graph.height + 1):
        above, current = graph.layer_neurons[layer - 1], graph.layer_neurons[layer]
        total = scores.new_zeros(current.stop - current.start, scores.shape[1])
        for edges in graph.rounds(layer):
            sent = mass[-1][edges.parents - above.start] * scores[edges.options].exp()
            total = total.index_add(0, edges.children - current.start, sent)
        mass.append(total)
    return torch.cat(mass)


def _sum_by_node(graph: NeuronGraph, values: Tensor, node: Tensor) -> Tensor:
    named = node >= 0  # all but a virtual root
    total = values.new_zeros(len(graph.layers.taxonomy), values.shape[1])
    return total.index_add(0, node[named], values[named])
