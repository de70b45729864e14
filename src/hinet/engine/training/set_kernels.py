"""Kernels that train experts on sets of labels: every option of a group that a row reaches is a yes or no.

A row uses the root group and the groups below its nodes; nothing else is known about it. The cost there is the binary
cross-entropy of each option, conditional on at least one yes if the options are exhaustive. The gradient of a logit is
``weight (p - target)`` with the conditional ``p``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.model.column_kernels import random_offset
from hinet.engine.model.experts.deep import logit_of
from hinet.engine.model.log_kernels import log_some
from hinet.engine.training.deep_kernels import (
    BIAS_RATE,
    CERTAIN,
    LANES,
    allocate,
    embed,
    mean_square,
    score_label,
    store_dense,
    update_embedding,
    update_output,
)
from hinet.engine.training.target_kernels import allocate_scratch, list_groups, rate_at
from hinet.engine.training.wide_kernels import largest_grad, move_group, score_group

F4 = np.float32
SECOND_LAYER = 1 << 40  # makes its dropout independent of that of the first


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


@inlined
def grads_of_set(row, targets, groups, scratch, count):
    """Turn the logits of the listed groups (``log_p``) into gradients (``p``); return the cost of the row.

    A row has one target, whose steps are the groups that it reaches.
    """
    for option in range(scratch.start[count]):
        scratch.target[option] = 0
    entry = targets.row_offsets[row]
    target, weight = targets.entry_target[entry], targets.entry_share[entry]
    first = targets.step_offsets[target]
    for step in range(first, targets.step_offsets[target + 1]):
        listed = scratch.step_listed[step - first]
        if listed >= 0:
            for choice in range(targets.choice_offsets[step], targets.choice_offsets[step + 1]):
                scratch.target[scratch.start[listed] + targets.choice_option[choice]] = 1
    cost = 0.0
    for listed in range(count):
        start, end = scratch.start[listed], scratch.start[listed + 1]
        shift = log_some(scratch.log_p, start, end) if groups.exhaustive[scratch.group[listed]] else F4(0)
        cost += shift
        for option in range(start, end):
            logit = scratch.log_p[option]
            cost += max(logit, F4(0)) - scratch.target[option] * logit + np.log1p(np.exp(-abs(logit)))
        for option in range(start, end):
            logit = scratch.log_p[option]
            log_p = min(logit, F4(0)) - np.log1p(np.exp(-abs(logit))) - shift
            scratch.p[option] = weight * (np.exp(min(log_p, F4(0))) - scratch.target[option])
    return weight * cost


@kernel
def train_deep_sets(data, chunk, masks, deep, accumulators):
    """Train a deep expert on a chunk of rows with sets of labels; return their summed cost."""
    rows, width, two_layers = data.rows, deep.embedding.shape[1], len(deep.inner_bias) > 0
    lanes = LANES if rows.dense.shape[1] else 1
    scratch, work, size = allocate_scratch(*data.max_sizes), allocate(rows, chunk, lanes, deep), np.empty(lanes)
    upper = Upper(work.hidden, work.factor, work.gradient)
    if two_layers:
        shape = (lanes, width)
        upper = Upper(np.zeros(shape, F4), np.empty(shape, F4), np.zeros(shape, F4))
    cost = 0.0
    for begin in range(0, len(chunk.order), lanes):
        chosen, rate = chunk.order[begin : begin + lanes], rate_at(chunk, begin)
        embed(rows, chosen, chunk.first + begin, deep, masks, work, size)
        for lane in range(len(chosen)):
            mean = size[lane]
            if two_layers:
                mean = embed_upper(deep, masks, chunk.first + begin + lane, work.hidden, upper, lane)
            cost += train_groups_of_set(chosen[lane], data, rate, deep, accumulators, scratch, upper, lane, mean)
            if two_layers:
                update_inner(deep, rate, size[lane], accumulators, upper, work, lane)
        update_embedding(rows, len(chosen), rate, deep, accumulators, work)
    store_dense(deep, work)
    return cost


@inlined
def train_groups_of_set(row, data, rate, deep, accumulators, scratch, work, lane, size):
    """Update the outputs of the groups below the nodes of a row; return its cost."""
    _, targets, groups, _, adjustment = data
    count = list_groups(row, targets, groups, scratch)
    for listed in range(count):
        start, base = scratch.start[listed], groups.first_row[scratch.group[listed]]
        for option in range(scratch.start[listed + 1] - start):
            logit = logit_of(base + option, deep, work.hidden, lane)
            scratch.log_p[start + option] = logit + adjustment[base + option]
    cost = grads_of_set(row, targets, groups, scratch, count)
    for listed in range(count):
        start, base = scratch.start[listed], groups.first_row[scratch.group[listed]]
        for option in range(scratch.start[listed + 1] - start):
            grad = scratch.p[start + option]
            if abs(grad) > CERTAIN:
                update_output(base + option, grad, size, rate, deep, accumulators, work, lane)
    return cost


@kernel
def train_flat_sets(rows, targets, chunk, masks, deep, accumulators):
    """Train the flat expert on a chunk of rows with sets of labels; return their summed cost.

    Labels that no training row has are not updated.
    """
    labels = len(deep.bias)
    work, size = allocate(rows, chunk, LANES, deep), np.empty(LANES, F4)
    grad = np.empty((LANES, labels), F4)
    cost = 0.0
    for begin in range(0, len(chunk.order), LANES):
        chosen, rate = chunk.order[begin : begin + LANES], rate_at(chunk, begin)
        embed(rows, chosen, chunk.first + begin, deep, masks, work, size)
        for label in range(labels):
            if targets.known[label]:
                score_label(label, deep, deep.bias[label], work.hidden, grad)
            else:
                grad[:, label] = deep.bias[label]
        for lane in range(len(chosen)):
            cost += grads_of_label_set(chosen[lane], targets, grad[lane])
        for label in range(labels):
            for lane in range(len(chosen)):
                if abs(grad[lane, label]) > CERTAIN:
                    update_output(label, grad[lane, label], size[lane], rate, deep, accumulators, work, lane)
        update_embedding(rows, len(chosen), rate, deep, accumulators, work)
    store_dense(deep, work)
    return cost


@inlined
def grads_of_label_set(row, targets, logits):
    """Turn the logits of all labels into their gradients; return the cost of the row.

    Every row has at least one label, like a group of exhaustive options.
    """
    shift, weight = log_some(logits, 0, len(logits)), targets.weight[row]
    cost, scale = shift, weight * np.exp(-shift)
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        cost -= logits[targets.label[entry]]
    for label in range(len(logits)):
        cost += max(logits[label], F4(0)) + np.log1p(np.exp(-abs(logits[label])))
    for label in range(len(logits)):
        power = np.exp(-abs(logits[label]))
        logits[label] = scale * (F4(1) if logits[label] >= 0 else power) / (F4(1) + power)
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        logits[targets.label[entry]] -= weight
    return weight * cost


@kernel
def train_wide_sets(data, chunk, wide, indices):
    """Train the wide expert on a chunk of rows with sets of labels; return their summed cost.

    ``indices`` are from :func:`hinet.engine.training.wide_kernels.find_weights`.
    """
    scratch = allocate_scratch(*data.max_sizes)
    cost = 0.0
    for position in range(len(chunk.order)):
        row, rate = chunk.order[position], rate_at(chunk, position)
        count = list_groups(row, data.targets, data.groups, scratch)
        for listed in range(count):
            score_group(data, row, listed, wide, indices, scratch)
        cost += grads_of_set(row, data.targets, data.groups, scratch, count)
        for listed in range(count):
            if largest_grad(scratch.p[scratch.start[listed] : scratch.start[listed + 1]]) >= CERTAIN:
                move_group(data, row, listed, rate, wide, indices, scratch)
    return cost


@kernel
def mixed_cost_of_sets(targets, groups, sizes, expert_logits, mix):
    """Return the cost of sets of labels with this mix, and its gradient.

    ``expert_logits`` has one row per option of the groups of each row.
    """
    scratch = allocate_scratch(*sizes)
    gradient = np.zeros(len(mix))
    cost = 0.0
    begin = 0
    for row in range(len(targets.row_offsets) - 1):
        count = list_groups(row, targets, groups, scratch)
        options = scratch.start[count]
        for option in range(options):
            logit = 0.0
            for expert in range(len(mix)):
                logit += mix[expert] * expert_logits[begin + option, expert]
            scratch.log_p[option] = logit
        cost += grads_of_set(row, targets, groups, scratch, count)
        for option in range(options):
            for expert in range(len(mix)):
                gradient[expert] += scratch.p[option] * expert_logits[begin + option, expert]
        begin += options
    return cost, gradient
