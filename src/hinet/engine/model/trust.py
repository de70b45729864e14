"""Trust in the answer to a text, which depends on the share of its n-grams that are unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError

MAX_RATE, MIN_POWER, MAX_POWER = 100.0, 0.1, 100.0


class Trust(NamedTuple):
    """Parameters of the trust in a row with an unknown share ``u``: ``exp(-rate * u ** power)``.

    Trust ``t`` mixes the probabilities of a row with uniform ones: ``t P + (1 - t) Q``, where ``Q`` gives every label
    the same probability. So every label keeps its rank. A row without unknown n-grams has trust 1.
    """

    rate: float
    power: float

    def of(self, unknown: NDArray[Any]) -> NDArray[np.float64]:
        """Return the trust in rows, given their shares of unknown n-grams.

        >>> Trust(rate=2.0, power=4.0).of(np.array([0, 0.5, 1])).round(3).tolist()
        [1.0, 0.882, 0.135]
        """
        trust: NDArray[np.float64] = np.exp(-self.rate * np.asarray(unknown, np.float64) ** self.power)
        return trust

    @classmethod
    def restored(cls, described: Mapping[str, float]) -> Trust:
        """Return the parameters in a manifest, or raise HiNetError."""
        unknown = {*described} - {*cls._fields}
        if unknown:
            raise HiNetError(f"trust has the unknown entry {min(unknown)!r}; expected rate and power")
        trust = cls(float(described["rate"]), float(described["power"]))
        if not (0 <= trust.rate <= MAX_RATE and MIN_POWER <= trust.power <= MAX_POWER):
            raise HiNetError(
                f"trust has rate {trust.rate:g} and power {trust.power:g}, expected a rate of 0 to {MAX_RATE:g} and a "
                f"power of {MIN_POWER:g} to {MAX_POWER:g}"
            )
        return trust

    def __str__(self) -> str:
        half, none = self.of(np.array([0.5, 1.0]))
        return f"{half:.2f} with half of the word n-grams unknown, {none:.2f} with all of them unknown"
