"""The fused model: its experts over the layers of a taxonomy, as arrays that can be kept and taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.column_kernels import merge_columns
from hinet.engine.model.experts import WEIGHT, DeepExpert, Experts, Mix, Prototypes, WideExpert, linear_units, nbytes
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.errors import HiNetError
from hinet.files import narrowest
from hinet.files.schema import Schema, bytes_of, check_arrays, floats, indices, offsets
from hinet.progress import EpochRecord
from hinet.taxonomy import Layers

# Names of the arrays; those of the deep expert are the torch modules' own, and its scales.
_DEEP = {
    "embedding": "features.weight",
    "embedding_scale": "features.scale",
    "embedding_bias": "features.bias",
    "weight": "head.weight",
    "weight_scale": "head.scale",
    "bias": "head.bias",
    "negative_slope": "features.slope",
}
_WIDE = {"feature_rank": "wide.known_as", "entry_offsets": "wide.slot_offsets"}  # others as the fields are called
_HALVED = (
    "features.weight",
    "head.weight",
    "flat.features.weight",
    "flat.head.weight",
    "wide.weight",
    "prototypes.value",
)

LARGEST_MIX = 1e6
LEAST_SCALE = 1e-33


def _deep_schema(prefix: str, outputs: str, *, in_bits: bool) -> Schema:
    """Return what the arrays of a deep expert must be; rows in 8 bits have scales."""
    width = f"{prefix}width"
    rows = bytes_of if in_bits else floats
    schema = {
        f"{prefix}features.weight": rows("features", width),
        f"{prefix}features.bias": floats(width),
        f"{prefix}features.slope": floats(width, kinds="fb", optional=True),
        f"{prefix}head.weight": rows(outputs, width),
        f"{prefix}head.bias": floats(outputs),
    }
    if in_bits:
        schema[f"{prefix}features.scale"] = floats("features", low=LEAST_SCALE)
        schema[f"{prefix}head.scale"] = floats(outputs, low=LEAST_SCALE)
    return schema


# What the arrays of other experts must be; neurons, rows and labels are those of the layers.
_SCHEMAS: dict[str, Schema] = {
    "features.weight": {
        "mix": floats(len(Mix._fields), low=0, high=LARGEST_MIX, optional=True),
        "slope": floats(1, low=1e-6, high=1, optional=True),
    },
    "wide.weight": {
        "wide.known_as": indices("features", below="features"),
        "wide.slot_offsets": offsets("neurons", "entries"),
        "wide.feature": indices("entries", below="features"),
        "wide.weight_offsets": offsets("entries", "weights", filled=True),
        "wide.row": indices("weights", below="rows"),
        "wide.weight": floats("weights"),
        "wide.bias": floats("rows"),
    },
    "flat.head.weight": {},
    "merged": {"merged": indices("columns", below="features")},
    "prototypes.value": {
        "prototypes.offsets": offsets("features", "values"),
        "prototypes.label": indices("values", below="labels"),
        "prototypes.value": floats("values"),
    },
}
_OUTPUTS = {"features.weight": ("", "rows"), "flat.head.weight": ("flat.", "labels")}  # of the deep experts


@dataclass(frozen=True, eq=False)
class FusedModel:
    """Experts over the sibling groups of some layers, ready to be searched.

    ``to_arrays`` and ``from_arrays`` turn it into named arrays and back; :class:`hinet.engine.Search` predicts.
    """

    layers: Layers
    experts: Experts
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)
    odds_scale: float = 1.0  # of the log odds of a best trace, in trees: see hinet.engine.search.odds_scaling
    merged: NDArray[np.int32] | None = None  # (f,) the feature of the experts that each one of a row counts as

    @cached_property
    def groups(self) -> Groups:
        """The sibling groups as arrays."""
        return Groups.of(self.layers)

    @property
    def features(self) -> int:
        """Number of features of a row."""
        return len(self.experts.deep.embedding if self.merged is None else self.merged)

    def read(self, rows: SparseMatrix) -> SparseMatrix:
        """Return rows with the features that the experts know."""
        return rows if self.merged is None else with_merged(rows, self.merged, len(self.experts.deep.embedding))

    @property
    def mix(self) -> Mix:
        """The weight of each expert."""
        return Mix(*self.experts.mix.tolist())

    @property
    def nbytes(self) -> int:
        """Bytes that the arrays take."""
        return sum(nbytes(expert) for expert in self.experts[:4])

    @property
    def outputs(self) -> int:
        """Number of rows of output weights: those of the groups, and of the labels if an expert scores labels."""
        scored = sum(bool(weight) for weight in self.experts.mix[2:])
        return self.groups.rows + scored * len(self.experts.spans.neuron)

    def to_arrays(self, *, half: bool = False) -> dict[str, NDArray[Any]]:
        """Return the model as named arrays, whole numbers in the fewest bits that hold them.

        With ``half``, weights that are in single precision are in half precision, at half the room.
        """
        arrays: dict[str, NDArray[Any]] = {"mix": self.experts.mix}
        if self.odds_scale != 1:
            arrays["slope"] = np.array([self.odds_scale])
        if self.merged is not None:
            arrays["merged"] = narrowest(self.merged)
        arrays |= _deep_arrays("", self.experts.deep)
        if self.experts.flat.width:
            arrays |= _deep_arrays("flat.", self.experts.flat)
        wide = self.experts.wide._asdict()
        weights = wide.pop("weights")
        wide |= {name: np.ascontiguousarray(weights[name]) for name in ("row", "weight")}
        arrays |= {_WIDE.get(name, f"wide.{name}"): narrowest(array) for name, array in wide.items()}
        arrays |= {f"prototypes.{name}": narrowest(array) for name, array in self.experts.prototypes._asdict().items()}
        if half:
            arrays |= {name: _halved(name, arrays[name]) for name in _HALVED if name in arrays}
        return arrays

    @classmethod
    def from_arrays(cls, layers: Layers, arrays: Mapping[str, NDArray[Any]]) -> FusedModel:
        """Return the model of some layers and named arrays; experts that are missing are not used.

        A network of torch modules gives these arrays by its ``state_dict``.
        """
        groups = Groups.of(layers)
        spans = LabelSpans.of(layers) if layers.taxonomy.is_tree else LabelSpans.none(layers)
        labels = len(spans.neuron)
        features = _checked_features(arrays, layers, groups, labels)
        has_wide = "wide.weight" in arrays
        usual = np.array([0.5, 0.5, 0, 0] if has_wide else [1.0, 0, 0, 0], np.float32)
        experts = Experts(
            _deep(arrays, ""),
            _wide(arrays) if has_wide else WideExpert.none(features, len(layers.node), groups.rows),
            _deep(arrays, "flat.") if "flat.head.weight" in arrays else DeepExpert.none(features, labels),
            _prototypes(arrays) if "prototypes.value" in arrays else Prototypes.none(features),
            spans,
            np.array(arrays.get("mix", usual), np.float32),
        )
        odds_scale = float(arrays.get("slope", np.ones(1))[0])
        merged = np.array(arrays["merged"], np.int32) if "merged" in arrays else None
        _check_wide(experts.wide, groups)
        _check_mix(experts, odds_scale, is_tree=layers.is_tree)
        return cls(layers, experts, odds_scale=odds_scale, merged=merged)


def with_merged(rows: SparseMatrix, numbers: NDArray[np.int32], count: int) -> SparseMatrix:
    """Return rows whose columns are numbered anew, below ``count``, those of one number summed; they are not sorted."""
    return SparseMatrix(*merge_columns(rows, numbers, count))


def _checked_features(arrays: Mapping[str, NDArray[Any]], layers: Layers, groups: Groups, labels: int) -> int:
    """Return the number of features of arrays that are sound, each by itself, or raise HiNetError."""
    bias = arrays.get("head.bias")
    if bias is not None and bias.ndim == 1 and len(bias) != groups.rows:
        raise HiNetError(
            f"the arrays have {len(bias):,} rows of output weights, the layers {groups.rows:,}; "
            "they belong to another taxonomy"
        )
    sizes = {"neurons": len(layers.node), "rows": groups.rows, "labels": labels}
    for named, schema in _SCHEMAS.items():
        if named in arrays or named == "features.weight":
            if named in _OUTPUTS:
                prefix, outputs = _OUTPUTS[named]
                schema = {**schema, **_deep_schema(prefix, outputs, in_bits=_in_bits(arrays, prefix))}
            sizes |= check_arrays(arrays, schema, sizes)
    if sizes["features"] > np.iinfo(np.int32).max:
        raise HiNetError(f"the array 'features.weight' has {sizes['features']:,} features, more than can be numbered")
    return sizes["features"]


def _check_wide(wide: WideExpert, groups: Groups) -> None:
    """Raise HiNetError unless the accumulators of a group have its features in order, and weights of its own rows."""
    entries = len(wide.feature)
    if not entries:
        return
    if int(wide.feature.max()) > int(wide.feature_rank.max()):
        raise HiNetError("the array 'wide.feature' has numbers that no feature is known by in 'wide.known_as'")
    falls = wide.feature[1:] <= wide.feature[:-1]
    starts = wide.entry_offsets[(wide.entry_offsets > 0) & (wide.entry_offsets < entries)]
    falls[starts - 1] = False
    if falls.any():
        raise HiNetError(f"the array 'wide.feature' does not rise after place {int(np.argmax(falls)):,} of a group")
    group = np.repeat(np.arange(len(groups.first_row) - 1), np.diff(wide.entry_offsets))
    low, high = groups.first_row[group], groups.first_row[group + 1]
    begins, row = wide.weight_offsets[:-1], wide.weights["row"]
    outside = (np.minimum.reduceat(row, begins) < low) | (np.maximum.reduceat(row, begins) >= high)
    outside |= np.diff(wide.weight_offsets) > high - low
    if outside.any():
        raise HiNetError(f"the array 'wide.row' has rows of another group in slot {int(np.argmax(outside)):,}")


def _check_mix(experts: Experts, odds_scale: float, *, is_tree: bool) -> None:
    """Raise HiNetError if experts are asked that there are not, or answers bent as only those of a tree can be."""
    mix = Mix(*experts.mix.tolist())
    absent = {
        "deep": not experts.deep.width,
        "flat": not experts.flat.width or not len(experts.spans.neuron),
        "prototypes": not len(experts.spans.neuron),
    }
    for name, missing in absent.items():
        if missing and getattr(mix, name):
            raise HiNetError(f"the array 'mix' asks the {name} expert, which the model does not have")
    if odds_scale != 1 and not is_tree:
        raise HiNetError("the array 'slope' is for trees, and the taxonomy is a DAG")


def _in_bits(arrays: Mapping[str, NDArray[Any]], prefix: str) -> bool:
    """Return whether the rows of a deep expert are in 8 bits."""
    name = f"{prefix}features.weight"
    return name in arrays and arrays[name].dtype == np.int8


def _deep_arrays(prefix: str, expert: DeepExpert) -> dict[str, NDArray[Any]]:
    """Return a deep expert as named arrays; without 8 bits there are no scales."""
    arrays = {prefix + _DEEP[name]: array for name, array in expert._asdict().items()}
    if not expert.is_quantised:
        del arrays[f"{prefix}features.scale"], arrays[f"{prefix}head.scale"]
    return arrays


def _deep(arrays: Mapping[str, NDArray[Any]], prefix: str) -> DeepExpert:
    def part(name: str, kind: type = np.float32) -> NDArray[Any]:
        return np.ascontiguousarray(arrays[prefix + _DEEP[name]], kind)

    in_bits = _in_bits(arrays, prefix)
    embedding, weight = (part(name, np.int8 if in_bits else np.float32) for name in ("embedding", "weight"))
    width = embedding.shape[1]
    slope = arrays.get(f"{prefix}features.slope", np.arange(width) < linear_units(width))
    slope = np.ascontiguousarray(slope, np.float32)
    expert = DeepExpert.of(embedding, part("embedding_bias"), weight, part("bias"), slope)
    if in_bits:
        expert = expert._replace(embedding_scale=part("embedding_scale"), weight_scale=part("weight_scale"))
    return expert


def _wide(arrays: Mapping[str, NDArray[Any]]) -> WideExpert:
    weights = np.empty(len(arrays["wide.weight"]), WEIGHT)
    for name in ("row", "weight"):
        weights[name] = arrays[f"wide.{name}"]
    return WideExpert(
        np.array(arrays["wide.known_as"], np.int32),  # copies of what kernels go by: a mapped file may change
        np.array(arrays["wide.slot_offsets"], np.int64),
        np.array(arrays["wide.feature"], np.int32),
        np.array(arrays["wide.weight_offsets"], np.int64),
        weights,
        np.ascontiguousarray(arrays["wide.bias"], np.float32),
    )


def _prototypes(arrays: Mapping[str, NDArray[Any]]) -> Prototypes:
    kinds = {"offsets": np.int64, "label": np.int32, "value": np.float32}
    return Prototypes(**{name: np.array(arrays[f"prototypes.{name}"], kind) for name, kind in kinds.items()})


def _halved(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return weights in half precision, those in 8 bits as they are."""
    if array.dtype == np.int8:
        return array
    with np.errstate(over="ignore"):
        halved = array.astype(np.float16)
    if not np.isfinite(halved).all():
        raise HiNetError(f"{name} has values too large for half precision; keep the model in full")
    return halved
