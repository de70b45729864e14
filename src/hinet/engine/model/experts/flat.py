"""The flat expert: a deep expert over all labels at once, pooled into the sibling groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined
from hinet.engine.model.experts.deep import DeepExpert, DeepRecord, hidden_parts, logit_of
from hinet.engine.model.experts.record import Numbers, Parts, RowFeatures, label_slices, pool_parts
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.log_kernels import sum_of_softplus
from hinet.engine.model.transfer import INACTIVE_BIAS, Transfer

F4 = np.float32
SCALE_STEPS = 20  # steps of a bisection, about the bits of single precision
SURE = F4(1e-6)  # smallest distance from certainty in single precision


@inlined
def read_flat(flat, reading, index):
    """Fill in the logits of all labels from the hidden units; return the number of labels."""
    labels = len(flat.bias)
    for label in range(labels):
        reading.flat[index * labels + label] = logit_of(label, flat, reading.flat_hidden, 0)
    return labels


@inlined
def add_chances(neuron, groups, spans, mixed, scores, shift, logits):
    """Add the log odds that at least one label below each option applies, with labels taken as independent.

    If options are exhaustive, these are the odds before conditioning on at least one option. If a label is below two
    of them, the odds are scaled so that after conditioning an option is as probable as its labels, given those of the
    group.
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
    """Return the log probability that at least one label below an option applies."""
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
    """Return the log probability that some label applies, given minus the log probability that none does."""
    return np.log(-np.expm1(-max(total, F4(1e-37))))


@inlined
def sum_of_others(scores, shift, neuron, spans):
    """Return :func:`sum_of_softplus` of the labels below the node of a neuron that stand outside its span."""
    total = F4(0)
    for index in range(spans.other_offsets[neuron], spans.other_offsets[neuron + 1]):
        logit = scores[shift + spans.other[index]]
        total += max(logit, F4(0)) + np.log1p(np.exp(-abs(logit)))
    return total


@dataclass(frozen=True)
class FlatRecord(DeepRecord):
    """The flat expert."""

    def transfer(self, expert: DeepExpert, transfer: Transfer) -> DeepExpert:
        """Return the expert with the labels of a changed taxonomy; new labels stay inactive until they are trained."""
        label = transfer.label
        if not transfer.has_labels:
            return DeepExpert.none(len(expert.embedding), len(label))
        kept = label >= 0
        weight = np.zeros((len(label), expert.width), np.float32)
        weight[kept] = expert.output_weights(label[kept])
        bias = np.full(len(label), INACTIVE_BIAS, np.float32)
        bias[kept] = expert.bias[label[kept]]
        return expert.with_outputs(weight, bias)

    def contributions(
        self, expert: DeepExpert, row: RowFeatures, neuron: int, groups: Groups, spans: LabelSpans
    ) -> Parts:
        """Return the parts of logits, pooled over the labels below each option."""
        units, bias = hidden_parts(expert, row)
        if groups.several:
            parts = list(chance_parts(partial(_parts_of_labels, expert, units, bias), groups, spans, neuron))
        else:
            parts = []
            for labels in label_slices(neuron, groups, spans):
                weight = expert.output_weights(labels)
                parts.append(pool_parts(weight @ units, weight @ bias + expert.bias[labels]))
        by_feature, rest = zip(*parts, strict=True)
        return Parts(np.stack(by_feature), np.array(rest))


def _parts_of_labels(
    flat: DeepExpert, units: Numbers, bias: Numbers, labels: NDArray[np.int64]
) -> tuple[Numbers, Numbers]:
    """Return what each feature adds to the logits of labels, (labels, m), and the rest."""
    weight = flat.output_weights(labels)
    return weight @ units, weight @ bias + flat.bias[labels]


def chance_parts(
    parts_of: Callable[[NDArray[np.int64]], tuple[Numbers, Numbers]], groups: Groups, spans: LabelSpans, neuron: int
) -> Iterator[tuple[Numbers, float]]:
    """Yield the parts of the log odds that a label below each option applies; features count by their derivative.

    ``parts_of`` returns the parts of the logits of labels: by feature, and the rest.
    """

    def log_p_of(labels: NDArray[np.int64]) -> tuple[float, Numbers]:
        """Return the log probability that one of the labels applies, and what each feature adds to it."""
        by_feature, rest = parts_of(labels)
        logits = by_feature.sum(1) + rest
        log_p = float(log_taken(np.logaddexp(0, logits).sum()))
        grad = np.exp(-np.logaddexp(0, -logits) + np.log1p(-np.exp(min(log_p, -float(SURE)))) - log_p)
        return log_p, grad @ by_feature

    def others(neuron: int) -> NDArray[np.int64]:
        return spans.other[spans.other_offsets[neuron] : spans.other_offsets[neuron + 1]]

    start, end = groups.option_offsets[neuron : neuron + 2].tolist()
    given, scale = 0.0, 0.0
    given_parts: Numbers | float = 0.0
    if spans.overlaps[neuron] or not groups.exhaustive[neuron]:
        own = np.arange(spans.first[start], spans.last[end - 1])
        given, given_parts = log_p_of(np.concatenate([own, others(neuron)]))
    if spans.overlaps[neuron] and groups.exhaustive[neuron]:
        by_feature, rest = parts_of(np.arange(len(spans.neuron)))
        scores = by_feature.sum(1) + rest
        scale = float(log_scale_of(start, end, groups, spans, scores, 0, given))
    for option in range(start, end):
        labels, target = np.arange(spans.first[option], spans.last[option]), int(groups.option_neuron[option])
        log_p, parts = log_p_of(labels if target < 0 else np.concatenate([labels, others(target)]))
        log_p = min(log_p - given + scale, -float(SURE))
        by_feature = (parts - given_parts) / -np.expm1(log_p)
        yield by_feature, float(log_p - np.log(-np.expm1(log_p)) - by_feature.sum())


FLAT_RECORD = FlatRecord(
    "flat",
    "labels",
    key="flat.head.weight",
    training="hinet.engine.training.deep:FlatTraining",
    half=("flat.features.weight", "flat.head.weight"),
    prefix="flat.",
)
