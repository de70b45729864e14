"""A threshold with a promise: the error among answered rows stays below a wish, with a stated certainty.

For every threshold of a grid that is fixed beforehand, the errors among the rows answered at it are binomial given
their number. Its upper bound by Clopper and Pearson holds with certainty ``1 - (1 - certainty) / thresholds``; by the
union bound all of them hold at once with ``certainty``, so any threshold whose bound is below the wish may be chosen:
the one that answers the most rows. The promise is for rows from the same source as the held-out ones, over draws of
these; the held-out rows must not have been trained on, and none may be kept back: new rows, too, have labels that the
model cannot know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError
from hinet.parameters import NONE, SHARE

# Finer where it matters: near 1.
THRESHOLDS: tuple[float, ...] = tuple(1 - np.round(np.geomspace(0.75, 0.002, 32), 4))
CERTAINTY = 0.9


@dataclass(frozen=True)
class Promise:
    """A threshold and what it promises: an error of at most ``bound`` among answered rows, with ``certainty``.

    >>> promise = Promise(0.9, 0.047, 0.9, 0.81, 0.03, 2_000, risk=0.05, full_depth=0.6)
    >>> for part in str(promise).split("; "):
    ...     print(part)
    at least 0.900 sure: at most 5% of the answers wrong, with certainty 0.9
    of 2,000 held-out rows 81.0% are answered, 60.0% to full depth
    """

    threshold: float
    bound: float
    certainty: float
    coverage: float  # share of the held-out rows it answers
    error: float  # among these
    rows: int
    risk: float | None = None  # as it was wished; models saved before it was kept have none
    full_depth: float | None = None  # share of the held-out rows it answers to full depth; the same

    def __str__(self) -> str:
        risk = self.bound if self.risk is None else self.risk
        depth = "" if self.full_depth is None else f", {100 * self.full_depth:.1f}% to full depth"
        return (
            f"at least {self.threshold:.3f} sure: at most {100 * risk:.3g}% of the answers wrong, with certainty "
            f"{self.certainty:g}; of {self.rows:,} held-out rows {100 * self.coverage:.1f}% are answered{depth}"
        )


@dataclass(frozen=True)
class AnswerCounts:
    """How rows are answered at a threshold."""

    rows: int
    answered: int
    wrong: int
    full_depth: int  # answered with a leaf, or with the label that the row has without a threshold

    @classmethod
    def joined(cls, parts: Iterable[AnswerCounts]) -> AnswerCounts:
        """Return the counts of the rows of several parts."""
        return cls(*(sum(counts) for counts in zip(*map(astuple, parts), strict=True)))

    def __str__(self) -> str:
        answered, full_depth, wrong = (f"{100 * share:.1f}%" for share in self.as_shares().values())
        return f"{answered} of the rows answered, {full_depth} to full depth; {wrong} of the answers wrong"

    def as_shares(self) -> dict[str, float]:
        """Return the shares of rows that are answered, and to full depth, and of answers that are wrong."""
        rows = max(self.rows, 1)
        return {
            "answered": self.answered / rows,
            "full_depth": self.full_depth / rows,
            "error": self.wrong / max(self.answered, 1),
        }


def check_share(name: str, share: float | None) -> None:
    """Raise HiNetError unless a share is between 0 and 1, or not given."""
    (SHARE | NONE).validate(name, share)


def upper_bound(errors: NDArray[np.int64], answered: NDArray[np.int64], certainty: float) -> NDArray[np.float64]:
    """Return the upper bound of Clopper and Pearson for the error rate, one-sided; 1 where nothing is answered."""
    from scipy.special import betaincinv  # only here: a promise is shown without it

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
    full_depth: NDArray[np.int64] | None = None,
) -> Promise:
    """Return the threshold that answers the most rows with an error bounded by ``risk``.

    Parameters
    ----------
    thresholds : sequence of length t
        Fixed without looking at the rows.
    answered, errors, full_depth : int arrays of shape (t,)
        How many of the ``rows`` held-out rows are answered at each threshold, how many of these wrongly, and how many
        to full depth.

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
        risk,
        None if full_depth is None else int(full_depth[at]) / max(rows, 1),
    )
