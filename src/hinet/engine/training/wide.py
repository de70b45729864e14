"""Training of the wide expert: group by group where groups are independent, row by row where paths couple them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.engine.model.experts import WEIGHT, Floats, WideExpert
from hinet.engine.model.targets import Targets
from hinet.engine.training.cooccurrence import seen_together
from hinet.engine.training.jobs import Arrays, Job, TrainingSet
from hinet.engine.training.set_kernels import train_wide_sets
from hinet.engine.training.sharing import Averaged
from hinet.engine.training.wide_kernels import (
    WeightIndices,
    WideWeights,
    count_weights,
    find_weights,
    train_groups,
    train_wide,
)
from hinet.ragged import offsets_of, positions

PARTS = 8  # of the independent groups
IN_TRAINING = np.dtype([("row", np.int32), ("weight", np.float32), ("accumulator", np.float32)])


@dataclass(frozen=True)
class WidePlan:
    """How to train the wide expert."""

    feature_rank: NDArray[np.int32]  # (f,) the number that each feature is known by in the rows
    features: int  # numbers there are
    epochs: int
    rate: float
    accumulator: float
    seed: int
    threads: int
    prior: Floats  # (output rows,) what biases start from


class Visits(NamedTuple):
    """Rows that pass through groups on the way to their labels, sorted by group, then by option."""

    row: NDArray[np.int64]
    option: NDArray[np.int32]
    share: Floats
    offsets: NDArray[np.int64]  # (neurons + 1,)

    @classmethod
    def of(cls, data: TrainingSet) -> Visits:
        """Return the visits of all groups with a choice."""
        targets, groups = data.targets, data.groups
        lengths = np.diff(targets.step_offsets)[targets.entry_target]
        step = positions(targets.step_offsets[targets.entry_target], lengths)
        step = step[free := np.diff(groups.first_row)[targets.step_group[step]] > 0]
        entry = np.repeat(np.arange(len(targets.entry_target)), lengths)[free]
        row_of_entry = np.repeat(np.arange(data.rows.row_count), np.diff(targets.row_offsets))
        group, option = targets.step_group[step], targets.choice_option[targets.choice_offsets[step]]
        order = np.lexsort((option, group))
        return cls(
            row_of_entry[entry][order],
            option[order].astype(np.int32),
            targets.entry_share[entry][order],
            offsets_of(np.bincount(group, minlength=len(groups.first_row) - 1)),
        )


class _Trained(NamedTuple):
    """The weights of a wide expert, filled in as groups are trained."""

    entry_offsets: NDArray[np.int64]  # (neurons + 1,)
    group_weights: NDArray[np.int64]  # (neurons + 1,) where the weights of each group begin
    feature: NDArray[np.int32]
    weight_offsets: NDArray[np.int64]
    weights: NDArray[np.void]


class IndependentGroups:
    """The wide expert of labels with single paths: parts of its groups, in any number of threads."""

    def __init__(self, data: TrainingSet, plan: WidePlan) -> None:
        self._data, self._plan = data, plan
        self._visits = Visits.of(data)
        neurons = len(data.groups.first_row) - 1
        self._entries, self._counts = count_weights(data.rows, self._visits, plan.features, 0, neurons)
        self.weights = int(self._counts.sum())
        busiest = int(self._counts.max(initial=0))
        self.scratch = min(plan.threads, PARTS) * (4 * len(data.rows.indices) + 12 * busiest) + 12 * int(
            self._entries.sum()
        )

    def jobs(self) -> list[Job]:
        """Return parts of like size."""
        entry_offsets = offsets_of(self._entries)
        entries = int(entry_offsets[-1])
        self._trained = _Trained(
            entry_offsets,
            offsets_of(self._counts),
            np.empty(entries, np.int32),
            np.zeros(entries + 1, np.int64),
            np.empty(self.weights, WEIGHT),
        )
        self._bias = np.zeros(self._data.groups.first_row[-1], np.float32)
        traffic = np.diff(self._visits.offsets) * np.sqrt(np.diff(self._data.groups.first_row))
        part = _shared_out(traffic, PARTS)
        chosen = [np.flatnonzero((part == number) & (traffic > 0)) for number in range(PARTS)]
        return [
            _GroupsJob(f"wide {number + 1}", self._data, self._visits, groups, self._plan, self._trained, self._bias)
            for number, groups in enumerate(chosen)
            if len(groups)
        ]

    def expert(self) -> WideExpert:
        """Return the trained weights."""
        entry_offsets, _, feature, weight_offsets, weights = self._trained
        return WideExpert(self._plan.feature_rank, entry_offsets, feature, weight_offsets, weights, self._bias)


@dataclass
class _GroupsJob(Job):
    """Trains some groups of the wide expert, each to its end: one epoch, as far as others can see."""

    name: str
    data: TrainingSet
    visits: Visits
    groups: NDArray[np.int64]
    plan: WidePlan
    trained: _Trained
    bias: Floats
    epochs: int = 1

    def work(self) -> float:
        """Return about how much there is to do."""
        visits = np.diff(self.visits.offsets)[self.groups].sum()
        return float(self.plan.epochs * visits * 600.0 * len(self.data.rows.indices) / max(self.data.rows.row_count, 1))

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train the groups; the cost is that of their last epochs."""
        visits, rows = np.diff(self.visits.offsets), max(self.data.rows.row_count, 1)
        plan = (self.plan.epochs, self.plan.rate, self.plan.accumulator, self.plan.seed)
        cost, done, reported = 0.0, 0, 0
        whole = max(int(visits[self.groups].sum()), 1)
        for chunk in np.array_split(self.groups, min(len(self.groups), 16)):
            cost += float(
                train_groups(
                    self.data.rows, self.visits, self.data.groups, chunk, self.data.adjustment, plan,
                    self.plan.features, self.trained, self.bias,
                )
            )  # fmt: skip
            done += int(visits[chunk].sum())
            advance(rows * done // whole - reported)
            reported = rows * done // whole
        return cost / rows

    def state(self) -> Arrays:
        """Return the features, weights and biases of the groups."""
        return {name: array[own] for name, (array, own) in self._own().items()}

    def fault_of(self, state: Mapping[str, NDArray[Any]]) -> str | None:
        """Return which array points beyond the groups' own features, weights or output rows."""
        feature, ends, row = state["feature"], state["weight_offset"], state["row"]
        group = np.repeat(self.groups, np.diff(self.trained.entry_offsets)[self.groups])  # of each feature entry
        is_first = np.append(True, group[1:] != group[:-1])[: len(group)]
        is_last = np.append(group[1:] != group[:-1], True)[: len(group)]
        if np.any((feature < 0) | (feature >= self.plan.features) | (~is_first & (feature <= np.roll(feature, 1)))):
            return "feature numbers are out of range or not sorted"
        starts = np.where(is_first, self.trained.group_weights[group], np.roll(ends, 1))
        if np.any(ends < starts) or np.any(ends[is_last] != self.trained.group_weights[group[is_last] + 1]):
            return "weight offsets are out of range or fall"
        group = np.repeat(self.groups, np.diff(self.trained.group_weights)[self.groups])  # of each weight
        if np.any((row < self.data.groups.first_row[group]) | (row >= self.data.groups.first_row[group + 1])):
            return "output rows are out of range"
        return None

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up features, weights and biases."""
        for name, (array, own) in self._own().items():
            array[own] = state[name]

    def _own(self) -> dict[str, tuple[NDArray[Any], NDArray[np.int64]]]:
        """Return the arrays that an epoch fills in, with the indices that belong to the groups."""

        def runs(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
            return positions(offsets[self.groups], offsets[self.groups + 1] - offsets[self.groups])

        entries, weights = runs(self.trained.entry_offsets), runs(self.trained.group_weights)
        return {
            "feature": (self.trained.feature, entries),
            "weight_offset": (self.trained.weight_offsets, entries + 1),
            "row": (self.trained.weights["row"], weights),
            "weight": (self.trained.weights["weight"], weights),
            "bias": (self.bias, runs(self.data.groups.first_row)),
        }


class CoupledGroups(Job):
    """The wide expert where a label's paths share its rows by their probability, or a row has sets of labels.

    All groups of a row are trained at once. It is one job, by Adagrad, row by row.
    """

    name = "wide"

    def __init__(self, data: TrainingSet, targets: Targets, plan: WidePlan, start: WideExpert | None = None) -> None:
        self._data, self._plan, self.epochs = data, plan, plan.epochs
        offsets, rows = seen_together(data.rows, plan.features, targets, data.groups)
        self._start = np.zeros(len(rows), np.float32)
        self._bias = plan.prior.copy()
        self._train = train_wide_sets if targets.layers.multilabel else train_wide
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
        """Return the one job, with room for its weights."""
        weights = np.zeros(self.weights, IN_TRAINING)
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
        """Return about how much there is to do."""
        steps = len(self._data.targets.step_group) / max(len(self._data.targets.step_offsets) - 1, 1)
        return float(self.epochs * steps * 600.0 * len(self._data.rows.indices))

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Go over all rows once, in an order that the seed and the epoch decide."""
        if self._indices is None:
            self._indices = find_weights(self._data, self._wide)
        data, wide, indices, train = self._data, self._wide, self._indices, self._train
        order = np.random.default_rng([self._plan.seed, 1 << 11, epoch]).permutation(data.rows.row_count)
        cost = self.train_rows(order, self._plan.rate, epoch, advance, lambda chunk: train(data, chunk, wide, indices))
        if epoch + 1 == self.epochs:
            self._indices = None  # room for others
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


WideTraining: TypeAlias = IndependentGroups | CoupledGroups


def wide_training(data: TrainingSet, targets: Targets, plan: WidePlan, start: WideExpert | None = None) -> WideTraining:
    """Return the way to train the wide expert: group by group if every row has single paths and it starts anew."""
    single = len(targets.arrays.choice_option) == len(targets.arrays.step_group)
    if single and start is None and not targets.layers.multilabel:
        return IndependentGroups(data, plan)
    return CoupledGroups(data, targets, plan, start)


def _joined_pattern(
    offsets: NDArray[np.int64], rows: NDArray[np.int32], start: WideExpert, outputs: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], Floats]:
    """Return the pairs of feature and output row of a pattern and of an expert, with the weights of the expert."""
    new = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets)) * np.int64(outputs) + rows
    feature = np.repeat(start.feature, np.diff(start.weight_offsets)).astype(np.int64)
    old = feature * outputs + start.weights["row"]
    pairs = np.union1d(new, old)
    weights = np.zeros(len(pairs), np.float32)
    weights[np.searchsorted(pairs, old)] = start.weights["weight"]
    counts = np.bincount(pairs // outputs, minlength=len(offsets) - 1)
    return offsets_of(counts), (pairs % outputs).astype(np.int32), weights


def _shared_out(traffic: NDArray[np.float64], parts: int) -> NDArray[np.int64]:
    """Return a part for every group so that the traffic of the parts is alike: the busiest to the least loaded."""
    part = np.zeros(len(traffic), np.int64)
    load = np.zeros(parts)
    busy = np.argsort(-traffic, kind="stable")
    most = 1_000 * parts
    for group in busy[:most].tolist():
        part[group] = load.argmin()
        load[part[group]] += traffic[group]
    part[busy[most:]] = np.arange(max(len(busy) - most, 0)) % parts
    return part
