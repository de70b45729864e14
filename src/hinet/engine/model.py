"""The fused model: its experts over the layers of a taxonomy, as arrays that can be kept and taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.engine.experts import (
    WEIGHT,
    DeepExpert,
    Experts,
    LabelSpans,
    Mix,
    Prototypes,
    WideExpert,
    linear_units,
    nbytes,
)
from hinet.engine.groups import Groups
from hinet.errors import HiNetError
from hinet.progress import EpochRecord
from hinet.taxonomy import Layers

# Names of the arrays; those of the deep expert are the torch modules' own.
_DEEP = {
    "embedding": "features.weight",
    "embedding_bias": "features.bias",
    "weight": "head.weight",
    "bias": "head.bias",
    "slope": "features.slope",
}
_HALVED = (
    "features.weight",
    "head.weight",
    "flat.features.weight",
    "flat.head.weight",
    "wide.weight",
    "prototypes.value",
)


@dataclass(frozen=True, eq=False)
class FusedModel:
    """Experts over the sibling groups of some layers, ready to be searched.

    ``to_arrays`` and ``from_arrays`` turn it into named arrays and back; see :class:`~hinet.engine.search.Search` for
    predictions.
    """

    layers: Layers
    experts: Experts
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)
    slope: float = 1.0  # of the log odds of a best trace, in trees: see hinet.engine.leaning

    @cached_property
    def groups(self) -> Groups:
        """The sibling groups as arrays."""
        return Groups.of(self.layers)

    @property
    def features(self) -> int:
        """Number of features of a row."""
        return len(self.experts.deep.embedding)

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
        """Return the model as named arrays; with ``half`` its weights in half precision, at half the room."""
        arrays: dict[str, NDArray[Any]] = {"mix": self.experts.mix}
        if self.slope != 1:
            arrays["slope"] = np.array([self.slope])
        arrays |= {_DEEP[name]: array for name, array in self.experts.deep._asdict().items()}
        wide = self.experts.wide._asdict()
        weights = wide.pop("weights")
        arrays |= {f"wide.{name}": array for name, array in wide.items()}
        arrays |= {f"wide.{name}": np.ascontiguousarray(weights[name]) for name in ("row", "weight")}
        arrays |= {f"flat.{_DEEP[name]}": array for name, array in self.experts.flat._asdict().items()}
        arrays |= {f"prototypes.{name}": array for name, array in self.experts.prototypes._asdict().items()}
        if half:
            arrays |= {name: _halved(name, arrays[name]) for name in _HALVED}
        return arrays

    @classmethod
    def from_arrays(cls, layers: Layers, arrays: Mapping[str, NDArray[Any]]) -> FusedModel:
        """Return the model of some layers and named arrays; experts that are missing are not used.

        A network of torch modules gives these arrays by its ``state_dict``.
        """
        groups = Groups.of(layers)
        missing = [name for name in ("features.weight", "head.weight", "head.bias") if name not in arrays]
        if missing:
            raise HiNetError(
                f"the arrays have no {missing[0]!r}; they are not those of a deep expert over sibling groups"
            )
        features = len(arrays["features.weight"])
        spans = LabelSpans.of(layers) if layers.taxonomy.is_tree else LabelSpans.none(layers)
        labels = len(spans.neuron)
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
        if len(experts.deep.bias) != groups.rows:
            raise HiNetError(
                f"the arrays have {len(experts.deep.bias):,} rows of output weights, the layers {groups.rows:,}; "
                "they belong to another taxonomy"
            )
        _check(experts, groups, labels)
        slope = np.asarray(arrays.get("slope", np.ones(1)))
        if slope.shape != (1,) or not 0 < slope[0] <= 1:
            raise HiNetError(
                "the arrays have a slope that is not one number above 0 and at most 1; the model is damaged"
            )
        return cls(layers, experts, slope=float(slope[0]))


def _check(experts: Experts, groups: Groups, labels: int) -> None:
    """Raise HiNetError for arrays that would lead kernels astray: kernels check no bounds."""
    deep, wide, flat, known = experts.deep, experts.wide, experts.flat, experts.prototypes
    features = len(deep.embedding)
    neurons = len(groups.first_row) - 1
    slot_group = (
        np.repeat(np.arange(neurons), np.diff(wide.slot_offsets)) if _rises(wide.slot_offsets, neurons) else None
    )
    sound = {
        "mix": experts.mix.shape == (len(Mix._fields),) and bool(np.isfinite(experts.mix).all()),
        "deep": _fits(deep, features, groups.rows),
        "flat": _fits(flat, features, labels),
        "wide": slot_group is not None
        and wide.known_as.shape == (features,)
        and _within(wide.known_as, 0, features)
        and wide.bias.shape == (groups.rows,)
        and len(slot_group) == len(wide.feature)
        and _rises(wide.weight_offsets, len(wide.feature), len(wide.weights))
        and _rows_fit(slot_group, wide, groups),
        "prototypes": _rises(known.offsets, features, len(known.label))
        and known.value.shape == known.label.shape
        and _within(known.label, 0, labels),
    }
    for name, good in sound.items():
        if not good:
            raise HiNetError(f"the arrays of {name} contradict each other or the taxonomy; the model is damaged")


def _fits(deep: DeepExpert, features: int, outputs: int) -> bool:
    width = deep.width
    shapes = ((features, width), (width,), (outputs, width), (outputs,), (width,))
    return all(array.shape == shape for array, shape in zip(deep, shapes, strict=True))


def _rises(offsets: NDArray[Any], lists: int, total: int | None = None) -> bool:
    """Return whether offsets are those of so many lists, of so many values together."""
    if offsets.shape != (lists + 1,) or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        return False
    return total is None or int(offsets[-1]) == total


def _within(values: NDArray[Any], low: int, high: int) -> bool:
    return not len(values) or (int(values.min()) >= low and int(values.max()) < high)


def _rows_fit(slot_group: NDArray[np.int64], wide: WideExpert, groups: Groups) -> bool:
    """Return whether every weight belongs to a row of its group."""
    group = np.repeat(slot_group, np.diff(wide.weight_offsets))
    row = wide.weights["row"]
    return bool(((row >= groups.first_row[group]) & (row < groups.first_row[group + 1])).all())


def _deep(arrays: Mapping[str, NDArray[Any]], prefix: str) -> DeepExpert:
    width = arrays[f"{prefix}features.weight"].shape[1]
    halves = np.arange(width) < linear_units(width)
    found = {name: arrays.get(prefix + key, halves) for name, key in _DEEP.items()}
    return DeepExpert(**{name: np.ascontiguousarray(array, np.float32) for name, array in found.items()})


def _wide(arrays: Mapping[str, NDArray[Any]]) -> WideExpert:
    weights = np.empty(len(arrays["wide.weight"]), WEIGHT)
    for name in ("row", "weight"):
        weights[name] = arrays[f"wide.{name}"]
    return WideExpert(
        np.ascontiguousarray(arrays["wide.known_as"], np.int32),
        np.ascontiguousarray(arrays["wide.slot_offsets"], np.int64),
        np.ascontiguousarray(arrays["wide.feature"], np.int32),
        np.ascontiguousarray(arrays["wide.weight_offsets"], np.int64),
        weights,
        np.ascontiguousarray(arrays["wide.bias"], np.float32),
    )


def _prototypes(arrays: Mapping[str, NDArray[Any]]) -> Prototypes:
    kinds = {"offsets": np.int64, "label": np.int32, "value": np.float32}
    return Prototypes(
        **{name: np.ascontiguousarray(arrays[f"prototypes.{name}"], kind) for name, kind in kinds.items()}
    )


def _halved(name: str, array: NDArray[Any]) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halved = array.astype(np.float16)
    if not np.isfinite(halved).all():
        raise HiNetError(f"{name} has values too large for half precision; keep the model in full")
    return halved
