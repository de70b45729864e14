"""Weights in 8 bits: near what they were, the same when turned twice, and trained, carried and saved as others are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from hinet import HiNetError, Layers, Taxonomy, Traces
from hinet.compiled import interpreting
from hinet.data.matrices import LEVELS, SparseMatrix, float_rows, quantise_rows
from hinet.engine import DeepExpert, EngineSettings, FusedModel, Search, ValidationRows, fit
from hinet.engine.model.fused import with_merged
from hinet.engine.settings import FEW_ROWS
from hinet.engine.training.rows import ColumnDigests

LABELS = ["x", "y", "z", "b"]
FEATURES = 12
FEW = 60  # rows for interpreted kernels
QUICK = EngineSettings(width=8, flat_width=4, flat=True, threads=1, deep_epochs=3)
NUMBERS = st.floats(-1e6, 1e6, width=32)


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=7), elements=NUMBERS))
def test_rows_in_8_bits_are_near_and_stay_the_same(values: np.ndarray) -> None:
    rows, scale = quantise_rows(values)
    assert rows.dtype == np.int8
    assert (scale > 0).all()
    again = float_rows(rows, scale)
    peak = np.abs(values).max(1, keepdims=True)
    assert (np.abs(again - values) <= peak / LEVELS * 0.51 + 1e-30).all()
    for first, second in zip((rows, scale), quantise_rows(again), strict=True):
        np.testing.assert_array_equal(first, second)


def test_rows_of_nothing_have_a_scale() -> None:
    rows, scale = quantise_rows(np.array([[0, 0], [1e-40, 0]], np.float32))
    assert not rows.any()
    np.testing.assert_array_equal(scale, 1)
    assert quantise_rows(np.zeros((3, 0), np.float32))[0].shape == (3, 0)


def data(repeats: int = 1, count: int = 1_200) -> tuple[sp.csr_array, Traces]:
    """Return rows with one feature per label; every feature is repeated ``repeats`` times."""
    random = np.random.default_rng(0)
    chosen = random.integers(0, len(LABELS), count)
    values = (random.random((count, FEATURES)) < 0.3).astype(np.float32)
    values[np.arange(count), chosen] = 2
    layers = Layers.of(Taxonomy.from_paths([("a", "x"), ("a", "y"), ("a", "z"), ("b",)], steps="ids"))
    rows = sp.csr_array(np.tile(values, repeats))
    return rows, Traces.encode(layers, [LABELS[label] for label in chosen])


def log_p(model: FusedModel, rows: sp.csr_array) -> np.ndarray:
    found = Search(model).traces(rows, 4).traces.log_p
    assert found is not None
    return found


def interpreted_log_p(model: FusedModel, rows: sp.csr_array) -> np.ndarray:
    """The same by interpreted kernels: to compile them for experts in single precision takes longer than all else."""
    with interpreting(lambda kernel, arguments: None):
        return log_p(model, rows)


@pytest.fixture(scope="module")
def trained() -> FusedModel:
    return fit(*data(), QUICK)


def in_floats(model: FusedModel) -> FusedModel:
    """The same model in single precision, as older ones were saved."""
    deep, flat = model.experts.deep.in_floats(), model.experts.flat.in_floats()
    return replace(model, experts=model.experts._replace(deep=deep, flat=flat))


def test_a_trained_model_is_in_8_bits_and_answers_as_its_fractions_do(trained: FusedModel) -> None:
    rows = data()[0][:FEW]
    assert trained.experts.deep.is_quantised
    assert trained.experts.flat.is_quantised
    np.testing.assert_allclose(log_p(trained, rows), interpreted_log_p(in_floats(trained), rows), atol=1e-4)


def test_a_model_in_single_precision_still_loads_and_stays_so(trained: FusedModel) -> None:
    rows = data()[0][:FEW]
    old = in_floats(trained)
    arrays = {name: array for name, array in old.to_arrays().items() if not name.endswith("scale")}
    assert arrays["features.weight"].dtype == np.float32
    again = FusedModel.from_arrays(trained.layers, arrays)
    assert not again.experts.deep.is_quantised
    np.testing.assert_array_equal(interpreted_log_p(again, rows), interpreted_log_p(old, rows))


def test_scales_of_8_bits_must_be_there(trained: FusedModel) -> None:
    arrays = trained.to_arrays()
    del arrays["flat.head.scale"]
    with pytest.raises(HiNetError, match=r"no 'flat\.head\.scale'"):
        FusedModel.from_arrays(trained.layers, arrays)


@pytest.mark.parametrize("repeats", [1, 8], ids=["", "merged"])
def test_a_quantised_model_is_trained_further(repeats: int) -> None:
    rows, traces = data(repeats, FEW_ROWS)
    first = fit(rows, traces, replace(QUICK, deep_epochs=1))
    more = fit(rows, traces, QUICK, start=first)
    assert more.experts.deep.is_quantised
    assert (more.merged is None) == (repeats == 1)
    truth = traces.decode()
    assert np.mean([a == b for a, b in zip(Search(more).traces(rows).traces.decode(), truth, strict=True)]) > 0.95


def test_a_model_transferred_to_the_same_layers_is_bit_for_bit_the_same(trained: FusedModel) -> None:
    rows, _ = data()
    again = trained.transferred(trained.layers, np.arange(len(trained.layers.taxonomy)))
    np.testing.assert_array_equal(again.experts.deep.weight, trained.experts.deep.weight)
    np.testing.assert_array_equal(again.experts.flat.weight_scale, trained.experts.flat.weight_scale)
    np.testing.assert_array_equal(log_p(again, rows), log_p(trained, rows))


def test_columns_that_are_equal_get_one_number() -> None:
    values = np.array([[1, 0, 1, 2, 0], [0, 3, 0, 1, 0]], np.float32)
    rows = SparseMatrix.of(sp.csr_array(values))
    numbers = ColumnDigests.of(rows, 5).merged()
    assert numbers.tolist() == [0, 1, 0, 2, 3]
    merged = with_merged(rows, numbers, 4)
    found = sp.csr_array((merged.data, merged.indices, merged.indptr), shape=(2, 4)).toarray()
    np.testing.assert_array_equal(found, [[2, 0, 2, 0], [0, 3, 1, 0]])


def test_redundant_features_share_their_weights() -> None:
    few, few_traces = data(8)
    assert fit(few, few_traces, QUICK).merged is None  # columns of few rows are equal by chance
    rows, traces = data(8, FEW_ROWS)
    model = fit(rows, traces, QUICK, valid=ValidationRows(rows[:100], traces.take(np.arange(100))))
    assert model.merged is not None
    assert model.features == 8 * FEATURES
    assert len(model.experts.deep.embedding) == FEATURES
    again = FusedModel.from_arrays(model.layers, model.to_arrays())
    assert again.merged is not None
    np.testing.assert_array_equal(again.merged, model.merged)
    np.testing.assert_array_equal(log_p(again, rows), log_p(model, rows))
    one = np.zeros((len(traces), 8 * FEATURES), np.float32)
    one[:, -FEATURES:] = 8 * rows.toarray()[:, :FEATURES]  # all of a feature's value in one of its copies
    np.testing.assert_allclose(log_p(model, sp.csr_array(one)), log_p(model, rows), atol=1e-4)
    arrays = model.to_arrays() | {"merged": np.full(8 * FEATURES, FEATURES)}
    with pytest.raises(HiNetError, match="the array 'merged' holds 12 at index 0, expected 0 to 11"):
        FusedModel.from_arrays(model.layers, arrays)


@pytest.mark.parametrize("prototypes", [0.0, 0.5])
def test_contributions_sum_to_the_logit(prototypes: float) -> None:
    rows, traces = data(8)
    model = fit(rows, traces, QUICK, valid=ValidationRows(rows[:100], traces.take(np.arange(100))))
    mix = model.experts.mix.copy()
    mix[3] = prototypes if len(model.experts.prototypes.value) else 0
    model = replace(model, experts=model.experts._replace(mix=mix))
    parts = model.contributions(SparseMatrix.of(rows[:1]), 0)
    assert parts.by_feature.shape[1] == rows[:1].nnz
    shown = parts.logits - np.logaddexp.reduce(parts.logits)
    top = Search(model).label_probabilities(rows[:1]).toarray()[0]
    taxonomy = model.layers.taxonomy
    np.testing.assert_allclose(np.exp(shown)[-1], top[taxonomy.position("b")], atol=1e-4)


def test_width_grows_with_the_number_of_labels() -> None:
    settings = EngineSettings()
    widths = [settings.width_for(2, labels) for labels in (1, 20, 64, 65, 300, 1_010, 1_139, 20_000)]
    assert widths == [32, 32, 32, 64, 128, 160, 192, 192]
    assert settings.width_for(1, 20_000) == 256
    assert [settings.flat_width_for(labels) for labels in (20, 300, 2_000)] == [32, 128, 128]
    assert EngineSettings(width=7, flat_width=5).width_for(2, 20_000) == 7
    assert EngineSettings(flat_width=5).flat_width_for(20_000) == 5


def test_long_rows_are_seen_less_often() -> None:
    settings = EngineSettings()
    assert [settings.epochs_of_deep(10_000, features) for features in (0, 128, 183, 10_000)] == [10, 10, 7, 5]
    assert [settings.wide_rate_for(features) for features in (1, 128, 256)] == [3.0, 3.0, 1.5]
    assert EngineSettings(wide_rate=2.0, deep_epochs=3).wide_rate_for(256) == 2.0
    assert [settings.members_for(10_000, features) for features in (999, 1_000)] == [2, 1]


def test_an_expert_without_units_is_in_8_bits() -> None:
    nothing = DeepExpert.none(3, 2)
    assert nothing.is_quantised
    assert nothing.quantised() is nothing


def test_a_model_that_joblib_maps_is_read_by_the_same_kernels(trained: FusedModel, tmp_path: Path) -> None:
    joblib.dump(trained, tmp_path / "model")
    mapped = joblib.load(tmp_path / "model", mmap_mode="r")
    parts = [part for expert in mapped.experts if isinstance(expert, tuple) for part in expert]
    arrays = [array for part in parts for array in (part if isinstance(part, tuple) else (part,))]
    assert len(arrays) > 10
    assert all(
        array.flags.writeable for array in [*arrays, *mapped.groups[:4]]
    )  # kernels would be compiled again for other arrays
    rows, _ = data()
    np.testing.assert_array_equal(log_p(mapped, rows), log_p(trained, rows))
