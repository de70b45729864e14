"""The weights of the experts, learned on validation rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import DEEP, EXPERTS, MARGIN, NEIGHBOURS, Experts, Floats, Memory
from hinet.engine.model.groups import Groups, Targets
from hinet.engine.search.scoring_kernels import expert_logits
from hinet.engine.settings import FEW_ROWS
from hinet.engine.training.rows import ExpertTraining, TrainingContext
from hinet.engine.training.target_kernels import mixed_cost
from hinet.ragged import evenly_spaced, gather

MAX_ROWS = 4_000  # validation rows used
PRIOR = 4.0  # cost of the squared distance from the start, in rows: a few correct rows say little
MIN_WEIGHT = 1e-3  # smaller weights become zero: the expert is not worth its time
WEIGHTS_TRIED = 12  # weights of neighbours
FEW_ROWS_NEIGHBOURS = 0.5  # weight of neighbours with few rows
FEW_ROWS_SCALE = 0.6  # factor of all weights then, as few rows make experts too sure
MIN_ROWS_TO_WEIGH_MARGINS = 200  # fewer validation rows scale the mix with margins, but do not change its ratios
CANDIDATE_WEIGHT = 0.2  # weight of a candidate in the mix before it is learned
GROWTHS = (0.0, 2.0, 5.0, 10.0, 20.0)  # growths of the weight of neighbours with unknown words that are tried
MIN_DEEP = 0.05  # minimum weight of the deep expert for its biases to carry the log shares
MIN_PRIOR_GAIN = 0.01  # minimum gain in cost per validation row for log shares
MIN_GAIN, MIN_TOTAL_GAIN = 0.002, 1.0  # minimum gain in cost per validation row, and in total, to add a candidate


class Blend(NamedTuple):
    """Weights of the experts, and the parameters of the candidates that were chosen."""

    mix: Floats
    chosen: dict[str, float]  # keys are names of experts
    growth: float  # how much more neighbours count for a text without known words
    prior: float = 0.0  # weight of the log share of each option, see ``scaled_mix``


class MixCost:
    """The cost of validation rows, evenly sampled if there are many, as a function of the mix.

    With ``counts``, the number of training rows of each option, only rows whose labels have training rows are used: no
    mix gets the others right, and their cost would favour the least certain expert. With ``log_shares`` of the output
    rows, these are the last logits, and their weight is the last of the mix.
    """

    def __init__(
        self,
        rows: SparseMatrix,
        targets: Targets,
        groups: Groups,
        experts: Experts,
        counts: NDArray[np.float64] | None = None,
        log_shares: Floats | None = None,
    ) -> None:
        arrays = targets.arrays
        entry_row = np.repeat(np.arange(len(targets)), np.diff(arrays.row_offsets))
        chosen = np.arange(len(entry_row))
        if counts is not None:
            chosen = np.flatnonzero(targets.are_taken(counts)[arrays.entry_target])
        if len(chosen) > MAX_ROWS:
            chosen = chosen[evenly_spaced(len(chosen), MAX_ROWS)]
        alone = arrays._replace(
            row_offsets=np.arange(len(chosen) + 1),
            entry_target=arrays.entry_target[chosen],
            entry_share=arrays.entry_share[chosen],
        )
        self._targets = Targets(targets.layers, alone).arrays  # read-only as in calibration: one compiled kernel
        self._groups, self._sizes = groups, self._targets.max_sizes(groups)
        self._logits = expert_logits(rows, entry_row[chosen], self._targets, groups, experts)
        self._rows = max(len(chosen), 1)
        self.start = experts.mix.astype(np.float64)
        if log_shares is not None:
            steps, _ = gather(arrays.step_group, arrays.step_offsets, arrays.entry_target[chosen])
            own, _ = gather(log_shares, groups.first_row, steps)
            self._logits = np.column_stack([self._logits, own])
            self.start = np.append(self.start, 0.0)

    def __call__(self, mix: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the mean cost per row, including the cost of leaving the start, and its gradient."""
        cost, gradient = mixed_cost(self._targets, self._groups, self._sizes, self._logits, mix)
        away = mix - self.start
        return float(cost + PRIOR * (away @ away)) / self._rows, (gradient + 2 * PRIOR * away) / self._rows


def learned_mix(cost_of: MixCost) -> tuple[Floats, float]:
    """Return the mix with the lowest cost, and that cost; the optimisation starts from the experts' own mix."""
    used = cost_of.start != 0

    def cost(weights: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        mix = np.zeros(len(used))
        mix[used] = weights
        value, gradient = cost_of(mix)
        return value, gradient[used]

    weights, lowest = _minimum(cost, cost_of.start[used])
    mix = np.zeros(len(used), np.float32)
    mix[used] = np.where(weights < MIN_WEIGHT, 0, weights)
    return mix, lowest


def lowest_scaled_cost(cost_of: MixCost) -> float:
    """Return the lowest cost of the experts' own mix times a factor."""

    def cost(factor: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = cost_of(factor[0] * cost_of.start)
        return value, np.array([gradient @ cost_of.start])

    return _minimum(cost, np.ones(1))[1]


def scaled_mix(cost_of: MixCost) -> tuple[Floats, float]:
    """Return the experts' own mix times a factor, and the weight of the log shares, 0 if these gain little.

    Training adjusts logits so that frequent options do not dominate; log shares undo this where it costs more than it
    gains.
    """
    parts = np.stack([cost_of.start, np.append(np.zeros(len(cost_of.start) - 1), 1.0)])
    max_prior = 1.0 if cost_of.start[DEEP] > MIN_DEEP else 0.0  # the biases of the deep expert carry it

    def cost(factors: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = cost_of(factors @ parts)
        return value, parts @ gradient

    (scale, prior), _ = min(
        (_minimum(cost, np.array([1.0, 0.0]), [np.inf, upper]) for upper in (0.0, max_prior)),
        key=lambda found: found[1] + MIN_PRIOR_GAIN * bool(found[0][1]),
    )
    return (max(float(scale), MIN_WEIGHT) * cost_of.start[:-1]).astype(np.float32), float(prior)


def _minimum(
    cost: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]],
    start: NDArray[np.float64],
    upper: Sequence[float] | None = None,
) -> tuple[NDArray[np.float64], float]:
    """Return the non-negative numbers with the lowest cost, and that cost."""
    from scipy.optimize import minimize  # slow to import

    bounds = [(0, high) for high in upper or [np.inf] * len(start)]
    result = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds)
    return result.x, float(result.fun)


def blend(context: TrainingContext, experts: Experts, trainings: Mapping[str, ExpertTraining]) -> Blend:
    """Return the mix with the lowest cost on validation rows, with candidates that lower it enough.

    If only neighbours read vectors, the mix of the other experts is learned without them.
    """
    if context.later is None:
        return _blend_all(context, experts, trainings)
    mix = experts.mix.copy()
    mix[NEIGHBOURS] = 0
    others = _blend_all(context, experts._replace(mix=mix), trainings)
    mix = others.mix.copy()
    mix[NEIGHBOURS] = experts.mix[NEIGHBOURS]
    mixed = blended(context, experts, others, trainings)._replace(mix=mix)
    mix = _with_private_neighbours(context, mixed, experts.mix)
    prior = others.prior * float(mix[DEEP] / others.mix[DEEP]) if others.prior else 0.0  # the biases stay
    return others._replace(mix=mix, prior=prior)


def _with_private_neighbours(context: TrainingContext, experts: Experts, start: Floats) -> Floats:
    """Return the mix with a weight of neighbours, or without them if they do not help.

    The weight is the largest one, up to the usual one, with which held-out rows cost no more than without neighbours.
    Later texts have more unknown words than these rows, whose best weight is too small for them. If rows are few, the
    other experts may be too sure of texts with unknown words, so a mix with less weight for all of them is tried first.
    """
    assert context.valid is not None
    assert context.later is not None
    others = experts.mix.astype(np.float64)
    others[NEIGHBOURS] = 0
    cost_of = MixCost(context.later, context.valid[1], context.groups, experts, context.counts)
    few = context.row_count < FEW_ROWS
    usual = FEW_ROWS_NEIGHBOURS if few else others.sum() * start[NEIGHBOURS] / np.delete(start, NEIGHBOURS).sum()
    scales = (FEW_ROWS_SCALE, 1.0) if few else (1.0,)
    without = min(cost_of(scale * others)[0] for scale in scales)
    for scale in scales:
        mix = scale * others
        mix[NEIGHBOURS] = _largest_weight(cost_of, mix, scale * usual, without)
        if mix[NEIGHBOURS]:
            return mix.astype(np.float32)
    return others.astype(np.float32)


def _largest_weight(cost_of: MixCost, others: NDArray[np.float64], usual: float, limit: float) -> float:
    """Return the largest weight of neighbours, up to the usual one, with a cost below a limit; 0 if there is none."""

    def cost(weight: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        mix = others.copy()
        mix[NEIGHBOURS] = weight[0]
        value, gradient = cost_of(mix)
        return value, gradient[[NEIGHBOURS]]

    (best,), lowest = _minimum(cost, cost_of.start[[NEIGHBOURS]])
    if best < MIN_WEIGHT or lowest >= limit:
        return 0.0
    tried = np.geomspace(max(usual, best), best, WEIGHTS_TRIED)
    return float(next((weight for weight in tried if cost(np.array([weight]))[0] < limit), best))


def _blend_all(context: TrainingContext, experts: Experts, trainings: Mapping[str, ExpertTraining]) -> Blend:
    assert context.valid is not None
    rows, targets = context.valid
    several = context.layers.multilabel
    counts = None if several else context.counts

    keeps_ratio = bool(experts.mix[MARGIN]) and len(targets) < MIN_ROWS_TO_WEIGH_MARGINS and not several

    def with_mix(experts: Experts, rows: SparseMatrix) -> tuple[Experts, float]:
        cost_of = MixCost(rows, targets, context.groups, experts, counts)
        if keeps_ratio:
            return experts, lowest_scaled_cost(cost_of)
        mix, cost = learned_mix(cost_of)
        return experts._replace(mix=mix), cost

    best, lowest = with_mix(experts, rows)
    gain, chosen = max(MIN_GAIN, MIN_TOTAL_GAIN / max(len(targets), 1)), dict[str, float]()
    memory = experts.neighbours
    if experts.mix[NEIGHBOURS] and context.valid_unknown is not None and context.valid_unknown.any():
        scored = {growth: _with_growth(rows, context.valid_unknown, memory, growth) for growth in GROWTHS}
        results = {growth: with_mix(experts, scored[growth]) for growth in GROWTHS}
        growth = min(GROWTHS, key=lambda growth: results[growth][1])
        if results[growth][1] < lowest - gain:
            (best, lowest), rows, memory = results[growth], scored[growth], memory.with_growth(growth)
    for index, record in enumerate(EXPERTS):
        base, training = best if chosen else experts, trainings.get(record.name)
        for parameter, make in (training.candidates() if training else {}).items():
            start = base.mix.copy()
            start[index] = CANDIDATE_WEIGHT
            tried, cost = with_mix(base._replace(**{record.name: make()}, mix=start), rows)
            if tried.mix[index] and cost < lowest - gain:
                best, lowest, chosen = tried, cost, chosen | {record.name: parameter}
    if several:
        return Blend(best.mix, chosen, float(memory.growth[0]))
    mix, prior = scaled_mix(MixCost(rows, targets, context.groups, best, log_shares=context.log_shares))
    return Blend(mix, chosen, float(memory.growth[0]), prior)


def _with_growth(rows: SparseMatrix, unknown: NDArray[Any], memory: Memory, growth: float) -> SparseMatrix:
    """Return rows whose neighbours count more or less with unknown words than the memory says."""
    factor: Floats = memory.with_growth(growth).factor(unknown) / memory.factor(unknown)
    return rows._replace(near_score=rows.near_score * factor[:, None])


def blended(
    context: TrainingContext, experts: Experts, blend: Blend, trainings: Mapping[str, ExpertTraining]
) -> Experts:
    """Return experts with the mix of a blend, the candidates that it chose, and its prior in the biases."""
    added = {name: trainings[name].candidates()[parameter]() for name, parameter in blend.chosen.items()}
    memory, deep = experts.neighbours.with_growth(blend.growth), experts.deep
    if blend.prior:
        shift = np.float32(blend.prior / blend.mix[DEEP]) * context.log_shares
        deep = deep._replace(bias=deep.bias + shift)
    return experts._replace(**added, deep=deep, neighbours=memory, mix=blend.mix)
