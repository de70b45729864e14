"""Corrections of the probabilities of rows: scaled log odds, and trust in rows with unknown words of a tree.

Scaling the log odds of the best trace ``y`` against all others changes its probability ``c`` to ``c'`` with
``logit c' = odds_scale * logit c``, and all others in proportion: ``P' = (1 - g) P + g [is y]`` with
``g = (c' - c) / (1 - c)``. This is again a distribution over traces, in which every trace keeps its rank: a scale of at
most 1 leaves odds above 1 there, and raises lower ones.

Trust ``t`` in a row then changes ``P'`` to ``t P' + (1 - t) Q``, see :class:`hinet.engine.model.fused.Trust`. ``Q`` of
a node is the share of the labels at and below it.

With several labels per row, each node and label has its own probability, and one increasing map of log odds calibrates
all of them: ``logit p' = odds_scale * logit p + odds_offset``. So no rank changes, and no node becomes more probable
than its parent.

The logits on the paths to known labels are scored once, for their probabilities at any temperature.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.engine.model.groups import END, Targets
from hinet.ragged import offsets_of, positions

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SURE = 1e-6  # smallest distance from certainty in single precision


def rescale(best: Floats, odds_scale: float) -> Floats:
    """Return the probabilities of best traces with their log odds multiplied by ``odds_scale``."""
    rescaled: Floats = best + odds_shift(best, odds_scale) * (1 - best)
    return rescaled


def odds_shift(best: Floats, odds_scale: float) -> Floats:
    """Return ``g`` of rows, given the probabilities of their best traces.

    >>> odds_shift(np.array([0.1, 0.5, 0.9]), 0.8).round(3).tolist()
    [0.052, 0.0, -0.471]
    """
    sure = np.clip(best, np.finfo(np.float64).tiny, 1 - SURE)
    scaled = 1 / (1 + ((1 - sure) / sure) ** odds_scale)
    given: Floats = (scaled - sure) / (1 - sure)
    return given


def scaled_traces(traces: Traces, log_p: Floats, odds_scale: float) -> tuple[Traces, Floats]:
    """Return the best traces of rows of a tree, and the log probabilities along them, with scaled odds.

    The first trace of a row is its best; ``log_p`` is that of the path down to each neuron.
    """
    assert traces.log_p is not None
    counts = np.diff(traces.row_offsets)
    shift = np.zeros(len(counts))
    shift[counts > 0] = odds_shift(np.exp(traces.log_p[traces.row_offsets[:-1][counts > 0]]), odds_scale)
    return shifted_traces(traces, log_p, shift, np.ones(len(counts), bool))


def shifted_traces(traces: Traces, log_p: Floats, shift: Floats, favours: NDArray[np.bool_]) -> tuple[Traces, Floats]:
    """Return traces with a share ``shift`` of the probability of all traces of a row, (n,), taken from each.

    Where ``favours``, (n,), is true, the first trace of the row gets it.
    """
    assert traces.log_p is not None
    lengths, counts = np.diff(traces.offsets), np.diff(traces.row_offsets)
    first = np.repeat(traces.row_offsets[:-1], counts)  # (traces,) the first trace of its row
    favoured, of_row = np.repeat(favours, counts), np.repeat(shift, counts)
    step = positions(np.zeros(len(lengths), np.int64), lengths)
    aligned = np.repeat(traces.offsets[first], lengths) + np.minimum(step, np.repeat(lengths[first], lengths) - 1)
    on_best_path = traces.neurons[aligned] == traces.neurons if len(aligned) else np.zeros(0, bool)
    on_best_path &= np.repeat((lengths[first] > 0) & favoured, lengths)  # a trace that ends at the root has no neurons
    of_trace = _shifted(traces.log_p, of_row, favoured & (first == np.arange(len(first))))
    along = _shifted(log_p, np.repeat(of_row, lengths), on_best_path)
    return replace(traces, log_p=of_trace), along


def scaled_labels(probability: Floats, row_offsets: NDArray[np.int64], odds_scale: float) -> Floats:
    """Return the probabilities of labels of a tree with scaled odds, row after row, the best of each row among them.

    >>> scaled_labels(np.array([0.1, 0.9, 0.5, 0.5]), np.array([0, 2, 2, 4]), 0.8).round(3).tolist()
    [0.147, 0.853, 0.5, 0.5]
    """
    counts = np.diff(row_offsets)
    filled = np.flatnonzero(counts)
    if not len(filled):
        return probability
    best = np.maximum.reduceat(probability, row_offsets[filled])
    shift = odds_shift(best, odds_scale)
    owner = np.repeat(np.arange(len(filled)), counts[filled])
    scaled = (1 - shift[owner]) * probability
    equal = np.flatnonzero(probability == best[owner])
    first = equal[np.unique(owner[equal], return_index=True)[1]]
    scaled[first] += shift
    return scaled.clip(0, 1)


def map_log_odds(log_p: Floats, odds_scale: float, odds_offset: float) -> Floats:
    """Return log probabilities with their log odds scaled and shifted; certainty stays certain.

    >>> np.exp(map_log_odds(np.log([0.1, 0.5, 1.0]), 0.8, 0.5)).round(3).tolist()
    [0.221, 0.622, 1.0]
    """
    with np.errstate(divide="ignore", over="ignore"):
        odds = log_p - np.log(-np.expm1(np.minimum(log_p, 0)))
        mapped: Floats = -np.logaddexp(0, -(odds_scale * odds + odds_offset))
    return mapped


def unmap_log_odds(probability: float, odds_scale: float, odds_offset: float) -> float:
    """Return the probability that :func:`map_log_odds` maps to this one."""
    if not 0 < probability < 1:
        return probability
    odds = (np.log(probability / (1 - probability)) - odds_offset) / odds_scale
    return float(1 / (1 + np.exp(-odds)))


def trusted_traces(traces: Traces, log_p: Floats, trust: Floats, shares: Floats) -> tuple[Traces, Floats]:
    """Return traces, and the log probabilities along them, with the trust in every row, (n,).

    ``shares`` has the share of the labels below every node, then that of a single label.
    """
    assert traces.log_p is not None
    of_trace = np.repeat(trust, np.diff(traces.row_offsets))
    of_neuron = np.repeat(of_trace, np.diff(traces.offsets))
    whole = _trusted(traces.log_p, of_trace, shares[-1])
    along = _trusted(log_p, of_neuron, shares[traces.layers.node[traces.neurons]])
    return replace(traces, log_p=whole), along


def _trusted(log_p: Floats, trust: Floats, shares: Any) -> Floats:
    with np.errstate(divide="ignore"):
        mixed = np.log(trust * np.exp(log_p) + (1 - trust) * shares)
    logs: Floats = np.where(trust < 1, mixed, log_p)
    return logs


def _shifted(log_p: Floats, shift: Floats, favoured: NDArray[np.bool_]) -> Floats:
    shifted = (1 - shift) * np.exp(log_p) + np.where(favoured, shift, 0)
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(np.clip(shifted, 0, 1))
    return logs


class TraceLogits(NamedTuple):
    """Logits of all options of the groups on all paths to one label per row.

    Every neuron on a path is a step, and the end of every row is one more. A *choice* is an option that leads from one
    step to the next; choices are sorted by the layer they lead to, then by the step.
    """

    logits: Floats  # (options of all groups,)
    offsets: Ints  # (groups + 1,) the options of each group
    choice_from: Ints  # (choices,) step
    choice_group: Ints  # (choices,) its group, -1 for a single option
    choice_logit: Ints  # (choices,) index of its logit
    run_starts: Ints  # (runs,) a run has the choices that lead to one step
    run_to: Ints  # (runs,) that step; the ends of rows come last
    layer_runs: Ints  # (layers + 1,) the runs that lead into each layer
    rows: int

    @classmethod
    def of(cls, targets: Targets, logits: Floats) -> TraceLogits:
        """Return the object for one target per row, with logits of ``Predictor.logits_along``."""
        arrays, layers = targets.arrays, targets.layers
        row, step = arrays.entry_steps()
        group = arrays.step_group[step]
        sizes = np.diff(layers.option_offsets)[group]
        offsets = offsets_of(sizes[sizes > 1])
        group_index = np.where(sizes > 1, np.cumsum(sizes > 1) - 1, -1)
        counts = np.diff(arrays.choice_offsets)[step]
        choice = positions(arrays.choice_offsets[step], counts)
        start = np.repeat(np.arange(len(step)), counts)
        first = offsets_of(np.bincount(row, minlength=len(targets)))[:-1]
        following = arrays.choice_next[choice]
        ends = following == END
        to = np.where(ends, len(step) + row[start], first[row[start]] + following)
        layer = np.where(ends, layers.height + 1, layers.depth[group[np.where(ends, 0, to)]] if len(to) else 0)
        order = np.lexsort((to, layer))
        start, choice, to, layer = start[order], choice[order], to[order], layer[order]
        run_starts = np.flatnonzero(np.diff(to, prepend=-1))
        changes = np.flatnonzero(np.diff(layer[run_starts], prepend=-1))
        logit = offsets[group_index[start]] + arrays.choice_option[choice]
        return cls(
            logits,
            offsets,
            start,
            group_index[start],
            logit,
            run_starts,
            to[run_starts],
            np.append(changes, len(run_starts)),
            len(targets),
        )

    def log_p(self, factor: float) -> Floats:
        """Return the log probability of every row's label with all logits multiplied by ``factor``."""
        steps = int(self.choice_from.max(initial=-1)) + 1
        reached = np.zeros(steps + self.rows)
        log_choices = self._log_choices(factor)
        bounds = np.append(self.run_starts, len(self.choice_from))
        for first, last in zip(self.layer_runs[:-1], self.layer_runs[1:], strict=True):
            choices = slice(bounds[first], bounds[last])
            ways = reached[self.choice_from[choices]] + log_choices[choices]
            starts = self.run_starts[first:last] - bounds[first]
            reached[self.run_to[first:last]] = np.logaddexp.reduceat(ways, starts)
        return reached[steps:]

    def _log_choices(self, factor: float) -> Floats:
        """Return the log probability of every choice within its group, (choices,)."""
        log_p = np.zeros(len(self.choice_from))
        if not len(self.logits):
            return log_p
        scaled = self.logits * factor
        starts = self.offsets[:-1]
        top = np.maximum.reduceat(scaled, starts)
        total = np.add.reduceat(np.exp(scaled - np.repeat(top, np.diff(self.offsets))), starts)
        free = np.flatnonzero(self.choice_group >= 0)
        group_index = self.choice_group[free]
        log_p[free] = scaled[self.choice_logit[free]] - top[group_index] - np.log(total)[group_index]
        return log_p


def cells_of(targets: Targets) -> Ints:
    """Return the numbers of logits and choices of each row, (n,)."""
    arrays, layers = targets.arrays, targets.layers
    sizes = np.diff(layers.option_offsets)[arrays.step_group] + np.diff(arrays.choice_offsets)
    cells: Ints = np.diff(offsets_of(sizes)[arrays.step_offsets])[arrays.entry_target]
    return cells
