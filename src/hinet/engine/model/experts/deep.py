"""The deep expert: embeddings of features are summed into hidden units, from which every output is a linear function.

Half of the hidden units are rectified, the others are linear. The arrays are those of
:class:`hinet.networks.SparseBag` and :class:`hinet.networks.SiblingHead`, with the same names in files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined
from hinet.data.matrices import float_rows, quantise_rows
from hinet.engine.model.experts.record import (
    Arrays,
    ExpertRecord,
    Floats,
    Numbers,
    Parts,
    RowFeatures,
)
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.transfer import NEW_OPTION_BIAS, Transfer
from hinet.errors import HiNetError
from hinet.files.schema import Schema, bytes_of, floats

Rows = NDArray[Any]  # single precision, or 8 bits with a scale per row
F4 = np.float32
EMBEDDING_STD = 0.06
WEIGHT_STD = 0.05
INNER_STD = 0.6  # times the square root of the number of units
MIN_SCALE = 1e-33

_FILE_NAMES = {
    "embedding": "features.weight",
    "embedding_scale": "features.scale",
    "embedding_bias": "features.bias",
    "weight": "head.weight",
    "weight_scale": "head.scale",
    "bias": "head.bias",
    "negative_slope": "features.slope",
    "inner": "inner.weight",
    "inner_bias": "inner.bias",
}


class DeepExpert(NamedTuple):
    """Arrays of a deep expert; ``weight`` and ``bias`` have one row per output.

    It is trained in single precision with scales of 1. Afterwards it is quantised: the rows of ``embedding`` and
    ``weight`` are then 8-bit integers that are multiplied by the scale of the row.
    """

    embedding: Rows  # (f, k)
    embedding_scale: Floats  # (f,)
    embedding_bias: Floats  # (k,)
    weight: Rows  # (rows, k)
    weight_scale: Floats  # (rows,)
    bias: Floats  # (rows,)
    negative_slope: Floats  # (k,) 1 for a linear hidden unit, 0 for a rectified one
    inner: Floats  # (k, units per member) from the hidden units of each member to its second layer, if any
    inner_bias: Floats  # (k,) empty without a second layer

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
        """Return an expert with scales of 1; without ``inner`` it has one layer."""
        scales = (np.ones(len(rows), np.float32) for rows in (embedding, weight))
        inner = np.zeros((0, 0), np.float32) if inner is None else inner
        inner_bias = np.zeros(0, np.float32) if inner_bias is None else inner_bias
        return cls(
            embedding, next(scales), embedding_bias, weight, next(scales), bias, negative_slope, inner, inner_bias
        )

    @classmethod
    def start(
        cls, features: int, bias: Floats, width: int, random: np.random.Generator, *, two_layers: bool = False
    ) -> DeepExpert:
        """Return an untrained expert with these biases; the first half of its hidden units is linear.

        With two layers all units are rectified, and the output weights are zero.
        """

        def normal(rows: int, std: float) -> Floats:
            return random.standard_normal((rows, width), dtype=np.float32) * np.float32(std)

        embedding, no_bias = normal(features, EMBEDDING_STD), np.zeros(width, np.float32)
        if two_layers:
            weight, inner = np.zeros((len(bias), width), np.float32), normal(width, INNER_STD / width**0.5)
            return cls.of(embedding, no_bias, weight, bias.copy(), no_bias.copy(), inner, no_bias.copy())
        slope = (np.arange(width) < linear_units(width)).astype(np.float32)
        return cls.of(embedding, no_bias, normal(len(bias), WEIGHT_STD), bias.copy(), slope)

    @classmethod
    def none(cls, features: int, rows: int) -> DeepExpert:
        """Return an expert without hidden units; its logits are zero."""
        units = np.zeros(0, np.float32)
        inputs, outputs = np.zeros((features, 0), np.int8), np.zeros((rows, 0), np.int8)
        return cls.of(inputs, units, outputs, np.zeros(rows, np.float32), units)

    @classmethod
    def joined(cls, members: list[DeepExpert], shares: Floats) -> DeepExpert:
        """Concatenate members in single precision into one expert whose logits are their weighted sum.

        Linear hidden units come first.
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
            np.concatenate([member.inner for member in members]),  # two layers have no linear units
            np.concatenate([member.inner_bias for member in members]),
        )

    def in_floats(self) -> DeepExpert:
        """Return a copy in single precision."""
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
        """Return the expert with 8-bit rows."""
        if self.is_quantised:
            return self
        embedding, embedding_scale = quantise_rows(self.embedding)
        weight, weight_scale = quantise_rows(self.weight)
        return self._replace(
            embedding=embedding, embedding_scale=embedding_scale, weight=weight, weight_scale=weight_scale
        )

    def embeddings(self, features: Any = slice(None)) -> Floats:
        """Return the embeddings of features in single precision."""
        return float_rows(self.embedding[features], self.embedding_scale[features])

    def output_weights(self, outputs: Any = slice(None)) -> Floats:
        """Return the weights of outputs in single precision."""
        return float_rows(self.weight[outputs], self.weight_scale[outputs])

    def with_outputs(self, weight: Floats, bias: Floats) -> DeepExpert:
        """Return the expert with other outputs, given in single precision; they are quantised if the expert is."""
        rows, scale = quantise_rows(weight) if self.is_quantised else (weight, np.ones(len(weight), np.float32))
        return self._replace(weight=rows, weight_scale=scale, bias=bias)

    @property
    def is_quantised(self) -> bool:
        """Whether the rows are 8-bit integers."""
        return self.embedding.dtype == np.int8

    @property
    def has_two_layers(self) -> bool:
        """Whether there is a second hidden layer."""
        return len(self.inner) > 0

    @property
    def width(self) -> int:
        """Number of hidden units, ``k``."""
        return int(self.embedding.shape[1])


def with_ignored_feature(expert: DeepExpert) -> DeepExpert:
    """Return an expert with one more feature, the last, that adds nothing."""
    nothing = np.zeros((1, expert.embedding.shape[1]), expert.embedding.dtype)
    scale = np.append(expert.embedding_scale, np.float32(1))
    return expert._replace(embedding=np.concatenate([expert.embedding, nothing]), embedding_scale=scale)


def linear_units(width: int) -> int:
    """Return the number of linear hidden units."""
    return (width + 1) // 2


def _side_by_side(blocks: list[Floats], order: NDArray[np.int64]) -> Floats:
    """Concatenate blocks of columns in the given order of columns."""
    joined = np.empty((len(blocks[0]), len(order)), np.float32)
    column = np.argsort(order)
    start = 0
    for block in blocks:
        joined[:, column[start : start + block.shape[1]]] = block
        start += block.shape[1]
    return joined


@inlined
def read_hidden(rows, row, deep, hidden, index, sink):
    """Fill in the hidden units of a deep expert."""
    width = hidden.shape[1]
    sink[0] = touch_embeddings(rows, row, deep.embedding)
    for unit in range(width):
        hidden[index, unit] = deep.embedding_bias[unit]
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        feature = rows.indices[entry]
        value = rows.data[entry] * deep.embedding_scale[feature]
        for unit in range(width):
            hidden[index, unit] += value * F4(deep.embedding[feature, unit])
    first = len(deep.embedding) - rows.dense.shape[1]
    for column in range(rows.dense.shape[1]):
        value = rows.dense[row, column] * deep.embedding_scale[first + column]
        for unit in range(width):
            hidden[index, unit] += value * F4(deep.embedding[first + column, unit])
    for unit in range(width):
        hidden[index, unit] *= F4(1) if hidden[index, unit] > 0 else deep.negative_slope[unit]


@inlined
def read_inner(deep, hidden, index, lower):
    """Replace the first layer of hidden units by the second; each member reads its own units."""
    for unit in range(len(lower)):
        lower[unit] = hidden[index, unit]
    size = deep.inner.shape[1]
    for unit in range(len(lower)):
        first, total = unit // size * size, F4(0)
        for below in range(size):
            total += deep.inner[unit, below] * lower[first + below]
        hidden[index, unit] = max(total + deep.inner_bias[unit], F4(0))


@inlined
def touch_embeddings(rows, row, embedding):
    """Prefetch the embeddings of a row, so that the memory accesses overlap."""
    sink = F4(0)
    last = embedding.shape[1] - 1
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        feature = rows.indices[entry]
        sink += F4(embedding[feature, 0]) + F4(embedding[feature, last >> 1]) + F4(embedding[feature, last])
    return sink


@inlined
def logit_of(output, deep, hidden, position):
    """Return the logit of an output, given the hidden units at a position."""
    logit = F4(0)
    for unit in range(hidden.shape[1]):
        logit += F4(deep.weight[output, unit]) * hidden[position, unit]
    return logit * deep.weight_scale[output] + deep.bias[output]


def hidden_parts(deep: DeepExpert, row: RowFeatures) -> tuple[Numbers, Numbers]:
    """Return what each feature adds to the hidden units, (k, m), and what the bias adds, (k,)."""
    parts = deep.embeddings(row.feature).astype(np.float64) * row.value[:, None]  # (m, k)
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


@dataclass(frozen=True)
class DeepRecord(ExpertRecord):
    """The deep expert, or the flat one: the names of its arrays in files start with ``prefix``."""

    prefix: str = ""

    def empty(self, sizes: Mapping[str, int]) -> DeepExpert:
        """Return an expert without hidden units."""
        return DeepExpert.none(sizes["features"], sizes[self.outputs])

    def is_empty(self, expert: DeepExpert) -> bool:
        """Return whether there are no hidden units."""
        return not expert.width

    def schema(self, arrays: Arrays) -> Schema:
        """Return the schema of its arrays; quantised rows have scales."""
        prefix, outputs, width = self.prefix, self.outputs, f"{self.prefix}width"
        rows = bytes_of if self._is_quantised(arrays) else floats
        schema = {
            f"{prefix}features.weight": rows("features", width),
            f"{prefix}features.bias": floats(width),
            f"{prefix}features.slope": floats(width, kinds="fb", optional=True),
            f"{prefix}head.weight": rows(outputs, width),
            f"{prefix}head.bias": floats(outputs),
        }
        if f"{prefix}inner.weight" in arrays:
            schema |= {f"{prefix}inner.weight": floats(width, f"{prefix}inner"), f"{prefix}inner.bias": floats(width)}
        if self._is_quantised(arrays):
            schema[f"{prefix}features.scale"] = floats("features", low=MIN_SCALE)
            schema[f"{prefix}head.scale"] = floats(outputs, low=MIN_SCALE)
        return schema

    def _is_quantised(self, arrays: Arrays) -> bool:
        name = f"{self.prefix}features.weight"
        return name in arrays and arrays[name].dtype == np.int8

    def write(self, expert: DeepExpert) -> dict[str, NDArray[Any]]:
        """Return an expert as named arrays; only quantised ones have scales."""
        if self.is_empty(expert) and not self.required:
            return {}
        left_out = () if expert.has_two_layers else ("inner", "inner_bias")
        left_out += () if expert.is_quantised else ("embedding_scale", "weight_scale")
        return {
            self.prefix + _FILE_NAMES[name]: array for name, array in expert._asdict().items() if name not in left_out
        }

    def read(self, arrays: Arrays) -> DeepExpert:
        """Return the expert of named arrays."""

        def part(name: str, kind: type = np.float32) -> NDArray[Any]:
            return np.ascontiguousarray(arrays[self.prefix + _FILE_NAMES[name]], kind)

        quantised = self._is_quantised(arrays)
        embedding, weight = (part(name, np.int8 if quantised else np.float32) for name in ("embedding", "weight"))
        width = embedding.shape[1]
        slope = arrays.get(f"{self.prefix}features.slope", np.arange(width) < linear_units(width))
        slope = np.ascontiguousarray(slope, np.float32)
        name = f"{self.prefix}inner.weight"
        inner = [part(name).copy() for name in ("inner", "inner_bias")] if name in arrays else []
        if inner and (not inner[0].shape[1] or width % inner[0].shape[1]):
            raise HiNetError(f"the array '{name}' does not divide the {width:,} units evenly")
        expert = DeepExpert.of(embedding, part("embedding_bias"), weight, part("bias"), slope, *inner)
        if quantised:
            expert = expert._replace(embedding_scale=part("embedding_scale"), weight_scale=part("weight_scale"))
        return expert

    def transfer(self, expert: DeepExpert, transfer: Transfer) -> DeepExpert:
        """Return the expert with the outputs of a changed taxonomy."""
        rows = transfer.rows
        return expert.with_outputs(rows.transfer(expert.output_weights()), rows.transfer(expert.bias, NEW_OPTION_BIAS))

    def contributions(
        self, expert: DeepExpert, row: RowFeatures, neuron: int, groups: Groups, spans: LabelSpans
    ) -> Parts:
        """Return the parts of logits; the expert is linear in the features as long as no unit changes its sign."""
        outputs = slice(*groups.first_row[neuron : neuron + 2].tolist())
        units, bias = hidden_parts(expert, row)
        weight = expert.output_weights(outputs)
        return Parts(weight @ units, weight @ bias + expert.bias[outputs])


DEEP_RECORD = DeepRecord(
    "deep",
    "rows",
    key="features.weight",
    training="hinet.engine.training.deep:DeepTraining",
    half=("features.weight", "head.weight"),
    required=True,
)
