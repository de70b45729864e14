"""Titles of labels as hidden units: the vector of a text is compared with those of titles, whatever rows were learned.

A text whose words no training row has is then still nearer to some options than to others. The units are linear, read
dense columns alone, and are a member of the deep expert that is not trained. Training that goes on from a model trains
them with the others.
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

COSINE_WEIGHT = 5.0  # of a cosine of 1 in the logits of the deep expert; see the log
MOST_UNITS = 64
MOST_VALUES = 1 << 27  # neurons times columns; of more, titles are rows alone
ARRAYS = 4  # of so many values that are in memory at a time


class TitleColumns(NamedTuple):
    """The dense columns of titles, and the node of each; titles that are training rows too are the last of these."""

    columns: Floats  # (titles, d)
    nodes: NDArray[np.int64]  # (titles,)

    def memory(self, layers: Layers) -> int:
        """Return the bytes that it takes to make units of them."""
        values = len(layers.node) * self.columns.shape[1]
        return ARRAYS * 4 * values if values <= MOST_VALUES else 0


def title_units(titles: TitleColumns, layers: Layers, features: int, usual_length: float) -> DeepExpert | None:
    """Return a member of the deep expert for rows with so many features, dense columns last; None if it knows nothing.

    The logit of an option is a multiple of the cosine of the row, taken to have the usual length, with the titles below
    the option, less the mean of its group, in the directions in which options differ most.
    """
    if not usual_length > 0 or not titles.memory(layers):
        return None
    groups = Groups.of(layers)
    with threadpool_limits(1):  # sums in another order would give another model
        vectors = _centred_in_groups(_option_vectors(titles, layers, groups), groups)
        spread, directions = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
        kept = directions[:, ::-1][:, :MOST_UNITS][:, spread[::-1][:MOST_UNITS] > 1e-6].astype(np.float32)  # (d, units)
        weight = np.float32(COSINE_WEIGHT / usual_length) * (vectors @ kept)
    units = kept.shape[1]
    if not units:
        return None
    embedding = np.zeros((features, units), np.float32)
    embedding[features - len(kept) :] = kept
    outputs = np.zeros(len(weight), np.float32)
    return DeepExpert.of(embedding, np.zeros(units, np.float32), weight, outputs, np.ones(units, np.float32))


def _option_vectors(titles: TitleColumns, layers: Layers, groups: Groups) -> Floats:
    """Return the mean direction of the titles of all labels below each option that owns a row of weights."""
    of_node = np.zeros((len(layers.taxonomy), titles.columns.shape[1]), np.float32)
    np.add.at(of_node, titles.nodes, unit_rows(titles.columns))
    below = unit_rows(of_node)[layers.node] * layers.ends[:, None]  # (neurons, d) at first of each label alone
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
    """Return how each option differs from the mean of its group; one without titles does not."""
    titled = np.asarray(vectors.any(1))
    starts = np.unique(groups.first_row[:-1][np.diff(groups.first_row) > 0])
    sizes = np.diff(np.append(starts, len(vectors)))
    means = np.add.reduceat(vectors, starts, axis=0)  # options without titles are zeros
    means /= np.maximum(np.add.reduceat(titled, starts, dtype=np.int64), 1)[:, None]
    centred: Floats = (vectors - np.repeat(means, sizes, axis=0)) * titled[:, None]
    return centred
