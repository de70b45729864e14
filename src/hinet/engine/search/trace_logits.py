"""Logits on the paths to given labels, scored once for probabilities at any temperature."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.engine.model.groups import END, Targets
from hinet.ragged import offsets_of, positions

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
        row, step = targets.row_steps()
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
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])[arrays.step_offsets]
    cells: Ints = np.diff(total)[arrays.entry_target]
    return cells
