"""Splits of rows by hash and at random."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetError, LabelError
from hinet.data import LabelledRows, split_by_hash
from hinet.data.datasets import holdout_mask

row_lists = st.lists(st.tuples(st.text(max_size=4), st.sampled_from("abc")), unique=True, max_size=40)


def as_rows(pairs: list[tuple[str, str]]) -> LabelledRows:
    return LabelledRows(tuple(text for text, _ in pairs), tuple(label for _, label in pairs))


@given(row_lists.flatmap(lambda rows: st.tuples(st.just(rows), st.permutations(rows))))
def test_a_split_keeps_all_rows_and_ignores_their_order(both: tuple[list, list]) -> None:
    first, second = (split_by_hash(as_rows(pairs), {"valid": 0.3, "test": 0.3}, rest="train") for pairs in both)
    for name in ("train", "valid", "test"):
        assert set(zip(first[name].texts, first[name].labels, strict=True)) == set(
            zip(second[name].texts, second[name].labels, strict=True)
        )
    assert sum(map(len, first.values())) == len(both[0])
    assert set(first["train"].labels) == {label for _, label in both[0]}


def test_shares_are_approximate() -> None:
    rows = LabelledRows(tuple(map(str, range(10_000))), ("x",) * 10_000)
    parts = split_by_hash(rows, {"valid": 0.1, "test": 0.2}, rest="train")
    assert 900 < len(parts["valid"]) < 1100
    assert 1850 < len(parts["test"]) < 2150


def test_every_text_needs_a_label() -> None:
    with pytest.raises(LabelError, match="2 texts and 1 label;"):
        LabelledRows(("a", "b"), ("x",))


@given(st.integers(2, 300), st.floats(0.001, 0.999), st.integers(0, 2**64))
def test_a_share_is_held_out_and_some_rows_are_left(count: int, share: float, seed: int) -> None:
    chosen = holdout_mask(count, share, seed)
    assert len(chosen) == count
    assert 1 <= chosen.sum() <= count - 1
    assert abs(chosen.sum() - share * count) <= 1
    np.testing.assert_array_equal(chosen, holdout_mask(count, share, seed))


def test_every_row_is_equally_likely() -> None:
    often = np.mean([holdout_mask(20, 0.3, seed) for seed in range(2_000)], axis=0)
    np.testing.assert_allclose(often, 0.3, atol=0.04)  # nearly four deviations


def test_one_row_cannot_be_split() -> None:
    with pytest.raises(HiNetError, match="got 1 row, but holding some out needs at least 2"):
        holdout_mask(1, 0.5, 0)
