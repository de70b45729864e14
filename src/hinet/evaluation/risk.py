"""Confidence thresholds with a risk bound: the error among answered rows is at most ``risk``, with a given certainty.

For every threshold of a fixed grid, the number of errors among the rows answered at it is binomial, given their number.
The upper bound of Clopper and Pearson holds with certainty ``1 - (1 - certainty) / thresholds`` for one threshold, so
by the union bound for all of them at once with ``certainty``. Any threshold whose bound is at most ``risk`` may then
be chosen: the one that answers the most rows. The bound is for new rows from the source of the held-out rows. These
must not be used for training, and none may be removed: new rows, too, may have labels that the model does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError
from hinet.parameters import SHARE

THRESHOLDS: tuple[float, ...] = tuple(1 - np.round(np.geomspace(0.75, 0.002, 32), 4))  # finer near 1
CERTAINTY = 0.9


@dataclass(frozen=True)
class RiskBound:
    """A confidence threshold and its risk: with ``certainty``, at most a share ``bound`` of the answers is wrong.

    >>> bound = RiskBound(0.9, 0.047, 0.9, 0.81, 0.03, 2_000, risk=0.05, full_depth=0.6)
    >>> for part in str(bound).split("; "):
    ...     print(part)
    confidence of at least 0.900: at most 5% of the answers are wrong, with certainty 0.9
    of 2,000 held-out rows 81.0% are answered, 60.0% to full depth
    """

    threshold: float
    bound: float
    certainty: float
    coverage: float  # share of the held-out rows that are answered
    error: float  # share of wrong answers among them
    rows: int
    risk: float  # the requested risk
    full_depth: float  # share of the held-out rows answered to full depth

    def __str__(self) -> str:
        return (
            f"confidence of at least {self.threshold:.3f}: at most {100 * self.risk:.3g}% of the answers are wrong, "
            f"with certainty {self.certainty:g}; of {self.rows:,} held-out rows "
            f"{100 * self.coverage:.1f}% are answered, {100 * self.full_depth:.1f}% to full depth"
        )


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Attributes
    ----------
    temperature : float
        Divisor of all logits.
    error_before, error_after : float
        Expected calibration error of the predicted labels before and after scaling, on the rows that determine the
        scale; each half of them is evaluated with the scale found on the other half.
    rows : int
        Number of held-out rows.
    promise : RiskBound, optional
        The threshold for the given risk.
    slope : float
        Factor of the log odds of the best trace against all others, at most 1, applied after the temperature. A slope
        below 1 lowers high probabilities and raises low ones. With several labels per row, the factor of the log odds
        of every label.
    offset : float
        Number added to the log odds of every label, with several labels per row.
    scaled : bool
        Whether probabilities were scaled. They are not if scaling does not improve both the log loss and the
        calibration error of the halves, or if there are fewer than 100 rows to determine a scale.
    """

    temperature: float
    error_before: float
    error_after: float
    rows: int
    promise: RiskBound | None = None
    slope: float = 1.0
    offset: float = 0.0
    scaled: bool = True


@dataclass(frozen=True)
class AnswerCounts:
    """Counts of answers at a threshold."""

    rows: int
    answered: int
    wrong: int
    full_depth: int  # answered with a leaf, or with the label predicted without a threshold

    @classmethod
    def joined(cls, parts: Iterable[AnswerCounts]) -> AnswerCounts:
        """Return the sum of the counts of several parts."""
        return cls(*(sum(counts) for counts in zip(*map(astuple, parts), strict=True)))

    def __str__(self) -> str:
        answered, full_depth, wrong = (f"{100 * share:.1f}%" for share in self.as_shares().values())
        return f"{answered} of the rows answered, {full_depth} to full depth; {wrong} of the answers wrong"

    def as_shares(self) -> dict[str, float]:
        """Return the shares of rows that are answered and answered to full depth, and of wrong answers."""
        rows = max(self.rows, 1)
        return {
            "answered": self.answered / rows,
            "full_depth": self.full_depth / rows,
            "error": self.wrong / max(self.answered, 1),
        }


def upper_bound(errors: NDArray[np.int64], answered: NDArray[np.int64], certainty: float) -> NDArray[np.float64]:
    """Return the one-sided upper bound of Clopper and Pearson for the error rate; 1 if nothing is answered."""
    from scipy.special import betaincinv  # slow to import

    uncertain = errors < answered
    bound = np.ones(len(errors))
    bound[uncertain] = betaincinv(errors[uncertain] + 1, answered[uncertain] - errors[uncertain], certainty)
    return bound


def find_threshold(
    thresholds: Sequence[float],
    answered: NDArray[np.int64],
    errors: NDArray[np.int64],
    full_depth: NDArray[np.int64],
    rows: int,
    *,
    risk: float,
    certainty: float = CERTAINTY,
) -> RiskBound:
    """Return the threshold that answers the most rows with an error bounded by ``risk``.

    Parameters
    ----------
    thresholds : sequence of length t
        Chosen independently of the rows.
    answered, errors, full_depth : int arrays of shape (t,)
        Numbers of held-out rows that are answered at each threshold, answered wrongly, and answered to full depth.
    rows : int
        Number of held-out rows.

    Raises
    ------
    HiNetError
        If no threshold has a bound of at most ``risk``.
    """
    SHARE.validate("risk", risk)
    SHARE.validate("certainty", certainty)
    bounds = upper_bound(errors, answered, 1 - (1 - certainty) / len(thresholds))
    valid = np.flatnonzero(bounds <= risk)
    if not len(valid):
        best = int(np.argmin(bounds))
        min_rows = int(np.ceil(np.log((1 - certainty) / len(thresholds)) / np.log(1 - risk)))
        raise HiNetError(
            f"no threshold guarantees a risk of {risk} with certainty {certainty} on {rows:,} held-out rows: at "
            f"{thresholds[best]:.3f} the error may be as large as {bounds[best]:.3f}; it takes {min_rows:,} such rows "
            "if no answer is wrong, else more; give more rows or a larger risk"
        )
    chosen = int(valid[np.argmax(answered[valid])])
    return RiskBound(
        float(thresholds[chosen]),
        float(bounds[chosen]),
        certainty,
        int(answered[chosen]) / max(rows, 1),
        int(errors[chosen]) / max(int(answered[chosen]), 1),
        rows,
        risk,
        int(full_depth[chosen]) / max(rows, 1),
    )
