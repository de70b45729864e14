"""Kernels that score a sibling group for a row by all experts: the only place that calls their scoring functions.

A row is read once: its hidden units, and the scores of all labels by the experts on labels. Its groups are then scored
from these.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hinet.compiled import inlined, kernel
from hinet.engine.model.experts import DEEP, FLAT, MARGIN, NEIGHBOURS, PROTOTYPES, WIDE
from hinet.engine.model.experts.deep import logit_of, read_hidden, read_inner
from hinet.engine.model.experts.labels import add_chances, read_flat, read_labels
from hinet.engine.model.experts.neighbours import add_nearest
from hinet.engine.model.experts.wide import add_listed, add_wide
from hinet.engine.model.kernels import pooled

GROUPS_PER_ROW, USUAL_OPTIONS = 4, 10  # groups that a search for one trace scores, and options of most of them


class Reading(NamedTuple):
    """Hidden units and label scores of the current rows."""

    hidden: Any  # (n, k) hidden units of the deep expert
    flat_hidden: Any  # (1, k) hidden units of the flat expert for the last row
    flat: Any  # (n * labels,) logits of the flat expert
    prototypes: Any  # (n * labels,) scaled cosines
    margin: Any  # (n * labels,) scaled margins
    sink: Any  # (1,) keeps the compiler from removing prefetches
    lower: Any  # (units,) first of two hidden layers of the deep expert


@inlined
def allocate_reading(count, experts):
    """Allocate the reading of ``count`` rows."""
    labels = count * len(experts.spans.neuron)
    return Reading(
        np.empty((count, experts.deep.embedding.shape[1]), np.float32),
        np.empty((1, experts.flat.embedding.shape[1]), np.float32),
        np.empty(labels if experts.mix[FLAT] != 0 else 0, np.float32),
        np.empty(labels if experts.mix[PROTOTYPES] != 0 else 0, np.float32),
        np.empty(labels if experts.mix[MARGIN] != 0 else 0, np.float32),
        np.empty(1, np.float32),
        np.empty(len(experts.deep.inner_bias), np.float32),
    )


@inlined
def read_row(rows, row, experts, reading, index):
    """Read a row into position ``index`` of the reading; return the number of outputs touched."""
    touched = 0
    if experts.mix[DEEP] != 0:
        read_hidden(rows, row, experts.deep, reading.hidden, index, reading.sink)
        if len(experts.deep.inner_bias) > 0:
            read_inner(experts.deep, reading.hidden, index, reading.lower)
    if experts.mix[FLAT] != 0:
        read_hidden(rows, row, experts.flat, reading.flat_hidden, 0, reading.sink)
        touched += read_flat(experts.flat, reading, index)
    if experts.mix[PROTOTYPES] != 0:
        touched += read_labels(rows, row, experts.prototypes, len(experts.spans.neuron), reading.prototypes, index)
    if experts.mix[MARGIN] != 0:
        touched += read_labels(rows, row, experts.margin, len(experts.spans.neuron), reading.margin, index)
    return touched


@inlined
def score_group(rows, row, neuron, groups, experts, mix, reading, index, logits):
    """Fill in the logits of a group with several options, for the row read into position ``index``."""
    score_options(neuron, groups, experts, mix, reading.hidden, index, logits)
    if mix[WIDE] != 0:
        add_wide(rows, row, neuron, groups, experts.wide, mix[WIDE], logits)
    add_labels(neuron, groups, experts.spans, mix, reading, index, logits)
    if mix[NEIGHBOURS] != 0:
        add_nearest(rows, row, neuron, groups, experts.spans.paths, mix[NEIGHBOURS], logits)


@inlined
def score_listed(rows, row, neuron, groups, experts, listing, reading, index, logits):
    """Fill in the logits as :func:`score_group` does, for a group whose wide weights are listed."""
    score_options(neuron, groups, experts, experts.mix, reading.hidden, index, logits)
    add_listed(rows, row, neuron, groups, experts.wide, experts.mix[WIDE], listing, reading.sink, logits)
    add_labels(neuron, groups, experts.spans, experts.mix, reading, index, logits)
    if experts.mix[NEIGHBOURS] != 0:
        add_nearest(rows, row, neuron, groups, experts.spans.paths, experts.mix[NEIGHBOURS], logits)


@inlined
def score_options(neuron, groups, experts, mix, hidden, index, logits):
    """Fill in the logits of the deep expert and the biases of the wide one."""
    base = groups.first_row[neuron]
    for option in range(groups.first_row[neuron + 1] - base):
        logits[option] = mix[WIDE] * experts.wide.bias[base + option]
        if mix[DEEP] != 0:
            logits[option] += mix[DEEP] * logit_of(base + option, experts.deep, hidden, index)


@inlined
def add_labels(neuron, groups, spans, mix, reading, index, logits):
    """Add the scores of the experts on labels, pooled over the labels below each option."""
    shift = index * len(spans.neuron)
    if mix[FLAT] != 0 and groups.several:
        add_chances(neuron, groups, spans, mix[FLAT], reading.flat, shift, logits)
    elif mix[FLAT] != 0:
        add_pooled(neuron, groups, spans, mix[FLAT], reading.flat, shift, logits)
    if mix[PROTOTYPES] != 0:
        add_pooled(neuron, groups, spans, mix[PROTOTYPES], reading.prototypes, shift, logits)
    if mix[MARGIN] != 0 and groups.several:
        add_chances(neuron, groups, spans, mix[MARGIN], reading.margin, shift, logits)
    elif mix[MARGIN] != 0:
        add_pooled(neuron, groups, spans, mix[MARGIN], reading.margin, shift, logits)


@inlined
def add_pooled(neuron, groups, spans, weight, scores, shift, logits):
    """Add the log-sum-exp of the scores of the labels below each option."""
    start = groups.option_offsets[neuron]
    for option in range(groups.option_offsets[neuron + 1] - start):
        first, last = shift + spans.first[start + option], shift + spans.last[start + option]
        logits[option] += weight * pooled(scores, first, last)


@inlined
def largest_group(groups):
    """Return the number of options of the largest group."""
    largest = 1
    for neuron in range(len(groups.first_row) - 1):
        largest = max(largest, groups.option_offsets[neuron + 1] - groups.option_offsets[neuron])
    return largest


def steps_of_rows(rows, groups, experts):
    """Estimate the loop iterations of reading rows and scoring a few groups for each by best-first search."""
    count, labels = len(rows.indptr) - 1, len(experts.spans.neuron)
    deep, flat = experts.deep.embedding.shape[1], experts.flat.embedding.shape[1]
    outputs = GROUPS_PER_ROW * (np.diff(groups.option_offsets).max(initial=1) + USUAL_OPTIONS)
    values = (len(rows.indices) + rows.dense.size) * (deep + flat + GROUPS_PER_ROW)
    scores_labels = experts.mix[FLAT] != 0 or experts.mix[PROTOTYPES] != 0 or experts.mix[MARGIN] != 0
    of_labels = labels * (flat + 2 * GROUPS_PER_ROW) if scores_labels else 0
    return values + count * (of_labels + outputs * (deep + USUAL_OPTIONS))


@kernel
def expert_logits(rows, row_of, targets, groups, experts):
    """Return the logits of each expert for the groups on the paths of targets, (options, experts).

    Target ``i`` belongs to row ``row_of[i]``. Groups come in the order of the steps, without those of a single option.
    """
    count = len(experts.mix)
    by_expert = np.zeros((count_options(targets, groups, len(row_of)), count), np.float32)
    reading, logits = allocate_reading(1, experts), np.empty(largest_group(groups), np.float32)
    alone = np.zeros(count, np.float32)
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
            for expert in range(count):
                if experts.mix[expert] != 0:
                    alone[:] = 0
                    alone[expert] = 1
                    score_group(rows, row, neuron, groups, experts, alone, reading, 0, logits)
                    by_expert[index : index + size, expert] = logits[:size]
            index += size
    return by_expert


@inlined
def count_options(targets, groups, count):
    """Return the number of options with siblings in the groups on the paths of the first ``count`` targets."""
    total = 0
    for target in range(count):
        number = targets.entry_target[target]
        for step in range(targets.step_offsets[number], targets.step_offsets[number + 1]):
            neuron = targets.step_group[step]
            total += groups.first_row[neuron + 1] - groups.first_row[neuron]
    return total


@kernel
def group_logits(rows, chosen, neuron, groups, experts):
    """Return the logits of one group for the chosen rows, (n, options), and their hidden units, (n, k)."""
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
