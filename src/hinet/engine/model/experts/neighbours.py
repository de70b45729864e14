"""Neighbours: a memory of the vectors of training rows and titles, with which the vector of a row is compared.

The score of a label is the greatest cosine to one of its entries, that of an option the greatest of the labels below
it. Only the nearest labels of a row count; all others score as the farthest of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts.record import Arrays, ExpertRecord, Floats, Parts, RowFeatures
from hinet.engine.model.experts.wide import find_first
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.transfer import Transfer
from hinet.errors import HiNetError
from hinet.files import narrowest
from hinet.files.schema import ArraySpec, Schema, bytes_of, floats, indices

F4 = np.float32
NEAREST = 32  # labels that score for a row
COSINE_WEIGHT = 20.0  # logit of a cosine of 1, before it is mixed
FEW_ROWS_GROWTH, GROWTH, GROWTH_POWER = 5.0, 10.0, 3  # neighbours count 1 + growth * u ** 3 times, see Memory.factor
MAX_GROWTH = 100.0
MAX_SLOTS = 32  # entries of a label that are compared together with those of other labels
BLOCK_ROWS, BLOCK_ENTRIES = 512, 8_192  # rows and entries compared at a time
COMPARED_FROM, PRIVATE_GROWTH, PRIVATE_POWER = 0.25, 20.0, 2  # the same where only neighbours read vectors
CORRECTION_BOOST, BOOST_FROM = 1.5, 0.6  # what a correction adds to a cosine of 1, and the cosine at which it begins
MAX_ROW = np.iinfo(np.int32).max
MAX_BOOST = 100.0
TIE = 1e-5  # difference of cosines up to which a correction counts before a training row
MAX_WIDTH = 1_024  # sums of more products of 8-bit numbers may not be exact in single precision


class Memory(NamedTuple):
    """Vectors of texts in 8 bits with the label of each, sorted by label."""

    vector: NDArray[np.int8]  # (entries, d)
    label: NDArray[np.int32]  # (entries,)
    row: NDArray[np.int32]  # (entries,) number of the training row; those of titles and later rows come after these
    boost: Floats  # (entries,) what an entry adds to a cosine of 1; more than 0 for corrections
    growth: Floats = np.full(1, GROWTH, F4)  # (1,) how much more neighbours count for a text without known words
    private: NDArray[np.uint8] = np.zeros(1, np.uint8)  # (1,) whether no other expert reads the vectors

    @classmethod
    def none(cls) -> Memory:
        """Return an empty memory."""
        numbers = np.zeros(0, np.int32)
        return cls(np.zeros((0, 0), np.int8), numbers, numbers, np.zeros(0, F4))

    @classmethod
    def of(cls, vectors: Floats, label: NDArray[Any], row: NDArray[Any], boost: float = 0.0) -> Memory:
        """Return the memory of vectors, without those that are zero."""
        kept = np.flatnonzero(vectors.any(1))
        kept = kept[np.lexsort((row[kept], label[kept]))]
        boosts = np.full(len(kept), boost, F4)
        return cls(quantised(vectors[kept]), label[kept].astype(np.int32), row[kept].astype(np.int32), boosts)

    def joined(self, other: Memory) -> Memory:
        """Return the entries of both memories."""
        if not len(self.label):
            return other._replace(growth=self.growth, private=self.private)
        both = Memory(
            np.concatenate([self.vector, other.vector]),
            np.append(self.label, other.label),
            np.append(self.row, other.row),
            np.append(self.boost, other.boost),
        )
        return both._replace(growth=self.growth, private=self.private).take(np.lexsort((both.row, both.label)))

    def with_corrections(self, corrections: Memory) -> Memory:
        """Return the entries with corrections; of several corrections of the same text the last one counts."""
        both = self.joined(corrections)
        boosted = np.flatnonzero(both.boost)
        last = {both.vector[entry].tobytes(): entry for entry in boosted[np.argsort(both.row[boosted])].tolist()}
        replaced = np.setdiff1d(boosted, np.array([*last.values()], np.int64))
        return both.take(np.setdiff1d(np.arange(len(both.label)), replaced))

    def take(self, entries: NDArray[np.int64]) -> Memory:
        """Return the chosen entries."""
        own = self.vector[entries], self.label[entries], self.row[entries], self.boost[entries]
        return Memory(*own, self.growth, self.private)

    def with_growth(self, growth: float) -> Memory:
        """Return the same entries with another growth of their weight."""
        return self._replace(growth=np.full(1, growth, F4))

    def as_private(self) -> Memory:
        """Return the same entries as those of a model whose other experts do not read the vectors."""
        return self._replace(private=np.ones(1, np.uint8))

    @property
    def private_columns(self) -> int:
        """Number of last columns of a row that no other expert reads."""
        return self.vector.shape[1] if self.private[0] else 0

    def factor(self, unknown: NDArray[Any]) -> Floats:
        """Return how much neighbours count for texts, given their shares of unknown n-grams.

        If no other expert reads the vectors, texts of mostly known words are not compared.
        """
        if self.private[0]:
            private: Floats = self.growth * unknown.astype(F4) ** PRIVATE_POWER
            return np.where(unknown < COMPARED_FROM, F4(0), private)
        factor: Floats = 1 + self.growth * unknown.astype(F4) ** GROWTH_POWER
        return factor


def quantised(vectors: Floats) -> NDArray[np.int8]:
    """Return vectors in 8 bits, each scaled to the whole range."""
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
    return np.rint(vectors * (127 / np.maximum(largest, F4(1e-30)))).astype(np.int8)


def with_nearest(rows: SparseMatrix, columns: int, memory: Memory, unknown: NDArray[Any] | None = None) -> SparseMatrix:
    """Return rows of ``columns`` features with their nearest labels.

    ``unknown`` has the share of unknown n-grams of each row.
    """
    entries, width = memory.vector.shape
    if not entries:
        return rows
    vectors = vectors_of(rows, columns, width)
    factor = memory.factor(np.zeros(rows.row_count, F4) if unknown is None else unknown)
    corrections = memory.take(np.flatnonzero(memory.boost))
    if memory.private[0] and len(corrections.label):
        factor += near_any(vectors, corrections)
    compared = np.flatnonzero(factor)
    if not len(compared):
        return rows
    label, score = nearest_labels(vectors[compared], memory)
    score *= factor[compared, None]
    if len(compared) < rows.row_count:
        label, score = (scattered(part, compared, rows.row_count) for part in (label, score))
    return rows._replace(near_label=label, near_score=score)


def scattered(part: NDArray[Any], rows: NDArray[np.int64], count: int) -> NDArray[Any]:
    """Return values of some of ``count`` rows, with zeros for the others."""
    values = np.zeros((count, part.shape[1]), part.dtype)
    values[rows] = part
    return values


def near_any(vectors: Floats, corrections: Memory) -> NDArray[np.bool_]:
    """Return whether vectors are so near to a correction that it counts."""
    return nearest_cosines(vectors, corrections) > BOOST_FROM


def _blocks(vectors: Floats) -> Iterator[slice]:
    """Yield the blocks of vectors that are compared at a time."""
    yield from (slice(start, start + BLOCK_ROWS) for start in range(0, len(vectors), BLOCK_ROWS))


def vectors_of(rows: SparseMatrix, columns: int, width: int) -> Floats:
    """Return the vectors of texts: the last ``width`` of all ``columns`` features, dense or, in kept rows, sparse."""
    dense = rows.dense.shape[1]
    if width <= dense:
        return rows.dense[:, dense - width :]
    if dense or width > columns:
        raise HiNetError(f"the neighbours have {width} columns, the rows {dense or columns}; the model is damaged")
    vectors = np.zeros((rows.row_count, width), F4)
    own = rows.indices >= columns - width
    row = np.repeat(np.arange(rows.row_count), np.diff(rows.indptr))
    vectors[row[own], rows.indices[own] - (columns - width)] = rows.data[own]
    return vectors


def nearest_labels(vectors: Floats, memory: Memory) -> tuple[NDArray[np.int32], Floats]:
    """Return the nearest labels of vectors, (n, k), and their scores above that of all other labels."""
    slots = _Slots.of(memory.label)
    corrections = memory.take(np.flatnonzero(memory.boost))
    of_corrections = np.argsort(slots.label)[np.searchsorted(np.sort(slots.label), corrections.label)]
    k = min(NEAREST, len(slots.label))
    nearest, score = np.empty((len(vectors), k), np.int32), np.empty((len(vectors), k), F4)
    for block in _blocks(vectors):
        queries = quantised(vectors[block]).astype(F4)
        cosine = _label_cosines(queries, memory, slots)
        if len(corrections.label):
            _add_corrections(queries, corrections, of_corrections, cosine)
        chosen = np.argpartition(cosine, len(slots.label) - k, axis=1)[:, len(slots.label) - k :]
        chosen = np.take_along_axis(chosen, slots.label[chosen].argsort(axis=1), axis=1)
        own = np.take_along_axis(cosine, chosen, axis=1)
        nearest[block], score[block] = slots.label[chosen], F4(COSINE_WEIGHT) * (own - own.min(axis=1, keepdims=True))
    return nearest, score


def _add_corrections(queries: Floats, corrections: Memory, column: NDArray[np.int64], cosine: Floats) -> None:
    """Add what corrections are worth to the cosines of their labels, (n, labels).

    A correction counts for the texts that are more like it than like any text of another label.
    """
    own = _cosines(queries, corrections.vector)
    first, rows = cosine.argmax(1), np.arange(len(cosine))
    best = cosine[rows, first]
    cosine[rows, first] = -1
    second = cosine.max(1)
    cosine[rows, first] = best
    near = np.maximum(own - F4(BOOST_FROM), 0) / F4(1 - BOOST_FROM)
    others = np.where(column == first[:, None], second[:, None], best[:, None])
    own += np.where(own >= others - F4(TIE), corrections.boost * near, 0)
    np.maximum.at(cosine.T, column, own.T)


def nearest_entries(vectors: Floats, memory: Memory, count: int) -> tuple[NDArray[np.int64], Floats]:
    """Return the entries that are most like one vector, (1, d), and their cosines."""
    query, starts = quantised(vectors).astype(F4), range(0, len(memory.label), BLOCK_ENTRIES)
    blocks = (_cosines(query, memory.vector[start : start + BLOCK_ENTRIES])[0] for start in starts)
    cosine = np.concatenate([np.zeros(0, F4), *blocks])
    best = np.argsort(-cosine, kind="stable")[:count]
    return best, cosine[best]


def nearest_cosines(vectors: Floats, memory: Memory) -> Floats:
    """Return the cosine of each vector and the entry that is most like it; there must be entries."""
    nearest = np.empty(len(vectors), F4)
    for rows in _blocks(vectors):
        nearest[rows] = _nearest_to(quantised(vectors[rows]).astype(F4), memory, 0, len(memory.label))
    return nearest


class _Slots(NamedTuple):
    """Entries of a memory by their number within their label, so that maxima by label are those of whole matrices."""

    label: NDArray[np.int32]  # (labels,) those with most entries first
    first: NDArray[np.int64]  # (labels,) the first entry of each
    count: NDArray[np.int64]  # (labels,) the number of entries of each
    sizes: list[int]  # (slots,) the number of labels with more than 0, 1, 2, … entries, up to MAX_SLOTS

    @classmethod
    def of(cls, label: NDArray[np.int32]) -> _Slots:
        """Return the slots of ascending labels."""
        first = np.flatnonzero(np.append(True, np.diff(label) != 0)[: len(label)])
        counts = np.diff(np.append(first, len(label)))
        order = np.argsort(-counts, kind="stable")
        more = np.bincount(counts)[::-1].cumsum()[::-1][1:]
        return cls(label[first[order]], first[order], counts[order], more[:MAX_SLOTS].tolist())


def _label_cosines(queries: Floats, memory: Memory, slots: _Slots) -> Floats:
    """Return the greatest cosine of each query and an entry of each label, (n, labels)."""
    cosine = np.full((len(queries), len(slots.label)), -1, F4)
    for slot, size in enumerate(slots.sizes):
        for start in range(0, size, BLOCK_ENTRIES):
            labels = slice(start, min(start + BLOCK_ENTRIES, size))
            own = _cosines(queries, memory.vector[slots.first[labels] + slot])
            np.maximum(cosine[:, labels], own, out=cosine[:, labels])
    for column in np.flatnonzero(slots.count > MAX_SLOTS).tolist():  # one slot after the other would be slow
        own = _nearest_to(queries, memory, slots.first[column] + MAX_SLOTS, slots.first[column] + slots.count[column])
        np.maximum(cosine[:, column], own, out=cosine[:, column])
    return cosine


def _nearest_to(queries: Floats, memory: Memory, first: int, last: int) -> Floats:
    """Return the cosine of each query and the entry from ``first`` to ``last`` that is most like it."""
    nearest = np.full(len(queries), -1, F4)
    for start in range(first, last, BLOCK_ENTRIES):
        cosine = _cosines(queries, memory.vector[start : min(start + BLOCK_ENTRIES, last)])
        np.maximum(nearest, cosine.max(1), out=nearest)
    return nearest


def _cosines(queries: Floats, entries: NDArray[np.int8]) -> Floats:
    """Return the cosines of queries and entries, (n, entries).

    The products are integers that single precision holds exactly, so that neither the order of sums nor other rows
    matter.
    """
    columns = entries.astype(F4)
    products: Floats = queries @ columns.T
    products /= np.sqrt(np.maximum(np.square(columns).sum(1), 1))
    products /= np.sqrt(np.maximum(np.square(queries).sum(1, keepdims=True), 1))
    return products


@inlined
def add_nearest(rows, row, neuron, groups, paths, weight, logits):
    """Add the greatest score of the nearest labels below each option."""
    start, end = groups.option_offsets[neuron], groups.option_offsets[neuron + 1]
    top = np.zeros(end - start, F4)
    for position in range(rows.near_label.shape[1]):
        label, score = rows.near_label[row, position], rows.near_score[row, position]
        if score <= 0:
            continue
        last = paths.offsets[label + 1]
        index = find_first(paths.option, paths.offsets[label], last, start)
        while index < last and paths.option[index] < end:
            option = paths.option[index] - start
            top[option] = max(top[option], score)
            index += 1
    for option in range(end - start):
        logits[option] += weight * top[option]


@dataclass(frozen=True)
class NeighbourRecord(ExpertRecord):
    """The neighbours."""

    def empty(self, sizes: Mapping[str, int]) -> Memory:
        """Return an empty memory."""
        return Memory.none()

    def is_empty(self, expert: Memory) -> bool:
        """Return whether there is no entry."""
        return not len(expert.label)

    def schema(self, arrays: Arrays) -> Schema:
        """Return the schema of its arrays."""
        return {
            "neighbours.vector": bytes_of("remembered", "vector_columns"),
            "neighbours.label": indices("remembered", below="remembered_labels"),
            "neighbours.row": ArraySpec(("remembered",), "iu", 0, MAX_ROW),
            "neighbours.boost": floats("remembered", low=0, high=MAX_BOOST, optional=True),
            "neighbours.growth": floats(1, low=0, high=MAX_GROWTH),
            "neighbours.private": ArraySpec((1,), "iu", 0, 1, optional=True),
        }

    def write(self, expert: Memory) -> dict[str, NDArray[Any]]:
        """Return a memory as named arrays; none if it is empty and rows have no columns for it."""
        if self.is_empty(expert) and not expert.private_columns:
            return {}
        label, row = map(narrowest, (expert.label, expert.row))
        arrays = {"neighbours.vector": expert.vector, "neighbours.label": label, "neighbours.row": row}
        arrays |= {"neighbours.growth": expert.growth}
        optional: dict[str, NDArray[Any]] = {"neighbours.boost": expert.boost, "neighbours.private": expert.private}
        return arrays | {name: array for name, array in optional.items() if array.any()}

    def read(self, arrays: Arrays) -> Memory:
        """Return the memory of named arrays."""
        label, row = (np.array(arrays[f"neighbours.{name}"], np.int32) for name in ("label", "row"))
        boost = np.array(arrays.get("neighbours.boost", np.zeros(len(label))), F4)
        growth = np.array(arrays["neighbours.growth"], F4)
        private = np.array(arrays.get("neighbours.private", np.zeros(1)), np.uint8)
        return Memory(np.array(arrays["neighbours.vector"], np.int8), label, row, boost, growth, private)

    def check(self, expert: Memory, groups: Groups) -> None:
        """Raise HiNetError if labels are not sorted or vectors are too wide."""
        if (np.diff(expert.label) < 0).any():
            raise HiNetError("the array 'neighbours.label' is not sorted")
        if expert.vector.shape[1] > MAX_WIDTH:
            raise HiNetError(f"the array 'neighbours.vector' has more than {MAX_WIDTH:,} columns")

    def transfer(self, expert: Memory, transfer: Transfer) -> Memory:
        """Return the entries of the labels that still exist."""
        label = transfer.remembered[expert.label].astype(np.int32)
        order = np.lexsort((expert.row, label))
        return expert._replace(label=label).take(order[label[order] >= 0])

    def contributions(self, expert: Memory, row: RowFeatures, neuron: int, groups: Groups, spans: LabelSpans) -> Parts:
        """Return the logits, shared among the columns of the vector by their squares: a text is compared as a whole."""
        logits = np.zeros(int(groups.option_offsets[neuron + 1] - groups.option_offsets[neuron]), F4)
        add_nearest(row.matrix, 0, neuron, groups, spans.paths, F4(1), logits)
        by_feature, squares = np.zeros((len(logits), len(row.feature))), row.value[-expert.vector.shape[1] :] ** 2
        by_feature[:, -len(squares) :] = logits[:, None] * (squares / max(float(squares.sum()), 1e-30))
        return Parts(by_feature, np.zeros(len(logits)))


NEIGHBOUR_RECORD = NeighbourRecord(
    "neighbours", "rows", key="neighbours.vector", training="hinet.engine.training.neighbours:NeighbourTraining"
)
