"""The wide expert: one weight for each feature and option that were seen together in training.

A group is scored for one row by looking up each feature of the row (:func:`add_wide`). If many rows need the same
group, its weights are listed by feature once for all of them (:class:`Listing`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined
from hinet.engine.model.experts.record import Arrays, ExpertRecord, Floats, Ints, Parts, RowFeatures
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.transfer import NEW_OPTION_BIAS, Transfer
from hinet.errors import HiNetError
from hinet.files import narrowest
from hinet.files.schema import Schema, floats, indices, offsets
from hinet.ragged import gather, group_by, offsets_of

F4 = np.float32
WEIGHT = np.dtype([("row", np.int32), ("weight", np.float32)])
FEW = 16  # fewer rows are not worth an array with one element per feature
RUN_BITS = 24  # bits for the number of weights of a feature; no group has more options
RUN_MASK = (1 << RUN_BITS) - 1
LOOK_UP = 64  # looking up a feature among the sorted ones of a group costs as much as listing this number

_FILE_NAMES = {"feature_rank": "known_as", "entry_offsets": "slot_offsets"}


class WideExpert(NamedTuple):
    """Sparse weights by group, with one entry per feature that the group knows.

    The entries of group ``g`` are ``entry_offsets[g]:entry_offsets[g + 1]``; the weights of entry ``e`` are
    ``weight_offsets[e]:weight_offsets[e + 1]``, for some output rows of the group. Entries use the rank of a feature,
    the most frequent first, so that entries used often are neighbours in memory. Features hashed together share a rank.
    """

    feature_rank: NDArray[np.int32]  # (f,) rank of each feature
    entry_offsets: NDArray[np.int64]  # (neurons + 1,)
    feature: NDArray[np.int32]  # (entries,) rank of the feature, ascending within a group
    weight_offsets: NDArray[np.int64]  # (entries + 1,)
    weights: NDArray[np.void]  # (weights,) with dtype WEIGHT
    bias: Floats  # (rows,)

    @classmethod
    def none(cls, features: int, neurons: int, rows: int) -> WideExpert:
        """Return an expert without weights; its logits are zero."""
        nothing, offsets = np.zeros(0, np.int32), np.zeros(neurons + 1, np.int64)
        bias = np.zeros(rows, np.float32)
        return cls(
            np.arange(features, dtype=np.int32), offsets, nothing, np.zeros(1, np.int64), np.zeros(0, WEIGHT), bias
        )

    @classmethod
    def of(
        cls, feature_rank: NDArray[np.int32], feature: Ints, row: Ints, weight: Floats, groups: Groups, bias: Floats
    ) -> WideExpert:
        """Return the expert of weights in any order, given the feature rank and the output row of each."""
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


@inlined
def add_wide(rows, row, neuron, groups, wide, mixed, logits):
    """Add the logits of a group, looking up each feature of the row."""
    base = groups.first_row[neuron]
    begin, end = wide.entry_offsets[neuron], wide.entry_offsets[neuron + 1]
    for entry in range(rows.indptr[row], rows.indptr[row + 1]):
        known = wide.feature_rank[rows.indices[entry]]
        feature_entry = find_first(wide.feature, begin, end, known)
        if feature_entry < end and wide.feature[feature_entry] == known:
            value = mixed * rows.data[entry]
            for position in range(wide.weight_offsets[feature_entry], wide.weight_offsets[feature_entry + 1]):
                logits[wide.weights[position]["row"] - base] += value * wide.weights[position]["weight"]


class Listing(NamedTuple):
    """The weights of the current group by feature, for all rows that need the group."""

    known: Any  # (values,) feature rank of each value of the rows
    wanted: Any  # (features,) whether a row that needs the group has the feature
    run: Any  # (features,) start and number of its weights in one integer; 0 for none


@inlined
def allocate_listing(rows, wide, used):
    """Allocate a listing, which is empty for few rows."""
    few = not used or len(rows.indptr) - 1 < FEW
    features = 0 if few else len(wide.feature_rank)
    known = np.empty(0 if few else len(rows.indices), np.int32)
    for entry in range(len(known)):
        known[entry] = wide.feature_rank[rows.indices[entry]]
    return Listing(known, np.zeros(features, np.bool_), np.zeros(features, np.int64))


@inlined
def list_weights(rows, waiting_rows, neuron, wide, listing):
    """List the weights of a group by feature if that is faster than looking them up; return whether it was done."""
    if len(listing.run) == 0:
        return False
    begin, end = wide.entry_offsets[neuron], wide.entry_offsets[neuron + 1]
    values = 0
    for row in waiting_rows:
        values += rows.indptr[row + 1] - rows.indptr[row]
    if LOOK_UP * values <= end - begin:
        return False
    for row in waiting_rows:
        for entry in range(rows.indptr[row], rows.indptr[row + 1]):
            listing.wanted[listing.known[entry]] = True
    for feature_entry in range(begin, end):
        if listing.wanted[wide.feature[feature_entry]]:
            low, high = wide.weight_offsets[feature_entry], wide.weight_offsets[feature_entry + 1]
            listing.run[wide.feature[feature_entry]] = (low << RUN_BITS) | (high - low)
    return True


@inlined
def add_listed(rows, row, neuron, groups, wide, mixed, listing, sink, logits):
    """Add the logits of a group whose weights are listed."""
    base, low, high = groups.first_row[neuron], rows.indptr[row], rows.indptr[row + 1]
    sink[0] = touch_runs(listing, low, high, wide.weights)
    for entry in range(low, high):
        run = listing.run[listing.known[entry]]
        value = mixed * rows.data[entry]
        for position in range(run >> RUN_BITS, (run >> RUN_BITS) + (run & RUN_MASK)):
            logits[wide.weights[position]["row"] - base] += value * wide.weights[position]["weight"]


@inlined
def touch_runs(listing, low, high, weights):
    """Prefetch the listed weights of the values ``low:high``, so that the memory accesses overlap."""
    sink = F4(0)
    for entry in range(low, high):
        run = listing.run[listing.known[entry]]
        if run != 0:
            sink += weights[run >> RUN_BITS]["weight"] + weights[(run >> RUN_BITS) + (run & RUN_MASK) - 1]["weight"]
    return sink


@inlined
def forget_weights(rows, waiting_rows, listing):
    """Clear the listing for the next group."""
    for row in waiting_rows:
        for entry in range(rows.indptr[row], rows.indptr[row + 1]):
            listing.wanted[listing.known[entry]] = False
            listing.run[listing.known[entry]] = 0


@inlined
def find_first(values, low, high, wanted):
    """Return the index of the first of the sorted values ``low:high`` that is at least ``wanted``."""
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def find_near(values, low, high, wanted):
    """Return the same as :func:`find_first`, faster if the result is close to ``low``."""
    step = 1
    while low + step < high and values[low + step] < wanted:
        low += step
        step *= 2
    return find_first(values, low, min(high, low + step), wanted)


@dataclass(frozen=True)
class WideRecord(ExpertRecord):
    """The wide expert."""

    def empty(self, sizes: Mapping[str, int]) -> WideExpert:
        """Return an expert without weights."""
        return WideExpert.none(sizes["features"], sizes["neurons"], sizes["rows"])

    def schema(self, arrays: Arrays) -> Schema:
        """Return the schema of its arrays."""
        return {
            "wide.known_as": indices("features", below="features"),
            "wide.slot_offsets": offsets("neurons", "entries"),
            "wide.feature": indices("entries", below="features"),
            "wide.weight_offsets": offsets("entries", "weights", filled=True),
            "wide.row": indices("weights", below="rows"),
            "wide.weight": floats("weights"),
            "wide.bias": floats("rows"),
        }

    def write(self, expert: WideExpert) -> dict[str, NDArray[Any]]:
        """Return an expert as named arrays."""
        wide = expert._asdict()
        weights = wide.pop("weights")
        wide |= {name: np.ascontiguousarray(weights[name]) for name in ("row", "weight")}
        return {f"wide.{_FILE_NAMES.get(name, name)}": narrowest(array) for name, array in wide.items()}

    def read(self, arrays: Arrays) -> WideExpert:
        """Return the expert of named arrays."""
        weights = np.empty(len(arrays["wide.weight"]), WEIGHT)
        for name in ("row", "weight"):
            weights[name] = arrays[f"wide.{name}"]
        return WideExpert(
            np.array(arrays["wide.known_as"], np.int32),  # indices are copied, as a mapped file may change
            np.array(arrays["wide.slot_offsets"], np.int64),
            np.array(arrays["wide.feature"], np.int32),
            np.array(arrays["wide.weight_offsets"], np.int64),
            weights,
            np.ascontiguousarray(arrays["wide.bias"], np.float32),
        )

    def check(self, expert: WideExpert, groups: Groups) -> None:
        """Raise HiNetError unless the entries of a group are sorted by feature, with weights of its own rows."""
        feature, entry_offsets, entries = expert.feature, expert.entry_offsets, len(expert.feature)
        if not entries:
            return
        if int(feature.max()) > int(expert.feature_rank.max()):
            raise HiNetError("the array 'wide.feature' has numbers that are not in 'wide.known_as'")
        falls = feature[1:] <= feature[:-1]
        starts = entry_offsets[(entry_offsets > 0) & (entry_offsets < entries)]
        falls[starts - 1] = False
        if falls.any():
            raise HiNetError(f"the array 'wide.feature' is not ascending after index {int(np.argmax(falls)):,}")
        group = np.repeat(np.arange(len(groups.first_row) - 1), np.diff(entry_offsets))
        low, high = groups.first_row[group], groups.first_row[group + 1]
        begins, row = expert.weight_offsets[:-1], expert.weights["row"]
        outside = (np.minimum.reduceat(row, begins) < low) | (np.maximum.reduceat(row, begins) >= high)
        outside |= np.diff(expert.weight_offsets) > high - low
        if outside.any():
            raise HiNetError(f"the array 'wide.row' has rows of another group in entry {int(np.argmax(outside)):,}")

    def transfer(self, expert: WideExpert, transfer: Transfer) -> WideExpert:
        """Return the weights of the output rows that still exist."""
        rows = transfer.rows
        feature = np.repeat(expert.feature, np.diff(expert.weight_offsets)).astype(np.int64)
        kept = np.flatnonzero(rows.rows >= 0)
        picked, lengths = gather(*group_by(expert.weights["row"], transfer.old_groups.rows), rows.rows[kept])
        row, weight = np.repeat(kept, lengths), expert.weights["weight"][picked]
        bias = rows.transfer(expert.bias, NEW_OPTION_BIAS)
        return WideExpert.of(expert.feature_rank, feature[picked], row, weight, rows.groups, bias)

    def contributions(
        self, expert: WideExpert, row: RowFeatures, neuron: int, groups: Groups, spans: LabelSpans
    ) -> Parts:
        """Return the parts of logits: the weight of each feature times its value."""
        low, high = groups.first_row[neuron : neuron + 2].tolist()
        parts = np.zeros((high - low, len(row.feature)))
        begin, end = expert.entry_offsets[neuron : neuron + 2].tolist()
        rank = expert.feature_rank[row.feature]
        entries = begin + np.searchsorted(expert.feature[begin:end], rank)
        for column, entry in enumerate(entries.tolist()):
            if entry < end and expert.feature[entry] == rank[column]:
                weights = expert.weights[expert.weight_offsets[entry] : expert.weight_offsets[entry + 1]]
                parts[weights["row"] - low, column] = row.value[column] * weights["weight"]
        return Parts(parts, expert.bias[low:high].astype(np.float64))


WIDE_RECORD = WideRecord(
    "wide",
    "rows",
    key="wide.weight",
    training="hinet.engine.training.wide:WideTraining",
    half=("wide.weight",),
)
