"""Metrics of predicted traces against true ones, as pure functions; trees and DAGs, one or several labels a row.

A prediction is the first trace of its row. Truth may hold several labels, any of which is right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.errors import LabelError
from hinet.ragged import Ints, gather


def accuracy(truth: Traces, predicted: Traces) -> float:
    """Return the share of rows whose predicted label is among the true ones.

    >>> from hinet import Layers, Taxonomy
    >>> layers = Layers.of(Taxonomy.from_paths([("A", "x"), ("A", "y")], steps="ids"))
    >>> accuracy(Traces.encode(layers, ["x", "y"]), Traces.encode(layers, ["x", "x"]))
    0.5
    """
    nodes = _predicted_nodes(truth, predicted)
    rows = _trace_rows(truth)
    hit = np.zeros(len(truth), bool)
    hit[rows[truth.end_nodes == nodes[rows]]] = True
    return float(hit.mean()) if len(hit) else 0.0


def hierarchical_f1(truth: Traces, predicted: Traces) -> float:
    """Return the micro-averaged F1 of the sets of labels with all their ancestors, the root left out.

    >>> from hinet import Layers, Taxonomy
    >>> layers = Layers.of(Taxonomy.from_paths([("r", "A", "x"), ("r", "A", "y")], steps="ids"))
    >>> hierarchical_f1(Traces.encode(layers, ["x", "y"]), Traces.encode(layers, ["x", "x"]))
    0.75
    """
    true = _ancestor_pairs(truth, _trace_rows(truth), truth.end_nodes)
    nodes = _predicted_nodes(truth, predicted)
    guessed = _ancestor_pairs(truth, np.arange(len(truth)), nodes)
    common = len(np.intersect1d(true, guessed, assume_unique=True))
    total = len(true) + len(guessed)
    return 2 * common / total if total else 1.0


def level_accuracy(truth: Traces, predicted: Traces) -> list[float]:
    """Return for each level the share of the rows with a true node there whose predicted node is one of them."""
    first = _first_traces(truth, predicted)
    rows = _trace_rows(truth)
    true_lengths, lengths = np.diff(truth.offsets), np.diff(predicted.offsets)[first]
    shares = []
    for level in range(truth.layers.height):
        traces = np.flatnonzero(true_lengths > level)
        if not len(traces):
            break
        there = traces[lengths[rows[traces]] > level]
        guessed = predicted.neurons[predicted.offsets[first[rows[there]]] + level]
        hit = np.zeros(len(truth), bool)
        hit[rows[there][guessed == truth.neurons[truth.offsets[there] + level]]] = True
        shares.append(float(hit.sum() / len(np.unique(rows[traces]))))
    return shares


def _trace_rows(traces: Traces) -> NDArray[np.int64]:
    return np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))


def _first_traces(truth: Traces, predicted: Traces) -> NDArray[np.int64]:
    if len(truth) != len(predicted):
        raise LabelError(f"{len(truth):,} true rows and {len(predicted):,} predicted ones; they must be the same rows")
    empty = np.flatnonzero(np.diff(predicted.row_offsets) == 0)
    if len(empty):
        raise LabelError(f"row {int(empty[0])}: nothing is predicted")
    return predicted.row_offsets[:-1]


def _predicted_nodes(truth: Traces, predicted: Traces) -> NDArray[np.int32]:
    return predicted.end_nodes[_first_traces(truth, predicted)]


def _ancestor_pairs(traces: Traces, rows: Ints, nodes: Ints) -> NDArray[np.int64]:
    """Return the distinct (row, ancestor) pairs of the nodes of rows, each as one number."""
    taxonomy = traces.layers.taxonomy
    distinct, inverse = np.unique(nodes, return_inverse=True)
    ancestors, counts = gather(*taxonomy.ancestor_lists(distinct), inverse)
    return np.unique(np.repeat(rows, counts) * np.int64(len(taxonomy)) + ancestors)
