"""Training of the wide expert: by group if groups are independent, otherwise by row.

If every label has a single path, groups share neither weights nor posteriors. :func:`train_groups` trains each group
for all its epochs before the next, which keeps its weights in the processor's cache and lets any number of threads
train different groups with the same result. A *visit* is a row that passes through a group on the path to a label;
visits are sorted by group, then by option.

Labels with several paths couple groups, and so do sets of labels: see :mod:`hinet.engine.training.wide_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined, kernel
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import Floats, WideExpert
from hinet.engine.model.experts.wide import WEIGHT
from hinet.engine.model.kernels import MIX
from hinet.engine.settings import MemoryPlan
from hinet.engine.training.rows import Arrays, ExpertTraining, Job, TrainingContext, TrainingSet
from hinet.ragged import offsets_of, positions

if TYPE_CHECKING:
    from hinet.engine.training.wide_rows import CoupledGroups

F4 = np.float32
PARTS = 8  # parts of the independent groups
OPTION_WEIGHT = np.dtype([("option", np.int32), ("weight", np.float32), ("accumulator", np.float32)])
CERTAIN = F4(1e-3)  # a group with only smaller gradients is not worth an update
BIAS_RATE = F4(0.05)  # rate of the biases relative to the weights


class WidePlan(NamedTuple):
    """Epochs, learning rate and features of the wide expert."""

    feature_rank: NDArray[np.int32]  # (f,)
    features: int  # number of ranks
    epochs: int
    rate: float
    accumulator: float  # initial sums of squared gradients
    seed: int
    threads: int
    prior: Floats  # (output rows,) initial biases

    @classmethod
    def of(cls, context: TrainingContext, start: WideExpert | None) -> WidePlan:
        """Return the plan of a context; ``start`` is the expert that is trained further, if there is one."""
        settings, rows = context.settings, context.data.rows
        rank = start.feature_rank if start else rank_features(rows, context.features, settings.wide_buckets)
        return cls(
            rank,
            int(rank.max(initial=-1)) + 1,
            settings.epochs_of_wide(rows.row_count),
            settings.wide_rate_for(rows.mean_features),
            context.initial_accumulator(settings.wide_accumulator),
            settings.seed,
            settings.thread_count,
            context.prior,
        )


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
        entry, step = targets.entry_steps()
        free = np.diff(groups.first_row)[targets.step_group[step]] > 0
        entry, step = entry[free], step[free]
        row_of_entry = np.repeat(np.arange(data.rows.row_count), np.diff(targets.row_offsets))
        group, option = targets.step_group[step], targets.choice_option[targets.choice_offsets[step]]
        order = np.lexsort((option, group))
        return cls(
            row_of_entry[entry][order],
            option[order].astype(np.int32),
            targets.entry_share[entry][order],
            offsets_of(np.bincount(group, minlength=len(groups.first_row) - 1)),
        )


class IndependentGroups:
    """The wide expert of labels with single paths: parts of the groups train in any number of threads."""

    def __init__(self, data: TrainingSet, plan: WidePlan) -> None:
        self._data, self._plan, self._visits = data, plan, Visits.of(data)
        self._entries, self._counts = count_weights(data.rows, self._visits, plan.features)
        self.weights = int(self._counts.sum())
        per_thread = 4 * len(data.rows.indices) + 12 * int(self._counts.max(initial=0))
        self.scratch = min(plan.threads, PARTS) * per_thread + 12 * int(self._entries.sum())

    def jobs(self) -> list[Job]:
        """Return jobs of about the same size."""
        data, visits, plan = self._data, self._visits, self._plan
        entries, group_weights = int(self._entries.sum()), offsets_of(self._counts)
        self._expert = WideExpert(
            plan.feature_rank,
            offsets_of(self._entries),
            np.empty(entries, np.int32),
            np.zeros(entries + 1, np.int64),
            np.empty(self.weights, WEIGHT),
            np.zeros(data.groups.first_row[-1], np.float32),
        )
        traffic = np.diff(visits.offsets) * np.sqrt(np.diff(data.groups.first_row))
        part = _balanced_parts(traffic, PARTS)
        chosen = [np.flatnonzero((part == number) & (traffic > 0)) for number in range(PARTS)]
        return [
            _GroupsJob(f"wide {number}", data, visits, groups, plan, group_weights, self._expert)
            for number, groups in enumerate(chosen, start=1)
            if len(groups)
        ]

    def expert(self) -> WideExpert:
        """Return the trained weights."""
        return self._expert


@dataclass
class _GroupsJob(Job):
    """Trains some groups of the wide expert, each for all its epochs in a single epoch of the job."""

    name: str
    data: TrainingSet
    visits: Visits
    groups: NDArray[np.int64]
    plan: WidePlan
    group_weights: NDArray[np.int64]  # (neurons + 1,) offsets of the weights of each group
    expert: WideExpert  # filled in as groups are trained
    epochs: int = 1

    def work(self) -> float:
        """Return an estimate of the work."""
        visits = np.diff(self.visits.offsets)[self.groups].sum()
        return float(self.plan.epochs * visits * 600.0 * len(self.data.rows.indices) / max(self.data.rows.row_count, 1))

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train the groups; the cost is that of their last epoch."""
        data, visits, rows = self.data, np.diff(self.visits.offsets), max(self.data.rows.row_count, 1)
        cost, done, reported = 0.0, 0, 0
        whole = max(int(visits[self.groups].sum()), 1)
        for chunk in np.array_split(self.groups, min(len(self.groups), 16)):
            cost += float(train_groups(data, self.visits, chunk, self.plan, self.group_weights, self.expert))
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
        group = np.repeat(self.groups, np.diff(self.expert.entry_offsets)[self.groups])  # (entries,)
        is_first = np.append(True, group[1:] != group[:-1])[: len(group)]
        is_last = np.append(group[1:] != group[:-1], True)[: len(group)]
        if np.any((feature < 0) | (feature >= self.plan.features) | (~is_first & (feature <= np.roll(feature, 1)))):
            return "feature numbers are out of range or not sorted"
        starts = np.where(is_first, self.group_weights[group], np.roll(ends, 1))
        if np.any(ends < starts) or np.any(ends[is_last] != self.group_weights[group[is_last] + 1]):
            return "weight offsets are out of range or not ascending"
        group = np.repeat(self.groups, np.diff(self.group_weights)[self.groups])  # (weights,)
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

        entries, weights = runs(self.expert.entry_offsets), runs(self.group_weights)
        return {
            "feature": (self.expert.feature, entries),
            "weight_offset": (self.expert.weight_offsets, entries + 1),
            "row": (self.expert.weights["row"], weights),
            "weight": (self.expert.weights["weight"], weights),
            "bias": (self.expert.bias, runs(self.data.groups.first_row)),
        }


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


@kernel
def count_weights(rows, visits, features):
    """Return the numbers of features, and of pairs of feature and option, of each group."""
    seen = np.full(features, -1, np.int64)
    counts = np.zeros((2, len(visits.offsets) - 1), np.int64)
    stamp = 0
    for group in range(len(visits.offsets) - 1):
        option = -1
        before = stamp
        for visit in range(visits.offsets[group], visits.offsets[group + 1]):
            if visits.option[visit] != option:
                option = visits.option[visit]
                stamp += 1
            row = visits.row[visit]
            for entry in range(rows.indptr[row], rows.indptr[row + 1]):
                if seen[rows.indices[entry]] != stamp:
                    counts[0, group] += seen[rows.indices[entry]] <= before
                    counts[1, group] += 1
                    seen[rows.indices[entry]] = stamp
    return counts


class Listed(NamedTuple):
    """The features of the visits of a group, numbered in order of first appearance."""

    feature: Any  # (numbers,) the feature of each number
    offsets: Any  # (numbers + 1,) offsets of its weights: one for each option it is seen with
    entry_number: Any  # (values,) the number of the feature of each value, visit by visit
    entry_start: Any  # (visits,) offset of the values of each visit


@kernel
def train_groups(data, visits, chosen, plan, group_weights, wide):
    """Train the ``chosen`` groups, each to its end, and write their weights out; return the cost of the last epochs.

    The features of group ``g`` go to ``wide`` from ``entry_offsets[g]`` on, in order, and their weights from
    ``group_weights[g]`` on.
    """
    rows, groups = data.rows, data.groups
    number_of = np.full(plan.features, -1, np.int32)  # number of each feature within the current group
    cost = 0.0
    for group in chosen:
        size = groups.first_row[group + 1] - groups.first_row[group]
        if visits.offsets[group] == visits.offsets[group + 1] or size == 0:
            continue
        listed = list_features(rows, visits, group, number_of)
        weights = lay_out_weights(rows, visits, group, listed, plan.accumulator)
        cost += train_group(rows, visits, groups, group, data.adjustment, plan, listed, weights, wide.bias)
        write_out(groups.first_row[group], group, listed, weights, number_of, group_weights, wide)
    return cost


@inlined
def list_features(rows, visits, group, number_of):
    """List the features of a group and write their numbers to ``number_of``, which is -1 for other features."""
    begin, end = visits.offsets[group], visits.offsets[group + 1]
    total = 0
    for visit in range(begin, end):
        total += rows.indptr[visits.row[visit] + 1] - rows.indptr[visits.row[visit]]
    entry_number, entry_start = np.empty(total, np.int32), np.empty(end - begin, np.int64)
    known = np.empty(min(total, len(number_of)), np.int32)
    last_option = np.empty(len(known), np.int32)
    offsets = np.zeros(len(known) + 1, np.int64)
    count, index = 0, 0
    for visit in range(begin, end):
        entry_start[visit - begin] = index
        row = visits.row[visit]
        for entry in range(rows.indptr[row], rows.indptr[row + 1]):
            feature = rows.indices[entry]
            number = number_of[feature]
            if number < 0:
                number = count
                number_of[feature] = count
                known[count] = feature
                last_option[count] = -1
                count += 1
            if last_option[number] != visits.option[visit]:
                last_option[number] = visits.option[visit]
                offsets[number + 1] += 1
            entry_number[index] = number
            index += 1
    for number in range(count):
        offsets[number + 1] += offsets[number]
    return Listed(known[:count], offsets[: count + 1], entry_number, entry_start)


@inlined
def lay_out_weights(rows, visits, group, listed, initial_accumulator):
    """Return the initial weights of a group, by feature, then by option."""
    begin, count = visits.offsets[group], len(listed.feature)
    weights = np.empty(listed.offsets[count], OPTION_WEIGHT)
    last_option = np.full(count, -1, np.int32)
    filled = listed.offsets[:count].copy()
    for visit in range(begin, visits.offsets[group + 1]):
        start = listed.entry_start[visit - begin]
        row = visits.row[visit]
        for entry in range(rows.indptr[row + 1] - rows.indptr[row]):
            number = listed.entry_number[start + entry]
            if last_option[number] != visits.option[visit]:
                last_option[number] = visits.option[visit]
                weights[filled[number]]["option"] = visits.option[visit]
                weights[filled[number]]["weight"] = 0
                weights[filled[number]]["accumulator"] = initial_accumulator
                filled[number] += 1
    return weights


@inlined
def write_out(base, group, listed, weights, number_of, group_weights, out):
    """Write the weights of a group sorted by feature, and clear its numbers; ``base`` is its first output row."""
    feature_entry, target = out.entry_offsets[group], group_weights[group]
    for number in np.argsort(listed.feature):
        feature = listed.feature[number]
        number_of[feature] = -1
        out.feature[feature_entry] = feature
        for index in range(listed.offsets[number], listed.offsets[number + 1]):
            out.weights[target]["row"] = base + weights[index]["option"]
            out.weights[target]["weight"] = weights[index]["weight"]
            target += 1
        feature_entry += 1
        out.weight_offsets[feature_entry] = target


@inlined
def train_group(rows, visits, groups, group, adjustment, plan, listed, weights, bias):
    """Train one group by Adagrad, shuffling its visits in each epoch; return the cost of the last epoch."""
    epochs, rate = plan.epochs, plan.rate
    base, after = groups.first_row[group], groups.first_row[group + 1]
    begin = visits.offsets[group]
    count = visits.offsets[group + 1] - begin
    order = np.arange(count)
    offsets, entry_number = listed.offsets, listed.entry_number
    state = (np.uint64(plan.seed) + np.uint64(1)) * MIX + np.uint64(group + 1) * np.uint64(0xBF58476D1CE4E5B9)
    logits = np.empty(after - base, np.float32)
    bias_accumulators = np.ones(after - base, np.float32)
    cost = 0.0
    for epoch in range(epochs):
        state = shuffle(order, state)
        cost = 0.0
        for position in range(count):
            step = F4(rate * (1 - (epoch * count + position) / (epochs * count)))
            visit, start = begin + order[position], listed.entry_start[order[position]]
            low = rows.indptr[visits.row[visit]]
            values = rows.indptr[visits.row[visit] + 1] - low
            for option in range(after - base):
                logits[option] = bias[base + option] + adjustment[base + option]
            for entry in range(values):
                value = rows.data[low + entry]
                number = entry_number[start + entry]
                for index in range(offsets[number], offsets[number + 1]):
                    logits[weights[index]["option"]] += value * weights[index]["weight"]
            cost += grads_of_option(visits.option[visit], visits.share[visit], logits)
            if largest_grad(logits) < CERTAIN:
                continue
            move_biases(logits, step, bias[base:after], bias_accumulators)
            for entry in range(values):
                value = rows.data[low + entry]
                number = entry_number[start + entry]
                for index in range(offsets[number], offsets[number + 1]):
                    move_weight(value * logits[weights[index]["option"]], step, weights, index)
    return cost


@inlined
def shuffle(order, state):
    """Shuffle an order (Fisher-Yates) with a random state; return the next state."""
    for index in range(len(order) - 1, 0, -1):
        state ^= state << np.uint64(13)
        state ^= state >> np.uint64(7)
        state ^= state << np.uint64(17)
        other = np.int64((state >> np.uint64(11)) % np.uint64(index + 1))
        order[index], order[other] = order[other], order[index]
    return state


@inlined
def grads_of_option(own, share, logits):
    """Turn the logits of a visit into their gradients, and return its cost."""
    top, total, cost = logits[0], F4(0), 0.0
    for option in range(1, len(logits)):
        top = max(top, logits[option])
    cost -= share * (logits[own] - top)
    for option in range(len(logits)):
        logits[option] = np.exp(logits[option] - top)
    for option in range(len(logits)):
        total += logits[option]
    cost += share * np.log(total)
    scale = share / total
    for option in range(len(logits)):
        logits[option] *= scale
    logits[own] -= share
    return cost


@kernel
def prune_weights(feature, weight_offsets, weights, usual, least):
    """Return features, offsets and weights without the weights that usually add less than ``least`` to a logit.

    Also returns the number of remaining feature entries before each one. Allocates nothing but the result.
    """
    entries = len(feature)
    before = np.zeros(entries + 1, np.int64)
    kept = 0
    for feature_entry in range(entries):
        some = False
        for index in range(weight_offsets[feature_entry], weight_offsets[feature_entry + 1]):
            if abs(weights[index]["weight"]) * usual[feature[feature_entry]] >= least:
                kept += 1
                some = True
        before[feature_entry + 1] = before[feature_entry] + some
    new_feature = np.empty(before[entries], feature.dtype)
    new_offsets = np.zeros(before[entries] + 1, np.int64)
    new_weights = np.empty(kept, weights.dtype)
    target = 0
    for feature_entry in range(entries):
        if before[feature_entry + 1] > before[feature_entry]:
            new_feature[before[feature_entry]] = feature[feature_entry]
            for index in range(weight_offsets[feature_entry], weight_offsets[feature_entry + 1]):
                if abs(weights[index]["weight"]) * usual[feature[feature_entry]] >= least:
                    new_weights[target]["row"] = weights[index]["row"]
                    new_weights[target]["weight"] = weights[index]["weight"]
                    target += 1
            new_offsets[before[feature_entry] + 1] = target
    return new_feature, new_offsets, new_weights, before


@inlined
def largest_grad(grads):
    """Return the largest absolute gradient of a group."""
    steepest = F4(0)
    for option in range(len(grads)):
        steepest = max(steepest, abs(grads[option]))
    return steepest


@inlined
def move_biases(grads, rate, bias, accumulators):
    """Update the biases of a group by Adagrad."""
    for option in range(len(grads)):
        grad = grads[option]
        accumulators[option] += grad * grad
        bias[option] -= BIAS_RATE * rate * grad / np.sqrt(accumulators[option])


@inlined
def move_weight(grad, rate, weights, index):
    """Update the weight at an index by Adagrad."""
    accumulator = weights[index]["accumulator"] + grad * grad
    weights[index]["accumulator"] = accumulator
    weights[index]["weight"] -= rate * grad / np.sqrt(accumulator)


@kernel
def mean_sizes(rows, feature_rank):
    """Return the mean absolute value of each feature, by its rank, over the rows where it is not zero."""
    sums, counts = np.zeros(len(feature_rank)), np.zeros(len(feature_rank), np.int64)
    for entry in range(len(rows.indices)):
        known = feature_rank[rows.indices[entry]]
        sums[known] += abs(rows.data[entry])
        counts[known] += 1
    return sums / np.maximum(counts, 1)


class WideTraining(ExpertTraining):
    """The training of the wide expert."""

    kernels = (train_groups, prune_weights, count_weights, mean_sizes)

    def __init__(self, context: TrainingContext) -> None:
        super().__init__(context)
        data, targets, start = context.data, context.targets, context.start
        before = None if start is None else start.experts.wide
        plan = WidePlan.of(context, before)
        data = data._replace(rows=data.rows._replace(indices=plan.feature_rank[data.rows.indices]))
        has_single_paths = len(targets.arrays.choice_option) == len(targets.arrays.step_group)
        if has_single_paths and before is None and not targets.layers.multilabel:
            self._method: IndependentGroups | CoupledGroups = IndependentGroups(data, plan)
        else:
            from hinet.engine.training.wide_rows import CoupledGroups  # imports this module

            self._method = CoupledGroups(data, targets, plan, before)

    def memory(self) -> MemoryPlan:
        """Return the memory of the weights."""
        return MemoryPlan(8 * self._method.weights, 0, self._method.scratch, 12 * self._method.weights)

    def jobs(self) -> list[Job]:
        """Return jobs for parts of the groups, or for all of them."""
        return self._method.jobs()

    def trained(self) -> WideExpert:
        """Return the trained weights; those that hardly count are pruned if training started from scratch."""
        wide, context = self._method.expert(), self.context
        if context.start is not None:
            return wide
        usual = mean_sizes(context.data.rows, wide.feature_rank)
        feature, offsets, weights, before = prune_weights(
            wide.feature, wide.weight_offsets, wide.weights, usual, context.settings.wide_prune
        )
        return wide._replace(
            entry_offsets=before[wide.entry_offsets], feature=feature, weight_offsets=offsets, weights=weights
        )
