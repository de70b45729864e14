"""Calibration of a fitted classifier on held-out rows: a temperature, and a threshold with a promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from hinet.classifier.fitted import Fitted
from hinet.classifier.labels import Truth
from hinet.evaluation.risk import THRESHOLDS, Promise, promised_threshold
from hinet.metrics import expected_calibration_error, log_loss

MOST_TEMPERATURE_ROWS = 10_000
LOG_STEP = 0.25
LOG_FACTORS = tuple(np.arange(-8, 9) * LOG_STEP)  # of the logits, tried before the best is refined


@dataclass(frozen=True)
class Calibration:
    """What calibration found.

    Attributes
    ----------
    temperature : float
        What all logits were divided by; above 1 the model was too sure of itself.
    error_before, error_after : float
        Expected calibration error of the predicted labels on the held-out rows.
    promise : Promise, optional
        The threshold for the wished risk.
    rows : int
        Held-out rows.
    """

    temperature: float
    error_before: float
    error_after: float
    rows: int
    promise: Promise | None = None


def sharpness_for(fitted: Fitted, rows: Any, truth: Truth) -> float:
    """Return the factor of the logits with the least log loss of the answers being right or wrong.

    That is what a user reads the probability of an answer as. The loss of whole traces would weigh the answers nobody
    sees, and could not count rows whose label cannot be predicted.
    """
    chosen = np.linspace(0, len(truth) - 1, min(len(truth), MOST_TEMPERATURE_ROWS)).astype(np.int64)
    rows, truth = rows[chosen], truth.take(chosen)

    def loss(log_factor: float) -> float:
        found = fitted.sharpened(float(np.exp(log_factor))).search.decode(rows)
        right = truth.are_right(found.nodes)
        return log_loss(np.where(right, found.probability, 1 - found.probability).clip(0, 1))

    best = min(LOG_FACTORS, key=loss)  # the loss may have several valleys, as answers change
    around = (best - LOG_STEP, best + LOG_STEP)
    return float(np.exp(minimize_scalar(loss, bounds=around, method="bounded", options={"xatol": 5e-3}).x))


def calibration_error(fitted: Fitted, rows: Any, truth: Truth) -> float:
    """Return the expected calibration error of the label of the best trace."""
    found = fitted.search.decode(rows)
    return float(expected_calibration_error(np.minimum(found.probability, 1), truth.are_right(found.nodes)))


def promise_for(fitted: Fitted, rows: Any, truth: Truth, risk: float, certainty: float) -> Promise:
    """Return the threshold whose answers, the deepest sure nodes, are wrong with at most ``risk``."""
    answered, errors = [], []
    for threshold in THRESHOLDS:
        found = fitted.search.as_deep_as_sure(rows, threshold)
        given = found.probability >= threshold
        right = truth.are_right(found.nodes, or_above=True)
        answered.append(int(given.sum()))
        errors.append(int((given & ~right).sum()))
    return promised_threshold(
        THRESHOLDS, np.array(answered), np.array(errors), len(truth), risk=risk, certainty=certainty
    )
