"""Training of the wide expert row by row, where groups are coupled.

A label with several paths, as in a DAG, is split over the groups of all paths by the model's own probabilities, so
:func:`train_wide` trains these groups together. It also trains on sets of labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.compiled import inlined, kernel
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import Floats, WideExpert
from hinet.engine.model.experts.wide import find_near
from hinet.engine.model.groups import Groups, Targets
from hinet.engine.training.checkpoints import Averaged
from hinet.engine.training.neighbours import sum_by_target
from hinet.engine.training.rows import Arrays, Job, RowChunk, TrainingSet
from hinet.engine.training.target_kernels import allocate_scratch, grads_of_row, list_groups, rate_at
from hinet.engine.training.wide import CERTAIN, WidePlan, largest_grad, move_biases, move_weight
from hinet.ragged import offsets_of

F4 = np.float32
ROW_WEIGHT = np.dtype([("row", np.int32), ("weight", np.float32), ("accumulator", np.float32)])


class CoupledGroups(Job):
    """The wide expert of labels with several paths, which share rows by probability, or of sets of labels.

    One job trains all groups of a row at once.
    """

    name = "wide"

    def __init__(self, data: TrainingSet, targets: Targets, plan: WidePlan, start: WideExpert | None = None) -> None:
        self._data, self._plan, self.epochs = data, plan, plan.epochs
        offsets, rows = seen_together(data.rows, plan.features, targets, data.groups)
        self._start = np.zeros(len(rows), np.float32)
        self._bias = plan.prior.copy()
        if start is not None:
            offsets, rows, self._start = _joined_pattern(offsets, rows, start, data.groups.rows)
            self._bias = start.bias.copy()
        self._offsets, self._rows = offsets, rows
        self.weights = len(self._rows)
        steps = np.diff(data.targets.step_offsets)[data.targets.entry_target]
        entry_row = np.repeat(np.arange(data.rows.row_count), np.diff(data.targets.row_offsets))
        self.scratch = 4 * int((np.diff(data.rows.indptr)[entry_row] * steps).sum()) + 12 * self.weights
        self._indices: WeightIndices | None = None

    def jobs(self) -> list[Job]:
        """Return the job with its weights allocated."""
        weights = np.zeros(self.weights, ROW_WEIGHT)
        weights["row"] = self._rows
        weights["weight"] = self._start
        weights["accumulator"] = self._plan.accumulator
        self._wide = WideWeights(self._offsets, weights, self._bias, np.ones(len(self._bias), np.float32))
        return [self]

    def expert(self) -> WideExpert:
        """Return the trained weights, sorted by group and feature."""
        weights = self._wide.weights
        feature = np.repeat(np.arange(len(self._offsets) - 1), np.diff(self._offsets))
        row = weights["row"].astype(np.int64)
        return WideExpert.of(self._plan.feature_rank, feature, row, weights["weight"], self._data.groups, self._bias)

    def work(self) -> float:
        """Return an estimate of the work."""
        steps = len(self._data.targets.step_group) / max(len(self._data.targets.step_offsets) - 1, 1)
        return float(self.epochs * steps * 600.0 * len(self._data.rows.indices))

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train on all rows, in an order that depends on the seed and the epoch."""
        if self._indices is None:
            self._indices = find_weights(self._data, self._wide)
        data, wide, indices = self._data, self._wide, self._indices
        order = np.random.default_rng([self._plan.seed, 1 << 11, epoch]).permutation(data.rows.row_count)

        def step(chunk: RowChunk) -> float:
            return float(train_wide(data, chunk, wide, indices))

        cost = self.train_rows(order, self._plan.rate, epoch, advance, step)
        if epoch + 1 == self.epochs:
            self._indices = None  # free the memory for other jobs
        return cost

    def averaged(self) -> list[Averaged]:
        """Return weights and biases, each with its sum of squared gradients."""
        wide = self._wide
        return [
            Averaged((wide.weights["weight"],), wide.weights["accumulator"]),
            Averaged((wide.bias,), wide.bias_accumulators),
        ]

    def state(self) -> Arrays:
        """Return weights, accumulators and biases."""
        return {
            "weight": self._wide.weights["weight"],
            "slot": self._wide.weights["accumulator"],
            "bias": self._wide.bias,
            "bias_slot": self._wide.bias_accumulators,
        }


def seen_together(
    rows: SparseMatrix, features: int, targets: Targets, groups: Groups
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the output rows on the paths of training rows with each feature: offsets by feature, sorted rows."""
    arrays = targets.arrays
    row_of_option = np.full(len(groups.option_neuron), -1, np.int64)
    row_of_option[groups.row_options()] = np.arange(groups.rows)
    choice_row = row_of_option[targets.choice_options()]
    count = len(arrays.step_offsets) - 1
    target_of_choice = np.repeat(np.arange(count), np.diff(arrays.choice_offsets[arrays.step_offsets]))
    owns = choice_row >= 0
    entries = np.ones(np.count_nonzero(owns), np.float32), (target_of_choice[owns], choice_row[owns])
    target_rows = sp.csr_array(entries, shape=(count, groups.rows))
    by_target = sum_by_target(rows, features, targets)
    pairs = (by_target.T.tocsr() @ target_rows).tocsr()
    pairs.sort_indices()
    return pairs.indptr.astype(np.int64), pairs.indices.astype(np.int32)


def _joined_pattern(
    offsets: NDArray[np.int64], rows: NDArray[np.int32], start: WideExpert, outputs: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], Floats]:
    """Return the pairs of feature and output row of a pattern and of an expert, with the expert's weights."""
    new = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) * np.int64(outputs) + rows
    feature = np.repeat(start.feature, np.diff(start.weight_offsets)).astype(np.int64)
    old = feature * outputs + start.weights["row"]
    pairs = np.union1d(new, old)
    weights = np.zeros(len(pairs), np.float32)
    weights[np.searchsorted(pairs, old)] = start.weights["weight"]
    counts = np.bincount(pairs // outputs, minlength=len(offsets) - 1)
    return offsets_of(counts), (pairs % outputs).astype(np.int32), weights


class WideWeights(NamedTuple):
    """The wide expert in training: ``weights[offsets[f]:offsets[f + 1]]`` are those of feature ``f``, by output row."""

    offsets: Any  # (features + 1,)
    weights: Any  # (weights,) with output row and accumulator
    bias: Any  # (output rows,)
    bias_accumulators: Any  # (output rows,)


class WeightIndices(NamedTuple):
    """Index of the first weight of every feature of every row in every group on its paths."""

    index: Any  # ordered by row, then group as in list_groups, then feature
    begins: Any  # (n + 1,) offset of each row


@kernel
def find_weights(data, wide):
    """Return all :class:`WeightIndices`."""
    rows, targets, groups, sizes, _ = data
    offsets, weights = wide.offsets, wide.weights
    scratch = allocate_scratch(*sizes)
    count = len(targets.row_offsets) - 1
    begins = np.zeros(count + 1, np.int64)
    for row in range(count):
        listed = list_groups(row, targets, groups, scratch)
        begins[row + 1] = begins[row] + listed * (rows.indptr[row + 1] - rows.indptr[row])
    indices = np.empty(begins[count], np.int32)
    for row in range(count):
        low, high = rows.indptr[row], rows.indptr[row + 1]
        begin = begins[row]
        above = -1
        for listed in range(list_groups(row, targets, groups, scratch)):
            base = groups.first_row[scratch.group[listed]]
            for entry in range(low, high):
                feature = rows.indices[entry]
                index = offsets[feature]
                if base > above >= 0:
                    index = np.int64(indices[begin - (high - low)])
                indices[begin] = find_near(weights["row"], index, offsets[feature + 1], base)
                begin += 1
            above = base
    return WeightIndices(indices, begins)


@kernel
def train_wide(data, chunk, wide, indices):
    """Train the wide expert on a chunk of rows; return their summed cost.

    ``indices`` are from :func:`find_weights`.
    """
    scratch = allocate_scratch(*data.max_sizes)
    cost = 0.0
    for position in range(len(chunk.order)):
        row, rate = chunk.order[position], rate_at(chunk, position)
        count = list_groups(row, data.targets, data.groups, scratch)
        for listed in range(count):
            score_group(data, row, listed, wide, indices, scratch)
        cost += grads_of_row(row, data.targets, data.groups, scratch, count)
        for listed in range(count):
            if largest_grad(scratch.p[scratch.start[listed] : scratch.start[listed + 1]]) >= CERTAIN:
                move_group(data, row, listed, rate, wide, indices, scratch)
    return cost


@inlined
def score_group(data, row, listed, wide, indices, scratch):
    """Fill in the training logits of a listed group."""
    rows, weights = data.rows, wide.weights
    start, base, after = bounds_of(data.groups, listed, scratch)
    for option in range(after - base):
        scratch.log_p[start + option] = wide.bias[base + option] + data.adjustment[base + option]
    low = rows.indptr[row]
    values = rows.indptr[row + 1] - low
    begin = indices.begins[row] + listed * values
    for entry in range(values):
        value = rows.data[low + entry]
        index, end = np.int64(indices.index[begin + entry]), wide.offsets[rows.indices[low + entry] + 1]
        while index < end and weights[index]["row"] < after:
            scratch.log_p[start + weights[index]["row"] - base] += value * weights[index]["weight"]
            index += 1


@inlined
def move_group(data, row, listed, rate, wide, indices, scratch):
    """Update the biases and weights of a listed group by Adagrad."""
    rows, weights = data.rows, wide.weights
    start, base, after = bounds_of(data.groups, listed, scratch)
    grads = scratch.p[start : start + after - base]
    move_biases(grads, rate, wide.bias[base:after], wide.bias_accumulators[base:after])
    low = rows.indptr[row]
    values = rows.indptr[row + 1] - low
    begin = indices.begins[row] + listed * values
    for entry in range(values):
        value = rows.data[low + entry]
        index, end = np.int64(indices.index[begin + entry]), wide.offsets[rows.indices[low + entry] + 1]
        while index < end and weights[index]["row"] < after:
            move_weight(value * grads[weights[index]["row"] - base], rate, weights, index)
            index += 1


@inlined
def bounds_of(groups, listed, scratch):
    """Return the offset of the options of a listed group, its first output row and the row after its last."""
    start = scratch.start[listed]
    base = groups.first_row[scratch.group[listed]]
    return start, base, base + scratch.start[listed + 1] - start
