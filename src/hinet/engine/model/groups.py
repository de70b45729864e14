"""Sibling groups, label spans and training targets as plain arrays that kernels read.

A target has the options that lead to a label, with all its paths at once. A label of a DAG may have more paths than
can be listed. Its target is the part of the layers between the root and the neurons that the label ends at: one step
for each neuron on a path, with the options of its group that lead to the label. The probability of the label, the sum
over all its traces, is then a forward sum over these steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.errors import LabelError, quoted
from hinet.ragged import Ints, freeze, gather, group_by, offsets_of, positions
from hinet.taxonomy import STOP, Layers

Ints64 = NDArray[np.int64]
MAX_EXACT = 1 << 53  # whole numbers up to this are exact floats
END = -1  # next step of a choice that stops at the label


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
    closed: NDArray[np.bool_]  # (options,) options that a search leaves out

    @classmethod
    def of(cls, layers: Layers) -> Groups:
        """Return the groups of layers, with all options open."""
        rows = np.where(layers.has_choice, np.diff(layers.option_offsets), 0)
        return cls(
            layers.option_offsets.copy(),
            layers.option_neuron.copy(),
            offsets_of(rows),
            layers.exhaustive.copy(),
            layers.multilabel,
            np.zeros(len(layers.option_neuron), bool),
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


class LabelPaths(NamedTuple):
    """The options on all paths to each label, in a tree or a DAG; experts that compare texts need them."""

    node: NDArray[np.int64]  # (labels,) as in LabelSpans, or ascending in a DAG
    offsets: NDArray[np.int64]  # (labels + 1,) the options of each label
    option: NDArray[np.int64]  # ascending within a label

    @classmethod
    def of(cls, layers: Layers, spans: LabelSpans) -> LabelPaths:
        """Return the paths of all labels."""
        has_one_path = layers.taxonomy.is_tree or layers.multilabel
        labels = layers.node[spans.neuron] if has_one_path else np.unique(layers.node[layers.ends])
        nodes, each = labels.astype(np.int64), np.arange(len(labels) + 1)
        targets = Targets.of_sets(layers, nodes, each) if layers.multilabel else Targets.of_labels(layers, nodes, each)
        bounds = targets.arrays.choice_offsets[targets.arrays.step_offsets]  # (targets + 1,)
        option, counts = gather(targets.choice_options(), bounds, targets.arrays.entry_target)
        label = np.repeat(each[:-1], counts)
        return cls(nodes, offsets_of(counts), option[np.lexsort((option, label))].astype(np.int64))

    def labels_of(self, nodes: Ints) -> Ints64:
        """Return the label of each node; -1 if it is not a label."""
        order = np.argsort(self.node)
        index = order[np.minimum(np.searchsorted(self.node, nodes, sorter=order), len(order) - 1)]
        return np.where(self.node[index] == nodes, index, -1)


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
    paths: LabelPaths = LabelPaths(np.zeros(0, np.int64), np.zeros(1, np.int64), np.zeros(0, np.int64))

    @classmethod
    def of(cls, layers: Layers) -> LabelSpans:
        """Return the spans of the labels of a tree; no spans for a DAG."""
        if not layers.is_tree:
            nothing, no_labels = np.zeros(len(layers.option_neuron), np.int64), np.zeros(0, np.int64)
            return cls(no_labels, nothing, nothing, *_labels_elsewhere(layers, no_labels, nothing, nothing))
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

    def with_paths(self, layers: Layers) -> LabelSpans:
        """Return the same with the paths of all labels."""
        return self._replace(paths=LabelPaths.of(layers, self))

    def upper_nodes(self, layers: Layers) -> tuple[Ints64, Ints64, Ints64]:
        """Return the nodes at or above each label, from the lowest up, as spans of the labels below them.

        The spans of label ``j`` are ``offsets[j]:offsets[j + 1]`` of two more arrays, their starts and ends. Nodes with
        one label below them, with the same labels as the node before, or with all labels are left out.
        """
        option_to = _options_to(layers)
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

    def labels_at(self, neurons: Ints64) -> Ints64:
        """Return the label that ends at each of the neurons."""
        order = np.argsort(self.neuron)
        return order[np.searchsorted(self.neuron, neurons, sorter=order)]


def _neurons_of_nodes(layers: Layers) -> Ints64:
    """(nodes,) Return the neuron of each node of a tree; 0 for nodes without one."""
    neuron_of = np.zeros(len(layers.taxonomy), np.int64)
    neuron_of[layers.node[1:]] = np.arange(1, len(layers.node))
    return neuron_of


def _options_to(layers: Layers) -> Ints64:
    """(neurons,) Return the option that leads to each neuron of a tree; 0 for the root."""
    real = np.flatnonzero(layers.option_neuron != STOP)
    option_to = np.zeros(len(layers.node), np.int64)
    option_to[layers.option_neuron[real]] = real
    return option_to


def _labels_elsewhere(
    layers: Layers, neuron: Ints64, first: Ints64, last: Ints64
) -> tuple[Ints64, Ints64, NDArray[np.bool_]]:
    """Return the labels below the node of each neuron outside its span, and which groups overlap."""
    neurons = len(layers.node)
    overlaps = np.zeros(neurons, bool)
    if layers.taxonomy.is_tree or not len(neuron):
        return np.zeros(neurons + 1, np.int64), np.zeros(0, np.int64), overlaps
    neuron_of, option_to = _neurons_of_nodes(layers), _options_to(layers)
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


class TargetArrays(NamedTuple):
    """Targets as kernels read them: rows -> entries -> targets -> steps -> choices."""

    row_offsets: NDArray[np.int64]  # (n + 1,) entries of each row
    entry_target: NDArray[np.int64]  # (entries,) one per label of a row
    entry_share: NDArray[np.float32]  # (entries,) weight of the label in the cost
    step_offsets: NDArray[np.int64]  # (targets + 1,) steps of each target, parents before children
    step_group: NDArray[np.int64]  # (steps,) the neuron whose group is chosen from
    choice_offsets: NDArray[np.int64]  # (steps + 1,) the options that lead to the label
    choice_option: NDArray[np.int64]  # (choices,) position in the group
    choice_next: NDArray[np.int64]  # (choices,) next step, counted within the target, or END

    def end_neurons(self) -> NDArray[np.int64]:
        """Return the deepest neuron that each target ends at."""
        return self.step_group[self.step_offsets[1:] - 1]

    def entry_steps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the entry and the number of every step of the target of each entry."""
        lengths = np.diff(self.step_offsets)[self.entry_target]
        return np.repeat(np.arange(len(lengths)), lengths), positions(self.step_offsets[self.entry_target], lengths)

    def max_sizes(self, groups: Groups) -> tuple[int, int, int]:
        """Return the maximum numbers of groups, options and steps of a row."""

        def most(size_of_step: Ints64) -> int:
            of_target = np.diff(offsets_of(size_of_step)[self.step_offsets])
            of_row = np.diff(offsets_of(of_target[self.entry_target])[self.row_offsets])
            return int(of_row.max(initial=1))

        steps = most(np.ones(len(self.step_group), np.int64))
        return steps, most(np.diff(groups.option_offsets)[self.step_group]), steps


@dataclass(frozen=True, eq=False)
class Targets:
    """The labels of all rows as steps and options that lead to them.

    Examples
    --------
    >>> from hinet import Layers, Taxonomy, Traces
    >>> layers = Layers.of(Taxonomy.from_edges([("a", "c"), ("b", "c")]))
    >>> targets = Targets.of(Traces.encode(layers, ["c", "b"]))
    >>> len(targets), np.diff(targets.arrays.step_offsets).tolist()  # c: the root, a, b and c itself; b: the root and b
    (2, [4, 2])
    """

    layers: Layers
    arrays: TargetArrays

    def __post_init__(self) -> None:
        freeze(*self.arrays)

    def __len__(self) -> int:
        return len(self.arrays.row_offsets) - 1

    @classmethod
    def of(cls, traces: Traces) -> Targets:
        """Return the targets of traces: whole labels, or single paths if these are given.

        Raises
        ------
        LabelError
            If a row has some, but not all, of the paths of a label that has several; names the row.
        """
        layers = traces.layers
        ends = traces.end_nodes
        if layers.multilabel:
            return cls.of_sets(layers, ends.astype(np.int64), traces.row_offsets)
        row = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        if layers.taxonomy.is_tree:
            return cls.of_labels(layers, ends.astype(np.int64), traces.row_offsets)
        order = np.lexsort((ends, row))
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(ends[order]) != 0) | (np.diff(row[order]) != 0)
        entries = order[first]
        given = np.diff(np.append(np.flatnonzero(first), len(order)))
        row_offsets = offsets_of(np.bincount(row[entries], minlength=len(traces)))
        whole = given == paths_of(layers, ends[entries])
        partial = np.flatnonzero(~whole & (given > 1))
        if len(partial):
            entry = entries[partial[0]]
            name = quoted(layers.taxonomy.ids[int(ends[entry])])
            raise LabelError(
                f"row {int(row[entry])}: {int(given[partial[0]])} of the paths of label {name} are given; "
                "give one path, or the label alone for all of them"
            )
        distinct, which = np.unique(ends[entries[whole]], return_inverse=True)
        paths = entries[~whole]  # each a target of its own, after the labels
        target = np.empty(len(entries), np.int64)
        target[whole], target[~whole] = which, len(distinct) + np.arange(len(paths))
        choices = _choices_of_labels(layers, distinct), _choices_of_paths(traces, paths, len(distinct))
        start, leads_to = map(np.concatenate, zip(*choices, strict=True))
        return cls._of_choices(layers, row_offsets, target, start, leads_to, len(distinct) + len(paths))

    @classmethod
    def of_labels(cls, layers: Layers, nodes: Ints, row_offsets: Ints) -> Targets:
        """Return the targets of labels, given as positions in the taxonomy."""
        distinct, target = np.unique(nodes, return_inverse=True)
        return cls._of_choices(layers, row_offsets, target, *_choices_of_labels(layers, distinct), len(distinct))

    @classmethod
    def of_sets(cls, layers: Layers, nodes: Ints, row_offsets: Ints) -> Targets:
        """Return one target per row for its set of labels: one step per node of the row, including all ancestors.

        A step may have any number of choices: the nodes of the row below it, and the stop of a label.
        """
        width, rows = np.int64(len(layers.node)), len(row_offsets) - 1
        neuron_of, option_to = _neurons_of_nodes(layers), _options_to(layers)
        row = np.repeat(np.arange(rows), np.diff(row_offsets))
        distinct, label = np.unique(nodes, return_inverse=True)
        closure, counts = gather(*layers.taxonomy.ancestor_lists(distinct), label)
        reached = np.unique(np.repeat(row, counts) * width + neuron_of[closure])  # (row, neuron) as one number
        parent = np.append(0, layers.parent_lists[0])[reached % width]
        ends = np.unique(row * width + neuron_of[nodes])
        stop = layers.option_offsets[ends % width + 1] - 1  # the last option of its group
        start = np.concatenate([reached // width * width + parent, ends])
        option = np.concatenate([option_to[reached % width], stop])
        order = np.lexsort((option, start))
        start, option = start[order], option[order]
        steps = np.unique(np.concatenate([np.arange(rows) * width, reached]))
        arrays = TargetArrays(
            np.arange(rows + 1),
            np.arange(rows),
            np.ones(rows, np.float32),
            offsets_of(np.bincount(steps // width, minlength=rows)),
            steps % width,
            offsets_of(np.bincount(np.searchsorted(steps, start), minlength=len(steps))),
            option - layers.option_offsets[start % width],
            np.full(len(option), END),
        )
        return cls(layers, arrays)

    @classmethod
    def _of_choices(
        cls, layers: Layers, row_offsets: Ints, target: Ints, start: Ints, leads_to: Ints, targets: int
    ) -> Targets:
        """Return targets from the start and end of each choice, as ``target * neurons + neuron``, or END.

        Every step has a choice, so the choices determine the steps.
        """
        width = np.int64(len(layers.node))
        order = np.lexsort((leads_to % width, start))
        leads_to = leads_to[order]
        neuron = start[order] % width
        step_keys, choices = np.unique(start, return_counts=True)
        step_offsets = offsets_of(np.bincount(step_keys // width, minlength=targets))
        goes_on = leads_to != END
        option = layers.option_offsets[neuron + 1] - 1  # stop is the last option of its group
        option[goes_on] = layers.options_between(neuron[goes_on], leads_to[goes_on] % width)
        following = np.full(len(leads_to), END, np.int64)
        following[goes_on] = np.searchsorted(step_keys, leads_to[goes_on]) - step_offsets[leads_to[goes_on] // width]
        labels = np.diff(row_offsets)
        arrays = TargetArrays(
            np.array(row_offsets, np.int64),
            target.astype(np.int64),
            np.repeat(1.0 / np.maximum(labels, 1), labels).astype(np.float32),
            step_offsets,
            step_keys % width,
            offsets_of(choices),
            option - layers.option_offsets[neuron],
            following,
        )
        return cls(layers, arrays)

    def weighted(self, weights: NDArray[np.floating]) -> Targets:
        """Return the targets with the cost of every row multiplied by its weight."""
        share = self.arrays.entry_share * np.repeat(weights, np.diff(self.arrays.row_offsets)).astype(np.float32)
        return Targets(self.layers, self.arrays._replace(entry_share=share))

    def take(self, rows: Ints) -> Targets:
        """Return the targets of the chosen rows."""
        arrays = self.arrays
        entries, counts = gather(np.arange(len(arrays.entry_target)), arrays.row_offsets, rows)
        chosen = arrays._replace(
            row_offsets=offsets_of(counts),
            entry_target=arrays.entry_target[entries],
            entry_share=arrays.entry_share[entries],
        )
        return Targets(self.layers, chosen)

    def are_taken(self, counts: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return which targets have an end with rows, given the number of rows that take each option."""
        arrays = self.arrays
        step = np.repeat(np.arange(len(arrays.step_group)), np.diff(arrays.choice_offsets))  # (choices,)
        target = np.repeat(np.arange(len(arrays.step_offsets) - 1), np.diff(arrays.step_offsets))  # (steps,)
        ends = (arrays.choice_next == END) & (counts[self.choice_options()] > 0)
        taken = np.zeros(len(arrays.step_offsets) - 1, bool)
        taken[target[step[ends]]] = True
        return taken

    def option_counts(self) -> NDArray[np.float64]:
        """Return the number of rows that take each option, (options,).

        The options of a label in a group share a row evenly; with sets of labels each option counts fully.
        """
        arrays = self.arrays
        targets = len(arrays.step_offsets) - 1
        mass = np.bincount(arrays.entry_target, arrays.entry_share, targets)
        choices = np.diff(arrays.choice_offsets)
        step_mass = np.repeat(mass, np.diff(arrays.step_offsets)) / (1 if self.layers.multilabel else choices)
        counts = np.zeros(len(self.layers.option_neuron))
        np.add.at(counts, self.choice_options(), np.repeat(step_mass, choices))
        return counts

    def group_counts(self) -> NDArray[np.float64]:
        """Return the number of rows with sets of labels that reach each group, (neurons,)."""
        arrays = self.arrays
        mass = np.repeat(arrays.entry_share, np.diff(arrays.step_offsets)[arrays.entry_target])
        return np.bincount(arrays.step_group[arrays.entry_steps()[1]], mass, len(self.layers.node)).astype(np.float64)

    def choice_options(self) -> NDArray[np.int64]:
        """Return the option of every choice, counted over all groups, (choices,)."""
        arrays = self.arrays
        start = self.layers.option_offsets[arrays.step_group]
        return np.repeat(start, np.diff(arrays.choice_offsets)) + arrays.choice_option


def paths_of(layers: Layers, nodes: Ints) -> NDArray[np.float64]:
    """Return the number of paths of each label."""
    flat, offsets = layers.neurons_of
    neurons, counts = gather(flat, offsets, nodes)
    owner = np.repeat(np.arange(len(nodes)), counts)
    counts_of_neurons = np.minimum(layers.path_counts[neurons], MAX_EXACT)  # there may be more than a float can hold
    paths = np.where(layers.ends[neurons], counts_of_neurons, 0).astype(np.float64)
    return np.bincount(owner, paths, len(nodes)).astype(np.float64)


def _choices_of_labels(layers: Layers, labels: Ints) -> tuple[Ints, Ints]:
    """Return the choices between the root and the ends of each label, from the deepest layer up."""
    flat, offsets = layers.neurons_of
    ends, counts = gather(flat, offsets, labels)
    end_label = np.repeat(np.arange(len(labels)), counts)
    can_end = layers.ends[ends]
    ends, end_label = ends[can_end].astype(np.int64), end_label[can_end]
    width = np.int64(len(layers.node))
    parents, parent_offsets = layers.parent_lists
    end_keys = end_label * width + ends
    end_depth = layers.depth[ends]
    start, leads_to = [end_keys], [np.full(len(end_keys), END)]
    above = np.zeros(0, np.int64)
    for depth in range(int(end_depth.max(initial=-1)), -1, -1):
        keys = np.unique(np.concatenate([above, end_keys[end_depth == depth]]))
        neurons, splits = gather(parents, parent_offsets, keys % width)
        above = np.repeat(keys // width, splits) * width + neurons
        start.append(above)
        leads_to.append(np.repeat(keys, splits))
    return np.concatenate(start), np.concatenate(leads_to)


def _choices_of_paths(traces: Traces, chosen: Ints, first_target: int) -> tuple[Ints, Ints]:
    """Return the choices of the chosen traces, one option per step."""
    options, lengths = gather(*traces.options(), chosen)
    target = np.repeat(first_target + np.arange(len(chosen)), lengths)
    start = target * len(traces.layers.node) + traces.layers.option_parent[options]
    leads_to = np.roll(start, -1)
    leads_to[np.cumsum(lengths) - 1] = END
    return start, leads_to
