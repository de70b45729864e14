"""Prototypes: the mean row of each label, compared with a row by cosine and pooled into the sibling groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined
from hinet.engine.model.experts.record import (
    Arrays,
    ExpertRecord,
    Floats,
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


class Prototypes(NamedTuple):
    """Mean rows of labels, by feature: the values of feature ``f`` are ``offsets[f]:offsets[f + 1]``."""

    offsets: NDArray[np.int64]  # (f + 1,)
    label: NDArray[np.int32]  # (values,)
    value: Floats  # (values,)

    @classmethod
    def none(cls, features: int) -> Prototypes:
        """Return no prototypes."""
        return cls(np.zeros(features + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


@inlined
def read_prototypes(rows, row, experts, reading, index):
    """Fill in the scaled cosines of a row and the prototypes of all labels; return the number of labels."""
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


@dataclass(frozen=True)
class PrototypeRecord(ExpertRecord):
    """The prototypes."""

    def empty(self, sizes: Mapping[str, int]) -> Prototypes:
        """Return no prototypes."""
        return Prototypes.none(sizes["features"])

    def schema(self, arrays: Arrays) -> Schema:
        """Return the schema of its arrays."""
        return {
            "prototypes.offsets": offsets("features", "values"),
            "prototypes.label": indices("values", below="labels"),
            "prototypes.value": floats("values"),
        }

    def write(self, expert: Prototypes) -> dict[str, NDArray[Any]]:
        """Return prototypes as named arrays."""
        return {f"prototypes.{name}": narrowest(array) for name, array in expert._asdict().items()}

    def read(self, arrays: Arrays) -> Prototypes:
        """Return the prototypes of named arrays."""
        kinds = {"offsets": np.int64, "label": np.int32, "value": np.float32}
        return Prototypes(**{name: np.array(arrays[f"prototypes.{name}"], kind) for name, kind in kinds.items()})

    def transfer(self, expert: Prototypes, transfer: Transfer) -> Prototypes:
        """Return the prototypes of the labels that still exist."""
        new_label = transfer.new_label
        kept = new_label[expert.label] >= 0
        features = len(expert.offsets) - 1
        feature = np.repeat(np.arange(features), np.diff(expert.offsets))[kept]
        label = new_label[expert.label[kept]].astype(np.int32)
        order = np.lexsort((label, feature))
        counts = np.bincount(feature, minlength=features)
        return Prototypes(offsets_of(counts), label[order], expert.value[kept][order])

    def contributions(
        self, expert: Prototypes, row: RowFeatures, neuron: int, groups: Groups, spans: LabelSpans
    ) -> Parts:
        """Return the parts of logits, pooled over the labels below each option."""
        values, parts = row.value / row.length, []
        for labels in label_slices(neuron, groups, spans):
            scores = np.zeros((labels.stop - labels.start, len(values)))
            for column, feature in enumerate(row.feature.tolist()):
                own = slice(expert.offsets[feature], expert.offsets[feature + 1])
                inside = (expert.label[own] >= labels.start) & (expert.label[own] < labels.stop)
                scores[expert.label[own][inside] - labels.start, column] = expert.value[own][inside] * values[column]
            parts.append(pool_parts(scores, np.zeros(len(scores))))
        by_feature, rest = zip(*parts, strict=True)
        return Parts(np.stack(by_feature), np.array(rest))


PROTOTYPE_RECORD = PrototypeRecord(
    "prototypes",
    "labels",
    key="prototypes.value",
    training="hinet.engine.training.prototypes:PrototypeTraining",
    half=("prototypes.value",),
)
