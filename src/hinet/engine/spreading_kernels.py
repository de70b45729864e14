"""Kernels that pour the probability of the root down the layers, for the best nodes and, elsewhere, for labels.

What falls below a floor is left aside and its groups are not scored; what was left aside bounds the error of every sum.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.scoring_kernels import largest_group, log_softmax, read_row, reading_for, score_group, steps_of_rows

STOP = -1


class Spreading(NamedTuple):
    """Probability mass poured down the layers from the root, of one row."""

    mass: Any  # (neurons,) of neurons that were reached; zero elsewhere
    stopped: Any  # (neurons,) of traces that end there
    best: Any  # (neurons,) probability of the most probable path down to a neuron
    above: Any  # (neurons,) the neuron before it on that path
    reached: Any  # (neurons,) the neurons that were reached, parents before children
    logits: Any  # (largest group,)


class Leaning(NamedTuple):
    """What the probabilities of rows lean to, as :mod:`hinet.engine.leaning` has it."""

    node: Any  # (n,) the end of the best trace, -1 for none but the root
    gift: Any  # (n,) the share of all other traces that it is given
    floor: Any  # (n,) what is left aside: less than the best trace has, so that all of it is reached


@inlined
def spreading_for(groups):
    """Make room to pour into all neurons."""
    neurons = len(groups.first_row) - 1
    logits = np.empty(largest_group(groups), np.float32)
    return Spreading(
        np.zeros(neurons),
        np.zeros(neurons),
        np.zeros(neurons),
        np.zeros(neurons, np.int64),
        np.empty(neurons, np.int64),
        logits,
    )


@inlined
def clear_spreading(spreading, count):
    """Forget the neurons that were reached."""
    for place in range(count):
        spreading.mass[spreading.reached[place]] = 0
        spreading.stopped[spreading.reached[place]] = 0
        spreading.best[spreading.reached[place]] = 0


def steps_of_pouring(rows, groups, experts, floor):
    """Guess how often loops turn to pour rows down, to all neurons if nothing is left aside."""
    steps = 4 * steps_of_rows(rows, groups, experts) + 2 * len(groups.first_row)
    if floor > 0:
        return steps
    every_output = len(groups.option_neuron) * (experts.deep.embedding.shape[1] + len(rows.indices))
    return steps + (len(rows.indptr) - 1) * every_output


@inlined
def spread(rows, row, groups, experts, reading, floor, spreading):
    """Pour from the root down, leaving aside neurons whose mass is below ``floor``.

    Returns the number of neurons reached, the mass left aside, and the outputs touched. The row must have been read.
    """
    logits = spreading.logits
    spreading.mass[0] = 1.0
    spreading.best[0] = 1.0
    spreading.reached[0] = 0
    count, place, aside, touched = 1, 0, 0.0, 0
    while place < count:
        # All parents of a neuron are in the layer above it and so come before it: its mass is complete.
        neuron = spreading.reached[place]
        place += 1
        mass, best = spreading.mass[neuron], spreading.best[neuron]
        if mass < floor:
            aside += mass
            continue
        start = groups.option_offsets[neuron]
        size = groups.option_offsets[neuron + 1] - start
        if size > 1:
            score_group(rows, row, neuron, groups, experts, experts.mix, reading, 0, logits)
            log_softmax(logits, size)
            touched += size
        for option in range(size):
            share = np.exp(np.float64(logits[option])) if size > 1 else 1.0
            poured = mass * share
            target = groups.option_neuron[start + option]
            if target == STOP:
                spreading.stopped[neuron] += poured
            else:
                if spreading.mass[target] == 0 and poured > 0:
                    spreading.reached[count] = target
                    count += 1
                spreading.mass[target] += poured
                if best * share > spreading.best[target]:
                    spreading.best[target] = best * share
                    spreading.above[target] = neuron
    return count, aside, touched


def _steps_of_nodes(rows, groups, experts, *_):
    return steps_of_pouring(rows, groups, experts, 1.0)


@kernel(steps=_steps_of_nodes)
def best_nodes(rows, groups, experts, node_of, ancestors, ancestor_offsets, depth, leaning, cut, surest):
    """Return for each row a node chosen by the probabilities of nodes, its own, and the outputs touched.

    Probabilities are those poured down, leaned. With ``surest`` the deepest node with a probability of at least
    ``cut``, else the node with the largest sum over itself and its ancestors of their probability less ``cut``.
    ``ancestors`` of a node include itself, not the root. A row for which no node qualifies gets the best node right
    below the root.
    """
    count = len(rows.indptr) - 1
    reading, spreading = reading_for(1, experts), spreading_for(groups)
    node_mass = np.zeros(len(depth))
    chosen = np.empty(count, np.int64)
    probability = np.empty(count, np.float64)
    touched = np.zeros(count, np.int64)
    for row in range(count):
        touched[row] += read_row(rows, row, experts, reading, 0)
        reached, _, outputs = spread(rows, row, groups, experts, reading, leaning.floor[row], spreading)
        touched[row] += outputs
        for place in range(1, reached):
            neuron = spreading.reached[place]
            node_mass[node_of[neuron]] += (1 - leaning.gift[row]) * spreading.mass[neuron]
        if leaning.node[row] >= 0:
            for above in range(ancestor_offsets[leaning.node[row]], ancestor_offsets[leaning.node[row] + 1]):
                node_mass[ancestors[above]] += leaning.gift[row]
        best, value = -1, 0.0
        for place in range(1, reached):
            node = node_of[spreading.reached[place]]
            if surest:
                gain = depth[node] + node_mass[node] if node_mass[node] >= cut else -1.0
            else:
                gain = 0.0
                for above in range(ancestor_offsets[node], ancestor_offsets[node + 1]):
                    gain += node_mass[ancestors[above]] - cut
            if gain > value:
                best, value = node, gain
        if best < 0:
            best = top_node(groups, spreading, reached, node_of, node_mass)
        chosen[row] = best if best >= 0 else node_of[0]
        probability[row] = node_mass[best] if best >= 0 else 1.0
        for place in range(1, reached):
            node_mass[node_of[spreading.reached[place]]] = 0
        clear_spreading(spreading, reached)
    return chosen, probability, touched


@inlined
def top_node(groups, spreading, reached, node_of, node_mass):
    """Return the node of largest probability right below the root, or -1 if none was reached."""
    tops = groups.option_offsets[1]  # neurons right below the root
    if groups.option_neuron[tops - 1] == STOP:
        tops -= 1
    best = -1
    for place in range(1, reached):
        neuron = spreading.reached[place]
        if neuron <= tops and (best < 0 or node_mass[node_of[neuron]] > node_mass[best]):
            best = node_of[neuron]
    return best
