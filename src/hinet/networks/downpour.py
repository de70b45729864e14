"""Downpour: the exact best traces of every row by one pass over the edges, max-product in log space.

The score of a neuron is the best over its parents of their scores plus the log factor of the edge. The answer is the
stop with the largest score over all levels, traced back. Ties go to the lowest parent, then to the shallowest stop.
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

NOTHING = -torch.inf


@dataclass(frozen=True)
class Poured:
    """The best partial traces of every neuron: their scores, and where each came from (None where it cannot vary)."""

    score: Tensor  # (neurons, ways, b)
    parent: Tensor | None  # (neurons, ways, b)
    parent_way: Tensor | None  # (neurons, ways, b)


@torch.no_grad()
def downpour(graph: NeuronGraph, scores: Tensor, k: int = 1) -> Traces:
    """Return the ``k`` best traces of every row, best first; fewer where the taxonomy has fewer.

    Parameters
    ----------
    graph : NeuronGraph
        The layers the scores belong to.
    scores : tensor of shape (options, b)
        Log factor of every option: ``log p(child | parent)``, or ``log y(child)`` for softmaxes over layers.
    """
    invalid = scores.sum(0).isnan().nonzero()
    if len(invalid):
        row = int(invalid[0])
        raise HiNetError(f"row {row} of the batch: a score is not a number; check the features and weights")
    poured = pour(graph, scores, 1 if graph.is_tree else k)
    return _traced_back(graph, poured, *_best_stops(graph, poured, scores, k))


@torch.no_grad()
def best_traces_to(graph: NeuronGraph, scores: Tensor, nodes: Tensor) -> Traces:
    """Return the best trace that ends at each of some nodes, (k, b), at which traces can end; in their order."""
    poured = pour(graph, scores, 1)
    ended = poured.score[graph.stop_neurons, 0] + scores[graph.stop_options]  # (stops, b)
    label = graph.neuron_node[graph.stop_neurons][:, None].expand_as(ended)
    best = ended.new_full((len(graph.layers.taxonomy), ended.shape[1]), NOTHING).scatter_reduce(0, label, ended, "amax")
    stops = torch.arange(len(ended), device=scores.device)[:, None].expand_as(ended)
    others = len(ended)
    first = torch.where(ended == best.gather(0, label), stops, others)  # the shallowest of equals
    index = torch.full_like(best, others, dtype=torch.long).scatter_reduce(0, label, first, "amin").gather(0, nodes)
    return _traced_back(graph, poured, best.gather(0, nodes), graph.stop_neurons[index], torch.zeros_like(index))


def pour(graph: NeuronGraph, scores: Tensor, ways: int) -> Poured:
    """Return the ``ways`` best partial traces of every neuron."""
    batch = scores.shape[1]
    score = scores.new_full((graph.neurons, ways, batch), NOTHING)
    score[0, 0] = 0
    came_from = (
        None if graph.is_tree else torch.zeros(graph.neurons, ways, batch, dtype=torch.int32, device=scores.device)
    )
    came_way = None if graph.is_tree or ways == 1 else torch.zeros_like(came_from)  # type: ignore[arg-type]
    for layer in range(1, graph.height + 1):
        for number, edges in enumerate(graph.rounds(layer)):
            poured = score[edges.parents] + scores[edges.options][:, None]  # (m, ways, b)
            if number == 0:  # the first edge into each neuron of the layer, in their order
                here = graph.layer_neurons[layer]
                score[here] = poured
            if came_from is None:
                continue
            parent = edges.parents.to(torch.int32)[:, None, None].expand_as(poured)
            if number == 0:
                came_from[here] = parent
                if came_way is not None:
                    came_way[here] = _ranks(ways, poured)
            elif came_way is None:
                better = poured > score[edges.children]
                score[edges.children] = torch.where(better, poured, score[edges.children])
                came_from[edges.children] = torch.where(better, parent, came_from[edges.children])
            else:
                _merge(score, came_from, came_way, edges.children, poured, parent)
    return Poured(score, came_from, came_way)


def _merge(
    score: Tensor, came_from: Tensor, came_way: Tensor, children: Tensor, poured: Tensor, parent: Tensor
) -> None:
    """Keep the best of the ways found so far and those of one more parent; earlier parents win ties."""
    ways = poured.shape[1]
    both = torch.cat([score[children], poured], 1)  # (m, 2 ways, b)
    order = both.sort(dim=1, descending=True, stable=True).indices[:, :ways]
    score[children] = both.gather(1, order)
    came_from[children] = torch.cat([came_from[children], parent], 1).gather(1, order)
    came_way[children] = torch.cat([came_way[children], _ranks(ways, poured)], 1).gather(1, order)


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
            flat.scatter_(0, index[None], NOTHING)
    index = torch.stack(indices)
    return torch.stack(values), graph.stop_neurons[index // ways], index % ways


def _traced_back(graph: NeuronGraph, poured: Poured, value: Tensor, neuron: Tensor, way: Tensor) -> Traces:
    """Walk from every chosen stop back to the root."""
    rows = torch.arange(neuron.shape[1], device=neuron.device).expand_as(neuron)
    exists = value > NOTHING  # a DAG may have fewer traces than k
    keep = exists.T.reshape(-1).cpu().numpy()
    neuron, way, rows = (part.T.reshape(-1)[keep] for part in (neuron, way, rows))  # row after row
    layers = graph.layers
    lengths = layers.depth[neuron.cpu().numpy()].astype(np.int64)
    offsets = offsets_of(lengths)
    path = np.empty(offsets[-1], np.int32)
    flat, starts = layers.parent_lists
    for above in range(int(lengths.max(initial=0))):
        live = np.flatnonzero(lengths > above)
        live_indices = torch.from_numpy(live).to(neuron.device)
        current = neuron[live_indices]
        path[offsets[live + 1] - 1 - above] = current.cpu().numpy()
        if poured.parent is None:
            neuron[live_indices] = torch.from_numpy(flat[starts[current.cpu().numpy()]].astype(np.int64)).to(
                neuron.device
            )
        else:
            neuron[live_indices] = poured.parent[current, way[live_indices], rows[live_indices]].long()
            if poured.parent_way is not None:
                way[live_indices] = poured.parent_way[current, way[live_indices], rows[live_indices]].long()
    log_p = value.T.reshape(-1)[keep].double().cpu().numpy()
    return Traces(layers, offsets_of(exists.sum(0).cpu().numpy()), offsets, path, log_p)
