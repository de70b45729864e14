"""Transfer of output rows and labels to a changed taxonomy.

An output row belongs to an option: a node below its parent, or stopping there. It is transferred if the option still
exists; a moved node takes the row that it had below its old parent. A new node starts as the mean of its siblings with
a lower bias. Groups whose options did not change score as before, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hinet.engine.model.groups import Groups, LabelSpans
from hinet.taxonomy import STOP, Layers

NEW_OPTION_BIAS = -3.0  # bias of a new option relative to its siblings
INACTIVE_BIAS = -30.0  # bias of a new label in an expert on labels, so that it does not change pooled scores
NONE = -1  # instead of an old row: the option is new
CERTAIN = -2  # instead of an old row: the option had no siblings, so its group owned no weights

Ints = NDArray[np.int64]
Floating = TypeVar("Floating", bound=np.floating)


@dataclass(frozen=True)
class OutputTransfer:
    """The old output row of each new one."""

    rows: Ints  # (new rows,) old row, NONE or CERTAIN
    groups: Groups  # groups of the new layers

    @classmethod
    def between(cls, old: Layers, new: Layers, came_from: Ints) -> OutputTransfer:
        """Return the transfer between layers; ``came_from`` has the old node of each new one, or NONE."""
        old_groups, groups = Groups.of(old), Groups.of(new)
        old_row = np.full(len(old.option_neuron), CERTAIN, np.int64)
        old_row[old_groups.row_options()] = np.arange(old_groups.rows)
        neuron_from = _neurons_from(old, new, came_from)
        options = groups.row_options()
        parent = neuron_from[new.option_parent[options]]
        child = new.option_neuron[options]
        stops = child == STOP
        rows = np.full(len(options), NONE, np.int64)
        kept = stops & (parent >= 0) & old.ends[np.maximum(parent, 0)]  # the old neuron is a label as well
        rows[kept] = old_row[old.option_offsets[parent[kept] + 1] - 1]
        rows[~stops] = _child_rows(old, old_row, parent[~stops], neuron_from[child[~stops]])
        return cls(rows, groups)

    def transfer(self, array: NDArray[Floating], missing: float = 0.0) -> NDArray[Floating]:
        """Return the array for the new rows; a row of a new option is the mean of its group plus ``missing``."""
        moved = np.zeros((len(self.rows), *array.shape[1:]), array.dtype)
        kept = self.rows >= 0
        moved[kept] = array[self.rows[kept]]
        new = self.rows == NONE
        if new.any():
            group = self.groups.row_groups()
            count = np.maximum(np.bincount(group[kept], minlength=len(self.groups.first_row) - 1), 1)
            sums = np.zeros((len(count), *array.shape[1:]), array.dtype)
            changed = np.isin(group, group[new])
            np.add.at(sums, group[kept & changed], moved[kept & changed])
            shape = (-1, *[1] * (array.ndim - 1))
            moved[new] = sums[group[new]] / count[group[new]].reshape(shape).astype(array.dtype) + missing
        return moved


class Transfer(NamedTuple):
    """The old output rows and labels of a changed taxonomy."""

    rows: OutputTransfer
    old_groups: Groups
    label: Ints  # (new labels,) old label, or NONE
    old_labels: int  # number of old labels
    remembered: Ints  # (old labels with paths,) the new label of each old one, or NONE; also in DAGs

    @property
    def new_label(self) -> Ints:
        """(old labels,) The new label of each old one, or NONE."""
        return _inverse(self.label, self.old_labels)

    @property
    def has_labels(self) -> bool:
        """Whether both taxonomies have labels that experts can pool: DAGs do not."""
        return len(self.label) > 0 and self.old_labels > 0

    @classmethod
    def between(cls, old: Layers, old_spans: LabelSpans, new: Layers, spans: LabelSpans, came_from: Ints) -> Transfer:
        """Return the transfer between layers; ``came_from`` has the old node of each new one, or NONE."""
        rows, old_paths = OutputTransfer.between(old, new, came_from), old_spans.paths
        label = _old_labels(old, old.node[old_spans.neuron].astype(np.int64), came_from[new.node[spans.neuron]])
        remembered = _inverse(_old_labels(old, old_paths.node, came_from[spans.paths.node]), len(old_paths.node))
        return cls(rows, Groups.of(old), label, len(old_spans.neuron), remembered)


def _old_labels(old: Layers, labels: Ints, nodes: Ints) -> Ints:
    """Return the old label at each old node, or NONE; ``labels`` are the nodes of all old labels."""
    old_label = np.full(len(old.taxonomy) + 1, NONE, np.int64)
    old_label[labels] = np.arange(len(labels))
    old_label[-1] = NONE
    return old_label[nodes]


def _inverse(label: Ints, count: int) -> Ints:
    """(count,) Return the new label of each old one, given the old label of each new one."""
    new = np.full(count, NONE, np.int64)
    new[label[label >= 0]] = np.flatnonzero(label >= 0)
    return new


def _neurons_from(old: Layers, new: Layers, came_from: Ints) -> Ints:
    """Return the old neuron of each new one: of the same node, at the same depth if there is one."""
    node = came_from[new.node]
    node[0] = NONE  # the roots correspond, whatever their names
    flat, offsets = old.neurons_of
    old_neuron = np.full(len(node), NONE, np.int64)
    known = np.flatnonzero((node >= 0) & (np.diff(offsets)[np.maximum(node, 0)] > 0))
    old_neuron[known] = flat[offsets[node[known]]]
    depths = np.int64(max(old.height, new.height) + 1)
    keys = old.node.astype(np.int64) * depths + old.depth
    order = np.argsort(keys, kind="stable")
    wanted = node[known] * depths + new.depth[known]
    index = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    same = keys[order[index]] == wanted
    old_neuron[known[same]] = order[index[same]]
    old_neuron[0] = 0
    return old_neuron


def _child_rows(old: Layers, old_row: Ints, parent: Ints, target: Ints) -> Ints:
    """Return the old rows of going to old neurons: from the same parent, or else from their old one."""
    child_row = np.full(len(target), NONE, np.int64)
    known = np.flatnonzero(target > 0)
    lists, offsets = old.parent_lists
    stays = old.children_at(parent[known], old.node[target[known]]) == target[known]
    above = np.where(stays, parent[known], lists[offsets[target[known]]])
    child_row[known] = old_row[old.options_between(above, target[known])]
    child_row[target == 0] = CERTAIN  # the old root is now below another one: all rows were below it
    return child_row
