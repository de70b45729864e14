"""What rows are trained towards: labels as the options that lead to them, with every path of a label at once.

A label of a DAG may have more paths than can be listed. Its target is the part of the layers between the root and the
neurons the label ends at: one step for each neuron on the way, with the options of its group that lead on to the
label. The probability of the label, the sum over all its traces, is then a forward sum over these steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.errors import LabelError, quoted
from hinet.ragged import Ints, freeze, gather, offsets_of, positions
from hinet.taxonomy import Layers

END = -1  # what a choice leads to when it stops at the label


class TargetArrays(NamedTuple):
    """Targets as kernels read them: rows -> entries -> targets -> steps -> choices."""

    row_offsets: NDArray[np.int64]  # (n + 1,) entries of each row
    entry_target: NDArray[np.int64]  # (entries,) one for each label of a row
    entry_share: NDArray[np.float32]  # (entries,) weight of the label in the cost
    step_offsets: NDArray[np.int64]  # (targets + 1,) steps of each target, parents before children
    step_group: NDArray[np.int64]  # (steps,) the neuron whose group is chosen from
    choice_offsets: NDArray[np.int64]  # (steps + 1,) the options that lead to the label
    choice_option: NDArray[np.int64]  # (choices,) position in the group
    choice_next: NDArray[np.int64]  # (choices,) step the option leads to, counted within the target, or END

    def end_neurons(self) -> NDArray[np.int64]:
        """Return the neuron where each target of a tree ends: that of its last step."""
        return self.step_group[self.step_offsets[1:] - 1]


@dataclass(frozen=True, eq=False)
class Targets:
    """The labels of all rows, each as the steps and options that lead to it.

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
        """Return the targets of traces: whole labels, or single paths where these were given.

        Raises
        ------
        LabelError
            If a row has some, but not all, of the paths of a label that has several; names the row.
        """
        layers = traces.layers
        ends = traces.end_nodes
        row = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        if layers.taxonomy.is_tree:
            return cls.of_labels(layers, ends.astype(np.int64), traces.row_offsets)
        order = np.lexsort((ends, row))
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(ends[order]) != 0) | (np.diff(row[order]) != 0)
        entries = order[first]
        given = np.diff(np.append(np.flatnonzero(first), len(order)))
        row_offsets = offsets_of(np.bincount(row[entries], minlength=len(traces)))
        whole = given == _paths_of(layers, ends[entries])
        partial = np.flatnonzero(~whole & (given > 1))
        if len(partial):
            entry = entries[partial[0]]
            name = quoted(layers.taxonomy.ids[int(ends[entry])])
            raise LabelError(
                f"row {int(row[entry])}: {int(given[partial[0]])} of the paths of label {name} are given; "
                "give one path, or the label alone for all of them"
            )
        return cls._assembled(layers, traces, entries, whole, row_offsets)

    @classmethod
    def of_labels(cls, layers: Layers, nodes: Ints, row_offsets: NDArray[np.int64]) -> Targets:
        """Return the targets of labels, given as positions in the taxonomy, all rows one after the other."""
        distinct, target = np.unique(nodes, return_inverse=True)
        steps = _whole_labels(layers, distinct)
        return cls._with_shares(layers, row_offsets, target, steps)

    @classmethod
    def _assembled(cls, layers: Layers, traces: Traces, entries: Ints, whole: Ints, row_offsets: Ints) -> Targets:
        """Join targets that are whole labels with targets that are single paths."""
        distinct, which = np.unique(traces.end_nodes[entries[whole]], return_inverse=True)
        target = np.empty(len(entries), np.int64)
        target[whole] = which
        paths = entries[~whole]
        target[~whole] = len(distinct) + np.arange(len(paths))
        return cls._with_shares(
            layers, row_offsets, target, _joined(_whole_labels(layers, distinct), _chains(traces, paths))
        )

    @classmethod
    def _with_shares(cls, layers: Layers, row_offsets: Ints, target: Ints, steps: _Steps) -> Targets:
        counts = np.diff(row_offsets)
        share = np.repeat(1.0 / np.maximum(counts, 1), counts).astype(np.float32)
        return cls(layers, TargetArrays(np.array(row_offsets, np.int64), target.astype(np.int64), share, *steps))

    def weighted(self, weights: NDArray[np.floating]) -> Targets:
        """Return the same targets with the cost of every row times its weight."""
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

    def option_counts(self) -> NDArray[np.float64]:
        """Return how much of the rows takes each option, (options,); a label's options of a group share it evenly."""
        arrays = self.arrays
        targets = len(arrays.step_offsets) - 1
        mass = np.bincount(arrays.entry_target, arrays.entry_share, targets)
        choices = np.diff(arrays.choice_offsets)
        step_mass = np.repeat(mass, np.diff(arrays.step_offsets)) / choices
        counts = np.zeros(len(self.layers.option_neuron))
        np.add.at(counts, self.choice_options(), np.repeat(step_mass, choices))
        return counts

    def row_steps(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the row and the number of every step on the way of targets, one a row."""
        arrays = self.arrays
        lengths = np.diff(arrays.step_offsets)[arrays.entry_target]
        row = np.repeat(np.arange(len(self)), lengths)
        return row, positions(arrays.step_offsets[arrays.entry_target], lengths)

    def choice_options(self) -> NDArray[np.int64]:
        """Return the option of every choice, counted over all groups, (choices,)."""
        arrays = self.arrays
        start = self.layers.option_offsets[arrays.step_group]
        return np.repeat(start, np.diff(arrays.choice_offsets)) + arrays.choice_option


class _Steps(NamedTuple):
    """The steps of several targets."""

    step_offsets: NDArray[np.int64]
    step_group: NDArray[np.int64]
    choice_offsets: NDArray[np.int64]
    choice_option: NDArray[np.int64]
    choice_next: NDArray[np.int64]


def _paths_of(layers: Layers, nodes: Ints) -> NDArray[np.float64]:
    """Return the number of paths of each label."""
    flat, offsets = layers.neurons_of
    neurons, counts = gather(flat, offsets, nodes)
    owner = np.repeat(np.arange(len(nodes)), counts)
    paths = np.where(layers.ends[neurons], layers.path_counts[neurons], 0).astype(np.float64)
    return np.bincount(owner, paths, len(nodes)).astype(np.float64)


def _whole_labels(layers: Layers, labels: Ints) -> _Steps:
    """Return for each label the neurons between the root and its ends: found from the deepest layer up."""
    flat, offsets = layers.neurons_of
    ends, counts = gather(flat, offsets, labels)
    end_label = np.repeat(np.arange(len(labels)), counts)
    can_end = layers.ends[ends]
    ends, end_label = ends[can_end].astype(np.int64), end_label[can_end]
    width = np.int64(len(layers.node))
    parents, parent_offsets = layers.parent_lists
    end_keys = end_label * width + ends
    end_depth = layers.depth[ends]
    steps: list[NDArray[np.int64]] = []  # of each layer, as label * width + neuron
    edges: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []  # keys of the steps they lead from and to
    from_below = np.zeros(0, np.int64)
    for depth in range(int(end_depth.max(initial=-1)), -1, -1):
        keys = np.unique(np.concatenate([from_below, end_keys[end_depth == depth]]))
        steps.append(keys)
        label, neuron = keys // width, keys % width
        above, splits = gather(parents, parent_offsets, neuron)
        from_below = np.repeat(label, splits) * width + above
        edges.append((from_below, np.repeat(keys, splits)))
    step_keys = np.sort(np.concatenate([np.zeros(0, np.int64), *steps]))
    start = np.concatenate([end_keys, *[edge[0] for edge in edges]])
    leads_to = np.concatenate([np.full(len(end_keys), END), *[edge[1] for edge in edges]])
    return _sorted_choices(layers, step_keys, start, leads_to, len(labels))


def _sorted_choices(layers: Layers, step_keys: Ints, start: Ints, leads_to: Ints, targets: int) -> _Steps:
    """Return the steps with their choices, from the keys of the steps each choice leads from and to."""
    width = np.int64(len(layers.node))
    order = np.lexsort((leads_to % width, start))
    start, leads_to = start[order], leads_to[order]
    stops = leads_to == END
    neuron = start % width
    option = layers.option_offsets[neuron + 1] - 1  # stop is the last of its group
    option[~stops] = layers.options_between(neuron[~stops], leads_to[~stops] % width)
    step_offsets = offsets_of(np.bincount(step_keys // width, minlength=targets))
    step = np.searchsorted(step_keys, leads_to[~stops])
    following = np.full(len(leads_to), END, np.int64)
    following[~stops] = step - step_offsets[leads_to[~stops] // width]
    choices = np.bincount(np.searchsorted(step_keys, start), minlength=len(step_keys))
    return _Steps(
        step_offsets, step_keys % width, offsets_of(choices), option - layers.option_offsets[neuron], following
    )


def _chains(traces: Traces, chosen: Ints) -> _Steps:
    """Return each of the chosen traces as a target of its own: one option a step."""
    options, offsets = traces.options()
    flat, lengths = gather(options, offsets, chosen)
    group = traces.layers.option_parent[flat].astype(np.int64)
    step_offsets = offsets_of(lengths)
    following = np.arange(len(flat)) - np.repeat(step_offsets[:-1], lengths) + 1
    following[step_offsets[1:] - 1] = END
    option = flat - traces.layers.option_offsets[group]
    return _Steps(step_offsets, group, np.arange(len(flat) + 1), option, following)


def _joined(first: _Steps, second: _Steps) -> _Steps:
    return _Steps(
        offsets_of(np.concatenate([np.diff(first.step_offsets), np.diff(second.step_offsets)])),
        np.concatenate([first.step_group, second.step_group]),
        offsets_of(np.concatenate([np.diff(first.choice_offsets), np.diff(second.choice_offsets)])),
        np.concatenate([first.choice_option, second.choice_option]),
        np.concatenate([first.choice_next, second.choice_next]),
    )
