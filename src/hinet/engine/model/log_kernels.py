"""Kernels for logarithms of probabilities."""

from __future__ import annotations

import numpy as np

from hinet.compiled import inlined

F4 = np.float32
RARE = -15.0  # largest logit for which two options at once are too improbable for single precision


@inlined
def pooled(scores, first, last):
    """Return the log-sum-exp of ``scores[first:last]``."""
    top, total = largest(scores, first, last), F4(0)
    for index in range(first, last):
        total += np.exp(scores[index] - top)
    return top + np.log(total)


@inlined
def sum_of_softplus(logits, first, last):
    """Return minus the log probability that none of the independent options ``first:last`` is taken."""
    total = F4(0)
    for option in range(first, last):
        total += max(logits[option], F4(0)) + np.log1p(np.exp(-abs(logits[option])))
    return total


@inlined
def log_some(logits, first, last):
    """Return the log probability that at least one of the independent options ``first:last`` is taken."""
    if largest(logits, first, last) < RARE:
        return pooled(logits, first, last)
    return np.log(-np.expm1(-sum_of_softplus(logits, first, last)))


@inlined
def largest(values, first, last):
    """Return the largest of ``values[first:last]``."""
    top = values[first]
    for index in range(first + 1, last):
        top = max(top, values[index])
    return top


@inlined
def log_softmax(logits, size):
    """Turn the first ``size`` logits into log probabilities."""
    shift = pooled(logits, 0, size)
    for option in range(size):
        logits[option] -= shift


@inlined
def log_chances(logits, size, exhaustive):
    """Turn the first ``size`` logits into log probabilities, given that one applies if they are exhaustive."""
    shift = log_some(logits, 0, size) if exhaustive else F4(0)
    for option in range(size):
        logit = logits[option]
        log_p = min(logit, F4(0)) - np.log1p(np.exp(-abs(logit)))
        logits[option] = min(log_p - shift, F4(0))


@inlined
def log_options(neuron, groups, logits):
    """Turn the logits of a group into log probabilities; the option of a group without a choice is certain."""
    size = groups.first_row[neuron + 1] - groups.first_row[neuron]
    if size == 0:
        logits[0] = 0
    elif groups.several:
        log_chances(logits, size, groups.exhaustive[neuron])
    else:
        log_softmax(logits, size)
