"""The fused model: its experts over the layers of a taxonomy, as arrays to save and load, and trust in its answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import EXPERTS, NEIGHBOURS, SCORES_LABELS, Experts, Memory, Mix
from hinet.engine.model.experts.deep import with_ignored_feature
from hinet.engine.model.experts.neighbours import NEIGHBOUR_RECORD, with_nearest
from hinet.engine.model.experts.record import Parts, RowFeatures
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.kernels import merge_columns
from hinet.engine.model.transfer import Transfer
from hinet.errors import HiNetError
from hinet.files import narrowest
from hinet.files.schema import Schema, check_arrays, floats, indices
from hinet.progress import EpochRecord
from hinet.taxonomy import Layers

MAX_RATE, MIN_POWER, MAX_POWER = 100.0, 0.1, 100.0
MAX_MIX = 1e6
MIN_WEIGHTS = 4  # weights of experts that are saved even if zero
MAX_ODDS_SCALE, MAX_ODDS_OFFSET = 10.0, 50.0
MIN_SQUARE = 1e-12  # minimum squared length of a row
_SCHEMA: Schema = {
    "mix": floats("mixed", low=0, high=MAX_MIX, optional=True),
    "slope": floats(1, low=1e-6, high=MAX_ODDS_SCALE, optional=True),
    "offset": floats(1, low=-MAX_ODDS_OFFSET, high=MAX_ODDS_OFFSET, optional=True),
    "merged": replace(indices("columns", below="features"), optional=True),
}


class Trust(NamedTuple):
    """Parameters of the trust in a row with an unknown share ``u``: ``exp(-rate * u ** power)``.

    Trust ``t`` mixes the probabilities of a row with uniform ones: ``t P + (1 - t) Q``, where ``Q`` gives every label
    the same probability. So every label keeps its rank. A row without unknown n-grams has trust 1.
    """

    rate: float
    power: float

    def of(self, unknown: NDArray[Any]) -> NDArray[np.float64]:
        """Return the trust in rows, given their shares of unknown n-grams.

        >>> Trust(rate=2.0, power=4.0).of(np.array([0, 0.5, 1])).round(3).tolist()
        [1.0, 0.882, 0.135]
        """
        trust: NDArray[np.float64] = np.exp(-self.rate * np.asarray(unknown, np.float64) ** self.power)
        return trust

    @classmethod
    def restored(cls, described: Mapping[str, float]) -> Trust:
        """Return the parameters in a manifest, or raise HiNetError."""
        unknown = {*described} - {*cls._fields}
        if unknown:
            raise HiNetError(f"trust has the unknown entry {min(unknown)!r}; expected rate and power")
        trust = cls(float(described["rate"]), float(described["power"]))
        if not (0 <= trust.rate <= MAX_RATE and MIN_POWER <= trust.power <= MAX_POWER):
            raise HiNetError(
                f"trust has rate {trust.rate:g} and power {trust.power:g}, expected a rate of 0 to {MAX_RATE:g} and a "
                f"power of {MIN_POWER:g} to {MAX_POWER:g}"
            )
        return trust

    def __str__(self) -> str:
        half, none = self.of(np.array([0.5, 1.0]))
        return f"{half:.2f} with half of the word n-grams unknown, {none:.2f} with all of them unknown"


@dataclass(frozen=True, eq=False)
class FusedModel:
    """Experts over the sibling groups of layers; :class:`hinet.engine.Search` predicts with it."""

    layers: Layers
    experts: Experts
    history: tuple[EpochRecord, ...] = field(default=(), repr=False)
    odds_scale: float = 1.0  # see hinet.engine.search.corrections
    odds_offset: float = 0.0  # only with several labels per row
    trust: Trust | None = None  # only in trees; saved by the classifier
    merged: NDArray[np.int32] | None = None  # (f,) the expert feature of each row feature

    def __post_init__(self) -> None:
        assert len(self.experts.mix) == len(EXPERTS)  # kernels do not check bounds

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Copy read-only arrays, as joblib maps them, into memory: kernels are not compiled for them."""
        self.__dict__.update(state, experts=_writable(state["experts"]), merged=_writable(state["merged"]))
        self.__dict__.pop("groups", None)

    @cached_property
    def groups(self) -> Groups:
        """The sibling groups as arrays."""
        return Groups.of(self.layers)

    @property
    def features(self) -> int:
        """Number of features of a row."""
        own = len(self.experts.deep.embedding if self.merged is None else self.merged)
        return own + self.experts.neighbours.private_columns

    def read(self, rows: SparseMatrix, unknown: NDArray[Any] | None = None) -> SparseMatrix:
        """Return rows with the features of the experts and their nearest labels, if neighbours count.

        ``unknown`` has the share of unknown n-grams of each row.
        """
        memory = self.experts.neighbours
        if self.mix.neighbours:
            rows = with_nearest(rows, self.features, memory, unknown)
        if memory.private_columns:
            rows = rows.without_last(self.features, memory.private_columns)
        return rows if self.merged is None else with_merged(rows, self.merged, len(self.experts.deep.embedding))

    @property
    def mix(self) -> Mix:
        """The weight of each expert."""
        return Mix(*self.experts.mix.tolist())

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(array.nbytes for record in EXPERTS for array in getattr(self.experts, record.name))

    @property
    def outputs(self) -> int:
        """Number of output rows: those of the groups, and of the labels for each expert that scores labels."""
        scored = int(np.count_nonzero(self.experts.mix[SCORES_LABELS]))
        return self.groups.rows + scored * len(self.experts.spans.neuron)

    def to_arrays(self, *, half: bool = False) -> dict[str, NDArray[Any]]:
        """Return the model as named arrays, with integers in as few bits as possible.

        With ``half``, single-precision weights become half precision.
        """
        used = np.flatnonzero(self.experts.mix)
        weights = max(used.max(initial=0) + 1, MIN_WEIGHTS)
        arrays: dict[str, NDArray[Any]] = {"mix": self.experts.mix[:weights]}
        if self.odds_scale != 1:
            arrays["slope"] = np.array([self.odds_scale])
        if self.odds_offset != 0:
            arrays["offset"] = np.array([self.odds_offset])
        if self.merged is not None:
            arrays["merged"] = narrowest(self.merged)
        for record in EXPERTS:
            own = record.write(getattr(self.experts, record.name))
            halved = {name: _halved(name, own[name]) for name in record.half if half and name in own}
            arrays |= own | halved
        return arrays

    @classmethod
    def from_arrays(cls, layers: Layers, arrays: Mapping[str, NDArray[Any]]) -> FusedModel:
        """Return the model of layers and named arrays, such as the ``state_dict`` of a torch network."""
        groups = Groups.of(layers)
        spans = LabelSpans.of(layers)
        if NEIGHBOUR_RECORD.key in arrays:
            spans = spans.with_paths(layers)
        sizes = _checked_sizes(arrays, layers, groups, spans)
        read = {
            record.name: (record.read(arrays) if record.key in arrays else record.empty(sizes)) for record in EXPERTS
        }
        usual = Mix(deep=0.5, wide=0.5) if "wide.weight" in arrays else Mix(deep=1.0)
        mix = np.zeros(len(EXPERTS), np.float32)
        given = np.array(arrays.get("mix", usual), np.float32)
        mix[: len(given)] = given
        experts = Experts(**read, spans=spans, mix=mix)
        odds_scale, odds_offset = float(arrays.get("slope", np.ones(1))[0]), float(arrays.get("offset", np.zeros(1))[0])
        merged = np.array(arrays["merged"], np.int32) if "merged" in arrays else None
        for record in EXPERTS:
            record.check(getattr(experts, record.name), groups)
        _check_mix(experts)
        if odds_scale != 1 and not layers.is_tree:
            raise HiNetError("the array 'slope' is for trees, and the taxonomy is a DAG")
        if not layers.multilabel and (odds_scale > 1 or odds_offset):
            raise HiNetError("a 'slope' above 1 and the array 'offset' are for models of several labels per row")
        return cls(layers, experts, odds_scale=odds_scale, odds_offset=odds_offset, merged=merged)

    def without_memory(self) -> FusedModel:
        """Return the model without neighbours, for rows of the same features; no expert reads their private columns."""
        columns, experts = self.experts.neighbours.private_columns, self.experts._replace(neighbours=Memory.none())
        if not columns:
            return replace(self, experts=experts)
        deep, flat = (with_ignored_feature(expert) for expert in (experts.deep, experts.flat))
        numbers = np.arange(len(experts.deep.embedding)) if self.merged is None else self.merged
        merged = np.append(numbers, np.full(columns, len(experts.deep.embedding))).astype(np.int32)
        return replace(self, experts=experts._replace(deep=deep, flat=flat), merged=merged)

    def contributions(self, row: SparseMatrix, neuron: int, read: SparseMatrix | None = None) -> Parts:
        """Return what each feature of a one-row matrix adds to the logits of the group below ``neuron``.

        ``read`` is the row as :meth:`read` returned it.
        """
        read = self.read(row) if read is None else read
        features, values = row.entries(self.features)
        shared = features < self.features - self.experts.neighbours.private_columns
        numbers = features.copy()
        if self.merged is not None:
            numbers[shared] = self.merged[features[shared]]
        length = np.sqrt(max(float(np.square(read.data, dtype=np.float64).sum()), MIN_SQUARE))
        low, high = self.groups.first_row[neuron : neuron + 2].tolist()
        by_feature, rest = np.zeros((high - low, len(features))), np.zeros(high - low)
        for record, weight in zip(EXPERTS, self.mix, strict=True):
            if weight:
                expert, seen = getattr(self.experts, record.name), shared
                if record is NEIGHBOUR_RECORD:
                    seen = np.ones(len(features), bool)
                features_of_row = RowFeatures(numbers[seen], values[seen], float(length), read)
                parts = record.contributions(expert, features_of_row, neuron, self.groups, self.experts.spans)
                by_feature[:, seen] += weight * parts.by_feature
                rest += weight * parts.rest
        return Parts(by_feature, rest)

    def transferred(self, layers: Layers, came_from: NDArray[np.int64]) -> FusedModel:
        """Return the model over other layers; ``came_from`` has the old node of each new one, or -1."""
        experts, spans = self.experts, LabelSpans.of(layers)
        if len(experts.neighbours.label):
            spans = spans.with_paths(layers)
        transfer = Transfer.between(self.layers, experts.spans, layers, spans, came_from)
        moved = {record.name: record.transfer(getattr(experts, record.name), transfer) for record in EXPERTS}
        mix = experts.mix.copy()
        if not transfer.has_labels and mix[~SCORES_LABELS].sum() > 0:  # the other experts get the weight of these
            mix[~SCORES_LABELS] *= mix.sum() / mix[~SCORES_LABELS].sum()
            mix[SCORES_LABELS] = 0
        if NEIGHBOUR_RECORD.is_empty(moved[NEIGHBOUR_RECORD.name]):
            mix[NEIGHBOURS] = 0
        model = replace(self, layers=layers, experts=Experts(**moved, spans=spans, mix=mix))
        keeps = layers.taxonomy.is_tree or layers.multilabel
        return model if keeps else replace(model, odds_scale=1.0, trust=None)


def _writable(part: Any) -> Any:
    """Return arrays as writable ones; read-only arrays are copied."""
    if isinstance(part, tuple):
        return type(part)(*map(_writable, part))
    return part.copy() if isinstance(part, np.ndarray) and not part.flags.writeable else part


def with_merged(rows: SparseMatrix, numbers: NDArray[np.int32], count: int) -> SparseMatrix:
    """Return rows with ``count`` renumbered columns; columns with the same number are summed, not sorted."""
    indptr, indices, data = merge_columns(rows, numbers, count)
    return rows._replace(indptr=indptr, indices=indices, data=data)


def _checked_sizes(
    arrays: Mapping[str, NDArray[Any]], layers: Layers, groups: Groups, spans: LabelSpans
) -> dict[str, int]:
    """Return the sizes of arrays that fit their schemas, or raise HiNetError."""
    bias = arrays.get("head.bias")
    if bias is not None and bias.ndim == 1 and len(bias) != groups.rows:
        raise HiNetError(
            f"the arrays have {len(bias):,} rows of output weights, the layers {groups.rows:,}; "
            "they belong to another taxonomy"
        )
    sizes = {"neurons": len(layers.node), "rows": groups.rows, "labels": len(spans.neuron)}
    sizes["remembered_labels"] = len(spans.paths.node)
    for record in EXPERTS:
        if record.key in arrays or record.required:
            sizes |= check_arrays(arrays, record.schema(arrays), sizes)
    if check_arrays(arrays, _SCHEMA, sizes).get("mixed", 0) > len(EXPERTS):
        raise HiNetError(f"the array 'mix' has more than {len(EXPERTS)} weights")
    if sizes["features"] > np.iinfo(np.int32).max:
        raise HiNetError(
            f"the array 'features.weight' has {sizes['features']:,} features, more than 32-bit numbers allow"
        )
    return sizes


def _check_mix(experts: Experts) -> None:
    """Raise HiNetError if an expert has a weight but no arrays."""
    for record, weight in zip(EXPERTS, experts.mix, strict=True):
        expert = getattr(experts, record.name)
        missing = record.is_empty(expert) or (record.outputs == "labels" and not len(experts.spans.neuron))
        if weight and missing:
            raise HiNetError(f"the array 'mix' uses the {record.name} expert, which the model does not have")


def _halved(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return weights in half precision, or unchanged if they are quantised."""
    if array.dtype == np.int8:
        return array
    with np.errstate(over="ignore"):
        halved = array.astype(np.float16)
    if not np.isfinite(halved).all():
        raise HiNetError(f"{name} has values too large for half precision; keep the model in full")
    return halved
