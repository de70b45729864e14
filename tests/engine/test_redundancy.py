"""Redundant features, and the dropout that they allow."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hinet import Layers, Taxonomy, Traces
from hinet.data.matrices import SparseMatrix
from hinet.data.text import TextFeatures, TextSettings
from hinet.engine import EngineSettings, Targets
from hinet.engine.training.rows import ColumnDigests, TrainingRows


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 12))
def test_the_share_counts_values_of_equal_columns(seed: int, rows: int, features: int) -> None:
    random = np.random.default_rng(seed)
    dense = random.choice([0, 0, 1, -0.5], (rows, features)).astype(np.float32)
    columns = [tuple(column) for column in dense.T]
    repeated = [column for column in columns if columns.count(column) > 1 and np.count_nonzero(column) > 1]
    share = sum(map(np.count_nonzero, repeated)) / max(np.count_nonzero(dense), 1)
    assert ColumnDigests.of(SparseMatrix.of(sp.csr_array(dense)), features).repeated_share() == pytest.approx(share)


def is_redundant(rows: sp.csr_array) -> bool:
    """Return whether training would find the features of rows redundant."""
    layers = Layers.of(Taxonomy.from_edges([(None, "a"), (None, "b")]))
    targets = Targets.of(Traces.encode(layers, ["a"] * rows.shape[0]))
    return TrainingRows(SparseMatrix.of(rows), targets, rows.shape[1]).sums().is_redundant


def made_up_texts() -> list[str]:
    """Texts of rare and frequent words, most of them of many letters."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefghijklmnopqrstuvwxyz"), random.integers(3, 12))) for _ in range(2_000)]
    shares = 1 / np.arange(1, len(words) + 1)
    return [" ".join(random.choice(words, 6, p=shares / shares.sum())) for _ in range(3_000)]


@pytest.mark.parametrize(("characters", "redundant"), [((3, 5), True), (None, False)])
def test_character_n_grams_are_redundant_and_words_are_not(characters: tuple[int, int] | None, redundant: bool) -> None:
    _, rows = TextFeatures.fit_transform(made_up_texts(), TextSettings(char_ngrams=characters))
    assert is_redundant(rows) == redundant


def test_columns_of_numbers_are_not_redundant() -> None:
    rows = sp.csr_array(np.random.default_rng(0).standard_normal((2_000, 64)).astype(np.float32))
    assert not is_redundant(rows)


def test_equal_columns_of_few_rows_are_not_redundant() -> None:
    few, many = (sp.csr_array(np.ones((rows, 64), np.float32)) for rows in (900, 1_100))
    assert not is_redundant(few)
    assert is_redundant(many)


def test_redundant_features_are_dropped_and_otherwise_hidden_units() -> None:
    def shares(redundant: bool, **chosen: float) -> tuple[float, float]:
        return EngineSettings(**chosen).dropout_for(redundant=redundant)  # type: ignore[arg-type]

    features, units = shares(True)
    assert features > 0 == units
    features, units = shares(False)
    assert features == 0 < units
    assert shares(False, feature_dropout=0.2) == (0.2, 0)
    assert shares(True, feature_dropout=0.0) == (0, shares(False)[1])
    assert shares(True, dropout=0.2) == (0, 0.2)
    assert shares(True, dropout=0.2, feature_dropout=0.1) == (0.1, 0.2)
