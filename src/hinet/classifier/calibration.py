"""Calibration of a fitted classifier on held-out rows: a temperature, a slope, and a threshold with a risk bound."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.truth import Truth
from hinet.engine import FoundNodes, Targets
from hinet.engine.search.odds_scaling import rescale
from hinet.engine.search.trace_logits import TraceLogits, cells_of
from hinet.errors import HiNetError, counted
from hinet.evaluation.risk import THRESHOLDS, AnswerCounts, RiskBound, find_threshold
from hinet.metrics import expected_calibration_error, log_loss

MIN_ROWS = 100  # that determine a scale; fewer tell less than the training did
MAX_TEMPERATURE_ROWS = 10_000
LOG_STEP = 0.5
LOG_FACTORS = tuple(np.arange(-4, 5) * LOG_STEP)  # of the logits, tried before the best is refined
PULL = 1.0  # towards factor and slope of 1, as strong as one row: for few rows, or if all answers are right
MIN_LOG_SLOPE = -2.0
MAX_PATH_CELLS = 20_000_000  # logits and options on the way to labels that are held at once: about 1 GB


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration.

    Attributes
    ----------
    temperature : float
        What all logits were divided by.
    error_before, error_after : float
        Expected calibration error of the predicted labels of the rows that determine the scale, before scaling and
        after; each half of these rows is judged by the scale that the other half gave.
    promise : RiskBound, optional
        The threshold for the given risk.
    rows : int
        Held-out rows.
    slope : float
        What the log odds of the best trace against all others were multiplied by after that, at most 1. Less than 1
        lowers high probabilities and raises low ones.
    scaled : bool
        Whether probabilities were scaled. They stay as they were if that does not improve both the log loss and the
        calibration error of the halves, or if fewer than 100 rows were left to determine a scale.
    """

    temperature: float
    error_before: float
    error_after: float
    rows: int
    promise: RiskBound | None = None
    slope: float = 1.0
    scaled: bool = True


class Scale(NamedTuple):
    """What probabilities are corrected by: a factor of all logits, and the slope of the log odds of best traces."""

    factor: float
    slope: float = 1.0


def calibrate_fitted(
    fitted: Fitted, rows: Any, truth: Truth, risk: float | None, certainty: float, *, temperature: float, seed: int
) -> tuple[Fitted, Calibration]:
    """Return the classifier with calibrated probabilities, and the result of the calibration.

    ``temperature`` is what the logits were divided by before. All rows determine the scale; with a risk, one half does
    and the other determines the risk bound, which all rows do if there are too few for both. The seed assigns rows to
    halves, so their order does not matter.

    Raises
    ------
    HiNetError
        If there are fewer than 100 rows and no risk, or too few for the risk.
    """
    if len(truth) < (MIN_ROWS if risk is None else 2):
        raise HiNetError(
            f"{counted(len(truth), 'held-out row is/held-out rows are')} too few to calibrate; give at least {MIN_ROWS}"
        )
    order = np.random.default_rng(seed).permutation(len(truth))
    rows, truth = rows[order], truth.take(order)
    first, second = _halves(rows, truth)
    if risk is None:
        choice, bounds = _choose_scale(fitted, rows, truth), None
    elif len(first[1]) >= MIN_ROWS:
        choice, bounds = _choose_scale(fitted, *first), second
    else:
        error = calibration_error([_answers(fitted, rows, truth)])
        choice, bounds = ScaleChoice(_present_scale(fitted), error, error, False), (rows, truth)
    scaled = fitted.scaled(*choice.scale)
    promise = None if bounds is None or risk is None else risk_bound_for(scaled, *bounds, risk, certainty)
    calibration = Calibration(
        temperature / choice.scale.factor, choice.error_before, choice.error_after, len(truth), promise,
        choice.scale.slope, choice.scaled,
    )  # fmt: skip
    return scaled, calibration


class ScaleChoice(NamedTuple):
    """A scale, the calibration errors before and after it, and whether it changes anything."""

    scale: Scale
    error_before: float
    error_after: float
    scaled: bool


def _choose_scale(fitted: Fitted, rows: Any, truth: Truth) -> ScaleChoice:
    """Return the scale for rows if scales found on one half improve the other half; else the present one."""
    halves = _halves(rows, truth)
    scales = [scale_for(fitted, *half) for half in reversed(halves)]
    before = [_answers(fitted, *half) for half in halves]
    after = [_answers(fitted.scaled(*scale), *half) for scale, half in zip(scales, halves, strict=True)]
    errors = calibration_error(before), calibration_error(after)
    if _loss_of_answers(after) < _loss_of_answers(before) and errors[1] <= errors[0]:
        return ScaleChoice(scale_for(fitted, rows, truth), *errors, True)
    return ScaleChoice(_present_scale(fitted), errors[0], errors[0], False)


def _present_scale(fitted: Fitted) -> Scale:
    """Return the scale that leaves probabilities as they are."""
    return Scale(1.0, fitted.predictor.odds_scale)


def _halves(rows: Any, truth: Truth) -> list[tuple[Any, Truth]]:
    """Return every other row, and the rest."""
    number = np.arange(len(truth))
    return [(rows[half], truth.take(half)) for half in (number[::2], number[1::2])]


def _loss_of_answers(parts: list[tuple[NDArray[np.float64], NDArray[np.bool_]]]) -> float:
    """Return the log loss of the answers of several parts together being right."""
    confidence, right = (np.concatenate(values) for values in zip(*parts, strict=True))
    return log_loss(np.where(right, confidence, 1 - confidence))


def scale_for(fitted: Fitted, rows: Any, truth: Truth) -> Scale:
    """Return the scale with the least log loss of the answers being right: first the factor, then the slope.

    Only some predictors can have a slope. Optimised together, the slope would let the factor rise, which gains nothing
    on other rows and costs right answers.

    The answers are those of the unscaled model: only their probabilities change with the scale. So the loss is proper,
    which it would not be if answers could be exchanged for others that are surely wrong.
    """
    from scipy.optimize import minimize_scalar  # only here: it takes long to import

    chosen = _evenly(len(truth), MAX_TEMPERATURE_ROWS)
    rows, truth = rows[chosen], truth.take(chosen)
    if fitted.codec.sets is not None:
        return _scale_for_sets(fitted, rows, truth)
    nodes = _answered(fitted, rows).nodes
    ladder, kept = _ladder(fitted, rows, nodes)
    right = truth.are_right(nodes)[kept]

    def loss(p: NDArray[np.float64], log_scale: float) -> float:
        return log_loss(np.where(right, p, 1 - p)) + PULL * log_scale**2 / len(right)

    def probability(factor: float) -> NDArray[np.float64]:
        p: NDArray[np.float64] = np.exp(ladder.log_p(factor)).clip(0, 1)
        return p

    def of_factor(log_factor: float) -> float:
        return loss(probability(float(np.exp(log_factor))), log_factor)

    best = min(LOG_FACTORS, key=of_factor)
    around = (best - LOG_STEP, best + LOG_STEP)
    factor = float(np.exp(minimize_scalar(of_factor, bounds=around, method="bounded", options={"xatol": 5e-3}).x))
    if not fitted.predictor.can_scale_odds:
        return Scale(factor)
    p = probability(factor)

    def of_slope(log_slope: float) -> float:
        return loss(rescale(p, float(np.exp(log_slope))), log_slope)

    slope = minimize_scalar(of_slope, bounds=(MIN_LOG_SLOPE, 0.0), method="bounded", options={"xatol": 5e-3})
    return Scale(factor, float(np.exp(slope.x)) if slope.fun < of_slope(0.0) else 1.0)


def _scale_for_sets(fitted: Fitted, rows: Any, truth: Truth) -> Scale:
    """Return the factor with the least binary cross-entropy of the options that rows with several labels reach."""
    from scipy.optimize import minimize_scalar

    predictable = np.flatnonzero(fitted.codec.predictable(truth))
    if not len(predictable):
        return Scale(1.0)
    targets = Targets.of(fitted.codec.traces_of(truth.take(predictable)))
    logits, wanted = fitted.predictor.logits_along(rows[predictable], targets), targets.visited_options()[2]

    def loss(log_factor: float) -> float:
        scaled = np.exp(log_factor) * logits
        cross_entropy = np.logaddexp(0, scaled).sum() - scaled[wanted].sum()
        return float(cross_entropy + PULL * log_factor**2) / len(predictable)

    best = min(LOG_FACTORS, key=loss)
    around = (best - LOG_STEP, best + LOG_STEP)
    return Scale(float(np.exp(minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 5e-3}).x)))


def _ladder(fitted: Fitted, rows: Any, nodes: NDArray[np.int64]) -> tuple[TraceLogits, NDArray[np.int64]]:
    """Return what gives the probabilities of rows' labels at any factor, and which rows: as many as memory allows."""
    goals = Targets.of_labels(fitted.codec.layers, nodes, np.arange(len(nodes) + 1))
    kept = _evenly(len(nodes), int(MAX_PATH_CELLS / max(cells_of(goals).mean(), 1)))
    goals, rows = goals.take(kept), rows[kept]
    return TraceLogits.of(goals, fitted.predictor.logits_along(rows, goals)), kept


def _evenly(count: int, most: int) -> NDArray[np.int64]:
    """Return at most so many of the first ``count`` numbers, evenly spread; at least one."""
    return np.linspace(0, count - 1, min(count, max(most, 1))).astype(np.int64)


def _answered(fitted: Fitted, rows: Any) -> FoundNodes:
    """Return the labels of rows: in a tree that of the best trace, in a DAG the most probable one."""
    return fitted.predictor.decode(rows, "map" if fitted.codec.taxonomy.is_tree else "label")


def _answers(fitted: Fitted, rows: Any, truth: Truth) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the probabilities of the predicted labels, and whether they are right."""
    answers = _answered(fitted, rows)
    return np.minimum(answers.probability, 1), truth.are_right(answers.nodes)


def calibration_error(parts: list[tuple[NDArray[np.float64], NDArray[np.bool_]]]) -> float:
    """Return the expected calibration error of the answers of several parts together."""
    confidence, right = (np.concatenate(values) for values in zip(*parts, strict=True))
    return float(expected_calibration_error(confidence, right))


def risk_bound_for(fitted: Fitted, rows: Any, truth: Truth, risk: float, certainty: float) -> RiskBound:
    """Return the threshold at which at most a share of ``risk`` of the answers is wrong."""
    labels = fitted.predictor.decode(rows).nodes
    counts = [astuple(answers_at(fitted, rows, truth, labels, threshold)) for threshold in THRESHOLDS]
    _, answered, wrong, full = np.array(counts).T
    return find_threshold(THRESHOLDS, answered, wrong, len(truth), risk=risk, certainty=certainty, full_depth=full)


def answers_at(fitted: Fitted, rows: Any, truth: Truth, labels: NDArray[np.int64], threshold: float) -> AnswerCounts:
    """Return how rows are answered at a threshold; ``labels`` are the nodes they are answered with without one."""
    answers = fitted.predictor.deepest_confident(rows, threshold)
    answered = answers.probability >= threshold
    right = truth.are_right(answers.nodes, or_above=True)
    full = (answers.nodes == labels) | fitted.codec.taxonomy.leaves[answers.nodes]
    return AnswerCounts(
        len(truth), *(int(np.count_nonzero(part)) for part in (answered, answered & ~right, answered & full))
    )
