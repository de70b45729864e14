"""A threshold with a promise: the error among answered rows stays below a wish, with a stated certainty.

For every threshold of a grid that is fixed beforehand, the errors among the rows answered at it are binomial given
their number. Its upper bound by Clopper and Pearson holds with certainty ``1 - (1 - certainty) / thresholds``; by the
union bound all of them hold at once with ``certainty``, so any threshold whose bound is below the wish may be chosen:
the one that answers the most rows. The promise is for rows from the same source as the held-out ones, over draws of
these; the held-out rows must not have been trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from hinet.errors import HiNetError

# Finer where it matters: near 1.
THRESHOLDS: tuple[float, ...] = tuple(1 - np.round(np.geomspace(0.75, 0.002, 32), 4))
CERTAINTY = 0.9


@dataclass(frozen=True)
class Promise:
    """A threshold and what it promises: an error of at most ``bound`` among answered rows, with ``certainty``."""

    threshold: float
    bound: float
    certainty: float
    coverage: float  # share of the held-out rows it answers
    error: float  # among these
    rows: int


def check_share(name: str, share: float | None) -> None:
    """Raise HiNetError unless a share is between 0 and 1, or not given."""
    if share is not None and not 0 < share < 1:
        raise HiNetError(f"{name} is a share, between 0 and 1; got {share}")


def upper_bound(errors: NDArray[np.int64], answered: NDArray[np.int64], certainty: float) -> NDArray[np.float64]:
    """Return the upper bound of Clopper and Pearson for the error rate, one-sided; 1 where nothing is answered."""
    alive = errors < answered
    bound = np.ones(len(errors))
    bound[alive] = betaincinv(errors[alive] + 1, answered[alive] - errors[alive], certainty)
    return bound


def promised_threshold(
    thresholds: Sequence[float],
    answered: NDArray[np.int64],
    errors: NDArray[np.int64],
    rows: int,
    *,
    risk: float,
    certainty: float = CERTAINTY,
) -> Promise:
    """Return the threshold that answers the most rows with an error bounded by ``risk``.

    Parameters
    ----------
    thresholds : sequence of length t
        Fixed without looking at the rows.
    answered, errors : int arrays of shape (t,)
        How many of the ``rows`` held-out rows are answered at each threshold, and how many of these wrongly.

    Raises
    ------
    HiNetError
        If no threshold can be promised with so few rows.
    """
    check_share("risk", risk)
    check_share("certainty", certainty)
    bounds = upper_bound(errors, answered, 1 - (1 - certainty) / len(thresholds))
    good = np.flatnonzero(bounds <= risk)
    if not len(good):
        best = int(np.argmin(bounds))
        raise HiNetError(
            f"no threshold promises a risk of {risk} with certainty {certainty} on {rows:,} held-out rows: at "
            f"{thresholds[best]:.3f} the error may be as large as {bounds[best]:.3f}; give more rows or a larger risk"
        )
    at = int(good[np.argmax(answered[good])])
    return Promise(
        float(thresholds[at]),
        float(bounds[at]),
        certainty,
        int(answered[at]) / max(rows, 1),
        int(errors[at]) / max(int(answered[at]), 1),
        rows,
    )
