"""Kernel that trains the margin expert: an L2-regularised squared hinge by dual coordinate descent.

The dual variable of one row is updated at a time (Hsieh et al., 2008).
"""

from __future__ import annotations

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.model.column_kernels import MIX
from hinet.engine.training.wide_kernels import shuffle

F4 = np.float32


@kernel
def train_margin(data, label, plan, bias_of, weights):
    """Fit one label against all others, write its weights and its bias, and return the objective, if converged.

    ``plan`` is the maximum number of epochs, the tolerance, and the seed. The bias is the weight of a feature that is 1
    in every row. Rows whose dual variable is likely to stay 0 are set aside until the others have converged.
    """
    max_epochs, tolerance, seed = plan
    count = len(data.row)
    dual, bias = np.zeros(count), np.zeros(1)
    weights[:] = 0
    order = np.arange(count)
    state = (np.uint64(seed) + np.uint64(1)) * MIX + np.uint64(label + 1) * np.uint64(0xBF58476D1CE4E5B9)
    active, limit = count, np.inf
    for _ in range(max_epochs):
        state = shuffle(order[:active], state)
        position, highest, lowest = 0, -np.inf, np.inf
        while position < active:
            index = order[position]
            sign = 1.0 if data.label[index] == label else -1.0
            grad = sign * margin_of(data, index, weights, bias) - 1 + dual[index] / (2 * data.cost[index])
            if dual[index] == 0 and grad > limit:
                active -= 1
                order[position], order[active] = order[active], order[position]
                continue
            violation = min(grad, 0.0) if dual[index] == 0 else grad
            highest, lowest = max(highest, violation), min(lowest, violation)
            if violation != 0:
                old = dual[index]
                dual[index] = max(old - grad / (data.square[index] + 1 / (2 * data.cost[index])), 0.0)
                move(data, index, sign * (dual[index] - old), weights, bias)
            position += 1
        if highest - lowest <= tolerance:
            if active == count:
                break
            active, limit = count, np.inf
        else:
            limit = highest if highest > 0 else np.inf
    objective = 0.5 * bias[0] * bias[0]
    for feature in range(len(weights)):
        objective += 0.5 * weights[feature] * weights[feature]
    for index in range(count):
        objective += dual[index] * dual[index] / (4 * data.cost[index])
    bias_of[label] = bias[0]
    return objective


@inlined
def margin_of(data, index, weights, bias):
    """Return the margin of a row before its sign."""
    row, total = data.row[index], F4(0)
    for entry in range(data.rows.indptr[row], data.rows.indptr[row + 1]):
        total += data.rows.data[entry] * weights[data.rows.indices[entry]]
    return bias[0] + data.scale[index] * total


@inlined
def move(data, index, step, weights, bias):
    """Add a row times ``step`` to the weights."""
    row, scaled = data.row[index], F4(step * data.scale[index])
    bias[0] += step
    for entry in range(data.rows.indptr[row], data.rows.indptr[row + 1]):
        weights[data.rows.indices[entry]] += scaled * data.rows.data[entry]
