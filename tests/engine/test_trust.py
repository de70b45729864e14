"""Probabilities of rows with unknown n-grams, against traces listed one by one and mixed with labels all alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hinet import HiNetError, Layers
from hinet.data.matrices import MixedRows
from hinet.engine import Search
from hinet.engine.model.fused import Trust
from hinet.engine.search.corrections import odds_shift
from tests.engine.oracle import enumerated, random_model, random_rows
from tests.strategies import Path, layered

NEAR = 2e-4
TRUST = Trust(rate=1.5, power=2.0)
UNKNOWN = np.array([0.0, 0.4, 0.8, 1.0], np.float32)
ROWS = len(UNKNOWN)


def made(layers: Layers, seed: int, odds_scale: float) -> tuple[Search, MixedRows, list[dict[Path, float]]]:
    """Return a model, rows with unknown n-grams, and the probability that every trace of each row should have."""
    model, sparse = random_model(layers, seed), random_rows(ROWS, seed)
    expected = []
    for trust, logs in zip(TRUST.of(UNKNOWN).tolist(), enumerated(model, sparse), strict=True):
        best = max(logs, key=lambda path: logs[path])
        shift = float(odds_shift(np.exp([logs[best]]), odds_scale)[0]) if odds_scale != 1 else 0.0
        scaled = {path: (1 - shift) * np.exp(log_p) + shift * (path == best) for path, log_p in logs.items()}
        expected.append({path: trust * p + (1 - trust) / len(logs) for path, p in scaled.items()})
    rows = MixedRows(sparse, np.zeros((ROWS, 0), np.float32), UNKNOWN)
    return Search(replace(model.model, odds_scale=odds_scale, trust=TRUST)), rows, expected


def nodes_of(layers: Layers, traces: dict[Path, float]) -> Any:
    """Return the probability of every node, (nodes,), by listing traces."""
    mass = np.zeros(len(layers.taxonomy))
    for path, p in traces.items():
        mass[layers.node[list(path)]] += p
    return mass


scales = pytest.mark.parametrize("odds_scale", [1.0, 0.6])
seeds = st.integers(0, 10_000)


@scales
@given(layers=layered(), seed=seeds)
@settings(max_examples=30)
def test_traces_and_labels_are_mixed_with_uniform_ones(odds_scale: float, layers: Layers, seed: int) -> None:
    assume(layers.taxonomy.is_tree)
    search, rows, expected = made(layers, seed, odds_scale)
    found = search.traces(rows, 1_000)
    assert found.traces.log_p is not None
    for row, scored in enumerate(expected):
        start, end = found.traces.row_offsets[row : row + 2]
        assert end - start == len(scored)
        assert (np.diff(found.traces.log_p[start:end]) <= NEAR).all()  # ranks stay
        nodes = nodes_of(layers, scored)
        for trace in range(start, end):
            part = slice(*found.traces.offsets[trace : trace + 2])
            path = tuple(found.traces.neurons[part].tolist())
            assert np.exp(found.traces.log_p[trace]) == pytest.approx(scored[path], abs=NEAR)
            np.testing.assert_allclose(np.exp(found.log_p[part]), nodes[layers.node[list(path)]], atol=NEAR)
    labels = search.label_probabilities(rows)
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-5 * labels.shape[1])  # smaller ones are left out
    best = search.labels(rows)
    np.testing.assert_allclose(best.probability, labels.toarray().max(1), atol=NEAR)


@scales
@given(layers=layered(), seed=seeds, least=st.sampled_from([0.05, 0.2, 0.5, 0.9]))
@settings(max_examples=30)
def test_nodes_are_chosen_by_the_mixed_probabilities(
    odds_scale: float, layers: Layers, seed: int, least: float
) -> None:
    assume(layers.taxonomy.is_tree)
    search, rows, expected = made(layers, seed, odds_scale)
    sure, f1 = search.deepest_confident(rows, least), search.expected_f1(rows, 0.8)
    depth = layers.taxonomy.depth
    flat, offsets = layers.taxonomy.ancestor_lists(np.arange(len(depth)))
    for row, scored in enumerate(expected):
        nodes = nodes_of(layers, scored)
        assume((np.abs(nodes - least) > NEAR).all())
        assert sure.probability[row] == pytest.approx(nodes[sure.nodes[row]], abs=NEAR)
        if (nodes >= least).any():
            assert depth[sure.nodes[row]] == depth[nodes >= least].max()
        gains = np.array([(nodes[flat[start:end]] - 0.4).sum() for start, end in pairwise(offsets)])
        if gains.max() > NEAR:
            assert gains[f1.nodes[row]] == pytest.approx(gains.max(), abs=NEAR * len(depth))


@given(layers=layered(), seed=seeds)
@settings(max_examples=10)
def test_rows_without_unknown_n_grams_or_without_shares_are_unchanged(layers: Layers, seed: int) -> None:
    assume(layers.taxonomy.is_tree)
    search, rows, _ = made(layers, seed, 1.0)
    plain = search.uncorrected().traces(rows)
    known = search.traces(replace(rows, unknown=np.zeros(ROWS, np.float32)))
    for found in (known, search.traces(rows.sparse)):
        assert found.traces.log_p is not None
        np.testing.assert_array_equal(found.traces.log_p, plain.traces.log_p)
        np.testing.assert_array_equal(found.log_p, plain.log_p)


@pytest.mark.parametrize(("rate", "power"), [(-1.0, 2.0), (1.0, 0.0), (1e9, 2.0), (float("nan"), 2.0), (1.0, 1e9)])
def test_invalid_trust_is_refused(rate: float, power: float) -> None:
    with pytest.raises(HiNetError, match="trust has rate"):
        Trust.restored({"rate": rate, "power": power})
