"""Titles of labels as hidden units, which compare the vector of a text with those of titles.

A text with only unknown words is then still closer to some options than to others. The units are linear and read dense
columns only. They are a member of the deep expert that is not trained, except when a model is trained further.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hinet.data.matrices import unit_rows
from hinet.engine.model.experts import DeepExpert, Floats
from hinet.engine.model.groups import Groups
from hinet.taxonomy import STOP, Layers

COSINE_WEIGHT = 5.0  # logit of a cosine of 1; see docs/log.md
MAX_UNITS = 64
MAX_VALUES = 1 << 27  # neurons times columns; with more, titles are only training rows
ARRAYS = 4  # arrays of that size in memory at a time


class TitleColumns(NamedTuple):
    """Dense columns and nodes of titles; titles that are also training rows are the last of these."""

    columns: Floats  # (titles, d), without columns if rows have no dense ones
    nodes: NDArray[np.int64]  # (titles,)

    def memory(self, layers: Layers) -> int:
        """Return the bytes needed to compute the units."""
        values = len(layers.node) * self.columns.shape[1]
        return ARRAYS * 4 * values if values <= MAX_VALUES else 0


def title_units(titles: TitleColumns, layers: Layers, features: int, usual_length: float) -> DeepExpert | None:
    """Return an untrained member of the deep expert, or None if titles do not distinguish options.

    The logit of an option is a multiple of the cosine between a row of the usual length and the titles below the
    option, minus the mean of its group, in the directions in which options differ most. Dense columns are the last
    features.
    """
    if not usual_length > 0 or not titles.memory(layers):
        return None
    groups = Groups.of(layers)
    with threadpool_limits(1):  # another order of sums would change the model
        vectors = _centred_in_groups(_option_vectors(titles, layers, groups), groups)
        spread, directions = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
        kept = directions[:, ::-1][:, :MAX_UNITS][:, spread[::-1][:MAX_UNITS] > 1e-6].astype(np.float32)  # (d, units)
        weight = np.float32(COSINE_WEIGHT / usual_length) * (vectors @ kept)
    units = kept.shape[1]
    if not units:
        return None
    embedding = np.zeros((features, units), np.float32)
    embedding[features - len(kept) :] = kept
    outputs = np.zeros(len(weight), np.float32)
    return DeepExpert.of(embedding, np.zeros(units, np.float32), weight, outputs, np.ones(units, np.float32))


def _option_vectors(titles: TitleColumns, layers: Layers, groups: Groups) -> Floats:
    """Return the mean direction of the titles of all labels below each option with siblings."""
    of_node = np.zeros((len(layers.taxonomy), titles.columns.shape[1]), np.float32)
    np.add.at(of_node, titles.nodes, unit_rows(titles.columns))
    below = unit_rows(of_node)[layers.node] * layers.ends[:, None]  # (neurons, d) at first only of each label
    child = groups.option_neuron[groups.row_options()]
    vectors = np.empty((len(child), below.shape[1]), np.float32)
    stops = child == STOP
    vectors[stops] = below[groups.row_groups()[stops]]
    for above in range(layers.height - 1, -1, -1):
        start, end = layers.option_offsets[layers.layer_offsets[above : above + 2]].tolist()
        target = layers.option_neuron[start:end]
        real = target != STOP
        np.add.at(below, layers.option_parent[start:end][real], below[target[real]])
    vectors[~stops] = below[child[~stops]]
    return unit_rows(vectors)


def _centred_in_groups(vectors: Floats, groups: Groups) -> Floats:
    """Return the difference of each option from the mean of its group, zero for options without titles."""
    titled = np.asarray(vectors.any(1))
    starts = np.unique(groups.first_row[:-1][np.diff(groups.first_row) > 0])
    sizes = np.diff(np.append(starts, len(vectors)))
    means = np.add.reduceat(vectors, starts, axis=0)  # options without titles are zero
    means /= np.maximum(np.add.reduceat(titled, starts, dtype=np.int64), 1)[:, None]
    centred: Floats = (vectors - np.repeat(means, sizes, axis=0)) * titled[:, None]
    return centred
