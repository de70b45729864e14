"""Kernels that score a sibling group for a row by all experts.

A row is read once: its hidden units, and the scores of every label by the experts on labels. From that its groups are
scored. The weights of the wide expert are either looked up feature by feature, or, where many rows need a group, listed
by feature once for all of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.model.experts import DEEP, FLAT, PROTOTYPES, WIDE

F4 = np.float32
FEW = 16  # rows that are not worth an array as long as there are features
RUN_BITS = 24  # of a run of weights, for its number: no group has more options than that can count
RUN_MASK = (1 << RUN_BITS) - 1
GROUPS_OF_A_ROW, USUAL_OPTIONS = 4, 10  # that a search for one trace scores, and options of most of them
SCALE_STEPS = 20  # of a bisection, as many as single precision has bits for
SURE = F4(1e-6)  # what single precision can tell from certainty
RARE = -15.0  # largest logit at which two options at once are less probable than single precision tells
LOOK_UP = 64  # looking a feature up among the sorted ones of a group costs as much as listing so many


class Reading(NamedTuple):
    """What is known of the rows at hand; the scores of labels stand in one array, row after row."""

    hidden: Any  # (n, k) of the deep expert
    flat_hidden: Any  # (1, k) of the flat expert, of the row read last
    flat: Any  # (n * labels,) logits of the flat expert
    prototypes: Any  # (n * labels,) scaled cosines
    sink: Any  # (1,) what was fetched early, so that it is not left out as useless
    lower: Any  # (units,) the first of two layers of the deep expert


@inlined
def allocate_reading(count, experts):
    """Make room to read so many rows."""
    labels = count * len(experts.spans.neuron)
    return Reading(
        np.empty((count, experts.deep.embedding.shape[1]), np.float32),
        np.empty((1, experts.flat.embedding.shape[1]), np.float32),
        np.empty(labels if experts.mix[FLAT] != 0 else 0, np.float32),
        np.empty(labels if experts.mix[PROTOTYPES] != 0 else 0, np.float32),
        np.empty(1, np.float32),
        np.empty(len(experts.deep.inner_bias), np.float32),
    )


@inlined
def read_row(rows, row, experts, reading, index):
    """Read a row, as the one of an index: its hidden units and the scores of its labels; return the outputs touched."""
    touched = 0
    if experts.mix[DEEP] != 0:
        read_hidden(rows, row, experts.deep, reading.hidden, index, reading.sink)
        if len(experts.deep.inner_bias) > 0:
            read_inner(experts.deep, reading.hidden, index, reading.lower)
    if experts.mix[FLAT] != 0:
        read_hidden(rows, row, experts.flat, reading.flat_hidden, 0, reading.sink)
        touched += read_flat(experts.flat, reading, index)
    if experts.mix[PROTOTYPES] != 0:
        touched += read_prototypes(rows, row, experts, reading, index)
    return touched


@inlined
def read_hidden(rows, row, deep, hidden, index, sink):
    """Fill in the hidden units of a deep expert."""
    width = hidden.shape[1]
    sink[0] = touch_embeddings(rows, row, deep.embedding)
    for unit in range(width):
        hidden[index, unit] = deep.embedding_bias[unit]
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        feature = rows.indices[entry]
        value = rows.data[entry] * deep.embedding_scale[feature]
        for unit in range(width):
            hidden[index, unit] += value * F4(deep.embedding[feature, unit])
    first = len(deep.embedding) - rows.dense.shape[1]
    for column in range(rows.dense.shape[1]):
        value = rows.dense[row, column] * deep.embedding_scale[first + column]
        for unit in range(width):
            hidden[index, unit] += value * F4(deep.embedding[first + column, unit])
    for unit in range(width):
        hidden[index, unit] *= F4(1) if hidden[index, unit] > 0 else deep.negative_slope[unit]


@inlined
def read_inner(deep, hidden, index, lower):
    """Turn the first layer of hidden units into the second: each member reads its own units."""
    for unit in range(len(lower)):
        lower[unit] = hidden[index, unit]
    size = deep.inner.shape[1]
    for unit in range(len(lower)):
        first, total = unit // size * size, F4(0)
        for below in range(size):
            total += deep.inner[unit, below] * lower[first + below]
        hidden[index, unit] = max(total + deep.inner_bias[unit], F4(0))


@inlined
def touch_embeddings(rows, row, embedding):
    """Fetch the embeddings of a row: the waits for memory overlap, which they do not between long loops."""
    sink = F4(0)
    last = embedding.shape[1] - 1
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        feature = rows.indices[entry]
        sink += F4(embedding[feature, 0]) + F4(embedding[feature, last >> 1]) + F4(embedding[feature, last])
    return sink


@inlined
def read_flat(flat, reading, index):
    """Fill in the flat expert's logits of all labels from its hidden units; return how many there are."""
    labels = len(flat.bias)
    for label in range(labels):
        reading.flat[index * labels + label] = logit_of(label, flat, reading.flat_hidden, 0)
    return labels


@inlined
def read_prototypes(rows, row, experts, reading, index):
    """Fill in the scaled cosines of a row and the prototypes of all labels; return how many there are."""
    prototypes, labels = experts.prototypes, len(experts.spans.neuron)
    first = index * labels
    for label in range(first, first + labels):
        reading.prototypes[label] = 0
    square = F4(0)
    low, high = rows.indptr[row], rows.indptr[row + 1]
    for entry in range(low, high):
        square += rows.data[entry] * rows.data[entry]
    scale = F4(1) / np.sqrt(max(square, F4(1e-12)))
    for entry in range(low, high):
        feature, value = rows.indices[entry], rows.data[entry] * scale
        for position in range(prototypes.offsets[feature], prototypes.offsets[feature + 1]):
            reading.prototypes[first + prototypes.label[position]] += value * prototypes.value[position]
    return labels


@inlined
def score_group(rows, row, neuron, groups, experts, mix, reading, index, logits):
    """Fill in the logits of a group of several options, of the row that was read as that of an index."""
    score_options(neuron, groups, experts, mix, reading.hidden, index, logits)
    if mix[WIDE] != 0:
        add_wide(rows, row, neuron, groups, experts.wide, mix[WIDE], logits)
    add_labels(neuron, groups, experts.spans, mix, reading, index, logits)


@inlined
def logit_of(output, deep, hidden, position):
    """Return the logit of an output row of a deep expert, of the hidden units at a position."""
    logit = F4(0)
    for unit in range(hidden.shape[1]):
        logit += F4(deep.weight[output, unit]) * hidden[position, unit]
    return logit * deep.weight_scale[output] + deep.bias[output]


@inlined
def score_options(neuron, groups, experts, mix, hidden, index, logits):
    """Fill in the logits of a group by the deep expert and the biases."""
    base = groups.first_row[neuron]
    for option in range(groups.first_row[neuron + 1] - base):
        logits[option] = mix[WIDE] * experts.wide.bias[base + option]
        if mix[DEEP] != 0:
            logits[option] += mix[DEEP] * logit_of(base + option, experts.deep, hidden, index)


@inlined
def add_wide(rows, row, neuron, groups, wide, mixed, logits):
    """Add the wide expert's logits of a group, looking up each feature of the row."""
    base = groups.first_row[neuron]
    begin, end = wide.entry_offsets[neuron], wide.entry_offsets[neuron + 1]
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        known = wide.feature_rank[rows.indices[entry]]
        feature_entry = find_first(wide.feature, begin, end, known)
        if feature_entry < end and wide.feature[feature_entry] == known:
            value = mixed * rows.data[entry]
            for position in range(wide.weight_offsets[feature_entry], wide.weight_offsets[feature_entry + 1]):
                logits[wide.weights[position]["row"] - base] += value * wide.weights[position]["weight"]


@inlined
def add_labels(neuron, groups, spans, mix, reading, index, logits):
    """Add the scores of the experts on labels, pooled over the labels below each option."""
    start = groups.option_offsets[neuron]
    size = groups.option_offsets[neuron + 1] - start
    shift = index * len(spans.neuron)
    if mix[FLAT] != 0 and groups.several:
        add_chances(neuron, groups, spans, mix[FLAT], reading.flat, shift, logits)
    elif mix[FLAT] != 0:
        for option in range(size):
            first, last = shift + spans.first[start + option], shift + spans.last[start + option]
            logits[option] += mix[FLAT] * pooled(reading.flat, first, last)
    if mix[PROTOTYPES] != 0:
        for option in range(size):
            first, last = shift + spans.first[start + option], shift + spans.last[start + option]
            logits[option] += mix[PROTOTYPES] * pooled(reading.prototypes, first, last)


@inlined
def add_chances(neuron, groups, spans, mixed, scores, shift, logits):
    """Add the log odds that at least one label below each option is taken, each label by its own chance.

    Where options are exhaustive, they are odds before it is given that one is taken. Where a label is below two of
    them, they are such that with that given, an option is as probable as its labels are, given those of the group.
    """
    start, end = groups.option_offsets[neuron], groups.option_offsets[neuron + 1]
    given, scale = F4(0), F4(0)
    if spans.overlaps[neuron] or not groups.exhaustive[neuron]:
        below = sum_of_softplus(scores, shift + spans.first[start], shift + spans.last[end - 1])
        given = log_taken(below + sum_of_others(scores, shift, neuron, spans))
    if spans.overlaps[neuron] and groups.exhaustive[neuron]:
        scale = log_scale_of(start, end, groups, spans, scores, shift, given)
    for option in range(start, end):
        log_p = min(log_chance(option, groups, spans, scores, shift) - given + scale, -SURE)
        logits[option - start] += mixed * (log_p - np.log(-np.expm1(log_p)))


@inlined
def log_chance(option, groups, spans, scores, shift):
    """Return the log probability that at least one label below an option is taken, each by its own chance."""
    total = sum_of_softplus(scores, shift + spans.first[option], shift + spans.last[option])
    if groups.option_neuron[option] >= 0:
        total += sum_of_others(scores, shift, groups.option_neuron[option], spans)
    return log_taken(total)


@inlined
def log_scale_of(start, end, groups, spans, scores, shift, given):
    """Return the log of ``s`` with ``1 - prod(1 - s p) = s`` for the probabilities ``p`` of options, by bisection."""
    p = np.empty(end - start, np.float32)
    for option in range(start, end):
        p[option - start] = min(np.exp(log_chance(option, groups, spans, scores, shift) - given), F4(1))
    low, high = F4(0), F4(1)
    for _ in range(SCALE_STEPS):
        middle = (low + high) / F4(2)
        none = F4(0)
        for option in range(len(p)):
            none += np.log1p(-min(middle * p[option], F4(1) - SURE))
        if -np.expm1(none) > middle:
            low = middle
        else:
            high = middle
    return np.log(high)


@inlined
def log_taken(total):
    """Return the log probability that some label is taken, given minus the log probability that none is."""
    return np.log(-np.expm1(-max(total, F4(1e-37))))


@inlined
def sum_of_others(scores, shift, neuron, spans):
    """Return what :func:`sum_of_softplus` does of the labels below the node of a neuron that stand elsewhere."""
    total = F4(0)
    for index in range(spans.other_offsets[neuron], spans.other_offsets[neuron + 1]):
        logit = scores[shift + spans.other[index]]
        total += max(logit, F4(0)) + np.log1p(np.exp(-abs(logit)))
    return total


@inlined
def pooled(scores, first, last):
    """Return the log of the summed exponentials of a run of scores."""
    top, total = largest(scores, first, last), F4(0)
    for index in range(first, last):
        total += np.exp(scores[index] - top)
    return top + np.log(total)


@inlined
def sum_of_softplus(logits, first, last):
    """Return minus the log probability that none of a run of options is taken, each by its own chance."""
    total = F4(0)
    for option in range(first, last):
        total += max(logits[option], F4(0)) + np.log1p(np.exp(-abs(logits[option])))
    return total


@inlined
def log_some(logits, first, last):
    """Return the log probability that at least one of a run of options is taken, each by its own chance."""
    if largest(logits, first, last) < RARE:
        return pooled(logits, first, last)
    return np.log(-np.expm1(-sum_of_softplus(logits, first, last)))


@inlined
def largest(values, first, last):
    """Return the largest of a run of values."""
    top = values[first]
    for index in range(first + 1, last):
        top = max(top, values[index])
    return top


@inlined
def log_softmax(logits, size):
    """Turn the first ``size`` logits into log probabilities."""
    shift = pooled(logits, 0, size)
    for option in range(size):
        logits[option] -= shift


@inlined
def largest_group(groups):
    """Return the number of options of the largest group."""
    largest = 1
    for neuron in range(len(groups.first_row) - 1):
        largest = max(largest, groups.option_offsets[neuron + 1] - groups.option_offsets[neuron])
    return largest


def steps_of_rows(rows, groups, experts):
    """Guess how often loops turn to read rows, and to score some groups for each by best-first search."""
    count, labels = len(rows.indptr) - 1, len(experts.spans.neuron)
    deep, flat = experts.deep.embedding.shape[1], experts.flat.embedding.shape[1]
    outputs = GROUPS_OF_A_ROW * (np.diff(groups.option_offsets).max(initial=1) + USUAL_OPTIONS)
    values = (len(rows.indices) + rows.dense.size) * (deep + flat + GROUPS_OF_A_ROW)
    of_labels = labels * (flat + 2 * GROUPS_OF_A_ROW) if experts.mix[FLAT] != 0 or experts.mix[PROTOTYPES] != 0 else 0
    return values + count * (of_labels + outputs * (deep + USUAL_OPTIONS))


class Listing(NamedTuple):
    """The wide expert's weights in the group at hand, listed by feature for all rows that need it."""

    known: Any  # (values,) the number that the feature of each value of the rows is known by
    wanted: Any  # (features,) whether a row that needs the group has the feature
    run: Any  # (features,) its weights in the group, where they begin and how many they are in one; 0 for none


@inlined
def allocate_listing(rows, experts):
    """Make room to list weights, for rows that are not few."""
    few = experts.mix[WIDE] == 0 or len(rows.indptr) - 1 < FEW
    features = 0 if few else len(experts.wide.feature_rank)
    known = np.empty(0 if few else len(rows.indices), np.int32)
    for entry in range(len(known)):
        known[entry] = experts.wide.feature_rank[rows.indices[entry]]
    return Listing(known, np.zeros(features, np.bool_), np.zeros(features, np.int64))


@inlined
def list_weights(rows, asking, neuron, wide, listing):
    """List the weights of a group by feature for the rows that are asking for it; return whether that was worth it."""
    if len(listing.run) == 0:
        return False
    begin, end = wide.entry_offsets[neuron], wide.entry_offsets[neuron + 1]
    values = 0
    for row in asking:
        values += rows.indptr[row + 1] - rows.indptr[row]
    if LOOK_UP * values <= end - begin:
        return False
    for row in asking:
        for entry in range(rows.indptr[row], rows.indptr[row + 1]):
            listing.wanted[listing.known[entry]] = True
    for feature_entry in range(begin, end):
        if listing.wanted[wide.feature[feature_entry]]:
            low, high = wide.weight_offsets[feature_entry], wide.weight_offsets[feature_entry + 1]
            listing.run[wide.feature[feature_entry]] = (low << RUN_BITS) | (high - low)
    return True


@inlined
def score_listed(rows, row, neuron, groups, experts, listing, reading, index, logits):
    """Fill in the logits of a group as :func:`score_group` does, if its weights are listed."""
    score_options(neuron, groups, experts, experts.mix, reading.hidden, index, logits)
    add_listed(rows, row, neuron, groups, experts.wide, experts.mix[WIDE], listing, reading.sink, logits)
    add_labels(neuron, groups, experts.spans, experts.mix, reading, index, logits)


@inlined
def add_listed(rows, row, neuron, groups, wide, mixed, listing, sink, logits):
    """Add the wide expert's logits of a group whose weights are listed."""
    base, low, high = groups.first_row[neuron], rows.indptr[row], rows.indptr[row + 1]
    sink[0] = touch_runs(listing, low, high, wide.weights)
    for entry in range(low, high):
        run = listing.run[listing.known[entry]]
        value = mixed * rows.data[entry]
        for position in range(run >> RUN_BITS, (run >> RUN_BITS) + (run & RUN_MASK)):
            logits[wide.weights[position]["row"] - base] += value * wide.weights[position]["weight"]


@inlined
def touch_runs(listing, low, high, weights):
    """Fetch the listed weights of the values ``low:high``, so that the waits for memory overlap."""
    sink = F4(0)
    for entry in range(low, high):
        run = listing.run[listing.known[entry]]
        if run != 0:
            sink += weights[run >> RUN_BITS]["weight"] + weights[(run >> RUN_BITS) + (run & RUN_MASK) - 1]["weight"]
    return sink


@inlined
def forget_weights(rows, asking, listing):
    """Empty the listing for the next group."""
    for row in asking:
        for entry in range(rows.indptr[row], rows.indptr[row + 1]):
            listing.wanted[listing.known[entry]] = False
            listing.run[listing.known[entry]] = 0


@kernel
def expert_logits(rows, row_of, targets, groups, experts):
    """Return the logits of each expert of the groups on the way of single targets, (options of all of them, 4).

    Goal ``i`` belongs to row ``row_of[i]``; the groups come in the order of the steps, certain ones left out.
    """
    by_expert = np.zeros((options_on_the_way(targets, groups, len(row_of)), 4), np.float32)
    reading, logits = allocate_reading(1, experts), np.empty(largest_group(groups), np.float32)
    alone = np.zeros(4, np.float32)
    index = 0
    for target in range(len(row_of)):
        row = row_of[target]
        read_row(rows, row, experts, reading, 0)
        number = targets.entry_target[target]
        for step in range(targets.step_offsets[number], targets.step_offsets[number + 1]):
            neuron = targets.step_group[step]
            size = groups.first_row[neuron + 1] - groups.first_row[neuron]
            if size == 0:
                continue
            for expert in range(4):
                if experts.mix[expert] != 0:
                    alone[:] = 0
                    alone[expert] = 1
                    score_group(rows, row, neuron, groups, experts, alone, reading, 0, logits)
                    by_expert[index : index + size, expert] = logits[:size]
            index += size
    return by_expert


@inlined
def options_on_the_way(targets, groups, count):
    """Return how many options the groups on the way of the first ``count`` targets have, certain ones left out."""
    total = 0
    for target in range(count):
        number = targets.entry_target[target]
        for step in range(targets.step_offsets[number], targets.step_offsets[number + 1]):
            neuron = targets.step_group[step]
            total += groups.first_row[neuron + 1] - groups.first_row[neuron]
    return total


@kernel
def group_logits(rows, chosen, neuron, groups, experts):
    """Return the logits of one group for the chosen rows, (n, options), and the hidden units of these, (n, k)."""
    size = groups.first_row[neuron + 1] - groups.first_row[neuron]
    reading, logits = allocate_reading(1, experts), np.empty(largest_group(groups), np.float32)
    scores = np.empty((len(chosen), size), np.float32)
    hidden = np.zeros((len(chosen), experts.deep.embedding.shape[1]), np.float32)
    for index in range(len(chosen)):
        read_row(rows, chosen[index], experts, reading, 0)
        score_group(rows, chosen[index], neuron, groups, experts, experts.mix, reading, 0, logits)
        scores[index, :] = logits[:size]
        hidden[index, :] = reading.hidden[0, :]
    return scores, hidden


@inlined
def find_first(values, low, high, wanted):
    """Return the first of the sorted values ``low:high`` that is at least the wanted one."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def find_near(values, low, high, wanted):
    """Return what :func:`find_first` does, faster where it is close to ``low``."""
    step = 1
    while low + step < high and values[low + step] < wanted:
        low += step
        step *= 2
    return find_first(values, low, min(high, low + step), wanted)
