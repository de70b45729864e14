"""Kernels that train a deep expert: forward pass, cost, gradient and update of a row in one pass.

:func:`train_deep` scores the groups on the paths to the labels of a row, :func:`train_flat` all labels. The weights of
the flat expert and of dense columns do not stay in the processor's cache from row to row, so a few rows, one lane each,
are scored together before any of them updates. Both share the steps between features and hidden units.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.model.experts.deep import logit_of
from hinet.engine.model.kernels import random_offset
from hinet.engine.training.target_kernels import allocate_scratch, grads_of_row, list_groups, rate_at

F4 = np.float32
CERTAIN = F4(1e-3)  # smaller gradients of logits are not worth an update
BIAS_RATE = F4(0.1)  # rate of output biases relative to the weights
HIDDEN_BIAS_RATE = F4(0.01)
LOG2_E = F4(1.4426950408889634)
MIN_POWER = F4(-100)  # minimum power of two of a score, so that sums are not zero
LANES = 4  # rows that are scored together
SECOND_LAYER = 1 << 40  # makes its dropout independent of that of the first


class Workspace(NamedTuple):
    """Features after dropout and hidden units of a few rows, one lane each."""

    count: Any  # (lanes,)
    feature: Any  # (lanes, max_length)
    value: Any  # (lanes, max_length)
    hidden: Any  # (lanes, width) after dropout
    factor: Any  # (lanes, width) derivative of each hidden unit, 0 if it is dropped
    gradient: Any  # (lanes, width) of the hidden units; zero between rows
    dense: Any  # (lanes, dense columns)
    step: Any  # (lanes, dense columns) steps of their embeddings per unit of the gradient
    dense_embedding: Any  # (width, dense columns) their embeddings, transposed


@inlined
def allocate(rows, chunk, count, deep):
    """Allocate ``count`` lanes for the rows of a chunk."""
    width, columns = deep.embedding.shape[1], rows.dense.shape[1]
    max_length = 1
    for row in chunk.order:
        max_length = max(max_length, rows.indptr[row + 1] - rows.indptr[row])
    dense_embedding = np.empty((width, columns), np.float32)
    for column in range(columns):
        dense_embedding[:, column] = deep.embedding[len(deep.embedding) - columns + column]
    return Workspace(
        np.zeros(count, np.int64),
        np.empty((count, max_length), np.int64),
        np.empty((count, max_length), np.float32),
        np.zeros((count, width), np.float32),
        np.empty((count, width), np.float32),
        np.zeros((count, width), np.float32),
        np.zeros((count, columns), np.float32),
        np.zeros((count, columns), np.float32),
        dense_embedding,
    )


@inlined
def store_dense(deep, work):
    """Copy the embeddings of dense columns back into the expert."""
    columns = work.dense.shape[1]
    for column in range(columns):
        deep.embedding[len(deep.embedding) - columns + column] = work.dense_embedding[:, column]


@inlined
def sample(rows, row, masks, number, work, lane):
    """Copy the features of a row that dropout keeps."""
    length = len(masks.features)
    offset = random_offset(2 * number, length)
    factor = masks.rows[offset % len(masks.rows)]
    count = 0
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        work.feature[lane, count] = rows.indices[entry]
        work.value[lane, count] = rows.data[entry] * factor * masks.features[offset]
        count += masks.features[offset] > 0
        offset = offset + 1 if offset + 1 < length else 0
    work.count[lane] = count


@inlined
def embed(rows, chosen, first, deep, masks, work, size):
    """Fill in features and hidden units of the chosen rows after dropout, and the mean square of the units.

    ``masks`` are long arrays of dropout factors; each row uses runs that start at random offsets.
    """
    width = deep.embedding.shape[1]
    for lane in range(len(chosen)):
        sample(rows, chosen[lane], masks, first + lane, work, lane)
        for unit in range(width):
            work.hidden[lane, unit] = deep.embedding_bias[unit]
        for entry in range(work.count[lane]):
            feature, value = work.feature[lane, entry], work.value[lane, entry]
            for unit in range(width):
                work.hidden[lane, unit] += value * deep.embedding[feature, unit]
        for column in range(rows.dense.shape[1]):
            work.dense[lane, column] = rows.dense[chosen[lane], column]
    if rows.dense.shape[1]:
        embed_dense(work)
    for lane in range(len(chosen)):
        offset = random_offset(2 * (first + lane) + 1, len(masks.units) - width)
        for unit in range(width):
            factor = F4(1) if work.hidden[lane, unit] > 0 else deep.negative_slope[unit]
            work.factor[lane, unit] = masks.units[offset + unit] * factor
            work.hidden[lane, unit] *= work.factor[lane, unit]
        size[lane] = mean_square(work.hidden, lane)


@inlined
def embed_dense(work):
    """Add the dense columns of all lanes to their hidden units."""
    for unit in range(work.hidden.shape[1]):
        first, second, third, fourth = F4(0), F4(0), F4(0), F4(0)
        for column in range(work.dense.shape[1]):
            weight = work.dense_embedding[unit, column]
            first += weight * work.dense[0, column]
            second += weight * work.dense[1, column]
            third += weight * work.dense[2, column]
            fourth += weight * work.dense[3, column]
        work.hidden[0, unit] += first
        work.hidden[1, unit] += second
        work.hidden[2, unit] += third
        work.hidden[3, unit] += fourth


@inlined
def mean_square(values, lane):
    """Return the mean square of a row of values."""
    total = F4(0)
    for unit in range(values.shape[1]):
        total += values[lane, unit] * values[lane, unit]
    return total / values.shape[1]


@inlined
def update_output(output, grad, size, rate, deep, accumulators, work, lane):
    """Add the gradient of an output to that of the hidden units, then update the output by Adagrad."""
    width = deep.embedding.shape[1]
    accumulators.weight[output] += grad * grad * size
    step = rate * grad / np.sqrt(accumulators.weight[output])
    for unit in range(width):
        work.gradient[lane, unit] += grad * deep.weight[output, unit]
        deep.weight[output, unit] -= step * work.hidden[lane, unit]
    deep.bias[output] -= BIAS_RATE * step


@inlined
def update_embedding(rows, count, rate, deep, accumulators, work):
    """Update the embeddings of the features of ``count`` lanes by Adagrad, and clear the gradients."""
    gradient, width = work.gradient, deep.embedding.shape[1]
    for lane in range(count):
        for unit in range(width):
            gradient[lane, unit] *= work.factor[lane, unit]
            deep.embedding_bias[unit] -= HIDDEN_BIAS_RATE * rate * gradient[lane, unit]
        size = mean_square(gradient, lane)
        if size > 0:
            for entry in range(work.count[lane]):
                feature, value = work.feature[lane, entry], work.value[lane, entry]
                accumulators.embedding[feature] += value * value * size
                step = rate * value / np.sqrt(accumulators.embedding[feature])
                for unit in range(width):
                    deep.embedding[feature, unit] -= step * gradient[lane, unit]
        first = len(deep.embedding) - rows.dense.shape[1]
        for column in range(rows.dense.shape[1]):
            value = work.dense[lane, column]
            accumulators.embedding[first + column] += value * value * size
            work.step[lane, column] = rate * value / np.sqrt(accumulators.embedding[first + column])
    if rows.dense.shape[1]:
        update_dense(work)
    for lane in range(count):
        for unit in range(width):
            gradient[lane, unit] = 0


@inlined
def update_dense(work):
    """Update the embeddings of dense columns for all lanes; unused lanes have no gradient."""
    for unit in range(work.hidden.shape[1]):
        first, second = work.gradient[0, unit], work.gradient[1, unit]
        third, fourth = work.gradient[2, unit], work.gradient[3, unit]
        for column in range(work.dense.shape[1]):
            work.dense_embedding[unit, column] -= (
                first * work.step[0, column]
                + second * work.step[1, column]
                + third * work.step[2, column]
                + fourth * work.step[3, column]
            )


class Upper(NamedTuple):
    """The second layer of hidden units, one lane per row."""

    hidden: Any  # (lanes, width) after dropout
    factor: Any  # (lanes, width) derivative of each unit, 0 if it is dropped
    gradient: Any  # (lanes, width)


@inlined
def embed_upper(deep, masks, number, lower, upper, lane):
    """Fill in the second layer of hidden units of a row; return the mean square of its units."""
    width, size = upper.hidden.shape[1], deep.inner.shape[1]
    offset = random_offset(SECOND_LAYER + number, len(masks.units) - width)
    for unit in range(width):
        first, total = unit // size * size, F4(0)  # first unit of the member
        for below in range(size):
            total += deep.inner[unit, below] * lower[lane, first + below]
        total += deep.inner_bias[unit]
        upper.factor[lane, unit] = masks.units[offset + unit] if total > 0 else F4(0)
        upper.hidden[lane, unit] = total * upper.factor[lane, unit]
    return mean_square(upper.hidden, lane)


@inlined
def update_inner(deep, rate, mean, accumulators, upper, work, lane):
    """Update the weights between the two layers by Adagrad, and propagate the gradient to the first one.

    ``mean`` is the mean square of the units of the first layer.
    """
    width, size = upper.hidden.shape[1], deep.inner.shape[1]
    for unit in range(width):
        first, grad = unit // size * size, upper.gradient[lane, unit] * upper.factor[lane, unit]
        upper.gradient[lane, unit] = 0
        if grad == 0:
            continue
        accumulators.inner[unit] += grad * grad * mean
        step = rate * grad / np.sqrt(accumulators.inner[unit])
        for below in range(size):
            work.gradient[lane, first + below] += grad * deep.inner[unit, below]
            deep.inner[unit, below] -= step * work.hidden[lane, first + below]
        deep.inner_bias[unit] -= BIAS_RATE * step


@kernel
def train_deep(data, chunk, masks, deep, accumulators):
    """Train a deep expert on a chunk of rows; return their summed cost."""
    rows, two_layers = data.rows, len(deep.inner_bias) > 0
    lanes = LANES if rows.dense.shape[1] else 1
    scratch, work, size = allocate_scratch(*data.max_sizes), allocate(rows, chunk, lanes, deep), np.empty(lanes)
    upper = Upper(work.hidden, work.factor, work.gradient)
    if two_layers:
        shape = (lanes, deep.embedding.shape[1])
        upper = Upper(np.zeros(shape, F4), np.empty(shape, F4), np.zeros(shape, F4))
    cost = 0.0
    for begin in range(0, len(chunk.order), lanes):
        chosen, rate = chunk.order[begin : begin + lanes], rate_at(chunk, begin)
        embed(rows, chosen, chunk.first + begin, deep, masks, work, size)
        for lane in range(len(chosen)):
            mean = size[lane]
            if two_layers:
                mean = embed_upper(deep, masks, chunk.first + begin + lane, work.hidden, upper, lane)
            cost += train_groups(chosen[lane], data, rate, deep, accumulators, scratch, upper, lane, mean)
            if two_layers:
                update_inner(deep, rate, size[lane], accumulators, upper, work, lane)
        update_embedding(rows, len(chosen), rate, deep, accumulators, work)
    store_dense(deep, work)
    return cost


@inlined
def train_groups(row, data, rate, deep, accumulators, scratch, work, lane, size):
    """Update the outputs of the groups of a row; return its cost."""
    _, targets, groups, _, adjustment = data
    count = list_groups(row, targets, groups, scratch)
    for listed in range(count):
        start, base = scratch.start[listed], groups.first_row[scratch.group[listed]]
        for option in range(scratch.start[listed + 1] - start):
            logit = logit_of(base + option, deep, work.hidden, lane)
            scratch.log_p[start + option] = logit + adjustment[base + option]
    cost = grads_of_row(row, targets, groups, scratch, count)
    for listed in range(count):
        start, base = scratch.start[listed], groups.first_row[scratch.group[listed]]
        for option in range(scratch.start[listed + 1] - start):
            grad = scratch.p[start + option]
            if abs(grad) > CERTAIN:
                update_output(base + option, grad, size, rate, deep, accumulators, work, lane)
    return cost


@kernel
def train_flat(rows, targets, chunk, masks, deep, accumulators):
    """Train the flat expert on a chunk of rows; return their summed cost."""
    labels = len(deep.bias)
    work, size = allocate(rows, chunk, LANES, deep), np.empty(LANES, F4)
    grad = np.empty((LANES, labels), F4)
    work_labels = LabelWorkspace(np.zeros(labels, F4), np.empty(labels, F4), np.empty(labels, np.int32))
    cost = 0.0
    for begin in range(0, len(chunk.order), LANES):
        chosen, rate = chunk.order[begin : begin + LANES], rate_at(chunk, begin)
        embed(rows, chosen, chunk.first + begin, deep, masks, work, size)
        for label in range(labels):
            if targets.known[label]:
                score_label(label, deep, deep.bias[label] + targets.adjustment[label], work.hidden, grad)
            else:
                grad[:, label] = deep.bias[label]
        for lane in range(len(chosen)):
            if targets.several:
                cost += grads_of_label_set(chosen[lane], targets, grad[lane], work_labels)
            else:
                cost += grads_of_labels(chosen[lane], targets, grad[lane], work_labels)
        for label in range(labels):
            for lane in range(len(chosen)):
                if abs(grad[lane, label]) > CERTAIN:
                    update_output(label, grad[lane, label], size[lane], rate, deep, accumulators, work, lane)
        update_embedding(rows, len(chosen), rate, deep, accumulators, work)
    store_dense(deep, work)
    return cost


@inlined
def score_label(label, deep, shift, hidden, logits):
    """Fill in the logits of a label for all lanes."""
    first, second, third, fourth = F4(0), F4(0), F4(0), F4(0)
    for unit in range(deep.embedding.shape[1]):
        weight = deep.weight[label, unit]
        first += weight * hidden[0, unit]
        second += weight * hidden[1, unit]
        third += weight * hidden[2, unit]
        fourth += weight * hidden[3, unit]
    logits[0, label], logits[1, label] = first + shift, second + shift
    logits[2, label], logits[3, label] = third + shift, fourth + shift


class LabelWorkspace(NamedTuple):
    """Scratch arrays for the labels of one row."""

    upper_grad: Any  # (labels,) gradient of upper nodes at each label per unit of its score; zero between rows
    node_grad: Any  # (labels,) gradient of each upper node of one label
    powers: Any  # (labels,)


@inlined
def grads_of_labels(row, targets, logits, work_labels):
    """Turn the logits of a row into their gradients, and return its cost."""
    top, mass, cost = logits[0], F4(0), 0.0
    for label in range(len(logits)):
        top = max(top, logits[label])
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        mass += targets.share[entry]
        cost -= targets.share[entry] * (logits[targets.label[entry]] - top)
    total = exponentials(logits, top, work_labels.powers)  # logits are scores from here on
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        label = targets.label[entry]
        share = targets.share[entry] * targets.upper
        mass += share * F4(targets.upper_offsets[label + 1] - targets.upper_offsets[label])
        cost -= add_upper_grads(label, share, targets, logits, work_labels)
    cost += mass * np.log(total)
    scale = mass / total
    for label in range(len(logits)):
        logits[label] *= scale - work_labels.upper_grad[label]
        work_labels.upper_grad[label] = 0
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        logits[targets.label[entry]] -= targets.share[entry]
    return cost


@inlined
def add_upper_grads(label, share, targets, scores, work_labels):
    """Add the gradient of each upper node of a label to the labels below it; return the sum of their log scores.

    The labels below a node are a span around those below the next node down, so only the new ones are visited at each
    node.
    """
    begin, end = targets.upper_offsets[label], targets.upper_offsets[label + 1]
    low, high, total, logs = label, label + 1, scores[label], 0.0
    for index in range(begin, end):
        first, last = targets.upper_first[index], targets.upper_last[index]
        for other in range(first, low):
            total += scores[other]
        for other in range(high, last):
            total += scores[other]
        low, high = first, last
        work_labels.node_grad[index - begin] = share / total
        logs += share * np.log(total)
    upper_grad = F4(0)
    for index in range(end - 1, begin - 1, -1):
        inner = index > begin
        low = targets.upper_first[index - 1] if inner else label
        high = targets.upper_last[index - 1] if inner else label
        upper_grad += work_labels.node_grad[index - begin]
        for other in range(targets.upper_first[index], low):
            work_labels.upper_grad[other] += upper_grad
        for other in range(high, targets.upper_last[index]):
            work_labels.upper_grad[other] += upper_grad
    return logs


@inlined
def grads_of_label_set(row, targets, logits, work_labels):
    """Turn the logits of all labels into their gradients; return the cost of the row.

    Every row has at least one label, like a group of exhaustive options. Loops are separate where a call would keep
    them from being vectorised.
    """
    powers, weight = work_labels.node_grad, targets.share[targets.offsets[row]]
    cost, some = 0.0, F4(0)
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        cost -= logits[targets.label[entry]]
    for label in range(len(logits)):
        powers[label] = -abs(logits[label])
    exponentials(powers, F4(0), work_labels.powers)
    for label in range(len(logits)):
        some += max(logits[label], F4(0)) + log_of_one_plus(powers[label])
    shift = np.log(-np.expm1(-some))
    scale = weight * np.exp(-shift)
    for label in range(len(logits)):
        logits[label] = scale * (F4(1) if logits[label] >= 0 else powers[label]) / (F4(1) + powers[label])
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        logits[targets.label[entry]] -= weight
    return weight * (cost + some + shift)


@inlined
def log_of_one_plus(power):
    """Return the logarithm of 1 plus a number between 0 and 1, to six digits."""
    ratio = power / (F4(2) + power)
    square = ratio * ratio
    rest = F4(0.33333333) + square * (F4(0.2) + square * (F4(0.14285714) + square * F4(0.11111111)))
    return F4(2) * ratio * (F4(1) + square * rest)


@inlined
def exponentials(values, top, powers):
    """Turn values into ``exp(value - top)`` with about five digits, and return their sum; ``powers`` is scratch.

    The exponent is split into an integer power of two, made from its bits, and a rest in 0:1 that a polynomial
    approximates. Unlike a call of ``exp``, both are vectorised.
    """
    for index in range(len(values)):
        exponent = max((values[index] - top) * LOG2_E, MIN_POWER)
        whole = np.floor(exponent)
        rest = exponent - whole
        values[index] = F4(1) + rest * (
            F4(0.6931472)
            + rest * (F4(0.2402265) + rest * (F4(0.0555041) + rest * (F4(0.0096181) + rest * F4(0.0014876))))
        )
        powers[index] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    factors = powers.view(np.float32)
    for index in range(len(values)):
        values[index] *= factors[index]
    total = F4(0)
    for index in range(len(values)):
        total += values[index]
    return total
