"""Experts that remember rows: neighbours and prototypes.

The memory of the neighbours has vectors of training rows, and of the titles, synonyms and definitions of labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hinet.data.matrices import SparseMatrix, unit_rows
from hinet.engine.model.experts import LabelWeights, Memory
from hinet.engine.model.experts.neighbours import FEW_ROWS_GROWTH, GROWTH, MAX_WIDTH, PRIVATE_GROWTH
from hinet.engine.model.experts.record import Floats
from hinet.engine.model.groups import LabelPaths, LabelSpans, Targets
from hinet.engine.settings import FEW_ROWS, MAX_FLAT_LABELS, MemoryPlan
from hinet.engine.training.rows import ExpertTraining, TitleColumns, TrainingRows

CLUSTERING_STEPS = 4
TEMPERATURES = (20.0, 40.0)  # lengths of prototypes that are tried


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

    def memory(self) -> MemoryPlan:
        """Return the memory that the vectors take."""
        return MemoryPlan(0, 0, 0, sum(array.nbytes for array in self.context.memory))

    def trained(self) -> Memory:
        """Return the memory."""
        return self.context.memory


class PrototypeTraining(ExpertTraining):
    """The training of prototypes, the mean rows of labels, which are used if validation rows gain by them."""

    def trained(self) -> LabelWeights:
        """Return the prototypes of the model that is trained further; otherwise none, as they are candidates."""
        start = self.context.start
        return LabelWeights.none(self.context.features) if start is None else start.experts.prototypes

    def candidates(self) -> Mapping[float, Callable[[], LabelWeights]]:
        """Return prototypes by length if labels are few, as all of them are scored."""
        context = self.context
        if not 0 < len(context.spans.neuron) <= MAX_FLAT_LABELS or context.layers.multilabel:
            return {}
        make = partial(prototypes, context.data.rows, context.features, context.targets, context.spans)
        return {temperature: partial(make, temperature) for temperature in TEMPERATURES}


def prototypes(
    rows: SparseMatrix, features: int, targets: Targets, spans: LabelSpans, temperature: float
) -> LabelWeights:
    """Return the mean row of each label, scaled to length ``temperature``."""
    by_target = sum_by_target(rows, features, targets, values=True)
    label = spans.labels_at(targets.arrays.end_neurons())  # (targets,)
    members = np.ones(len(label), np.float32), (label, np.arange(len(label)))
    by_label = (sp.csr_array(members, shape=(len(spans.neuron), len(label))) @ by_target).tocsr()
    row = np.repeat(np.arange(by_label.shape[0]), np.diff(by_label.indptr))
    length = np.sqrt(np.bincount(row, by_label.data**2, by_label.shape[0]))
    scale = temperature / np.maximum(length, 1e-12)
    by_label.data *= scale[row].astype(np.float32)
    by_feature = by_label.T.tocsr()
    by_feature.sort_indices()
    return LabelWeights(by_feature.indptr.astype(np.int64), by_feature.indices.astype(np.int32), by_feature.data)


def sum_by_target(rows: SparseMatrix, features: int, targets: Targets, *, values: bool = False) -> sp.csr_array:
    """Return the weighted sum of the rows of each target; without ``values``, the number of rows per feature."""
    arrays = targets.arrays
    row_of_entry = np.repeat(np.arange(len(targets)), np.diff(arrays.row_offsets))
    data, share = (rows.data, arrays.entry_share) if values else map(np.ones_like, (rows.data, arrays.entry_share))
    shape = len(arrays.step_offsets) - 1, len(targets)
    members = sp.csr_array((share, (arrays.entry_target, row_of_entry)), shape=shape)
    return (members @ sp.csr_array((data, rows.indices, rows.indptr), shape=(len(targets), features))).tocsr()
