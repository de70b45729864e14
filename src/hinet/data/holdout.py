"""Rows held out of training, in one place for the estimator and the shell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError


def held_out(count: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Return which of ``count`` rows to hold out: a share of them, by the seed alone.

    Neither labels nor texts decide. So the only row of a label may be held out, and one of two equal rows: a held-out
    row is then to the training rows what a new row of the same source is, and what is found on held-out rows holds for
    new ones. At least one row is held out, and one is left.

    >>> held_out(5, 0.4, seed=0).sum()
    np.int64(2)
    """
    if count < 2:
        raise HiNetError(
            f"got {count} rows; at least 2 are needed to hold some out; give more rows, or validation rows"
        )
    chosen = np.zeros(count, bool)
    number = min(max(round(share * count), 1), count - 1)
    chosen[np.random.default_rng(seed).permutation(count)[:number]] = True
    return chosen
