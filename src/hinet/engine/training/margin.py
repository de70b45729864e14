"""Training of the margin expert: each label against all others, independently, in any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.column_kernels import mean_sizes
from hinet.engine.model.experts import Floats, LabelWeights
from hinet.engine.settings import MemoryPlan
from hinet.engine.training.context import ExpertTraining, TrainingContext
from hinet.engine.training.jobs import Arrays, Job
from hinet.engine.training.margin_kernels import train_margin
from hinet.ragged import offsets_of

PARTS = 8  # parts of the labels
COST = 3.0  # weight of the squared hinge of a row, compared with half of the squared weights
MAX_EPOCHS = 6
TOLERANCE = 0.1  # maximum violation of the optimality conditions
LOGITS_PER_MARGIN = 10.0
MIN_LOGIT = 0.01  # weights that usually add less to a logit are dropped
MIN_SQUARE = 1e-12


class LabelledRows(NamedTuple):
    """Rows with one label each, scaled to length 1."""

    rows: SparseMatrix
    row: NDArray[np.int64]  # (n,) rows with one label
    label: NDArray[np.int64]  # (n,)
    scale: NDArray[np.float64]  # (n,) factor that gives the row length 1
    square: NDArray[np.float64]  # (n,) squared length after scaling, with the feature of the bias
    cost: NDArray[np.float64]  # (n,) weight of the squared hinge

    @classmethod
    def of(cls, context: TrainingContext) -> LabelledRows:
        """Return the rows of a context; the title of a branch has several labels and is left out."""
        arrays, rows = context.targets.arrays, context.data.rows
        row = np.flatnonzero(np.diff(arrays.row_offsets) == 1)
        row = row[arrays.entry_share[arrays.row_offsets[row]] > 0]
        entry = arrays.row_offsets[row]
        label = context.spans.labels_at(arrays.end_neurons())[arrays.entry_target[entry]]
        row_of_value = np.repeat(np.arange(rows.row_count), np.diff(rows.indptr))
        square = np.bincount(row_of_value, np.square(rows.data, dtype=np.float64), rows.row_count)[row]
        scale = 1 / np.sqrt(np.maximum(square, MIN_SQUARE))
        return cls(rows, row, label, scale, 1 + scale**2 * square, COST * arrays.entry_share[entry].astype(np.float64))


@dataclass
class _LabelsJob(Job):
    """Trains some labels to their end in a single epoch."""

    name: str
    data: LabelledRows
    labels: NDArray[np.int64]
    seed: int
    weights: Floats  # (labels, f)
    bias: Floats  # (labels,)
    epochs: int = 1

    def work(self) -> float:
        """Return an estimate of the work."""
        return 10.0 * len(self.labels) * len(self.data.rows.indices)

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train the labels; the cost is the mean objective per row."""
        rows, objective, done = max(self.data.rows.row_count, 1), 0.0, 0
        plan = (MAX_EPOCHS, TOLERANCE, self.seed)
        has_rows = np.isin(self.labels, self.data.label).tolist()
        for number, label in enumerate(self.labels.tolist()):
            if has_rows[number]:
                objective += float(train_margin(self.data, label, plan, self.bias, self.weights[label]))
            advance(rows * (number + 1) // len(self.labels) - done)
            done = rows * (number + 1) // len(self.labels)
        return objective / rows

    def state(self) -> Arrays:
        """Return the weights and biases of the labels."""
        own = slice(int(self.labels[0]), int(self.labels[-1]) + 1)
        return {"weight": self.weights[own], "bias": self.bias[own]}


class MarginTraining(ExpertTraining):
    """The training of the margin expert; further training keeps its weights."""

    kernels = (train_margin,)

    def __init__(self, context: TrainingContext) -> None:
        self._context = context

    @classmethod
    def of(cls, context: TrainingContext) -> Self | None:
        """Return the training for a tree with one label per row; a part of a stream is not enough."""
        if context.start is not None:
            return cls(context) if context.start.mix.margin else None
        if not context.rows.is_whole:
            return None
        rows, labels = context.data.rows, len(context.spans.neuron)
        size = labels, len(rows.indices), rows.row_count, context.features
        return cls(context) if context.settings.wants_margin(*size, context.layers) else None

    def memory(self) -> MemoryPlan:
        """Return the memory of the weights of all labels and features."""
        weights = 0 if self._context.start else 4 * len(self._context.spans.neuron) * self._context.features
        return MemoryPlan(weights, 0, 0, 3 * weights)

    def jobs(self) -> list[Job]:
        """Return jobs of about the same number of labels."""
        context = self._context
        if context.start is not None:
            return []
        labels = len(context.spans.neuron)
        self._data = LabelledRows.of(context)
        self._weights = np.zeros((labels, context.features), np.float32)
        self._bias = np.zeros(labels, np.float32)
        parts = [part for part in np.array_split(np.arange(labels), PARTS) if len(part)]
        return [
            _LabelsJob(f"margin {number}", self._data, part, context.settings.seed, self._weights, self._bias)
            for number, part in enumerate(parts, start=1)
        ]

    def trained(self) -> LabelWeights:
        """Return the weights in logits, without those that hardly count.

        The score of a label is a multiple of its margin plus 1, so that of a label without rows is 0.
        """
        if self._context.start is not None:
            return self._context.start.experts.margin
        count = np.bincount(self._data.label, minlength=len(self._bias))
        usual = mean_sizes(self._context.data.rows, np.arange(self._context.features, dtype=np.int32))
        logits = self._weights.T * np.float32(LOGITS_PER_MARGIN)  # (f, labels)
        feature, label = np.nonzero((np.abs(logits) * usual[:, None] >= MIN_LOGIT) & (count > 0))
        bias = np.where(count > 0, LOGITS_PER_MARGIN * (self._bias + 1), 0).astype(np.float32)
        counts = np.bincount(feature, minlength=len(logits))
        return LabelWeights(offsets_of(counts), label.astype(np.int32), logits[feature, label], bias)
