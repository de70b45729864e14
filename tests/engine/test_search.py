from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hinet import HiNetError, Layers, Taxonomy
from hinet.engine import Found, FoundNodes, Groups, Search
from hinet.engine.search.best_first import INITIAL_CAPACITY, BlockSizes
from hinet.engine.search.marginal_kernels import PRECISION
from hinet.networks import NeuronGraph, downpour
from tests.engine.oracle import (
    Made,
    biased_model,
    enumerated,
    label_probabilities,
    node_probabilities,
    option_scores,
    random_model,
    random_rows,
)
from tests.strategies import Path, all_scored, layered

NEAR = 2e-4  # tolerance of log probabilities: logits of size 10 are summed in single precision
FEW, MANY = 3, 20  # rows whose features are looked up, and rows that share lists of them
seeds = st.integers(0, 10_000)


def wide_tree() -> Layers:
    """Three nodes below the root, of which the second has more children than a search of many rows has room for."""
    edges = [("r", "a"), ("r", "b"), ("r", "c")]
    sizes = {"a": 3, "b": INITIAL_CAPACITY + 20, "c": 4}
    edges += [(parent, f"{parent}{child}") for parent, size in sizes.items() for child in range(size)]
    return Layers.of(Taxonomy.from_edges(edges))


def bushy_tree() -> Layers:
    """30 nodes of 29 children each, all of which end traces: 900."""
    edges = [("r", f"{top}") for top in range(30)]
    edges += [(f"{top}", f"{top}.{child}") for top in range(30) for child in range(29)]
    return Layers.of(Taxonomy.from_edges(edges))


def shallow_dag() -> Layers:
    edges = [("r", "a"), ("r", "b"), ("b", "c"), ("b", "d"), ("d", "e"), ("d", "f"), ("a", "f"), ("a", "d")]
    return Layers.of(Taxonomy.from_edges(edges))


def paths_of(found: Found, row: int) -> list[tuple[Path, float]]:
    """The traces of a row as neurons, with their log probabilities, in the order given."""
    traces = found.traces
    assert traces.log_p is not None
    chosen = range(int(traces.row_offsets[row]), int(traces.row_offsets[row + 1]))
    return [
        (tuple(traces.neurons[traces.offsets[trace] : traces.offsets[trace + 1]].tolist()), float(traces.log_p[trace]))
        for trace in chosen
    ]


def assert_best(found: Found, expected: list[dict[Path, float]], k: int) -> None:
    """The law of exact search: k different traces, each with its own score, and these are the k largest."""
    assert len(found) == len(expected)
    for row, scored in enumerate(expected):
        answers = paths_of(found, row)
        assert len(answers) == min(k, len(scored))
        assert len({path for path, _ in answers}) == len(answers)
        scores = [score for _, score in answers]
        np.testing.assert_allclose(scores, [scored[path] for path, _ in answers], rtol=1e-5, atol=NEAR)
        np.testing.assert_allclose(scores, sorted(scored.values(), reverse=True)[:k], rtol=1e-5, atol=NEAR)
        assert scores == sorted(scores, reverse=True)


def assert_same(first: Found, second: Found) -> None:
    for one, other in zip(
        (first.traces.row_offsets, first.traces.offsets, first.traces.neurons, first.traces.log_p, first.log_p),
        (second.traces.row_offsets, second.traces.offsets, second.traces.neurons, second.traces.log_p, second.log_p),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(first.touched, second.touched)


def assert_same_nodes(first: FoundNodes, second: FoundNodes) -> None:
    np.testing.assert_array_equal(first.nodes, second.nodes)
    np.testing.assert_array_equal(first.probability, second.probability)


@pytest.mark.parametrize("count", [FEW, MANY], ids=["few", "many"])
@pytest.mark.parametrize("k", [1, 3, 1_000], ids=["one", "three", "all"])
@given(layers=layered(), seed=seeds)
@settings(max_examples=25)
def test_search_finds_exactly_the_best_traces(k: int, count: int, layers: Layers, seed: int) -> None:
    made, rows = random_model(layers, seed), random_rows(count, seed)
    assert_best(Search(made.model, threads=1).traces(rows, k), enumerated(made, rows), k)


@given(layers=layered(), seed=seeds, count=st.sampled_from([FEW, MANY]))
@settings(max_examples=30)
def test_every_neuron_of_a_trace_has_the_probability_of_its_path(layers: Layers, seed: int, count: int) -> None:
    made, rows = random_model(layers, seed), random_rows(count, seed)
    found = Search(made.model, threads=1).traces(rows, 3)
    for row, dense in enumerate(rows.toarray()):
        scores = option_scores(made, dense)
        for trace in range(int(found.traces.row_offsets[row]), int(found.traces.row_offsets[row + 1])):
            start, end = int(found.traces.offsets[trace]), int(found.traces.offsets[trace + 1])
            path = found.traces.neurons[start:end]
            options = layers.options_between(np.concatenate([[0], path[:-1]])[: len(path)], path)
            np.testing.assert_allclose(found.log_p[start:end], np.cumsum(scores[options]), rtol=1e-5, atol=NEAR)


@pytest.mark.parametrize("k", [1, 3, 50])
def test_rows_that_exceed_the_capacity_are_searched_again_and_keep_their_order(k: int) -> None:
    layers = wide_tree()
    made, rows = random_model(layers, 3, sharpness=2.0), random_rows(40, 5)
    search, expected = Search(made.model, threads=1), enumerated(made, rows)
    found = search.traces(rows, k)
    assert_best(found, expected, k)
    opened = found.touched > 2 * int(layers.ends.sum()) + INITIAL_CAPACITY  # the large group, besides the labels
    assert opened.any()
    assert k > 1 or not opened.all()
    alone = [search.traces(rows[[row]], k) for row in range(len(expected))]
    assert [paths_of(found, row) for row in range(40)] == [
        [(path, pytest.approx(score, abs=NEAR)) for path, score in paths_of(one, 0)] for one in alone
    ]


@pytest.mark.parametrize("k", [12, 30, 500, 2_000])
def test_many_traces_exceed_the_capacity_of_a_search(k: int) -> None:
    made, rows = random_model(bushy_tree(), 7), random_rows(MANY, 8)
    assert_best(Search(made.model, threads=1).traces(rows, k), enumerated(made, rows), k)


@given(layers=layered(), seed=seeds, k=st.sampled_from([1, 3]))
@settings(max_examples=25)
def test_search_and_downpour_agree(layers: Layers, seed: int, k: int) -> None:
    made, rows = random_model(layers, seed), random_rows(MANY, seed)
    scores = np.stack([option_scores(made, row) for row in rows.toarray()], axis=1)
    poured = downpour(NeuronGraph(layers), torch.from_numpy(scores), k)
    found = Search(made.model, threads=1).traces(rows, k).traces
    np.testing.assert_array_equal(found.row_offsets, poured.row_offsets)
    assert found.log_p is not None
    assert poured.log_p is not None
    np.testing.assert_allclose(found.log_p, poured.log_p, rtol=1e-5, atol=NEAR)
    gaps = np.abs(np.diff(poured.log_p))
    if not len(gaps) or gaps.min() > 2 * NEAR:  # no ties
        np.testing.assert_array_equal(found.offsets, poured.offsets)
        np.testing.assert_array_equal(found.neurons, poured.neurons)


@given(layers=layered(), seed=seeds)
@settings(max_examples=40)
def test_labels_have_the_largest_sum_over_their_traces(layers: Layers, seed: int) -> None:
    made, rows = random_model(layers, seed), random_rows(FEW, seed)
    found = Search(made.model).labels(rows)
    for row, traces in enumerate(enumerated(made, rows)):
        sums = label_probabilities(layers, traces)
        assert sums[found.nodes[row]] >= sums.max() - NEAR
        # A label of a DAG may miss the mass of paths that were left aside.
        missed = 1e-4 * len(layers.node) * (not layers.taxonomy.is_tree)
        assert sums.max() - NEAR - missed <= found.probability[row] <= sums.max() + NEAR


def test_a_label_of_many_improbable_traces_is_found() -> None:
    """The label x is reached by 3,600 paths, each far less probable than what is left aside at first."""
    size = 60
    edges = [("r", "other"), *[("r", f"a{i}") for i in range(size)]]
    middle = [(f"a{i}", f"b{i}.{j}") for i in range(size) for j in range(size)]
    edges += middle + [(child, leaf) for _, child in middle for leaf in ("x", f"own {child}")]
    layers = Layers.of(Taxonomy.from_edges(edges), ends=[])
    made = biased_model(layers, {0: float(np.log(0.45 / 0.55 * size))})  # other has probability 0.45
    low = biased_model(layers, {0: float(np.log(0.2 / 0.8 * size))})
    rows = random_rows(2)
    ids = layers.taxonomy.ids
    found = Search(made.model).labels(rows)
    assert [ids[node] for node in found.nodes] == ["other"] * 2
    assert found.probability == pytest.approx([0.45] * 2, abs=1e-5)
    found = Search(low.model).labels(rows)
    assert [ids[node] for node in found.nodes] == ["x"] * 2
    assert found.probability == pytest.approx([0.4] * 2, abs=1e-4)


def test_the_best_label_need_not_have_the_best_trace() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", p) for p in "abc"] + [(p, "x") for p in "ab"]), ends=[])
    made = biased_model(layers, {0: float(np.log(0.3)), 1: float(np.log(0.3)), 2: float(np.log(0.4))})
    search, rows = Search(made.model), random_rows(1)
    assert search.traces(rows).traces.decode() == ["c"]
    found = search.labels(rows)
    assert layers.taxonomy.ids[found.nodes[0]] == "x"
    assert found.probability == pytest.approx([0.6], abs=1e-5)
    assert search.decode(rows, "map").nodes.tolist() == layers.taxonomy.positions(["c"]).tolist()
    assert search.decode(rows, "label").nodes.tolist() == found.nodes.tolist()
    with pytest.raises(HiNetError, match="decoding: expected 'map', 'expected_f1' or 'label', got 'best'"):
        search.decode(rows, "best")  # type: ignore[arg-type]


SLACK = NEAR + PRECISION  # tolerance of the probability of a node in a DAG


def tops_of(layers: Layers) -> list[int]:
    return layers.taxonomy.tops.tolist()


@given(layers=layered(), seed=seeds, least=st.sampled_from([0.05, 0.3, 0.5, 0.9, 1.0]))
@settings(max_examples=60)
def test_deepest_confident_is_the_deepest_node_with_enough_probability(layers: Layers, seed: int, least: float) -> None:
    made, rows = random_model(layers, seed), random_rows(FEW, seed)
    found = Search(made.model).deepest_confident(rows, least)
    depth, slack = layers.taxonomy.depth, SLACK
    for row, traces in enumerate(enumerated(made, rows)):
        node, p = int(found.nodes[row]), node_probabilities(layers, traces)
        if not tops_of(layers):  # the root is all there is
            assert (node, found.probability[row]) == (layers.taxonomy.root, 1.0)
            continue
        assert p[node] - slack <= found.probability[row] <= p[node] + NEAR
        surely = np.flatnonzero(p >= least + NEAR)  # never withheld
        if len(surely):
            assert p[node] >= least - NEAR
            assert depth[node] >= depth[surely].max()
        elif p.max() < least - NEAR:
            assert node in tops_of(layers)
            assert p[node] >= p[tops_of(layers)].max() - slack


def test_a_sure_label_of_many_parents_is_not_withheld() -> None:
    """The label x is sure, although each of its 80 parents is less probable than what is left aside at first."""
    parents = [f"parent {number}" for number in range(80)]
    edges = [(parent, child) for parent in parents for child in ("x", f"own {parent}")]
    layers = Layers.of(Taxonomy.from_edges(edges), ends=[])
    to_x = [row for row, option in enumerate(Groups.of(layers).row_options()) if layers.option_neuron[option] == 81]
    assert layers.taxonomy.ids[layers.node[81]] == "x"
    search = Search(biased_model(layers, dict.fromkeys(to_x, 4.0)).model)
    rows = random_rows(2)
    found = search.deepest_confident(rows, 0.8)
    x = layers.taxonomy.position("x")
    assert found.nodes.tolist() == [x, x]
    assert found.probability == pytest.approx(search.label_probabilities(rows)[:, [x]].toarray()[:, 0], abs=PRECISION)
    assert found.probability.min() > 0.95


@given(layers=layered(), seed=seeds, f1=st.sampled_from([0.1, 0.5, 0.8, 1.0]))
@settings(max_examples=60)
def test_expected_f1_has_the_largest_sum_over_its_ancestors(layers: Layers, seed: int, f1: float) -> None:
    made, rows = random_model(layers, seed), random_rows(FEW, seed)
    found = Search(made.model).expected_f1(rows, f1)
    taxonomy = layers.taxonomy

    def with_ancestors(node: str) -> set[str]:
        above = {node}.union(*(with_ancestors(parent) for parent in taxonomy.parents(node)))
        return above - {taxonomy.ids[taxonomy.root]} if taxonomy.root >= 0 else above

    reached = [node for node in taxonomy if taxonomy.depth[taxonomy.position(node)] > 0]
    slack = SLACK * (layers.height + 1)
    for row, traces in enumerate(enumerated(made, rows)):
        node, p = int(found.nodes[row]), node_probabilities(layers, traces)
        if not reached:
            assert (node, found.probability[row]) == (taxonomy.root, 1.0)
            continue
        gain = {
            taxonomy.position(name): sum(p[taxonomy.position(above)] - f1 / 2 for above in with_ancestors(name))
            for name in reached
        }
        assert p[node] - slack <= found.probability[row] <= p[node] + NEAR
        if max(gain.values()) > slack:
            assert gain[node] >= max(gain.values()) - slack
        elif max(gain.values()) < -NEAR:
            assert node in tops_of(layers)
            assert p[node] >= p[tops_of(layers)].max() - slack


def test_a_row_without_a_sure_node_gets_the_best_node_right_below_the_root() -> None:
    """Even if the first of them lies deeper as well, being below another one too."""
    layers = Layers.of(Taxonomy.from_edges([("r", "b"), ("r", "a"), ("r", "c"), ("a", "b")]))
    made = biased_model(layers, {0: float(np.log(0.2)), 1: float(np.log(0.5)), 2: float(np.log(0.3)), 3: -20.0})
    for found in (
        Search(made.model).deepest_confident(random_rows(1), 0.9),
        Search(made.model).expected_f1(random_rows(1), 1),
    ):
        assert [layers.taxonomy.ids[node] for node in found.nodes] == ["a"]
        assert found.probability == pytest.approx([0.5], abs=1e-5)


def test_a_lone_root_is_the_answer() -> None:
    layers = Layers.of(Taxonomy.from_edges([(None, "only")]), ends=["only"])
    search, rows = Search(biased_model(layers, {}).model), random_rows(2)
    for found in (
        search.labels(rows),
        search.deepest_confident(rows, 0.5),
        search.expected_f1(rows),
        search.decode(rows),
    ):
        assert found.nodes.tolist() == [0, 0]
        assert found.probability.tolist() == [1.0, 1.0]


@given(layers=layered(), seed=seeds, count=st.sampled_from([FEW, MANY]), least=st.sampled_from([1e-3, 0.1, 0.4, 1.0]))
@settings(max_examples=40)
def test_improbable_traces_are_left_out(layers: Layers, seed: int, count: int, least: float) -> None:
    made, rows = random_model(layers, seed), random_rows(count, seed)
    found = Search(made.model, threads=1).traces(rows, 4, least=least)
    for row, traces in enumerate(enumerated(made, rows)):
        best = sorted(traces.values(), reverse=True)[:4]
        answers = [score for _, score in paths_of(found, row)]
        assert sum(np.log(least) + NEAR < score for score in best) <= len(answers)
        assert len(answers) <= sum(np.log(least) - NEAR < score for score in best)
        np.testing.assert_allclose(answers, best[: len(answers)], rtol=1e-5, atol=NEAR)


@given(layers=layered().filter(lambda layers: layers.taxonomy.is_tree), seed=seeds, count=st.sampled_from([FEW, MANY]))
@settings(max_examples=40)
def test_only_groups_that_can_matter_are_scored(layers: Layers, seed: int, count: int) -> None:
    made, rows = random_model(layers, seed), random_rows(count, seed)
    found = Search(made.model, threads=1).traces(rows)
    assert (found.touched <= made.model.outputs).all()
    labels = 2 * int(layers.ends.sum())  # flat expert and prototypes
    sizes = np.diff(layers.option_offsets)
    parents = {int(t): int(o) for o, t in enumerate(layers.option_neuron) if t >= 0}  # option into each neuron
    for row, dense in enumerate(rows.toarray()):
        scores = option_scores(made, dense)
        best = max(all_scored(layers, scores).values())
        reached = np.zeros(len(layers.node))
        for neuron in range(1, len(layers.node)):
            reached[neuron] = reached[layers.option_parent[parents[neuron]]] + scores[parents[neuron]]
        surely, perhaps = (labels + int(sizes[(reached > best + shift) & (sizes > 1)].sum()) for shift in (NEAR, -NEAR))
        assert surely <= found.touched[row] <= perhaps


@pytest.fixture(scope="module", params=["tree", "dag"])
def asked(request: pytest.FixtureRequest) -> tuple[Made, sp.csr_array]:
    layers = wide_tree() if request.param == "tree" else shallow_dag()
    return random_model(layers, 11), random_rows(330, 12)


def answers_of(search: Search, rows: sp.csr_array) -> tuple[Found, FoundNodes, FoundNodes, FoundNodes]:
    return search.traces(rows, 3), search.labels(rows), search.deepest_confident(rows, 0.4), search.expected_f1(rows)


def assert_same_answers(first: tuple, second: tuple) -> None:
    assert_same(first[0], second[0])
    for one, other in zip(first[1:], second[1:], strict=True):
        assert_same_nodes(one, other)


def test_answers_do_not_depend_on_threads_or_blocks(asked: tuple[Made, sp.csr_array]) -> None:
    made, rows = asked
    expected = answers_of(Search(made.model, threads=1), rows)
    for threads in (2, 5):
        assert_same_answers(answers_of(Search(made.model, threads=threads), rows), expected)
    small = Search(made.model, threads=2, blocks=BlockSizes(rows=10))
    assert_same_answers(answers_of(small, rows), expected)


def test_any_number_of_threads_may_search_at_once(asked: tuple[Made, sp.csr_array]) -> None:
    made, rows = asked
    search = Search(made.model, threads=2)
    parts = [rows[start : start + 110] for start in (0, 110, 220)]
    expected = [answers_of(search, part) for part in parts]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: answers_of(search, parts[number % 3]), range(48)))
    for number, answers in enumerate(found):
        assert_same_answers(answers, expected[number % 3])


def test_no_rows_have_no_answers() -> None:
    made = random_model(shallow_dag(), 1)
    for answers in answers_of(Search(made.model), random_rows(3)[:0]):
        assert len(answers) == 0


def test_the_order_and_repetition_of_features_do_not_matter() -> None:
    made = random_model(wide_tree(), 1)
    canonical = sp.csr_array(np.array([[0.5, 0, 2, 0, 0, 1, 0]], np.float32))
    messy = sp.csr_array(
        (np.array([1, 1.5, 0.5, 0.5], np.float32), np.array([5, 2, 0, 2]), np.array([0, 4])), shape=canonical.shape
    )
    assert_same(Search(made.model).traces(messy, 3), Search(made.model).traces(canonical, 3))
    assert messy.indices.tolist() == [5, 2, 0, 2]  # and the caller's matrix is left alone


def test_rows_that_do_not_fit_are_refused() -> None:
    search, rows = Search(random_model(shallow_dag(), 1).model), random_rows(5, 1)
    ask = [search.traces, search.labels, search.expected_f1, lambda rows: search.deepest_confident(rows, 0.5)]
    spoilt = rows.copy()
    row = int(np.flatnonzero(np.diff(rows.indptr))[-1])
    spoilt.data[rows.indptr[row]] = np.nan
    for answer in ask:
        with pytest.raises(HiNetError, match="reads rows of a CSR matrix, got ndarray"):
            answer(rows.toarray())
        with pytest.raises(HiNetError, match=r"expected a CSR matrix, got CSC; convert it with \.tocsr"):
            answer(rows.tocsc())
        with pytest.raises(HiNetError, match="trained on 7 features, got 3"):
            answer(rows[:, :3])
        with pytest.raises(HiNetError, match=f"row {row}: feature {rows.indices[rows.indptr[row]]} is nan; replace"):
            answer(spoilt)


def test_numbers_out_of_range_are_refused() -> None:
    search, rows = Search(random_model(shallow_dag(), 1).model), random_rows(2)
    with pytest.raises(HiNetError, match="k: expected a whole number of at least 1, got 0"):
        search.traces(rows, 0)
    for least in (0.0, 1.5, float("nan")):
        with pytest.raises(HiNetError, match=f"min_probability: expected a number above 0 and at most 1, got {least}"):
            search.deepest_confident(rows, least)
        with pytest.raises(HiNetError, match=f"f1: expected a number above 0 and at most 1, got {least}"):
            search.expected_f1(rows, least)
