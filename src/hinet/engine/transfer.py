"""Where nodes of a taxonomy moved, the options above them learn from what the model answered before.

A moved node keeps its own weights, but its new ancestors have never seen rows of it. The model as it was teaches them:
for example rows it gives every label a probability, which the label keeps in the new taxonomy, and an option there gets
the sum of those below it. The deep expert's weights of the options that changed are fitted to these sums by cross
entropy, close to where they were. All other weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.data.traces import MAX_PATHS_PER_LABEL
from hinet.engine.carrying import CERTAIN, Carried
from hinet.engine.groups import Groups
from hinet.engine.model import FusedModel
from hinet.engine.scoring_kernels import DEEP, group_logits
from hinet.ragged import Bools, offsets_of
from hinet.taxonomy import STOP, Layers

TRACES_OF_A_ROW = 16  # answers that an example row is taught by
LEAST_MASS = 1e-3  # of a row, for a group to learn from it
MOST_CELLS = 4_000_000  # logits of a group that it learns from: 32 MB
NEARNESS = 3e-4  # pulls weights to where they were; far smaller ones fit the example rows alone
MOST_STEPS = 30

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


class OutputRows(NamedTuple):
    """The weights and biases of output rows."""

    weight: NDArray[np.float32]  # (rows, k)
    bias: NDArray[np.float32]  # (rows,)


class ScoredRows(NamedTuple):
    """What a group's options score for some rows, and the hidden units that the output rows read."""

    logits: NDArray[np.floating]  # (n, options)
    hidden: NDArray[np.floating]  # (n, k)


Scorer: TypeAlias = Callable[[int, Ints], ScoredRows]  # of a group, for chosen rows


def learning_rows(rows: Carried, layers: Layers, changed: Ints) -> Bools:
    """Return which output rows of new layers learn, given the nodes whose place or labels changed.

    They are those of the options that lead to such nodes, and of options beside these that had no choice before.
    """
    child = layers.option_neuron[rows.groups.row_options()]
    node = np.where(child == STOP, -1, layers.node[np.maximum(child, 0)])
    leads = np.isin(node, changed)
    group = rows.groups.row_groups()
    found: Bools = leads | ((rows.rows == CERTAIN) & np.isin(group, group[leads]))
    return found


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
    found = relearned(outputs, learns, targets, model.layers, score, float(experts.mix[DEEP]))
    deep = experts.deep.with_outputs(found.weight, found.bias)
    return replace(model, experts=experts._replace(deep=deep))


def option_targets(found: Traces, layers: Layers, new_position: Ints) -> sp.csc_array:
    """Return how probable it is that each row takes each option of new layers, (n, options), by its old traces.

    A trace that is still there keeps its probability. One that is gone shares it among all traces of its label; if the
    label is gone, so is its probability.
    """
    assert found.log_p is not None
    row = np.repeat(np.arange(len(found)), np.diff(found.row_offsets))
    chance = np.exp(found.log_p)
    neurons, stays = _followed(found, layers, new_position)
    offsets = offsets_of(np.diff(found.offsets)[stays])
    same = Traces(layers, np.arange(len(offsets)), offsets, neurons[np.repeat(stays, np.diff(found.offsets))])
    lost = np.flatnonzero(~stays)
    node = new_position[found.end_nodes[lost]]
    able = (node >= 0) & traceable(layers)[node]
    lost, node = lost[able], node[able]
    others = Traces.of_nodes(layers, node)
    ways = np.diff(others.row_offsets)
    parts = [(same, row[stays], chance[stays])]
    parts.append((others, np.repeat(row[lost], ways), np.repeat(chance[lost] / np.maximum(ways, 1), ways)))
    entries: list[tuple[NDArray[np.floating], Ints, Ints]] = []
    for traces, owner, weight in parts:
        options, bounds = traces.options()
        steps = np.diff(bounds)
        entries.append((np.repeat(weight, steps), np.repeat(owner, steps), options))
    value, rows, options = (np.concatenate(column) for column in zip(*entries, strict=True))
    return sp.csc_array((value, (rows, options)), shape=(len(found), len(layers.option_neuron)))


def _followed(found: Traces, layers: Layers, new_position: Ints) -> tuple[NDArray[np.int32], Bools]:
    """Return the neurons of old traces in new layers, and which traces are still there."""
    nodes = new_position[found.layers.node[found.neurons]]
    neurons = np.zeros(len(nodes), np.int32)
    lengths = np.diff(found.offsets)
    above = np.zeros(len(lengths), np.int64)
    for step in range(int(lengths.max(initial=0))):
        live = np.flatnonzero((lengths > step) & (above >= 0))
        place = found.offsets[live] + step
        child = layers.children_at(above[live], nodes[place])
        above[live] = np.where(nodes[place] >= 0, child, -1)
        neurons[place] = np.maximum(above[live], 0)
    return neurons, (above >= 0) & layers.ends[above]


def traceable(layers: Layers) -> Bools:
    """(nodes,) Whether the traces of a label can be listed."""
    flat, offsets = layers.neurons_of
    node = np.repeat(np.arange(len(layers.taxonomy)), np.diff(offsets))
    ends = layers.ends[flat]
    ways = np.minimum(layers.path_counts[flat], MAX_PATHS_PER_LABEL + 1).astype(np.float64)
    paths = np.bincount(node[ends], ways[ends], len(layers.taxonomy))
    found: Bools = (paths > 0) & (paths <= MAX_PATHS_PER_LABEL)
    return found


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
    pull = NEARNESS * float((hidden**2).sum(1).mean())
    shape = len(chosen), hidden.shape[1]

    def cost(flat: Floats) -> tuple[float, Floats]:
        change = flat.reshape(shape)
        scores = logits.copy()
        scores[:, chosen] += part * (hidden @ change.T)
        scores -= scores.max(1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        slope = (mass * np.exp(log_p) - aims)[:, chosen]
        value = float(-(aims * log_p).sum() + pull * (change**2).sum())
        return value, (part * (slope.T @ hidden) + 2 * pull * change).ravel()

    found = minimize(
        cost, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": MOST_STEPS, "maxcor": 5}
    )
    change = found.x.reshape(shape).astype(np.float32)
    return OutputRows(change[:, :-1], change[:, -1])
