"""Kernels that propagate the probability of a row from the root down, summed over all paths.

Neurons below a floor are skipped and their groups are not scored; the skipped mass bounds the error of every sum. A
best node or label is thus exact: if the skipped mass could change it, the row is propagated again with a lower floor.

With sets of labels, probabilities are those of :mod:`hinet.engine.search.best_first` (:func:`all_nodes`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.model.kernels import log_options
from hinet.engine.search.best_first import heap_pop, heap_push
from hinet.engine.search.scoring_kernels import allocate_reading, largest_group, read_row, score_group, steps_of_rows

STOP = -1
LOWER = 100.0  # how many times lower the next floor is
LOWEST_FLOOR = 1e-8  # below it, the next floor is none
PRECISION = 1e-4  # maximum error of the probability of a node of a DAG


class Marginals(NamedTuple):
    """Probability of each neuron of one row, propagated from the root."""

    mass: Any  # (neurons,) probability of reached neurons; zero elsewhere
    stopped: Any  # (neurons,) probability of traces that end there
    best: Any  # (neurons,) probability of the most probable path down to a neuron
    above: Any  # (neurons,) the neuron before it on that path
    reached: Any  # (neurons,) the neurons that were reached, parents before children
    logits: Any  # (largest group,)


class Correction(NamedTuple):
    """Corrections of the probabilities of rows, see :mod:`hinet.engine.search.corrections`."""

    node: Any  # (n,) the end of the best trace, -1 for none but the root
    shift: Any  # (n,) share of all other traces that is added to it
    floor: Any  # (n,) neurons below it are skipped; lower than the best trace, so that all of it is reached
    trust: Any  # (n,) 1 leaves probabilities as they are
    shares: Any  # (nodes + 1,) share of the labels below each node, then of one label


@inlined
def allocate_marginals(groups):
    """Allocate marginals of all neurons."""
    neurons = len(groups.first_row) - 1
    logits = np.empty(largest_group(groups), np.float32)
    return Marginals(
        np.zeros(neurons),
        np.zeros(neurons),
        np.zeros(neurons),
        np.zeros(neurons, np.int64),
        np.empty(neurons, np.int64),
        logits,
    )


@inlined
def clear_marginals(marginals, count):
    """Clear the neurons that were reached."""
    for index in range(count):
        marginals.mass[marginals.reached[index]] = 0
        marginals.stopped[marginals.reached[index]] = 0
        marginals.best[marginals.reached[index]] = 0


def steps_of_marginals(rows, groups, experts, floor):
    """Estimate the loop iterations of propagating rows, to all neurons if nothing is skipped."""
    steps = 4 * steps_of_rows(rows, groups, experts) + 2 * len(groups.first_row)
    if floor > 0:
        return steps
    every_output = len(groups.option_neuron) * (experts.deep.embedding.shape[1] + len(rows.indices))
    return steps + (len(rows.indptr) - 1) * every_output


@inlined
def propagate(rows, row, groups, experts, reading, floor, marginals):
    """Propagate probability from the root down, skipping neurons whose mass is below ``floor``.

    Returns the number of neurons reached, the skipped mass, and the outputs scored. The row must have been read.
    """
    logits = marginals.logits
    marginals.mass[0] = 1.0
    marginals.best[0] = 1.0
    marginals.reached[0] = 0
    count, index, skipped, touched = 1, 0, 0.0, 0
    while index < count:
        # The parents of a neuron are in the layer above it and so come before it: its mass is complete.
        neuron = marginals.reached[index]
        index += 1
        mass, best = marginals.mass[neuron], marginals.best[neuron]
        if mass < floor:
            skipped += mass
            continue
        start = groups.option_offsets[neuron]
        size = groups.option_offsets[neuron + 1] - start
        if size > 1:
            score_group(rows, row, neuron, groups, experts, experts.mix, reading, 0, logits)
            touched += size
        log_options(neuron, groups, logits)
        for option in range(size):
            share = np.exp(np.float64(logits[option]))
            passed = mass * share
            target = groups.option_neuron[start + option]
            if target == STOP:
                marginals.stopped[neuron] += passed
            else:
                if marginals.mass[target] == 0 and passed > 0:
                    marginals.reached[count] = target
                    count += 1
                marginals.mass[target] += passed
                if best * share > marginals.best[target]:
                    marginals.best[target] = best * share
                    marginals.above[target] = neuron
    return count, skipped, touched


def _steps_of_shares(rows, groups, experts, neurons, position, below):
    return steps_of_marginals(rows, groups, experts, 1.0) + 10 * len(neurons) * (len(rows.indptr) - 1)


@kernel(steps=_steps_of_shares)
def open_shares(rows, groups, experts, neurons, position, below):
    """Return for some neurons the probability that a trace through them takes open options alone, (n, neurons).

    ``neurons`` come in an order with children first; ``position`` is the index of a neuron among them, or -1 for those
    below which all options are open (``below`` is 1) or none is (0).
    """
    count = len(rows.indptr) - 1
    reading, logits = allocate_reading(1, experts), np.empty(largest_group(groups), np.float32)
    shares = np.empty((count, len(neurons)), np.float64)
    for row in range(count):
        read_row(rows, row, experts, reading, 0)
        for index in range(len(neurons)):
            neuron = neurons[index]
            start = groups.option_offsets[neuron]
            size = groups.option_offsets[neuron + 1] - start
            if size > 1:
                score_group(rows, row, neuron, groups, experts, experts.mix, reading, 0, logits)
            log_options(neuron, groups, logits)
            total = 0.0
            for option in range(size):
                if groups.closed[start + option]:
                    continue
                target = groups.option_neuron[start + option]
                share = np.exp(np.float64(logits[option]))
                if target != STOP:
                    share *= shares[row, position[target]] if position[target] >= 0 else below[target]
                total += share
            shares[row, index] = total
    return shares


def _steps_of_nodes(rows, groups, experts, *_):
    return steps_of_marginals(rows, groups, experts, 1.0)


@kernel(steps=_steps_of_nodes)
def best_nodes(rows, groups, experts, node_of, ancestors, ancestor_offsets, depth, correction, cut, surest, is_tree):
    """Return one node per row chosen by corrected node probabilities, and its probability.

    With ``surest``, it is the deepest node with a probability of at least ``cut``, otherwise the node with the largest
    sum of probability minus ``cut`` over itself and its ancestors. ``ancestors`` of a node include itself, not the
    root. A row without such a node gets the best node right below the root.

    In a tree the probability of a reached node is exact. In a DAG some of its paths may have been skipped; the row is
    then propagated with lower floors until probabilities are precise and no other node can reach the threshold.
    """
    count = len(rows.indptr) - 1
    reading, marginals = allocate_reading(1, experts), allocate_marginals(groups)
    node_mass = np.zeros(len(depth))
    chosen = np.empty(count, np.int64)
    probability = np.empty(count, np.float64)
    for row in range(count):
        read_row(rows, row, experts, reading, 0)
        floor, shift, trust = correction.floor[row], correction.shift[row], correction.trust[row]
        while True:
            reached, skipped, _ = propagate(rows, row, groups, experts, reading, floor, marginals)
            for index in range(1, reached):
                neuron = marginals.reached[index]
                node = node_of[neuron]
                node_mass[node] += trust * (1 - shift) * marginals.mass[neuron] + (1 - trust) * correction.shares[node]
            if is_tree or is_decided(marginals, reached, node_of, node_mass, skipped, cut):
                break
            clear_nodes(marginals, reached, node_of, node_mass)
            clear_marginals(marginals, reached)
            floor = floor / LOWER if floor > LOWEST_FLOOR else 0.0
        if correction.node[row] >= 0:
            for above in range(ancestor_offsets[correction.node[row]], ancestor_offsets[correction.node[row] + 1]):
                node_mass[ancestors[above]] += trust * shift
        best, value = -1, 0.0
        for index in range(1, reached):
            node = node_of[marginals.reached[index]]
            if surest:
                gain = depth[node] + node_mass[node] if node_mass[node] >= cut else -1.0
            else:
                gain = 0.0
                for above in range(ancestor_offsets[node], ancestor_offsets[node + 1]):
                    gain += node_mass[ancestors[above]] - cut
            if gain > value:
                best, value = node, gain
        if best < 0:
            best = top_node(groups, marginals, reached, node_of, node_mass)
        chosen[row] = best if best >= 0 else node_of[0]
        probability[row] = node_mass[best] if best >= 0 else 1.0
        clear_nodes(marginals, reached, node_of, node_mass)
        clear_marginals(marginals, reached)
    return chosen, probability


@inlined
def is_decided(marginals, reached, node_of, node_mass, skipped, cut):
    """Return whether the skipped mass is negligible and cannot lift any node to the threshold ``cut``."""
    if skipped == 0:
        return True
    undecided = 0
    for index in range(1, reached):
        mass = node_mass[node_of[marginals.reached[index]]]
        undecided += mass < cut and mass + skipped >= cut
    return undecided == 0 and skipped <= PRECISION and skipped < cut


@inlined
def clear_nodes(marginals, reached, node_of, node_mass):
    """Clear the probabilities of the nodes that were reached."""
    for index in range(1, reached):
        node_mass[node_of[marginals.reached[index]]] = 0


@inlined
def top_node(groups, marginals, reached, node_of, node_mass):
    """Return the node of largest probability right below the root, or -1 if none was reached."""
    tops = groups.option_offsets[1]  # neurons right below the root
    if groups.option_neuron[tops - 1] == STOP:
        tops -= 1
    best = -1
    for index in range(1, reached):
        neuron = marginals.reached[index]
        if neuron <= tops and (best < 0 or node_mass[node_of[neuron]] > node_mass[best]):
            best = node_of[neuron]
    return best


class LabelSums(NamedTuple):
    """Probabilities of one row summed by label."""

    mass: Any  # (nodes,) probability of a label; zero elsewhere
    trace: Any  # (nodes,) probability of its best trace
    end: Any  # (nodes,) the neuron at which that trace ends
    node: Any  # (nodes,) the labels; those of the answer come first
    heap_mass: Any  # (nodes,)
    heap_node: Any  # (nodes,)


class LabelLists(NamedTuple):
    """The labels of all rows one after the other, with the best trace of each."""

    node: Any  # (labels,)
    probability: Any  # (labels,) summed over all traces
    trace: Any  # (labels,) probability of the best trace
    length: Any  # (labels,) neurons of the best trace
    neuron: Any  # (labels, height) the neurons themselves
    along: Any  # (labels, height) probability of the path down to each


@inlined
def allocate_label_lists(max_labels, height):
    """Allocate lists of labels with traces of up to ``height`` neurons; without traces if it is 0."""
    traces = max_labels if height > 0 else 0
    return LabelLists(
        np.empty(max_labels, np.int64),
        np.empty(max_labels, np.float64),
        np.empty(traces, np.float64),
        np.zeros(traces, np.int64),
        np.empty((traces, height), np.int32),
        np.empty((traces, height), np.float64),
    )


def _steps_of_labels(rows, groups, experts, node_of, k, floor, max_labels, height):
    return steps_of_marginals(rows, groups, experts, floor) + len(node_of)


@kernel(steps=_steps_of_labels)
def likely_labels(rows, groups, experts, node_of, k, floor, max_labels, height):
    """Return the most probable labels of each row, summed over all their traces.

    With ``k``, the ``k`` best in order. If mass skipped below ``floor`` could change them, the row is propagated again
    with a floor a hundred times lower, and finally without one, so the answer is exact. With the ``height`` of the
    layers instead of 0, the best trace of each label is returned too, also exactly.

    With ``k = 0``, all labels of at least ``floor`` in any order, without mass that was skipped.

    Returns the number of labels of each row, lists with room for ``max_labels`` labels per row, and the outputs scored.
    """
    count = len(rows.indptr) - 1
    reading, marginals = allocate_reading(1, experts), allocate_marginals(groups)
    nodes = node_of.max() + 2
    sums = LabelSums(
        np.zeros(nodes),
        np.zeros(nodes),
        np.zeros(nodes, np.int64),
        np.empty(nodes, np.int64),
        np.empty(nodes),
        np.empty(nodes, np.int32),
    )
    lists = allocate_label_lists(count * max_labels, height)
    labels, touched = np.zeros(count, np.int64), np.zeros(count, np.int64)
    used = 0
    for row in range(count):
        touched[row] += read_row(rows, row, experts, reading, 0)
        lowest = floor
        while True:
            reached, skipped, outputs = propagate(rows, row, groups, experts, reading, lowest, marginals)
            touched[row] += outputs
            summed = sum_labels(marginals, reached, node_of, sums)
            if k > 0:
                rank_labels(min(k + 1, summed), summed, sums)
            if k == 0 or lowest == 0.0 or is_settled(k, summed, skipped, lowest if height > 0 else 0.0, sums):
                break
            clear_labels(summed, sums)
            clear_marginals(marginals, reached)
            lowest = lowest / LOWER if lowest > LOWEST_FLOOR else 0.0
        for index in range(summed if k == 0 else min(k, summed)):
            node = sums.node[index]
            if k > 0 or sums.mass[node] >= floor:
                lists.node[used], lists.probability[used] = node, sums.mass[node]
                if height > 0:
                    lists.trace[used] = sums.trace[node]
                    trace_back(sums.end[node], marginals, lists, used)
                used += 1
                labels[row] += 1
        clear_labels(summed, sums)
        clear_marginals(marginals, reached)
    return labels, lists, touched


@inlined
def sum_labels(marginals, reached, node_of, sums):
    """Sum the mass that stopped at reached neurons by label; return the number of labels."""
    summed = 0
    for index in range(reached):
        neuron = marginals.reached[index]
        stopped = marginals.stopped[neuron]
        if stopped == 0:
            continue
        node = node_of[neuron]
        trace = marginals.best[neuron] * (stopped / marginals.mass[neuron])
        if sums.mass[node] == 0:
            sums.node[summed] = node
            summed += 1
        if sums.mass[node] == 0 or trace > sums.trace[node]:
            sums.trace[node], sums.end[node] = trace, neuron
        sums.mass[node] += stopped
    return summed


@inlined
def rank_labels(k, summed, sums):
    """Move the ``k`` most probable labels to the front, in order."""
    for index in range(summed):
        node = sums.node[index]
        heap_push(sums.heap_mass, sums.heap_node, index, sums.mass[node], node)
    for index in range(k):
        sums.node[index] = sums.heap_node[0]
        heap_pop(sums.heap_mass, sums.heap_node, summed - index)
    for index in range(k, summed):
        sums.node[index] = sums.heap_node[index - k]


@inlined
def is_settled(k, summed, skipped, lowest, sums):
    """Return whether the skipped mass cannot change the first ``k`` labels.

    Their best traces must also have at least the probability ``lowest``, which no trace through skipped neurons has.
    """
    if summed < k and skipped > 0:
        return False
    for index in range(min(k, summed)):
        node = sums.node[index]
        following = sums.mass[sums.node[index + 1]] if index + 1 < summed else 0.0
        if not sums.mass[node] - following >= skipped or sums.trace[node] < lowest:
            return False
    return True


@inlined
def trace_back(end, marginals, lists, index):
    """Write the best trace to a neuron."""
    length, neuron = 0, end
    while neuron > 0:
        length += 1
        neuron = marginals.above[neuron]
    lists.length[index] = length
    neuron = end
    while neuron > 0:
        length -= 1
        lists.neuron[index, length], lists.along[index, length] = neuron, marginals.best[neuron]
        neuron = marginals.above[neuron]


@inlined
def clear_labels(summed, sums):
    """Clear the labels of a row."""
    for index in range(summed):
        sums.mass[sums.node[index]] = 0


@kernel
def all_nodes(rows, groups, experts, others, order, floor):
    """Return the probability of every neuron, and of every label that ends there, (n, neurons) each.

    ``order`` has parents before children. Groups below neurons less probable than ``floor`` are skipped.
    """
    count, neurons = len(rows.indptr) - 1, len(groups.first_row) - 1
    reached, ends = np.zeros((count, neurons), np.float32), np.zeros((count, neurons), np.float32)
    reading, logits = allocate_reading(1, experts), np.empty(largest_group(groups), np.float32)
    for row in range(count):
        read_row(rows, row, experts, reading, 0)
        reached[row, 0] = 1
        for neuron in order:
            for index in range(others[1][neuron], others[1][neuron + 1]):
                reached[row, neuron] = min(reached[row, neuron], reached[row, others[0][index]])
            above = reached[row, neuron]
            if above < floor:
                continue
            start = groups.option_offsets[neuron]
            size = groups.option_offsets[neuron + 1] - start
            if groups.first_row[neuron + 1] > groups.first_row[neuron]:
                score_group(rows, row, neuron, groups, experts, experts.mix, reading, 0, logits)
            log_options(neuron, groups, logits)
            for option in range(size):
                target = groups.option_neuron[start + option]
                if target == STOP:
                    ends[row, neuron] = above * np.exp(logits[option])
                else:
                    reached[row, target] = above * np.exp(logits[option])
    return reached, ends
