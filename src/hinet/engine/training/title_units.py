"""Titles of labels as hidden units: the vector of a text is compared with those of titles, whatever rows were learned.

A text whose words no training row has is then still nearer to some options than to others. Units are linear, read dense
columns alone and are not trained: they are a member of the deep expert beside those that are.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hinet.engine.model.experts import DeepExpert, Floats
from hinet.engine.model.groups import Groups
from hinet.taxonomy import STOP, Layers

WEIGHT = 5.0  # of a cosine of 1 in the logits of the deep expert; chosen on held-out rows of NAICS and ICD-10-CM
MOST_UNITS = 64


class TitleColumns(NamedTuple):
    """The dense columns of titles, as rows have them, and the node of each title."""

    columns: Floats  # (titles, d)
    nodes: NDArray[np.int64]  # (titles,)


def title_units(titles: TitleColumns, layers: Layers, features: int, usual_length: float) -> DeepExpert | None:
    """Return a member of the deep expert for rows with so many features, dense columns last; None if all look alike.

    The logit of an option is the cosine of the row, taken to have the usual length, with the titles below it.
    """
    with threadpool_limits(1):  # sums in another order would give another model
        vectors = _apart(_option_vectors(titles, layers), Groups.of(layers))
        spread, directions = np.linalg.eigh(vectors.T @ vectors)
        kept = directions[:, ::-1][:, :MOST_UNITS][:, spread[::-1][:MOST_UNITS] > 1e-6]  # (d, units)
        weight = WEIGHT / usual_length * (vectors @ kept)
    if not kept.shape[1] or not usual_length > 0:
        return None
    units = kept.shape[1]
    embedding = np.zeros((features, units), np.float32)
    embedding[features - len(kept) :] = kept
    outputs = np.zeros(len(weight), np.float32)
    return DeepExpert.of(
        embedding, np.zeros(units, np.float32), weight.astype(np.float32), outputs, np.ones(units, np.float32)
    )


def _option_vectors(titles: TitleColumns, layers: Layers) -> NDArray[np.float64]:
    """Return the mean direction of the titles of all labels below each option that owns a row of weights."""
    of_node = np.zeros((len(layers.taxonomy), titles.columns.shape[1]))
    np.add.at(of_node, titles.nodes, _unit(titles.columns.astype(np.float64)))
    own = _unit(of_node)[layers.node] * layers.ends[:, None]  # (neurons, d)
    below, groups = own.copy(), Groups.of(layers)
    for above in range(layers.height - 1, -1, -1):
        start, end = layers.option_offsets[layers.layer_offsets[above : above + 2]].tolist()
        child = layers.option_neuron[start:end]
        real = child != STOP
        np.add.at(below, layers.option_parent[start:end][real], below[child[real]])
    child = groups.option_neuron[groups.row_options()]
    return _unit(np.where((child == STOP)[:, None], own[groups.row_groups()], below[child]))


def _apart(vectors: NDArray[np.float64], groups: Groups) -> NDArray[np.float64]:
    """Return how each option differs from the mean of its group; one without titles does not."""
    titled, group = np.asarray(vectors.any(1)), groups.row_groups()
    count = len(groups.first_row) - 1
    means = np.zeros((count, vectors.shape[1]))
    np.add.at(means, group, vectors)
    means /= np.maximum(np.bincount(group, titled, count), 1)[:, None]
    return (vectors - means[group]) * titled[:, None]


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vectors of length 1; zeros stay."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(length > 0, length, 1)
