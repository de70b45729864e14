"""The memory of the neighbours: vectors of training rows, and of the titles, synonyms and definitions of labels."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hinet.data.matrices import unit_rows
from hinet.engine.model.experts import Memory
from hinet.engine.model.experts.neighbours import FEW_ROWS_GROWTH, GROWTH, MAX_WIDTH, PRIVATE_GROWTH
from hinet.engine.model.experts.record import Floats
from hinet.engine.model.groups import LabelPaths
from hinet.engine.settings import FEW_ROWS, MemoryPlan
from hinet.engine.training.jobs import ExpertTraining
from hinet.engine.training.rows import TrainingContext, TrainingRows
from hinet.engine.training.title_units import TitleColumns

CLUSTERING_STEPS = 4


class TextVectors(NamedTuple):
    """Vectors of titles, and where those of rows are."""

    width: int  # the last dense columns of rows are the vectors of their texts
    titles: TitleColumns | None = None  # titles, synonyms and definitions of labels
    title_rows: int = 0  # number of last rows that are titles
    words: int = 0  # number of first columns of rows that are word n-grams, or n-grams of characters without words
    private: bool = False  # whether only neighbours read them


def memory_of(
    rows: TrainingRows, vectors: TextVectors | None, paths: LabelPaths, entries_per_label: int, room: int | None = None
) -> Memory:
    """Return the memory of rows and titles, with at most ``entries_per_label`` rows for each label.

    With ``room``, the maximum number of bytes, there are fewer rows for each label if necessary.
    """
    layers = rows.targets.layers
    if vectors is None or not len(paths.node) or not 0 < vectors.width <= MAX_WIDTH:
        nothing = Memory.none()
        if vectors is None or not vectors.private:
            return nothing
        return nothing._replace(vector=np.zeros((0, vectors.width), np.int8)).as_private()
    arrays, dense = rows.targets.arrays, rows.matrix.dense
    title_rows = vectors.title_rows if rows.spill is None else 0  # titles of a stream are anywhere
    count = len(dense) - title_rows
    labels_of_row = np.diff(arrays.row_offsets)
    row = np.repeat(np.arange(len(dense)), labels_of_row)
    own = (row < count) & (labels_of_row[row] == 1)  # the title of a branch does not tell its labels apart
    label = paths.labels_of(layers.node[arrays.end_neurons()])[arrays.entry_target[own]]
    columns = dense[:, dense.shape[1] - vectors.width :]
    if room is not None:
        titles = 0 if vectors.titles is None else len(vectors.titles.nodes)
        entries_per_label = _limit_for(np.bincount(label), room // vectors.width - titles, entries_per_label)
    kept = medoids(columns, row[own], label, entries_per_label) if entries_per_label else np.zeros(0, np.int64)
    memory = Memory.of(columns[row[own][kept]], label[kept], row[own][kept])
    if vectors.titles is not None and len(vectors.titles.nodes):
        of_title = paths.labels_of(vectors.titles.nodes)
        known = np.flatnonzero(of_title >= 0)
        memory = memory.joined(Memory.of(vectors.titles.columns[known], of_title[known], count + known))
    many = PRIVATE_GROWTH if vectors.private else GROWTH
    memory = memory.with_growth(FEW_ROWS_GROWTH if count < FEW_ROWS else many)
    return memory.as_private() if vectors.private else memory


def _limit_for(counts: NDArray[np.int64], entries: int, most: int) -> int:
    """Return the maximum number of rows per label, up to ``most``, with which labels have at most ``entries``."""
    return next((limit for limit in range(most, 0, -1) if np.minimum(counts, limit).sum() <= entries), 0)


def medoids(columns: Floats, row: NDArray[np.int64], label: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Return the entries to keep: of a label with more than ``limit`` rows, those in the middle of as many clusters."""
    order = np.argsort(label, kind="stable")
    bounds = np.append(np.unique(label[order], return_index=True)[1], len(order))
    kept = []
    with threadpool_limits(1):  # another order of sums would change the model
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            entries = order[start:end]
            if len(entries) > limit:
                entries = entries[_central(unit_rows(columns[row[entries]]), limit)]
            kept.append(entries)
    return np.sort(np.concatenate(kept)) if kept else np.zeros(0, np.int64)


def _central(vectors: Floats, count: int) -> NDArray[np.int64]:
    """Return the vectors nearest to the centres of clusters, which start from evenly spaced vectors."""
    centres = vectors[np.linspace(0, len(vectors) - 1, count).astype(np.int64)]
    for _ in range(CLUSTERING_STEPS):
        cluster = (vectors @ centres.T).argmax(1)
        sums = np.zeros_like(centres)
        np.add.at(sums, cluster, vectors)
        centres = np.where(sums.any(1, keepdims=True), unit_rows(sums), centres)
    return np.unique((vectors @ centres.T).argmax(0))


class NeighbourTraining(ExpertTraining):
    """The training of the neighbours, which only remember."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    @classmethod
    def of(cls, context: TrainingContext) -> Self | None:
        """Return the training, or None if rows have no vectors."""
        return cls(context.memory) if context.memory.vector.shape[1] else None

    def memory(self) -> MemoryPlan:
        """Return the memory that the vectors take."""
        return MemoryPlan(0, 0, 0, sum(array.nbytes for array in self._memory))

    def trained(self) -> Any:
        """Return the memory."""
        return self._memory
