"""Several labels per row: layers, targets, costs, gradients and answers of the engine against torch and brute force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hinet import HiNetError, Layers, Taxonomy, Traces
from hinet.classifier.predicted_sets import SetRule, answer_sets
from hinet.data.matrices import SparseMatrix
from hinet.engine import EngineSettings, FusedModel, Groups, Search, Targets, ValidationRows, fit
from hinet.engine.model.experts import Mix
from hinet.engine.search.best_first import TraceSearch
from hinet.engine.search.scoring_kernels import group_logits
from hinet.engine.training import deep_kernels
from hinet.engine.training import wide as wide_training
from hinet.engine.training.deep import DeepAccumulators, LabelTargets
from hinet.engine.training.deep_kernels import train_deep, train_flat
from hinet.engine.training.rows import TrainingSet
from hinet.engine.training.wide_rows import ROW_WEIGHT, WideWeights, find_weights, train_wide
from hinet.networks import Targets as TorchTargets
from tests.engine.fused_network import FusedNetwork, wide_matrix
from tests.engine.set_head import SetHead, visited_options
from tests.engine.test_parity import (
    CLOSE,
    FIRST_ROW,
    HUGE,
    NO_DROPS,
    RATE,
    Case,
    batch_of,
    cases,
    fused_model,
    normal,
    some_traces,
)

few = settings(max_examples=25)
MIXES = st.sampled_from(["deep", "wide", "fused"])


def with_sets(case: Case) -> Case:
    """Return a case whose rows may have several labels."""
    layers = case.layers
    ends = [layers.taxonomy.ids[node] for node in np.unique(layers.node[layers.ends]) if node >= 0]
    return replace_layers(case, Layers.of(layers.taxonomy, ends, multilabel=True))


def replace_layers(case: Case, layers: Layers) -> Case:
    return case._replace(layers=layers)


set_cases = cases().map(with_sets)


def reached_by_definition(layers: Layers, log_p: np.ndarray) -> tuple[dict[str, float], dict[str, float]]:
    """The probability of every node and label, from the log p of every option: by recursion over all parents."""
    taxonomy = layers.taxonomy
    neuron_of = {int(node): neuron for neuron, node in enumerate(layers.node) if neuron}
    option_to = {int(neuron): option for option, neuron in enumerate(layers.option_neuron) if neuron >= 0}
    known: dict[int, float] = {}

    def reached(node: int) -> float:
        if node == taxonomy.root:
            return 1.0
        if node not in known:
            neuron = neuron_of[node]
            above = int(layers.node[layers.option_parent[option_to[neuron]]])
            own = reached(above) * float(np.exp(log_p[option_to[neuron]]))
            parents = [taxonomy.position(name) for name in taxonomy.parents(taxonomy.ids[node])]
            known[node] = min([own, *(reached(parent) for parent in parents if taxonomy.depth[parent] >= 0)])
        return known[node]

    nodes = {taxonomy.ids[node]: reached(node) for node in neuron_of}
    labels = {}
    for neuron in np.flatnonzero(layers.ends).tolist():
        stop = float(np.exp(log_p[layers.option_offsets[neuron + 1] - 1]))
        labels[taxonomy.ids[layers.node[neuron]]] = reached(int(layers.node[neuron])) * stop
    return nodes, labels


def scores_of(model: FusedModel, rows: object) -> torch.Tensor:
    """Return log p of every option by torch, (options, b), and check that the head is the one for sets."""
    network = FusedNetwork.of(model).double()
    assert isinstance(network.head, SetHead)
    with torch.no_grad():
        return network.head.normalised(network.logits(batch_of(rows)))


@given(set_cases)
@few
def test_a_node_has_one_neuron_below_one_of_its_parents(case: Case) -> None:
    layers, taxonomy = case.layers, case.layers.taxonomy
    nodes = layers.node[1:].tolist()
    assert sorted(nodes) == sorted(np.flatnonzero(taxonomy.depth > 0).tolist())
    assert layers.is_tree
    flat, offsets = layers.other_parents
    for neuron in range(1, len(layers.node)):
        above = int(layers.parent_lists[0][neuron - 1])
        others = layers.node[flat[offsets[neuron] : offsets[neuron + 1]]].tolist()
        parents = {taxonomy.position(name) for name in taxonomy.parents(taxonomy.ids[layers.node[neuron]])}
        known = {parent for parent in parents if taxonomy.depth[parent] >= 0} - {taxonomy.root}
        assert {*others} | ({int(layers.node[above])} if above else set()) == known


def test_a_node_stands_below_its_narrowest_parent() -> None:
    taxonomy = Taxonomy.from_edges(
        [("r", "wide"), ("r", "narrow"), ("r", "x"), ("wide", "x"), ("narrow", "x"), ("wide", "y")]
    )
    layers = Layers.of(taxonomy, multilabel=True)
    below = {
        taxonomy.ids[layers.node[child]]: taxonomy.ids[layers.node[parent]]
        for child, parent in enumerate(layers.parent_lists[0], 1)
    }
    assert below == {"wide": "r", "narrow": "r", "x": "narrow", "y": "wide"}
    assert not Layers.of(taxonomy).same_as(layers)


@given(set_cases)
@few
def test_targets_are_the_groups_below_all_nodes_that_a_row_has(case: Case) -> None:
    traces = some_traces(case, 3)
    layers, taxonomy = case.layers, case.layers.taxonomy
    row, option, wanted = visited_options(Targets.of(traces))
    for number, labels in enumerate(traces.decode_sets()):
        has = {taxonomy.root}
        for label in labels:
            has |= {
                taxonomy.position(label),
                *taxonomy.ancestor_lists(np.array([taxonomy.position(label)]))[0].tolist(),
            }
        expected = {}
        for each in range(len(layers.option_neuron)):
            parent = int(layers.option_parent[each])
            stops = bool(layers.ends[parent])
            choices = len(taxonomy.children(taxonomy.ids[layers.node[parent]])) + stops if parent else 2
            if parent == 0:
                choices = len(range(*layers.option_offsets[:2]))
            if int(layers.node[parent]) in has and choices > 1:
                child = int(layers.option_neuron[each])
                below = int(layers.node[child]) in has if child >= 0 else False
                ends = child < 0 and taxonomy.ids[layers.node[parent]] in labels
                expected[each] = below or ends
        own = row == number
        assert dict(zip(option[own].tolist(), wanted[own].tolist(), strict=True)) == expected


def random_dag(random: np.random.Generator) -> Taxonomy:
    """A DAG of ten nodes, most of which have several parents."""
    edges = [(None, "n0"), (None, "n1")]
    for number in range(2, 10):
        parents = random.choice(number, random.integers(1, min(number, 4)), replace=False)
        edges += [(f"n{parent}", f"n{number}") for parent in parents]
    return Taxonomy.from_edges(edges)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_predicted_share_of_every_label_is_its_share(seed: int, flat: bool) -> None:
    """Features tell nothing here, so that each label is as probable as it is frequent, at inner nodes too."""
    random = np.random.default_rng(seed)
    layers = Layers.of(random_dag(random), multilabel=True)
    weights = random.dirichlet(np.ones(10))
    sets = [{f"n{label}" for label in random.choice(10, 1 + random.integers(2), False, weights)} for _ in range(600)]
    rows = sp.csr_array(np.ones((600, 1), np.float32))
    settings = EngineSettings(members=1, width=2, dropout=0.0, wide=False, flat=flat, deep_epochs=30, threads=1)
    found = Search(fit(rows, Traces.encode_sets(layers, sets), settings), threads=1).label_probabilities(rows[[0]])
    shares = [np.mean([f"n{label}" in labels for labels in sets]) for label in range(10)]
    found = [found[0, layers.taxonomy.position(f"n{label}")] for label in range(10)]
    assert found == pytest.approx(shares, abs=0.04)


def test_options_are_exhaustive_unless_a_child_stands_elsewhere() -> None:
    taxonomy = Taxonomy.from_edges([("wide", "x"), ("wide", "y"), ("wide", "z"), ("narrow", "x"), ("narrow", "y")])
    layers = Layers.of(taxonomy, multilabel=True)
    of_node = dict(zip([taxonomy.ids[node] for node in layers.node[1:]], range(1, len(layers.node)), strict=True))
    assert not layers.exhaustive[of_node["wide"]]
    assert layers.exhaustive[[0, of_node["narrow"], of_node["x"]]].all()
    assert layers.has_choice[[0, of_node["wide"], of_node["narrow"]]].all()
    assert not layers.has_choice[of_node["x"]]
    assert Layers.of(taxonomy).exhaustive.all()


@given(set_cases, MIXES)
@few
def test_probabilities_of_nodes_and_labels(case: Case, mix: str) -> None:
    """The engine and torch agree with the definition; no node is more probable than a parent."""
    model = fused_model(case, mix)
    search, taxonomy = Search(model, threads=1), case.layers.taxonomy
    scores = scores_of(model, case.rows)
    nodes, labels = search.node_probabilities(case.rows).toarray(), search.label_probabilities(case.rows).toarray()
    by_torch = FusedNetwork.of(model).double().head.node_probabilities(scores)
    for row in range(case.rows.shape[0]):
        of_nodes, of_labels = reached_by_definition(case.layers, scores[:, row].numpy())
        for name, probability in of_nodes.items():
            position = taxonomy.position(name)
            assert nodes[row, position] == pytest.approx(probability, rel=1e-3, abs=1e-6)
            neuron = int(np.flatnonzero(case.layers.node == position)[-1])
            assert float(by_torch[0][neuron, row]) == pytest.approx(probability, rel=1e-9)
            for parent in taxonomy.parents(name):
                if taxonomy.position(parent) != taxonomy.root and taxonomy.depth[taxonomy.position(parent)] > 0:
                    assert nodes[row, position] <= nodes[row, taxonomy.position(parent)]
        for name, probability in of_labels.items():
            assert labels[row, taxonomy.position(name)] == pytest.approx(probability, rel=1e-3, abs=1e-6)


@given(set_cases, MIXES, st.integers(1, 12), st.sampled_from([0.0, 0.05, 0.3]))
@few
def test_the_search_is_exact(case: Case, mix: str, k: int, least: float) -> None:
    """The k most probable labels of at least a probability, the best first, as all labels sorted have them."""
    model = fused_model(case, mix)
    found = Search(model, threads=1).traces(case.rows, k, least=least)
    scores = scores_of(model, case.rows)
    traces = found.traces
    assert traces.log_p is not None
    for row, ends in enumerate(traces.decode_sets()):
        of_nodes, of_labels = reached_by_definition(case.layers, scores[:, row].numpy())
        ordered = sorted(of_labels.values(), reverse=True)[:k]
        assume(all(abs(p - least) > 1e-4 for p in of_labels.values()))
        expected = [p for p in ordered if p >= least]
        part = slice(*traces.row_offsets[row : row + 2])
        assert np.exp(traces.log_p[part]) == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert len(set(ends)) == len(ends)
        for trace, label in zip(range(part.start, part.stop), ends, strict=True):
            assert np.exp(traces.log_p[trace]) == pytest.approx(of_labels[label], rel=1e-3, abs=1e-6)
            steps = slice(*traces.offsets[trace : trace + 2])
            names = [case.layers.taxonomy.ids[node] for node in case.layers.node[traces.neurons[steps]]]
            expected = [of_nodes[name] for name in names]
            assert np.exp(found.log_p[steps]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


@given(set_cases, MIXES, st.lists(st.floats(0.01, 1), min_size=1, max_size=3), st.booleans())
@few
def test_no_predicted_set_misses_an_ancestor(case: Case, mix: str, thresholds: list[float], best_always: bool) -> None:
    """Sets of the closed form have all nodes above theirs, whatever the thresholds, and never a node below its own."""
    search, taxonomy = Search(fused_model(case, mix), threads=1), case.layers.taxonomy
    rule = SetRule(tuple(thresholds), best_always)
    closed, found = (answer_sets(search, case.rows, rule, form) for form in ("closed", "any"))
    for row in range(case.rows.shape[0]):
        own, nodes = (set(sets.nodes[slice(*sets.offsets[row : row + 2])].tolist()) for sets in (found, closed))
        for node in nodes:
            parents = {taxonomy.position(parent) for parent in taxonomy.parents(taxonomy.ids[node])}
            assert all(parent in nodes for parent in parents if taxonomy.depth[parent] > 0)
        assert own <= nodes
        assert not best_always or own
    allowed = found.probability >= rule.of_depth(taxonomy.depth[found.nodes])
    assert (allowed | (best_always & np.isin(np.arange(len(allowed)), found.offsets[:-1]))).all()


@given(set_cases)
@few
def test_capacity_changes_nothing(case: Case) -> None:
    model, k, block = fused_model(case, "fused"), case.layers.count_traces(), SparseMatrix.of(case.rows)
    small, large = (TraceSearch(model, k).find_in_block(block, capacity) for capacity in (2, 500))
    for one, other in zip(small[:-1], large[:-1], strict=True):
        np.testing.assert_array_equal(one, other)


@given(set_cases)
@few
def test_a_deep_expert_goes_down_the_gradient_of_its_cost(case: Case) -> None:
    model = fused_model(case, "deep")
    groups, random = model.groups, case.random
    traces = some_traces(case, 3).take(np.array([0]))
    weight, adjustment = random.uniform(0.2, 3), normal(random, groups.rows)
    targets = Targets.of(traces).weighted(np.array([weight]))
    data = TrainingSet.of(SparseMatrix.of(case.rows[[0]]), targets.arrays, groups, adjustment)
    network = FusedNetwork.of(model).double()
    logits = network.logits(batch_of(case.rows[[0]]))
    cost = (
        weight
        * network.head.cost_of(
            logits + torch.tensor(adjustment)[:, None], TorchTargets(traces).batch(np.array([0]))
        ).sum()
    )
    expert = model.experts.deep.in_floats()
    before = expert.in_floats()
    slots = DeepAccumulators(
        np.full(len(expert.embedding), HUGE, np.float32), np.full(len(expert.bias), HUGE, np.float32)
    )
    found = train_deep(data, FIRST_ROW, NO_DROPS, expert, slots)
    assert found == pytest.approx(float(cost.detach()), rel=1e-4, abs=1e-5)
    if not groups.rows:
        return
    grad_logits = torch.autograd.grad(cost, logits, retain_graph=True)[0]
    assume(float(grad_logits.abs().max()) > 0.05)
    kept = torch.where(grad_logits.abs() > float(deep_kernels.CERTAIN), grad_logits, 0)
    bias, weights = network.head.bias, network.head.weight
    by_bias, by_weight = torch.autograd.grad(logits, [bias, weights], kept)
    np.testing.assert_allclose(
        (before.bias - expert.bias) / float(deep_kernels.BIAS_RATE), by_bias.numpy() * RATE / np.sqrt(HUGE), **CLOSE
    )
    np.testing.assert_allclose(before.weight - expert.weight, by_weight.numpy() * RATE / np.sqrt(HUGE), **CLOSE)


@given(set_cases)
@few
def test_the_wide_expert_goes_down_the_gradient_of_its_cost(case: Case) -> None:
    model = fused_model(case, "wide")
    groups = model.groups
    known = model.experts.wide.feature_rank
    assume(len(np.unique(known)) == len(known))
    traces = some_traces(case, 3).take(np.array([0]))
    targets = Targets.of(traces)
    matrix = SparseMatrix.of(case.rows[[0]])
    data = TrainingSet.of(
        matrix._replace(indices=known[matrix.indices]), targets.arrays, groups, np.zeros(groups.rows, np.float32)
    )
    stored = wide_matrix(model.experts.wide)[np.argsort(known)]  # rows in the order of feature ranks
    stored.sort_indices()
    weights = np.zeros(stored.nnz, ROW_WEIGHT)
    weights["row"], weights["weight"], weights["accumulator"] = stored.indices, stored.data, HUGE
    bias = model.experts.wide.bias.copy()
    wide = WideWeights(stored.indptr.astype(np.int64), weights, bias, np.full(len(bias), HUGE, np.float32))
    network = FusedNetwork.of(model).double()
    logits = network.logits(batch_of(case.rows[[0]]))
    cost = network.head.cost_of(logits, TorchTargets(traces).batch(np.array([0]))).sum()
    found = train_wide(data, FIRST_ROW, wide, find_weights(data, wide))
    assert found == pytest.approx(float(cost.detach()), rel=1e-4, abs=1e-5)
    if groups.rows:
        grad = torch.autograd.grad(cost, network.wide.bias)[0].numpy()
        assume(np.abs(grad).max() > 0.05)
        moved = (model.experts.wide.bias - bias) / float(wide_training.BIAS_RATE)
        changed = np.abs(moved) > 0
        np.testing.assert_allclose(moved[changed], grad[changed], **CLOSE)


def toy(random: np.random.Generator, rows: int, *, dag: bool) -> tuple[object, Traces]:
    """Rows whose features are their labels, of which they have one to three, with some noise."""
    edges = [("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2"), ("b1", "b11")] + ([("a1", "b11")] if dag else [])
    layers = Layers.of(Taxonomy.from_edges(edges), ends=["a", "b", "a1"], multilabel=True)
    names = ["a", "a1", "a2", "b2", "b11"]
    chosen = [random.choice(len(names), random.integers(1, 4), replace=False) for _ in range(rows)]
    features = random.random((rows, 8)) < 0.1
    for row, labels in enumerate(chosen):
        features[row, labels] = True
    return sp.csr_array(features.astype(np.float32)), Traces.encode_sets(
        layers, [{names[label] for label in labels} for labels in chosen]
    )


@pytest.mark.parametrize("dag", [False, True])
def test_labels_are_learned(dag: bool) -> None:
    """Labels that are features come out, several at a time; the mix is learned."""
    rows, traces = toy(np.random.default_rng(1), 400, dag=dag)
    held, held_traces = toy(np.random.default_rng(2), 200, dag=dag)
    model = fit(
        rows, traces, EngineSettings(threads=1, deep_epochs=5), valid=ValidationRows(held, held_traces), watch=True
    )
    found = Search(model, threads=1).traces(held, 9, least=0.5).traces.decode_sets()
    right = [set(one) == set(other) for one, other in zip(found, held_traces.decode_sets(), strict=True)]
    assert np.mean(right) > 0.6
    assert model.mix.prototypes == 0
    assert FusedModel.from_arrays(model.layers, model.to_arrays()).mix == model.mix


def flat_model(case: Case) -> tuple[FusedModel, np.ndarray]:
    """A model of the flat expert alone, and the probability of each label by it, (rows, labels)."""
    model = fused_model(case, "deep")
    experts = model.experts._replace(mix=np.array(Mix(flat=1.0), np.float32))
    flat = experts.flat
    hidden = case.rows @ flat.embeddings() + flat.embedding_bias
    hidden = np.where(hidden > 0, hidden, hidden * flat.negative_slope)
    logits = hidden @ flat.output_weights().T + flat.bias
    return replace(model, experts=experts), 1 / (1 + np.exp(-logits.astype(np.float64)))


@given(set_cases)
@few
def test_the_flat_expert_alone_gives_each_label_its_own_chance(case: Case) -> None:
    """Odds that some label below an option is taken, given that one below its group is, multiply to the label's own."""
    model, chance = flat_model(case)
    layers, spans = case.layers, model.experts.spans
    below = [set() for _ in layers.node]
    for neuron in range(1, len(layers.node)):
        option = int(np.flatnonzero(layers.option_neuron == neuron)[0])
        others = spans.other[spans.other_offsets[neuron] : spans.other_offsets[neuron + 1]].tolist()
        below[neuron] = {*range(spans.first[option], spans.last[option])} | {*others}
        node = layers.taxonomy.ids[layers.node[neuron]]
        labels = {layers.taxonomy.ids[layers.node[end]] for end in spans.neuron[sorted(below[neuron])]}
        assert labels == {
            name
            for name in (layers.taxonomy.ids[layers.node[end]] for end in spans.neuron)
            if node in with_ancestors(layers.taxonomy, name)
        }
    found = Search(model, threads=1).label_probabilities(case.rows).toarray()[:, layers.node[spans.neuron]]
    some = 1 - np.prod(1 - chance, axis=1, keepdims=True)  # every row has a label
    np.testing.assert_allclose(found, chance / some, rtol=2e-3, atol=1e-5)


def with_ancestors(taxonomy: Taxonomy, name: str) -> set[str]:
    return {name}.union(*(with_ancestors(taxonomy, parent) for parent in taxonomy.parents(name)))


@given(set_cases, st.sampled_from([Mix(flat=1.0), Mix(deep=0.4, wide=0.3, flat=0.5)]))
@few
def test_features_add_up_to_the_logits(case: Case, mix: Mix) -> None:
    model = fused_model(case, "deep")
    model = replace(model, experts=model.experts._replace(mix=np.array(mix, np.float32)))
    row = SparseMatrix.of(case.rows[[0]])
    for neuron in np.flatnonzero(np.diff(model.groups.first_row)).tolist():
        scores, _ = group_logits(model.read(row), np.zeros(1, np.int64), neuron, model.groups, model.experts)
        parts = model.contributions(row, neuron)
        found, expected = (np.clip(logits, -4, 4) for logits in (parts.logits, scores[0]))
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)  # single precision: log odds above 4 differ


@given(set_cases)
@few
def test_the_flat_expert_goes_down_the_gradient_of_its_cost(case: Case) -> None:
    model, chance = flat_model(case)
    assume(len(model.experts.spans.neuron) > 0)
    traces = some_traces(case, 3).take(np.array([0]))
    weight = case.random.uniform(0.2, 3)
    counts, spans = np.ones(len(model.experts.spans.neuron)), model.experts.spans
    targets = LabelTargets.of(Targets.of(traces).weighted(np.array([weight])), spans, counts, EngineSettings())
    ends = [case.layers.taxonomy.ids[case.layers.node[end]] for end in model.experts.spans.neuron]
    wanted = np.isin(ends, list(traces.decode_sets()[0]))
    some = 1 - np.prod(1 - chance[0])
    cost = -weight * (np.log(np.where(wanted, chance[0], 1 - chance[0])).sum() - np.log(some))
    expert = model.experts.flat.in_floats()
    before = expert.bias.copy()
    sums = DeepAccumulators(np.full(len(expert.embedding), HUGE, np.float32), np.full(len(before), HUGE, np.float32))
    found = train_flat(SparseMatrix.of(case.rows[[0]]), targets, FIRST_ROW, NO_DROPS, expert, sums)
    assert found == pytest.approx(cost, rel=1e-3, abs=1e-4)
    grad = weight * (chance[0] / some - wanted)
    grad = np.where(np.abs(grad) > deep_kernels.CERTAIN, grad, 0)
    moved = (before - expert.bias) / float(deep_kernels.BIAS_RATE)
    np.testing.assert_allclose(moved, grad * RATE / np.sqrt(HUGE), rtol=0.05, atol=1e-3 * RATE / np.sqrt(HUGE))


@pytest.mark.parametrize("dag", [False, True])
def test_the_flat_expert_is_trained_with_the_others(dag: bool) -> None:
    rows, traces = toy(np.random.default_rng(1), 400, dag=dag)
    held, held_traces = toy(np.random.default_rng(2), 200, dag=dag)
    model = fit(rows, traces, EngineSettings(threads=1, deep_epochs=5, flat=True))
    assert model.mix.flat > 0
    found = Search(model, threads=1).traces(held, 9, least=0.5).traces.decode_sets()
    right = [set(one) == set(other) for one, other in zip(found, held_traces.decode_sets(), strict=True)]
    assert np.mean(right) > 0.6
    with pytest.raises(HiNetError, match="two_layers"):
        fit(rows, traces, EngineSettings(threads=1, flat=True, two_layers=True))


def test_methods_for_one_label_are_refused() -> None:
    rows, traces = toy(np.random.default_rng(1), 20, dag=False)
    search = Search(fit(rows, traces, EngineSettings(threads=1, deep_epochs=1)), threads=1)
    with pytest.raises(HiNetError, match="deepest_confident is for models of rows with one label"):
        search.deepest_confident(rows, 0.5)
    single = Layers.of(traces.layers.taxonomy)
    other = Search(fit(rows, Traces.encode(single, ["a"] * 20), EngineSettings(threads=1, deep_epochs=1)), threads=1)
    with pytest.raises(HiNetError, match="several labels"):
        other.node_probabilities(rows)


def test_further_training_is_the_same_for_the_same_seed() -> None:
    rows, traces = toy(np.random.default_rng(3), 60, dag=True)
    quick = EngineSettings(threads=1, deep_epochs=2)
    first, second = (fit(rows, traces, replace(quick, threads=threads)).to_arrays() for threads in (1, 2))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    more = Search(fit(rows, traces, quick), threads=1).continued(rows, traces, quick)
    assert not np.array_equal(more.model.to_arrays()["head.weight"], first["head.weight"])


def test_groups_own_the_same_rows_as_for_one_label_in_a_tree() -> None:
    taxonomy = Taxonomy.from_edges([("a", "a1"), ("a", "a2"), (None, "b")])
    single, several = Layers.of(taxonomy), Layers.of(taxonomy, multilabel=True)
    for one, other in zip(Groups.of(single)[:4], Groups.of(several)[:4], strict=True):
        np.testing.assert_array_equal(one, other)
