"""The engine against torch: one model, two ways to compute its scores, its cost, its gradients and its answers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hinet import HiNetError, Layers, Taxonomy, Traces
from hinet.compiled import interpreting
from hinet.data.matrices import SparseMatrix
from hinet.engine import (
    DeepExpert,
    EngineSettings,
    Experts,
    FusedModel,
    Groups,
    Search,
    Targets,
    ValidationRows,
    fit,
)
from hinet.engine.model.experts import LabelWeights, Memory, WideExpert
from hinet.engine.model.experts.deep import linear_units
from hinet.engine.model.experts.wide import WEIGHT
from hinet.engine.model.groups import LabelSpans
from hinet.engine.search.scoring_kernels import expert_logits
from hinet.engine.training import deep_kernels
from hinet.engine.training import wide as wide_training
from hinet.engine.training.deep import DeepAccumulators, DropoutMasks
from hinet.engine.training.deep_kernels import train_deep
from hinet.engine.training.rows import RowChunk, TrainingSet
from hinet.engine.training.wide import IndependentGroups, WidePlan
from hinet.engine.training.wide_rows import ROW_WEIGHT, WideWeights, find_weights, train_wide
from hinet.networks import (
    DenseFeatures,
    HeadSettings,
    HiNet,
    SparseBag,
    SparseRows,
    TrainingSettings,
    default,
    downpour,
    marginals,
    predict_traces,
    train,
)
from hinet.networks import (
    Targets as TorchTargets,
)
from hinet.networks.heads import segment_logsumexp
from hinet.ragged import offsets_of
from tests.engine.fused_network import FusedNetwork, from_fused, to_fused, wide_matrix
from tests.networks.strategies import enumerated
from tests.strategies import layered

FEATURES, WIDTH = 7, 5
HUGE = 1e8  # a slot that no gradient moves
RATE = 1e4  # its root: one step is then the gradient itself
NO_DROPS = DropoutMasks(np.ones(1, np.float32), np.ones(WIDTH + 1, np.float32), np.ones(1, np.float32))
FIRST_ROW = RowChunk(np.array([0]), 0, 1, (RATE, RATE))
CLOSE = {"rtol": 1e-4, "atol": 1e-4}
MIXES = {
    "deep": (1.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "wide": (0.0, 1.0, 0.0, 0.0, 0.0, 0.0),
    "flat": (0.0, 0.0, 1.0, 0.0, 0.0, 0.0),
    "prototypes": (0.0, 0.0, 0.0, 1.0, 0.0, 0.0),
    "margin": (0.0, 0.0, 0.0, 0.0, 0.0, 1.0),
    "fused": (0.6, 0.5, 0.0, 0.0, 0.0, 0.0),
    "all": (0.4, 0.7, 0.3, 0.2, 0.0, 0.1),
}
few, fewer = settings(max_examples=25), settings(max_examples=12)


class Case(NamedTuple):
    """Layers, rows of features, and what else is random about an example."""

    layers: Layers
    rows: sp.csr_array
    random: np.random.Generator


def woven_layers(seed: int) -> Layers:
    """A DAG in which most labels have several paths, some inner nodes among them."""
    random = np.random.default_rng(seed)
    edges = [("r", "n0"), ("r", "n1")]
    for node in range(2, 8):
        parents = random.choice(node, size=min(node, random.integers(1, 4)), replace=False)
        edges += [(f"n{parent}", f"n{node}") for parent in parents]
    return Layers.of(Taxonomy.from_edges(edges), ends=[f"n{node}" for node in range(1, 8, 2)])


@st.composite
def cases(draw: st.DrawFn, rows: int = 3) -> Case:
    """A few sparse rows above any layers; the last row has no features."""
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    dense = random.normal(size=(rows, FEATURES)) * (random.random((rows, FEATURES)) < 0.6)
    dense[-1] = 0
    layers = draw(st.one_of(layered(), st.builds(woven_layers, st.integers(0, 99))))
    return Case(layers, sp.csr_array(dense.astype(np.float32)), random)


def normal(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.normal(size=shape).astype(np.float32)


def deep_expert(random: np.random.Generator, rows: int) -> DeepExpert:
    slope = (np.arange(WIDTH) < linear_units(WIDTH)).astype(np.float32)
    return DeepExpert.of(
        normal(random, FEATURES, WIDTH), normal(random, WIDTH), normal(random, rows, WIDTH), normal(random, rows), slope
    )


def wide_expert(random: np.random.Generator, groups: Groups, *, hashed: bool = False) -> WideExpert:
    """An expert with a weight for about half of all pairs; ``hashed`` features share the number they are known by."""
    known = random.integers(0, 4, FEATURES) if hashed else random.permutation(FEATURES)
    pairs = random.random((int(known.max()) + 1, groups.rows)) < 0.5
    feature, row = np.nonzero(pairs)
    group = groups.row_groups()[row]
    order = np.lexsort((row, feature, group))
    feature, row, group = feature[order], row[order], group[order]
    slot, counts = np.unique(np.stack([group, feature]), axis=1, return_counts=True)
    weights = np.empty(len(row), WEIGHT)
    weights["row"], weights["weight"] = row, normal(random, len(row))
    return WideExpert(
        known.astype(np.int32),
        offsets_of(np.bincount(slot[0].astype(np.int64), minlength=len(groups.first_row) - 1)),
        slot[1].astype(np.int32),
        offsets_of(counts),
        weights,
        normal(random, groups.rows),
    )


def fused_model(case: Case, mix: str) -> FusedModel:
    """A model of random experts in 8 bits, as trained ones are; those on labels are for trees."""
    layers, random = case.layers, case.random
    groups = Groups.of(layers)
    spans = LabelSpans.of(layers)
    labels = len(spans.neuron)
    means = sp.random_array((FEATURES, labels), density=0.5, format="csr", rng=random, dtype=np.float64)
    prototypes = LabelWeights(
        means.indptr.astype(np.int64), means.indices.astype(np.int32), 10 * means.data.astype(np.float32)
    )
    experts = Experts(
        deep_expert(random, groups.rows).quantised(),
        wide_expert(random, groups, hashed=bool(random.integers(2))),
        deep_expert(random, labels).quantised(),
        prototypes,
        Memory.none(),
        prototypes._replace(
            value=prototypes.value[::-1].copy(), bias=random.standard_normal(labels).astype(np.float32)
        ),
        spans,
        np.array(MIXES[mix], np.float32),
    )
    return FusedModel(layers, experts)


def some_traces(case: Case, most: int, rows: int | None = None) -> Traces:
    """From one to ``most`` labels for each row, with every path they have."""
    layers, random = case.layers, case.random
    ending = sorted({layers.taxonomy.ids[node] for node in layers.node[layers.ends] if node >= 0})
    count = case.rows.shape[0] if rows is None else rows
    return Traces.encode_sets(layers, [random.choice(ending, random.integers(1, most + 1)) for _ in range(count)])


def batch_of(rows: sp.csr_array) -> SparseRows:
    return SparseRows.of(rows, 0, rows.shape[0])


def assert_same_traces(found: Traces, expected: Traces) -> None:
    for name in ("row_offsets", "offsets", "neurons"):
        assert np.array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.log_p, expected.log_p, **CLOSE)


def marginal_cost(scores: torch.Tensor, targets: TorchTargets) -> torch.Tensor:
    """The cost of every row from the scores of all options: marginal over a label's traces, mean over labels."""
    batch = targets.batch(np.arange(len(targets)))
    walked = scores.new_zeros(len(batch.trace_row))
    walked = walked.index_add(0, batch.step_trace, scores[batch.step_option, batch.step_row])
    cost = -segment_logsumexp(walked, batch.trace_counts)
    labels = torch.bincount(batch.label_row, minlength=batch.rows)
    return scores.new_zeros(batch.rows).index_add(0, batch.label_row, cost) / labels


# Scores


@pytest.mark.parametrize("mix", MIXES)
@given(cases())
@few
def test_the_logits_of_the_kernels_are_those_of_the_network(mix: str, case: Case) -> None:
    assume(case.layers.taxonomy.is_tree or mix in ("deep", "wide", "fused"))
    model = fused_model(case, mix)
    groups, rows = model.groups, SparseMatrix.of(case.rows)
    ends = np.unique(case.layers.node[case.layers.ends & (case.layers.node >= 0)])
    targets = Targets.of(Traces.of_nodes(case.layers, np.tile(ends, 3)))
    row_of = np.repeat(np.arange(3), len(ends))
    said = expert_logits(rows, row_of, targets.arrays, groups, model.experts)
    expected = FusedNetwork.of(model).logits(batch_of(case.rows)).detach().numpy()  # (output rows, 3)
    arrays, place = targets.arrays, 0
    for row, target in zip(row_of, arrays.entry_target, strict=True):
        for neuron in arrays.step_group[arrays.step_offsets[target] : arrays.step_offsets[target + 1]]:
            own = slice(groups.first_row[neuron], groups.first_row[neuron + 1])
            size = own.stop - own.start
            np.testing.assert_allclose(said[place : place + size] @ model.experts.mix, expected[own, row], **CLOSE)
            place += size
    assert place == len(said)


@pytest.mark.parametrize("rows", [3, 20], ids=["one by one", "together"])
@pytest.mark.parametrize("mix", ["deep", "fused", "all"])
@given(st.data())
@fewer
def test_the_search_finds_what_the_network_scores(mix: str, rows: int, data: st.DataObject) -> None:
    case = data.draw(cases(rows))
    assume(case.layers.taxonomy.is_tree or mix != "all")
    model = fused_model(case, mix)
    network = FusedNetwork.of(model)
    scores = network.option_scores(batch_of(case.rows)).detach()
    found = Search(model, threads=1).traces(case.rows, 4).traces
    assert found.log_p is not None
    for row in range(rows):
        known = enumerated(case.layers, scores, row)
        own = range(int(found.row_offsets[row]), int(found.row_offsets[row + 1]))
        log_p = [known[tuple(found.neurons[found.offsets[n] : found.offsets[n + 1]].tolist())] for n in own]
        np.testing.assert_allclose(found.log_p[own.start : own.stop], log_p, **CLOSE)
        np.testing.assert_allclose(log_p, sorted(known.values(), reverse=True)[:4], **CLOSE)
    best = downpour(network.graph, scores, 4)
    np.testing.assert_allclose(found.log_p, best.log_p, **CLOSE)


@given(cases())
@few
def test_labels_have_the_probability_of_the_marginals(case: Case) -> None:
    assume(not (case.layers.node[case.layers.ends] < 0).any())
    model = fused_model(case, "all" if case.layers.taxonomy.is_tree else "fused")
    network = FusedNetwork.of(model)
    found = Search(model, threads=1).labels(case.rows)
    every = marginals(network.graph, network.option_scores(batch_of(case.rows)).detach())
    np.testing.assert_allclose(found.probability, every.label.max(0).values, **CLOSE)
    np.testing.assert_allclose(found.probability, every.label[found.nodes, range(3)], **CLOSE)


# Costs and gradients


class DeepStep(NamedTuple):
    """Cost of one call of the deep kernel, and the decrease of each array."""

    cost: float
    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    embedding: NDArray[np.float32]
    embedding_bias: NDArray[np.float32]


def deep_step(deep: DeepExpert, rows: sp.csr_array, targets: Targets, adjustment: NDArray[np.float32]) -> DeepStep:
    """Train on the first row alone, with accumulators so large that a step is the gradient."""
    data = TrainingSet.of(SparseMatrix.of(rows), targets.arrays, Groups.of(targets.layers), adjustment)
    moved = DeepExpert(*(array.copy() for array in deep))
    slots = DeepAccumulators(np.full(FEATURES, HUGE, np.float32), np.full(len(deep.bias), HUGE, np.float32))
    cost = train_deep(data, FIRST_ROW, NO_DROPS, moved, slots)
    return DeepStep(
        cost,
        deep.weight - moved.weight,
        (deep.bias - moved.bias) / deep_kernels.BIAS_RATE,
        deep.embedding - moved.embedding,
        (deep.embedding_bias - moved.embedding_bias) / (deep_kernels.HIDDEN_BIAS_RATE * np.float32(RATE)),
    )


def deep_network(layers: Layers, deep: DeepExpert, adjustment: NDArray[np.float32]) -> HiNet:
    network = HiNet(SparseBag(FEATURES, WIDTH, dropout=0.0), layers, WIDTH, HeadSettings())
    state = {
        "features.weight": deep.embedding,
        "features.bias": deep.embedding_bias,
        "head.weight": deep.weight,
        "head.bias": deep.bias,
    }
    network.load_state_dict({name: torch.tensor(array) for name, array in state.items()})
    network.head.adjustment.copy_(torch.tensor(adjustment))
    return network.train().double()


@pytest.mark.parametrize("most", [1, 3], ids=["one label", "several labels"])
@given(st.data())
@few
def test_the_cost_of_the_deep_kernel_is_that_of_the_network(most: int, data: st.DataObject) -> None:
    case = data.draw(cases(1 + most))
    traces = some_traces(case, most)
    groups = Groups.of(case.layers)
    deep, adjustment = deep_expert(case.random, groups.rows), normal(case.random, groups.rows)
    weights = case.random.uniform(0.2, 3, len(traces))
    targets = Targets.of(traces).weighted(weights)
    network = deep_network(case.layers, deep, adjustment)
    expected = network.cost(batch_of(case.rows), TorchTargets(traces).batch(np.arange(len(traces)))).detach()
    for row in range(len(traces)):
        found = deep_step(deep, case.rows[[row]], targets.take(np.array([row])), adjustment)
        assert found.cost == pytest.approx(weights[row] * expected[row].item(), rel=1e-4, abs=1e-4)


def test_a_node_at_two_depths_is_one_label_with_two_paths() -> None:
    """Its neurons form a tree, though the taxonomy does not."""
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "z"), ("a", "z")]), ends=["a"])
    both = Targets.of(Traces.encode_sets(layers, [["a", "z"], ["z"]]))
    assert both.arrays.row_offsets.tolist() == [0, 2, 3]
    assert both.arrays.entry_share.tolist() == [0.5, 0.5, 1.0]
    path = Targets.of(Traces.encode_paths(layers, [["a", "z"]]))
    assert len(path.arrays.choice_option) == 3  # a, z and stop: not the way from the root to z


@given(cases(1))
@few
def test_a_single_path_costs_the_same_in_both(case: Case) -> None:
    model = fused_model(case, "deep")
    adjustment = normal(case.random, model.groups.rows)
    path = Search(model, threads=1).traces(case.rows).traces  # one path of labels with several
    deep = model.experts.deep.in_floats()
    network = deep_network(case.layers, deep, adjustment)
    expected = network.cost(batch_of(case.rows), TorchTargets(path).batch(np.arange(1))).detach()
    found = deep_step(deep, case.rows, Targets.of(path), adjustment)
    assert found.cost == pytest.approx(expected[0].item(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("most", [1, 3], ids=["one label", "several labels"])
@given(st.data())
@few
def test_the_deep_kernel_goes_down_the_gradient(most: int, data: st.DataObject) -> None:
    case = data.draw(cases(2))
    model = fused_model(case, "deep")
    deep, adjustment = model.experts.deep.in_floats(), normal(case.random, model.groups.rows)
    traces = some_traces(case, most, rows=1)
    weight = case.random.uniform(0.2, 3)
    found = deep_step(deep, case.rows[[0]], Targets.of(traces).weighted(np.array([weight])), adjustment)
    network = FusedNetwork.of(model).double()
    logits = network.logits(batch_of(case.rows[[0]]))
    cost = (
        weight
        * marginal_cost(network.head.normalised(logits + torch.tensor(adjustment)[:, None]), TorchTargets(traces)).sum()
    )
    assert found.cost == pytest.approx(cost.item(), rel=1e-4, abs=1e-4)
    grads = grads_of(cost, logits)
    assume(not ((grads.abs() - float(deep_kernels.CERTAIN)).abs() < 1e-6).any())
    grads = torch.where(grads.abs() > float(deep_kernels.CERTAIN), grads, 0)  # the others are left out on purpose
    parameters = (network.head.weight, network.head.bias, network.features.weight, network.features.bias)
    for moved, gradient in zip(found[1:], torch.autograd.grad(logits, parameters, grads), strict=True):
        np.testing.assert_allclose(moved, gradient.to_dense(), **CLOSE)


def grads_of(cost: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the logits, which is zero where no group has a choice."""
    if not cost.requires_grad or not len(logits):
        return torch.zeros_like(logits)
    return torch.autograd.grad(cost, logits, retain_graph=True)[0]


def without_certain_groups(grads: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Leave out the groups that the kernels of the wide expert leave alone: those without a steep slope."""
    group = torch.from_numpy(groups.row_groups())
    steepest = torch.zeros(len(groups.first_row) - 1, dtype=grads.dtype)
    steepest = steepest.scatter_reduce(0, group, grads[:, 0].abs(), "amax")
    assume(not ((steepest - float(wide_training.CERTAIN)).abs() < 1e-6).any())
    return torch.where(steepest[group][:, None] >= float(wide_training.CERTAIN), grads, 0)


@pytest.mark.parametrize("most", [1, 3], ids=["one label", "several labels"])
@given(st.data())
@few
def test_the_wide_kernel_goes_down_the_gradient(most: int, data: st.DataObject) -> None:
    case = data.draw(cases(2))
    rows, groups, random = case.rows[[0]], Groups.of(case.layers), case.random
    model = fused_model(case, "wide")
    wide = wide_expert(random, groups)._replace(feature_rank=np.arange(FEATURES, dtype=np.int32))
    network = FusedNetwork.of(FusedModel(case.layers, model.experts._replace(wide=wide))).double()
    traces, weight, adjustment = some_traces(case, most, rows=1), random.uniform(0.2, 3), normal(random, groups.rows)
    targets = Targets.of(traces).weighted(np.array([weight]))
    matrix = wide_matrix(wide)
    weights = np.empty(matrix.nnz, ROW_WEIGHT)
    weights["row"], weights["weight"], weights["accumulator"] = matrix.indices, matrix.data, HUGE
    offsets, bias, sums = (
        matrix.indptr.astype(np.int64),
        wide.bias.copy(),
        np.full(groups.rows, HUGE, np.float32),
    )
    training = WideWeights(offsets, weights, bias, sums)
    train_rows = TrainingSet.of(SparseMatrix.of(rows), targets.arrays, groups, adjustment)
    found = train_wide(train_rows, FIRST_ROW, training, find_weights(train_rows, training))
    logits = network.logits(batch_of(rows))
    cost = (
        weight
        * marginal_cost(network.head.normalised(logits + torch.tensor(adjustment)[:, None]), TorchTargets(traces)).sum()
    )
    assert found == pytest.approx(cost.item(), rel=1e-4, abs=1e-4)
    grads = without_certain_groups(grads_of(cost, logits), groups)
    by_weight, by_bias = torch.autograd.grad(logits, (network.wide.weight, network.wide.bias), grads)
    np.testing.assert_allclose(matrix.data - weights["weight"], by_weight, **CLOSE)
    np.testing.assert_allclose((wide.bias - bias) / wide_training.BIAS_RATE, by_bias, **CLOSE)


@given(cases(2))
@few
def test_groups_trained_by_themselves_go_down_the_gradient(case: Case) -> None:
    """One row, twice: the second time at half the rate and with weights that are no longer zero."""
    rows, groups, random = case.rows[[0]], Groups.of(case.layers), case.random
    path = Search(fused_model(case, "deep"), threads=1).traces(rows).traces
    weight, adjustment = random.uniform(0.2, 3), normal(random, groups.rows)
    targets = Targets.of(path).weighted(np.array([weight]))
    assume(len(targets.arrays.choice_option) == len(targets.arrays.step_group))
    data = TrainingSet.of(SparseMatrix.of(rows), targets.arrays, groups, adjustment)
    epochs, rate, slot = 2, 0.3, 0.05
    plan = WidePlan(np.arange(FEATURES, dtype=np.int32), FEATURES, epochs, rate, slot, 0, 1, np.zeros(groups.rows))
    training = IndependentGroups(data, plan)
    found = sum(job.run_epoch(0, lambda _: None) for job in training.jobs())
    trained = training.expert()
    untrained = trained._replace(weights=trained.weights.copy(), bias=np.zeros_like(trained.bias))
    untrained.weights["weight"] = 0
    experts = fused_model(case, "wide").experts._replace(wide=untrained)
    network = FusedNetwork.of(FusedModel(case.layers, experts)).double()
    parameters = [network.wide.weight, network.wide.bias]
    slots = [torch.full_like(parameters[0], slot), torch.ones_like(parameters[1])]
    for epoch in range(epochs):
        logits = network.logits(batch_of(rows))
        scores = network.head.normalised(logits + torch.tensor(adjustment)[:, None])
        cost = weight * marginal_cost(scores, TorchTargets(path)).sum()
        grads = without_certain_groups(grads_of(cost, logits), groups)
        gradients = torch.autograd.grad(logits, parameters, grads)
        with torch.no_grad():
            for number, share in enumerate((1.0, float(wide_training.BIAS_RATE))):
                slots[number] += gradients[number].square()
                step = share * rate * (1 - epoch / epochs)
                parameters[number] -= step * gradients[number] / slots[number].sqrt()
    assert found == pytest.approx(cost.item(), rel=1e-4, abs=1e-4)
    np.testing.assert_allclose(wide_matrix(trained).data, parameters[0].detach(), **CLOSE)
    np.testing.assert_allclose(trained.bias, parameters[1].detach(), **CLOSE)


# Whole models

LABELS = ["a", "c", "d", "e", "f", "g"]


def small_layers(*, tree: bool) -> Layers:
    edges = [("r", "a"), ("r", "b"), ("b", "c"), ("b", "d"), ("d", "e"), ("d", "f"), ("a", "g")]
    return Layers.of(Taxonomy.from_edges([*edges, *([] if tree else [("a", "f"), ("a", "d")])]), ends=LABELS)


def labelled_rows(layers: Layers, seed: int) -> tuple[sp.csr_array, Traces]:
    """Rows in which each label has a feature of its own, at times missing, among noise."""
    random = np.random.default_rng(seed)
    label = random.integers(len(LABELS), size=150)
    dense = np.where(random.random((150, 20)) < 0.3, random.random((150, 20)), 0)
    dense[np.arange(150), label] = random.random(150) < 0.8
    return sp.csr_array(dense.astype(np.float32)), Traces.encode(layers, [LABELS[number] for number in label])


@pytest.mark.parametrize("tied", [False, True], ids=["free", "tied"])
@pytest.mark.parametrize("tree", [True, False], ids=["tree", "dag"])
def test_the_engine_predicts_with_models_trained_by_torch(tree: bool, tied: bool) -> None:
    layers = small_layers(tree=tree)
    rows, traces = labelled_rows(layers, 0)
    torch.manual_seed(0)
    network = HiNet(SparseBag(20, WIDTH), layers, WIDTH, HeadSettings(tied=True) if tied else default())
    train(network, rows, TorchTargets(traces), TrainingSettings(epochs=3, batch=16, sparse_rate=2.0, dense_rate=5e-3))
    models = [to_fused(network)]
    if not tied:
        models.append(FusedModel.from_arrays(layers, {name: t.numpy() for name, t in network.state_dict().items()}))
    new_rows, _ = labelled_rows(layers, 1)
    few = new_rows[:20]
    for model in models:
        with interpreting(lambda kernel, arguments: None):  # kernels are compiled for experts in 8 bits
            found = Search(model, threads=1).traces(few, 3).traces
        assert_same_traces(found, predict_traces(network, few, k=3))
        assert_same_traces(predict_traces(from_fused(model), new_rows, k=3), predict_traces(network, new_rows, k=3))
        rounded = FusedModel(layers, model.experts._replace(deep=model.experts.deep.quantised()))
        found = Search(rounded).traces(new_rows, 3).traces
        assert_same_traces(found, predict_traces(from_fused(rounded), new_rows, k=3))


@pytest.mark.parametrize("wide", [True, False], ids=["wide", "deep alone"])
@pytest.mark.parametrize("tree", [True, False], ids=["tree", "dag"])
def test_torch_predicts_with_models_trained_by_the_engine(tree: bool, wide: bool) -> None:
    layers = small_layers(tree=tree)
    rows, traces = labelled_rows(layers, 0)
    valid = ValidationRows(*labelled_rows(layers, 2))
    settings = EngineSettings(width=WIDTH, flat_width=3, wide=wide, flat=tree and wide, deep_epochs=4, threads=1)
    model = fit(rows, traces, settings, valid=valid if wide else None)
    assert model.experts.deep.negative_slope.sum() == 2 * linear_units(WIDTH)
    new_rows, _ = labelled_rows(layers, 1)
    expected = Search(model).traces(new_rows, 3).traces
    assert_same_traces(predict_traces(FusedNetwork.of(model), new_rows, k=3), expected)
    if wide:
        with pytest.raises(HiNetError, match="expert besides the deep one"):
            from_fused(model)
    else:
        assert_same_traces(predict_traces(from_fused(model), new_rows, k=3), expected)


@pytest.mark.parametrize("width", range(1, 12))
def test_both_agree_how_many_units_are_linear(width: int) -> None:
    assert SparseBag(1, width).linear_units == linear_units(width)


def test_only_a_sparse_bag_below_sibling_groups_is_a_fused_model() -> None:
    network = HiNet(DenseFeatures(4, (WIDTH,)), small_layers(tree=True), WIDTH)
    with pytest.raises(HiNetError, match=r"reads a SparseBag below .* got DenseFeatures and SiblingHead"):
        to_fused(network)
