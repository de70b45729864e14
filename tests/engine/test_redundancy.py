"""Whether features of rows repeat each other, and what training makes of it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hinet.data.matrices import SparseMatrix
from hinet.data.text import TextFeatures, TextSettings
from hinet.engine import EngineSettings
from hinet.engine.training.cooccurrence import has_features_to_spare, repeated_share


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 12))
def test_the_share_counts_values_of_equal_columns(seed: int, rows: int, features: int) -> None:
    random = np.random.default_rng(seed)
    dense = random.choice([0, 0, 1, -0.5], (rows, features)).astype(np.float32)
    columns = [tuple(column) for column in dense.T]
    repeated = [column for column in columns if columns.count(column) > 1 and np.count_nonzero(column) > 1]
    share = sum(map(np.count_nonzero, repeated)) / max(np.count_nonzero(dense), 1)
    assert repeated_share(SparseMatrix.of(sp.csr_array(dense)), features) == pytest.approx(share)


def made_up_texts() -> list[str]:
    """Texts of rare and frequent words, most of them of many letters."""
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefghijklmnopqrstuvwxyz"), random.integers(3, 12))) for _ in range(2_000)]
    shares = 1 / np.arange(1, len(words) + 1)
    return [" ".join(random.choice(words, 6, p=shares / shares.sum())) for _ in range(3_000)]


@pytest.mark.parametrize(("characters", "spare"), [((3, 5), True), (None, False)])
def test_character_n_grams_are_to_spare_and_words_are_not(characters: tuple[int, int] | None, spare: bool) -> None:
    _, rows = TextFeatures.fit_transform(made_up_texts(), TextSettings(char_ngrams=characters))
    assert has_features_to_spare(SparseMatrix.of(rows), rows.shape[1]) == spare


def test_columns_of_numbers_are_not_to_spare() -> None:
    rows = sp.csr_array(np.random.default_rng(0).standard_normal((2_000, 64)).astype(np.float32))
    assert not has_features_to_spare(SparseMatrix.of(rows), 64)


def test_equal_columns_of_few_rows_are_chance() -> None:
    few, many = (SparseMatrix.of(sp.csr_array(np.ones((rows, 64), np.float32))) for rows in (900, 1_100))
    assert not has_features_to_spare(few, 64)
    assert has_features_to_spare(many, 64)


def test_features_are_left_out_where_they_are_to_spare_and_hidden_units_elsewhere() -> None:
    def shares(spare: bool, **chosen: float) -> tuple[float, float]:
        return EngineSettings(**chosen).dropout_for(redundant=spare)  # type: ignore[arg-type]

    features, units = shares(True)
    assert features > 0 == units
    features, units = shares(False)
    assert features == 0 < units
    assert shares(False, feature_dropout=0.2) == (0.2, 0)
    assert shares(True, feature_dropout=0.0) == (0, shares(False)[1])
    assert shares(True, dropout=0.2) == (0, 0.2)
    assert shares(True, dropout=0.2, feature_dropout=0.1) == (0.1, 0.2)
