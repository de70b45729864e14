"""The layers of neurons as index tensors, training targets, and inference: best traces and probabilities of nodes.

Targets are the options of the true traces of each row. Downpour is max-product in log space, in one pass over the
edges: the score of a neuron is the best over its parents of their scores plus the log factor of the edge. The answer
is the stop with the largest score over all levels, traced back. Ties go to the lowest parent, then to the shallowest
stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from hinet.data import Traces
from hinet.errors import HiNetError
from hinet.ragged import Ints, gather, group_by, offsets_of
from hinet.taxonomy import STOP, Layers

UNREACHED = -torch.inf


@dataclass(frozen=True)
class TargetBatch:
    """Steps of the traces of some rows: row -> labels -> traces -> steps, each a flat list with its lengths.

    A row with several labels has several entries in ``label_row``, a label with several paths several traces.
    """

    rows: int
    label_row: Tensor  # (labels,) position of the row in the batch
    label_node: Tensor  # (labels,) node of the taxonomy
    trace_counts: Tensor  # (labels,) traces of each label
    trace_row: Tensor  # (traces,)
    step_trace: Tensor  # (steps,) trace of each step; stops are steps too
    step_option: Tensor  # (steps,)

    @property
    def step_row(self) -> Tensor:
        """(steps,) Position of the row of every step."""
        return self.trace_row[self.step_trace]

    def to(self, device: torch.device) -> TargetBatch:
        """Return the batch on ``device``."""
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return TargetBatch(self.rows, **moved)


class Targets:
    """The traces of a training set, from which batches are taken."""

    def __init__(self, traces: Traces) -> None:
        self.traces = traces
        self._options, self._option_offsets = traces.options()
        self._ends = traces.end_nodes

    def __len__(self) -> int:
        return len(self.traces)

    def option_counts(self) -> Tensor:
        """Return the number of rows with each option, (options,); labels and traces share a row evenly."""
        batch = self.batch(np.arange(len(self)))
        labels = torch.bincount(batch.label_row, minlength=batch.rows)[batch.label_row]
        share = (1 / (labels * batch.trace_counts)).repeat_interleave(batch.trace_counts)  # (traces,)
        counts = torch.zeros(len(self.traces.layers.option_neuron))
        return counts.index_add(0, batch.step_option, share[batch.step_trace].float())

    def batch(self, rows: Ints) -> TargetBatch:
        """Return the targets of the chosen rows; each must have a trace."""
        traces, counts = gather(np.arange(len(self._ends)), self.traces.row_offsets, rows)
        trace_row = np.repeat(np.arange(len(rows)), counts)
        by_label = np.lexsort((self._ends[traces], trace_row))  # the traces of a label side by side
        traces, trace_row = traces[by_label], trace_row[by_label]
        steps, step_counts = gather(self._options, self._option_offsets, traces)
        ends = self._ends[traces]
        starts = np.ones(len(traces), bool)
        starts[1:] = (ends[1:] != ends[:-1]) | (trace_row[1:] != trace_row[:-1])
        first = np.flatnonzero(starts)
        return TargetBatch(
            len(rows),
            label_row=_tensor(trace_row[first]),
            label_node=_tensor(ends[first]),
            trace_counts=_tensor(np.diff(np.append(first, len(traces)))),
            trace_row=_tensor(trace_row),
            step_trace=_tensor(np.repeat(np.arange(len(traces)), step_counts)),
            step_option=_tensor(steps),
        )


def _tensor(values: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.int64))


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
