"""Training of margins for sets of labels: each label against its own rows and the hardest others.

There are too many labels to train each on all rows. The margin of a label starts at -1 for every row, which is right
for all rows without it. Training thus begins with the rows of the label. The rows without it that have the largest
margins are then added, several per row of the label, and training continues, a few times. Most features hardly count,
so that only those with the largest weights decide which rows are added. Labels are independent of each other, and of
the number of threads. A checkpoint has the rows of each label and the steps along them that its weights are the sum of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.compiled import inlined, kernel
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.column_kernels import MIX, mean_sizes
from hinet.engine.model.experts import Floats, LabelWeights
from hinet.engine.model.experts.label_weights import ABSENT_LOGIT
from hinet.engine.settings import MemoryPlan
from hinet.engine.training.jobs import Arrays, Job
from hinet.engine.training.wide_kernels import shuffle
from hinet.ragged import group_by, offsets_of

F4 = np.float32
PARTS = 8  # parts of the labels
ROUNDS = 4  # how often hard rows are added
HARD_ROWS, HARD_PER_ROW = 50, 5  # rows added each time, and in addition per row of the label
STRONG_FEATURES = 200  # features that decide which rows are hard
COST = 3.0  # weight of the squared hinge of a row, compared with half of the squared weights
MAX_EPOCHS = 2  # epochs for each set of rows
TOLERANCE = 0.1  # maximum violation of the optimality conditions
ABSENT_MARGIN = -1.0  # margin of a label before training
LOGITS_PER_MARGIN = -ABSENT_LOGIT
MIN_LOGIT = 0.01  # weights that usually add less to a logit are dropped
MIN_SQUARE = 1e-12
LABELS_AT_ONCE = 32  # labels between cancellation checks
WEIGHTS_OF_LABEL = 8_000  # estimate of the number of weights that are kept per label
STEP_BYTES = 8  # bytes per row that a label is trained on
VALUE_BYTES = 12  # bytes per value of rows that are scaled, and sorted by feature


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
        row_of_value = np.repeat(np.arange(rows.row_count), lengths)
        square = np.bincount(row_of_value, np.square(rows.data, dtype=np.float64), rows.row_count)
        value = (rows.data / np.sqrt(np.maximum(square, MIN_SQUARE))[row_of_value]).astype(np.float32)
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
    for _ in range(MAX_EPOCHS):
        state = shuffle(order[:active], state)
        position, highest, lowest = 0, -np.inf, np.inf
        while position < active:
            row = order[position]
            slack = 1 / (2 * data.cost[row])
            grad = sign[row] * (offset + margin_of(data, row, weights)) - 1 + slack * dual[row]
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
def margin_of(data, row, weights):
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


@dataclass
class SetLabelsJob(Job):
    """Trains some labels to their end in a single epoch."""

    name: str
    data: SetRows
    first: int
    last: int  # the labels are first:last
    seed: int
    steps: Steps
    epochs: int = 1

    def work(self) -> float:
        """Return an estimate of the work: three passes over the features of each row."""
        pairs = int(self.steps.offsets[self.last] - self.steps.offsets[self.first])
        return 10.0 * pairs * len(self.data.value) / max(self.data.row_count, 1)

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train the labels; the cost is the mean objective per row."""
        rows, objective, done = max(self.data.row_count, 1), 0.0, 0
        for first in range(self.first, self.last, LABELS_AT_ONCE):
            last = min(first + LABELS_AT_ONCE, self.last)
            objective += float(train_set_margins(self.data, first, last, self.seed, self.steps))
            seen = rows * (last - self.first) // (self.last - self.first)
            advance(seen - done)
            done = seen
        return objective / rows

    def state(self) -> Arrays:
        """Return the rows of the labels and their steps."""
        own = slice(int(self.steps.offsets[self.first]), int(self.steps.offsets[self.last]))
        return {"row": self.steps.row[own], "step": self.steps.step[own]}

    def fault_of(self, state: Any) -> str | None:
        """Return an error if rows do not exist."""
        row = state["row"]
        outside = len(row) and not 0 <= row.min() <= row.max() < self.data.row_count
        return f"a row is not below {self.data.row_count:,}" if outside else None


class SetMargins:
    """The training of the margins of all labels."""

    kernels = (train_set_margins, sum_steps)

    def __init__(self, data: SetRows, seed: int) -> None:
        self._data, self._steps = data, Steps.none(data)
        self._seed = seed

    def jobs(self) -> list[Job]:
        """Return jobs of about the same number of pairs of label and row."""
        offsets = self._steps.offsets
        bounds = np.searchsorted(offsets, np.linspace(0, offsets[-1], PARTS + 1)[1:-1])
        bounds = np.unique([0, *bounds.tolist(), len(offsets) - 1]).tolist()
        return [
            SetLabelsJob(f"margin {number}", self._data, first, last, self._seed, self._steps)
            for number, (first, last) in enumerate(pairwise(bounds), start=1)
        ]

    def trained(self) -> LabelWeights:
        """Return the weights in logits, without those that hardly count."""
        data, labels, features = self._data, len(self._steps.offsets) - 1, len(self._data.feature_offsets) - 1
        unit = SparseMatrix(data.offsets, data.feature, data.value, np.zeros((data.row_count, 0), np.float32))
        usual = mean_sizes(unit, np.arange(features, dtype=np.int32)).astype(np.float32)
        weights, bias = np.zeros(features, np.float32), np.full(labels, ABSENT_LOGIT, np.float32)
        found: list[NDArray[np.int32]] = []
        values: list[Floats] = []
        for label in range(labels):
            bias[label] = LOGITS_PER_MARGIN * sum_steps(data, label, self._steps, weights)
            kept = np.flatnonzero(LOGITS_PER_MARGIN * np.abs(weights) * usual >= MIN_LOGIT).astype(np.int32)
            found.append(kept)
            values.append(np.float32(LOGITS_PER_MARGIN) * weights[kept])
        offsets = offsets_of(np.array([len(kept) for kept in found], np.int64))
        by_label = sp.csr_array((np.concatenate(values), np.concatenate(found), offsets), shape=(labels, features))
        by_feature = by_label.tocsc()
        return LabelWeights(
            by_feature.indptr.astype(np.int64), by_feature.indices.astype(np.int32), by_feature.data, bias
        )


def memory_of_sets(rows: SparseMatrix, labels: int, entries: int) -> MemoryPlan:
    """Return the memory of the weights of all labels, of the rows, and of the rows that labels train on.

    ``entries`` is the number of labels of all rows.
    """
    weights = 8 * WEIGHTS_OF_LABEL * labels
    steps = min(entries + ROUNDS * (HARD_ROWS * labels + HARD_PER_ROW * entries), labels * rows.row_count)
    return MemoryPlan(weights, 0, VALUE_BYTES * len(rows.indices) + STEP_BYTES * steps, 2 * weights)
