"""The choices on the way to labels that are fixed: their logits once, the labels' probabilities at any temperature."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.engine.model.targets import END, Goals
from hinet.ragged import offsets_of, positions

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Ladder(NamedTuple):
    """The logits of all options at every choice on the way to one label a row, by all its paths.

    Every neuron on the way is a step, and the end of every row one more. A *take* is an option that leads from one step
    to the next; takes are sorted by the layer they lead into, then by the step.
    """

    logits: Floats  # of all options of all choices
    offsets: Ints  # (choices + 1,) the options of each choice
    take_from: Ints  # (takes,) step
    take_choice: Ints  # (takes,) which choice it is made in, -1 where it is certain
    take_logit: Ints  # (takes,) which of the logits is its own
    run_starts: Ints  # (runs,) the takes that lead to one step are a run
    run_to: Ints  # (runs,) that step; after all others, the ends of rows
    layer_runs: Ints  # (layers + 1,) the runs that lead into each layer
    rows: int

    @classmethod
    def of(cls, goals: Goals, logits: Floats) -> Ladder:
        """Return the ladder of one goal a row and the logits on the way, as ``Answering.logits_along`` gives them."""
        arrays, layers = goals.arrays, goals.layers
        row, step = goals.row_steps()
        group = arrays.step_group[step]
        sizes = np.diff(layers.option_offsets)[group]
        offsets = offsets_of(sizes[sizes > 1])
        choice = np.where(sizes > 1, np.cumsum(sizes > 1) - 1, -1)
        counts = np.diff(arrays.take_offsets)[step]
        take = positions(arrays.take_offsets[step], counts)
        start = np.repeat(np.arange(len(step)), counts)
        first = offsets_of(np.bincount(row, minlength=len(goals)))[:-1]
        following = arrays.take_next[take]
        ends = following == END
        to = np.where(ends, len(step) + row[start], first[row[start]] + following)
        layer = np.where(ends, layers.height + 1, layers.depth[group[np.where(ends, 0, to)]] if len(to) else 0)
        order = np.lexsort((to, layer))
        start, take, to, layer = start[order], take[order], to[order], layer[order]
        run_starts = np.flatnonzero(np.diff(to, prepend=-1))
        changes = np.flatnonzero(np.diff(layer[run_starts], prepend=-1))
        logit = offsets[choice[start]] + arrays.take_option[take]
        return cls(
            logits,
            offsets,
            start,
            choice[start],
            logit,
            run_starts,
            to[run_starts],
            np.append(changes, len(run_starts)),
            len(goals),
        )

    def log_p(self, factor: float) -> Floats:
        """Return the log probability of every row's label with all logits multiplied by ``factor``."""
        steps = int(self.take_from.max(initial=-1)) + 1
        reached = np.zeros(steps + self.rows)
        log_takes = self._log_takes(factor)
        bounds = np.append(self.run_starts, len(self.take_from))
        for first, last in zip(self.layer_runs[:-1], self.layer_runs[1:], strict=True):
            takes = slice(bounds[first], bounds[last])
            ways = reached[self.take_from[takes]] + log_takes[takes]
            reached[self.run_to[first:last]] = _log_sums(ways, self.run_starts[first:last] - bounds[first])
        return reached[steps:]

    def _log_takes(self, factor: float) -> Floats:
        """Return the log probability of every take within its choice, (takes,)."""
        found = np.zeros(len(self.take_from))
        if not len(self.logits):
            return found
        scaled = self.logits * factor
        starts = self.offsets[:-1]
        top = np.maximum.reduceat(scaled, starts)
        total = np.add.reduceat(np.exp(scaled - np.repeat(top, np.diff(self.offsets))), starts)
        free = np.flatnonzero(self.take_choice >= 0)
        choice = self.take_choice[free]
        found[free] = scaled[self.take_logit[free]] - top[choice] - np.log(total)[choice]
        return found


def cells_of(goals: Goals) -> Ints:
    """Return how many numbers the ladder of each row would hold, (n,): its logits and its takes."""
    arrays, layers = goals.arrays, goals.layers
    sizes = np.diff(layers.option_offsets)[arrays.step_group] + np.diff(arrays.take_offsets)
    total = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])[arrays.step_offsets]
    found: Ints = np.diff(total)[arrays.entry_goal]
    return found


def _log_sums(values: Floats, starts: Ints) -> Floats:
    """Return the log of the summed exponentials of runs of values."""
    top = np.maximum.reduceat(values, starts)
    lengths = np.diff(np.append(starts, len(values)))
    found: Floats = top + np.log(np.add.reduceat(np.exp(values - np.repeat(top, lengths)), starts))
    return found
