"""A kernel that sums the probability of labels over all their traces by pouring it down the layers.

It gives all labels of rows, or the best of them. For the best, what improbable paths carry is left aside at first; as
long as that could change the answer, the row is poured again with less left aside.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.scoring_kernels import read_row, reading_for
from hinet.engine.search_kernels import heap_pop, heap_push
from hinet.engine.spreading_kernels import clear_spreading, spread, spreading_for, steps_of_pouring

LOWER = 100.0  # how many times lower the next floor is
LOWEST_FLOOR = 1e-8  # below it, the next floor is none


class LabelSums(NamedTuple):
    """The labels that the probability of one row was poured into."""

    mass: Any  # (nodes,) probability of a label; zero elsewhere
    trace: Any  # (nodes,) probability of its best trace
    end: Any  # (nodes,) the neuron at which that trace ends
    node: Any  # (nodes,) the labels, those first that are in an answer
    heap_mass: Any  # (nodes,)
    heap_node: Any  # (nodes,)


class LabelLists(NamedTuple):
    """The labels in the answers, those of all rows one after the other, with the best trace of each."""

    node: Any  # (labels,)
    probability: Any  # (labels,) summed over all traces
    trace: Any  # (labels,) probability of the best trace
    length: Any  # (labels,) neurons of the best trace
    neuron: Any  # (labels, height) the neurons themselves
    along: Any  # (labels, height) probability of the path down to each


@inlined
def label_lists_for(most, height):
    """Make room for so many labels, with traces of at most ``height`` neurons; for 0, without traces."""
    traces = most if height > 0 else 0
    return LabelLists(
        np.empty(most, np.int64),
        np.empty(most, np.float64),
        np.empty(traces, np.float64),
        np.zeros(traces, np.int64),
        np.empty((traces, height), np.int32),
        np.empty((traces, height), np.float64),
    )


def _steps_of_labels(rows, groups, experts, node_of, k, floor, most, height):
    return steps_of_pouring(rows, groups, experts, floor) + len(node_of)


@kernel(steps=_steps_of_labels)
def likely_labels(rows, groups, experts, node_of, k, floor, most, height):
    """Return the most probable labels of each row, summed over all their traces.

    With ``k``, the ``k`` best, the best first. If what is left aside below ``floor`` could still change them, the row
    is poured again with a floor a hundred times lower, and at last without one; so the answer is exact. With the
    ``height`` of the layers instead of 0, the best trace of each label is given too, exactly as well.

    Without ``k``, all labels of at least ``floor``, in any order; what falls below it on the way is left aside.

    Returns how many labels each row has, lists of at most ``most`` labels a row, and the outputs touched.
    """
    count = len(rows.indptr) - 1
    reading, spreading = reading_for(1, experts), spreading_for(groups)
    nodes = node_of.max() + 2
    sums = LabelSums(
        np.zeros(nodes),
        np.zeros(nodes),
        np.zeros(nodes, np.int64),
        np.empty(nodes, np.int64),
        np.empty(nodes),
        np.empty(nodes, np.int32),
    )
    lists = label_lists_for(count * most, height)
    labels, touched = np.zeros(count, np.int64), np.zeros(count, np.int64)
    used = 0
    for row in range(count):
        touched[row] += read_row(rows, row, experts, reading, 0)
        least = floor
        while True:
            reached, aside, outputs = spread(rows, row, groups, experts, reading, least, spreading)
            touched[row] += outputs
            summed = sum_labels(spreading, reached, node_of, sums)
            if k > 0:
                rank_labels(min(k + 1, summed), summed, sums)
            if k == 0 or least == 0.0 or is_settled(k, summed, aside, least if height > 0 else 0.0, sums):
                break
            clear_labels(summed, sums)
            clear_spreading(spreading, reached)
            least = least / LOWER if least > LOWEST_FLOOR else 0.0
        for place in range(summed if k == 0 else min(k, summed)):
            node = sums.node[place]
            if k > 0 or sums.mass[node] >= floor:
                lists.node[used], lists.probability[used] = node, sums.mass[node]
                if height > 0:
                    lists.trace[used] = sums.trace[node]
                    walk_back(sums.end[node], spreading, lists, used)
                used += 1
                labels[row] += 1
        clear_labels(summed, sums)
        clear_spreading(spreading, reached)
    return (
        labels,
        lists.node[:used].copy(),
        lists.probability[:used].copy(),
        lists.trace[:used].copy(),
        lists.length[:used].copy(),
        lists.neuron[:used].copy(),
        lists.along[:used].copy(),
        touched,
    )


@inlined
def sum_labels(spreading, reached, node_of, sums):
    """Sum what stopped at the neurons that were reached by their labels; return how many labels there are."""
    summed = 0
    for place in range(reached):
        neuron = spreading.reached[place]
        stopped = spreading.stopped[neuron]
        if stopped == 0:
            continue
        node = node_of[neuron]
        trace = spreading.best[neuron] * (stopped / spreading.mass[neuron])
        if sums.mass[node] == 0:
            sums.node[summed] = node
            summed += 1
        if sums.mass[node] == 0 or trace > sums.trace[node]:
            sums.trace[node], sums.end[node] = trace, neuron
        sums.mass[node] += stopped
    return summed


@inlined
def rank_labels(k, summed, sums):
    """Put the ``k`` labels of largest probability first, in their order."""
    for place in range(summed):
        node = sums.node[place]
        heap_push(sums.heap_mass, sums.heap_node, place, sums.mass[node], node)
    for place in range(k):
        sums.node[place] = sums.heap_node[0]
        heap_pop(sums.heap_mass, sums.heap_node, summed - place)
    for place in range(k, summed):
        sums.node[place] = sums.heap_node[place - k]


@inlined
def is_settled(k, summed, aside, least, sums):
    """Return whether the first ``k`` labels stay so, whatever becomes of the mass that was left aside.

    Their best traces too must be at least ``least``, which no trace through what was left aside is.
    """
    if summed < k and aside > 0:
        return False
    for place in range(min(k, summed)):
        node = sums.node[place]
        following = sums.mass[sums.node[place + 1]] if place + 1 < summed else 0.0
        if not sums.mass[node] - following >= aside or sums.trace[node] < least:
            return False
    return True


@inlined
def walk_back(end, spreading, lists, place):
    """Write down the best trace to a neuron."""
    length, neuron = 0, end
    while neuron > 0:
        length += 1
        neuron = spreading.above[neuron]
    lists.length[place] = length
    neuron = end
    while neuron > 0:
        length -= 1
        lists.neuron[place, length], lists.along[place, length] = neuron, spreading.best[neuron]
        neuron = spreading.above[neuron]


@inlined
def clear_labels(summed, sums):
    """Forget the labels of a row."""
    for place in range(summed):
        sums.mass[sums.node[place]] = 0
