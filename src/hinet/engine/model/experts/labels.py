"""Experts that score labels, pooled into the sibling groups.

The flat expert is a deep one over all labels at once. Prototypes, the mean rows of labels, and margins, learned
weights, are linear in a row of length 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined
from hinet.engine.model.experts.deep import DeepExpert, DeepRecord, hidden_parts, logit_of
from hinet.engine.model.experts.record import Arrays, ExpertRecord, Floats, Ints, Numbers, Parts, RowFeatures
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.kernels import sum_of_softplus
from hinet.engine.model.transfer import INACTIVE_BIAS, Transfer
from hinet.files import narrowest
from hinet.files.schema import Schema, floats, indices, offsets
from hinet.ragged import offsets_of

F4 = np.float32
SCALE_STEPS = 20  # steps of a bisection, about the bits of single precision
SURE = F4(1e-6)  # smallest distance from certainty in single precision
ABSENT_LOGIT = -8.0  # logit of a label without rows, if rows have sets of labels

PartsOfLabels: TypeAlias = Callable[[Ints], tuple[Numbers, Numbers]]  # parts by feature, (labels, m), and the rest


class LabelWeights(NamedTuple):
    """Sparse weights of labels, by feature: the values of feature ``f`` are ``offsets[f]:offsets[f + 1]``."""

    offsets: NDArray[np.int64]  # (f + 1,)
    label: NDArray[np.int32]  # (values,)
    value: Floats  # (values,)
    bias: Floats = np.zeros(0, np.float32)  # (labels,), or empty for biases of zero

    @classmethod
    def none(cls, features: int) -> LabelWeights:
        """Return weights of zero."""
        return cls(np.zeros(features + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


@inlined
def read_labels(rows, row, weights, labels, scores, index):
    """Fill in the scores of all labels for a row scaled to length 1; return the number of labels."""
    first = index * labels
    for label in range(labels):
        scores[first + label] = weights.bias[label] if len(weights.bias) > 0 else F4(0)
    square = F4(0)
    low, high = rows.indptr[row], rows.indptr[row + 1]
    for entry in range(low, high):
        square += rows.data[entry] * rows.data[entry]
    scale = F4(1) / np.sqrt(max(square, F4(1e-12)))
    for entry in range(low, high):
        feature, value = rows.indices[entry], rows.data[entry] * scale
        for position in range(weights.offsets[feature], weights.offsets[feature + 1]):
            scores[first + weights.label[position]] += value * weights.value[position]
    return labels


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


def pooled_parts(parts_of: PartsOfLabels, groups: Groups, spans: LabelSpans, neuron: int) -> Parts:
    """Return the parts of the logits of a group, given those of labels."""
    if groups.several:
        parts = list(_chance_parts(parts_of, groups, spans, neuron))
    else:
        options = range(*groups.option_offsets[neuron : neuron + 2].tolist())
        below = (np.arange(spans.first[option], spans.last[option]) for option in options)
        parts = [_logsumexp_parts(*parts_of(labels)) for labels in below]
    by_feature, rest = zip(*parts, strict=True)
    return Parts(np.stack(by_feature), np.array(rest))


def _logsumexp_parts(by_feature: Numbers, rest: Numbers) -> tuple[Numbers, float]:
    """Return the parts of the log-sum-exp of scores, given the parts of each score.

    It is the mean of the scores, weighted by their shares, plus the entropy of the shares. The mean is split by
    feature, the entropy belongs to the rest.
    """
    scores = by_feature.sum(1) + rest
    share = np.exp(scores - scores.max())
    share /= share.sum()
    entropy = -float(share @ np.log(np.maximum(share, 1e-300)))
    return share @ by_feature, float(share @ rest) + entropy


def _chance_parts(
    parts_of: PartsOfLabels, groups: Groups, spans: LabelSpans, neuron: int
) -> Iterator[tuple[Numbers, float]]:
    """Yield the parts of the log odds that a label below each option applies; features count by their derivative."""

    def log_p_of(labels: Ints) -> tuple[float, Numbers]:
        """Return the log probability that one of the labels applies, and what each feature adds to it."""
        by_feature, rest = parts_of(labels)
        logits = by_feature.sum(1) + rest
        log_p = float(log_taken(np.logaddexp(0, logits).sum()))
        grad = np.exp(-np.logaddexp(0, -logits) + np.log1p(-np.exp(min(log_p, -float(SURE)))) - log_p)
        return log_p, grad @ by_feature

    def others(neuron: int) -> Ints:
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

        def parts_of(labels: Ints) -> tuple[Numbers, Numbers]:
            weight = expert.output_weights(labels)
            return weight @ units, weight @ bias + expert.bias[labels]

        return pooled_parts(parts_of, groups, spans, neuron)


@dataclass(frozen=True)
class LabelWeightsRecord(ExpertRecord):
    """An expert with sparse weights of labels."""

    def empty(self, sizes: Mapping[str, int]) -> LabelWeights:
        """Return weights of zero."""
        return LabelWeights.none(sizes["features"])

    def is_empty(self, expert: LabelWeights) -> bool:
        """Return whether all weights are zero."""
        return not len(expert.value) and not len(expert.bias)

    def schema(self, arrays: Arrays) -> Schema:
        """Return the schema of its arrays."""
        values = f"{self.name} values"
        return {
            f"{self.name}.offsets": offsets("features", values),
            f"{self.name}.label": indices(values, below="labels"),
            f"{self.name}.value": floats(values),
            f"{self.name}.bias": floats("labels", optional=True),
        }

    def write(self, expert: LabelWeights) -> dict[str, NDArray[Any]]:
        """Return weights as named arrays; none if there are no weights."""
        if self.is_empty(expert):
            return {}
        given = {name: array for name, array in expert._asdict().items() if name != "bias" or len(array)}
        return {f"{self.name}.{name}": narrowest(array) for name, array in given.items()}

    def read(self, arrays: Arrays) -> LabelWeights:
        """Return the weights of named arrays."""
        return LabelWeights(
            np.array(arrays[f"{self.name}.offsets"], np.int64),
            np.array(arrays[f"{self.name}.label"], np.int32),
            np.array(arrays[f"{self.name}.value"], np.float32),
            np.array(arrays.get(f"{self.name}.bias", ()), np.float32),
        )

    def transfer(self, expert: LabelWeights, transfer: Transfer) -> LabelWeights:
        """Return the weights of the labels that still exist; new labels score as labels without rows."""
        new_label = transfer.new_label
        kept = new_label[expert.label] >= 0
        features = len(expert.offsets) - 1
        feature = np.repeat(np.arange(features), np.diff(expert.offsets))[kept]
        label = new_label[expert.label[kept]].astype(np.int32)
        order = np.lexsort((label, feature))
        counts = np.bincount(feature, minlength=features)
        absent = ABSENT_LOGIT if transfer.rows.groups.several else 0.0
        bias = np.full(len(transfer.label) if len(expert.bias) else 0, absent, np.float32)
        if len(bias):
            bias[transfer.label >= 0] = expert.bias[transfer.label[transfer.label >= 0]]
        return LabelWeights(offsets_of(counts), label[order], expert.value[kept][order], bias)

    def contributions(
        self, expert: LabelWeights, row: RowFeatures, neuron: int, groups: Groups, spans: LabelSpans
    ) -> Parts:
        """Return the parts of logits, pooled over the labels below each option."""
        return pooled_parts(partial(_parts_of_labels, expert, row), groups, spans, neuron)


def _parts_of_labels(expert: LabelWeights, row: RowFeatures, labels: Ints) -> tuple[Numbers, Numbers]:
    """Return what each feature adds to the scores of labels, (labels, m), and their biases."""
    values, index = row.value / row.length, np.full(labels.max(initial=-1) + 1, -1)
    index[labels] = np.arange(len(labels))
    scores = np.zeros((len(labels), len(values)))
    for column, feature in enumerate(row.feature.tolist()):
        own = slice(expert.offsets[feature], expert.offsets[feature + 1])
        label, value = expert.label[own], expert.value[own]
        inside = label < len(index)
        inside[inside] = index[label[inside]] >= 0
        scores[index[label[inside]], column] = value[inside] * values[column]
    bias = expert.bias[labels] if len(expert.bias) else np.zeros(len(labels))
    return scores, bias.astype(np.float64)


FLAT_RECORD = FlatRecord(
    "flat",
    "labels",
    key="flat.head.weight",
    training="hinet.engine.training.deep:FlatTraining",
    half=("flat.features.weight", "flat.head.weight"),
    prefix="flat.",
)
PROTOTYPE_RECORD = LabelWeightsRecord(
    "prototypes",
    "labels",
    key="prototypes.value",
    training="hinet.engine.training.neighbours:PrototypeTraining",
    half=("prototypes.value",),
)
MARGIN_RECORD = LabelWeightsRecord(
    "margin",
    "labels",
    key="margin.value",
    training="hinet.engine.training.margins:MarginTraining",
    half=("margin.value",),
)
