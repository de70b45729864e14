"""Metrics of probabilities: log loss, Brier score, calibration error, and risk against coverage."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hinet.data import Traces
from hinet.errors import HiNetError
from hinet.metrics.cases import Labels, check_lengths, check_predicted, common_taxonomy, true_labels
from hinet.taxonomy import Taxonomy

BINS = 15  # the number in Guo et al. (2017), On calibration of modern neural networks
MIN_PROBABILITY = float(np.finfo(np.float64).eps)  # replaces 0 in the log loss
_ROUNDING = 1e-6  # sums of float32 probabilities may exceed 1 by this


def log_loss(probability: ArrayLike) -> float:
    """Return the mean of ``-ln p`` over rows, where ``p`` is the predicted probability of the true label.

    Probabilities are clipped at 2.2e-16, so that a probability of 0 costs 36 and not infinity.

    >>> round(log_loss([0.5, 0.25]), 3)
    1.04
    """
    return float(-np.log(np.maximum(_probabilities(probability, "probability"), MIN_PROBABILITY)).mean())


def brier_score(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Return the mean squared difference of confidence and correctness; the best value is 0.

    A constant confidence of one half has a score of 0.25.

    >>> round(brier_score([0.9, 0.6], [True, False]), 3)
    0.185
    """
    sure, right = _validate_pair(confidence, correct)
    return float(((sure - right) ** 2).mean())


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, *, bins: int = BINS) -> float:
    """Return the mean over rows of the difference between confidence and accuracy in the row's bin.

    Bins have equal width; each includes its lower end, and the last one also its upper end.

    >>> round(expected_calibration_error([0.95, 0.95, 0.55, 0.55], [True, True, True, False], bins=10), 3)
    0.05
    """
    sure, right = _validate_pair(confidence, correct)
    return _calibration_error(sure, right, bins)


def level_calibration_error(
    y_true: Labels, y_pred: Traces, log_p: ArrayLike, *, bins: int = BINS, taxonomy: Taxonomy | None = None
) -> list[float]:
    """Return the expected calibration error of the predicted nodes at each level.

    A node on the first trace of a row is correct if it is a true label or an ancestor of one. ``log_p`` is the log
    probability of the path down to every neuron of ``y_pred``, as in ``Found.log_p``. The longest trace determines the
    number of levels. ``taxonomy`` is that of the traces, possibly extended by ``Taxonomy.with_nodes`` for true labels
    that no trace leads to.

    >>> from hinet import Layers, Taxonomy, Traces
    >>> layers = Layers.of(Taxonomy.from_paths([("pet", "cat"), ("pet", "dog"), ("cow",)], steps="ids"))
    >>> predicted = Traces.encode(layers, ["cat", "dog"])
    >>> [round(e, 3) for e in level_calibration_error(["cat", "pet"], predicted, np.log([0.9, 0.5, 1.0, 0.5]))]
    [0.05, 0.0]
    """
    taxonomy = common_taxonomy(y_true, y_pred, None) if taxonomy is None else taxonomy
    truth = true_labels(y_true, taxonomy)
    check_lengths(truth.rows, len(y_pred))
    check_predicted(y_pred.row_offsets)
    with np.errstate(over="ignore"):  # values far above 0 are reported below
        path_p = _in_range(np.exp(np.asarray(log_p, np.float64)), "probability", "neuron")
    if len(path_p) != len(y_pred.neurons):
        raise HiNetError(f"{len(path_p):,} log probabilities for {len(y_pred.neurons):,} neurons; give Found.log_p")
    truth = truth.with_ancestors()
    first = y_pred.row_offsets[:-1]
    lengths = np.diff(y_pred.offsets)[first]
    errors = []
    for level in range(int(lengths.max())):
        rows = np.flatnonzero(lengths > level)
        neurons = y_pred.offsets[first[rows]] + level
        right = truth.has(rows, y_pred.layers.node[y_pred.neurons[neurons]])
        errors.append(_calibration_error(path_p[neurons], right.astype(np.float64), bins))
    return errors


def confidence(y_pred: Traces) -> NDArray[np.float64]:
    """Return the probability of the first trace of each row.

    >>> from hinet import Layers, Taxonomy, Traces
    >>> layers = Layers.of(Taxonomy.from_paths([("pet", "cat"), ("cow",)], steps="ids"))
    >>> traces = Traces(layers, np.arange(2), np.array([0, 1]), np.array([1]), np.log([0.75]))
    >>> confidence(traces).round(2).tolist()
    [0.75]
    """
    if y_pred.log_p is None:
        raise HiNetError("the traces have no log probabilities; predict them, such as with Search.traces")
    check_predicted(y_pred.row_offsets)
    return np.exp(y_pred.log_p[y_pred.row_offsets[:-1]])


@dataclass(frozen=True, eq=False)
class CoverageRisk:
    """The curve of risk against coverage: a point for every distinct confidence, highest first.

    Attributes
    ----------
    threshold : float array
        The confidence above which rows are answered.
    coverage : float array
        The share of answered rows; the last value is 1.
    risk : float array
        The share of wrong answers; the last value is the error rate of all rows.
    """

    threshold: NDArray[np.float64]
    coverage: NDArray[np.float64]
    risk: NDArray[np.float64]

    @property
    def area(self) -> float:
        """Area under the curve, the mean risk over all coverages; the best value is 0."""
        return float(np.dot(self.risk, np.diff(self.coverage, prepend=0.0)))


def coverage_risk(confidence: ArrayLike, correct: ArrayLike) -> CoverageRisk:
    """Return the curve of risk against coverage; rows of equal confidence are answered together.

    >>> curve = coverage_risk([0.9, 0.8, 0.8, 0.3], [True, True, False, False])
    >>> curve.coverage.tolist(), curve.risk.round(3).tolist(), round(curve.area, 3)
    ([0.25, 0.75, 1.0], [0.0, 0.333, 0.5], 0.292)
    """
    sure, right = _validate_pair(confidence, correct)
    order = np.argsort(-sure, kind="stable")
    sure, wrong = sure[order], np.cumsum(1 - right[order])
    last = np.flatnonzero(np.diff(sure, append=-1.0))  # the last row of each confidence
    return CoverageRisk(sure[last], (last + 1) / len(sure), wrong[last] / (last + 1))


def _calibration_error(sure: NDArray[np.float64], right: NDArray[np.float64], bins: int) -> float:
    if bins < 1:
        raise HiNetError(f"bins: expected a whole number of at least 1, got {bins}")
    bin_of = np.minimum((sure * bins).astype(np.int64), bins - 1)
    return float(np.abs(np.bincount(bin_of, sure - right, bins)).sum() / len(sure))


def _validate_pair(confidence: ArrayLike, correct: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    sure, right = _probabilities(confidence, "confidence"), _probabilities(correct, "correct")
    if len(sure) != len(right):
        raise HiNetError(
            f"{len(sure):,} confidences and {len(right):,} values of correct; they must be of the same rows"
        )
    return sure, right


def _probabilities(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return one probability per row, at least one."""
    numbers = _in_range(values, name, "row")
    if not len(numbers):
        raise HiNetError(f"{name}: there are no rows to evaluate; give at least one")
    return numbers


def _in_range(values: ArrayLike, name: str, unit: str) -> NDArray[np.float64]:
    """Return values as floats from 0 to 1; raise HiNetError for the first value out of range."""
    try:
        numbers: NDArray[np.float64] = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise HiNetError(f"{name}: expected numbers from 0 to 1, got {values!r:.60}") from None
    if numbers.ndim != 1:
        raise HiNetError(
            f"{name}: expected one number per {unit}, got an array of shape {numbers.shape}; choose a column"
        )
    bad = np.flatnonzero(~((numbers >= -_ROUNDING) & (numbers <= 1 + _ROUNDING)))  # NaN is neither
    if len(bad):
        index = int(bad[0])
        raise HiNetError(
            f"{unit} {index}: {name} is {numbers[index]:g}, not from 0 to 1; give probabilities, "
            "not logits, scores or log probabilities"
        )
    return np.asarray(np.clip(numbers, 0.0, 1.0))
