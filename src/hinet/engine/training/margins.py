"""Training of the margin expert: each label against all others, independently, in any number of threads.

With one label per row, it is an L2-regularised squared hinge by dual coordinate descent, which updates the dual
variable of one row at a time (Hsieh et al., 2008).

With sets of labels, there are too many labels to train each on all rows. The margin of a label starts at -1 for every
row, which is right for all rows without it. Training thus begins with the rows of the label. The rows without it that
have the largest margins are then added, several per row of the label, and training continues, a few times. Most
features hardly count, so that only those with the largest weights decide which rows are added. A checkpoint has the
rows of each label and the steps along them that its weights are the sum of.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.compiled import inlined, kernel
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import Floats, LabelWeights
from hinet.engine.model.experts.labels import ABSENT_LOGIT
from hinet.engine.model.kernels import MIX
from hinet.engine.settings import MemoryPlan
from hinet.engine.training.deep import LabelTargets
from hinet.engine.training.rows import Arrays, ExpertTraining, Job, TrainingContext
from hinet.engine.training.wide import mean_sizes, shuffle
from hinet.ragged import group_by, offsets_of

F4 = np.float32
PARTS = 8  # parts of the labels
COST = 3.0  # weight of the squared hinge of a row, compared with half of the squared weights
MAX_EPOCHS, MAX_SET_EPOCHS = 6, 2  # epochs, and those for each set of rows
TOLERANCE = 0.1  # maximum violation of the optimality conditions
LOGITS_PER_MARGIN = 10.0
MIN_LOGIT = 0.01  # weights that usually add less to a logit are dropped
MIN_NEW_ROWS = 5  # rows of a new label in further training from which its margin is learned, once
OTHERS_PER_NEW_ROW = 2  # minimum number of rows of other labels for each; without them it would always win
BYTES_TO_JOIN = 40  # memory per weight of the model that is trained further, while new ones are sorted in
MIN_SQUARE = 1e-12

ROUNDS = 4  # how often hard rows are added
HARD_ROWS, HARD_PER_ROW = 50, 5  # rows added each time, and in addition per row of the label
STRONG_FEATURES = 200  # features that decide which rows are hard
ABSENT_MARGIN = -1.0  # margin of a label before training
LOGITS_PER_SET_MARGIN = -ABSENT_LOGIT
LABELS_AT_ONCE = 32  # labels between cancellation checks
WEIGHTS_OF_LABEL = 8_000  # estimate of the number of weights that are kept per label
STEP_BYTES = 8  # bytes per row that a label is trained on
VALUE_BYTES = 12  # bytes per value of rows that are scaled, and sorted by feature


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
        square = _squares(rows)[row]
        scale = 1 / np.sqrt(np.maximum(square, MIN_SQUARE))
        return cls(rows, row, label, scale, 1 + scale**2 * square, COST * arrays.entry_share[entry].astype(np.float64))


class SetRows(NamedTuple):
    """Rows scaled to length 1, by row and by feature, and the rows of each label."""

    offsets: NDArray[np.int64]  # (n + 1,)
    feature: NDArray[np.int32]
    value: Floats
    feature_offsets: NDArray[np.int64]  # (f + 1,)
    row: NDArray[np.int32]
    value_of_row: Floats
    cost: NDArray[np.float64]  # (n,) weight of the squared hinge
    label_offsets: NDArray[np.int64]  # (labels + 1,)
    label_row: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        rows: SparseMatrix,
        features: int,
        label: NDArray[np.int64],
        row: NDArray[np.int64],
        share: Floats,
        labels: int,
    ) -> SetRows:
        """Return the sparse part of rows; ``row`` has ``label``, and a share of a row is its weight."""
        lengths = np.diff(rows.indptr)
        value = (rows.data / np.repeat(np.sqrt(np.maximum(_squares(rows), MIN_SQUARE)), lengths)).astype(np.float32)
        by_feature = sp.csr_array((value, rows.indices, rows.indptr), shape=(rows.row_count, features)).tocsc()
        counted = share[row] > 0
        order, label_offsets = group_by(label[counted], labels)
        return cls(
            rows.indptr.astype(np.int64),
            rows.indices.astype(np.int32),
            value,
            by_feature.indptr.astype(np.int64),
            by_feature.indices.astype(np.int32),
            by_feature.data,
            COST * share.astype(np.float64),
            label_offsets,
            row[counted][order],
        )

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self.offsets) - 1

    def capacity(self) -> NDArray[np.int64]:
        """(labels,) Return the maximum number of rows that each label is trained on."""
        own = np.diff(self.label_offsets)
        return np.where(own > 0, np.minimum(own + ROUNDS * (HARD_ROWS + HARD_PER_ROW * own), self.row_count), 0)


class Steps(NamedTuple):
    """The rows of each label, and the steps along them that its weights are the sum of."""

    offsets: NDArray[np.int64]  # (labels + 1,)
    row: NDArray[np.int32]
    step: Floats  # 0 for rows that do not count

    @classmethod
    def none(cls, rows: SetRows) -> Steps:
        """Return steps of zero."""
        offsets = offsets_of(rows.capacity())
        return cls(offsets, np.zeros(offsets[-1], np.int32), np.zeros(offsets[-1], np.float32))


@kernel
def train_set_margins(data, first, last, seed, steps):
    """Train the labels ``first:last``, write their steps, and return the sum of the objectives."""
    count = len(data.offsets) - 1
    weights, margin = np.zeros(len(data.feature_offsets) - 1, np.float32), np.empty(count, np.float32)
    listed, sign, dual = np.zeros(count, np.bool_), np.empty(count, np.float32), np.zeros(count)
    order, total = np.empty(count, np.int64), 0.0
    for label in range(first, last):
        begin, used = steps.offsets[label], 0
        for index in range(data.label_offsets[label], data.label_offsets[label + 1]):
            used = add_row(data.label_row[index], F4(1), used, listed, sign, dual, order)
        if used == 0:
            continue
        wanted, offset = HARD_ROWS + HARD_PER_ROW * used, F4(ABSENT_MARGIN)
        capacity = steps.offsets[label + 1] - begin
        state = (np.uint64(seed) + np.uint64(1)) * MIX + np.uint64(label + 1) * np.uint64(0xBF58476D1CE4E5B9)
        for turn in range(ROUNDS + 1):
            if turn > 0:
                used = add_hard_rows(
                    data, weights, margin, min(wanted, capacity - used), used, listed, sign, dual, order
                )
            offset, state = descend(data, order[:used], sign, dual, weights, offset, state)
        for feature in range(len(weights)):
            total += F4(0.5) * weights[feature] * weights[feature]
        for index in range(used):
            row = order[index]
            steps.row[begin + index], steps.step[begin + index] = row, sign[row] * dual[row]
            listed[row] = False
        for index in range(used):
            total += dual[order[index]] * dual[order[index]] / (4 * data.cost[order[index]])
        weights[:] = 0
    return total


@inlined
def add_row(row, side, used, listed, sign, dual, order):
    """Add a row to those that a label is trained on; return their number."""
    order[used], listed[row], sign[row], dual[row] = row, True, side, 0.0
    return used + 1


@inlined
def add_hard_rows(data, weights, margin, wanted, used, listed, sign, dual, order):
    """Add the rows without the label that have the largest margins by strong features; return the number of rows."""
    if wanted <= 0:
        return used
    count, strong = len(margin), np.flatnonzero(weights)
    cut = F4(0)
    if len(strong) > STRONG_FEATURES:
        place = len(strong) - STRONG_FEATURES
        cut = np.partition(np.abs(weights[strong]), place)[place]
    margin[:] = 0
    for feature in strong:
        weight = weights[feature]
        if abs(weight) >= cut:
            for entry in range(data.feature_offsets[feature], data.feature_offsets[feature + 1]):
                margin[data.row[entry]] += weight * data.value_of_row[entry]
    for row in range(count):
        if listed[row] or data.cost[row] <= 0:
            margin[row] = -np.inf
    cut = F4(-np.inf)
    if wanted < count:
        cut = np.partition(margin, count - wanted)[count - wanted]
    most = used + wanted
    for row in range(count):
        if used < most and margin[row] >= cut and margin[row] > -np.inf:
            used = add_row(row, F4(-1), used, listed, sign, dual, order)
    return used


@inlined
def descend(data, order, sign, dual, weights, offset, state):
    """Improve the dual variables of rows by coordinate descent; return the offset of margins, and the random state.

    Rows whose dual variable is likely to stay 0 are set aside until the others have converged.
    """
    active, limit = len(order), np.inf
    for _ in range(MAX_SET_EPOCHS):
        state = shuffle(order[:active], state)
        position, highest, lowest = 0, -np.inf, np.inf
        while position < active:
            row = order[position]
            slack = 1 / (2 * data.cost[row])
            grad = sign[row] * (offset + set_margin_of(data, row, weights)) - 1 + slack * dual[row]
            if dual[row] == 0 and grad > limit:
                active -= 1
                order[position], order[active] = order[active], order[position]
                continue
            violation = min(grad, 0.0) if dual[row] == 0 else grad
            highest, lowest = max(highest, violation), min(lowest, violation)
            if violation != 0:
                old = dual[row]
                dual[row] = max(old - grad / (2 + slack), 0.0)  # a row has length 1, and a feature for the offset
                step = F4(sign[row] * (dual[row] - old))
                offset += step
                for entry in range(data.offsets[row], data.offsets[row + 1]):
                    weights[data.feature[entry]] += step * data.value[entry]
            position += 1
        if highest - lowest <= TOLERANCE:
            if active == len(order):
                break
            active, limit = len(order), np.inf
        else:
            limit = highest if highest > 0 else np.inf
    return offset, state


@inlined
def set_margin_of(data, row, weights):
    """Return the margin of a row without the offset."""
    total = F4(0)
    for entry in range(data.offsets[row], data.offsets[row + 1]):
        total += data.value[entry] * weights[data.feature[entry]]
    return total


@kernel
def sum_steps(data, label, steps, weights):
    """Fill in the weights of a label, and return its offset."""
    weights[:] = 0
    offset = F4(ABSENT_MARGIN)
    for index in range(steps.offsets[label], steps.offsets[label + 1]):
        row, step = steps.row[index], steps.step[index]
        if step != 0:
            offset += step
            for entry in range(data.offsets[row], data.offsets[row + 1]):
                weights[data.feature[entry]] += step * data.value[entry]
    return offset


def _squares(rows: SparseMatrix) -> NDArray[np.float64]:
    """Return the squared length of the sparse part of each row."""
    row_of_value = np.repeat(np.arange(rows.row_count), np.diff(rows.indptr))
    squares: NDArray[np.float64] = np.bincount(row_of_value, np.square(rows.data, dtype=np.float64), rows.row_count)
    return squares


@dataclass
class MarginJob(Job):
    """Trains the labels ``first:last`` to their end in a single epoch, a few between two cancellation checks."""

    name: str
    rows: int
    first: int
    last: int
    labels_at_once: int
    effort: float
    train: Callable[[int, int], float]  # returns the sum of the objectives of labels from the first to the last
    own: Mapping[str, tuple[NDArray[Any], slice]]  # arrays that the labels fill in
    epochs: int = 1

    def work(self) -> float:
        """Return an estimate of the work."""
        return self.effort

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train the labels; the cost is the mean objective per row."""
        rows, objective, done = max(self.rows, 1), 0.0, 0
        for first in range(self.first, self.last, self.labels_at_once):
            last = min(first + self.labels_at_once, self.last)
            objective += self.train(first, last)
            seen = rows * (last - self.first) // (self.last - self.first)
            advance(seen - done)
            done = seen
        return objective / rows

    def state(self) -> Arrays:
        """Return what the labels fill in."""
        return {name: array[own] for name, (array, own) in self.own.items()}

    def fault_of(self, state: Mapping[str, NDArray[Any]]) -> str | None:
        """Return an error if rows do not exist."""
        row = state.get("row", np.zeros(0))
        outside = len(row) and not 0 <= row.min() <= row.max() < self.rows
        return f"a row is not below {self.rows:,}" if outside else None


class LabelMargins:
    """The training of the margins of labels with one label per row; further training adds those of new labels."""

    def __init__(self, context: TrainingContext) -> None:
        self._data, self._seed, self._features = LabelledRows.of(context), context.settings.seed, context.features
        self._before = None if context.start is None else context.start.experts.margin
        labels = len(context.spans.neuron)
        rows = np.bincount(self._data.label, minlength=labels)
        learned = rows > 0
        if self._before is not None:
            learned = (rows >= MIN_NEW_ROWS) & (len(self._data.label) - rows >= OTHERS_PER_NEW_ROW * rows)
            if len(self._before.bias):
                learned &= self._before.bias == 0  # the score of a label without rows
        self.labels = np.flatnonzero(learned)
        self._bias = np.zeros(labels, np.float32)

    @cached_property
    def _weights(self) -> Floats:
        return np.zeros((len(self.labels), self._features), np.float32)

    def jobs(self) -> list[Job]:
        """Return jobs of about the same number of labels."""
        values, rows = len(self._data.rows.indices), self._data.rows.row_count
        parts = [part for part in np.array_split(np.arange(len(self.labels)), PARTS) if len(part)]
        jobs: list[Job] = []
        for number, part in enumerate(parts, start=1):
            own = slice(int(part[0]), int(part[-1]) + 1)
            of_labels = slice(int(self.labels[own.start]), int(self.labels[own.stop - 1]) + 1)
            arrays = {"weight": (self._weights, own), "bias": (self._bias, of_labels)}
            effort = 10.0 * len(part) * values
            jobs.append(MarginJob(f"margin {number}", rows, own.start, own.stop, 1, effort, self._train, arrays))
        return jobs

    def _train(self, position: int, _: int) -> float:
        plan = (MAX_EPOCHS, TOLERANCE, self._seed)
        return float(train_margin(self._data, self.labels[position], plan, self._bias, self._weights[position]))

    def trained(self) -> LabelWeights:
        """Return the weights in logits, without those that hardly count.

        The score of a label is a multiple of its margin plus 1, so that of a label without rows is 0.
        """
        usual = mean_sizes(self._data.rows, np.arange(self._features, dtype=np.int32))
        logits = self._weights.T * np.float32(LOGITS_PER_MARGIN)  # (f, learned labels)
        feature, position = np.nonzero(np.abs(logits) * usual[:, None] >= MIN_LOGIT)
        label, value = self.labels[position].astype(np.int32), logits[feature, position]
        bias = np.zeros(len(self._bias), np.float32)
        bias[self.labels] = LOGITS_PER_MARGIN * (self._bias[self.labels] + 1)
        if self._before is not None:
            feature = np.append(np.repeat(np.arange(self._features), np.diff(self._before.offsets)), feature)
            label, value = np.append(self._before.label, label), np.append(self._before.value, value)
            order = np.lexsort((label, feature))
            feature, label, value = feature[order], label[order], value[order]
            bias += self._before.bias if len(self._before.bias) else np.float32(0)
        return LabelWeights(offsets_of(np.bincount(feature, minlength=self._features)), label, value, bias)


class SetMargins:
    """The training of the margins of all labels with sets of labels."""

    def __init__(self, context: TrainingContext) -> None:
        labels = len(context.spans.neuron)
        targets = LabelTargets.of(context.targets, context.spans, np.zeros(labels), context.settings)
        row = np.repeat(np.arange(len(context.targets)), np.diff(targets.offsets))
        arrays = context.targets.arrays
        share = arrays.entry_share[arrays.row_offsets[:-1]]  # a row has one target, its set
        self._data = SetRows.of(context.data.rows, context.features, targets.label, row, share, labels)
        self._steps, self._seed = Steps.none(self._data), context.settings.seed

    def jobs(self) -> list[Job]:
        """Return jobs of about the same number of pairs of label and row."""
        offsets, rows = self._steps.offsets, self._data.row_count
        bounds = np.searchsorted(offsets, np.linspace(0, offsets[-1], PARTS + 1)[1:-1])
        bounds = np.unique([0, *bounds.tolist(), len(offsets) - 1]).tolist()
        jobs: list[Job] = []
        for number, (first, last) in enumerate(pairwise(bounds), start=1):
            own = slice(int(offsets[first]), int(offsets[last]))
            arrays = {"row": (self._steps.row, own), "step": (self._steps.step, own)}
            effort = 10.0 * (own.stop - own.start) * len(self._data.value) / max(rows, 1)  # three passes over features
            jobs.append(MarginJob(f"margin {number}", rows, first, last, LABELS_AT_ONCE, effort, self._train, arrays))
        return jobs

    def _train(self, first: int, last: int) -> float:
        return float(train_set_margins(self._data, first, last, self._seed, self._steps))

    def trained(self) -> LabelWeights:
        """Return the weights in logits, without those that hardly count."""
        data, labels, features = self._data, len(self._steps.offsets) - 1, len(self._data.feature_offsets) - 1
        unit = SparseMatrix(data.offsets, data.feature, data.value, np.zeros((data.row_count, 0), np.float32))
        usual = mean_sizes(unit, np.arange(features, dtype=np.int32)).astype(np.float32)
        weights, bias = np.zeros(features, np.float32), np.full(labels, ABSENT_LOGIT, np.float32)
        found: list[NDArray[np.int32]] = []
        values: list[Floats] = []
        for label in range(labels):
            bias[label] = LOGITS_PER_SET_MARGIN * sum_steps(data, label, self._steps, weights)
            kept = np.flatnonzero(LOGITS_PER_SET_MARGIN * np.abs(weights) * usual >= MIN_LOGIT).astype(np.int32)
            found.append(kept)
            values.append(np.float32(LOGITS_PER_SET_MARGIN) * weights[kept])
        offsets = offsets_of(np.array([len(kept) for kept in found], np.int64))
        by_label = sp.csr_array((np.concatenate(values), np.concatenate(found), offsets), shape=(labels, features))
        by_feature = by_label.tocsc()
        return LabelWeights(
            by_feature.indptr.astype(np.int64), by_feature.indices.astype(np.int32), by_feature.data, bias
        )


class MarginTraining(ExpertTraining):
    """The training of the margin expert; further training keeps its weights, and adds those of new labels."""

    kernels = (train_margin, train_set_margins, sum_steps)

    def memory(self) -> MemoryPlan:
        """Return the memory of the weights of all labels and features; with sets of labels, of those that count."""
        rows, labels = self.context.data.rows, len(self.context.spans.neuron)
        if not self._trains:
            return MemoryPlan(0, 0, 0, 0)
        if isinstance(self._margins, LabelMargins):
            weights = 4 * len(self._margins.labels) * self.context.features
            before = 0 if self.context.start is None else len(self.context.start.experts.margin.value)
            return MemoryPlan(weights, 0, 0, 3 * weights + BYTES_TO_JOIN * before)
        entries = len(self.context.targets.arrays.entry_target)
        steps = min(entries + ROUNDS * (HARD_ROWS * labels + HARD_PER_ROW * entries), labels * rows.row_count)
        weights = 8 * WEIGHTS_OF_LABEL * labels
        return MemoryPlan(weights, 0, VALUE_BYTES * len(rows.indices) + STEP_BYTES * steps, 2 * weights)

    def jobs(self) -> list[Job]:
        """Return jobs for parts of the labels."""
        return self._margins.jobs() if self._trains else []

    def trained(self) -> LabelWeights:
        """Return the weights in logits."""
        start = self.context.start
        return self._margins.trained() if start is None or self._trains else start.experts.margin

    @property
    def _trains(self) -> bool:
        """Whether there is something to train: all labels, or in further training new ones with one label per row."""
        if self.context.start is not None and self.context.layers.multilabel:
            return False
        return isinstance(self._margins, SetMargins) or len(self._margins.labels) > 0

    @cached_property
    def _margins(self) -> LabelMargins | SetMargins:
        return (SetMargins if self.context.layers.multilabel else LabelMargins)(self.context)
