"""Sibling groups and label spans as plain arrays that kernels read."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.ragged import group_by, offsets_of
from hinet.taxonomy import STOP, Layers

Ints = NDArray[np.int64]


class Groups(NamedTuple):
    """Sibling groups, one below each neuron, and the output rows of their options.

    A group without a choice (:attr:`hinet.Layers.has_choice`) has no output rows. The options of the others have
    consecutive rows, in the order of the groups, as in :class:`hinet.networks.SiblingHead`.
    """

    option_offsets: NDArray[np.int64]  # (neurons + 1,) options of each group
    option_neuron: NDArray[np.int32]  # (options,) the neuron that an option leads to, -1 for stop
    first_row: NDArray[np.int64]  # (neurons + 1,) row of the first option of each group
    exhaustive: NDArray[np.bool_]  # (neurons,) whether a row that reaches the group takes at least one option
    several: bool  # whether a row may take several options of a group

    @classmethod
    def of(cls, layers: Layers) -> Groups:
        """Return the groups of layers."""
        rows = np.where(layers.has_choice, np.diff(layers.option_offsets), 0)
        return cls(
            layers.option_offsets.copy(),
            layers.option_neuron.copy(),
            offsets_of(rows),
            layers.exhaustive.copy(),
            layers.multilabel,
        )

    @property
    def rows(self) -> int:
        """Number of output rows."""
        return int(self.first_row[-1])

    def row_options(self) -> NDArray[np.int64]:
        """(rows,) Return the option of each output row."""
        return np.flatnonzero(np.repeat(np.diff(self.first_row) > 0, np.diff(self.option_offsets)))

    def row_groups(self) -> NDArray[np.int64]:
        """(rows,) Return the neuron above the group of each output row."""
        return np.repeat(np.arange(len(self.first_row) - 1), np.diff(self.first_row))


class LabelSpans(NamedTuple):
    """Labels in an order in which those below any option are consecutive; only for layers that are a tree.

    With several labels per row, nodes of a DAG may have labels below them outside this span: their *others*.
    """

    neuron: NDArray[np.int64]  # (labels,) the neuron that each label ends at
    first: NDArray[np.int64]  # (options,) the labels below an option are first:last
    last: NDArray[np.int64]  # (options,)
    other_offsets: NDArray[np.int64]  # (neurons + 1,)
    other: NDArray[np.int64]  # labels below each neuron's node outside its span
    overlaps: NDArray[np.bool_]  # (neurons,) whether a label is below two options of the group

    @classmethod
    def of(cls, layers: Layers) -> LabelSpans:
        """Return the spans of the labels of a tree; no spans for a DAG."""
        if not layers.is_tree:
            return cls.none(layers)
        below = np.zeros(len(layers.node), np.int64)  # labels at or below each neuron
        below[layers.ends] = 1
        parent = np.append(0, layers.parent_lists[0])  # one parent per neuron in a tree
        real = layers.option_neuron != STOP
        bounds = [*pairwise(layers.layer_offsets.tolist())]
        for start, end in reversed(bounds[1:]):
            np.add.at(below, parent[start:end], below[start:end])
        size = np.ones(len(layers.option_neuron), np.int64)
        size[real] = below[layers.option_neuron[real]]
        first = np.empty(len(size), np.int64)
        span_start = np.zeros(len(layers.node), np.int64)
        running = np.concatenate([[0], np.cumsum(size)])
        for start, end in bounds:
            low, high = layers.option_offsets[start], layers.option_offsets[end]
            group = layers.option_parent[low:high]
            within = running[low:high] - running[layers.option_offsets[group]]
            first[low:high] = span_start[group] + within
            target = layers.option_neuron[low:high]
            child = target != STOP
            span_start[target[child]] = first[low:high][child]
        stops = np.flatnonzero(~real)
        neuron = np.empty(len(stops), np.int64)
        neuron[first[stops]] = layers.option_parent[stops]
        return cls(neuron, first, first + size, *_labels_elsewhere(layers, neuron, first, first + size))

    @classmethod
    def none(cls, layers: Layers) -> LabelSpans:
        """Return empty spans."""
        nothing, no_labels = np.zeros(len(layers.option_neuron), np.int64), np.zeros(0, np.int64)
        neurons = len(layers.node)
        return cls(no_labels, nothing, nothing, np.zeros(neurons + 1, np.int64), no_labels, np.zeros(neurons, bool))

    def upper_nodes(self, layers: Layers) -> tuple[Ints, Ints, Ints]:
        """Return the nodes at or above each label, from the lowest up, as spans of the labels below them.

        The spans of label ``j`` are ``offsets[j]:offsets[j + 1]`` of two more arrays, their starts and ends. Nodes with
        one label below them, with the same labels as the node before, or with all labels are left out.
        """
        real = np.flatnonzero(layers.option_neuron != STOP)
        option_to = np.zeros(len(layers.node), np.int64)
        option_to[layers.option_neuron[real]] = real
        label, neuron = np.arange(len(self.neuron)), self.neuron
        size = np.ones(len(label), np.int64)  # labels below the previous node
        uppers = [np.zeros((3, 0), np.int64)]
        while True:
            below_root = neuron != 0
            option = option_to[neuron[below_root]]
            label, before = label[below_root], size[below_root]
            first, last = self.first[option], self.last[option]
            size, neuron = last - first, layers.option_parent[option].astype(np.int64)
            on = size < len(self.neuron)  # all nodes further up have all labels
            label, neuron, size, new = label[on], neuron[on], size[on], (size > before)[on]
            if not len(label):
                break
            uppers.append(np.stack([label, first[on], last[on]])[:, new])
        owner, first, last = np.concatenate(uppers, axis=1)
        order = np.argsort(owner, kind="stable")
        return offsets_of(np.bincount(owner, minlength=len(self.neuron))), first[order], last[order]

    def labels_at(self, neurons: Ints) -> Ints:
        """Return the label that ends at each of the neurons."""
        order = np.argsort(self.neuron)
        return order[np.searchsorted(self.neuron, neurons, sorter=order)]


def _labels_elsewhere(layers: Layers, neuron: Ints, first: Ints, last: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Return the labels below the node of each neuron outside its span, and which groups overlap."""
    neurons = len(layers.node)
    overlaps = np.zeros(neurons, bool)
    if layers.taxonomy.is_tree:
        return np.zeros(neurons + 1, np.int64), np.zeros(0, np.int64), overlaps
    neuron_of = np.zeros(len(layers.taxonomy), np.int64)
    neuron_of[layers.node[1:]] = np.arange(1, neurons)
    real = np.flatnonzero(layers.option_neuron != STOP)
    option_to = np.zeros(neurons, np.int64)
    option_to[layers.option_neuron[real]] = real
    label = np.flatnonzero(neuron != 0)
    nodes, offsets = layers.taxonomy.ancestor_lists(layers.node[neuron[label]])
    above, label = neuron_of[nodes], np.repeat(label, np.diff(offsets))
    option = option_to[above]
    elsewhere = (label < first[option]) | (label >= last[option])
    label, above = label[elsewhere], above[elsewhere]
    group = layers.option_parent[option_to[above]]
    start, end = layers.option_offsets[group], layers.option_offsets[group + 1] - 1
    overlaps[group[(label >= first[start]) & (label < last[end])]] = True
    pairs, counts = np.unique(group * np.int64(len(neuron)) + label, return_counts=True)
    overlaps[pairs[counts > 1] // len(neuron)] = True
    order, other_offsets = group_by(above, neurons)
    return other_offsets, label[order], overlaps
