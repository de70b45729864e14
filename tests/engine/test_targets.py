from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hinet import LabelError, Layers, Taxonomy, Traces
from hinet.engine import Groups, Targets
from hinet.engine.model.groups import END
from hinet.engine.training.target_kernels import mixed_cost
from tests.engine.oracle import label_probabilities
from tests.strategies import all_scored, layered

seeds = st.integers(0, 10_000)


def random_scores(layers: Layers, seed: int) -> NDArray[np.float64]:
    """Random log probabilities of all options."""
    logits = np.random.default_rng(seed).standard_normal(len(layers.option_neuron)) * 2
    total = np.log(np.bincount(layers.option_parent, np.exp(logits)))
    return logits - total[layers.option_parent]


def labels_of(layers: Layers) -> list[str]:
    ids = layers.taxonomy.ids
    return sorted({ids[node] for node in layers.node[layers.ends].tolist()})


def probability_of(targets: Targets, target: int, scores: NDArray[np.float64]) -> float:
    """The forward sum over the steps of a target, as plainly as can be."""
    arrays, layers = targets.arrays, targets.layers
    first, last = int(arrays.step_offsets[target]), int(arrays.step_offsets[target + 1])
    mass, ended = [1.0] + [0.0] * (last - first - 1), 0.0
    for step in range(first, last):
        for choice in range(int(arrays.choice_offsets[step]), int(arrays.choice_offsets[step + 1])):
            option = int(layers.option_offsets[arrays.step_group[step]] + arrays.choice_option[choice])
            poured = mass[step - first] * float(np.exp(scores[option]))
            following = int(arrays.choice_next[choice])
            if following == END:
                ended += poured
            else:
                assert following > step - first  # parents come before children
                mass[following] += poured
    return ended


def kernel_cost(targets: Targets, scores: NDArray[np.float64], mix: float = 1.0) -> tuple[float, float]:
    """The cost of targets by the kernels, one entry a row, and its gradient, if logits are ``mix`` times the scores."""
    arrays, layers, groups = targets.arrays, targets.layers, Groups.of(targets.layers)
    alone = Targets(layers, arrays._replace(row_offsets=np.arange(len(arrays.entry_target) + 1))).arrays
    said = [np.zeros(0)]
    for target in arrays.entry_target:
        for neuron in arrays.step_group[arrays.step_offsets[target] : arrays.step_offsets[target + 1]]:
            start, end = layers.option_offsets[neuron : neuron + 2]
            if end - start > 1:
                said.append(scores[start:end])
    column = np.zeros((sum(map(len, said)), 4), np.float32)
    column[:, 0] = np.concatenate(said)
    cost, gradient = mixed_cost(alone, groups, alone.max_sizes(groups), column, np.array([mix, 0.0, 0.0, 0.0]))
    return float(cost), float(gradient[0])


@given(layers=layered(), seed=seeds)
@settings(max_examples=40)
def test_the_forward_sum_over_a_target_is_the_sum_over_the_traces_of_its_label(layers: Layers, seed: int) -> None:
    scores, labels = random_scores(layers, seed), labels_of(layers)
    sums = label_probabilities(layers, all_scored(layers, scores))
    targets = Targets.of(Traces.encode(layers, labels))
    assert len(targets) == len(labels)
    costs = 0.0
    for row, label in enumerate(labels):
        entries = range(int(targets.arrays.row_offsets[row]), int(targets.arrays.row_offsets[row + 1]))
        expected = sums[layers.taxonomy.position(label)]
        assert sum(float(targets.arrays.entry_share[entry]) for entry in entries) == pytest.approx(1)
        for entry in entries:
            assert probability_of(targets, int(targets.arrays.entry_target[entry]), scores) == pytest.approx(expected)
        costs -= np.log(expected)
    assert kernel_cost(targets, scores)[0] == pytest.approx(costs, rel=1e-4, abs=1e-4)


@given(layers=layered(), seed=seeds)
@settings(max_examples=25)
def test_kernels_return_the_gradient_of_the_cost(layers: Layers, seed: int) -> None:
    scores, step = random_scores(layers, seed), 0.02
    targets = Targets.of(Traces.encode(layers, labels_of(layers)))
    rise = kernel_cost(targets, scores, 0.7 + step)[0] - kernel_cost(targets, scores, 0.7 - step)[0]
    assert kernel_cost(targets, scores, 0.7)[1] == pytest.approx(rise / (2 * step), rel=1e-2, abs=1e-2)


@given(layers=layered(), seed=seeds)
@settings(max_examples=40)
def test_a_path_that_is_given_is_a_chain(layers: Layers, seed: int) -> None:
    scores = random_scores(layers, seed)
    traces = all_scored(layers, scores)
    ids = layers.taxonomy.ids
    paths = [[ids[layers.node[neuron]] for neuron in path] for path in traces]
    targets = Targets.of(Traces.encode_paths(layers, paths))
    assert np.diff(targets.arrays.row_offsets).tolist() == [1] * len(paths)
    for row, (path, log_p) in enumerate(traces.items()):
        target = int(targets.arrays.entry_target[row])
        first, last = (int(targets.arrays.step_offsets[target + place]) for place in (0, 1))
        assert targets.arrays.step_group[first:last].tolist() == [0, *path]
        assert np.diff(targets.arrays.choice_offsets[first : last + 1]).tolist() == [1] * (len(path) + 1)
        assert probability_of(targets, target, scores) == pytest.approx(np.exp(log_p))


def diamond() -> Layers:
    """The label x has three paths, of two lengths."""
    return Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b"), ("r", "x"), ("a", "x"), ("b", "x"), ("b", "y")]))


def test_a_path_of_a_label_at_two_depths_is_a_chain() -> None:
    """Every neuron has one parent although the label has two paths."""
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "x"), ("a", "x")]))
    assert layers.is_tree
    chain = Targets.of(Traces.encode_paths(layers, [("a", "x")]))
    whole = Targets.of(Traces.encode(layers, ["x"]))
    assert np.diff(chain.arrays.step_offsets).tolist() == [3]
    assert np.diff(whole.arrays.step_offsets).tolist() == [4]
    assert len(whole.arrays.entry_target) == 1


def test_some_of_the_paths_of_a_label_are_refused() -> None:
    layers = diamond()
    whole = Traces.encode(layers, ["y", "x"])
    partial = Traces(layers, np.array([0, 1, 3]), whole.offsets[:4].copy(), whole.neurons[: whole.offsets[3]].copy())
    with pytest.raises(LabelError, match="row 1: 2 of the paths of label 'x' are given; give one path, or the label"):
        Targets.of(partial)
    Targets.of(whole)


def test_whole_labels_and_paths_can_be_combined() -> None:
    layers, scores = diamond(), random_scores(diamond(), 3)
    paths = Traces.encode_paths(layers, [("b", "y"), ("b", "x"), ("x",)])
    targets = Targets.of(Traces.joined(layers, [paths, Traces.encode(layers, ["x", "y"])]))
    expected = all_scored(layers, scores)
    named = {tuple(layers.taxonomy.ids[layers.node[step]] for step in path): np.exp(p) for path, p in expected.items()}
    whole = named["a", "x"] + named["b", "x"] + named["x",]
    assert [probability_of(targets, int(target), scores) for target in targets.arrays.entry_target] == pytest.approx(
        [named["b", "y"], named["b", "x"], named["x",], whole, named["b", "y"]]
    )


def test_the_labels_of_a_row_share_it() -> None:
    targets = Targets.of(Traces.encode_sets(diamond(), [["y", "x", "a"], ["b"], [], ["x", "b"]]))
    arrays = targets.arrays
    assert np.diff(arrays.row_offsets).tolist() == [3, 1, 0, 2]
    assert arrays.entry_share.tolist() == pytest.approx([1 / 3] * 3 + [1.0] + [0.5] * 2)
    weighted = targets.weighted(np.array([3.0, 0.0, 1.0, 0.5]))
    assert weighted.arrays.entry_share.tolist() == pytest.approx([1.0] * 3 + [0.0] + [0.25] * 2)
    assert arrays.entry_share.tolist() == pytest.approx([1 / 3] * 3 + [1.0] + [0.5] * 2)


@given(layers=layered(), seed=seeds)
@settings(max_examples=30)
def test_taking_rows_gives_the_targets_of_these_rows(layers: Layers, seed: int) -> None:
    random, scores, labels = np.random.default_rng(seed), random_scores(layers, seed), labels_of(layers)
    sets = [[labels[number] for number in random.integers(len(labels), size=size)] for size in (1, 3, 2, 1)]
    chosen = random.integers(4, size=5)

    def shares(targets: Targets) -> list[list[tuple[float, float]]]:
        arrays = targets.arrays
        entries = [
            (probability_of(targets, int(target), scores), float(share))
            for target, share in zip(arrays.entry_target, arrays.entry_share, strict=True)
        ]
        bounds = arrays.row_offsets.tolist()
        return [sorted(entries[start:end]) for start, end in pairwise(bounds)]

    taken = Targets.of(Traces.encode_sets(layers, sets)).take(chosen)
    expected = shares(Targets.of(Traces.encode_sets(layers, [sets[row] for row in chosen])))
    assert [[pytest.approx(pair) for pair in row] for row in shares(taken)] == expected


@given(layers=layered(), seed=seeds)
@settings(max_examples=30)
def test_option_counts_are_the_rows_that_may_take_each_option(layers: Layers, seed: int) -> None:
    random, labels = np.random.default_rng(seed), labels_of(layers)
    rows = [labels[number] for number in random.integers(len(labels), size=6)]
    weights = random.random(6)
    expected = np.zeros(len(layers.option_neuron))
    for label, weight in zip(rows, weights, strict=True):
        options = set(Traces.encode(layers, [label]).options()[0].tolist())
        for option in options:
            siblings = sum(layers.option_parent[other] == layers.option_parent[option] for other in options)
            expected[option] += weight / siblings
    targets = Targets.of(Traces.encode(layers, rows)).weighted(weights)
    np.testing.assert_allclose(targets.option_counts(), expected, rtol=1e-5, atol=1e-6)


def test_labels_with_too_many_paths_to_list_have_targets() -> None:
    """A trace logits: two nodes a layer, each below both of the layer above, so that the label has 32,768 paths."""
    edges = [("r", f"{side}0") for side in "ab"]
    edges += [(f"{above}{layer}", f"{side}{layer + 1}") for layer in range(14) for above in "ab" for side in "ab"]
    layers = Layers.of(Taxonomy.from_edges([*edges, ("a14", "x"), ("b14", "x")]), ends=[])
    with pytest.raises(LabelError, match="label 'x' has 32,768 paths"):
        Traces.encode(layers, ["x"])
    targets = Targets.of_labels(layers, layers.taxonomy.positions(["x"]).astype(np.int64), np.array([0, 1]))
    assert np.diff(targets.arrays.step_offsets).tolist() == [32]  # the root, the rungs and x
    scores = random_scores(layers, 0)
    assert probability_of(targets, 0, scores) == pytest.approx(1.0)  # all traces end there
    assert kernel_cost(targets, scores)[0] == pytest.approx(0.0, abs=1e-5)
    scores[layers.option_offsets[0]] -= np.log(2)
    left = np.exp(scores[layers.option_offsets[0] : layers.option_offsets[1]]).sum()
    assert probability_of(targets, 0, scores) == pytest.approx(left)
