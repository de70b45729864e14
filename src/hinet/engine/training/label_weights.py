"""Training of the experts with sparse weights of labels: prototypes and margins.

Prototypes are the mean rows of labels, which are used if validation rows gain by them. Margins are trained for each
label against all others, independently, in any number of threads: an L2-regularised squared hinge by dual coordinate
descent, which updates the dual variable of one row at a time (Hsieh et al., 2008). Those of sets of labels are in
:mod:`hinet.engine.training.set_margins`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple, Self

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.compiled import inlined, kernel
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.column_kernels import MIX, mean_sizes
from hinet.engine.model.experts import Floats, LabelWeights
from hinet.engine.model.groups import LabelSpans, Targets
from hinet.engine.settings import MAX_FLAT_LABELS, MemoryPlan
from hinet.engine.training.deep import LabelTargets
from hinet.engine.training.jobs import Arrays, ExpertTraining, Job
from hinet.engine.training.rows import TrainingContext
from hinet.engine.training.set_margins import SetMargins, SetRows, memory_of_sets
from hinet.engine.training.wide_kernels import shuffle
from hinet.ragged import offsets_of

F4 = np.float32
TEMPERATURES = (20.0, 40.0)  # lengths of prototypes that are tried
PARTS = 8  # parts of the labels
COST = 3.0  # weight of the squared hinge of a row, compared with half of the squared weights
MAX_EPOCHS = 6
TOLERANCE = 0.1  # maximum violation of the optimality conditions
LOGITS_PER_MARGIN = 10.0
MIN_LOGIT = 0.01  # weights that usually add less to a logit are dropped
MIN_SQUARE = 1e-12


class PrototypeTraining(ExpertTraining):
    """The training of prototypes."""

    def __init__(self, context: TrainingContext) -> None:
        self._context = context

    @classmethod
    def of(cls, context: TrainingContext) -> Self | None:
        """Return the training."""
        return cls(context)

    def trained(self) -> LabelWeights:
        """Return the prototypes of the model that is trained further; otherwise none, as they are candidates."""
        start = self._context.start
        return LabelWeights.none(self._context.features) if start is None else start.experts.prototypes

    def candidates(self) -> Mapping[float, Callable[[], LabelWeights]]:
        """Return prototypes by length if labels are few, as all of them are scored."""
        context = self._context
        if not 0 < len(context.spans.neuron) <= MAX_FLAT_LABELS or context.layers.multilabel:
            return {}
        make = partial(prototypes, context.data.rows, context.features, context.targets, context.spans)
        return {temperature: partial(make, temperature) for temperature in TEMPERATURES}


def prototypes(
    rows: SparseMatrix, features: int, targets: Targets, spans: LabelSpans, temperature: float
) -> LabelWeights:
    """Return the mean row of each label, scaled to length ``temperature``."""
    by_target = sum_by_target(rows, features, targets, values=True)
    label = spans.labels_at(targets.arrays.end_neurons())  # (targets,)
    by_label = (incidence(label, np.arange(len(label)), (len(spans.neuron), len(label))) @ by_target).tocsr()
    row = np.repeat(np.arange(by_label.shape[0]), np.diff(by_label.indptr))
    length = np.sqrt(np.bincount(row, by_label.data**2, by_label.shape[0]))
    scale = temperature / np.maximum(length, 1e-12)
    by_label.data *= scale[row].astype(np.float32)
    by_feature = by_label.T.tocsr()
    by_feature.sort_indices()
    return LabelWeights(by_feature.indptr.astype(np.int64), by_feature.indices.astype(np.int32), by_feature.data)


def sum_by_target(rows: SparseMatrix, features: int, targets: Targets, *, values: bool = False) -> sp.csr_array:
    """Return the weighted sum of the rows of each target; without ``values``, the number of rows per feature."""
    arrays = targets.arrays
    row_of_entry = np.repeat(np.arange(len(targets)), np.diff(arrays.row_offsets))
    data, share = (rows.data, arrays.entry_share) if values else map(np.ones_like, (rows.data, arrays.entry_share))
    shape = len(arrays.step_offsets) - 1, len(targets)
    members = sp.csr_array((share, (arrays.entry_target, row_of_entry)), shape=shape)
    return (members @ sp.csr_array((data, rows.indices, rows.indptr), shape=(len(targets), features))).tocsr()


def incidence(row: NDArray[np.int64], column: NDArray[np.int64], shape: tuple[int, int]) -> sp.csr_array:
    """Return a matrix of ones and zeros."""
    return sp.csr_array((np.ones(len(row), np.float32), (row, column)), shape=shape)


@kernel
def train_margin(data, label, plan, bias_of, weights):
    """Fit one label against all others, write its weights and its bias, and return the objective, if converged.

    ``plan`` is the maximum number of epochs, the tolerance, and the seed. The bias is the weight of a feature that is 1
    in every row. Rows whose dual variable is likely to stay 0 are set aside until the others have converged.
    """
    max_epochs, tolerance, seed = plan
    count = len(data.row)
    dual, bias = np.zeros(count), np.zeros(1)
    weights[:] = 0
    order = np.arange(count)
    state = (np.uint64(seed) + np.uint64(1)) * MIX + np.uint64(label + 1) * np.uint64(0xBF58476D1CE4E5B9)
    active, limit = count, np.inf
    for _ in range(max_epochs):
        state = shuffle(order[:active], state)
        position, highest, lowest = 0, -np.inf, np.inf
        while position < active:
            index = order[position]
            sign = 1.0 if data.label[index] == label else -1.0
            grad = sign * margin_of(data, index, weights, bias) - 1 + dual[index] / (2 * data.cost[index])
            if dual[index] == 0 and grad > limit:
                active -= 1
                order[position], order[active] = order[active], order[position]
                continue
            violation = min(grad, 0.0) if dual[index] == 0 else grad
            highest, lowest = max(highest, violation), min(lowest, violation)
            if violation != 0:
                old = dual[index]
                dual[index] = max(old - grad / (data.square[index] + 1 / (2 * data.cost[index])), 0.0)
                move(data, index, sign * (dual[index] - old), weights, bias)
            position += 1
        if highest - lowest <= tolerance:
            if active == count:
                break
            active, limit = count, np.inf
        else:
            limit = highest if highest > 0 else np.inf
    objective = 0.5 * bias[0] * bias[0]
    for feature in range(len(weights)):
        objective += 0.5 * weights[feature] * weights[feature]
    for index in range(count):
        objective += dual[index] * dual[index] / (4 * data.cost[index])
    bias_of[label] = bias[0]
    return objective


@inlined
def margin_of(data, index, weights, bias):
    """Return the margin of a row before its sign."""
    row, total = data.row[index], F4(0)
    for entry in range(data.rows.indptr[row], data.rows.indptr[row + 1]):
        total += data.rows.data[entry] * weights[data.rows.indices[entry]]
    return bias[0] + data.scale[index] * total


@inlined
def move(data, index, step, weights, bias):
    """Add a row times ``step`` to the weights."""
    row, scaled = data.row[index], F4(step * data.scale[index])
    bias[0] += step
    for entry in range(data.rows.indptr[row], data.rows.indptr[row + 1]):
        weights[data.rows.indices[entry]] += scaled * data.rows.data[entry]


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

    kernels = (train_margin, *SetMargins.kernels)

    def __init__(self, context: TrainingContext) -> None:
        self._context = context

    @classmethod
    def of(cls, context: TrainingContext) -> Self | None:
        """Return the training, or None without a margin expert."""
        return cls(context) if context.has_margin else None

    def memory(self) -> MemoryPlan:
        """Return the memory of the weights of all labels and features; with sets of labels, of those that count."""
        if self._context.layers.multilabel and not self._context.start:
            entries = len(self._context.rows.targets.arrays.entry_target)
            return memory_of_sets(self._context.data.rows, len(self._context.spans.neuron), entries)
        weights = 0 if self._context.start else 4 * len(self._context.spans.neuron) * self._context.features
        return MemoryPlan(weights, 0, 0, 3 * weights)

    def jobs(self) -> list[Job]:
        """Return jobs of about the same number of labels."""
        context = self._context
        if context.start is not None:
            return []
        if context.layers.multilabel:
            return self._sets.jobs()
        labels = len(context.spans.neuron)
        self._data = LabelledRows.of(context)
        self._weights = np.zeros((labels, context.features), np.float32)
        self._bias = np.zeros(labels, np.float32)
        parts = [part for part in np.array_split(np.arange(labels), PARTS) if len(part)]
        return [
            _LabelsJob(f"margin {number}", self._data, part, context.settings.seed, self._weights, self._bias)
            for number, part in enumerate(parts, start=1)
        ]

    @cached_property
    def _sets(self) -> SetMargins:
        """The training if rows have sets of labels."""
        context, labels = self._context, len(self._context.spans.neuron)
        targets = LabelTargets.of(context.targets, context.spans, np.zeros(labels), context.settings)
        row = np.repeat(np.arange(len(context.targets)), np.diff(targets.offsets))
        arrays = context.targets.arrays
        share = arrays.entry_share[arrays.row_offsets[:-1]]  # a row has one target, its set
        data = SetRows.of(context.data.rows, context.features, targets.label, row, share, labels)
        return SetMargins(data, context.settings.seed)

    def trained(self) -> LabelWeights:
        """Return the weights in logits, without those that hardly count.

        The score of a label is a multiple of its margin plus 1, so that of a label without rows is 0.
        """
        if self._context.start is not None:
            return self._context.start.experts.margin
        if self._context.layers.multilabel:
            return self._sets.trained()
        count = np.bincount(self._data.label, minlength=len(self._bias))
        usual = mean_sizes(self._context.data.rows, np.arange(self._context.features, dtype=np.int32))
        logits = self._weights.T * np.float32(LOGITS_PER_MARGIN)  # (f, labels)
        feature, label = np.nonzero((np.abs(logits) * usual[:, None] >= MIN_LOGIT) & (count > 0))
        bias = np.where(count > 0, LOGITS_PER_MARGIN * (self._bias + 1), 0).astype(np.float32)
        counts = np.bincount(feature, minlength=len(logits))
        return LabelWeights(offsets_of(counts), label.astype(np.int32), logits[feature, label], bias)
