"""Numbers by their rank among training rows, which tells small ones apart where a few are huge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError
from hinet.files.schema import FINITE, ArraySpec, Schema, check_arrays, floats

KNOTS = 65  # numbers that are kept of a column; ranks between them are interpolated
OUTERMOST = 0.002  # the rank of the least number, as a share
FEWEST = 3  # distinct numbers of a column whose ranks say more than the numbers
SCORES = np.array([NormalDist().inv_cdf(share) for share in np.linspace(0, 1, KNOTS).clip(OUTERMOST, 1 - OUTERMOST)])

_RANKS: Schema = {
    "columns.ranked": ArraySpec(("numbers",), "u", 0, 1),
    "columns.knots": floats("ranked", KNOTS, low=-FINITE, high=FINITE),
}


@dataclass(frozen=True, eq=False)
class Ranks:
    """Columns of numbers as scores: what a normal distribution has at the rank of the number; 0 if it is missing."""

    ranked: NDArray[np.bool_]  # (c,) which columns
    knots: NDArray[np.float64]  # (ranked columns, KNOTS) numbers at even ranks, from the least to the greatest

    @classmethod
    def none(cls, columns: int) -> Ranks:
        """Return the ranks of no column."""
        return cls(np.zeros(columns, np.bool_), np.zeros((0, KNOTS)))

    @classmethod
    def fit(cls, values: NDArray[np.float64]) -> Ranks:
        """Return the ranks of columns among the numbers of training rows, (n, c), NaN where they are missing."""
        known = [column[~np.isnan(column)] for column in values.T]
        ranked = np.array([len(np.unique(column)) >= FEWEST for column in known], np.bool_)
        shares = np.linspace(0, 1, KNOTS)
        knots = [np.quantile(column, shares) for column, wanted in zip(known, ranked, strict=True) if wanted]
        return cls(ranked, np.array(knots).reshape(-1, KNOTS))

    def scores(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the scores of the ranked columns of rows, given the numbers of all columns.

        Equal numbers have the middle of their ranks: interpolation takes the last of equal knots, so it is done from
        both sides.
        """
        found = np.zeros((len(values), len(self.knots)), np.float32)
        for column, (numbers, knots) in enumerate(zip(values.T[self.ranked], self.knots, strict=True)):
            above = np.interp(numbers, knots, SCORES)
            below = -np.interp(-numbers, -knots[::-1], SCORES)  # scores are the same from both ends
            found[:, column] = np.nan_to_num((above + below) / 2)
        return found

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are kept on disk; none if no column is ranked."""
        if not len(self.knots):
            return {}
        return dict(zip(_RANKS, (self.ranked.astype(np.uint8), self.knots), strict=True))

    @classmethod
    def restored(cls, columns: int, arrays: Mapping[str, NDArray[Any]]) -> Ranks:
        """Return what gave these arrays, or raise HiNetError."""
        if not any(name in arrays for name in _RANKS):
            return cls.none(columns)
        check_arrays(arrays, _RANKS, {"numbers": columns})
        ranked, knots = (np.array(arrays[name]) for name in _RANKS)
        if int(ranked.sum()) != len(knots):
            raise HiNetError(f"{len(knots):,} columns have knots, and {int(ranked.sum()):,} are ranked")
        if (np.diff(knots) < 0).any():
            raise HiNetError("the knots of a column fall, expected numbers that rise")
        return cls(ranked.astype(np.bool_), knots.astype(np.float64))
