"""Kernels that train a deep expert a row at a time: forward, cost, gradient and update in one go.

A row is taken through the groups on the way to its labels by :func:`train_deep`; the steps before and after that, from
features to hidden units and back, are those of the flat expert as well.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.goal_kernels import aim, list_groups, normalise, rate_at, scratch_for
from hinet.engine.random_kernels import random_place
from hinet.engine.scoring_kernels import logit_of

F4 = np.float32
CERTAIN = F4(1e-3)  # gradients of logits below this are not worth touching a row of weights
BIAS_RATE = F4(0.1)  # rates of biases, as shares of the weights' rate
HIDDEN_BIAS_RATE = F4(0.01)


class Sampled(NamedTuple):
    """Room for the features of a few rows that dropout has left, and for their hidden units."""

    count: Any  # (rows,)
    feature: Any  # (rows, most features)
    value: Any  # (rows, most features)
    hidden: Any  # (rows, width) after dropout
    factor: Any  # (rows, width) slope of each hidden unit, 0 if it is dropped
    gradient: Any  # (rows, width) of the hidden units


@inlined
def room_for(rows, stretch, count, width):
    """Make room for so many rows of a stretch at a time."""
    most = 1
    for row in stretch.order:
        most = max(most, rows.indptr[row + 1] - rows.indptr[row])
    return Sampled(
        np.zeros(count, np.int64),
        np.empty((count, most), np.int64),
        np.empty((count, most), np.float32),
        np.zeros((count, width), np.float32),
        np.empty((count, width), np.float32),
        np.zeros((count, width), np.float32),
    )


@inlined
def sample(rows, row, drops, number, sampled, at):
    """Take those features of a row that dropout leaves."""
    length = len(drops.features)
    place = random_place(2 * number, length)
    count = 0
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        sampled.feature[at, count] = rows.indices[entry]
        sampled.value[at, count] = rows.data[entry] * drops.features[place]
        count += drops.features[place] > 0
        place = place + 1 if place + 1 < length else 0
    sampled.count[at] = count


@inlined
def embed(rows, row, deep, drops, number, sampled, at):
    """Fill in features and hidden units of a row after dropout; return the mean square of the units.

    ``drops`` holds long runs of dropout factors; the ``number``-th row takes stretches that start at random places.
    """
    sample(rows, row, drops, number, sampled, at)
    hidden, width = sampled.hidden, deep.embedding.shape[1]
    for unit in range(width):
        hidden[at, unit] = deep.embedding_bias[unit]
    for entry in range(sampled.count[at]):
        feature, value = sampled.feature[at, entry], sampled.value[at, entry]
        for unit in range(width):
            hidden[at, unit] += value * deep.embedding[feature, unit]
    place = random_place(2 * number + 1, len(drops.units) - width)
    for unit in range(width):
        slope = F4(1) if hidden[at, unit] > 0 else deep.slope[unit]
        sampled.factor[at, unit] = drops.units[place + unit] * slope
        hidden[at, unit] *= sampled.factor[at, unit]
    return mean_square(hidden, at)


@inlined
def mean_square(values, at):
    """Return the mean square of a row of values."""
    total = F4(0)
    for unit in range(values.shape[1]):
        total += values[at, unit] * values[at, unit]
    return total / values.shape[1]


@inlined
def update_output(output, slope, size, rate, deep, slots, sampled, at):
    """Add what an output row says to the gradient of the hidden units, then move the row by Adagrad."""
    width = deep.embedding.shape[1]
    slots.weight[output] += slope * slope * size
    step = rate * slope / np.sqrt(slots.weight[output])
    for unit in range(width):
        sampled.gradient[at, unit] += slope * deep.weight[output, unit]
        deep.weight[output, unit] -= step * sampled.hidden[at, unit]
    deep.bias[output] -= BIAS_RATE * step


@inlined
def update_embedding(rate, deep, slots, sampled, at):
    """Move the embeddings of the features that were left of a row by Adagrad, and clear the gradient."""
    gradient, width = sampled.gradient, deep.embedding.shape[1]
    for unit in range(width):
        gradient[at, unit] *= sampled.factor[at, unit]
        deep.embedding_bias[unit] -= HIDDEN_BIAS_RATE * rate * gradient[at, unit]
    size = mean_square(gradient, at)
    if size > 0:
        for entry in range(sampled.count[at]):
            feature, value = sampled.feature[at, entry], sampled.value[at, entry]
            slots.embedding[feature] += value * value * size
            step = rate * value / np.sqrt(slots.embedding[feature])
            for unit in range(width):
                deep.embedding[feature, unit] -= step * gradient[at, unit]
    for unit in range(width):
        gradient[at, unit] = 0


@kernel
def train_deep(data, mine, stretch, drops, deep, slots):
    """Train a deep expert on a stretch of rows; return their summed cost. Only groups that are ``mine`` are trained."""
    rows, goals, groups, most, adjustment = data
    scratch, sampled = scratch_for(*most), room_for(rows, stretch, 1, deep.embedding.shape[1])
    cost = 0.0
    for position in range(len(stretch.order)):
        row, rate = stretch.order[position], rate_at(stretch, position)
        count = list_groups(row, goals, groups, mine, scratch)
        if count == 0:
            continue
        size = embed(rows, row, deep, drops, stretch.first + position, sampled, 0)
        for listed in range(count):
            start = scratch.start[listed]
            base = groups.first_row[scratch.group[listed]]
            for option in range(scratch.start[listed + 1] - start):
                logit = logit_of(base + option, deep, sampled.hidden, 0)
                scratch.log_p[start + option] = logit + adjustment[base + option]
            normalise(scratch, listed)
        cost += aim(row, goals, scratch)
        for listed in range(count):
            start = scratch.start[listed]
            base = groups.first_row[scratch.group[listed]]
            for option in range(scratch.start[listed + 1] - start):
                slope = scratch.mass[listed] * scratch.p[start + option] - scratch.target[start + option]
                if abs(slope) > CERTAIN:
                    update_output(base + option, slope, size, rate, deep, slots, sampled, 0)
        update_embedding(rate, deep, slots, sampled, 0)
    return cost
