"""Kernels that all experts share in training: the groups of a row, its cost, and the gradient of each logit.

Only the sibling groups on the paths to the labels of a row are used. Every row takes three steps: :func:`list_groups`
lists its groups, the expert fills in their logits, and :func:`grads_of_row` turns these into gradients.

With one label per row, the cost is the cross-entropy of each group, and the gradient of a logit ``mass p - target``
with the shares of the row that reach the group and take the option.

With sets of labels, every option of a group that a row reaches is a yes or no. A row uses the root group and the groups
below its nodes; nothing else is known about it. The cost there is the binary cross-entropy of each option, conditional
on at least one yes if the options are exhaustive. The gradient is ``weight (p - target)`` with the conditional ``p``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.model.kernels import log_some

F4 = np.float32


class Scratch(NamedTuple):
    """Scratch arrays for the groups of one row."""

    group: Any  # (max groups,) neuron of each listed group
    start: Any  # (max groups + 1,) offset of its options in the arrays below
    mass: Any  # (max groups,) share of the row that reaches it
    log_p: Any  # (max options,)
    p: Any  # (max options,) probability, later the gradient of the logit
    target: Any  # (max options,) share of the row that takes the option
    step_listed: Any  # (max steps,) listed group of every step, -1 for a single option
    forward: Any  # (max steps,) log sums of a target with several paths
    backward: Any  # (max steps,)


@inlined
def allocate_scratch(max_groups, max_options, max_steps):
    """Allocate scratch arrays for rows of these sizes, see ``TargetArrays.max_sizes``."""
    return Scratch(
        np.empty(max_groups, np.int64),
        np.empty(max_groups + 1, np.int64),
        np.empty(max_groups, np.float32),
        np.empty(max_options, np.float32),
        np.empty(max_options, np.float32),
        np.empty(max_options, np.float32),
        np.empty(max_steps, np.int64),
        np.empty(max_steps, np.float64),
        np.empty(max_steps, np.float64),
    )


@inlined
def rate_at(chunk, position):
    """Return the learning rate at a position of a chunk."""
    begin, end = chunk.rates
    return F4(begin + (end - begin) * (chunk.first + position) / chunk.total)


@inlined
def list_groups(row, targets, groups, scratch):
    """List the groups with several options of a row, and the listed group of every step; return their number."""
    count, used, offset = 0, 0, 0
    first = targets.row_offsets[row]
    for entry in range(first, targets.row_offsets[row + 1]):
        target = targets.entry_target[entry]
        for step in range(targets.step_offsets[target], targets.step_offsets[target + 1]):
            neuron = targets.step_group[step]
            size = groups.first_row[neuron + 1] - groups.first_row[neuron]
            number = -1
            if size > 0:
                if entry > first:  # within one target every group occurs once
                    for listed in range(count):
                        if scratch.group[listed] == neuron:
                            number = listed
                            break
                if number < 0:
                    number = count
                    scratch.group[count] = neuron
                    scratch.start[count] = used
                    scratch.mass[count] = 0
                    used += size
                    count += 1
            scratch.step_listed[offset] = number
            offset += 1
    scratch.start[count] = used
    return count


@inlined
def grads_of_row(row, targets, groups, scratch, count):
    """Turn the logits of the listed groups (``log_p``) into gradients (``p``); return the cost of the row."""
    if groups.several:
        return grads_of_set(row, targets, groups, scratch, count)
    for listed in range(count):
        normalise(scratch, listed)
    cost = assign_targets(row, targets, scratch)
    for listed in range(count):
        for option in range(scratch.start[listed], scratch.start[listed + 1]):
            scratch.p[option] = scratch.mass[listed] * scratch.p[option] - scratch.target[option]
    return cost


@inlined
def grads_of_set(row, targets, groups, scratch, count):
    """Turn logits into gradients as :func:`grads_of_row` does, for a row with one target: a set of labels."""
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


@inlined
def normalise(scratch, listed):
    """Turn the logits of a listed group (``log_p``) into log probabilities and probabilities."""
    start, end = scratch.start[listed], scratch.start[listed + 1]
    top = scratch.log_p[start]
    for option in range(start + 1, end):
        top = max(top, scratch.log_p[option])
    for option in range(start, end):
        scratch.p[option] = np.exp(scratch.log_p[option] - top)
    total = F4(0)
    for option in range(start, end):
        total += scratch.p[option]
    shift = top + np.log(total)
    for option in range(start, end):
        scratch.log_p[option] -= shift
        scratch.p[option] /= total
        scratch.target[option] = 0


@inlined
def plus_exp(a, b):
    """Return ``log(exp(a) + exp(b))``."""
    if a == -np.inf:
        return b
    if b == -np.inf:
        return a
    high, low = max(a, b), min(a, b)
    return high + np.log1p(np.exp(low - high))


@inlined
def log_p_of(choice, offset, targets, scratch):
    """Return the log probability of a choice in a listed group; zero if the group is not listed."""
    if offset < 0:
        return 0.0
    return np.float64(scratch.log_p[scratch.start[offset] + targets.choice_option[choice]])


@inlined
def assign_targets(row, targets, scratch):
    """Distribute a row over the options of its targets by their share of each target's traces; return the cost."""
    cost = 0.0
    offset = 0
    for entry in range(targets.row_offsets[row], targets.row_offsets[row + 1]):
        target = targets.entry_target[entry]
        share = targets.entry_share[entry]
        first, last = targets.step_offsets[target], targets.step_offsets[target + 1]
        if targets.choice_offsets[last] - targets.choice_offsets[first] == last - first:  # a single path
            for step in range(first, last):
                listed = scratch.step_listed[offset + step - first]
                if listed >= 0:
                    option = scratch.start[listed] + targets.choice_option[targets.choice_offsets[step]]
                    cost -= share * scratch.log_p[option]
                    scratch.target[option] += share
                    scratch.mass[listed] += share
        else:
            cost -= share * _assign_many_paths(first, last, offset, share, targets, scratch)
        offset += last - first
    return cost


@inlined
def _assign_many_paths(first, last, offset, share, targets, scratch):
    """Sum over all paths of a target, forward and backward; return the log probability of its label."""
    steps = last - first
    forward, backward = scratch.forward, scratch.backward
    forward[:steps] = -np.inf
    backward[:steps] = -np.inf
    forward[0] = 0.0
    total = -np.inf
    for step in range(steps):
        for choice in range(targets.choice_offsets[first + step], targets.choice_offsets[first + step + 1]):
            reached = forward[step] + log_p_of(choice, scratch.step_listed[offset + step], targets, scratch)
            following = targets.choice_next[choice]
            if following < 0:
                total = plus_exp(total, reached)
            else:
                forward[following] = plus_exp(forward[following], reached)
    for step in range(steps - 1, -1, -1):
        listed = scratch.step_listed[offset + step]
        for choice in range(targets.choice_offsets[first + step], targets.choice_offsets[first + step + 1]):
            following = targets.choice_next[choice]
            onward = log_p_of(choice, listed, targets, scratch)
            if following >= 0:
                onward += backward[following]
            backward[step] = plus_exp(backward[step], onward)
            if listed >= 0:
                posterior = F4(share * np.exp(forward[step] + onward - total))
                scratch.target[scratch.start[listed] + targets.choice_option[choice]] += posterior
                scratch.mass[listed] += posterior
    return total


@kernel
def mixed_cost(targets, groups, sizes, expert_logits, mix):
    """Return the cost of targets, one per row, with this mix, and its gradient.

    ``expert_logits`` has one row per option of the groups of each target.
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
        cost += grads_of_row(row, targets, groups, scratch, count)
        for option in range(options):
            for expert in range(len(mix)):
                gradient[expert] += scratch.p[option] * expert_logits[begin + option, expert]
        begin += options
    return cost, gradient
