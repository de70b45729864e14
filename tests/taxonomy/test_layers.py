from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import LabelError, Layers, Taxonomy, TaxonomyError, Traces
from hinet.taxonomy import STOP
from hinet.taxonomy import layers as layers_module
from tests.strategies import all_traces, edge_lists, layered, layered_with_ends, taxonomies


@given(layered_with_ends())
def test_number_of_complete_traces_equals_enumeration(case: tuple[Layers, set[str]]) -> None:
    layers, ending = case
    assert layers.count_traces() == len(list(all_traces(layers.taxonomy, ending)))


@given(layered())
def test_neurons_are_pairs_of_node_and_depth(layers: Layers) -> None:
    taxonomy = layers.taxonomy
    reached = {(taxonomy.root, 0)}
    frontier = {taxonomy.ids[top] for top in taxonomy.tops}
    depth = 1
    while frontier:
        reached |= {(taxonomy.position(node), depth) for node in frontier}
        frontier = {child for node in frontier for child in taxonomy.children(node)}
        depth += 1
    pairs = list(zip(layers.node.tolist(), layers.depth.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == reached


@given(layered())
def test_edges_of_the_layers_are_the_edges_of_the_taxonomy_and_the_stops(layers: Layers) -> None:
    taxonomy = layers.taxonomy
    for layer, (start, above) in zip(
        layers, zip(layers.layer_offsets[1:], layers.layer_offsets, strict=False), strict=True
    ):
        assert np.array_equal(np.repeat(np.arange(start - above), np.diff(layer.group_offsets)), layer.edge_parent)
        for parent in range(int(start - above)):
            neuron = int(above) + parent
            group = layer.edge_child[layer.group_offsets[parent] : layer.group_offsets[parent + 1]].tolist()
            stop = len(layer.nodes)
            node = int(layers.node[neuron])
            children = (
                taxonomy.tops.tolist()
                if node < 0
                else [taxonomy.position(c) for c in taxonomy.children(taxonomy.ids[node])]
            )
            assert [int(layer.nodes[child]) for child in group if child != stop] == children
            assert group.count(stop) == bool(layers.ends[neuron])
            assert stop not in group[:-1]
        assert np.array_equal(layer.ends, layers.ends[start : start + len(layer.nodes)])
        assert layer.has_stop == bool(layers.ends[above:start].any())


@given(layered())
def test_every_leaf_ends_and_the_last_layer_is_only_the_stop(layers: Layers) -> None:
    leaves = np.flatnonzero(layers.taxonomy.leaves)
    assert layers.ends[np.isin(layers.node, leaves) & (layers.node >= 0)].all()
    last = layers.layer(layers.height + 1)
    assert len(last.nodes) == 0
    assert last.width == 1
    assert layers.height == layers.taxonomy.height


@given(edge_lists(dag=True))
def test_renaming_changes_nothing(edges: list[tuple[str | None, str]]) -> None:
    before = Taxonomy.from_edges(edges)
    new = {name: f"n{place}" for place, name in enumerate(before.ids)}
    after = Taxonomy.from_edges([(None if p is None else new[p], new[c]) for p, c in edges])
    assert after.ids == tuple(new[name] for name in before.ids)
    left, right = Layers.of(before), Layers.of(after)
    for name in ("node", "ends", "layer_offsets", "option_offsets", "option_neuron"):
        assert np.array_equal(getattr(left, name), getattr(right, name))


@given(edge_lists(dag=True).flatmap(lambda edges: st.tuples(st.just(edges), st.permutations(edges))))
def test_another_order_of_the_source_permutes_the_traces(both: tuple[list, list]) -> None:
    left, right = (Layers.of(Taxonomy.from_edges(edges)) for edges in both)
    assert sorted(all_traces(left.taxonomy, {*left.taxonomy})) == sorted(all_traces(right.taxonomy, {*right.taxonomy}))
    assert np.array_equal(left.layer_offsets, right.layer_offsets)
    assert len(left.option_neuron) == len(right.option_neuron)


@given(taxonomies())
def test_a_root_ends_a_trace_only_if_it_is_named(taxonomy: Taxonomy) -> None:
    assert not Layers.of(taxonomy).ends[0]
    assert bool(Layers.of(taxonomy, ends=taxonomy.ids).ends[0]) == (taxonomy.root >= 0)


def test_counts_beyond_64_bits_are_exact() -> None:
    edges = [(f"{level}-{a}", f"{level + 1}-{b}") for level in range(30) for a in range(10) for b in range(10)]
    edges += [(None, f"0-{a}") for a in range(10)]
    layers = Layers.of(Taxonomy.from_edges(edges), ends=())
    assert layers.count_traces() == 10**31


def test_a_chain_of_5000_has_5000_layers_and_no_recursion() -> None:
    layers = Layers.of(Taxonomy.from_edges([(str(n), str(n + 1)) for n in range(5000)]))
    assert layers.height == 5000
    assert layers.count_traces() == 5000


def test_one_node_alone_is_a_layer_below_a_virtual_root() -> None:
    layers = Layers.of(Taxonomy.from_edges([(None, "only")]))
    assert layers.node.tolist() == [-1, 0]
    assert layers.option_neuron.tolist() == [1, STOP]


def test_a_dag_that_unrolls_too_far_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers_module, "MAX_NEURONS", 1000)
    shortcuts = [(str(n), str(n + step)) for n in range(100) for step in (1, 2)]
    with pytest.raises(TaxonomyError, match="unrolls into more than 1,000 neurons"):
        Layers.of(Taxonomy.from_edges(shortcuts))


def test_layer_numbers_are_checked() -> None:
    layers = Layers.of(Taxonomy.from_edges([(None, "only")]))
    with pytest.raises(IndexError, match="1 to 2, got 3"):
        layers.layer(3)


def test_unreachable_ends_raise() -> None:
    taxonomy = Taxonomy.from_edges([("r", "a"), (None, "lost")], root="r")
    with pytest.raises(TaxonomyError, match="'lost'"):
        Layers.of(taxonomy, ends=["lost"])


def test_labels_with_more_paths_than_floats_can_count_raise() -> None:
    edges = [(f"{n}", f"{n}{side}") for n in range(1100) for side in "ab"]
    edges += [(f"{n}{side}", f"{n + 1}") for n in range(1100) for side in "ab"]
    layers = Layers.of(Taxonomy.from_edges(edges), ends=())
    assert layers.count_traces() == 2**1100
    with pytest.raises(LabelError, match="give the path itself"):
        Traces.encode(layers, ["1100"])
