"""How much each expert counts: learned on validation rows, or sane without them."""

from __future__ import annotations

import numpy as np

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import Experts, Floats, Mix
from hinet.engine.model.groups import Groups
from hinet.engine.model.targets import Targets
from hinet.engine.search.scoring_kernels import expert_logits
from hinet.engine.training.set_kernels import mixed_cost_of_sets
from hinet.engine.training.target_kernels import mixed_cost, most_of_a_row

MOST_ROWS = 4_000  # validation rows looked at
DECAY = 1e-3  # of the distance from the start, for few rows or experts that agree
LEAST = 1e-3  # smaller weights are none: the expert is not worth asking


def usual_mix(*, wide: bool, flat: bool, long: bool = False) -> Floats:
    """Return the mix without validation rows; of long rows the wide expert knows as much as the others."""
    if flat and wide:
        chosen = Mix(deep=0.3, wide=0.3, flat=0.3) if long else Mix(deep=0.4, wide=0.1, flat=0.4)
    elif flat:
        chosen = Mix(deep=0.5, flat=0.5)
    else:
        chosen = Mix(deep=0.5, wide=0.5) if wide else Mix(deep=1.0)
    return np.array(chosen, np.float32)


def learned_mix(rows: SparseMatrix, targets: Targets, groups: Groups, experts: Experts) -> tuple[Floats, float]:
    """Return the mix with the least cost on validation rows, and that cost; starts from the experts' own mix."""
    from scipy.optimize import minimize  # only here: it takes long to import

    entry_row = np.repeat(np.arange(len(targets)), np.diff(targets.arrays.row_offsets))
    chosen = np.linspace(0, len(entry_row) - 1, min(len(entry_row), MOST_ROWS)).astype(np.int64)  # evenly
    arrays = targets.arrays._replace(
        row_offsets=np.arange(len(chosen) + 1),
        entry_target=targets.arrays.entry_target[chosen],
        entry_share=targets.arrays.entry_share[chosen],
    )
    logits = expert_logits(rows, entry_row[chosen], arrays, groups, experts)
    most = most_of_a_row(arrays, groups)
    start = experts.mix.astype(np.float64)
    used = start != 0
    cost_of = mixed_cost_of_sets if targets.layers.multilabel else mixed_cost

    def cost(mix: np.ndarray) -> tuple[float, np.ndarray]:
        full = np.zeros(len(start))
        full[used] = mix
        value, gradient = (part / max(len(chosen), 1) for part in cost_of(arrays, groups, most, logits, full))
        away = mix - start[used]
        return float(value) + DECAY * float(away @ away), gradient[used] + 2 * DECAY * away

    result = minimize(cost, start[used], jac=True, method="L-BFGS-B", bounds=[(0, None)] * int(used.sum()))
    mix = np.zeros(len(start), np.float32)
    mix[used] = np.where(result.x < LEAST, 0, result.x)
    return mix, float(result.fun)
