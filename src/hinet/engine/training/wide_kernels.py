"""Kernels that train the wide expert: by sibling group if groups are independent, otherwise by row.

If every label has a single path, groups share neither weights nor posteriors. :func:`train_groups` trains each group
for all its epochs before the next, which keeps its weights in the processor's cache and lets any number of threads
train different groups with the same result. A *visit* is a row that passes through a group on the path to a label;
visits are sorted by group, then by option.

A label with several paths, as in a DAG, is split over the groups of all paths by the model's own probabilities, so
:func:`train_wide` trains these groups together, row by row. It also trains on sets of labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.model.column_kernels import MIX
from hinet.engine.model.experts.wide import find_near
from hinet.engine.training.target_kernels import allocate_scratch, grads_of_row, list_groups, rate_at

F4 = np.float32
WEIGHT = np.dtype([("option", np.int32), ("weight", np.float32), ("accumulator", np.float32)])
CERTAIN = F4(1e-3)  # a group with only smaller gradients is not worth an update
BIAS_RATE = F4(0.05)  # rate of the biases relative to the weights


@kernel
def count_weights(rows, visits, features, first, last):
    """Return the numbers of features, and of pairs of feature and option, of each of the groups ``first:last``."""
    seen = np.full(features, -1, np.int64)
    counts = np.zeros((2, last - first), np.int64)
    stamp = 0
    for group in range(first, last):
        option = -1
        before = stamp
        for visit in range(visits.offsets[group], visits.offsets[group + 1]):
            if visits.option[visit] != option:
                option = visits.option[visit]
                stamp += 1
            row = visits.row[visit]
            for entry in range(rows.indptr[row], rows.indptr[row + 1]):
                if seen[rows.indices[entry]] != stamp:
                    counts[0, group - first] += seen[rows.indices[entry]] <= before
                    counts[1, group - first] += 1
                    seen[rows.indices[entry]] = stamp
    return counts


class Listed(NamedTuple):
    """The features of the visits of a group, numbered in order of first appearance."""

    feature: Any  # (numbers,) the feature of each number
    offsets: Any  # (numbers + 1,) offsets of its weights: one for each option it is seen with
    entry_number: Any  # (values,) the number of the feature of each value, visit by visit
    entry_start: Any  # (visits,) offset of the values of each visit


@kernel
def train_groups(rows, visits, groups, chosen, adjustment, plan, features, out, bias):
    """Train the ``chosen`` groups, each to its end, and write their weights out; return the cost of the last epochs.

    ``plan`` is the number of epochs, the rate, what accumulators start from, and the seed. The features of group ``g``
    go to ``out`` from ``entry_offsets[g]`` on, in order, and their weights from ``group_weights[g]`` on.
    """
    number_of = np.full(features, -1, np.int32)  # number of each feature within the current group
    cost = 0.0
    for group in chosen:
        size = groups.first_row[group + 1] - groups.first_row[group]
        if visits.offsets[group] == visits.offsets[group + 1] or size == 0:
            continue
        listed = list_features(rows, visits, group, number_of)
        weights = lay_out_weights(rows, visits, group, listed, plan[2])
        cost += train_group(rows, visits, groups, group, adjustment, plan, listed, weights, bias)
        write_out(groups, group, listed, weights, number_of, out)
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
    weights = np.empty(listed.offsets[count], WEIGHT)
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
def write_out(groups, group, listed, weights, number_of, out):
    """Write the weights of a group sorted by feature, and clear its numbers."""
    base, feature_entry, target = groups.first_row[group], out.entry_offsets[group], out.group_weights[group]
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
    epochs, rate, _, seed = plan
    base, after = groups.first_row[group], groups.first_row[group + 1]
    begin = visits.offsets[group]
    count = visits.offsets[group + 1] - begin
    order = np.arange(count)
    offsets, entry_number = listed.offsets, listed.entry_number
    state = (np.uint64(seed) + np.uint64(1)) * MIX + np.uint64(group + 1) * np.uint64(0xBF58476D1CE4E5B9)
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
