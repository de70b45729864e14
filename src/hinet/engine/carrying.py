"""A model carried over to a changed taxonomy: what stays keeps its weights, what is new starts from its siblings.

A row of output weights belongs to an option: a node below its parent, or stopping there. It is carried over if the
option is still there; a node that moved takes the row it had below its old parent. A new node starts as the mean of its
siblings, a good deal less likely than they are, and learns from rows to come. Groups whose options did not change score
as before, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hinet.engine.experts import DeepExpert, Experts, LabelSpans, Prototypes, WideExpert
from hinet.engine.groups import Groups
from hinet.engine.model import FusedModel
from hinet.ragged import offsets_of
from hinet.taxonomy import STOP, Layers

UNLIKELY = -3.0  # bias of a new option against its siblings
ASLEEP = -30.0  # bias of a new label in an expert on labels, whose sums it must not change

NONE = -1  # in place of an old row: the option is new
CERTAIN = -2  # or it was the only one of its group, which owns no weights
Ints = NDArray[np.int64]
Floating = TypeVar("Floating", bound=np.floating)


@dataclass(frozen=True)
class Carried:
    """Where the output rows of new layers come from: an old row each, or none, then the mean of its group."""

    rows: Ints  # (new rows,) old row, or NONE or CERTAIN
    groups: Groups  # of the new layers

    @classmethod
    def between(cls, old: Layers, new: Layers, came_from: Ints) -> Carried:
        """Return where rows come from; ``came_from`` gives the old node of each new one, or NONE."""
        old_groups, groups = Groups.of(old), Groups.of(new)
        old_row = np.full(len(old.option_neuron), CERTAIN, np.int64)
        old_row[old_groups.row_options()] = np.arange(old_groups.rows)
        neuron_from = _neurons_from(old, new, came_from)
        options = groups.row_options()
        parent = neuron_from[new.option_parent[options]]
        child = new.option_neuron[options]
        stops = child == STOP
        rows = np.full(len(options), NONE, np.int64)
        rows[stops] = _stop_rows(old, old_row, parent[stops])
        real = np.flatnonzero(~stops)
        target = neuron_from[child[real]]
        rows[real] = _child_rows(old, old_row, parent[real], target)
        return cls(rows, groups)

    def carry(self, array: NDArray[Floating], missing: float = 0.0) -> NDArray[Floating]:
        """Return the array of the new rows; one without an old row is the mean of its group, plus ``missing``."""
        found = np.zeros((len(self.rows), *array.shape[1:]), array.dtype)
        kept = self.rows >= 0
        found[kept] = array[self.rows[kept]]
        new = self.rows == NONE
        if new.any():
            group = self.groups.row_groups()
            count = np.maximum(np.bincount(group[kept], minlength=len(self.groups.first_row) - 1), 1)
            sums = np.zeros((len(count), *array.shape[1:]), array.dtype)
            changed = np.isin(group, group[new])
            np.add.at(sums, group[kept & changed], found[kept & changed])
            shape = (-1, *[1] * (array.ndim - 1))
            found[new] = sums[group[new]] / count[group[new]].reshape(shape).astype(array.dtype) + missing
        return found


def carried(model: FusedModel, layers: Layers, came_from: Ints) -> FusedModel:
    """Return the model over other layers; ``came_from`` gives the old node of each new one, or -1."""
    rows = Carried.between(model.layers, layers, came_from)
    experts = model.experts
    deep = experts.deep.with_outputs(rows.carry(experts.deep.output_weights()), rows.carry(experts.deep.bias, UNLIKELY))
    wide = _carried_wide(experts.wide, model.groups, rows)
    spans = LabelSpans.of(layers) if layers.taxonomy.is_tree else LabelSpans.none(layers)
    label = _labels_from(model.layers, experts.spans, layers, spans, came_from)
    has_labels = len(spans.neuron) > 0 and len(experts.spans.neuron) > 0
    features = len(experts.deep.embedding)
    flat = _carried_flat(experts.flat, label) if has_labels else DeepExpert.none(features, len(spans.neuron))
    known = _carried_prototypes(experts.prototypes, label, len(experts.spans.neuron))
    mix = experts.mix.copy()
    if not has_labels and mix[:2].sum() > 0:  # what experts on labels counted for goes to the others
        mix[:2] *= mix.sum() / mix[:2].sum()
        mix[2:] = 0
    slope = model.slope if layers.is_tree else 1.0
    return replace(model, layers=layers, experts=Experts(deep, wide, flat, known, spans, mix), slope=slope)


def _neurons_from(old: Layers, new: Layers, came_from: Ints) -> Ints:
    """Return the old neuron of each new one: of the same node, at the same depth where there is one."""
    node = came_from[new.node]
    node[0] = NONE  # the roots belong together, whatever they are called
    flat, offsets = old.neurons_of
    found = np.full(len(node), NONE, np.int64)
    known = np.flatnonzero((node >= 0) & (np.diff(offsets)[np.maximum(node, 0)] > 0))
    found[known] = flat[offsets[node[known]]]
    depths = np.int64(max(old.height, new.height) + 1)
    keys = old.node.astype(np.int64) * depths + old.depth
    order = np.argsort(keys, kind="stable")
    wanted = node[known] * depths + new.depth[known]
    place = np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)
    same = keys[order[place]] == wanted
    found[known[same]] = order[place[same]]
    found[0] = 0
    return found


def _stop_rows(old: Layers, old_row: Ints, parent: Ints) -> Ints:
    """Return the old rows of stopping at old neurons, NONE where there is none."""
    known = (parent >= 0) & old.ends[np.maximum(parent, 0)]
    found = np.full(len(parent), NONE, np.int64)
    found[known] = old_row[old.option_offsets[parent[known] + 1] - 1]
    return found


def _child_rows(old: Layers, old_row: Ints, parent: Ints, target: Ints) -> Ints:
    """Return the old rows of going to old neurons: from the same parent, or from the one they had."""
    found = np.full(len(target), NONE, np.int64)
    known = np.flatnonzero(target > 0)
    lists, offsets = old.parent_lists
    neurons = np.int64(len(old.node))
    edges = np.sort(old.option_parent * neurons + old.option_neuron)
    wanted = parent[known] * neurons + target[known]
    stays = edges[np.minimum(np.searchsorted(edges, wanted), len(edges) - 1)] == wanted
    above = np.where(stays, parent[known], lists[offsets[target[known]]])
    found[known] = old_row[old.options_between(above, target[known])]
    found[target == 0] = CERTAIN  # the old root, below another one now: all rows were below it
    return found


def _carried_wide(wide: WideExpert, old: Groups, rows: Carried) -> WideExpert:
    """Return the weights of the rows that are carried over, sorted by group and feature."""
    feature = np.repeat(wide.feature, np.diff(wide.weight_offsets)).astype(np.int64)
    order = np.argsort(wide.weights["row"], kind="stable")
    starts = offsets_of(np.bincount(wide.weights["row"], minlength=old.rows))
    kept = np.flatnonzero(rows.rows >= 0)
    lengths = np.diff(starts)[rows.rows[kept]]
    places = np.repeat(starts[rows.rows[kept]] - offsets_of(lengths)[:-1], lengths) + np.arange(lengths.sum())
    picked = order[places]
    new_row = np.repeat(kept, lengths)
    bias = rows.carry(wide.bias, UNLIKELY)
    return WideExpert.of(wide.known_as, feature[picked], new_row, wide.weights["weight"][picked], rows.groups, bias)


def _labels_from(old: Layers, old_spans: LabelSpans, new: Layers, spans: LabelSpans, came_from: Ints) -> Ints:
    """Return the old label of each new one, or NONE."""
    place = np.full(len(old.taxonomy) + 1, NONE, np.int64)
    place[old.node[old_spans.neuron]] = np.arange(len(old_spans.neuron))
    place[-1] = NONE
    return place[came_from[new.node[spans.neuron]]]


def _carried_flat(flat: DeepExpert, label: Ints) -> DeepExpert:
    kept = label >= 0
    weight = np.zeros((len(label), flat.weight.shape[1]), np.float32)
    weight[kept] = flat.output_weights(label[kept])
    bias = np.full(len(label), ASLEEP, np.float32)
    bias[kept] = flat.bias[label[kept]]
    return flat.with_outputs(weight, bias)


def _carried_prototypes(known: Prototypes, label: Ints, old_labels: int) -> Prototypes:
    """Return the prototypes of the labels that stayed."""
    new_label = np.full(old_labels, NONE, np.int64)
    new_label[label[label >= 0]] = np.flatnonzero(label >= 0)
    kept = new_label[known.label] >= 0
    feature = np.repeat(np.arange(len(known.offsets) - 1), np.diff(known.offsets))[kept]
    counts = np.bincount(feature, minlength=len(known.offsets) - 1)
    numbers = new_label[known.label[kept]].astype(np.int32)
    order = np.lexsort((numbers, feature))
    return Prototypes(offsets_of(counts), numbers[order], known.value[kept][order])


def awake(flat: DeepExpert, labels: Ints) -> DeepExpert:
    """Return an expert to train whose labels that were asleep start as the mean of the others, less likely."""
    flat = flat.in_floats()
    asleep = flat.bias <= ASLEEP
    waking = labels[asleep[labels]]
    if len(waking) and not asleep.all():
        flat.weight[waking] = flat.weight[~asleep].mean(0)
        flat.bias[waking] = flat.bias[~asleep].mean() + UNLIKELY
    return flat
