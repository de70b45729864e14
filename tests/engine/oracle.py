"""Random experts built by hand, and the slow and obvious way to what they say: dense, and over all traces.

They are in 8 bits, as trained ones are, and what they say is that of the fractions that these bits stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet import Layers
from hinet.engine import DeepExpert, Experts, FusedModel, Groups, WideExpert
from hinet.engine.model.experts import LabelWeights, Memory
from hinet.engine.model.experts.neighbours import COSINE_WEIGHT, NEAREST, quantised
from hinet.engine.model.experts.wide import WEIGHT
from hinet.engine.model.groups import LabelSpans
from hinet.ragged import offsets_of
from hinet.taxonomy import STOP
from tests.strategies import Path, all_scored

FEATURES, WIDTH = 7, 4
VECTOR = 3  # the last features are the vector of a text
Scores = NDArray[np.float64]  # (options,) of one row: the log probability of each option in its group


@dataclass(frozen=True)
class Made:
    """A model made by hand, with its sparse weights as the dense matrices they stand for."""

    model: FusedModel
    wide: NDArray[np.float32]  # (features, output rows)
    prototypes: NDArray[np.float32]  # (features, labels)

    @property
    def layers(self) -> Layers:
        return self.model.layers


def random_rows(count: int, seed: int = 0, features: int = FEATURES) -> sp.csr_array:
    """Sparse rows, some of them empty."""
    random = np.random.default_rng([seed, 1])
    dense = random.standard_normal((count, features)) * (random.random((count, features)) < 0.4)
    dense[random.random(count) < 0.2] = 0
    return sp.csr_array(dense.astype(np.float32))


def random_model(layers: Layers, seed: int, *, features: int = FEATURES, sharpness: float = 1.0) -> Made:
    """All the experts that the layers allow, with large random weights, so that probabilities differ."""
    random = np.random.default_rng([seed, 2])
    groups = Groups.of(layers)
    spans = LabelSpans.of(layers).with_paths(layers)
    labels = len(spans.neuron)
    wide = _sparse(random, (features, groups.rows), sharpness)
    prototypes = _sparse(random, (features, labels), sharpness)
    scores_labels = layers.taxonomy.is_tree
    experts = Experts(
        _random_deep(random, features, groups.rows, sharpness),
        wide_of(layers, wide, random.permutation(features), random.standard_normal(groups.rows)),
        _random_deep(random, features, labels, sharpness) if scores_labels else DeepExpert.none(features, 0),
        _prototypes_of(prototypes) if scores_labels else LabelWeights.none(features),
        _random_memory(random, len(spans.paths.node)),
        LabelWeights.none(features),
        spans,
        np.array([0.6, 0.7, *((0.5, 0.4) if scores_labels else (0, 0)), 0.03 * sharpness, 0], np.float32),
    )
    return Made(FusedModel(layers, experts), wide, prototypes)


def biased_model(layers: Layers, log_p: dict[int, float], features: int = FEATURES) -> Made:
    """A model that says the same of every row: the given log probabilities of options, by output row."""
    groups = Groups.of(layers)
    bias = np.zeros(groups.rows, np.float32)
    for row, value in log_p.items():
        bias[row] = value
    deep = DeepExpert.of(
        np.zeros((features, 2), np.float32),
        np.zeros(2, np.float32),
        np.zeros((groups.rows, 2), np.float32),
        bias,
        np.ones(2, np.float32),
    ).quantised()
    spans = LabelSpans.of(layers)
    experts = Experts(
        deep,
        WideExpert.none(features, len(layers.node), groups.rows),
        DeepExpert.none(features, len(spans.neuron)),
        LabelWeights.none(features),
        Memory.none(),
        LabelWeights.none(features),
        spans,
        np.array([1, 0, 0, 0, 0, 0], np.float32),
    )
    empty = np.zeros((features, 0), np.float32)
    return Made(FusedModel(layers, experts), np.zeros((features, groups.rows), np.float32), empty)


def wide_of(
    layers: Layers, dense: NDArray[np.float32], feature_rank: NDArray[np.int64], bias: NDArray[np.float64]
) -> WideExpert:
    """Return dense weights, (features, output rows), as a wide expert: group by group, then by known feature."""
    groups = Groups.of(layers)
    slots, feature, counts, weights = [], [], [], []
    for group in range(len(layers.node)):
        first, last = int(groups.first_row[group]), int(groups.first_row[group + 1])
        before = len(feature)
        for number in np.argsort(feature_rank):
            rows = [row for row in range(first, last) if dense[number, row] != 0]
            if rows:
                feature.append(feature_rank[number])
                counts.append(len(rows))
                weights += [(row, dense[number, row]) for row in rows]
        slots.append(len(feature) - before)
    return WideExpert(
        feature_rank.astype(np.int32),
        offsets_of(np.array(slots)),
        np.array(feature, np.int32),
        offsets_of(np.array(counts, np.int64)),
        np.array(weights, WEIGHT),
        bias.astype(np.float32),
    )


def option_scores(made: Made, row: NDArray[np.float32]) -> Scores:
    """Score every option of every group for one dense row, in double precision."""
    layers, experts = made.layers, made.model.experts
    groups, mix = Groups.of(layers), experts.mix.astype(np.float64)
    x = row.astype(np.float64)
    by_row = mix[0] * _deep_logits(experts.deep, x) + mix[1] * (x @ made.wide + experts.wide.bias)
    logits = np.zeros(len(layers.option_neuron))
    logits[groups.row_options()] = by_row
    if mix[2]:
        logits += mix[2] * _pooled(made, _deep_logits(experts.flat, x))
    if mix[3]:
        cosine = (x / max(np.sqrt((x**2).sum()), 1e-6)) @ made.prototypes
        logits += mix[3] * _pooled(made, cosine)
    if mix[4]:
        logits += mix[4] * _neighbours(made, row)
    for start, end in pairwise(layers.option_offsets.tolist()):
        group = logits[start:end]
        logits[start:end] = group - group.max() - np.log(np.exp(group - group.max()).sum())
    return logits


def enumerated(made: Made, rows: sp.csr_array) -> list[dict[Path, float]]:
    """Every trace of every row with its log probability."""
    return [all_scored(made.layers, option_scores(made, row)) for row in rows.toarray()]


def node_probabilities(layers: Layers, traces: dict[Path, float]) -> NDArray[np.float64]:
    """(nodes,) The probability that a trace passes each node below the root."""
    passed = np.zeros(len(layers.taxonomy))
    for path, log_p in traces.items():
        for neuron in path:
            passed[layers.node[neuron]] += np.exp(log_p)
    return passed


def label_probabilities(layers: Layers, traces: dict[Path, float]) -> NDArray[np.float64]:
    """(nodes,) The probability that a trace ends at each node."""
    ended = np.zeros(len(layers.taxonomy))
    for path, log_p in traces.items():
        ended[layers.node[path[-1] if path else 0]] += np.exp(log_p)
    return ended


def _deep_logits(deep: DeepExpert, x: NDArray[np.float64]) -> NDArray[np.float64]:
    hidden = x @ deep.embeddings().astype(np.float64) + deep.embedding_bias
    hidden = np.where(hidden > 0, hidden, deep.negative_slope * hidden)
    return deep.output_weights().astype(np.float64) @ hidden + deep.bias


def _pooled(made: Made, by_label: NDArray[np.float64]) -> NDArray[np.float64]:
    """(options,) The log of the summed exponentials of the labels below each option."""
    layers = made.layers
    score_of = {int(neuron): by_label[label] for label, neuron in enumerate(made.model.experts.spans.neuron)}

    def below(neuron: int) -> list[float]:
        options = layers.option_neuron[layers.option_offsets[neuron] : layers.option_offsets[neuron + 1]].tolist()
        return [score for target in options for score in ([score_of[neuron]] if target == STOP else below(target))]

    scores = [
        [score_of[int(parent)]] if target == STOP else below(int(target))
        for parent, target in zip(layers.option_parent, layers.option_neuron, strict=True)
    ]
    return np.array([np.logaddexp.reduce(part) for part in scores])


def _neighbours(made: Made, row: NDArray[np.float32]) -> NDArray[np.float64]:
    """(options,) The greatest cosine of an entry of a label that is reached by each option."""
    layers, memory = made.layers, made.model.experts.neighbours
    query = quantised(row[None, -VECTOR:])[0].astype(np.float64)
    entries = memory.vector.astype(np.float64)
    cosine = entries @ query / np.maximum(np.sqrt((entries**2).sum(1) * max((query**2).sum(), 1)), 1)
    score_of = dict[int, float]()
    for node, own in zip(made.model.experts.spans.paths.node[memory.label].tolist(), cosine.tolist(), strict=True):
        score_of[node] = max(score_of.get(node, -1.0), own)
    lowest = sorted(score_of.values())[-NEAREST:][0]  # all labels that are farther score alike

    def best(neuron: int, target: int) -> float:
        if target == STOP:
            return max(score_of.get(int(layers.node[neuron]), lowest), lowest)
        options = layers.option_neuron[layers.option_offsets[target] : layers.option_offsets[target + 1]]
        return max(best(target, following) for following in options.tolist())

    pairs = zip(layers.option_parent.tolist(), layers.option_neuron.tolist(), strict=True)
    return COSINE_WEIGHT * (np.array([best(*pair) for pair in pairs]) - lowest)


def _random_memory(random: np.random.Generator, labels: int) -> Memory:
    """Return two entries of each label but some, which have none."""
    label = np.sort(random.choice(labels, 2 * labels))
    vectors = random.standard_normal((len(label), VECTOR)).astype(np.float32)
    return Memory.of(vectors, label, np.arange(len(label))).with_growth(0)


def _random_deep(random: np.random.Generator, features: int, rows: int, sharpness: float) -> DeepExpert:
    return DeepExpert.of(
        random.standard_normal((features, WIDTH), np.float32),
        random.standard_normal(WIDTH, np.float32),
        random.standard_normal((rows, WIDTH), np.float32) * np.float32(sharpness),
        random.standard_normal(rows, np.float32) * np.float32(sharpness),
        np.array([1, 1, 0, 0], np.float32),
    ).quantised()


def _sparse(random: np.random.Generator, shape: tuple[int, int], sharpness: float) -> NDArray[np.float32]:
    values = random.standard_normal(shape) * (random.random(shape) < 0.4) * sharpness
    return values.astype(np.float32)


def _prototypes_of(dense: NDArray[np.float32]) -> LabelWeights:
    by_feature = sp.csr_array(dense)
    return LabelWeights(by_feature.indptr.astype(np.int64), by_feature.indices.astype(np.int32), by_feature.data)
