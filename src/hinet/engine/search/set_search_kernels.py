"""Kernels that find the labels of rows that may have several: the best ones, all above a threshold, or all.

Each option has its own probability ``p(child | parent)``: the sigmoid of its logit, given that a row with the parent
takes at least one option (:func:`log_some`). The probability of a node is that of its parent in the tree times its own,
but at most that of each other parent, so that no node is more probable than a parent. The first label that a search
pops from its heap is therefore the most probable one, and a branch below the threshold is never opened. A node with
several parents waits until all of them were popped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.model.experts import WIDE
from hinet.engine.model.experts.wide import allocate_listing, forget_weights, list_weights
from hinet.engine.model.log_kernels import log_some
from hinet.engine.search.scoring_kernels import (
    allocate_reading,
    largest_group,
    read_row,
    score_group,
    score_listed,
    steps_of_rows,
)
from hinet.engine.search.search_kernels import (
    MANY_TRACES,
    STOP,
    allocate_searches,
    collect_answers,
    end_of_group,
    heap_pop,
    heap_push,
    is_leaf,
    keep_best,
)

F4 = np.float32


class Waiting(NamedTuple):
    """Nodes of a DAG that wait for their other parents; all empty for a tree."""

    taken: Any  # (n, neurons) whether a neuron was popped from the heap
    entry: Any  # (n, capacity) waiting entries
    count: Any  # (n,)


@inlined
def log_chances(logits, size, exhaustive):
    """Turn the first ``size`` logits into log probabilities, given that one applies if they are exhaustive."""
    shift = log_some(logits, 0, size) if exhaustive else F4(0)
    for option in range(size):
        logit = logits[option]
        log_p = min(logit, F4(0)) - np.log1p(np.exp(-abs(logit)))
        logits[option] = min(log_p - shift, F4(0))


def _steps_of_search(rows, groups, experts, others, k, lowest, capacity):
    return (1 + k / MANY_TRACES) * steps_of_rows(rows, groups, experts)


@kernel(steps=_steps_of_search)
def best_labels(rows, groups, experts, others, k, lowest, capacity):
    """Return the ``k`` most probable labels of every row with a log probability of at least ``lowest``.

    ``others`` are the other parents of every neuron as a ragged array. The result and ``capacity`` are those of
    :func:`hinet.engine.search.search_kernels.best_traces`.
    """
    count = len(rows.indptr) - 1
    several = len(others[0]) > 0
    reading, listing, searches = (
        allocate_reading(count, experts),
        allocate_listing(rows, experts.wide, experts.mix[WIDE] != 0),
        allocate_searches(count, min(k, capacity), capacity),
    )
    waiting_nodes = Waiting(
        np.zeros((count if several else 0, len(groups.first_row) - 1), np.bool_),
        np.empty((count if several else 0, capacity), np.int32),
        np.zeros(count, np.int64),
    )
    logits = np.empty(capacity, np.float32)
    for row in range(count):
        searches.touched[row] = read_row(rows, row, experts, reading, row)
    waiting = advance_set_searches(np.arange(count), groups, others, k, lowest, searches, waiting_nodes)
    while len(waiting) > 0:
        first = 0
        while first < len(waiting):
            last = end_of_group(waiting, first, searches)
            open_options(rows, waiting[first:last], groups, experts, others, lowest, reading, listing, searches, logits)
            first = last
        waiting = advance_set_searches(waiting, groups, others, k, lowest, searches, waiting_nodes)
    return collect_answers(searches)


@inlined
def advance_set_searches(waiting, groups, others, k, lowest, searches, waiting_nodes):
    """Advance the searches of rows until each needs a group scored; return those that do, sorted by group."""
    count = len(searches.answers)
    still = 0
    for row in waiting:
        if needs_group_of_set(row, groups, others, k, lowest, searches, waiting_nodes):
            waiting[still] = np.int64(searches.neuron[row, searches.opening[row]]) * count + row
            still += 1
    waiting = waiting[:still]
    if still > 1:
        waiting.sort()
    for index in range(still):
        waiting[index] %= count
    return waiting


@inlined
def needs_group_of_set(row, groups, others, k, lowest, searches, waiting_nodes):
    """Advance the search of a row; return whether it needs the group below ``opening`` scored."""
    capacity = searches.neuron.shape[1]
    heap_score, heap_entry = searches.heap_score[row], searches.heap_entry[row]
    answers, needs = searches.answers[row], False
    while searches.heap[row] > 0 and answers < k and not needs:
        entry = np.int64(heap_entry[0])
        heap_pop(heap_score, heap_entry, searches.heap[row])
        searches.heap[row] -= 1
        neuron, score = searches.neuron[row, entry], searches.score[row, entry]
        if score < lowest:
            break
        if neuron == STOP:
            if answers == searches.ends.shape[1]:
                answers = -2 * capacity
                break
            searches.ends[row, answers] = entry
            answers += 1
            continue
        if len(others[0]) > 0:
            if not parents_taken(row, neuron, others, waiting_nodes):
                waiting_nodes.entry[row, waiting_nodes.count[row]] = entry
                waiting_nodes.count[row] += 1
                continue
            waiting_nodes.taken[row, neuron] = True
            release(row, score, others, searches, waiting_nodes)
        needed = searches.entries[row] + groups.option_offsets[neuron + 1] - groups.option_offsets[neuron]
        if needed > capacity:
            answers = -needed
            break
        searches.opening[row] = entry
        needs = True
    searches.answers[row] = answers
    return needs


@inlined
def parents_taken(row, neuron, others, waiting_nodes):
    """Return whether all other parents of a neuron were taken from the heap."""
    missing = 0
    for index in range(others[1][neuron], others[1][neuron + 1]):
        missing += not waiting_nodes.taken[row, others[0][index]]
    return missing == 0


@inlined
def release(row, score, others, searches, waiting_nodes):
    """Put the entries whose last parent has just been taken back into the heap: they are as probable as it at most."""
    left = 0
    for index in range(waiting_nodes.count[row]):
        entry = waiting_nodes.entry[row, index]
        if parents_taken(row, searches.neuron[row, entry], others, waiting_nodes):
            searches.score[row, entry] = min(searches.score[row, entry], score)
            heap_push(
                searches.heap_score[row],
                searches.heap_entry[row],
                searches.heap[row],
                searches.score[row, entry],
                entry,
            )
            searches.heap[row] += 1
        else:
            waiting_nodes.entry[row, left] = entry
            left += 1
    waiting_nodes.count[row] = left


@inlined
def open_options(rows, waiting_rows, groups, experts, others, lowest, reading, listing, searches, logits):
    """Score the group that the waiting_rows rows wait for, and add its options to their searches."""
    neuron = np.int64(searches.neuron[waiting_rows[0], searches.opening[waiting_rows[0]]])
    size = groups.option_offsets[neuron + 1] - groups.option_offsets[neuron]
    free = groups.first_row[neuron + 1] > groups.first_row[neuron]
    listed = free and list_weights(rows, waiting_rows, neuron, experts.wide, listing)
    for row in waiting_rows:
        if listed:
            score_listed(rows, row, neuron, groups, experts, listing, reading, row, logits)
        elif free:
            score_group(rows, row, neuron, groups, experts, experts.mix, reading, row, logits)
        if free:
            log_chances(logits, size, groups.exhaustive[neuron])
        else:
            logits[0] = 0
        searches.touched[row] += size
        add_options(row, searches.opening[row], groups, others, lowest, searches, logits)
    if listed:
        forget_weights(rows, waiting_rows, listing)


@inlined
def add_options(row, entry, groups, others, lowest, searches, log_p):
    """Add the options below an entry that can still be answers to the search of a row."""
    heap_score, heap_entry, best = searches.heap_score[row], searches.heap_entry[row], searches.best[row]
    neuron, above = searches.neuron[row, entry], searches.score[row, entry]
    start = groups.option_offsets[neuron]
    made, heap, completed = searches.entries[row], searches.heap[row], searches.completed[row]
    for option in range(groups.option_offsets[neuron + 1] - start):
        reached = above + log_p[option]
        if reached < lowest or (completed == len(best) and reached < best[completed - 1]):
            continue
        target = groups.option_neuron[start + option]
        searches.neuron[row, made], searches.parent[row, made], searches.score[row, made] = target, entry, reached
        heap_push(heap_score, heap_entry, heap, reached, made)
        made += 1
        heap += 1
        # A leaf counts as complete unless another parent may be less probable; its stop is not counted again.
        if target == STOP:
            if groups.first_row[neuron + 1] > groups.first_row[neuron]:
                completed = keep_best(best, completed, reached)
        elif is_leaf(target, groups) and others[1][target] == others[1][target + 1]:
            completed = keep_best(best, completed, reached)
    searches.entries[row], searches.heap[row], searches.completed[row] = made, heap, completed


@kernel
def all_nodes(rows, groups, experts, others, order, floor):
    """Return the probability of every neuron, and of every label that ends there, (n, neurons) each.

    ``order`` has parents before children. Groups below neurons less probable than ``floor`` are skipped.
    """
    count, neurons = len(rows.indptr) - 1, len(groups.first_row) - 1
    reached, ends = np.zeros((count, neurons), np.float32), np.zeros((count, neurons), np.float32)
    reading, logits = allocate_reading(1, experts), np.empty(largest_group(groups), np.float32)
    for row in range(count):
        read_row(rows, row, experts, reading, 0)
        reached[row, 0] = 1
        for neuron in order:
            for index in range(others[1][neuron], others[1][neuron + 1]):
                reached[row, neuron] = min(reached[row, neuron], reached[row, others[0][index]])
            above = reached[row, neuron]
            if above < floor:
                continue
            start = groups.option_offsets[neuron]
            size = groups.option_offsets[neuron + 1] - start
            if groups.first_row[neuron + 1] > groups.first_row[neuron]:
                score_group(rows, row, neuron, groups, experts, experts.mix, reading, 0, logits)
                log_chances(logits, size, groups.exhaustive[neuron])
            else:
                logits[0] = 0
            for option in range(size):
                target = groups.option_neuron[start + option]
                if target == STOP:
                    ends[row, neuron] = above * np.exp(logits[option])
                else:
                    reached[row, target] = above * np.exp(logits[option])
    return reached, ends
