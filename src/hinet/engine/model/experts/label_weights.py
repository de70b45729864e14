"""Experts that are linear in a row of length 1: prototypes, the mean rows of labels, and margins, learned weights.

Their scores of labels are pooled into the sibling groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined
from hinet.engine.model.experts.flat import chance_parts
from hinet.engine.model.experts.record import (
    Arrays,
    ExpertRecord,
    Floats,
    Numbers,
    Parts,
    RowFeatures,
    label_slices,
    pool_parts,
)
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.transfer import Transfer
from hinet.files import narrowest
from hinet.files.schema import Schema, floats, indices, offsets
from hinet.ragged import offsets_of

F4 = np.float32
ABSENT_LOGIT = -8.0  # logit of a label without rows, if rows have sets of labels


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
        parts_of = partial(_parts_of_labels, expert, row)
        if groups.several:
            parts = list(chance_parts(parts_of, groups, spans, neuron))
        else:
            slices = label_slices(neuron, groups, spans)
            parts = [pool_parts(*parts_of(np.arange(labels.start, labels.stop))) for labels in slices]
        by_feature, rest = zip(*parts, strict=True)
        return Parts(np.stack(by_feature), np.array(rest))


def _parts_of_labels(expert: LabelWeights, row: RowFeatures, labels: NDArray[np.int64]) -> tuple[Numbers, Numbers]:
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


PROTOTYPE_RECORD = LabelWeightsRecord(
    "prototypes",
    "labels",
    key="prototypes.value",
    training="hinet.engine.training.label_weights:PrototypeTraining",
    half=("prototypes.value",),
)
MARGIN_RECORD = LabelWeightsRecord(
    "margin",
    "labels",
    key="margin.value",
    training="hinet.engine.training.label_weights:MarginTraining",
    half=("margin.value",),
)
