"""Labels of a DAG: a node is written by the most probable trace of the row that leads to it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.labels import NOTHING
from hinet.data import Traces
from hinet.ragged import offsets_of

TRACES_TRIED = (1, 16, 256)  # of a row, the best first; a node that none of them leads to is written by its first path


def decode_nodes(fitted: Fitted, rows: Any, nodes: NDArray[np.int64]) -> NDArray[Any]:
    """Return the predicted nodes of rows as labels."""
    codec = fitted.codec
    return codec.decode_traces(traces_to_nodes(fitted, rows, nodes)) if codec.by_path else codec.decode(nodes)


def traces_to_nodes(fitted: Fitted, rows: Any, nodes: NDArray[np.int64]) -> Traces:
    """Return for every row the most probable trace that leads to its node, cut off there; none for ``NOTHING``."""
    layers = fitted.codec.layers
    parts: dict[int, NDArray[np.int32]] = {}
    if layers.taxonomy.root >= 0:
        parts = {row: np.zeros(0, np.int32) for row in np.flatnonzero(nodes == layers.taxonomy.root).tolist()}
    left = np.flatnonzero((nodes != NOTHING) & (nodes != layers.taxonomy.root))
    for count in TRACES_TRIED:
        if not len(left):
            break
        traces = fitted.predictor.traces(rows[left], count).traces
        hits = _first_hits(traces, nodes[left])
        parts |= {int(left[index]): neurons for index, neurons in hits.items()}
        left = np.delete(left, list(hits))
    for row in left.tolist():
        path = [layers.taxonomy.ids[node] for node in fitted.codec.path_to(int(nodes[row]))]
        parts[row] = Traces.along(layers, [path]).neurons
    order = sorted(parts)
    counts = np.zeros(len(nodes), np.int64)
    counts[order] = 1
    lengths = np.array([len(parts[row]) for row in order], np.int64)
    neurons = np.concatenate([np.zeros(0, np.int32), *(parts[row] for row in order)])
    return Traces(layers, offsets_of(counts), offsets_of(lengths), neurons)


def _first_hits(traces: Traces, nodes: NDArray[np.int64]) -> dict[int, NDArray[np.int32]]:
    """Return, by row, the first trace through the row's node, from the top down to it."""
    trace_of = np.repeat(np.arange(len(traces.offsets) - 1), np.diff(traces.offsets))
    row_of = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))[trace_of]
    hits = np.flatnonzero(traces.layers.node[traces.neurons] == nodes[row_of])
    rows, first = np.unique(row_of[hits], return_index=True)
    ends = hits[first]
    starts = traces.offsets[trace_of[ends]]
    return {
        row: traces.neurons[start : end + 1]
        for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
    }
