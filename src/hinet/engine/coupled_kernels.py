"""Kernels that train the wide expert a row at a time, for goals whose groups depend on each other.

A label with several paths, as in a DAG, is split over the groups of all of them by what the model itself believes, so
its groups cannot be trained one by one as :mod:`hinet.engine.group_kernels` does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.goal_kernels import aim, list_groups, normalise, rate_at, scratch_for
from hinet.engine.lookup_kernels import find_near
from hinet.engine.wide_kernels import CERTAIN, move_biases, move_weight, steepest_of


class WideWeights(NamedTuple):
    """The wide expert in training: ``weights[offsets[f]:offsets[f + 1]]`` are those of feature ``f``, by output row."""

    offsets: Any  # (features + 1,)
    weights: Any  # (weights,) each with its output row and its slot
    bias: Any  # (output rows,)
    bias_slots: Any  # (output rows,)


class Places(NamedTuple):
    """Where the weights of every feature of every row begin in every group on its way."""

    place: Any  # row by row, group by group in the order of list_groups, feature by feature
    begins: Any  # (n + 1,) where each row begins


@kernel
def find_weights(data, mine, wide):
    """Look up all :class:`Places`, once and for all."""
    rows, goals, groups, most, _ = data
    offsets, weights = wide.offsets, wide.weights
    scratch = scratch_for(*most)
    count = len(goals.row_offsets) - 1
    begins = np.zeros(count + 1, np.int64)
    for row in range(count):
        listed = list_groups(row, goals, groups, mine, scratch)
        begins[row + 1] = begins[row] + listed * (rows.indptr[row + 1] - rows.indptr[row])
    places = np.empty(begins[count], np.int32)
    for row in range(count):
        low, high = rows.indptr[row], rows.indptr[row + 1]
        begin = begins[row]
        above = -1
        for listed in range(list_groups(row, goals, groups, mine, scratch)):
            base = groups.first_row[scratch.group[listed]]
            for entry in range(low, high):
                feature = rows.indices[entry]
                place = offsets[feature]
                if base > above >= 0:
                    place = np.int64(places[begin - (high - low)])
                places[begin] = find_near(weights["row"], place, offsets[feature + 1], base)
                begin += 1
            above = base
    return Places(places, begins)


@kernel
def train_wide(data, mine, stretch, wide, places):
    """Train the wide expert on a stretch of rows; return their summed cost. Only groups that are ``mine`` are trained.

    ``places`` are from :func:`find_weights`.
    """
    scratch = scratch_for(*data.most)
    cost = 0.0
    for position in range(len(stretch.order)):
        row, rate = stretch.order[position], rate_at(stretch, position)
        count = list_groups(row, data.goals, data.groups, mine, scratch)
        for listed in range(count):
            score_group(data, row, listed, wide, places, scratch)
            normalise(scratch, listed)
        cost += aim(row, data.goals, scratch)
        for listed in range(count):
            if pull_of_group(listed, scratch) < CERTAIN:
                continue
            move_group(data, row, listed, rate, wide, places, scratch)
    return cost


@inlined
def score_group(data, row, listed, wide, places, scratch):
    """Fill in the training logits of a listed group."""
    rows, weights = data.rows, wide.weights
    start, base, after = bounds_of(data.groups, listed, scratch)
    for option in range(after - base):
        scratch.log_p[start + option] = wide.bias[base + option] + data.adjustment[base + option]
    low = rows.indptr[row]
    values = rows.indptr[row + 1] - low
    begin = places.begins[row] + listed * values
    for entry in range(values):
        value = rows.data[low + entry]
        place, end = np.int64(places.place[begin + entry]), wide.offsets[rows.indices[low + entry] + 1]
        while place < end and weights[place]["row"] < after:
            scratch.log_p[start + weights[place]["row"] - base] += value * weights[place]["weight"]
            place += 1


@inlined
def pull_of_group(listed, scratch):
    """Turn the probabilities of a listed group into the gradients of its logits, and return the steepest."""
    start, end = scratch.start[listed], scratch.start[listed + 1]
    for option in range(start, end):
        scratch.p[option] = scratch.mass[listed] * scratch.p[option] - scratch.target[option]
    return steepest_of(scratch.p[start:end])


@inlined
def move_group(data, row, listed, rate, wide, places, scratch):
    """Move the biases and weights of a listed group by Adagrad."""
    rows, weights = data.rows, wide.weights
    start, base, after = bounds_of(data.groups, listed, scratch)
    slopes = scratch.p[start : start + after - base]
    move_biases(slopes, rate, wide.bias[base:after], wide.bias_slots[base:after])
    low = rows.indptr[row]
    values = rows.indptr[row + 1] - low
    begin = places.begins[row] + listed * values
    for entry in range(values):
        value = rows.data[low + entry]
        place, end = np.int64(places.place[begin + entry]), wide.offsets[rows.indices[low + entry] + 1]
        while place < end and weights[place]["row"] < after:
            move_weight(value * slopes[weights[place]["row"] - base], rate, weights, place)
            place += 1


@inlined
def bounds_of(groups, listed, scratch):
    """Return where the options of a listed group begin, and its first output row and the one after its last."""
    start = scratch.start[listed]
    base = groups.first_row[scratch.group[listed]]
    return start, base, base + scratch.start[listed + 1] - start
