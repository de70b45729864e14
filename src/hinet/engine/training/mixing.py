"""How much each expert counts: learned on validation rows, or sane without them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import Experts, Floats, Mix
from hinet.engine.model.groups import Groups
from hinet.engine.model.targets import Targets
from hinet.engine.search.scoring_kernels import expert_logits
from hinet.engine.training.set_kernels import mixed_cost_of_sets
from hinet.engine.training.target_kernels import mixed_cost, most_of_a_row

MOST_ROWS = 4_000  # validation rows looked at
PRIOR = 4.0  # cost of the squared distance from the start, in rows: a few rows that are all right say little
LEAST = 1e-3  # smaller weights are none: the expert is not worth asking


def usual_mix(*, wide: bool, flat: bool, long: bool = False, vectors: bool = False, several: bool = False) -> Floats:
    """Return the mix without validation rows.

    Of long rows the wide expert knows as much as the others; of texts with vectors, which it does not read, less. With
    several labels per row the flat expert knows most.
    """
    if flat and several:
        chosen = Mix(deep=0.1, wide=0.2, flat=0.7) if wide else Mix(deep=0.2, flat=0.8)
    elif flat and wide:
        chosen = Mix(deep=0.3, wide=0.3, flat=0.3) if long else Mix(deep=0.4, wide=0.1, flat=0.4)
    elif flat:
        chosen = Mix(deep=0.5, flat=0.5)
    elif wide:
        chosen = Mix(deep=0.7, wide=0.2) if vectors else Mix(deep=0.5, wide=0.5)
    else:
        chosen = Mix(deep=1.0)
    return np.array(chosen, np.float32)


class MixCost:
    """The cost of validation rows, evenly chosen if there are many, as the experts are mixed.

    With ``counts``, how much of the training rows takes each option, only rows whose labels have training rows: no mix
    gets the others right, and the least cost of them is that of the expert which is the least sure of anything.
    """

    def __init__(
        self,
        rows: SparseMatrix,
        targets: Targets,
        groups: Groups,
        experts: Experts,
        counts: NDArray[np.float64] | None = None,
    ) -> None:
        arrays = targets.arrays
        entry_row = np.repeat(np.arange(len(targets)), np.diff(arrays.row_offsets))
        chosen = np.arange(len(entry_row))
        if counts is not None:
            chosen = np.flatnonzero(targets.are_taken(counts)[arrays.entry_target])
        if len(chosen) > MOST_ROWS:
            chosen = chosen[np.linspace(0, len(chosen) - 1, MOST_ROWS).astype(np.int64)]
        self._targets = arrays._replace(
            row_offsets=np.arange(len(chosen) + 1),
            entry_target=arrays.entry_target[chosen],
            entry_share=arrays.entry_share[chosen],
        )
        self._groups, self._most = groups, most_of_a_row(self._targets, groups)
        self._logits = expert_logits(rows, entry_row[chosen], self._targets, groups, experts)
        self._kernel = mixed_cost_of_sets if targets.layers.multilabel else mixed_cost
        self._rows = max(len(chosen), 1)
        self.start = experts.mix.astype(np.float64)

    def __call__(self, mix: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the mean cost of a row with what it costs to leave the start, and its gradient."""
        cost, gradient = self._kernel(self._targets, self._groups, self._most, self._logits, mix)
        away = mix - self.start
        return float(cost + PRIOR * (away @ away)) / self._rows, (gradient + 2 * PRIOR * away) / self._rows


def learned_mix(cost_of: MixCost) -> tuple[Floats, float]:
    """Return the mix with the least cost, and that cost; starts from the experts' own mix."""
    used = cost_of.start != 0

    def cost(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        mix = np.zeros(len(used))
        mix[used] = weights
        value, gradient = cost_of(mix)
        return value, gradient[used]

    weights, least = _least(cost, cost_of.start[used])
    mix = np.zeros(len(used), np.float32)
    mix[used] = np.where(weights < LEAST, 0, weights)
    return mix, least


def scaled_mix(cost_of: MixCost) -> Floats:
    """Return the experts' own mix times the number with the least cost: as sure as the answers are right."""

    def cost(scale: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = cost_of(scale * cost_of.start)
        return value, gradient @ cost_of.start[:, None]

    scale, _ = _least(cost, np.ones(1))
    return (max(float(scale[0]), LEAST) * cost_of.start).astype(np.float32)


def _least(
    cost: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]], start: NDArray[np.float64]
) -> tuple[NDArray[np.float64], float]:
    """Return the numbers, none below zero, with the least cost, and that cost."""
    from scipy.optimize import minimize  # only here: it takes long to import

    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=[(0, None)] * len(start))
    return found.x, float(found.fun)
