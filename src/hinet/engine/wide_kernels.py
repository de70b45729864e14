"""Kernels that both ways to train the wide expert share: when a group is worth an update, and the steps of Adagrad."""

from __future__ import annotations

import numpy as np

from hinet.compiled import inlined

F4 = np.float32
CERTAIN = F4(1e-3)  # a group all of whose gradients are below this is not worth an update
BIAS_RATE = F4(0.05)  # rate of the biases, as a share of the weights' rate


@inlined
def steepest_of(slopes):
    """Return the largest size of the gradients of a group's logits."""
    steepest = F4(0)
    for option in range(len(slopes)):
        steepest = max(steepest, abs(slopes[option]))
    return steepest


@inlined
def move_biases(slopes, rate, bias, slots):
    """Move the biases of a group down the gradients of its logits."""
    for option in range(len(slopes)):
        slope = slopes[option]
        slots[option] += slope * slope
        bias[option] -= BIAS_RATE * rate * slope / np.sqrt(slots[option])


@inlined
def move_weight(slope, rate, weights, place):
    """Move the weight at a place down its gradient."""
    slot = weights[place]["slot"] + slope * slope
    weights[place]["slot"] = slot
    weights[place]["weight"] -= rate * slope / np.sqrt(slot)
