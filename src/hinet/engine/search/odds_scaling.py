"""Probabilities that lean towards the best trace, or away from it.

A slope of the log odds of the best trace ``y`` against all others takes its probability ``c`` to ``c'`` with
``logit c' = slope * logit c``, and all others with it in proportion: ``P' = (1 - g) P + g [is y]``, ``g`` being
``(c' - c) / (1 - c)``. That is a distribution over traces again, in which every trace keeps its rank: ``y`` stays best
because a slope of at most 1 leaves odds above 1 there, and raises lower ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.ragged import positions

Floats = NDArray[np.float64]

SURE = 1e-6  # what single precision can tell from certainty


def sloped(best: Floats, slope: float) -> Floats:
    """Return the probabilities of best traces with their log odds multiplied by ``slope``."""
    found: Floats = best + gifts(best, slope) * (1 - best)
    return found


def gifts(best: Floats, slope: float) -> Floats:
    """Return ``g`` of rows whose best traces have these probabilities: the share of all others that it is given.

    >>> gifts(np.array([0.1, 0.5, 0.9]), 0.8).round(3).tolist()
    [0.052, 0.0, -0.471]
    """
    sure = np.clip(best, np.finfo(np.float64).tiny, 1 - SURE)
    leaned = 1 / (1 + ((1 - sure) / sure) ** slope)
    given: Floats = (leaned - sure) / (1 - sure)
    return given


def leaned(traces: Traces, log_p: Floats, slope: float) -> tuple[Traces, Floats]:
    """Return the best traces of rows of a tree, and the log probabilities along them, with a slope.

    The first trace of a row is its best; ``log_p`` is that of the way down to each neuron.
    """
    assert traces.log_p is not None
    lengths, counts = np.diff(traces.offsets), np.diff(traces.row_offsets)
    first = np.repeat(traces.row_offsets[:-1], counts)  # of each trace, the best trace of its row
    gift = gifts(np.exp(traces.log_p[first]), slope)
    is_best = first == np.arange(len(first))
    step = positions(np.zeros(len(lengths), np.int64), lengths)
    beside = np.repeat(traces.offsets[first], lengths) + np.minimum(step, np.repeat(lengths[first], lengths) - 1)
    on_the_way = traces.neurons[beside] == traces.neurons if len(beside) else np.zeros(0, bool)
    of_trace = _leaned(traces.log_p, gift, is_best)
    along = _leaned(log_p, np.repeat(gift, lengths), on_the_way)
    return Traces(traces.layers, traces.row_offsets, traces.offsets, traces.neurons, of_trace), along


def leaned_labels(probability: Floats, row_offsets: NDArray[np.int64], slope: float) -> Floats:
    """Return the probabilities of the labels of rows of a tree, row after row and the best of each among them, sloped.

    >>> leaned_labels(np.array([0.1, 0.9, 0.5, 0.5]), np.array([0, 2, 2, 4]), 0.8).round(3).tolist()
    [0.147, 0.853, 0.5, 0.5]
    """
    counts = np.diff(row_offsets)
    filled = np.flatnonzero(counts)
    if not len(filled):
        return probability
    best = np.maximum.reduceat(probability, row_offsets[filled])
    gift = gifts(best, slope)
    owner = np.repeat(np.arange(len(filled)), counts[filled])
    found = (1 - gift[owner]) * probability
    equal = np.flatnonzero(probability == best[owner])
    first = equal[np.unique(owner[equal], return_index=True)[1]]
    found[first] += gift
    return found.clip(0, 1)


def _leaned(log_p: Floats, gift: Floats, favoured: NDArray[np.bool_]) -> Floats:
    found = (1 - gift) * np.exp(log_p) + np.where(favoured, gift, 0)
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(np.clip(found, 0, 1))
    return logs
