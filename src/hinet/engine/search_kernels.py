"""Kernels that find answers lazily: only groups that can matter to a row are scored.

:func:`best_traces` is best-first search from the root. As no factor exceeds 1, the first complete trace it takes from
the heap is the most probable one, the second the next, and so on. :func:`spread` pours the probability of the root down
the layers and leaves aside what falls below a floor; what was left aside bounds the error of every sum it makes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import kernel

F4 = np.float32
STOP = -1
DEEP, WIDE, FLAT, PROTOTYPES = 0, 1, 2, 3  # places in the mix
ROOM = 384  # entries of each of the searches that go on together
RUN_BITS = 24  # of a run of weights, for its number: no group has more options than that can count
RUN_MASK = (1 << RUN_BITS) - 1
LOOK_UP = 64  # looking a feature up among the sorted ones of a group costs as much as listing so many


class Reading(NamedTuple):
    """What is known of the row at hand, and room to score its groups."""

    hidden: Any  # (k,) of the deep expert
    flat_hidden: Any  # (k,) of the flat expert
    flat: Any  # (labels,) logits of the flat expert
    prototypes: Any  # (labels,) scaled cosines
    logits: Any  # (largest group,)
    sink: Any  # (1,) what was fetched early, so that it is not left out as useless


@kernel
def reading_for(groups, experts):
    """Make room to read rows."""
    largest = 1
    for neuron in range(len(groups.first_row) - 1):
        largest = max(largest, groups.option_offsets[neuron + 1] - groups.option_offsets[neuron])
    labels = len(experts.spans.neuron)
    return Reading(
        np.empty(experts.deep.embedding.shape[1], np.float32),
        np.empty(experts.flat.embedding.shape[1], np.float32),
        np.empty(labels, np.float32),
        np.empty(labels, np.float32),
        np.empty(largest, np.float32),
        np.empty(1, np.float32),
    )


@kernel
def touch_embeddings(rows, row, embedding):
    """Fetch the embeddings of a row: the waits for memory overlap, which they do not between long loops."""
    sink = F4(0)
    last = embedding.shape[1] - 1
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        feature = rows.indices[entry]
        sink += embedding[feature, 0] + embedding[feature, last >> 1] + embedding[feature, last]
    return sink


@kernel
def touch_runs(known, low, high, run_of, weights):
    """Fetch the weights of a row's features in the group at hand, for the same reason."""
    sink = F4(0)
    for entry in range(low, high):
        run = run_of[known[entry]]
        if run != 0:
            sink += weights[run >> RUN_BITS].weight + weights[(run >> RUN_BITS) + (run & RUN_MASK) - 1].weight
    return sink


@kernel
def read_hidden(rows, row, deep, hidden, sink):
    """Fill in the hidden units of a deep expert."""
    width = len(hidden)
    sink[0] = touch_embeddings(rows, row, deep.embedding)
    for unit in range(width):
        hidden[unit] = deep.embedding_bias[unit]
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        feature, value = rows.indices[entry], rows.data[entry]
        for unit in range(width):
            hidden[unit] += value * deep.embedding[feature, unit]
    for unit in range(width):
        hidden[unit] *= F4(1) if hidden[unit] > 0 else deep.slope[unit]


@kernel
def read_row(rows, row, experts, mix, reading):
    """Read a row: the hidden units of its deep experts, and the scores of the labels; return the outputs touched."""
    touched = 0
    if mix[DEEP] != 0:
        read_hidden(rows, row, experts.deep, reading.hidden, reading.sink)
    if mix[FLAT] != 0:
        read_hidden(rows, row, experts.flat, reading.flat_hidden, reading.sink)
        width = len(reading.flat_hidden)
        for label in range(len(reading.flat)):
            logit = F4(0)
            for unit in range(width):
                logit += experts.flat.weight[label, unit] * reading.flat_hidden[unit]
            reading.flat[label] = logit + experts.flat.bias[label]
        touched += len(reading.flat)
    if mix[PROTOTYPES] != 0:
        reading.prototypes[:] = 0
        square = F4(0)
        low, high = rows.indptr[row], rows.indptr[row + 1]
        for entry in range(low, high):
            square += rows.data[entry] * rows.data[entry]
        scale = F4(1) / np.sqrt(max(square, F4(1e-12)))
        for entry in range(low, high):
            feature, value = rows.indices[entry], rows.data[entry] * scale
            for place in range(experts.prototypes.offsets[feature], experts.prototypes.offsets[feature + 1]):
                reading.prototypes[experts.prototypes.label[place]] += value * experts.prototypes.value[place]
        touched += len(reading.prototypes)
    return touched


@kernel
def pooled(scores, first, last):
    """Return the log of the summed exponentials of a run of scores."""
    top = scores[first]
    for place in range(first + 1, last):
        top = max(top, scores[place])
    total = F4(0)
    for place in range(first, last):
        total += np.exp(scores[place] - top)
    return top + np.log(total)


@kernel
def find_slot(feature, low, high, wanted):
    """Return the first of the sorted features ``low:high`` at or after the wanted one."""
    while low < high:
        middle = (low + high) >> 1
        if feature[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def add_wide(rows, row, neuron, base, wide, mixed, logits):
    """Add the wide expert's logits of a group, looking up each feature of the row."""
    begin, end = wide.slot_offsets[neuron], wide.slot_offsets[neuron + 1]
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        known = wide.known_as[rows.indices[entry]]
        slot = find_slot(wide.feature, begin, end, known)
        if slot < end and wide.feature[slot] == known:
            value = mixed * rows.data[entry]
            for place in range(wide.weight_offsets[slot], wide.weight_offsets[slot + 1]):
                logits[wide.weights[place].row - base] += value * wide.weights[place].weight


@kernel
def score_group(rows, row, neuron, groups, experts, mix, reading):
    """Fill in the logits of a group of several options; return its size."""
    start = groups.option_offsets[neuron]
    size = groups.option_offsets[neuron + 1] - start
    base = groups.first_row[neuron]
    logits = reading.logits
    score_options(neuron, base, size, experts, mix, reading.hidden, logits)
    if mix[WIDE] != 0:
        add_wide(rows, row, neuron, base, experts.wide, mix[WIDE], logits)
    add_labels(start, size, experts.spans, mix, reading.flat, reading.prototypes, logits)
    return size


@kernel
def score_options(neuron, base, size, experts, mix, hidden, logits):
    """Fill in the logits of a group by the deep expert and the biases."""
    width = len(hidden)
    for option in range(size):
        logits[option] = mix[WIDE] * experts.wide.bias[base + option]
        if mix[DEEP] != 0:
            logit = F4(0)
            for unit in range(width):
                logit += experts.deep.weight[base + option, unit] * hidden[unit]
            logits[option] += mix[DEEP] * (logit + experts.deep.bias[base + option])


@kernel
def add_labels(start, size, spans, mix, flat, prototypes, logits):
    """Add what the experts on labels say, pooled over the labels below each option."""
    if mix[FLAT] != 0:
        for option in range(size):
            logits[option] += mix[FLAT] * pooled(flat, spans.first[start + option], spans.last[start + option])
    if mix[PROTOTYPES] != 0:
        for option in range(size):
            first, last = spans.first[start + option], spans.last[start + option]
            logits[option] += mix[PROTOTYPES] * pooled(prototypes, first, last)


@kernel
def log_softmax(logits, size):
    """Turn the first ``size`` logits into log probabilities."""
    shift = pooled(logits, 0, size)
    for option in range(size):
        logits[option] -= shift


@kernel
def grown(array, needed):
    """Return an array with room for at least ``needed`` values and the same values at its start."""
    if needed <= len(array):
        return array
    larger = np.empty(max(needed, 2 * len(array)), array.dtype)
    larger[: len(array)] = array
    return larger


@kernel
def heap_push(heap_score, heap_entry, size, score, entry):
    """Add an entry to a heap of ``size`` entries, the largest score on top."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap_score[parent] >= score:
            break
        heap_score[place], heap_entry[place] = heap_score[parent], heap_entry[parent]
        place = parent
    heap_score[place], heap_entry[place] = score, entry


@kernel
def heap_pop(heap_score, heap_entry, size):
    """Take the top of a heap of ``size`` entries away; its rest are the first ``size - 1``."""
    size -= 1
    score, entry = heap_score[size], heap_entry[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and heap_score[child + 1] > heap_score[child]:
            child += 1
        if heap_score[child] <= score:
            break
        heap_score[place], heap_entry[place] = heap_score[child], heap_entry[child]
        place = child
    heap_score[place], heap_entry[place] = score, entry


@kernel
def kept_best(best, found, score):
    """Keep a score among the largest of ``found`` in descending order; return how many there are now."""
    place = min(found, len(best) - 1)
    if found == len(best) and score <= best[place]:
        return found
    while place > 0 and best[place - 1] < score:
        best[place] = best[place - 1]
        place -= 1
    best[place] = score
    return min(found + 1, len(best))


@kernel
def best_traces(rows, groups, experts, k, lowest):
    """Return the ``k`` best traces of every row.

    These are: the number of traces of each row, the length and log P of each trace, its neurons, the log P of the path
    down to each of them, and the outputs touched for each row.

    Traces less probable than the log probability ``lowest`` are left out.
    """
    count = len(rows.indptr) - 1
    mix = experts.mix
    reading = reading_for(groups, experts)
    row_traces = np.zeros(count, np.int64)
    touched = np.zeros(count, np.int64)
    length = np.empty(count * k, np.int64)
    trace_log_p = np.empty(count * k, np.float64)
    neurons = np.empty(max(16, 8 * count), np.int32)
    neuron_log_p = np.empty(len(neurons), np.float64)
    traces, used = 0, 0
    capacity = 256
    entry_neuron = np.empty(capacity, np.int64)
    entry_parent = np.empty(capacity, np.int64)
    entry_score = np.empty(capacity, np.float64)
    heap_score = np.empty(capacity, np.float64)
    heap_entry = np.empty(capacity, np.int64)
    best = np.empty(k, np.float64)
    for row in range(count):
        touched[row] = read_row(rows, row, experts, mix, reading)
        entries, heap, found = 1, 1, 0
        entry_neuron[0], entry_parent[0], entry_score[0] = 0, -1, 0.0
        heap_score[0], heap_entry[0] = 0.0, 0
        while heap > 0 and row_traces[row] < k:
            entry = heap_entry[0]
            score = entry_score[entry]
            heap_pop(heap_score, heap_entry, heap)
            heap -= 1
            neuron = entry_neuron[entry]
            if neuron == STOP:
                if score < lowest:
                    break
                steps = 0
                above = entry_parent[entry]
                while above > 0:
                    steps += 1
                    above = entry_parent[above]
                neurons = grown(neurons, used + steps)
                neuron_log_p = grown(neuron_log_p, used + steps)
                above = entry_parent[entry]
                for place in range(used + steps - 1, used - 1, -1):
                    neurons[place] = entry_neuron[above]
                    neuron_log_p[place] = entry_score[above]
                    above = entry_parent[above]
                length[traces], trace_log_p[traces] = steps, score
                traces += 1
                used += steps
                row_traces[row] += 1
                continue
            start = groups.option_offsets[neuron]
            size = groups.option_offsets[neuron + 1] - start
            if size > 1:
                score_group(rows, row, neuron, groups, experts, mix, reading)
                log_softmax(reading.logits, size)
                touched[row] += size
            if entries + size > len(entry_neuron):
                needed = entries + size
                entry_neuron, entry_parent = grown(entry_neuron, needed), grown(entry_parent, needed)
                entry_score = grown(entry_score, needed)
            if heap + size > len(heap_score):
                heap_score, heap_entry = grown(heap_score, heap + size), grown(heap_entry, heap + size)
            for option in range(size):
                reached = score
                if size > 1:
                    reached += reading.logits[option]
                if found == k and reached < best[k - 1]:
                    continue
                target = np.int64(groups.option_neuron[start + option])
                entry_neuron[entries], entry_parent[entries], entry_score[entries] = target, entry, reached
                heap_push(heap_score, heap_entry, heap, reached, entries)
                entries += 1
                heap += 1
                # A leaf is as good as complete; its certain stop, taken later, is not counted again.
                if (target == STOP and size > 1) or (
                    target != STOP
                    and groups.option_offsets[target + 1] - groups.option_offsets[target] == 1
                    and groups.option_neuron[groups.option_offsets[target]] == STOP
                ):
                    found = kept_best(best, found, reached)
    return row_traces, length[:traces], trace_log_p[:traces], neurons[:used], neuron_log_p[:used], touched


class Together(NamedTuple):
    """The searches of many rows that go on side by side; row ``i`` of each array is that of a row."""

    neuron: Any  # (n, room) entries: the neuron reached, or STOP
    parent: Any  # (n, room) the entry above
    score: Any  # (n, room) log probability
    heap_score: Any  # (n, room)
    heap_entry: Any  # (n, room)
    entries: Any  # (n,)
    heap: Any  # (n,) entries in the heap
    found: Any  # (n,) complete traces met so far, of which at most k are kept
    best: Any  # (n, k) their log probabilities
    ends: Any  # (n, k) entries of the answers
    answers: Any  # (n,) how many there are, or -1 where there was no room


@kernel
def together_for(count, k):
    """Make room for the searches of so many rows, each with its root entry."""
    together = Together(
        np.empty((count, ROOM), np.int32),
        np.empty((count, ROOM), np.int32),
        np.empty((count, ROOM), np.float64),
        np.empty((count, ROOM), np.float64),
        np.empty((count, ROOM), np.int32),
        np.ones(count, np.int64),
        np.ones(count, np.int64),
        np.zeros(count, np.int64),
        np.empty((count, k), np.float64),
        np.empty((count, k), np.int64),
        np.zeros(count, np.int64),
    )
    together.neuron[:, 0] = 0
    together.parent[:, 0] = -1
    together.score[:, 0] = 0
    together.heap_score[:, 0] = 0
    together.heap_entry[:, 0] = 0
    return together


@kernel
def next_group(row, groups, together, k, lowest):
    """Go on with the search of a row until it needs a group scored; return the entry to open, or -1 at its end."""
    while together.heap[row] > 0 and together.answers[row] < k:
        entry = together.heap_entry[row, 0]
        heap_pop(together.heap_score[row], together.heap_entry[row], together.heap[row])
        together.heap[row] -= 1
        neuron = together.neuron[row, entry]
        if neuron == STOP:
            if together.score[row, entry] < lowest:
                return -1
            together.ends[row, together.answers[row]] = entry
            together.answers[row] += 1
            continue
        start = groups.option_offsets[neuron]
        if groups.option_offsets[neuron + 1] - start > 1:
            return entry
        if not open_entry(row, entry, groups, together, k, together.score[row, :1], False):
            return -1
    return -1


@kernel
def open_entry(row, entry, groups, together, k, log_p, scored):
    """Add the options below an entry to the search of a row; return whether there was room."""
    neuron = together.neuron[row, entry]
    start = groups.option_offsets[neuron]
    size = groups.option_offsets[neuron + 1] - start
    made, heap, found = together.entries[row], together.heap[row], together.found[row]
    if made + size > ROOM:
        together.answers[row] = -1
        together.heap[row] = 0  # which ends its search
        return False
    heap_score, heap_entry, best = together.heap_score[row], together.heap_entry[row], together.best[row]
    above = together.score[row, entry]
    for option in range(size):
        reached = above
        if scored:
            reached += log_p[option]
        if found == k and reached < best[k - 1]:
            continue
        target = groups.option_neuron[start + option]
        together.neuron[row, made], together.parent[row, made], together.score[row, made] = target, entry, reached
        heap_push(heap_score, heap_entry, heap, reached, made)
        made += 1
        heap += 1
        if (target == STOP and size > 1) or (
            target != STOP
            and groups.option_offsets[target + 1] - groups.option_offsets[target] == 1
            and groups.option_neuron[groups.option_offsets[target]] == STOP
        ):
            found = kept_best(best, found, reached)
    together.entries[row], together.heap[row], together.found[row] = made, heap, found
    return True


@kernel
def best_traces_together(rows, groups, experts, k, lowest, features):
    """Find the ``k`` best traces of many rows at once, a step of each search at a time.

    All rows that wait for one group are scored by it one after the other, so that its weights are fetched once. Returns
    what :func:`best_traces` does; a row that needed too much room has -1 traces and is to be searched by itself.
    """
    count = len(rows.indptr) - 1
    mix = experts.mix
    reading = reading_for(groups, experts)
    hidden = np.empty((count, len(reading.hidden)), np.float32)
    scores_labels = mix[FLAT] != 0 or mix[PROTOTYPES] != 0
    labels = len(reading.flat) if scores_labels else 0
    flat, prototypes = np.empty((count, labels), np.float32), np.empty((count, labels), np.float32)
    together = together_for(count, k)
    run_of = np.zeros(features, np.int64)  # of each feature, its weights in the group at hand: start and number in one
    wanted_feature = np.zeros(features, np.bool_)
    known = np.empty(len(rows.indices) if mix[WIDE] != 0 else 0, np.int32)
    for entry in range(len(known)):
        known[entry] = experts.wide.known_as[rows.indices[entry]]
    touched = np.zeros(count, np.int64)
    waiting, wanted = np.empty(count, np.int64), np.empty(count, np.int64)
    logits = reading.logits
    active = np.arange(count)
    for row in range(count):
        touched[row] = read_row(rows, row, experts, mix, reading)
        hidden[row] = reading.hidden
        if scores_labels:
            flat[row] = reading.flat
            prototypes[row] = reading.prototypes
    while len(active) > 0:
        still = 0
        for row in active:
            entry = next_group(row, groups, together, k, lowest)
            if entry >= 0:
                active[still] = row
                waiting[still] = entry
                wanted[still] = together.neuron[row, entry]
                still += 1
        order = np.argsort(wanted[:still])
        first = 0
        while first < still:
            neuron = wanted[order[first]]
            last = first
            values = 0
            while last < still and wanted[order[last]] == neuron:
                values += rows.indptr[active[order[last]] + 1] - rows.indptr[active[order[last]]]
                last += 1
            start = groups.option_offsets[neuron]
            size = groups.option_offsets[neuron + 1] - start
            base = groups.first_row[neuron]
            begin, end = experts.wide.slot_offsets[neuron], experts.wide.slot_offsets[neuron + 1]
            listed = mix[WIDE] != 0 and LOOK_UP * values > end - begin
            if listed:
                for place in range(first, last):
                    row = active[order[place]]
                    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
                        wanted_feature[known[entry]] = True
                for slot in range(begin, end):
                    if wanted_feature[experts.wide.feature[slot]]:
                        low, high = experts.wide.weight_offsets[slot], experts.wide.weight_offsets[slot + 1]
                        run_of[experts.wide.feature[slot]] = (low << RUN_BITS) | (high - low)
            for place in range(first, last):
                row = active[order[place]]
                score_options(neuron, base, size, experts, mix, hidden[row], logits)
                if listed:
                    low, high = rows.indptr[row], rows.indptr[row + 1]
                    reading.sink[0] = touch_runs(known, low, high, run_of, experts.wide.weights)
                    for entry in range(low, high):
                        run = run_of[known[entry]]
                        value = mix[WIDE] * rows.data[entry]
                        for at in range(run >> RUN_BITS, (run >> RUN_BITS) + (run & RUN_MASK)):
                            logits[experts.wide.weights[at].row - base] += value * experts.wide.weights[at].weight
                elif mix[WIDE] != 0:
                    add_wide(rows, row, neuron, base, experts.wide, mix[WIDE], logits)
                if scores_labels:
                    add_labels(start, size, experts.spans, mix, flat[row], prototypes[row], logits)
                log_softmax(logits, size)
                touched[row] += size
                open_entry(row, waiting[order[place]], groups, together, k, logits, True)
            if listed:
                for place in range(first, last):
                    row = active[order[place]]
                    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
                        wanted_feature[known[entry]] = False
                        run_of[known[entry]] = 0
            first = last
        active = active[:still].copy()
    return (*read_off(together), touched)


@kernel
def read_off(together):
    """Return the answers as :func:`best_traces` does."""
    count = len(together.answers)
    total, steps = 0, 0
    for row in range(count):
        for answer in range(together.answers[row]):
            total += 1
            above = together.parent[row, together.ends[row, answer]]
            while above > 0:
                steps += 1
                above = together.parent[row, above]
    length, trace_log_p = np.empty(total, np.int64), np.empty(total, np.float64)
    neurons, neuron_log_p = np.empty(steps, np.int32), np.empty(steps, np.float64)
    trace, used = 0, 0
    for row in range(count):
        for answer in range(together.answers[row]):
            end = together.ends[row, answer]
            size = 0
            above = together.parent[row, end]
            while above > 0:
                size += 1
                above = together.parent[row, above]
            length[trace], trace_log_p[trace] = size, together.score[row, end]
            above = together.parent[row, end]
            for place in range(used + size - 1, used - 1, -1):
                neurons[place] = together.neuron[row, above]
                neuron_log_p[place] = together.score[row, above]
                above = together.parent[row, above]
            trace += 1
            used += size
    return together.answers.copy(), length, trace_log_p, neurons, neuron_log_p


class Spreading(NamedTuple):
    """Probability mass poured down the layers from the root, of one row."""

    mass: Any  # (neurons,) of neurons that were reached; zero elsewhere
    stopped: Any  # (neurons,) of traces that end there
    reached: Any  # (neurons,) the neurons that were reached, parents before children


@kernel
def spreading_for(groups):
    """Make room to pour into all neurons."""
    neurons = len(groups.first_row) - 1
    return Spreading(np.zeros(neurons), np.zeros(neurons), np.empty(neurons, np.int64))


@kernel
def clear_spreading(spreading, count):
    """Forget the neurons that were reached."""
    for place in range(count):
        spreading.mass[spreading.reached[place]] = 0
        spreading.stopped[spreading.reached[place]] = 0


@kernel
def spread(rows, row, groups, experts, reading, floor, spreading):
    """Pour from the root down, leaving aside neurons whose mass is below ``floor``.

    Returns the number of neurons reached, the mass left aside, and the outputs touched. The row must have been read.
    """
    spreading.mass[0] = 1.0
    spreading.reached[0] = 0
    count, place, aside, touched = 1, 0, 0.0, 0
    while place < count:
        # All parents of a neuron are in the layer above it and so come before it: its mass is complete.
        neuron = spreading.reached[place]
        place += 1
        mass = spreading.mass[neuron]
        if mass < floor:
            aside += mass
            continue
        start = groups.option_offsets[neuron]
        size = groups.option_offsets[neuron + 1] - start
        if size > 1:
            score_group(rows, row, neuron, groups, experts, experts.mix, reading)
            log_softmax(reading.logits, size)
            touched += size
        for option in range(size):
            poured = mass * np.exp(np.float64(reading.logits[option])) if size > 1 else mass
            target = groups.option_neuron[start + option]
            if target == STOP:
                spreading.stopped[neuron] += poured
            else:
                if spreading.mass[target] == 0 and poured > 0:
                    spreading.reached[count] = target
                    count += 1
                spreading.mass[target] += poured
    return count, aside, touched


@kernel
def best_labels(rows, groups, experts, node_of, floor):
    """Return the label of largest probability of each row, its probability, and the outputs touched.

    Labels are summed over all their traces. If what was left aside could still change the answer, the row is poured
    again with a floor a hundred times lower, and at last without one; so the answer is exact.
    """
    count = len(rows.indptr) - 1
    reading, spreading = reading_for(groups, experts), spreading_for(groups)
    label_mass = np.zeros(node_of.max() + 2)
    label = np.empty(count, np.int64)
    probability = np.empty(count, np.float64)
    touched = np.zeros(count, np.int64)
    for row in range(count):
        touched[row] += read_row(rows, row, experts, experts.mix, reading)
        least = floor
        while True:
            reached, aside, outputs = spread(rows, row, groups, experts, reading, least, spreading)
            touched[row] += outputs
            best, second = -1, 0.0
            for place in range(reached):
                neuron = spreading.reached[place]
                label_mass[node_of[neuron]] += spreading.stopped[neuron]
            for place in range(reached):
                node = node_of[spreading.reached[place]]
                if node != best:
                    if best < 0 or label_mass[node] > label_mass[best]:
                        second = label_mass[best] if best >= 0 else 0.0
                        best = node
                    else:
                        second = max(second, label_mass[node])
            label[row], probability[row] = best, label_mass[best]
            for place in range(reached):
                label_mass[node_of[spreading.reached[place]]] = 0
            clear_spreading(spreading, reached)
            if least == 0.0 or probability[row] - second >= aside:
                break
            least = least / 100 if least > 1e-8 else 0.0
    return label, probability, touched


@kernel
def best_nodes(rows, groups, experts, node_of, ancestors, ancestor_offsets, depth, cut, surest):
    """Return for each row a node chosen by the probabilities of nodes, its own, and the outputs touched.

    With ``surest`` the deepest node with a probability of at least ``cut``, else the node with the largest sum over
    itself and its ancestors of their probability less ``cut``. ``ancestors`` of a node include itself, not the root.
    A row for which no node qualifies gets the best node right below the root.
    """
    count = len(rows.indptr) - 1
    reading, spreading = reading_for(groups, experts), spreading_for(groups)
    node_mass = np.zeros(len(depth))
    tops = groups.option_offsets[1]  # neurons right below the root
    if groups.option_neuron[tops - 1] == STOP:
        tops -= 1
    chosen = np.empty(count, np.int64)
    probability = np.empty(count, np.float64)
    touched = np.zeros(count, np.int64)
    for row in range(count):
        touched[row] += read_row(rows, row, experts, experts.mix, reading)
        reached, _, outputs = spread(rows, row, groups, experts, reading, cut / 64, spreading)
        touched[row] += outputs
        for place in range(1, reached):
            neuron = spreading.reached[place]
            node_mass[node_of[neuron]] += spreading.mass[neuron]
        best, value, first = -1, 0.0, -1
        for place in range(1, reached):
            neuron = spreading.reached[place]
            node = node_of[neuron]
            mass = node_mass[node]
            if surest:
                gain = depth[node] + mass if mass >= cut else -1.0
            else:
                gain = 0.0
                for above in range(ancestor_offsets[node], ancestor_offsets[node + 1]):
                    gain += node_mass[ancestors[above]] - cut
            if gain > value:
                best, value = node, gain
            if neuron <= tops and (first < 0 or mass > node_mass[first]):
                first = node
        if best < 0:
            best = first
        chosen[row] = best if best >= 0 else node_of[0]
        probability[row] = node_mass[best] if best >= 0 else 1.0
        for place in range(1, reached):
            node_mass[node_of[spreading.reached[place]]] = 0
        clear_spreading(spreading, reached)
    return chosen, probability, touched


@kernel
def expert_logits(rows, row_of, goals, groups, experts):
    """Return what each expert says of the groups on the way of single goals, (options of all of them, 4).

    Goal ``i`` belongs to row ``row_of[i]``; the groups come in the order of the steps, certain ones left out.
    """
    total = 0
    for goal in range(len(row_of)):
        number = goals.entry_goal[goal]
        for step in range(goals.step_offsets[number], goals.step_offsets[number + 1]):
            neuron = goals.step_group[step]
            total += groups.first_row[neuron + 1] - groups.first_row[neuron]
    said = np.zeros((total, 4), np.float32)
    reading = reading_for(groups, experts)
    used = experts.mix != 0
    alone = np.zeros(4, np.float32)
    place = 0
    for goal in range(len(row_of)):
        row = row_of[goal]
        read_row(rows, row, experts, experts.mix, reading)
        number = goals.entry_goal[goal]
        for step in range(goals.step_offsets[number], goals.step_offsets[number + 1]):
            neuron = goals.step_group[step]
            size = groups.first_row[neuron + 1] - groups.first_row[neuron]
            if size == 0:
                continue
            for expert in range(4):
                if used[expert]:
                    alone[:] = 0
                    alone[expert] = 1
                    score_group(rows, row, neuron, groups, experts, alone, reading)
                    said[place : place + size, expert] = reading.logits[:size]
            place += size
    return said
