"""Training targets: the options that the true traces of each row contain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hinet.data import Traces
from hinet.ragged import Ints, gather


@dataclass(frozen=True)
class TargetBatch:
    """Steps of the traces of some rows: row -> labels -> traces -> steps, each a flat list with its lengths.

    A row with several labels has several entries in ``label_row``, a label with several paths several traces.
    """

    rows: int
    label_row: Tensor  # (labels,) position of the row in the batch
    label_node: Tensor  # (labels,) node of the taxonomy
    trace_counts: Tensor  # (labels,) traces of each label
    trace_row: Tensor  # (traces,)
    step_trace: Tensor  # (steps,) trace of each step; stops are steps too
    step_option: Tensor  # (steps,)

    @property
    def step_row(self) -> Tensor:
        """(steps,) Position of the row of every step."""
        return self.trace_row[self.step_trace]

    def to(self, device: torch.device) -> TargetBatch:
        """Return the batch on ``device``."""
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return TargetBatch(self.rows, **moved)


class Targets:
    """The traces of a training set, from which batches are taken."""

    def __init__(self, traces: Traces) -> None:
        self.traces = traces
        self._options, self._option_offsets = traces.options()
        self._ends = traces.end_nodes

    def __len__(self) -> int:
        return len(self.traces)

    def option_counts(self) -> Tensor:
        """Return the number of rows with each option, (options,); labels and traces share a row evenly."""
        batch = self.batch(np.arange(len(self)))
        labels = torch.bincount(batch.label_row, minlength=batch.rows)[batch.label_row]
        share = (1 / (labels * batch.trace_counts)).repeat_interleave(batch.trace_counts)  # (traces,)
        counts = torch.zeros(len(self.traces.layers.option_neuron))
        return counts.index_add(0, batch.step_option, share[batch.step_trace].float())

    def batch(self, rows: Ints) -> TargetBatch:
        """Return the targets of the chosen rows; each must have a trace."""
        traces, counts = gather(np.arange(len(self._ends)), self.traces.row_offsets, rows)
        trace_row = np.repeat(np.arange(len(rows)), counts)
        by_label = np.lexsort((self._ends[traces], trace_row))  # the traces of a label side by side
        traces, trace_row = traces[by_label], trace_row[by_label]
        steps, step_counts = gather(self._options, self._option_offsets, traces)
        ends = self._ends[traces]
        starts = np.ones(len(traces), bool)
        starts[1:] = (ends[1:] != ends[:-1]) | (trace_row[1:] != trace_row[:-1])
        first = np.flatnonzero(starts)
        return TargetBatch(
            len(rows),
            label_row=_tensor(trace_row[first]),
            label_node=_tensor(ends[first]),
            trace_counts=_tensor(np.diff(np.append(first, len(traces)))),
            trace_row=_tensor(trace_row),
            step_trace=_tensor(np.repeat(np.arange(len(traces)), step_counts)),
            step_option=_tensor(steps),
        )


def _tensor(values: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, np.int64))
