"""Kernels that train the flat expert, a deep expert over all labels.

As all labels are scored, their weights do not stay in the processor's cache from row to row: a few rows are taken at
once, before any of them updates.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.deep_kernels import CERTAIN, embed, room_for, update_embedding, update_output
from hinet.engine.goal_kernels import rate_at

F4 = np.float32
LOG2_E = F4(1.4426950408889634)
LEAST_POWER = F4(-100)  # of two, of a score: sums can be divided by, whatever a row weighs
TOGETHER = 4  # rows that are scored at once


@kernel
def train_flat(rows, targets, adjustment, stretch, drops, deep, slots):
    """Train the flat expert on a stretch of rows; return their summed cost."""
    labels = len(deep.bias)
    sampled = room_for(rows, stretch, TOGETHER, deep.embedding.shape[1])
    slope, size = np.empty((TOGETHER, labels), F4), np.empty(TOGETHER, F4)
    room = LabelRoom(np.zeros(labels, F4), np.empty(labels, F4), np.empty(labels, np.int32))
    order, first = stretch.order, stretch.first
    cost = 0.0
    for begin in range(0, len(order), TOGETHER):
        count, rate = min(TOGETHER, len(order) - begin), rate_at(stretch, begin)
        for at in range(count):
            size[at] = embed(rows, order[begin + at], deep, drops, first + begin + at, sampled, at)
        score_labels(deep, adjustment, sampled.hidden, slope)
        for at in range(count):
            cost += pull_of_labels(order[begin + at], targets, slope[at], room)
        for label in range(labels):
            for at in range(count):
                if abs(slope[at, label]) > CERTAIN:
                    update_output(label, slope[at, label], size[at], rate, deep, slots, sampled, at)
        for at in range(count):
            update_embedding(rate, deep, slots, sampled, at)
    return cost


@inlined
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


class LabelRoom(NamedTuple):
    """Room for the labels of one row."""

    pull: Any  # (labels,) of the upper nodes at each label, by unit of its score; all 0 between rows
    node_pull: Any  # (labels,) of each upper node of one label; there are fewer of them than labels
    powers: Any  # (labels,)


@inlined
def pull_of_labels(row, targets, logits, room):
    """Turn the logits of a row into their gradients, and return its cost."""
    top, mass, cost = logits[0], F4(0), 0.0
    for label in range(len(logits)):
        top = max(top, logits[label])
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        mass += targets.share[entry]
        cost -= targets.share[entry] * (logits[targets.label[entry]] - top)
    total = exponentials(logits, top, room.powers)  # from here on these are scores
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        label = targets.label[entry]
        share = targets.share[entry] * targets.upper
        mass += share * F4(targets.upper_offsets[label + 1] - targets.upper_offsets[label])
        cost -= pull_from_above(label, share, targets, logits, room)
    cost += mass * np.log(total)
    scale = mass / total
    for label in range(len(logits)):
        logits[label] *= scale - room.pull[label]
        room.pull[label] = 0
    for entry in range(targets.offsets[row], targets.offsets[row + 1]):
        logits[targets.label[entry]] -= targets.share[entry]
    return cost


@inlined
def pull_from_above(label, share, targets, scores, room):
    """Let each upper node of a label pull at the labels below it, by their scores; return the sum of its log scores.

    The labels below a node stand side by side, around those below the next node down: from one node to the next only
    the labels that are new are looked at.
    """
    begin, end = targets.upper_offsets[label], targets.upper_offsets[label + 1]
    low, high, total, logs = label, label + 1, scores[label], 0.0
    for at in range(begin, end):
        first, last = targets.upper_first[at], targets.upper_last[at]
        for other in range(first, low):
            total += scores[other]
        for other in range(high, last):
            total += scores[other]
        low, high = first, last
        room.node_pull[at - begin] = share / total
        logs += share * np.log(total)
    pull = F4(0)
    for at in range(end - 1, begin - 1, -1):
        inner = at > begin
        low = targets.upper_first[at - 1] if inner else label
        high = targets.upper_last[at - 1] if inner else label
        pull += room.node_pull[at - begin]
        for other in range(targets.upper_first[at], low):
            room.pull[other] += pull
        for other in range(high, targets.upper_last[at]):
            room.pull[other] += pull
    return logs


@inlined
def exponentials(values, top, powers):
    """Turn values into ``exp(value - top)``, to about five digits, and return their sum; ``powers`` is room.

    The exponent is split into a whole power of two, made from its bits, and a rest in 0:1 for which a polynomial is
    close: unlike a call of ``exp``, both are done for many values at once.
    """
    for at in range(len(values)):
        exponent = max((values[at] - top) * LOG2_E, LEAST_POWER)
        whole = np.floor(exponent)
        rest = exponent - whole
        values[at] = F4(1) + rest * (
            F4(0.6931472)
            + rest * (F4(0.2402265) + rest * (F4(0.0555041) + rest * (F4(0.0096181) + rest * F4(0.0014876))))
        )
        powers[at] = (np.int32(whole) + np.int32(127)) << np.int32(23)
    factors = powers.view(np.float32)
    for at in range(len(values)):
        values[at] *= factors[at]
    total = F4(0)
    for at in range(len(values)):
        total += values[at]
    return total
