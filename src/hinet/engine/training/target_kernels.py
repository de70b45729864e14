"""Kernels that all experts share in training: the groups a row needs, its cost, and what pulls at each logit.

Only the sibling groups on the way to a row's labels are touched. Every row goes through the same three acts: the
groups it needs are listed (:func:`list_groups`), the expert fills in ``log p(option | group)``, and :func:`aim` turns
the labels into the share of each option and group, from which the gradient of a logit is ``mass p - target``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel

F4 = np.float32


class Scratch(NamedTuple):
    """Room for the groups of one row."""

    group: Any  # (most groups,) neuron of each listed group
    start: Any  # (most groups + 1,) where its options begin below
    mass: Any  # (most groups,) share of the row that passes through it
    log_p: Any  # (most options,)
    p: Any  # (most options,) probability, later the gradient of the logit
    target: Any  # (most options,) share of the row that takes the option
    step_place: Any  # (most steps,) listed group of every step, -1 if it is certain
    forward: Any  # (most steps,) log sums of a goal with several paths
    backward: Any  # (most steps,)


@inlined
def scratch_for(most_groups, most_options, most_steps):
    """Make room for rows of at most so many groups, options and steps, as :func:`most_of_a_row` counts them."""
    return Scratch(
        np.empty(most_groups, np.int64),
        np.empty(most_groups + 1, np.int64),
        np.empty(most_groups, np.float32),
        np.empty(most_options, np.float32),
        np.empty(most_options, np.float32),
        np.empty(most_options, np.float32),
        np.empty(most_steps, np.int64),
        np.empty(most_steps, np.float64),
        np.empty(most_steps, np.float64),
    )


@kernel
def most_of_a_row(goals, groups):
    """Return the most groups, options and steps that the goals of one row have."""
    most_options, most_steps = 1, 1
    for row in range(len(goals.row_offsets) - 1):
        options, steps = 0, 0
        for entry in range(goals.row_offsets[row], goals.row_offsets[row + 1]):
            goal = goals.entry_goal[entry]
            for step in range(goals.step_offsets[goal], goals.step_offsets[goal + 1]):
                neuron = goals.step_group[step]
                options += groups.option_offsets[neuron + 1] - groups.option_offsets[neuron]
                steps += 1
        most_options, most_steps = max(most_options, options), max(most_steps, steps)
    return most_steps, most_options, most_steps


@inlined
def rate_at(stretch, position):
    """Return the rate at a row of a stretch."""
    begin, end = stretch.rates
    return F4(begin + (end - begin) * (stretch.first + position) / stretch.total)


@inlined
def list_groups(row, goals, groups, mine, scratch):
    """List each group of several options that a row needs, if it is ``mine``, and which of them every step is.

    Returns how many there are. A step in a group that is not listed counts as certain.
    """
    count, used, place = 0, 0, 0
    first = goals.row_offsets[row]
    for entry in range(first, goals.row_offsets[row + 1]):
        goal = goals.entry_goal[entry]
        for step in range(goals.step_offsets[goal], goals.step_offsets[goal + 1]):
            neuron = goals.step_group[step]
            size = groups.first_row[neuron + 1] - groups.first_row[neuron]
            found = -1
            if size > 0 and mine[neuron]:
                if entry > first:  # within one goal no group comes twice
                    for listed in range(count):
                        if scratch.group[listed] == neuron:
                            found = listed
                            break
                if found < 0:
                    found = count
                    scratch.group[count] = neuron
                    scratch.start[count] = used
                    scratch.mass[count] = 0
                    used += size
                    count += 1
            scratch.step_place[place] = found
            place += 1
    scratch.start[count] = used
    return count


@inlined
def normalise(scratch, listed):
    """Turn the logits of a listed group, in ``log_p``, into log probabilities and probabilities."""
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
def log_p_of(take, place, goals, scratch):
    """Return the log probability of a take of a step in a listed group; certain where it is not listed."""
    if place < 0:
        return 0.0
    return np.float64(scratch.log_p[scratch.start[place] + goals.take_option[take]])


@inlined
def aim(row, goals, scratch):
    """Spread the row over the options of its goals, by their share of each goal's traces; return the cost."""
    cost = 0.0
    place = 0
    for entry in range(goals.row_offsets[row], goals.row_offsets[row + 1]):
        goal = goals.entry_goal[entry]
        share = goals.entry_share[entry]
        first, last = goals.step_offsets[goal], goals.step_offsets[goal + 1]
        if goals.take_offsets[last] - goals.take_offsets[first] == last - first:  # a single path
            for step in range(first, last):
                listed = scratch.step_place[place + step - first]
                if listed >= 0:
                    option = scratch.start[listed] + goals.take_option[goals.take_offsets[step]]
                    cost -= share * scratch.log_p[option]
                    scratch.target[option] += share
                    scratch.mass[listed] += share
        else:
            cost -= share * _aim_at_many(first, last, place, share, goals, scratch)
        place += last - first
    return cost


@inlined
def _aim_at_many(first, last, place, share, goals, scratch):
    """Sum over all paths of a goal, forward and backward, and return the log probability of its label."""
    steps = last - first
    forward, backward = scratch.forward, scratch.backward
    forward[:steps] = -np.inf
    backward[:steps] = -np.inf
    forward[0] = 0.0
    total = -np.inf
    for step in range(steps):
        for take in range(goals.take_offsets[first + step], goals.take_offsets[first + step + 1]):
            reached = forward[step] + log_p_of(take, scratch.step_place[place + step], goals, scratch)
            following = goals.take_next[take]
            if following < 0:
                total = plus_exp(total, reached)
            else:
                forward[following] = plus_exp(forward[following], reached)
    for step in range(steps - 1, -1, -1):
        listed = scratch.step_place[place + step]
        for take in range(goals.take_offsets[first + step], goals.take_offsets[first + step + 1]):
            following = goals.take_next[take]
            onward = log_p_of(take, listed, goals, scratch)
            if following >= 0:
                onward += backward[following]
            backward[step] = plus_exp(backward[step], onward)
            if listed >= 0:
                posterior = F4(share * np.exp(forward[step] + onward - total))
                scratch.target[scratch.start[listed] + goals.take_option[take]] += posterior
                scratch.mass[listed] += posterior
    return total


@kernel
def mixed_cost(goals, groups, most, mine, said, mix):
    """Return the cost of goals, one a row, if the experts are mixed so, and its gradient.

    ``said`` is what each expert says of the options of each goal's groups, one goal after the other.
    """
    scratch = scratch_for(*most)
    gradient = np.zeros(len(mix))
    cost = 0.0
    begin = 0
    for row in range(len(goals.row_offsets) - 1):
        count = list_groups(row, goals, groups, mine, scratch)
        options = scratch.start[count]
        for option in range(options):
            logit = 0.0
            for expert in range(len(mix)):
                logit += mix[expert] * said[begin + option, expert]
            scratch.log_p[option] = logit
        for listed in range(count):
            normalise(scratch, listed)
        cost += aim(row, goals, scratch)
        for listed in range(count):
            for option in range(scratch.start[listed], scratch.start[listed + 1]):
                slope = scratch.mass[listed] * scratch.p[option] - scratch.target[option]
                for expert in range(len(mix)):
                    gradient[expert] += slope * said[begin + option, expert]
        begin += options
    return cost, gradient
