"""The experts of the fused model as plain arrays: what training fills and search reads.

- *deep*: a sparse row times an embedding for each feature, half the units rectified, then a row of weights for each
  option, in 8 bits once trained: the arrays of :class:`hinet.networks.SparseBag` and
  :class:`hinet.networks.SiblingHead`, under the same names.
- *wide*: a weight for each feature and option that were seen together.
- *flat*: a deep expert over all labels at once, pooled into the sibling groups.
- *prototypes*: the mean row of each label, compared by cosine, pooled in the same way.

The logits of an option are a weighted sum over the experts. Where an expert scores labels, an option counts as the log
of the summed exponentials of the labels below it, so that each expert by itself is a proper distribution over labels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.engine.model.groups import Groups, LabelSpans
from hinet.quantised import float_rows, quantise_rows
from hinet.ragged import offsets_of

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Rows = NDArray[Any]  # of single precision, or of 8 bits with a scale for each row
WEIGHT = np.dtype([("row", np.int32), ("weight", np.float32)])
EMBEDDING_STD = 0.06
WEIGHT_STD = 0.05
INNER_STD = 0.6  # times the root of the units


class DeepExpert(NamedTuple):
    """A low-rank expert; ``weight`` and ``bias`` have a row for each output.

    It trains in single precision, its scales all 1, and answers in 8 bits: the rows of ``embedding`` and ``weight`` are
    whole numbers then, to be multiplied by the scale of the row.
    """

    embedding: Rows  # (f, k)
    embedding_scale: Floats  # (f,)
    embedding_bias: Floats  # (k,)
    weight: Rows  # (rows, k)
    weight_scale: Floats  # (rows,)
    bias: Floats  # (rows,)
    negative_slope: Floats  # (k,) of a hidden unit below zero: 1 for a linear unit, 0 for a rectified one
    inner: Floats  # (k, units of a member) from the hidden units of each member to a second layer; none without one
    inner_bias: Floats  # (k,) or none

    @classmethod
    def of(
        cls,
        embedding: Rows,
        embedding_bias: Floats,
        weight: Rows,
        bias: Floats,
        negative_slope: Floats,
        inner: Floats | None = None,
        inner_bias: Floats | None = None,
    ) -> DeepExpert:
        """Return the expert of rows as they are, with scales of 1; without ``inner`` it has one layer."""
        scales = (np.ones(len(rows), np.float32) for rows in (embedding, weight))
        inner = np.zeros((0, 0), np.float32) if inner is None else inner
        inner_bias = np.zeros(0, np.float32) if inner_bias is None else inner_bias
        return cls(
            embedding, next(scales), embedding_bias, weight, next(scales), bias, negative_slope, inner, inner_bias
        )

    @classmethod
    def start(cls, features: int, bias: Floats, width: int, random: np.random.Generator) -> DeepExpert:
        """Return an untrained expert with a bias for each output row; the first half of its units is linear."""
        return cls.of(
            random.standard_normal((features, width), dtype=np.float32) * np.float32(EMBEDDING_STD),
            np.zeros(width, np.float32),
            random.standard_normal((len(bias), width), dtype=np.float32) * np.float32(WEIGHT_STD),
            bias.copy(),
            (np.arange(width) < linear_units(width)).astype(np.float32),
        )

    @classmethod
    def start_two_layers(cls, features: int, bias: Floats, width: int, random: np.random.Generator) -> DeepExpert:
        """Return an untrained expert with two layers of rectified units, whose output rows are zero."""
        return cls.of(
            random.standard_normal((features, width), dtype=np.float32) * np.float32(EMBEDDING_STD),
            np.zeros(width, np.float32),
            np.zeros((len(bias), width), np.float32),
            bias.copy(),
            np.zeros(width, np.float32),
            random.standard_normal((width, width), dtype=np.float32) * np.float32(INNER_STD / width**0.5),
            np.zeros(width, np.float32),
        )

    @classmethod
    def none(cls, features: int, rows: int) -> DeepExpert:
        """Return an expert without hidden units, whose logits are all zero."""
        units = np.zeros(0, np.float32)
        inputs, outputs = np.zeros((features, 0), np.int8), np.zeros((rows, 0), np.int8)
        return cls.of(inputs, units, outputs, np.zeros(rows, np.float32), units)

    @classmethod
    def joined(cls, members: list[DeepExpert], shares: Floats) -> DeepExpert:
        """Return one expert whose logits are those of its members, each times its share.

        The units of the members stand side by side, linear ones first. All of them are in single precision.
        """
        if len(members) == 1:
            return members[0]
        negative_slope = np.concatenate([member.negative_slope for member in members])
        order = np.argsort(-negative_slope, kind="stable")
        parts = list(zip(members, shares, strict=True))
        return cls.of(
            _side_by_side([member.embedding for member in members], order),
            np.concatenate([member.embedding_bias for member in members])[order],
            _side_by_side([member.weight * share for member, share in parts], order),
            np.stack([member.bias * share for member, share in parts]).sum(0),
            negative_slope[order],
            np.concatenate([member.inner for member in members]),  # where there is one, no unit is linear
            np.concatenate([member.inner_bias for member in members]),
        )

    def in_floats(self) -> DeepExpert:
        """Return the expert in single precision, with arrays of its own."""
        return DeepExpert.of(
            float_rows(self.embedding, self.embedding_scale),
            self.embedding_bias.copy(),
            float_rows(self.weight, self.weight_scale),
            self.bias.copy(),
            self.negative_slope.copy(),
            self.inner.copy(),
            self.inner_bias.copy(),
        )

    def quantised(self) -> DeepExpert:
        """Return the expert in 8 bits."""
        if self.is_quantised:
            return self
        embedding, embedding_scale = quantise_rows(self.embedding)
        weight, weight_scale = quantise_rows(self.weight)
        return self._replace(
            embedding=embedding, embedding_scale=embedding_scale, weight=weight, weight_scale=weight_scale
        )

    def embeddings(self, features: Any = slice(None)) -> Floats:
        """Return the embeddings of some features in single precision."""
        return float_rows(self.embedding[features], self.embedding_scale[features])

    def output_weights(self, outputs: Any = slice(None)) -> Floats:
        """Return the weights of some outputs in single precision."""
        return float_rows(self.weight[outputs], self.weight_scale[outputs])

    def with_outputs(self, weight: Floats, bias: Floats) -> DeepExpert:
        """Return the expert with other outputs, given in single precision; in 8 bits if it is."""
        rows, scale = quantise_rows(weight) if self.is_quantised else (weight, np.ones(len(weight), np.float32))
        return self._replace(weight=rows, weight_scale=scale, bias=bias)

    @property
    def is_quantised(self) -> bool:
        """Whether the rows are in 8 bits."""
        return self.embedding.dtype == np.int8

    @property
    def has_two_layers(self) -> bool:
        """Whether there is a second layer of hidden units."""
        return len(self.inner) > 0

    @property
    def width(self) -> int:
        """Number of hidden units, ``k``."""
        return int(self.embedding.shape[1])


class WideExpert(NamedTuple):
    """A sparse expert, group by group: an entry for each feature a group knows.

    The entries of group ``g`` are ``entry_offsets[g]:entry_offsets[g + 1]``; the weights of entry ``e`` are
    ``weight_offsets[e]:weight_offsets[e + 1]``, for some of the group's rows. Features are known by another number, the
    frequent ones first, so that entries that are used often lie side by side; features hashed together share it.
    """

    feature_rank: NDArray[np.int32]  # (f,) the number each feature is known by
    entry_offsets: NDArray[np.int64]  # (neurons + 1,)
    feature: NDArray[np.int32]  # (entries,) the rank of each entry's feature, in order
    weight_offsets: NDArray[np.int64]  # (entries + 1,)
    weights: NDArray[np.void]  # (weights,) of dtype WEIGHT: the output row, and its weight
    bias: Floats  # (rows,)

    @classmethod
    def none(cls, features: int, neurons: int, rows: int) -> WideExpert:
        """Return an expert without weights, whose logits are all zero."""
        nothing, offsets = np.zeros(0, np.int32), np.zeros(neurons + 1, np.int64)
        bias = np.zeros(rows, np.float32)
        return cls(
            np.arange(features, dtype=np.int32), offsets, nothing, np.zeros(1, np.int64), np.zeros(0, WEIGHT), bias
        )

    @classmethod
    def of(
        cls, feature_rank: NDArray[np.int32], feature: Ints, row: Ints, weight: Floats, groups: Groups, bias: Floats
    ) -> WideExpert:
        """Return the expert of weights in any order, given the number of the feature and the output row of each."""
        group = groups.row_groups()[row]
        order = np.lexsort((row, feature, group))
        feature, group = feature[order], group[order]
        first = np.ones(len(order), bool)
        first[1:] = (np.diff(feature) != 0) | (np.diff(group) != 0)
        starts = np.flatnonzero(first)
        weights = np.empty(len(order), WEIGHT)
        weights["row"], weights["weight"] = row[order], weight[order]
        return cls(
            feature_rank,
            offsets_of(np.bincount(group[starts], minlength=len(groups.first_row) - 1)),
            feature[starts].astype(np.int32),
            np.append(starts, len(order)),
            weights,
            bias,
        )


class Prototypes(NamedTuple):
    """The mean rows of labels, feature by feature: those of ``f`` are ``offsets[f]:offsets[f + 1]``."""

    offsets: NDArray[np.int64]  # (f + 1,)
    label: NDArray[np.int32]  # (values,)
    value: Floats  # (values,)

    @classmethod
    def none(cls, features: int) -> Prototypes:
        """Return no prototypes."""
        return cls(np.zeros(features + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32))


class Mix(NamedTuple):
    """The weight of each expert in the logits."""

    deep: float = 0.0
    wide: float = 0.0
    flat: float = 0.0
    prototypes: float = 0.0


DEEP, WIDE, FLAT, PROTOTYPES = range(len(Mix._fields))  # positions in the mix, for kernels


class Experts(NamedTuple):
    """All that the logits of a row are computed from; an expert that is not used has no arrays and no weight."""

    deep: DeepExpert
    wide: WideExpert
    flat: DeepExpert
    prototypes: Prototypes
    spans: LabelSpans
    mix: Floats  # (4,) as in Mix


def linear_units(width: int) -> int:
    """Return how many of the hidden units are linear."""
    return (width + 1) // 2


def _side_by_side(blocks: list[Floats], order: NDArray[np.int64]) -> Floats:
    """Return blocks of columns side by side, in the given order of columns, row by row in memory."""
    joined = np.empty((len(blocks[0]), len(order)), np.float32)
    column = np.argsort(order)
    start = 0
    for block in blocks:
        joined[:, column[start : start + block.shape[1]]] = block
        start += block.shape[1]
    return joined
