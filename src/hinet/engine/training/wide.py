"""Training of the wide expert: by group if groups are independent, by row if labels with several paths couple them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.column_kernels import MIX, mean_sizes
from hinet.engine.model.experts import Floats, WideExpert
from hinet.engine.model.experts.wide import WEIGHT
from hinet.engine.model.groups import Groups, Targets
from hinet.engine.settings import MemoryPlan
from hinet.engine.training.jobs import Arrays, Averaged, ExpertTraining, Job, RowChunk
from hinet.engine.training.label_weights import incidence, sum_by_target
from hinet.engine.training.rows import TrainingContext, TrainingSet
from hinet.engine.training.wide_kernels import (
    WeightIndices,
    WideWeights,
    count_weights,
    find_weights,
    prune_weights,
    train_groups,
    train_wide,
)
from hinet.ragged import offsets_of, positions

PARTS = 8  # parts of the independent groups
IN_TRAINING = np.dtype([("row", np.int32), ("weight", np.float32), ("accumulator", np.float32)])


@dataclass(frozen=True)
class WidePlan:
    """Epochs, learning rate and features of the wide expert."""

    feature_rank: NDArray[np.int32]  # (f,)
    features: int  # number of ranks
    epochs: int
    rate: float
    accumulator: float
    seed: int
    threads: int
    prior: Floats  # (output rows,) initial biases


class Visits(NamedTuple):
    """Rows that pass through groups on the paths to their labels, sorted by group, then by option."""

    row: NDArray[np.int64]
    option: NDArray[np.int32]
    share: Floats
    offsets: NDArray[np.int64]  # (neurons + 1,)

    @classmethod
    def of(cls, data: TrainingSet) -> Visits:
        """Return the visits of all groups with several options."""
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
    """Weights that are filled in as groups are trained."""

    entry_offsets: NDArray[np.int64]  # (neurons + 1,)
    group_weights: NDArray[np.int64]  # (neurons + 1,) offsets of the weights of each group
    feature: NDArray[np.int32]
    weight_offsets: NDArray[np.int64]
    weights: NDArray[np.void]


class IndependentGroups:
    """The wide expert of labels with single paths: parts of the groups train in any number of threads."""

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
        """Return jobs of about the same size."""
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
        part = _balanced_parts(traffic, PARTS)
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
    """Trains some groups of the wide expert, each for all its epochs in a single epoch of the job."""

    name: str
    data: TrainingSet
    visits: Visits
    groups: NDArray[np.int64]
    plan: WidePlan
    trained: _Trained
    bias: Floats
    epochs: int = 1

    def work(self) -> float:
        """Return an estimate of the work."""
        visits = np.diff(self.visits.offsets)[self.groups].sum()
        return float(self.plan.epochs * visits * 600.0 * len(self.data.rows.indices) / max(self.data.rows.row_count, 1))

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train the groups; the cost is that of their last epoch."""
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
        """Return which array exceeds the features, weights or output rows of the groups."""
        feature, ends, row = state["feature"], state["weight_offset"], state["row"]
        group = np.repeat(self.groups, np.diff(self.trained.entry_offsets)[self.groups])  # (entries,)
        is_first = np.append(True, group[1:] != group[:-1])[: len(group)]
        is_last = np.append(group[1:] != group[:-1], True)[: len(group)]
        if np.any((feature < 0) | (feature >= self.plan.features) | (~is_first & (feature <= np.roll(feature, 1)))):
            return "feature numbers are out of range or not sorted"
        starts = np.where(is_first, self.trained.group_weights[group], np.roll(ends, 1))
        if np.any(ends < starts) or np.any(ends[is_last] != self.trained.group_weights[group[is_last] + 1]):
            return "weight offsets are out of range or not ascending"
        group = np.repeat(self.groups, np.diff(self.trained.group_weights)[self.groups])  # (weights,)
        if np.any((row < self.data.groups.first_row[group]) | (row >= self.data.groups.first_row[group + 1])):
            return "output rows are out of range"
        return None

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Copy features, weights and biases into the arrays of the expert."""
        for name, (array, own) in self._own().items():
            array[own] = state[name]

    def _own(self) -> dict[str, tuple[NDArray[Any], NDArray[np.int64]]]:
        """Return the arrays that an epoch fills in, with the indices of the groups."""

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


_Method: TypeAlias = IndependentGroups | CoupledGroups


class WideTraining(ExpertTraining):
    """The training of the wide expert."""

    kernels = (train_groups, prune_weights, count_weights, mean_sizes)

    def __init__(self, context: TrainingContext, method: _Method) -> None:
        self._context, self._method = context, method

    @classmethod
    def of(cls, context: TrainingContext) -> Self | None:
        """Return the training: by group if every label has a single path and training starts from scratch."""
        settings, start, rows = context.settings, context.start, context.data.rows
        wanted = settings.wants_wide(flat=context.has_flat, margin=context.has_margin)
        if not (wanted if start is None else start.mix.wide):
            return None
        before = None if start is None else start.experts.wide
        rank = before.feature_rank if before else rank_features(rows, context.features, settings.wide_buckets)
        plan = WidePlan(
            rank,
            int(rank.max(initial=-1)) + 1,
            settings.epochs_of_wide(rows.row_count),
            settings.wide_rate_for(rows.mean_features),
            context.initial_accumulator(settings.wide_accumulator),
            settings.seed,
            settings.thread_count,
            context.prior,
        )
        data, targets = context.data._replace(rows=rows._replace(indices=rank[rows.indices])), context.targets
        single = len(targets.arrays.choice_option) == len(targets.arrays.step_group)
        if single and before is None and not targets.layers.multilabel:
            return cls(context, IndependentGroups(data, plan))
        return cls(context, CoupledGroups(data, targets, plan, before))

    def memory(self) -> MemoryPlan:
        """Return the memory of the weights."""
        return MemoryPlan(8 * self._method.weights, 0, self._method.scratch, 12 * self._method.weights)

    def jobs(self) -> list[Job]:
        """Return jobs for parts of the groups, or for all of them."""
        return self._method.jobs()

    def trained(self) -> WideExpert:
        """Return the trained weights; those that hardly count are pruned if training started from scratch."""
        wide, context = self._method.expert(), self._context
        if context.start is not None:
            return wide
        usual = mean_sizes(context.data.rows, wide.feature_rank)
        feature, offsets, weights, before = prune_weights(
            wide.feature, wide.weight_offsets, wide.weights, usual, context.settings.wide_prune
        )
        return wide._replace(
            entry_offsets=before[wide.entry_offsets], feature=feature, weight_offsets=offsets, weights=weights
        )


def rank_features(rows: SparseMatrix, features: int, buckets: int | None) -> NDArray[np.int32]:
    """Return the rank of each feature, the most frequent first; more than ``buckets`` features are hashed."""
    hashed = np.arange(features)
    if buckets is not None and buckets < features:
        mixed = np.arange(1, features + 1, dtype=np.uint64) * MIX
        hashed = ((mixed >> np.uint64(32)) % np.uint64(buckets)).astype(np.int64)
    counts = np.bincount(hashed, np.bincount(rows.indices, minlength=features))
    rank = np.empty(len(counts), np.int32)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return rank[hashed]


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
    target_rows = incidence(target_of_choice[owns], choice_row[owns], (count, groups.rows))
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


def _balanced_parts(traffic: NDArray[np.float64], parts: int) -> NDArray[np.int64]:
    """Return a part for every group with about equal traffic: the busiest group goes to the least loaded part."""
    part = np.zeros(len(traffic), np.int64)
    load = np.zeros(parts)
    busy = np.argsort(-traffic, kind="stable")
    exact = 1_000 * parts
    for group in busy[:exact].tolist():
        part[group] = load.argmin()
        load[part[group]] += traffic[group]
    part[busy[exact:]] = np.arange(max(len(busy) - exact, 0)) % parts
    return part
