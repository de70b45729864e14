"""Labels summed over all their traces: all of them, the best of them, and at any temperature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hinet import HiNetError, Layers, Taxonomy
from hinet.engine import FoundLabels, Search, Targets
from hinet.engine.search.best_first import BlockSizes
from hinet.engine.search.corrections import TraceLogits, cells_of, odds_shift
from hinet.networks import HiNet, SparseBag
from hinet.networks.predictor import NetworkPredictor
from hinet.taxonomy import STOP
from tests.engine.oracle import FEATURES, biased_model, enumerated, label_probabilities, random_model, random_rows
from tests.strategies import Path, all_scored, layered

NEAR = 2e-4  # tolerance of log probabilities summed in single precision
ROWS = 3
seeds = st.integers(0, 10_000)


def sums_of(layers: Layers, every: list[dict[Path, float]]) -> Any:
    """(rows, nodes) The probability of every label, by listing its traces."""
    return np.array([label_probabilities(layers, traces) for traces in every])


def random_network(layers: Layers, seed: int) -> HiNet:
    torch.manual_seed(seed)
    network = HiNet(SparseBag(FEATURES, 4, dropout=0.0), layers, 4)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=1.5)
    return network.eval()


def enumerated_by(network: HiNet, rows: sp.csr_array) -> list[dict[Path, float]]:
    scores = next(NetworkPredictor(network)._scores(rows))
    return [all_scored(network.layers, scores[:, row].tolist()) for row in range(rows.shape[0])]


@pytest.mark.parametrize("odds_scale", [1.0, 0.6])
@given(layers=layered(), seed=seeds)
@settings(max_examples=40)
def test_probabilities_of_labels_are_sums_over_their_traces(odds_scale: float, layers: Layers, seed: int) -> None:
    assume(odds_scale == 1 or layers.taxonomy.is_tree)
    made, rows = random_model(layers, seed), random_rows(ROWS, seed)
    search = Search(replace(made.model, odds_scale=odds_scale))
    expected = sums_of(layers, enumerated(made, rows))
    if odds_scale != 1:
        best = expected.max(1)
        shift = odds_shift(best, odds_scale)[:, None]
        expected = (1 - shift) * expected + shift * (np.arange(expected.shape[1]) == expected.argmax(1)[:, None])
    found = search.label_probabilities(rows)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-3, atol=NEAR)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)


@given(layers=layered(), seed=seeds, least=st.sampled_from([1e-3, 0.05, 0.3]))
@settings(max_examples=40)
def test_improbable_labels_are_left_out_and_others_hardly_change(layers: Layers, seed: int, least: float) -> None:
    made, rows = random_model(layers, seed), random_rows(ROWS, seed)
    every = enumerated(made, rows)
    expected = sums_of(layers, every)
    likely = [{path: log_p for path, log_p in traces.items() if log_p >= np.log(least) + NEAR} for traces in every]
    found = Search(made.model).label_probabilities(rows, least).toarray()
    assert (found <= expected * (1 + 1e-3)).all()
    assert (found[found != 0] >= least).all()
    if layers.taxonomy.is_tree:
        sure = np.abs(np.log(np.maximum(expected, 1e-30) / least)) > NEAR
        np.testing.assert_allclose(found[sure], np.where(expected >= least, expected, 0)[sure], rtol=1e-3)
    else:
        assert (found >= sums_of(layers, likely) * (1 - 1e-3)).all()


def assert_best_labels(found: FoundLabels, every: list[dict[Path, float]], k: int, slack: float) -> None:
    """The law of the best labels: different, in order, the largest sums, and each with the best of its traces."""
    traces = found.found.traces
    layers = traces.layers
    assert traces.log_p is not None
    for row, scored in enumerate(every):
        sums = label_probabilities(layers, scored)
        labels = np.unique(layers.node[layers.ends])
        part = slice(int(traces.row_offsets[row]), int(traces.row_offsets[row + 1]))
        nodes = traces.end_nodes[part]
        assert len(nodes) == len({*nodes.tolist()}) == min(k, len(labels))
        np.testing.assert_allclose(sums[nodes], np.sort(sums[labels])[::-1][:k], rtol=1e-3, atol=NEAR)
        assert (found.probability[part] <= sums[nodes] + NEAR).all()
        assert (found.probability[part] >= sums[nodes] - NEAR - slack).all()
        for trace in range(part.start, part.stop):
            start, end = int(traces.offsets[trace]), int(traces.offsets[trace + 1])
            path = tuple(traces.neurons[start:end].tolist())
            node = layers.node[path[-1] if path else 0]
            best = max(p for other, p in scored.items() if layers.node[other[-1] if other else 0] == node)
            assert scored[path] == pytest.approx(best, abs=NEAR)
            assert traces.log_p[trace] == pytest.approx(best, abs=NEAR)
            along = found.found.log_p[start:end]
            assert (np.diff(np.append(along, traces.log_p[trace])) <= NEAR).all()


@pytest.mark.parametrize("k", [1, 3, 1_000])
@given(layers=layered(), seed=seeds)
@settings(max_examples=40)
def test_the_best_labels_have_the_largest_sums_and_their_best_traces(k: int, layers: Layers, seed: int) -> None:
    made, rows = random_model(layers, seed), random_rows(ROWS, seed)
    search = Search(made.model)
    found = search.top_labels(rows, k)
    missed = 1e-4 * len(layers.node) * (not layers.taxonomy.is_tree)
    assert_best_labels(found, enumerated(made, rows), k, missed)
    if k == 1 and not layers.taxonomy.is_tree:
        np.testing.assert_array_equal(found.found.traces.end_nodes, search.labels(rows).nodes)


@given(layers=layered(), seed=seeds, k=st.sampled_from([1, 2, 50]))
@settings(max_examples=25)
def test_networks_sum_over_traces_too(layers: Layers, seed: int, k: int) -> None:
    network, rows = random_network(layers, seed), random_rows(ROWS, seed)
    search, every = NetworkPredictor(network), enumerated_by(network, rows)
    np.testing.assert_allclose(search.label_probabilities(rows).toarray(), sums_of(layers, every), atol=NEAR)
    assert_best_labels(search.top_labels(rows, k), every, k, 0.0)


@pytest.mark.parametrize("engine", ["fused", "torch"])
@given(layers=layered(), seed=seeds, factor=st.sampled_from([0.2, 1.0, 3.0]))
@settings(max_examples=20)
def test_trace_logits_give_the_probability_of_labels_at_any_factor(
    engine: str, layers: Layers, seed: int, factor: float
) -> None:
    rows = random_rows(ROWS, seed)
    random = np.random.default_rng(seed)
    nodes = random.choice(np.unique(layers.node[layers.ends]), ROWS).astype(np.int64)
    targets = Targets.of_labels(layers, nodes, np.arange(ROWS + 1))
    if engine == "fused":
        model = random_model(layers, seed).model
        search: Any = Search(model)
        sharpened = replace(model, experts=model.experts._replace(mix=model.experts.mix * np.float32(factor)))
        expected = Search(sharpened).label_probabilities(rows).toarray()
    else:
        network = random_network(layers, seed)
        search = NetworkPredictor(network)
        scores = next(search._scores(rows)).double() * factor
        for start, end in zip(layers.option_offsets[:-1], layers.option_offsets[1:], strict=True):
            scores[start:end] = scores[start:end].log_softmax(0)
        expected = sums_of(layers, [all_scored(layers, scores[:, row].tolist()) for row in range(ROWS)])
    logits_along = TraceLogits.of(targets, search.logits_along(rows, targets))
    np.testing.assert_allclose(
        np.exp(logits_along.log_p(factor)), expected[np.arange(ROWS), nodes], rtol=2e-3, atol=1e-7
    )
    certain = np.diff(layers.option_offsets)[targets.arrays.step_group[targets.arrays.entry_steps()[1]]] == 1
    assert cells_of(targets).sum() == len(logits_along.logits) + certain.sum() + len(logits_along.choice_from)


def test_labels_of_many_improbable_traces_are_ranked() -> None:
    """Three labels are reached by 900 paths each, all of them less probable than what is left aside at first."""
    size = 30
    edges = [("r", "other"), *[("r", f"a{i}") for i in range(size)]]
    middle = [(f"a{i}", f"b{i}.{j}") for i in range(size) for j in range(size)]
    edges += middle + [(child, leaf) for _, child in middle for leaf in ("x", "y", "z")]
    layers = Layers.of(Taxonomy.from_edges(edges), ends=[])
    made = biased_model(layers, {0: float(np.log(0.25 / 0.75 * size))})  # other has probability 0.25
    bias = made.model.experts.deep.bias
    ids = layers.taxonomy.ids
    for neuron in range(len(layers.node)):
        options = range(int(layers.option_offsets[neuron]), int(layers.option_offsets[neuron + 1]))
        for place, option in enumerate(options):
            target = int(layers.option_neuron[option])
            share = {"x": 0.5, "y": 0.1, "z": 0.4}.get(ids[layers.node[target]]) if target != STOP else None
            if share:
                bias[made.model.groups.first_row[neuron] + place] = np.log(share)
    found = Search(made.model).top_labels(random_rows(1), 3)
    assert [ids[node] for node in found.found.traces.end_nodes] == ["x", "z", "other"]
    assert found.probability == pytest.approx([0.375, 0.3, 0.25], abs=1e-4)
    assert found.found.traces.log_p is not None
    assert np.exp(found.found.traces.log_p[:2]) == pytest.approx([0.375 / 900, 0.3 / 900], rel=1e-3)
    with pytest.raises(HiNetError, match="k: expected a whole number of at least 1, got 0"):
        Search(made.model).top_labels(random_rows(1), 0)


def test_blocks_of_rows_give_the_same_labels() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", p) for p in "abc"] + [(p, x) for p in "abc" for x in "uvwxyz"]))
    made, rows = random_model(layers, 3), random_rows(150, 3)
    search = Search(made.model, threads=2)
    whole, every = search.top_labels(rows, 4), search.label_probabilities(rows)
    search = replace(search, blocks=BlockSizes(cells=100))
    parts = search.top_labels(rows, 4)
    np.testing.assert_array_equal(parts.probability, whole.probability)
    np.testing.assert_array_equal(parts.found.traces.neurons, whole.found.traces.neurons)
    np.testing.assert_array_equal(search.label_probabilities(rows).toarray(), every.toarray())
    empty = search.label_probabilities(rows[:0])
    assert (empty.shape, len(search.top_labels(rows[:0], 2))) == ((0, len(layers.taxonomy)), 0)
