"""Kernels that train the wide expert a row at a time, for goals whose groups depend on each other.

A label with several paths, as in a DAG, is split over the groups of all of them by what the model itself believes, so
its groups cannot be trained one by one as :mod:`hinet.engine.group_kernels` does.
"""

from __future__ import annotations

import numpy as np

from hinet.compiled import kernel
from hinet.engine.goal_kernels import aim, list_groups, normalise, scratch_for
from hinet.engine.lookup_kernels import find_near

F4 = np.float32
CERTAIN = F4(1e-3)  # a group all of whose gradients are below this is not worth an update
BIAS_RATE = F4(0.05)  # rate of the biases, as a share of the weights' rate


@kernel
def find_weights(rows, goals, groups, most, mine, offsets, weights):
    """Look up where the weights of every feature of every row begin in every group on its way, once and for all.

    Returns the places, row by row and group by group in the order of :func:`list_groups`, and where each row begins.
    """
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
                places[begin] = find_near(weights.row, place, offsets[feature + 1], base)
                begin += 1
            above = base
    return places, begins


@kernel
def train_wide(
    rows,
    order,
    first,
    total,
    goals,
    groups,
    most,
    mine,
    adjustment,
    places,
    begins,
    offsets,
    weights,
    bias,
    slots,
    rates,
):
    """Train the wide expert on the rows of ``order``, the ``first``-th on of ``total``; return their summed cost.

    ``weights[offsets[f]:offsets[f + 1]]`` are those of feature ``f``, sorted by the row of output weights; ``places``
    and ``begins`` are from :func:`find_weights`. Only groups that are ``mine`` are trained.
    """
    scratch = scratch_for(*most)
    rate_from, rate_to = rates
    cost = 0.0
    for position in range(len(order)):
        row = order[position]
        rate = F4(rate_from + (rate_to - rate_from) * (first + position) / total)
        count = list_groups(row, goals, groups, mine, scratch)
        low = rows.indptr[row]
        values = rows.indptr[row + 1] - low
        for listed in range(count):
            start = scratch.start[listed]
            base = groups.first_row[scratch.group[listed]]
            after = base + scratch.start[listed + 1] - start
            for option in range(after - base):
                scratch.log_p[start + option] = bias[base + option] + adjustment[base + option]
            begin = begins[row] + listed * values
            for entry in range(values):
                value = rows.data[low + entry]
                place, end = np.int64(places[begin + entry]), offsets[rows.indices[low + entry] + 1]
                while place < end and weights[place].row < after:
                    scratch.log_p[start + weights[place].row - base] += value * weights[place].weight
                    place += 1
            normalise(scratch, listed)
        cost += aim(row, goals, scratch)
        for listed in range(count):
            start = scratch.start[listed]
            base = groups.first_row[scratch.group[listed]]
            after = base + scratch.start[listed + 1] - start
            steepest = F4(0)
            for option in range(start, start + after - base):
                scratch.p[option] = scratch.mass[listed] * scratch.p[option] - scratch.target[option]
                steepest = max(steepest, abs(scratch.p[option]))
            if steepest < CERTAIN:
                continue
            for option in range(after - base):
                slope = scratch.p[start + option]
                slots[base + option] += slope * slope
                bias[base + option] -= BIAS_RATE * rate * slope / np.sqrt(slots[base + option])
            begin = begins[row] + listed * values
            for entry in range(values):
                value = rows.data[low + entry]
                place, end = np.int64(places[begin + entry]), offsets[rows.indices[low + entry] + 1]
                while place < end and weights[place].row < after:
                    slope = value * scratch.p[start + weights[place].row - base]
                    slot = weights[place].slot + slope * slope
                    weights[place].slot = slot
                    weights[place].weight -= rate * slope / np.sqrt(slot)
                    place += 1
    return cost
