"""Rows are held out as they come: by the seed alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetError
from hinet.data.holdout import holdout_mask


@given(st.integers(2, 300), st.floats(0.001, 0.999), st.integers(0, 2**64))
def test_a_share_is_held_out_and_something_is_left(count: int, share: float, seed: int) -> None:
    chosen = holdout_mask(count, share, seed)
    assert len(chosen) == count
    assert 1 <= chosen.sum() <= count - 1
    assert abs(chosen.sum() - share * count) <= 1
    np.testing.assert_array_equal(chosen, holdout_mask(count, share, seed))


def test_every_row_is_as_likely_as_any_other() -> None:
    often = np.mean([holdout_mask(20, 0.3, seed) for seed in range(2_000)], axis=0)
    np.testing.assert_allclose(often, 0.3, atol=0.04)  # nearly four deviations


def test_one_row_cannot_be_split() -> None:
    with pytest.raises(HiNetError, match="got 1 row, but holding some out needs at least 2"):
        holdout_mask(1, 0.5, 0)
