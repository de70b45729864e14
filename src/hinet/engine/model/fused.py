"""The fused model: its experts over the layers of a taxonomy, as arrays that can be kept and taken up again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.column_kernels import merge_columns
from hinet.engine.model.expert_files import EXPERTS, SCORES_LABELS, check_wide
from hinet.engine.model.experts import DeepExpert, Experts, Mix
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.trust import Trust
from hinet.errors import HiNetError
from hinet.files import narrowest
from hinet.files.schema import Schema, check_arrays, floats, indices
from hinet.progress import EpochRecord
from hinet.taxonomy import Layers

LARGEST_MIX = 1e6
LARGEST_SCALE, LARGEST_OFFSET = 10.0, 50.0  # of log odds
_SCHEMA: Schema = {
    "mix": floats(len(EXPERTS), low=0, high=LARGEST_MIX, optional=True),
    "slope": floats(1, low=1e-6, high=LARGEST_SCALE, optional=True),
    "offset": floats(1, low=-LARGEST_OFFSET, high=LARGEST_OFFSET, optional=True),
    "merged": replace(indices("columns", below="features"), optional=True),
}
_WEIGHTS = ("features.weight", "head.weight", "wide.weight", "prototypes.value")  # with whatever before


@dataclass(frozen=True, eq=False)
class FusedModel:
    """Experts over the sibling groups of some layers, ready to be searched.

    ``to_arrays`` and ``from_arrays`` turn it into named arrays and back; :class:`hinet.engine.Search` predicts.
    """

    layers: Layers
    experts: Experts
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)
    odds_scale: float = 1.0  # of log odds: see hinet.engine.search.odds_scaling
    odds_offset: float = 0.0  # added to them, with several labels per row
    trust: Trust | None = None  # in rows with unknown n-grams, in trees; kept on disk by the classifier
    merged: NDArray[np.int32] | None = None  # (f,) the feature of the experts that each one of a row counts as

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take arrays that may only be read, as joblib maps them, into memory: kernels are not compiled for them."""
        self.__dict__.update(state, experts=_writable(state["experts"]), merged=_writable(state["merged"]))
        self.__dict__.pop("groups", None)

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
        return sum(array.nbytes for record in EXPERTS for array in getattr(self.experts, record.name))

    @property
    def outputs(self) -> int:
        """Number of rows of output weights: those of the groups, and of the labels if an expert scores labels."""
        scored = int(np.count_nonzero(self.experts.mix[SCORES_LABELS]))
        return self.groups.rows + scored * len(self.experts.spans.neuron)

    def to_arrays(self, *, half: bool = False) -> dict[str, NDArray[Any]]:
        """Return the model as named arrays, whole numbers in the fewest bits that hold them.

        With ``half``, weights that are in single precision are in half precision, at half the room.
        """
        arrays: dict[str, NDArray[Any]] = {"mix": self.experts.mix}
        if self.odds_scale != 1:
            arrays["slope"] = np.array([self.odds_scale])
        if self.odds_offset != 0:
            arrays["offset"] = np.array([self.odds_offset])
        if self.merged is not None:
            arrays["merged"] = narrowest(self.merged)
        for record in EXPERTS:
            own = record.write(getattr(self.experts, record.name))
            arrays |= {name: _halved(name, array) for name, array in own.items()} if half else own
        return arrays

    @classmethod
    def from_arrays(cls, layers: Layers, arrays: Mapping[str, NDArray[Any]]) -> FusedModel:
        """Return the model of some layers and named arrays; experts that are missing are not used.

        A network of torch modules gives these arrays by its ``state_dict``.
        """
        groups = Groups.of(layers)
        spans = LabelSpans.of(layers)
        sizes = _checked_sizes(arrays, layers, groups, len(spans.neuron))
        read = {
            record.name: (record.read(arrays) if record.key in arrays else record.none(sizes)) for record in EXPERTS
        }
        usual = Mix(deep=0.5, wide=0.5) if "wide.weight" in arrays else Mix(deep=1.0)
        experts = Experts(**read, spans=spans, mix=np.array(arrays.get("mix", usual), np.float32))
        odds_scale, odds_offset = float(arrays.get("slope", np.ones(1))[0]), float(arrays.get("offset", np.zeros(1))[0])
        merged = np.array(arrays["merged"], np.int32) if "merged" in arrays else None
        check_wide(experts.wide, groups)
        _check_mix(experts)
        if odds_scale != 1 and not layers.is_tree:
            raise HiNetError("the array 'slope' is for trees, and the taxonomy is a DAG")
        if not layers.multilabel and (odds_scale > 1 or odds_offset):
            raise HiNetError("a 'slope' above 1 and the array 'offset' are for models of several labels per row")
        return cls(layers, experts, odds_scale=odds_scale, odds_offset=odds_offset, merged=merged)


def _writable(part: Any) -> Any:
    """Return arrays that may be written to: those that may not are copied."""
    if isinstance(part, tuple):
        return type(part)(*map(_writable, part))
    return part.copy() if isinstance(part, np.ndarray) and not part.flags.writeable else part


def with_merged(rows: SparseMatrix, numbers: NDArray[np.int32], count: int) -> SparseMatrix:
    """Return rows whose columns are numbered anew, below ``count``, those of one number summed; they are not sorted."""
    indptr, indices, data = merge_columns(rows, numbers, count)
    return SparseMatrix(indptr, indices, data, rows.dense)


def _checked_sizes(arrays: Mapping[str, NDArray[Any]], layers: Layers, groups: Groups, labels: int) -> dict[str, int]:
    """Return the sizes of arrays that are sound, each by itself, or raise HiNetError."""
    bias = arrays.get("head.bias")
    if bias is not None and bias.ndim == 1 and len(bias) != groups.rows:
        raise HiNetError(
            f"the arrays have {len(bias):,} rows of output weights, the layers {groups.rows:,}; "
            "they belong to another taxonomy"
        )
    sizes = {"neurons": len(layers.node), "rows": groups.rows, "labels": labels}
    for record in EXPERTS:
        if record.key in arrays or record.name == "deep":
            sizes |= check_arrays(arrays, record.schema(arrays), sizes)
    check_arrays(arrays, _SCHEMA, sizes)
    if sizes["features"] > np.iinfo(np.int32).max:
        raise HiNetError(f"the array 'features.weight' has {sizes['features']:,} features, more than can be numbered")
    return sizes


def _check_mix(experts: Experts) -> None:
    """Raise HiNetError if an expert is asked that there is not."""
    for record, weight in zip(EXPERTS, experts.mix, strict=True):
        expert = getattr(experts, record.name)
        missing = isinstance(expert, DeepExpert) and not expert.width
        if weight and (missing or (record.outputs == "labels" and not len(experts.spans.neuron))):
            raise HiNetError(f"the array 'mix' asks the {record.name} expert, which the model does not have")


def _halved(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in half precision if it is one of weights, those in 8 bits as they are."""
    if array.dtype == np.int8 or not name.endswith(_WEIGHTS):
        return array
    with np.errstate(over="ignore"):
        halved = array.astype(np.float16)
    if not np.isfinite(halved).all():
        raise HiNetError(f"{name} has values too large for half precision; keep the model in full")
    return halved
