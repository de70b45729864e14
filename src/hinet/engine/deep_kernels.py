"""Kernels that train a deep expert: forward, cost, gradient and update in one go.

:func:`train_deep` takes a row at a time through the groups on the way to its labels. :func:`train_flat` scores all
labels, so the weights do not stay in the processor's cache from row to row; it takes a few rows at once.
"""

from __future__ import annotations

import numpy as np

from hinet.compiled import inlined_kernel, kernel
from hinet.engine.goal_kernels import aim, list_groups, normalise, rate_at, scratch_for
from hinet.engine.scoring_kernels import logit_of

F4 = np.float32
CERTAIN = F4(1e-3)  # gradients of logits below this are not worth touching a row of weights
BIAS_RATE = F4(0.1)  # rates of biases, as shares of the weights' rate
HIDDEN_BIAS_RATE = F4(0.01)
MIX = np.uint64(0x9E3779B97F4A7C15)
LOG2_E = F4(1.4426950408889634)
TOGETHER = 4  # rows that :func:`train_flat` scores at once


@inlined_kernel
def embed(rows, row, deep, drops, number, hidden, factor, at):
    """Fill in the hidden units of a row after dropout, and the slope of each; return their mean square.

    ``drops`` is a long run of dropout factors; the ``number``-th row takes a stretch that starts at a random place.
    """
    width = deep.embedding.shape[1]
    for unit in range(width):
        hidden[at, unit] = deep.embedding_bias[unit]
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        feature, value = rows.indices[entry], rows.data[entry]
        for unit in range(width):
            hidden[at, unit] += value * deep.embedding[feature, unit]
    mixed = np.uint64(number + 1) * MIX
    mixed = (mixed ^ (mixed >> np.uint64(29))) * MIX
    shift = np.int64((mixed >> np.uint64(20)) % np.uint64(len(drops) - width))
    size = F4(0)
    for unit in range(width):
        slope = F4(1) if hidden[at, unit] > 0 else deep.slope[unit]
        factor[at, unit] = drops[shift + unit] * slope
        hidden[at, unit] *= factor[at, unit]
        size += hidden[at, unit] * hidden[at, unit]
    return size / width


@inlined_kernel
def update_output(output, slope, size, rate, deep, slots, hidden, gradient, at):
    """Add what an output row says to the gradient of the hidden units, then move the row by Adagrad."""
    width = deep.embedding.shape[1]
    slots.weight[output] += slope * slope * size
    step = rate * slope / np.sqrt(slots.weight[output])
    for unit in range(width):
        gradient[at, unit] += slope * deep.weight[output, unit]
        deep.weight[output, unit] -= step * hidden[at, unit]
    deep.bias[output] -= BIAS_RATE * step


@inlined_kernel
def update_embedding(rows, row, rate, deep, slots, factor, gradient, at):
    """Move the embeddings of a row's features by Adagrad, and clear the gradient."""
    width = deep.embedding.shape[1]
    size = F4(0)
    for unit in range(width):
        gradient[at, unit] *= factor[at, unit]
        size += gradient[at, unit] * gradient[at, unit]
        deep.embedding_bias[unit] -= HIDDEN_BIAS_RATE * rate * gradient[at, unit]
    size /= width
    if size > 0:
        for entry in range(rows.indptr[row], rows.indptr[row + 1]):
            feature, value = rows.indices[entry], rows.data[entry]
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
    width = deep.embedding.shape[1]
    scratch = scratch_for(*most)
    hidden, factor, gradient = np.empty((1, width), F4), np.empty((1, width), F4), np.zeros((1, width), F4)
    cost = 0.0
    for position in range(len(stretch.order)):
        row, rate = stretch.order[position], rate_at(stretch, position)
        count = list_groups(row, goals, groups, mine, scratch)
        if count == 0:
            continue
        size = embed(rows, row, deep, drops, stretch.first + position, hidden, factor, 0)
        for listed in range(count):
            start = scratch.start[listed]
            base = groups.first_row[scratch.group[listed]]
            for option in range(scratch.start[listed + 1] - start):
                logit = logit_of(base + option, deep, hidden, 0)
                scratch.log_p[start + option] = logit + adjustment[base + option]
            normalise(scratch, listed)
        cost += aim(row, goals, scratch)
        for listed in range(count):
            start = scratch.start[listed]
            base = groups.first_row[scratch.group[listed]]
            for option in range(scratch.start[listed + 1] - start):
                slope = scratch.mass[listed] * scratch.p[start + option] - scratch.target[start + option]
                if abs(slope) > CERTAIN:
                    update_output(base + option, slope, size, rate, deep, slots, hidden, gradient, 0)
        update_embedding(rows, row, rate, deep, slots, factor, gradient, 0)
    return cost


@kernel
def train_flat(rows, targets, adjustment, stretch, drops, deep, slots):
    """Train a deep expert over all labels, as :func:`train_deep`, but a few rows at once before any of them updates."""
    width, labels = deep.embedding.shape[1], len(deep.bias)
    hidden, factor = np.zeros((TOGETHER, width), F4), np.empty((TOGETHER, width), F4)
    gradient, slope, size = np.zeros((TOGETHER, width), F4), np.empty((TOGETHER, labels), F4), np.empty(TOGETHER, F4)
    powers = np.empty(labels, np.int32)
    order, first = stretch.order, stretch.first
    cost = 0.0
    for begin in range(0, len(order), TOGETHER):
        count, rate = min(TOGETHER, len(order) - begin), rate_at(stretch, begin)
        for at in range(count):
            size[at] = embed(rows, order[begin + at], deep, drops, first + begin + at, hidden, factor, at)
        score_labels(deep, adjustment, hidden, slope)
        for at in range(count):
            cost += pull_of_labels(order[begin + at], targets, slope[at], powers)
        for label in range(labels):
            for at in range(count):
                if abs(slope[at, label]) > CERTAIN:
                    update_output(label, slope[at, label], size[at], rate, deep, slots, hidden, gradient, at)
        for at in range(count):
            update_embedding(rows, order[begin + at], rate, deep, slots, factor, gradient, at)
    return cost


@inlined_kernel
def score_labels(deep, adjustment, hidden, logits):
    """Fill in the training logits of all labels, for the rows that are taken together."""
    width = deep.embedding.shape[1]
    for label in range(len(deep.bias)):
        first, second, third, fourth = F4(0), F4(0), F4(0), F4(0)
        for unit in range(width):
            weight = deep.weight[label, unit]
            first += weight * hidden[0, unit]
            second += weight * hidden[1, unit]
            third += weight * hidden[2, unit]
            fourth += weight * hidden[3, unit]
        shift = deep.bias[label] + adjustment[label]
        logits[0, label], logits[1, label] = first + shift, second + shift
        logits[2, label], logits[3, label] = third + shift, fourth + shift


@inlined_kernel
def pull_of_labels(row, targets, logits, powers):
    """Turn the logits of a row into their gradients, and return its cost."""
    top, mass, cost = logits[0], F4(0), 0.0
    for label in range(len(logits)):
        top = max(top, logits[label])
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        mass += targets.share[entry]
        cost -= targets.share[entry] * (logits[targets.label[entry]] - top)
    total = exponentials(logits, top, powers)
    cost += mass * np.log(total)
    scale = mass / total
    for label in range(len(logits)):
        logits[label] *= scale
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        logits[targets.label[entry]] -= targets.share[entry]
    return cost


@inlined_kernel
def exponentials(values, top, powers):
    """Turn values into ``exp(value - top)``, to about five digits, and return their sum; ``powers`` is room.

    The exponent is split into a whole power of two, made from its bits, and a rest in 0:1 for which a polynomial is
    close: unlike a call of ``exp``, both are done for many values at once.
    """
    for at in range(len(values)):
        exponent = max((values[at] - top) * LOG2_E, F4(-126))
        whole = np.floor(exponent)
        rest = exponent - whole
        values[at] = F4(1) + rest * (
            F4(0.6931472)
            + rest * (F4(0.2402265) + rest * (F4(0.0555041) + rest * (F4(0.0096181) + rest * F4(0.0014876))))
        )
        powers[at] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    factors = powers.view(np.float32)
    total = F4(0)
    for at in range(len(values)):
        values[at] *= factors[at]
        total += values[at]
    return total
