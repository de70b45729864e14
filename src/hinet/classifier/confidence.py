"""Calibration of a fitted classifier on held-out rows: a temperature, and a threshold with a promise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from hinet.classifier.fitted import Fitted
from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine import FusedModel, Goals
from hinet.engine.mixing import learned_sharpness
from hinet.evaluation.risk import THRESHOLDS, Promise, promised_threshold
from hinet.metrics import expected_calibration_error
from hinet.ragged import gather

MOST_TEMPERATURE_ROWS = 4_000
LEAST_PROBABILITY = 1e-12


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


def sharpness_for(fitted: Fitted, rows: Any, truth: Traces) -> float:
    """Return the factor of the logits with which held-out rows are the most probable."""
    if isinstance(fitted.model, FusedModel):
        model = fitted.model
        return learned_sharpness(SparseMatrix.of(rows), Goals.of(truth), model.groups, model.experts)
    chosen = np.linspace(0, len(truth) - 1, min(len(truth), MOST_TEMPERATURE_ROWS)).astype(np.int64)
    owner = np.repeat(np.arange(len(truth)), np.diff(truth.row_offsets))
    place = np.full(len(truth), -1, np.int64)
    place[chosen] = np.arange(len(chosen))
    kept = place[owner] >= 0
    row, node = place[owner][kept], truth.end_nodes[kept]

    def cost(log_factor: float) -> float:
        found = fitted.sharpened(float(np.exp(log_factor))).search.label_probabilities(rows[chosen])
        return -float(np.log(np.maximum(found[row, node], LEAST_PROBABILITY)).mean())

    return float(np.exp(minimize_scalar(cost, bounds=(-3, 3), method="bounded", options={"xatol": 1e-2}).x))


def calibration_error(fitted: Fitted, rows: Any, truth: Traces) -> float:
    """Return the expected calibration error of the label of the best trace."""
    found = fitted.search.decode(rows)
    return float(expected_calibration_error(found.probability, is_right(truth, found.nodes, or_above=False)))


def promise_for(fitted: Fitted, rows: Any, truth: Traces, risk: float, certainty: float) -> Promise:
    """Return the threshold whose answers, the deepest sure nodes, are wrong with at most ``risk``."""
    answered, errors = [], []
    for threshold in THRESHOLDS:
        found = fitted.search.as_deep_as_sure(rows, threshold)
        given = found.probability >= threshold
        right = is_right(truth, found.nodes, or_above=True)
        answered.append(int(given.sum()))
        errors.append(int((given & ~right).sum()))
    return promised_threshold(
        THRESHOLDS, np.array(answered), np.array(errors), len(truth), risk=risk, certainty=certainty
    )


def is_right(truth: Traces, nodes: NDArray[np.int64], *, or_above: bool) -> NDArray[np.bool_]:
    """Return whether the node of every row is one of its labels or, if wished, above one."""
    owner = np.repeat(np.arange(len(truth)), np.diff(truth.row_offsets))
    labels = truth.end_nodes.astype(np.int64)
    if or_above:
        distinct, inverse = np.unique(labels, return_inverse=True)
        above, counts = gather(*truth.layers.taxonomy.ancestor_lists(distinct), inverse)
        labels, owner = above.astype(np.int64), np.repeat(owner, counts)
    right = np.zeros(len(truth), bool)
    right[owner[labels == nodes[owner]]] = True
    return right
