"""Answers among some labels, against all traces listed one by one, filtered and normalised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hinet import HiNetError, Layers, Taxonomy
from hinet.data.matrices import MixedRows
from hinet.engine import Search
from hinet.engine.search.restricted import RestrictedSearch
from tests.engine.oracle import enumerated, random_model, random_rows
from tests.engine.test_trust import made
from tests.strategies import Path, layered

NEAR = 2e-4
ROWS = 4
seeds = st.integers(0, 10_000)
Traces = dict[Path, float]


def allowed_nodes(layers: Layers, seed: int) -> Any:
    """Return random nodes among which is a label."""
    random = np.random.default_rng(seed)
    allowed = random.random(len(layers.taxonomy)) < random.choice([0.2, 0.5, 0.9])
    ends = layers.node[layers.ends]
    allowed[random.choice(ends[ends >= 0])] = True
    return allowed


def end_of(layers: Layers, path: Path) -> int:
    """Return the node at which a trace ends; an empty one ends at the root."""
    return int(layers.node[path[-1] if path else 0])


def conditional(layers: Layers, allowed: Any, traces: Traces) -> Traces:
    """Return the allowed traces with probabilities that sum to 1."""
    left = {path: p for path, p in traces.items() if allowed[end_of(layers, path)]}
    total = sum(left.values())
    return {path: p / total for path, p in left.items()}


def check_traces(search: RestrictedSearch, rows: Any, expected: list[Traces]) -> None:
    """Compare all allowed traces of rows, and the paths down to each of their nodes."""
    found = search.traces(rows, 1_000)
    traces, log_p = found.traces, found.traces.log_p
    assert log_p is not None
    for row, wanted in enumerate(expected):
        start, end = traces.row_offsets[row : row + 2]
        paths = [tuple(traces.neurons[traces.offsets[t] : traces.offsets[t + 1]].tolist()) for t in range(start, end)]
        assert set(paths) == set(wanted)
        np.testing.assert_allclose(np.exp(log_p[start:end]), [wanted[path] for path in paths], rtol=1e-3, atol=NEAR)
        assert (np.diff(log_p[start:end]) <= 1e-6).all()
        for number, path in enumerate(paths, start):
            steps = np.exp(found.log_p[traces.offsets[number] : traces.offsets[number + 1]])
            prefixes = [sum(p for other, p in wanted.items() if other[:n] == path[:n]) for n in range(1, len(path) + 1)]
            np.testing.assert_allclose(steps, prefixes, rtol=1e-3, atol=NEAR)


@given(layers=layered(), seed=seeds)
@settings(max_examples=60)
def test_traces_are_those_of_the_whole_taxonomy_filtered_and_normalised(layers: Layers, seed: int) -> None:
    model, rows, allowed = random_model(layers, seed), random_rows(ROWS, seed), allowed_nodes(layers, seed)
    expected = [
        conditional(layers, allowed, {path: np.exp(log_p) for path, log_p in traces.items()})
        for traces in enumerated(model, rows)
    ]
    search = RestrictedSearch.of(Search(model.model), allowed)
    check_traces(search, rows, expected)
    check_labels(search, rows, expected)


@pytest.mark.parametrize("odds_scale", [1.0, 0.6])
@given(layers=layered(), seed=seeds)
@settings(max_examples=40)
def test_calibrated_probabilities_are_conditional_too(odds_scale: float, layers: Layers, seed: int) -> None:
    assume(layers.taxonomy.is_tree)
    search, rows, every = made(layers, seed, odds_scale)
    allowed = allowed_nodes(layers, seed)
    expected = [conditional(layers, allowed, traces) for traces in every]
    restricted = RestrictedSearch.of(search, allowed)
    check_traces(restricted, rows, expected)
    check_labels(restricted, rows, expected)


def check_labels(search: RestrictedSearch, rows: Any, expected: list[Traces]) -> None:
    """Compare labels, which sum over traces, and the answers that are chosen by them."""
    layers = search.layers
    labels = np.zeros((len(expected), len(layers.taxonomy)))
    nodes = np.zeros_like(labels)
    for row, traces in enumerate(expected):
        for path, p in traces.items():
            labels[row, end_of(layers, path)] += p
            above = layers.taxonomy.ancestor_lists(np.array([end_of(layers, path)]))[0]
            nodes[row, above] += p
    np.testing.assert_allclose(search.label_probabilities(rows).toarray(), labels, rtol=1e-3, atol=NEAR)
    best = search.labels(rows)
    np.testing.assert_allclose(best.probability, labels.max(1), rtol=1e-3, atol=NEAR)
    np.testing.assert_allclose(labels[np.arange(len(labels)), best.nodes], labels.max(1), rtol=1e-3, atol=NEAR)
    top = search.top_labels(rows, 3)
    for row in range(len(labels)):
        found = top.probability[slice(*top.found.traces.row_offsets[row : row + 2])]
        wanted = np.sort(labels[row][labels[row] > 0])[::-1][:3]
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=NEAR)
    for least in (0.3, 0.8):
        deepest = search.deepest_confident(rows, least)
        reached = np.where((nodes >= least) & search.restriction.allowed, layers.taxonomy.depth, 0)
        unsure = (np.abs(nodes - least) < NEAR).any(1)
        for row in np.flatnonzero(~unsure & (reached.max(1) > 0)):
            assert layers.taxonomy.depth[deepest.nodes[row]] == reached[row].max()
            np.testing.assert_allclose(deepest.probability[row], nodes[row, deepest.nodes[row]], rtol=1e-3, atol=NEAR)
        assert (deepest.probability[reached.max(1) == 0] < least + NEAR).all()


def test_a_branch_is_certain_of_itself() -> None:
    layers = Layers.of(Taxonomy.from_paths([("A", "x"), ("A", "y"), ("B", "z")]))
    model, rows = random_model(layers, 0), random_rows(ROWS, 0)
    allowed = np.isin(np.arange(len(layers.taxonomy)), layers.taxonomy.positions(["A", "A > x", "A > y"]))
    found = RestrictedSearch.of(Search(model.model), allowed).traces(rows, 10)
    first = found.traces.offsets[:-1]
    np.testing.assert_allclose(np.exp(found.log_p[first]), 1, rtol=1e-6)


def test_nothing_allowed_is_an_error() -> None:
    layers = Layers.of(Taxonomy.from_paths([("A", "x"), ("B",)]), ends=["A > x", "B"])
    allowed = np.isin(np.arange(len(layers.taxonomy)), layers.taxonomy.positions(["A"]))
    with pytest.raises(HiNetError, match="no label is left by `within` and `exclude`"):
        RestrictedSearch.of(Search(random_model(layers, 0).model), allowed)


def test_mixed_rows_without_unknown_words_need_no_trust() -> None:
    layers = Layers.of(Taxonomy.from_paths([("A", "x"), ("A", "y"), ("B",)]))
    model, sparse = random_model(layers, 1), random_rows(ROWS, 1)
    allowed = np.isin(np.arange(len(layers.taxonomy)), layers.taxonomy.positions(["A > x", "B"]))
    search = RestrictedSearch.of(Search(model.model), allowed)
    mixed = MixedRows(sparse, np.zeros((ROWS, 0), np.float32), np.zeros(ROWS, np.float32))
    assert search.traces(mixed, 2).traces.log_p == pytest.approx(search.traces(sparse, 2).traces.log_p)
