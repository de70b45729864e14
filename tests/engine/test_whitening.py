"""Whitening of dense columns: its law, and models that read rows as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from hinet import Layers, Taxonomy, Traces
from hinet.data.matrices import MixedRows
from hinet.engine import EngineSettings, Search, fit
from hinet.engine.training import rows as module
from hinet.engine.training.rows import SHRINKAGE, whitening


def _rows(count: int = 2_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of 5 labels, apart in the first columns and noisy in the last ones, with their labels."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 5, count)
    centres = np.hstack([np.eye(5), np.zeros((5, 3))])
    noise = random.standard_normal((count, 8)) * np.array([0.3] * 5 + [3.0] * 3)
    return (centres[label] + noise).astype(np.float32), label


def test_the_shrunk_covariance_within_labels_becomes_that_of_columns_that_vary_alike() -> None:
    columns, label = _rows()
    matrix = whitening(columns, label).astype(np.float64)
    means = np.stack([columns[label == each].mean(0) for each in range(5)])[label]
    within = (columns - means).T.astype(np.float64) @ (columns - means)
    spread = np.trace(within) / 8
    shrunk = (1 - SHRINKAGE) * within / spread + SHRINKAGE * np.eye(8)
    whole = matrix @ shrunk @ matrix
    np.testing.assert_allclose(whole, np.eye(8) * whole[0, 0], atol=1e-4 * whole[0, 0])
    np.testing.assert_allclose(np.square(columns @ matrix).sum(), np.square(columns).sum(), rtol=1e-4)


@pytest.mark.parametrize("columns", [np.zeros((4, 3), np.float32), np.eye(4, 3, dtype=np.float32)])
def test_columns_that_do_not_vary_within_labels_stay(columns: np.ndarray) -> None:
    assert np.array_equal(whitening(columns, np.arange(4)), np.eye(3))


def test_directions_are_kept_in_which_labels_differ_most(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, label = _rows()
    monkeypatch.setattr(module, "MAX_COLUMNS", 4)  # five labels differ in four directions
    kept = columns @ whitening(columns, label)
    assert kept.shape == (2_000, 4)
    monkeypatch.setattr(module, "MAX_COLUMNS", 8)
    whole = columns @ whitening(columns, label)

    def distances(rows: np.ndarray) -> np.ndarray:
        """Return how labels stand to each other, whatever the scale."""
        means = np.stack([rows[label == each].mean(0) for each in range(5)]) - rows.mean(0)
        return means @ means.T / np.square(means).sum()

    np.testing.assert_allclose(distances(kept), distances(whole), atol=1e-4)
    np.testing.assert_allclose(np.square(kept).sum(), np.square(columns).sum(), rtol=1e-4)


def test_all_columns_stay_where_there_are_few_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COLUMNS", 5)
    assert whitening(*_rows()).shape == (8, 8)


@pytest.mark.parametrize("max_columns", [8, 4])
def test_a_model_that_trained_on_whitened_columns_reads_rows_as_they_are(
    max_columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_COLUMNS", max_columns)
    columns, label = _rows(400)
    layers = Layers.of(Taxonomy.from_paths([(f"top {each % 2}", f"{each}") for each in range(5)], steps="ids"))
    trained = MixedRows(sp.csr_array((400, 2), dtype=np.float32), columns)
    traces = Traces.encode(layers, [str(each) for each in label])
    columns, label = _rows(400, seed=1)
    rows = MixedRows(trained.sparse, columns)
    settings = EngineSettings(threads=1, members=1, wide=False, deep_epochs=20, whiten=True)
    model, plain = (fit(trained, traces, each) for each in (settings, replace(settings, whiten=False)))
    assert not np.array_equal(model.experts.deep.embedding, plain.experts.deep.embedding)
    assert np.mean(np.array(Search(model, 1).traces(rows).traces.decode()) == label.astype(str)) > 0.9
