"""The decoder by itself: against downpour on the same scores, ties and all."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hinet import Layers, Taxonomy
from hinet.data import Traces
from hinet.engine import FusedModel
from hinet.exporting import decode as decoder
from hinet.exporting.decode import Decoded, decode, paths, read
from hinet.exporting.export import FusedSource, arrays_of
from hinet.networks import NeuronGraph, downpour
from tests.engine.oracle import biased_model, random_model
from tests.strategies import layered


def assert_same(found: Decoded, expected: Traces) -> None:
    np.testing.assert_array_equal(found.row_offsets, expected.row_offsets)
    np.testing.assert_array_equal(found.offsets, expected.offsets)
    np.testing.assert_array_equal(found.neurons, expected.neurons)
    np.testing.assert_array_equal(found.log_p, expected.log_p)


def scores_of(layers: Layers, rows: int, seed: int, *, ties: bool) -> NDArray[np.float32]:
    drawn = -np.random.default_rng(seed).exponential(2, (rows, len(layers.option_neuron)))
    return (drawn.round() if ties else drawn).astype(np.float32)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("k", [1, 2, 50])
@given(layers=layered(), seed=st.integers(0, 10_000), rows=st.integers(0, 4))
@settings(max_examples=40)
def test_decoding_is_downpour(k: int, ties: bool, layers: Layers, seed: int, rows: int) -> None:
    log_p = scores_of(layers, rows, seed, ties=ties)
    expected = downpour(NeuronGraph(layers), torch.from_numpy(log_p.T.astype(np.float64)), k)
    found = decode(log_p, arrays_of(FusedSource(random_model(layers, seed).model)), k)
    assert_same(found, expected)
    assert paths(found, arrays_of(FusedSource(random_model(layers, seed).model))) == expected.paths()


def test_the_decoder_needs_numpy_alone() -> None:
    tree = ast.parse(Path(decoder.__file__).read_text("utf-8"))
    rooms = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    rooms |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in rooms} - set(sys.stdlib_module_names) == {"numpy"}


def small() -> FusedModel:
    return biased_model(Layers.of(Taxonomy.from_paths([("A", "x"), ("A", "y"), ("B",)])), {}).model


def test_scores_that_cannot_be_decoded_are_refused() -> None:
    arrays = arrays_of(FusedSource(small()))
    log_p = np.zeros((2, len(arrays["option_neuron"])), np.float32)
    with pytest.raises(ValueError, match=r"expected scores of shape \(rows, 8\), got \(2, 7\)"):
        decode(log_p[:, 1:], arrays)
    with pytest.raises(ValueError, match="k must be at least 1"):
        decode(log_p, arrays, 0)
    log_p[1, 3] = np.nan
    with pytest.raises(ValueError, match="row 1: a score is not a number"):
        decode(log_p, arrays)


def test_arrays_of_another_format_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "traces.npz", format=np.array(99))
    with pytest.raises(ValueError, match="has format 99"):
        read(str(tmp_path / "traces.npz"))
