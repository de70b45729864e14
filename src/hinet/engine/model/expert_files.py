"""The experts of a model in files: one record for each, with its arrays, what these must be, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.engine.model.experts import WEIGHT, DeepExpert, Prototypes, WideExpert, linear_units
from hinet.engine.model.groups import Groups
from hinet.errors import HiNetError
from hinet.files import narrowest
from hinet.files.schema import Schema, bytes_of, floats, indices, offsets

Arrays: TypeAlias = Mapping[str, NDArray[Any]]

LEAST_SCALE = 1e-33

# Names of arrays where they are not those of the fields; of a deep expert, those of the torch modules, and its scales.
_DEEP = {
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
_WIDE = {"feature_rank": "known_as", "entry_offsets": "slot_offsets"}


def _in_bits(prefix: str, arrays: Arrays) -> bool:
    """Return whether the rows of a deep expert are in 8 bits."""
    name = f"{prefix}features.weight"
    return name in arrays and arrays[name].dtype == np.int8


def _deep_schema(prefix: str, outputs: str, arrays: Arrays) -> Schema:
    """Return what the arrays of a deep expert must be; rows in 8 bits have scales."""
    width, in_bits = f"{prefix}width", _in_bits(prefix, arrays)
    rows = bytes_of if in_bits else floats
    schema = {
        f"{prefix}features.weight": rows("features", width),
        f"{prefix}features.bias": floats(width),
        f"{prefix}features.slope": floats(width, kinds="fb", optional=True),
        f"{prefix}head.weight": rows(outputs, width),
        f"{prefix}head.bias": floats(outputs),
    }
    if f"{prefix}inner.weight" in arrays:
        schema |= {f"{prefix}inner.weight": floats(width, f"{prefix}inner"), f"{prefix}inner.bias": floats(width)}
    if in_bits:
        schema[f"{prefix}features.scale"] = floats("features", low=LEAST_SCALE)
        schema[f"{prefix}head.scale"] = floats(outputs, low=LEAST_SCALE)
    return schema


def _write_deep(prefix: str, expert: DeepExpert) -> dict[str, NDArray[Any]]:
    """Return a deep expert as named arrays; without 8 bits there are no scales."""
    arrays = {prefix + _DEEP[name]: array for name, array in expert._asdict().items()}
    if not expert.has_two_layers:
        del arrays[f"{prefix}inner.weight"], arrays[f"{prefix}inner.bias"]
    if not expert.is_quantised:
        del arrays[f"{prefix}features.scale"], arrays[f"{prefix}head.scale"]
    return arrays if expert.width or not prefix else {}


def _read_deep(prefix: str, arrays: Arrays) -> DeepExpert:
    def part(name: str, kind: type = np.float32) -> NDArray[Any]:
        return np.ascontiguousarray(arrays[prefix + _DEEP[name]], kind)

    in_bits = _in_bits(prefix, arrays)
    embedding, weight = (part(name, np.int8 if in_bits else np.float32) for name in ("embedding", "weight"))
    width = embedding.shape[1]
    slope = arrays.get(f"{prefix}features.slope", np.arange(width) < linear_units(width))
    slope = np.ascontiguousarray(slope, np.float32)
    inner = [part(name).copy() for name in ("inner", "inner_bias")] if f"{prefix}inner.weight" in arrays else []
    if inner and (not inner[0].shape[1] or width % inner[0].shape[1]):
        raise HiNetError(f"the array '{prefix}inner.weight' does not part the {width:,} units evenly")
    expert = DeepExpert.of(embedding, part("embedding_bias"), weight, part("bias"), slope, *inner)
    if in_bits:
        expert = expert._replace(embedding_scale=part("embedding_scale"), weight_scale=part("weight_scale"))
    return expert


def _wide_schema(arrays: Arrays) -> Schema:
    return {
        "wide.known_as": indices("features", below="features"),
        "wide.slot_offsets": offsets("neurons", "entries"),
        "wide.feature": indices("entries", below="features"),
        "wide.weight_offsets": offsets("entries", "weights", filled=True),
        "wide.row": indices("weights", below="rows"),
        "wide.weight": floats("weights"),
        "wide.bias": floats("rows"),
    }


def _write_wide(expert: WideExpert) -> dict[str, NDArray[Any]]:
    wide = expert._asdict()
    weights = wide.pop("weights")
    wide |= {name: np.ascontiguousarray(weights[name]) for name in ("row", "weight")}
    return {f"wide.{_WIDE.get(name, name)}": narrowest(array) for name, array in wide.items()}


def _read_wide(arrays: Arrays) -> WideExpert:
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


def _prototype_schema(arrays: Arrays) -> Schema:
    return {
        "prototypes.offsets": offsets("features", "values"),
        "prototypes.label": indices("values", below="labels"),
        "prototypes.value": floats("values"),
    }


def _write_prototypes(expert: Prototypes) -> dict[str, NDArray[Any]]:
    return {f"prototypes.{name}": narrowest(array) for name, array in expert._asdict().items()}


def _read_prototypes(arrays: Arrays) -> Prototypes:
    kinds = {"offsets": np.int64, "label": np.int32, "value": np.float32}
    return Prototypes(**{name: np.array(arrays[f"prototypes.{name}"], kind) for name, kind in kinds.items()})


class ExpertRecord(NamedTuple):
    """What is known of an expert: its name, what it scores, and how it is kept."""

    name: str  # in Experts and in Mix
    outputs: str  # what it scores: the "rows" of sibling groups, or "labels"
    key: str  # the array that tells that a file has it
    schema: Callable[[Arrays], Schema]
    write: Callable[[Any], dict[str, NDArray[Any]]]
    read: Callable[[Arrays], Any]
    none: Callable[[Mapping[str, int]], Any]  # for sizes of features, neurons, rows and labels


def _deep_record(name: str, prefix: str, key: str, outputs: str) -> ExpertRecord:
    return ExpertRecord(
        name,
        outputs,
        key,
        partial(_deep_schema, prefix, outputs),
        partial(_write_deep, prefix),
        partial(_read_deep, prefix),
        lambda sizes: DeepExpert.none(sizes["features"], sizes[outputs]),
    )


EXPERTS = (  # in the order of Mix
    _deep_record("deep", "", "features.weight", "rows"),
    ExpertRecord(
        "wide",
        "rows",
        "wide.weight",
        _wide_schema,
        _write_wide,
        _read_wide,
        lambda sizes: WideExpert.none(sizes["features"], sizes["neurons"], sizes["rows"]),
    ),
    _deep_record("flat", "flat.", "flat.head.weight", "labels"),
    ExpertRecord(
        "prototypes",
        "labels",
        "prototypes.value",
        _prototype_schema,
        _write_prototypes,
        _read_prototypes,
        lambda sizes: Prototypes.none(sizes["features"]),
    ),
)
SCORES_LABELS = np.array([record.outputs == "labels" for record in EXPERTS])  # by position in a mix


def check_wide(wide: WideExpert, groups: Groups) -> None:
    """Raise HiNetError unless the entries of a group have its features in order, and weights of its own rows."""
    entries = len(wide.feature)
    if not entries:
        return
    if int(wide.feature.max()) > int(wide.feature_rank.max()):
        raise HiNetError("the array 'wide.feature' has numbers that no feature is known by in 'wide.known_as'")
    falls = wide.feature[1:] <= wide.feature[:-1]
    starts = wide.entry_offsets[(wide.entry_offsets > 0) & (wide.entry_offsets < entries)]
    falls[starts - 1] = False
    if falls.any():
        raise HiNetError(f"the array 'wide.feature' does not rise after index {int(np.argmax(falls)):,} of a group")
    group = np.repeat(np.arange(len(groups.first_row) - 1), np.diff(wide.entry_offsets))
    low, high = groups.first_row[group], groups.first_row[group + 1]
    begins, row = wide.weight_offsets[:-1], wide.weights["row"]
    outside = (np.minimum.reduceat(row, begins) < low) | (np.maximum.reduceat(row, begins) >= high)
    outside |= np.diff(wide.weight_offsets) > high - low
    if outside.any():
        raise HiNetError(f"the array 'wide.row' has rows of another group in entry {int(np.argmax(outside)):,}")
