from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetError, Layers, Taxonomy
from hinet.networks import HierarchicalHead, NeuronGraph, downpour, marginals
from hinet.networks.graph import pour
from tests.networks.strategies import PARENT, enumerated, heads, hidden_rows
from tests.strategies import layered


def as_neurons(traces: object, row: int) -> list[tuple[int, ...]]:
    bounds = range(int(traces.row_offsets[row]), int(traces.row_offsets[row + 1]))  # type: ignore[attr-defined]
    return [tuple(traces.neurons[traces.offsets[t] : traces.offsets[t + 1]].tolist()) for t in bounds]  # type: ignore[attr-defined]


@given(heads())
def test_downpour_finds_the_best_of_all_traces(head: HierarchicalHead) -> None:
    scores = head.option_scores(hidden_rows()).detach()
    best = downpour(head.graph, scores)
    for row in range(3):
        every = enumerated(head.graph.layers, scores, row)
        (found,) = as_neurons(best, row)
        assert best.log_p is not None
        assert best.log_p[row] == pytest.approx(max(every.values()))
        assert every[found] == pytest.approx(max(every.values()))


@given(heads(), st.integers(1, 7))
def test_the_k_best_are_sorted_distinct_and_start_with_the_best(head: HierarchicalHead, k: int) -> None:
    scores = head.option_scores(hidden_rows()).detach()
    several, best = downpour(head.graph, scores, k), downpour(head.graph, scores)
    for row in range(3):
        every = enumerated(head.graph.layers, scores, row)
        found = as_neurons(several, row)
        values = several.log_p[several.row_offsets[row] : several.row_offsets[row + 1]]  # type: ignore[index]
        assert len(found) == len(set(found)) == min(k, len(every))
        assert values.tolist() == pytest.approx(sorted(every.values(), reverse=True)[:k])
        assert [every[path] for path in found] == pytest.approx(values.tolist())
        assert found[0] == as_neurons(best, row)[0]


@given(heads())
def test_theorem_1_no_sequence_through_a_neuron_beats_its_poured_trace(head: HierarchicalHead) -> None:
    scores = head.option_scores(hidden_rows()).detach()
    poured = pour(head.graph, scores, 1)[:, 0]
    for row in range(3):
        for path, score in enumerated(head.graph.layers, scores, row).items():
            assert all(score <= float(poured[neuron, row]) + 1e-9 for neuron in path)


@given(heads())
def test_theorem_2_a_stop_that_is_best_at_its_level_beats_all_longer_traces(head: HierarchicalHead) -> None:
    graph, layers = head.graph, head.graph.layers
    scores = head.option_scores(hidden_rows()).detach()
    poured = pour(graph, scores, 1)[:, 0]
    ended = poured[graph.stop_neurons] + scores[graph.stop_options]
    for row, level in itertools.product(range(3), range(1, layers.height + 2)):
        stops = ended[torch.from_numpy(layers.depth[graph.stop_neurons.numpy()] == level - 1), row]
        rivals = poured[torch.from_numpy(layers.depth == level), row]
        if len(stops) and (len(rivals) == 0 or stops.max() >= rivals.max()):
            longer = [s for p, s in enumerated(layers, scores, row).items() if len(p) >= level]
            assert all(score <= float(stops.max()) + 1e-9 for score in longer)


@given(layered(), st.integers(1, 4))
def test_ties_are_broken_consistently(layers: Layers, k: int) -> None:
    graph = NeuronGraph(layers)
    scores = torch.zeros(graph.options, 2)
    traces = downpour(graph, scores, k)
    (first, *_) = as_neurons(traces, 0)
    assert as_neurons(traces, 0) == as_neurons(traces, 1)
    assert len(first) == min(len(path) for path in enumerated(layers, scores, 0))  # the shallowest stop
    above = 0
    for neuron in first:  # every step from the lowest parent that leads there
        parents = [
            p
            for p in range(graph.neurons)
            if neuron in layers.option_neuron[layers.option_offsets[p] : layers.option_offsets[p + 1]]
        ]
        assert above == min(parents)
        above = neuron


def test_an_empty_batch_and_a_chain() -> None:
    layers = Layers.of(Taxonomy.from_edges([(str(n), str(n + 1)) for n in range(300)]))
    graph = NeuronGraph(layers)
    scores = torch.zeros(graph.options, 1)
    scores[graph.stop_options[:-1]] = -1.0
    assert downpour(graph, scores).decode() == ["300"]
    assert len(downpour(graph, scores[:, :0])) == 0


def test_stop_is_the_last_option_of_its_group() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("a", "b"), ("a", "c")]))
    assert NeuronGraph(layers).stop_options.tolist() == (layers.option_offsets[1:][layers.ends] - 1).tolist()


def test_a_score_that_is_not_a_number_is_reported() -> None:
    graph = NeuronGraph(Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b")])))
    scores = torch.zeros(graph.options, 3)
    scores[1, 2] = torch.nan
    with pytest.raises(HiNetError, match="row 2 of the batch: a score is not a number"):
        downpour(graph, scores)


@given(heads(PARENT))
def test_every_marginal_is_the_sum_over_its_traces(head: HierarchicalHead) -> None:
    layers = head.graph.layers
    scores = head.option_scores(hidden_rows()).detach()
    found = marginals(head.graph, scores)
    for row in range(3):
        neuron, node, label = np.zeros(len(layers.node)), np.zeros(len(layers.taxonomy)), np.zeros(len(layers.taxonomy))
        for path, score in enumerated(layers, scores, row).items():
            full = (0, *path)
            neuron[list(full)] += np.exp(score)
            named = {int(layers.node[n]) for n in full} - {-1}
            node[list(named)] += np.exp(score)
            if layers.node[full[-1]] >= 0:
                label[layers.node[full[-1]]] += np.exp(score)
        assert found.neuron[:, row].tolist() == pytest.approx(neuron.tolist())
        assert found.node[:, row].tolist() == pytest.approx(node.tolist())
        assert found.label[:, row].tolist() == pytest.approx(label.tolist())
    assert (found.node <= 1 + 1e-9).all()
