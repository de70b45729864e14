"""Calibration of a fitted classifier on held-out rows: a temperature, a slope, and a threshold with a promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.truth import Truth
from hinet.engine import FoundNodes, Targets
from hinet.engine.search.odds_scaling import rescale
from hinet.engine.search.trace_logits import TraceLogits, cells_of
from hinet.errors import HiNetError
from hinet.evaluation.risk import THRESHOLDS, AnswerCounts, RiskBound, find_threshold
from hinet.metrics import expected_calibration_error, log_loss

MOST_TEMPERATURE_ROWS = 10_000
LOG_STEP = 0.5
LOG_FACTORS = tuple(np.arange(-4, 5) * LOG_STEP)  # of the logits, tried before the best is refined
PULL = 1.0  # towards factor and slope of 1, as strong as one row: for few rows, or if all answers are right
LEAST_LOG_SLOPE = -2.0
MOST_CELLS_OF_PATHS = 20_000_000  # logits and options on the way to labels that are held at once: about 1 GB


@dataclass(frozen=True)
class Calibration:
    """What calibration found.

    Attributes
    ----------
    temperature : float
        What all logits were divided by.
    error_before, error_after : float
        Expected calibration error of the predicted labels of the held-out rows, before scaling and after; each half
        of the rows is judged by the scale that the other half gave.
    promise : RiskBound, optional
        The threshold for the wished risk.
    rows : int
        Held-out rows.
    slope : float
        What the log odds of the best trace against all others were multiplied by after that, at most 1. Less than 1
        takes sure answers down and unsure ones up.
    """

    temperature: float
    error_before: float
    error_after: float
    rows: int
    promise: RiskBound | None = None
    slope: float = 1.0


class Scale(NamedTuple):
    """What probabilities are mended by: a factor of all logits, and the slope of the log odds of best traces."""

    factor: float
    slope: float = 1.0


def calibrated(
    fitted: Fitted, rows: Any, truth: Truth, risk: float | None, certainty: float, *, temperature: float, seed: int
) -> tuple[Fitted, Calibration]:
    """Return the same classifier with sound probabilities, and what calibration found.

    ``temperature`` is what the logits were divided by before. The half of the rows that gives the promise does not give
    the temperature; without a promise, all rows give it once the errors are told. The seed decides which half a row is
    in, so that any order of the rows will do.
    """
    if len(truth) < 2:
        raise HiNetError(f"{len(truth)} held-out rows; calibration needs at least two")
    order = np.random.default_rng(seed).permutation(len(truth))
    rows, truth = rows[order], truth.take(order)
    halves = [(rows[half], truth.take(half)) for half in (np.arange(0, len(truth), 2), np.arange(1, len(truth), 2))]
    first, second = (scale_for(fitted, *half) for half in halves)
    before = calibration_error([_answers(fitted, *half) for half in halves])
    crossed = zip((second, first), halves, strict=True)  # each half is judged by what the other gave
    after = calibration_error([_answers(fitted.scaled(*scale), *half) for scale, half in crossed])
    promise = None if risk is None else promise_for(fitted.scaled(*first), *halves[1], risk, certainty)
    scale = first if promise is not None else scale_for(fitted, rows, truth)
    found = Calibration(temperature / scale.factor, before, after, len(truth), promise, scale.slope)
    return fitted.scaled(*scale), found


def scale_for(fitted: Fitted, rows: Any, truth: Truth) -> Scale:
    """Return the scale with the least log loss of the answers being right: first the factor, then the slope.

    A slope is for predictors that can have one. Found together, the slope would let the factor rise, which gains
    nothing on other rows and costs right answers.

    The answers are those of the model as it is: their probabilities change with the scale, they do not. So the loss is
    proper, which it would not be if answers could be traded for others that are surely wrong.
    """
    from scipy.optimize import minimize_scalar  # only here: it takes long to import

    chosen = _evenly(len(truth), MOST_TEMPERATURE_ROWS)
    rows, truth = rows[chosen], truth.take(chosen)
    nodes = _answered(fitted, rows).nodes
    ladder, kept = _ladder(fitted, rows, nodes)
    right = truth.are_right(nodes)[kept]

    def loss(found: NDArray[np.float64], log_scale: float) -> float:
        return log_loss(np.where(right, found, 1 - found)) + PULL * log_scale**2 / len(right)

    def probability(factor: float) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.exp(ladder.log_p(factor)).clip(0, 1)
        return found

    def of_factor(log_factor: float) -> float:
        return loss(probability(float(np.exp(log_factor))), log_factor)

    best = min(LOG_FACTORS, key=of_factor)
    around = (best - LOG_STEP, best + LOG_STEP)
    factor = float(np.exp(minimize_scalar(of_factor, bounds=around, method="bounded", options={"xatol": 5e-3}).x))
    if not fitted.predictor.can_scale_odds:
        return Scale(factor)
    found = probability(factor)

    def of_slope(log_slope: float) -> float:
        return loss(rescale(found, float(np.exp(log_slope))), log_slope)

    slope = minimize_scalar(of_slope, bounds=(LEAST_LOG_SLOPE, 0.0), method="bounded", options={"xatol": 5e-3})
    return Scale(factor, float(np.exp(slope.x)) if slope.fun < of_slope(0.0) else 1.0)


def _ladder(fitted: Fitted, rows: Any, nodes: NDArray[np.int64]) -> tuple[TraceLogits, NDArray[np.int64]]:
    """Return what gives the probabilities of rows' labels at any factor, and which rows: as many as memory allows."""
    targets = Targets.of_labels(fitted.form.layers, nodes, np.arange(len(nodes) + 1))
    kept = _evenly(len(nodes), int(MOST_CELLS_OF_PATHS / max(cells_of(targets).mean(), 1)))
    targets, rows = targets.take(kept), rows[kept]
    return TraceLogits.of(targets, fitted.predictor.logits_along(rows, targets)), kept


def _evenly(count: int, most: int) -> NDArray[np.int64]:
    """Return at most so many of the first ``count`` numbers, evenly spread; at least one."""
    return np.linspace(0, count - 1, min(count, max(most, 1))).astype(np.int64)


def _answered(fitted: Fitted, rows: Any) -> FoundNodes:
    """Return the labels of rows: in a tree that of the best trace, in a DAG the most probable one."""
    return fitted.predictor.decode(rows, "map" if fitted.form.taxonomy.is_tree else "label")


def _answers(fitted: Fitted, rows: Any, truth: Truth) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return how probable the labels of rows are said to be, and whether they are right."""
    found = _answered(fitted, rows)
    return np.minimum(found.probability, 1), truth.are_right(found.nodes)


def calibration_error(parts: list[tuple[NDArray[np.float64], NDArray[np.bool_]]]) -> float:
    """Return the expected calibration error of the answers of several parts together."""
    sure, right = (np.concatenate(values) for values in zip(*parts, strict=True))
    return float(expected_calibration_error(sure, right))


def promise_for(fitted: Fitted, rows: Any, truth: Truth, risk: float, certainty: float) -> RiskBound:
    """Return the threshold whose answers, the deepest sure nodes, are wrong with at most ``risk``."""
    labels = fitted.predictor.decode(rows).nodes
    counts = [answers_at(fitted, rows, truth, labels, threshold) for threshold in THRESHOLDS]
    answered, wrong, full = (
        np.array([getattr(at, name) for at in counts]) for name in ("answered", "wrong", "full_depth")
    )
    return find_threshold(THRESHOLDS, answered, wrong, len(truth), risk=risk, certainty=certainty, full_depth=full)


def answers_at(fitted: Fitted, rows: Any, truth: Truth, labels: NDArray[np.int64], threshold: float) -> AnswerCounts:
    """Return how rows are answered at a threshold; ``labels`` are the nodes they are answered with without one."""
    found = fitted.predictor.deepest_confident(rows, threshold)
    given = found.probability >= threshold
    right = truth.are_right(found.nodes, or_above=True)
    full = (found.nodes == labels) | fitted.form.taxonomy.leaves[found.nodes]
    return AnswerCounts(len(truth), *(int(np.count_nonzero(part)) for part in (given, given & ~right, given & full)))
