"""The random choice of held-out rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError, counted


def holdout_mask(count: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the rows to hold out: a random share of ``count`` rows.

    The choice depends only on the seed, not on labels or texts. So the only row of a label may be held out: held-out
    rows relate to training rows as new rows of the same source do, and estimates on them hold for new rows. At least
    one row is held out, and at least one is kept.

    >>> holdout_mask(5, 0.4, seed=0).sum()
    np.int64(2)
    """
    if count < 2:
        raise HiNetError(
            f"got {counted(count, 'row')}, but holding some out needs at least 2; give more rows, or validation rows"
        )
    mask = np.zeros(count, bool)
    size = min(max(round(share * count), 1), count - 1)
    mask[np.random.default_rng(seed).permutation(count)[:size]] = True
    return mask
