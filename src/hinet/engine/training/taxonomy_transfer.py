"""A model transferred to a changed taxonomy: what stays keeps its weights, what is new starts from its siblings.

A row of output weights belongs to an option: a node below its parent, or stopping there. It is transferred if the
option is still there; a node that moved takes the row it had below its old parent. A new node starts as the mean of its
siblings, a good deal less likely than they are, and learns from rows to come. Groups whose options did not change score
as before, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.data.traces import MAX_PATHS_PER_LABEL
from hinet.engine.model.expert_files import SCORES_LABELS
from hinet.engine.model.experts import DEEP, DeepExpert, Experts, Prototypes, WideExpert
from hinet.engine.model.fused import FusedModel
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.search.scoring_kernels import group_logits
from hinet.ragged import Bools, gather, group_by, offsets_of
from hinet.taxonomy import STOP, Layers

NEW_OPTION_BIAS = -3.0  # bias of a new option against its siblings
INACTIVE_BIAS = -30.0  # bias of a new label in an expert on labels, whose sums it must not change

NONE = -1  # in place of an old row: the option is new
CERTAIN = -2  # or it was the only one of its group, which owns no weights
Ints = NDArray[np.int64]
Floating = TypeVar("Floating", bound=np.floating)
TRACES_OF_A_ROW = 16  # answers that an example row is taught by
LEAST_MASS = 1e-3  # of a row, for a group to learn from it
MOST_CELLS = 4_000_000  # logits of a group that it learns from: 32 MB
NEARNESS = 3e-4  # keeps weights near where they were; far smaller ones fit the example rows alone
MOST_STEPS = 30
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class OutputTransfer:
    """Where the output rows of new layers come from: an old row each, or none, then the mean of its group."""

    rows: Ints  # (new rows,) old row, or NONE or CERTAIN
    groups: Groups  # of the new layers

    @classmethod
    def between(cls, old: Layers, new: Layers, came_from: Ints) -> OutputTransfer:
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

    def transfer(self, array: NDArray[Floating], missing: float = 0.0) -> NDArray[Floating]:
        """Return the array of the new rows; one without an old row is the mean of its group, plus ``missing``."""
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


def transferred(model: FusedModel, layers: Layers, came_from: Ints) -> FusedModel:
    """Return the model over other layers; ``came_from`` gives the old node of each new one, or -1."""
    rows = OutputTransfer.between(model.layers, layers, came_from)
    experts = model.experts
    deep = experts.deep.with_outputs(
        rows.transfer(experts.deep.output_weights()), rows.transfer(experts.deep.bias, NEW_OPTION_BIAS)
    )
    wide = _transferred_wide(experts.wide, model.groups, rows)
    spans = LabelSpans.of(layers)
    label = _labels_from(model.layers, experts.spans, layers, spans, came_from)
    has_labels = len(spans.neuron) > 0 and len(experts.spans.neuron) > 0
    features = len(experts.deep.embedding)
    flat = _transferred_flat(experts.flat, label) if has_labels else DeepExpert.none(features, len(spans.neuron))
    known = _transferred_prototypes(experts.prototypes, label, len(experts.spans.neuron))
    mix = experts.mix.copy()
    if not has_labels and mix[~SCORES_LABELS].sum() > 0:  # what experts on labels counted for goes to the others
        mix[~SCORES_LABELS] *= mix.sum() / mix[~SCORES_LABELS].sum()
        mix[SCORES_LABELS] = 0
    moved = replace(model, layers=layers, experts=Experts(deep, wide, flat, known, spans, mix))
    keeps = layers.taxonomy.is_tree or layers.multilabel
    return moved if keeps else replace(moved, odds_scale=1.0, trust=None)


def _neurons_from(old: Layers, new: Layers, came_from: Ints) -> Ints:
    """Return the old neuron of each new one: of the same node, at the same depth where there is one."""
    node = came_from[new.node]
    node[0] = NONE  # the roots belong together, whatever they are called
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


def _stop_rows(old: Layers, old_row: Ints, parent: Ints) -> Ints:
    """Return the old rows of stopping at old neurons, NONE where there is none."""
    known = (parent >= 0) & old.ends[np.maximum(parent, 0)]
    stop_row = np.full(len(parent), NONE, np.int64)
    stop_row[known] = old_row[old.option_offsets[parent[known] + 1] - 1]
    return stop_row


def _child_rows(old: Layers, old_row: Ints, parent: Ints, target: Ints) -> Ints:
    """Return the old rows of going to old neurons: from the same parent, or from the one they had."""
    child_row = np.full(len(target), NONE, np.int64)
    known = np.flatnonzero(target > 0)
    lists, offsets = old.parent_lists
    stays = old.children_at(parent[known], old.node[target[known]]) == target[known]
    above = np.where(stays, parent[known], lists[offsets[target[known]]])
    child_row[known] = old_row[old.options_between(above, target[known])]
    child_row[target == 0] = CERTAIN  # the old root, below another one now: all rows were below it
    return child_row


def _transferred_wide(wide: WideExpert, old: Groups, rows: OutputTransfer) -> WideExpert:
    """Return the weights of the rows that are transferred, sorted by group and feature."""
    feature = np.repeat(wide.feature, np.diff(wide.weight_offsets)).astype(np.int64)
    kept = np.flatnonzero(rows.rows >= 0)
    picked, lengths = gather(*group_by(wide.weights["row"], old.rows), rows.rows[kept])
    new_row = np.repeat(kept, lengths)
    bias = rows.transfer(wide.bias, NEW_OPTION_BIAS)
    return WideExpert.of(wide.feature_rank, feature[picked], new_row, wide.weights["weight"][picked], rows.groups, bias)


def _labels_from(old: Layers, old_spans: LabelSpans, new: Layers, spans: LabelSpans, came_from: Ints) -> Ints:
    """Return the old label of each new one, or NONE."""
    old_label = np.full(len(old.taxonomy) + 1, NONE, np.int64)
    old_label[old.node[old_spans.neuron]] = np.arange(len(old_spans.neuron))
    old_label[-1] = NONE
    return old_label[came_from[new.node[spans.neuron]]]


def _transferred_flat(flat: DeepExpert, label: Ints) -> DeepExpert:
    kept = label >= 0
    weight = np.zeros((len(label), flat.weight.shape[1]), np.float32)
    weight[kept] = flat.output_weights(label[kept])
    bias = np.full(len(label), INACTIVE_BIAS, np.float32)
    bias[kept] = flat.bias[label[kept]]
    return flat.with_outputs(weight, bias)


def _transferred_prototypes(known: Prototypes, label: Ints, old_labels: int) -> Prototypes:
    """Return the prototypes of the labels that stayed."""
    new_label = np.full(old_labels, NONE, np.int64)
    new_label[label[label >= 0]] = np.flatnonzero(label >= 0)
    kept = new_label[known.label] >= 0
    feature = np.repeat(np.arange(len(known.offsets) - 1), np.diff(known.offsets))[kept]
    counts = np.bincount(feature, minlength=len(known.offsets) - 1)
    numbers = new_label[known.label[kept]].astype(np.int32)
    order = np.lexsort((numbers, feature))
    return Prototypes(offsets_of(counts), numbers[order], known.value[kept][order])


def activate(flat: DeepExpert, labels: Ints) -> DeepExpert:
    """Return an expert to train whose labels that were asleep start as the mean of the others, less likely."""
    flat = flat.in_floats()
    inactive = flat.bias <= INACTIVE_BIAS
    activated = labels[inactive[labels]]
    if len(activated) and not inactive.all():
        flat.weight[activated] = flat.weight[~inactive].mean(0)
        flat.bias[activated] = flat.bias[~inactive].mean() + NEW_OPTION_BIAS
    return flat


class OutputRows(NamedTuple):
    """The weights and biases of output rows."""

    weight: NDArray[np.float32]  # (rows, k)
    bias: NDArray[np.float32]  # (rows,)


class ScoredRows(NamedTuple):
    """What a group's options score for some rows, and the hidden units that the output rows read."""

    logits: NDArray[np.floating]  # (n, options)
    hidden: NDArray[np.floating]  # (n, k)


Scorer: TypeAlias = Callable[[int, Ints], ScoredRows]  # of a group, for chosen rows


def learning_rows(rows: OutputTransfer, layers: Layers, changed: Ints) -> Bools:
    """Return which output rows of new layers learn, given the nodes whose place or labels changed.

    They are those of the options that lead to such nodes, and of options beside these that had no choice before.
    """
    child = layers.option_neuron[rows.groups.row_options()]
    node = np.where(child == STOP, -1, layers.node[np.maximum(child, 0)])
    leads = np.isin(node, changed)
    group = rows.groups.row_groups()
    learns: Bools = leads | ((rows.rows == CERTAIN) & np.isin(group, group[leads]))
    return learns


def taught(model: FusedModel, learns: Bools, targets: sp.csc_array, rows: SparseMatrix) -> FusedModel:
    """Return a model whose output rows that learn were fitted to targets on example rows."""
    experts, rows = model.experts, model.read(rows)
    if experts.mix[DEEP] == 0:  # an expert that did not count starts from nothing, so that it changes nothing else
        shape = experts.deep.weight.shape
        nothing = experts.deep.with_outputs(np.zeros(shape, np.float32), np.zeros(len(experts.deep.bias), np.float32))
        mix = experts.mix.copy()
        mix[DEEP] = 1
        experts = experts._replace(deep=nothing, mix=mix)

    def score(group: int, chosen: Ints) -> ScoredRows:
        return ScoredRows(*group_logits(rows, chosen, group, model.groups, experts))

    outputs = OutputRows(experts.deep.output_weights(), experts.deep.bias)
    fitted = relearned(outputs, learns, targets, model.layers, score, float(experts.mix[DEEP]))
    deep = experts.deep.with_outputs(fitted.weight, fitted.bias)
    return replace(model, experts=experts._replace(deep=deep))


def option_targets(answers: Traces, layers: Layers, new_position: Ints) -> sp.csc_array:
    """Return how probable it is that each row takes each option of new layers, (n, options), by its old traces.

    A trace that is still there keeps its probability. One that is gone shares it among all traces of its label; if the
    label is gone, so is its probability.
    """
    assert answers.log_p is not None
    row = np.repeat(np.arange(len(answers)), np.diff(answers.row_offsets))
    chance = np.exp(answers.log_p)
    neurons, stays = _followed(answers, layers, new_position)
    offsets = offsets_of(np.diff(answers.offsets)[stays])
    same = Traces(layers, np.arange(len(offsets)), offsets, neurons[np.repeat(stays, np.diff(answers.offsets))])
    lost = np.flatnonzero(~stays)
    node = new_position[answers.end_nodes[lost]]
    able = (node >= 0) & traceable(layers)[node]
    lost, node = lost[able], node[able]
    others = Traces.of_nodes(layers, node)
    ways = np.diff(others.row_offsets)
    owner = np.concatenate([row[stays], np.repeat(row[lost], ways)])
    weight = np.concatenate([chance[stays], np.repeat(chance[lost] / np.maximum(ways, 1), ways)])
    options, bounds = Traces.joined(layers, [same, others]).options()
    entries = np.repeat(weight, np.diff(bounds)), (np.repeat(owner, np.diff(bounds)), options)
    return sp.csc_array(entries, shape=(len(answers), len(layers.option_neuron)))


def _followed(answers: Traces, layers: Layers, new_position: Ints) -> tuple[NDArray[np.int32], Bools]:
    """Return the neurons of old traces in new layers, and which traces are still there."""
    nodes = new_position[answers.layers.node[answers.neurons]]
    neurons = np.zeros(len(nodes), np.int32)
    lengths = np.diff(answers.offsets)
    above = np.zeros(len(lengths), np.int64)
    for step in range(int(lengths.max(initial=0))):
        live = np.flatnonzero((lengths > step) & (above >= 0))
        index = answers.offsets[live] + step
        child = layers.children_at(above[live], nodes[index])
        above[live] = np.where(nodes[index] >= 0, child, -1)
        neurons[index] = np.maximum(above[live], 0)
    return neurons, (above >= 0) & layers.ends[above]


def traceable(layers: Layers) -> Bools:
    """(nodes,) Whether the traces of a label can be listed."""
    flat, offsets = layers.neurons_of
    node = np.repeat(np.arange(len(layers.taxonomy)), np.diff(offsets))
    ends = layers.ends[flat]
    ways = np.minimum(layers.path_counts[flat], MAX_PATHS_PER_LABEL + 1).astype(np.float64)
    paths = np.bincount(node[ends], ways[ends], len(layers.taxonomy))
    is_listable: Bools = (paths > 0) & (paths <= MAX_PATHS_PER_LABEL)
    return is_listable


def relearned(
    outputs: OutputRows, learns: Bools, targets: sp.csc_array, layers: Layers, score: Scorer, part: float
) -> OutputRows:
    """Return output rows of which those that learn are fitted to targets, group by group; ``part`` scales logits."""
    weight, bias = outputs.weight.copy(), outputs.bias.copy()
    groups = Groups.of(layers)
    for group in np.unique(groups.row_groups()[learns]).tolist():
        low, high = int(groups.first_row[group]), int(groups.first_row[group + 1])
        chosen = np.flatnonzero(learns[low:high])
        mass = targets[:, int(layers.option_offsets[group]) : int(layers.option_offsets[group + 1])]
        rows = _telling_rows(mass, chosen)
        if not len(rows):
            continue
        aims = mass.tocsr()[rows].toarray()
        scored = score(group, rows)
        change = _fitted(scored, aims, chosen, part)
        weight[low + chosen] += change.weight
        bias[low + chosen] += change.bias
    return OutputRows(weight, bias)


def _telling_rows(mass: sp.csc_array, chosen: Ints) -> Ints:
    """Return the rows that a group learns from: those that reach it; of too many, first those of the chosen options."""
    total, own = np.asarray(mass.sum(axis=1)).ravel(), np.asarray(mass[:, chosen].sum(axis=1)).ravel()
    rows = np.flatnonzero(total >= LEAST_MASS)
    most = max(1, MOST_CELLS // mass.shape[1])
    if len(rows) <= most:
        return rows
    rows = rows[np.argsort(-own[rows], kind="stable")]
    others = rows[most // 2 :]
    evenly = np.linspace(0, len(others) - 1, most - most // 2).astype(np.int64)
    return np.sort(np.concatenate([rows[: most // 2], others[evenly]]))


def _fitted(scored: ScoredRows, aims: Floats, chosen: Ints, part: float) -> OutputRows:
    """Return by how much the chosen rows of a group change: the least cross entropy with its aims, and near zero."""
    from scipy.optimize import minimize  # only here: it takes long to import

    logits = scored.logits.astype(np.float64)
    hidden = np.concatenate([scored.hidden, np.ones((len(logits), 1))], axis=1, dtype=np.float64)  # (n, k + 1)
    mass = aims.sum(1, keepdims=True)
    decay = NEARNESS * float((hidden**2).sum(1).mean())
    shape = len(chosen), hidden.shape[1]

    def cost(flat: Floats) -> tuple[float, Floats]:
        change = flat.reshape(shape)
        scores = logits.copy()
        scores[:, chosen] += part * (hidden @ change.T)
        scores -= scores.max(1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        grad = (mass * np.exp(log_p) - aims)[:, chosen]
        value = float(-(aims * log_p).sum() + decay * (change**2).sum())
        return value, (part * (grad.T @ hidden) + 2 * decay * change).ravel()

    result = minimize(
        cost, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS, "maxcor": 5}
    )
    change = result.x.reshape(shape).astype(np.float32)
    return OutputRows(change[:, :-1], change[:, -1])
