"""The best traces of rows by best-first search from the root, which scores only the groups that can matter.

As no factor exceeds 1, the first complete trace that a search pops from its heap is the most probable one, the second
the next, and so on. The searches of many rows advance in parallel, one step at a time, and all rows that wait for the
same group are scored one after the other, so that its weights are fetched once.

With sets of labels each option has its own probability ``p(child | parent)``: the sigmoid of its logit, given that a
row with the parent takes at least one option. The probability of a node is that of its parent in the tree times its
own, but at most that of each other parent, so that no node is more probable than a parent. The first label that a
search pops from its heap is therefore the most probable one. A node with several parents waits until all of them were
popped.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined, kernel
from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import WIDE
from hinet.engine.model.experts.wide import FEW, allocate_listing, forget_weights, list_weights
from hinet.engine.model.fused import FusedModel
from hinet.engine.model.groups import Groups
from hinet.engine.model.kernels import log_options
from hinet.engine.search.scoring_kernels import allocate_reading, read_row, score_group, score_listed, steps_of_rows
from hinet.parameters import resolve_threads
from hinet.ragged import gather, offsets_of
from hinet.taxonomy import Layers

STOP = -1
MANY_TRACES = 4  # number of traces that take about twice as long to find as one
INITIAL_CAPACITY = 384  # minimum entries of a search at first
MIN_BLOCK = 64  # fewer rows are not worth another thread
CAPACITY_PER_TRACE = 8  # entries that each of many traces is likely to need

Part = TypeVar("Part")
Tuple = TypeVar("Tuple", bound=tuple[Any, ...])


class BlockSizes(NamedTuple):
    """Maximum sizes of what a thread searches at a time."""

    rows: int = 4_096
    cells: int = 8_000_000  # maximum size of lists of labels or neurons


BLOCKS = BlockSizes()


class RawTraces(NamedTuple):
    """Best traces of rows, as the kernels return them."""

    counts: NDArray[np.int64]  # (n,) traces of each row; negative if the capacity was too small
    lengths: NDArray[np.int64]  # (traces,)
    log_p: NDArray[np.float64]  # (traces,)
    neurons: NDArray[np.int32]  # (neurons of all traces,)
    neuron_log_p: NDArray[np.float64]  # (neurons of all traces,)
    touched: NDArray[np.int64]  # (n,)

    def traces(self, layers: Layers, log_p: NDArray[np.float64] | None = None) -> Traces:
        """Return the traces, with other log probabilities if given."""
        log_p = self.log_p if log_p is None else log_p
        return Traces(layers, offsets_of(self.counts), offsets_of(self.lengths), self.neurons, log_p)

    def _with_rows(self, rows: NDArray[np.int64], other: RawTraces) -> RawTraces:
        """Return the traces with those of other ``rows`` inserted."""
        counts, touched = self.counts.copy(), self.touched.copy()
        counts[rows], touched[rows] = other.counts, other.touched
        own = np.repeat(np.arange(len(counts)), np.maximum(self.counts, 0))
        order = np.argsort(np.concatenate([own, np.repeat(rows, other.counts)]), kind="stable")
        lengths = np.concatenate([self.lengths, other.lengths])
        flat, _ = gather(np.arange(int(lengths.sum())), offsets_of(lengths), order)
        return RawTraces(
            counts,
            lengths[order],
            np.concatenate([self.log_p, other.log_p])[order],
            np.concatenate([self.neurons, other.neurons])[flat],
            np.concatenate([self.neuron_log_p, other.neuron_log_p])[flat],
            touched,
        )


@dataclass(frozen=True)
class TraceSearch:
    """Finds the ``k`` best traces of every row with a log probability of at least ``lowest``, exactly.

    ``groups`` are those of the model, some of whose options may be closed.
    """

    model: FusedModel
    k: int = 1
    lowest: float = -np.inf
    sizes: BlockSizes = BLOCKS
    groups: Groups | None = None

    def find(self, rows: SparseMatrix, threads: int | None = None) -> RawTraces:
        """Return the traces of rows, whose blocks are searched in parallel."""
        answer = partial(self.find_in_block, capacity=max(INITIAL_CAPACITY, CAPACITY_PER_TRACE * self.k))
        return joined(in_blocks(rows, answer, threads, self.sizes))

    def find_in_block(self, block: SparseMatrix, capacity: int = INITIAL_CAPACITY) -> RawTraces:
        """Return the traces of a block; rows whose search exceeds the capacity are retried with a doubled one."""
        count, layers, others = block.row_count, self.model.layers, self.model.layers.other_parents
        per_neuron = self.sizes.cells // len(layers.node) if len(others[0]) else self.sizes.rows  # DAGs mark neurons
        max_rows = max(1, min(self.sizes.rows * INITIAL_CAPACITY // capacity, per_neuron))
        if count > max_rows:
            return joined([self.find_in_block(part, capacity) for part in split(block, max_rows)])
        capacity = max(capacity, FEW * INITIAL_CAPACITY // max(count, 1))
        groups, experts = self.groups or self.model.groups, self.model.experts
        traces = RawTraces(*best_traces(block, groups, experts, others, self.k, self.lowest, capacity))
        needed = -int(traces.counts.min(initial=0))
        if not needed:
            return traces
        rows = np.flatnonzero(traces.counts < 0)
        return traces._with_rows(rows, self.find_in_block(block.take(rows), max(2 * capacity, needed)))


def in_blocks(
    matrix: SparseMatrix,
    answer: Callable[..., Part],
    threads: int | None,
    sizes: BlockSizes,
    *per_row: NDArray[Any],
) -> list[Part]:
    """Answer blocks of rows in parallel; arrays ``per_row`` are split alike."""
    count, threads = matrix.row_count, resolve_threads(threads)
    size = min(sizes.rows, max(MIN_BLOCK, -(-count // threads)))
    blocks = split(matrix, size)
    threads = min(threads, len(blocks))
    parts = [[array[start : start + size] for start in range(0, max(count, 1), size)] for array in per_row]
    if threads == 1:
        return [answer(*block) for block in zip(blocks, *parts, strict=True)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(answer, blocks, *parts))


def joined(parts: list[Tuple]) -> Tuple:
    """Concatenate the answers to several blocks."""
    return parts[0] if len(parts) == 1 else type(parts[0])(*map(np.concatenate, zip(*parts, strict=True)))


def split(matrix: SparseMatrix, size: int) -> list[SparseMatrix]:
    """Split rows into blocks of at most ``size``; there is at least one block."""
    count = matrix.row_count
    return [matrix.block(start, min(start + size, count)) for start in range(0, max(count, 1), size)]


class Searches(NamedTuple):
    """Searches of several rows; element ``i`` of each array belongs to row ``i``.

    An *entry* is a neuron, or the stop, reached by one path; entry 0 is the root.
    """

    neuron: Any  # (n, capacity) the neuron of each entry, or STOP
    parent: Any  # (n, capacity) the entry above
    score: Any  # (n, capacity) log probability
    heap_score: Any  # (n, capacity)
    heap_entry: Any  # (n, capacity)
    entries: Any  # (n,)
    heap: Any  # (n,) entries in the heap
    opening: Any  # (n,) the entry whose group is scored next
    completed: Any  # (n,) complete traces so far, of which at most k are kept
    best: Any  # (n, k) their log probabilities
    ends: Any  # (n, k) entries of the answers
    answers: Any  # (n,) number of answers; if the capacity was too small, minus the number of entries needed
    touched: Any  # (n,) outputs scored


@inlined
def allocate_searches(count, k, capacity):
    """Allocate the searches of ``count`` rows, each with its root entry."""
    searches = Searches(
        np.empty((count, capacity), np.int32),
        np.empty((count, capacity), np.int32),
        np.empty((count, capacity), np.float64),
        np.empty((count, capacity), np.float64),
        np.empty((count, capacity), np.int32),
        np.ones(count, np.int64),
        np.ones(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.empty((count, k), np.float64),
        np.empty((count, k), np.int64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
    )
    searches.neuron[:, 0] = 0
    searches.parent[:, 0] = -1
    searches.score[:, 0] = 0
    searches.heap_score[:, 0] = 0
    searches.heap_entry[:, 0] = 0
    return searches


class Waiting(NamedTuple):
    """Nodes in a DAG with sets of labels that wait for their other parents; otherwise all arrays are empty."""

    taken: Any  # (n, neurons) whether a neuron was popped from the heap
    entry: Any  # (n, capacity) waiting entries
    count: Any  # (n,)


@inlined
def allocate_waiting(count, groups, others, capacity):
    """Allocate the waiting nodes of ``count`` rows; ``others`` has the other parents of every neuron."""
    rows = count if len(others[0]) > 0 else 0
    neurons = len(groups.first_row) - 1
    return Waiting(np.zeros((rows, neurons), np.bool_), np.empty((rows, capacity), np.int32), np.zeros(rows, np.int64))


def _steps_of_search(rows, groups, experts, others, k, lowest, capacity):
    return (1 + k / MANY_TRACES) * steps_of_rows(rows, groups, experts)


@kernel(steps=_steps_of_search)
def best_traces(rows, groups, experts, others, k, lowest, capacity):
    """Return the ``k`` best traces of every row with a log probability of at least ``lowest``; of sets, labels.

    ``others`` are the other parents of every neuron as a ragged array; there are some only in a DAG with sets.

    Returns the number of traces of each row, the length and log P of each trace, its neurons, the log P of the path
    down to each of them, and the outputs scored for each row. If a search needs more than ``capacity`` entries, its
    number of traces is negative: minus the capacity needed.
    """
    count = len(rows.indptr) - 1
    reading, listing, searches, waiting_nodes = (
        allocate_reading(count, experts),
        allocate_listing(rows, experts.wide, experts.mix[WIDE] != 0),
        allocate_searches(count, k, capacity),
        allocate_waiting(count, groups, others, capacity),
    )
    logits = np.empty(capacity, np.float32)
    for row in range(count):
        searches.touched[row] = read_row(rows, row, experts, reading, row)
    waiting = advance_searches(np.arange(count), groups, others, lowest, searches, waiting_nodes)
    while len(waiting) > 0:
        first = 0
        while first < len(waiting):
            last = end_of_group(waiting, first, searches)
            open_group(rows, waiting[first:last], groups, experts, others, lowest, reading, listing, searches, logits)
            first = last
        waiting = advance_searches(waiting, groups, others, lowest, searches, waiting_nodes)
    return collect_answers(searches)


@inlined
def advance_searches(waiting, groups, others, lowest, searches, waiting_nodes):
    """Advance the searches of rows until each needs a group scored; return those that do, sorted by group."""
    count = len(searches.answers)
    still = 0
    for row in waiting:
        if needs_group(row, groups, others, lowest, searches, waiting_nodes):
            # Sorting numbers that combine group and row is faster than finding the order of rows by group.
            waiting[still] = np.int64(searches.neuron[row, searches.opening[row]]) * count + row
            still += 1
    waiting = waiting[:still]
    if still > 1:
        waiting.sort()
    for index in range(still):
        waiting[index] %= count
    return waiting


@inlined
def end_of_group(waiting, first, searches):
    """Return the index after the last row that waits for the same group as the first."""
    neuron = searches.neuron[waiting[first], searches.opening[waiting[first]]]
    last = first + 1
    while last < len(waiting) and searches.neuron[waiting[last], searches.opening[waiting[last]]] == neuron:
        last += 1
    return last


@inlined
def open_group(rows, waiting_rows, groups, experts, others, lowest, reading, listing, searches, logits):
    """Score the group that some rows wait for, and add its options to their searches."""
    neuron = np.int64(searches.neuron[waiting_rows[0], searches.opening[waiting_rows[0]]])
    free = groups.first_row[neuron + 1] > groups.first_row[neuron]
    listed = free and list_weights(rows, waiting_rows, neuron, experts.wide, listing)
    for row in waiting_rows:
        if listed:
            score_listed(rows, row, neuron, groups, experts, listing, reading, row, logits)
        elif free:
            score_group(rows, row, neuron, groups, experts, experts.mix, reading, row, logits)
        log_options(neuron, groups, logits)
        searches.touched[row] += groups.option_offsets[neuron + 1] - groups.option_offsets[neuron]
        open_entry(row, searches.opening[row], groups, others, lowest, searches, logits)
    if listed:
        forget_weights(rows, waiting_rows, listing)


@inlined
def needs_group(row, groups, others, lowest, searches, waiting_nodes):
    """Advance the search of a row; return whether it needs the group below ``opening`` scored."""
    k, capacity, several_parents = searches.best.shape[1], searches.neuron.shape[1], len(others[0]) > 0
    neuron_of, score_of, ends = searches.neuron[row], searches.score[row], searches.ends[row]
    heap_score, heap_entry = searches.heap_score[row], searches.heap_entry[row]
    answers, needs = searches.answers[row], False
    while searches.heap[row] > 0 and answers < k and not needs:
        entry = np.int64(heap_entry[0])
        heap_pop(heap_score, heap_entry, searches.heap[row])
        searches.heap[row] -= 1
        if score_of[entry] < lowest:
            break
        if several_parents and neuron_of[entry] != STOP:
            if not parents_taken(row, neuron_of[entry], others, waiting_nodes):
                waiting_nodes.entry[row, waiting_nodes.count[row]] = entry
                waiting_nodes.count[row] += 1
                continue
            waiting_nodes.taken[row, neuron_of[entry]] = True
            release(row, score_of[entry], others, searches, waiting_nodes)
        elif is_certain(neuron_of[entry], groups):
            entry = follow_certain(row, entry, groups, searches)
        neuron = neuron_of[entry]
        if neuron == STOP:
            ends[answers] = entry
            answers += 1
            continue
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
def is_certain(neuron, groups):
    """Return whether every row that reaches a neuron takes the one option below it."""
    if neuron == STOP or groups.first_row[neuron + 1] > groups.first_row[neuron]:
        return False
    return groups.option_offsets[neuron + 1] - groups.option_offsets[neuron] == 1


@inlined
def follow_certain(row, entry, groups, searches):
    """Descend from an entry while there is only one option and capacity; return the last entry.

    That option is as probable as the entry itself, the best of the heap, so it need not wait there.
    """
    neuron_of, parent_of, score_of = searches.neuron[row], searches.parent[row], searches.score[row]
    neuron, score, made = neuron_of[entry], score_of[entry], searches.entries[row]
    while is_certain(neuron, groups) and made < len(neuron_of):
        neuron = groups.option_neuron[groups.option_offsets[neuron]]
        neuron_of[made], parent_of[made], score_of[made] = neuron, entry, score
        entry = made
        made += 1
        if is_leaf(neuron, groups):
            searches.completed[row] = keep_best(searches.best[row], searches.completed[row], score)
    searches.entries[row] = made
    return entry


@inlined
def open_entry(row, entry, groups, others, lowest, searches, log_p):
    """Add the options below an entry that can still be answers to the search of a row by their log probabilities."""
    neuron_of, parent_of, score_of = searches.neuron[row], searches.parent[row], searches.score[row]
    heap_score, heap_entry, best = searches.heap_score[row], searches.heap_entry[row], searches.best[row]
    neuron, above = neuron_of[entry], score_of[entry]
    start = groups.option_offsets[neuron]
    made, heap, completed = searches.entries[row], searches.heap[row], searches.completed[row]
    for option in range(groups.option_offsets[neuron + 1] - start):
        reached = above + log_p[option]
        if groups.closed[start + option] or reached < lowest:
            continue
        if completed == len(best) and reached < best[completed - 1]:
            continue
        target = groups.option_neuron[start + option]
        neuron_of[made], parent_of[made], score_of[made] = target, entry, reached
        heap_push(heap_score, heap_entry, heap, reached, made)
        made += 1
        heap += 1
        # A leaf counts as complete unless another parent may be less probable; its certain stop is not counted again.
        if target == STOP:
            if groups.first_row[neuron + 1] > groups.first_row[neuron]:
                completed = keep_best(best, completed, reached)
        elif is_leaf(target, groups) and others[1][target] == others[1][target + 1]:
            completed = keep_best(best, completed, reached)
    searches.entries[row], searches.heap[row], searches.completed[row] = made, heap, completed


@inlined
def is_leaf(neuron, groups):
    """Return whether a trace can only end at a neuron."""
    return is_certain(neuron, groups) and groups.option_neuron[groups.option_offsets[neuron]] == STOP


@inlined
def keep_best(best, completed, score):
    """Insert a score into the largest ``completed`` ones in descending order; return their number."""
    index = min(completed, len(best) - 1)
    if completed == len(best) and score <= best[index]:
        return completed
    while index > 0 and best[index - 1] < score:
        best[index] = best[index - 1]
        index -= 1
    best[index] = score
    return min(completed + 1, len(best))


@inlined
def heap_push(heap_score, heap_entry, size, score, entry):
    """Push an entry onto a max-heap of ``size`` entries."""
    index = size
    while index > 0:
        parent = (index - 1) >> 1
        if heap_score[parent] >= score:
            break
        heap_score[index], heap_entry[index] = heap_score[parent], heap_entry[parent]
        index = parent
    heap_score[index], heap_entry[index] = score, entry


@inlined
def heap_pop(heap_score, heap_entry, size):
    """Remove the top of a max-heap of ``size`` entries."""
    size -= 1
    score, entry = heap_score[size], heap_entry[size]
    index = 0
    while True:
        child = 2 * index + 1
        if child >= size:
            break
        if child + 1 < size and heap_score[child + 1] > heap_score[child]:
            child += 1
        if heap_score[child] <= score:
            break
        heap_score[index], heap_entry[index] = heap_score[child], heap_entry[child]
        index = child
    heap_score[index], heap_entry[index] = score, entry


@inlined
def collect_answers(searches):
    """Return the answers as :func:`best_traces` does."""
    total, steps = 0, 0
    for row in range(len(searches.answers)):
        for answer in range(searches.answers[row]):
            total += 1
            steps += length_of(row, searches.ends[row, answer], searches.parent)
    length, trace_log_p = np.empty(total, np.int64), np.empty(total, np.float64)
    neurons, neuron_log_p = np.empty(steps, np.int32), np.empty(steps, np.float64)
    trace, used = 0, 0
    for row in range(len(searches.answers)):
        for answer in range(searches.answers[row]):
            end = searches.ends[row, answer]
            length[trace], trace_log_p[trace] = length_of(row, end, searches.parent), searches.score[row, end]
            used += length[trace]
            trace += 1
            above = searches.parent[row, end]
            index = used
            while above > 0:
                index -= 1
                neurons[index], neuron_log_p[index] = searches.neuron[row, above], searches.score[row, above]
                above = searches.parent[row, above]
    return searches.answers, length, trace_log_p, neurons, neuron_log_p, searches.touched


@inlined
def length_of(row, end, parent):
    """Return the number of neurons of a trace below the root, given its last entry."""
    length = 0
    above = parent[row, end]
    while above > 0:
        length += 1
        above = parent[row, above]
    return length
