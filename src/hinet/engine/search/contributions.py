"""What each feature of a row adds to the logits of a sibling group: exact, so that the parts sum to the logit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import DeepExpert, Experts, Prototypes
from hinet.engine.model.fused import FusedModel
from hinet.engine.model.groups import LabelSpans
from hinet.engine.search.scoring_kernels import SURE, log_scale_of, log_taken

Numbers = NDArray[np.float64]
LEAST_SQUARE = 1e-12  # of the length of a row


class GroupParts(Protocol):
    """The logits of a group, and of any option what each feature of the row adds to its logit."""

    @property
    def logits(self) -> Numbers:
        """(options,) The logit of every option."""

    def of(self, option: int) -> tuple[Numbers, float]:
        """Return what each feature adds, and the rest; they sum to the logit."""


class Contributions(NamedTuple):
    """Parts of the logits of the options of a group: ``by_feature.sum(1) + rest`` is the logit of each."""

    by_feature: Numbers  # (options, features of the row)
    rest: Numbers  # (options,) what no feature adds: biases, and how evenly the labels below an option share

    @property
    def logits(self) -> Numbers:
        """(options,) The logit of every option."""
        return np.asarray(self.by_feature.sum(1) + self.rest)

    def of(self, option: int) -> tuple[Numbers, float]:
        """Return what each feature adds, and the rest."""
        return self.by_feature[option], float(self.rest[option])


def contributions(model: FusedModel, row: SparseMatrix, neuron: int) -> Contributions:
    """Return the parts of the logits of the group below ``neuron``, for a matrix of one row.

    A deep expert is linear where no unit changes its sign, so a feature adds its embedding times the weights, through
    the units that are on. A sum of exponentials over labels is their mean, weighted by their share, plus the entropy
    of the shares; the mean is spread over the features, the entropy belongs to the rest.
    """
    experts, mix, groups = model.experts, model.mix, model.groups
    features, values = row.entries(model.features)
    if model.merged is not None:
        features = model.merged[features].astype(np.int64)
    low, high = int(groups.first_row[neuron]), int(groups.first_row[neuron + 1])
    by_feature, rest = np.zeros((high - low, len(features))), np.zeros(high - low)
    if mix.deep:
        units, bias = _hidden_parts(experts.deep, features, values)
        weight = experts.deep.output_weights(slice(low, high))
        by_feature += mix.deep * (weight @ units)
        rest += mix.deep * (weight @ bias + experts.deep.bias[low:high])
    if mix.wide:
        by_feature += mix.wide * _by_wide(experts, features, values, neuron, low, high)
        rest += mix.wide * experts.wide.bias[low:high]
    if not (mix.flat or mix.prototypes):
        return Contributions(by_feature, rest)
    length = np.sqrt(max(float(np.square(model.read(row).data, dtype=np.float64).sum()), LEAST_SQUARE))
    units, bias = _hidden_parts(experts.flat, features, values)
    spans, first_option = experts.spans, int(groups.option_offsets[neuron])
    if mix.flat and groups.several:
        for option, (parts, constant) in enumerate(_by_chances(model, units, bias, neuron)):
            by_feature[option] += mix.flat * parts
            rest[option] += mix.flat * constant
        return Contributions(by_feature, rest)
    for option in range(high - low):
        labels = slice(int(spans.first[first_option + option]), int(spans.last[first_option + option]))
        if mix.flat:
            weight = experts.flat.output_weights(labels)
            of_labels = _pooled(weight @ units, weight @ bias + experts.flat.bias[labels])
            by_feature[option] += mix.flat * of_labels[0]
            rest[option] += mix.flat * of_labels[1]
        if mix.prototypes:
            scores = _by_prototypes(experts.prototypes, features, values / length, labels)
            of_labels = _pooled(scores, np.zeros(len(scores)))
            by_feature[option] += mix.prototypes * of_labels[0]
            rest[option] += mix.prototypes * of_labels[1]
    return Contributions(by_feature, rest)


def _hidden_parts(deep: DeepExpert, features: NDArray[np.int64], values: Numbers) -> tuple[Numbers, Numbers]:
    """Return what each feature adds to the hidden units, (k, features of the row), and what the bias does, (k,)."""
    parts = deep.embeddings(features).astype(np.float64) * values[:, None]  # (features, k)
    factor = np.where(parts.sum(0) + deep.embedding_bias > 0, 1.0, deep.negative_slope)
    units, bias = (parts * factor).T, (deep.embedding_bias * factor).astype(np.float64)
    if not deep.has_two_layers:
        return units, bias
    size = deep.inner.shape[1]
    members = [slice(start, start + size) for start in range(0, len(units), size)]
    units = np.concatenate([deep.inner[member].astype(np.float64) @ units[member] for member in members])
    bias = np.concatenate([deep.inner[member].astype(np.float64) @ bias[member] for member in members])
    bias += deep.inner_bias
    on = units.sum(1) + bias > 0
    return units * on[:, None], bias * on


def _by_wide(
    experts: Experts, features: NDArray[np.int64], values: Numbers, neuron: int, low: int, high: int
) -> Numbers:
    wide = experts.wide
    parts = np.zeros((high - low, len(features)))
    begin, end = wide.entry_offsets[neuron], wide.entry_offsets[neuron + 1]
    known = wide.feature_rank[features]
    entries = begin + np.searchsorted(wide.feature[begin:end], known)
    for column, feature_entry in enumerate(entries.tolist()):
        if feature_entry < end and wide.feature[feature_entry] == known[column]:
            weights = wide.weights[wide.weight_offsets[feature_entry] : wide.weight_offsets[feature_entry + 1]]
            parts[weights["row"] - low, column] = values[column] * weights["weight"]
    return parts


def _by_prototypes(known: Prototypes, features: NDArray[np.int64], values: Numbers, labels: slice) -> Numbers:
    scores = np.zeros((labels.stop - labels.start, len(features)))
    for column, feature in enumerate(features.tolist()):
        part = slice(known.offsets[feature], known.offsets[feature + 1])
        inside = (known.label[part] >= labels.start) & (known.label[part] < labels.stop)
        scores[known.label[part][inside] - labels.start, column] = known.value[part][inside] * values[column]
    return scores


def _by_chances(model: FusedModel, units: Numbers, bias: Numbers, neuron: int) -> Iterator[tuple[Numbers, float]]:
    """Yield the parts of the log odds that a label below each option is taken; a feature counts by its derivative."""
    groups, spans, flat = model.groups, model.experts.spans, model.experts.flat

    def log_p_of(labels: NDArray[np.int64]) -> tuple[float, Numbers]:
        """Return the log probability that one of some labels is taken, and what each feature adds to it."""
        by_feature = flat.output_weights(labels) @ units
        logits = by_feature.sum(1) + flat.output_weights(labels) @ bias + flat.bias[labels]
        log_p = float(log_taken(np.logaddexp(0, logits).sum()))
        return log_p, np.exp(
            -np.logaddexp(0, -logits) + np.log1p(-np.exp(min(log_p, -float(SURE)))) - log_p
        ) @ by_feature

    start, end = groups.option_offsets[neuron : neuron + 2].tolist()
    given, given_parts, scale = 0.0, np.zeros(units.shape[1]), 0.0
    if spans.overlaps[neuron] or not groups.exhaustive[neuron]:
        own = np.arange(spans.first[start], spans.last[end - 1])
        given, given_parts = log_p_of(np.concatenate([own, _others(spans, neuron)]))
    if spans.overlaps[neuron] and groups.exhaustive[neuron]:
        scores = flat.output_weights() @ (units.sum(1) + bias) + flat.bias
        scale = float(log_scale_of(start, end, groups, spans, scores, 0, given))
    for option in range(start, end):
        labels, target = np.arange(spans.first[option], spans.last[option]), int(groups.option_neuron[option])
        log_p, parts = log_p_of(labels if target < 0 else np.concatenate([labels, _others(spans, target)]))
        log_p = min(log_p - given + scale, -float(SURE))
        log_not = np.log(-np.expm1(log_p))
        by_feature = (parts - given_parts) / -np.expm1(log_p)
        yield by_feature, float(log_p - log_not - by_feature.sum())


def _others(spans: LabelSpans, neuron: int) -> NDArray[np.int64]:
    return spans.other[spans.other_offsets[neuron] : spans.other_offsets[neuron + 1]]


def _pooled(by_feature: Numbers, rest: Numbers) -> tuple[Numbers, float]:
    """Return the parts of the log of the summed exponentials of some scores, given the parts of each."""
    scores = by_feature.sum(1) + rest
    share = np.exp(scores - scores.max())
    share /= share.sum()
    entropy = -float(share @ np.log(np.maximum(share, 1e-300)))
    return share @ by_feature, float(share @ rest) + entropy
