"""The choices along traces that are fixed: their logits once, their probability at any temperature."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine.goals import Goals
from hinet.engine.model import FusedModel
from hinet.engine.scoring_kernels import expert_logits
from hinet.ragged import offsets_of, positions


class Ladder(NamedTuple):
    """The logits of all options at every choice along one trace a row."""

    logits: NDArray[np.float64]  # of all options of all choices
    offsets: NDArray[np.int64]  # (choices + 1,) the options of each choice
    chosen: NDArray[np.int64]  # (choices,) which of the logits was chosen
    row: NDArray[np.int64]  # (choices,)
    rows: int

    @classmethod
    def of(cls, model: FusedModel, rows: SparseMatrix, traces: Traces) -> Ladder:
        """Return the ladder of one trace a row, of labels with a single path."""
        arrays = Goals.of(traces).arrays
        said = expert_logits(rows, np.arange(len(traces)), arrays, model.groups, model.experts)
        lengths = np.diff(arrays.step_offsets)[arrays.entry_goal]
        step = positions(arrays.step_offsets[arrays.entry_goal], lengths)
        row = np.repeat(np.arange(len(traces)), lengths)
        sizes = np.diff(model.groups.first_row)[arrays.step_group[step]]
        free = sizes > 0
        offsets = offsets_of(sizes[free])
        chosen = offsets[:-1] + arrays.take_option[arrays.take_offsets[step[free]]]
        logits = said.astype(np.float64) @ model.experts.mix.astype(np.float64)
        return cls(logits, offsets, chosen, row[free], len(traces))

    def log_p(self, factor: float) -> NDArray[np.float64]:
        """Return the log probability of every row's trace with all logits multiplied by ``factor``."""
        if not len(self.chosen):
            return np.zeros(self.rows)
        scaled = self.logits * factor
        top = np.maximum.reduceat(scaled, self.offsets[:-1])
        sizes = np.diff(self.offsets)
        total = np.add.reduceat(np.exp(scaled - np.repeat(top, sizes)), self.offsets[:-1])
        steps = scaled[self.chosen] - top - np.log(total)
        total_of_row: NDArray[np.float64] = np.bincount(self.row, steps, self.rows).astype(np.float64)
        return total_of_row
