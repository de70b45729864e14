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


class NeuronGraph(nn.Module):
    """Index tensors of :class:`~hinet.taxonomy.Layers`; ``.to(device)`` moves them along with the head.

    The edges into a layer are split into rounds: the first edge into each neuron, by parent, then the second, and so
    on. No neuron occurs twice in a round, so a maximum over parents is a few vector operations: one for a tree, as many
    as a neuron has parents for a DAG.
    """

    neuron_node: Tensor  # (neurons,) node of the taxonomy, -1 for a virtual root
    option_neuron: Tensor  # (options,) neuron that an option leads to, -1 for stop
    option_parent: Tensor  # (options,) neuron whose group contains the option
    option_layer: Tensor  # (options,) layer that an option leads into, 1 to h + 1
    stop_options: Tensor  # (stops,)
    stop_neurons: Tensor  # (stops,) neuron that ends there
    round_options: Tensor  # options of all rounds

    def __init__(self, layers: Layers) -> None:
        super().__init__()
        self.layers = layers
        self.height = layers.height
        self.neurons = len(layers.node)
        self.options = len(layers.option_neuron)
        self.is_tree = layers.is_tree
        self.layer_neurons = [slice(s, e) for s, e in pairwise(layers.layer_offsets.tolist())]
        stops = np.flatnonzero(layers.option_neuron == STOP)
        edges = np.flatnonzero(layers.option_neuron != STOP)
        child = layers.option_neuron[edges]
        by_child, starts = group_by(child, self.neurons)
        self.options_into = edges[by_child], starts  # the options that lead to each neuron, by parent
        turn = np.empty(len(edges), np.int64)  # index among the edges into its child
        turn[by_child] = np.arange(len(edges)) - starts[child[by_child]]
        layer = layers.depth[child]
        order = np.lexsort((child, turn, layer))
        layer, turn = layer[order], turn[order]
        changes = np.flatnonzero((np.diff(layer) != 0) | (np.diff(turn) != 0)) + 1
        self._rounds: list[list[slice]] = [[] for _ in range(self.height + 1)]
        for start, end in pairwise([0, *changes.tolist(), len(order)]):
            self._rounds[layer[start]].append(slice(start, end))
        for name, values in (
            ("neuron_node", layers.node),
            ("option_neuron", layers.option_neuron),
            ("option_parent", layers.option_parent),
            ("option_layer", layers.depth[layers.option_parent] + 1),
            ("stop_options", stops),
            ("stop_neurons", layers.option_parent[stops]),
            ("round_options", edges[order]),
        ):
            self.register_buffer(name, _tensor(values), persistent=False)

    def rounds(self, layer: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield the options that lead into ``layer``, 1 to ``h``, in rounds, with their parents and children."""
        for chosen in self._rounds[layer]:
            options = self.round_options[chosen]
            yield options, self.option_parent[options], self.option_neuron[options]


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
    return _trace_back(graph, poured, scores, *_best_stops(graph, poured, scores, k))


@torch.no_grad()
def best_traces_to(graph: NeuronGraph, scores: Tensor, nodes: Tensor) -> Traces:
    """Return the best trace to each of the end nodes ``nodes``, (k, b), in the same order."""
    poured = pour(graph, scores, 1)
    ended = poured[graph.stop_neurons, 0] + scores[graph.stop_options]  # (stops, b)
    label = graph.neuron_node[graph.stop_neurons][:, None].expand_as(ended)
    best = ended.new_full((len(graph.layers.taxonomy), ended.shape[1]), UNREACHED)
    best = best.scatter_reduce(0, label, ended, "amax")
    stops = torch.arange(len(ended), device=scores.device)[:, None].expand_as(ended)
    others = len(ended)
    first = torch.where(ended == best.gather(0, label), stops, others)  # the shallowest of equals
    index = torch.full_like(best, others, dtype=torch.long).scatter_reduce(0, label, first, "amin").gather(0, nodes)
    ways = torch.zeros_like(index)
    return _trace_back(graph, poured, scores, best.gather(0, nodes), graph.stop_neurons[index], ways)


def pour(graph: NeuronGraph, scores: Tensor, ways: int) -> Tensor:
    """Return the scores of the ``ways`` best partial traces of every neuron, best first, (neurons, ways, b)."""
    best = scores.new_full((graph.neurons, ways, scores.shape[1]), UNREACHED)
    best[0, 0] = 0
    for layer in range(1, graph.height + 1):
        for number, (options, parents, children) in enumerate(graph.rounds(layer)):
            poured = best[parents] + scores[options][:, None]  # (m, ways, b)
            if number == 0:  # the first edge into each neuron of the layer, in their order
                best[graph.layer_neurons[layer]] = poured
            elif ways == 1:
                best[children] = torch.maximum(best[children], poured)
            else:
                both = torch.cat([best[children], poured], 1)
                best[children] = both.sort(dim=1, descending=True).values[:, :ways]
    return best


def _best_stops(graph: NeuronGraph, poured: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return score, neuron and way of the ``k`` best complete traces of every row, each (k, b)."""
    ways = poured.shape[1]
    ended = poured[graph.stop_neurons] + scores[graph.stop_options][:, None]  # (stops, ways, b)
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


def _trace_back(
    graph: NeuronGraph, poured: Tensor, scores: Tensor, value: Tensor, stop: Tensor, stop_way: Tensor
) -> Traces:
    """Return the traces from the chosen stops back to the root, given their score, neuron and way, each (k, b)."""
    exists = (value > UNREACHED).cpu().numpy()  # a DAG may have fewer traces than k
    row, rank = np.nonzero(exists.T)  # row after row
    log_p, neuron, way = (part.cpu().numpy()[rank, row] for part in (value, stop, stop_way))
    layers = graph.layers
    lengths = layers.depth[neuron].astype(np.int64)
    offsets = offsets_of(lengths)
    path = np.empty(offsets[-1], np.int32)
    for above in range(int(lengths.max(initial=0))):
        active = np.flatnonzero(lengths > above)
        path[offsets[active + 1] - 1 - above] = neuron[active]
        neuron[active], way[active] = _source(graph, poured, scores, neuron[active], way[active], row[active])
    return Traces(layers, offsets_of(exists.sum(0)), offsets, path, log_p.astype(np.float64))


def _source(
    graph: NeuronGraph, poured: Tensor, scores: Tensor, neuron: Ints, way: Ints, row: Ints
) -> tuple[Ints, Ints]:
    """Return the parent, and its way, from which each way of a neuron was poured: lower parents win ties."""
    options, counts = gather(*graph.options_into, neuron)
    parents = graph.layers.option_parent[options]
    if graph.is_tree:
        return parents, way
    ways, owner = poured.shape[1], np.repeat(np.arange(len(neuron)), counts)
    rows = _tensor(row[owner])
    sent = poured[_tensor(parents), :, rows] + scores[_tensor(options), rows][:, None]  # (parents, ways)
    best_first = np.lexsort((-sent.cpu().numpy().ravel(), np.repeat(owner, ways)))
    chosen = best_first[offsets_of(counts)[:-1] * ways + way]
    return parents[chosen // ways], chosen % ways


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
    mass = [scores.new_ones(1, scores.shape[1])]  # probability that a trace passes each neuron, by layer
    for layer in range(1, graph.height + 1):
        above, current = graph.layer_neurons[layer - 1], graph.layer_neurons[layer]
        total = scores.new_zeros(current.stop - current.start, scores.shape[1])
        for options, parents, children in graph.rounds(layer):
            sent = mass[-1][parents - above.start] * scores[options].exp()
            total = total.index_add(0, children - current.start, sent)
        mass.append(total)
    neuron = torch.cat(mass)
    ended = neuron[graph.stop_neurons] * scores[graph.stop_options].exp()  # (stops, b)
    label = _sum_by_node(graph, ended, graph.neuron_node[graph.stop_neurons])
    return Marginals(neuron, _sum_by_node(graph, neuron, graph.neuron_node), label)


def _sum_by_node(graph: NeuronGraph, values: Tensor, node: Tensor) -> Tensor:
    named = node >= 0  # all but a virtual root
    total = values.new_zeros(len(graph.layers.taxonomy), values.shape[1])
    return total.index_add(0, node[named], values[named])
