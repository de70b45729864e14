"""Output rows of a changed taxonomy that are fitted to the answers of the old model on example rows."""

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
from hinet.engine.model.experts import DEEP
from hinet.engine.model.fused import FusedModel
from hinet.engine.model.groups import Groups, paths_of
from hinet.engine.model.transfer import CERTAIN, OutputTransfer
from hinet.engine.search.scoring_kernels import group_logits
from hinet.ragged import Bools, offsets_of
from hinet.taxonomy import STOP, Layers

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
TRACES_PER_ROW = 16  # answers of the old model that an example row is fitted to
MIN_MASS = 1e-3  # minimum probability that a row reaches a group to be used there
MAX_CELLS = 4_000_000  # logits of a group that it is fitted to: 32 MB
WEIGHT_DECAY = 3e-4  # keeps weights near the old ones; much smaller values overfit the example rows
MAX_STEPS = 30


class OutputRows(NamedTuple):
    """The weights and biases of output rows."""

    weight: NDArray[np.float32]  # (rows, k)
    bias: NDArray[np.float32]  # (rows,)


Logits: TypeAlias = NDArray[np.floating]
# returns the logits of a group for chosen rows, (n, options), and the hidden units that its outputs read, (n, k)
Scorer: TypeAlias = Callable[[int, Ints], tuple[Logits, Logits]]


def learning_rows(rows: OutputTransfer, layers: Layers, changed: Ints) -> Bools:
    """Return which output rows of new layers are fitted, given the nodes whose position or labels changed.

    These are the rows of options that lead to such nodes, and of their siblings that had no siblings before.
    """
    child = layers.option_neuron[rows.groups.row_options()]
    node = np.where(child == STOP, -1, layers.node[np.maximum(child, 0)])
    leads = np.isin(node, changed)
    group = rows.groups.row_groups()
    learns: Bools = leads | ((rows.rows == CERTAIN) & np.isin(group, group[leads]))
    return learns


def taught(model: FusedModel, learns: Bools, targets: sp.csc_array, rows: SparseMatrix) -> FusedModel:
    """Return a model whose output rows ``learns`` are fitted to targets on example rows."""
    experts, rows = model.experts, model.read(rows)
    if experts.mix[DEEP] == 0:  # an unused expert starts from zero, so that nothing else changes
        shape = experts.deep.weight.shape
        nothing = experts.deep.with_outputs(np.zeros(shape, np.float32), np.zeros(len(experts.deep.bias), np.float32))
        mix = experts.mix.copy()
        mix[DEEP] = 1
        experts = experts._replace(deep=nothing, mix=mix)

    def score(group: int, chosen: Ints) -> tuple[Logits, Logits]:
        logits, hidden = group_logits(rows, chosen, group, model.groups, experts)
        return logits, hidden

    outputs = OutputRows(experts.deep.output_weights(), experts.deep.bias)
    fitted = relearned(outputs, learns, targets, model.layers, score, float(experts.mix[DEEP]))
    deep = experts.deep.with_outputs(fitted.weight, fitted.bias)
    return replace(model, experts=experts._replace(deep=deep))


def option_targets(answers: Traces, layers: Layers, new_position: Ints) -> sp.csc_array:
    """Return the probability that each row takes each option of new layers, (n, options), given its old traces.

    A trace that still exists keeps its probability. One that was removed shares it among all traces of its label; if
    the label was removed too, the probability is dropped.
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
    """Return the neurons of old traces in new layers, and which traces still exist."""
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
    """(nodes,) Return whether the traces of a label can be listed."""
    paths = paths_of(layers, np.arange(len(layers.taxonomy)))
    is_listable: Bools = (paths > 0) & (paths <= MAX_PATHS_PER_LABEL)
    return is_listable


def relearned(
    outputs: OutputRows, learns: Bools, targets: sp.csc_array, layers: Layers, score: Scorer, part: float
) -> OutputRows:
    """Return output rows with those that ``learns`` marks fitted to targets; ``part`` scales their logits."""
    weight, bias = outputs.weight.copy(), outputs.bias.copy()
    groups = Groups.of(layers)
    for group in np.unique(groups.row_groups()[learns]).tolist():
        low, high = int(groups.first_row[group]), int(groups.first_row[group + 1])
        chosen = np.flatnonzero(learns[low:high])
        mass = targets[:, int(layers.option_offsets[group]) : int(layers.option_offsets[group + 1])]
        rows = _rows_of_group(mass, chosen)
        if not len(rows):
            continue
        wanted = mass.tocsr()[rows].toarray()
        change = _fitted(*score(group, rows), wanted, chosen, part)
        weight[low + chosen] += change.weight
        bias[low + chosen] += change.bias
    return OutputRows(weight, bias)


def _rows_of_group(mass: sp.csc_array, chosen: Ints) -> Ints:
    """Return the rows that reach a group; of too many, half are those most likely to take the chosen options."""
    total, own = np.asarray(mass.sum(axis=1)).ravel(), np.asarray(mass[:, chosen].sum(axis=1)).ravel()
    rows = np.flatnonzero(total >= MIN_MASS)
    max_rows = max(1, MAX_CELLS // mass.shape[1])
    if len(rows) <= max_rows:
        return rows
    rows = rows[np.argsort(-own[rows], kind="stable")]
    others = rows[max_rows // 2 :]
    evenly = np.linspace(0, len(others) - 1, max_rows - max_rows // 2).astype(np.int64)
    return np.sort(np.concatenate([rows[: max_rows // 2], others[evenly]]))


def _fitted(logits: Logits, hidden: Logits, wanted: Floats, chosen: Ints, part: float) -> OutputRows:
    """Return the change of the chosen rows of a group that minimises cross-entropy plus weight decay."""
    from scipy.optimize import minimize  # slow to import

    logits = logits.astype(np.float64)
    hidden = np.concatenate([hidden, np.ones((len(logits), 1))], axis=1, dtype=np.float64)  # (n, k + 1)
    mass = wanted.sum(1, keepdims=True)
    decay = WEIGHT_DECAY * float((hidden**2).sum(1).mean())
    shape = len(chosen), hidden.shape[1]

    def cost(flat: Floats) -> tuple[float, Floats]:
        change = flat.reshape(shape)
        scores = logits.copy()
        scores[:, chosen] += part * (hidden @ change.T)
        scores -= scores.max(1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(1, keepdims=True))
        grad = (mass * np.exp(log_p) - wanted)[:, chosen]
        value = float(-(wanted * log_p).sum() + decay * (change**2).sum())
        return value, (part * (grad.T @ hidden) + 2 * decay * change).ravel()

    result = minimize(
        cost, np.zeros(shape[0] * shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": MAX_STEPS, "maxcor": 5}
    )
    change = result.x.reshape(shape).astype(np.float32)
    return OutputRows(change[:, :-1], change[:, -1])
