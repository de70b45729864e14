"""Best traces from the scores of an exported graph; it needs only NumPy, not hinet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FORMAT = 1
STOP = -1
Arrays = Mapping[str, NDArray[Any]]


class Decoded(NamedTuple):
    """The best traces of every row, the best first.

    The traces of row ``i`` are ``row_offsets[i]:row_offsets[i + 1]``, the neurons of trace ``j``, from the top down,
    are ``neurons[offsets[j]:offsets[j + 1]]``; a trace without neurons ends at the root.
    """

    row_offsets: NDArray[np.int64]  # (rows + 1,)
    offsets: NDArray[np.int64]  # (traces + 1,)
    neurons: NDArray[np.int64]
    log_p: NDArray[np.float64]  # (traces,)


class _Poured(NamedTuple):
    """The best partial traces down to every neuron with their predecessors; a tree needs only the parents."""

    score: NDArray[np.float64]  # (neurons, ways, b)
    parent: NDArray[np.int32]  # (neurons, ways, b), of a tree (neurons, 1, 1)
    parent_way: NDArray[np.int32]  # shape like parent


def read(path: str) -> dict[str, NDArray[Any]]:
    """Return the arrays next to a graph: the hierarchy and the ids of nodes."""
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    if int(arrays["format"]) != FORMAT:
        raise ValueError(
            f"{path} has format {int(arrays['format'])}, but this file reads format {FORMAT}; export again"
        )
    return arrays


def decode(log_p: NDArray[Any], arrays: Arrays, k: int = 1, unknown: NDArray[Any] | None = None) -> Decoded:
    """Return the ``k`` most probable traces of every row, exactly; fewer where there are fewer.

    Parameters
    ----------
    log_p : float array of shape (rows, options), or (rows, labels) of a flat network
        The output of the graph.
    arrays : mapping
        The result of :func:`read`.
    unknown : float array of shape (rows,), optional
        The share of unknown n-grams of each text, from ``HiNetClassifier.unknown_share``; a larger share lowers the
        confidence. None treats all as known.
    """
    outputs = len(arrays["label_offsets"]) - 1 if "label_offsets" in arrays else len(arrays["option_neuron"])
    if log_p.ndim != 2 or log_p.shape[1] != outputs:
        raise ValueError(f"expected scores of shape (rows, {outputs}), got {log_p.shape}; they are from another graph")
    if k < 1:
        raise ValueError(f"k must be at least 1; got {k}")
    invalid = np.flatnonzero(np.isnan(log_p).any(1))
    if len(invalid):
        raise ValueError(f"row {invalid[0]}: a score is not a number; check the features")
    if unknown is not None and (unknown.shape != log_p.shape[:1] or not ((unknown >= 0) & (unknown <= 1)).all()):
        raise ValueError("expected a share of unknown n-grams, from 0 to 1, for each row")
    scores = np.ascontiguousarray(log_p.T)  # (outputs, b)
    if "label_offsets" in arrays:
        return _best_labels(scores, arrays, k)
    poured = _pour(scores, arrays, 1 if arrays["tree"] else k)
    stop_options = np.flatnonzero(arrays["option_neuron"] == STOP)
    stop_neurons = arrays["option_parent"][stop_options]
    ended = poured.score[stop_neurons] + scores[stop_options][:, None]  # (stops, ways, b)
    stops, ways, batch = ended.shape
    value, index = _largest(ended.reshape(stops * ways, batch), k)  # (k, b), shallow stops first
    value = _rescaled(value, float(arrays["slope"])) if "slope" in arrays else value
    value = _trusted(value, arrays["trust"], unknown) if "trust" in arrays and unknown is not None else value
    return _traced_back(arrays, poured, value, stop_neurons[index // ways], index % ways)


def paths(decoded: Decoded, arrays: Arrays) -> list[list[tuple[str, ...]]]:
    """Return the traces of every row as paths of node ids below the root."""
    nodes, inverse = np.unique(arrays["node"][decoded.neurons], return_inverse=True)
    text, bounds = arrays["ids"].tobytes(), arrays["id_offsets"]
    ids = [text[bounds[node] : bounds[node + 1]].decode() for node in nodes.tolist()]
    steps = [ids[node] for node in inverse.tolist()]
    traces = [tuple(steps[start:end]) for start, end in pairwise(decoded.offsets.tolist())]
    return [traces[start:end] for start, end in pairwise(decoded.row_offsets.tolist())]


def _pour(scores: NDArray[Any], arrays: Arrays, ways: int) -> _Poured:
    """Return the best partial traces down to every neuron, by layer from the root."""
    target, above = arrays["option_neuron"], arrays["option_parent"]
    neurons, batch = len(arrays["node"]), scores.shape[1]
    score = np.full((neurons, ways, batch), -np.inf)
    score[0, 0] = 0
    tree = bool(arrays["tree"])
    parent = np.zeros((neurons, ways, 1 if tree else batch), np.int32)
    parent_way = np.zeros_like(parent)
    for start, end in pairwise(arrays["option_offsets"][arrays["layer_offsets"]].tolist()):
        steps = start + np.flatnonzero(target[start:end] != STOP)
        if tree:
            score[target[steps], 0] = score[above[steps], 0] + scores[steps]
            parent[target[steps], 0, 0] = above[steps]
            continue
        for chosen in _rounds(target[steps]):
            option = steps[chosen]
            child, reached = target[option], score[above[option]] + scores[option][:, None]  # (m, ways, b)
            both = np.concatenate([score[child], reached], 1)
            best = np.argsort(-both, axis=1, kind="stable")[:, :ways]  # earlier parents win ties
            score[child] = np.take_along_axis(both, best, 1)
            came = np.broadcast_to(above[option][:, None, None], reached.shape)
            way = np.broadcast_to(np.arange(ways)[:, None], reached.shape)
            parent[child] = np.take_along_axis(np.concatenate([parent[child], came], 1), best, 1)
            parent_way[child] = np.take_along_axis(np.concatenate([parent_way[child], way], 1), best, 1)
    return _Poured(score, parent, parent_way)


def _rounds(children: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield the steps into a layer in rounds without repeated children."""
    order = np.argsort(children, kind="stable")
    turn = np.arange(len(order)) - np.searchsorted(children[order], children[order])
    for number in range(int(turn.max(initial=-1)) + 1):
        yield order[turn == number]


def _largest(values: NDArray[np.float64], k: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the ``k`` largest values of every column and their indices, (k, b); ties keep their order."""
    index = values.argmax(0)[None] if k == 1 else np.argsort(-values, axis=0, kind="stable")[:k]
    return np.take_along_axis(values, index, 0), index


def _rescaled(log_p: NDArray[np.float64], slope: float) -> NDArray[np.float64]:
    """Return the log probabilities of best traces, (k, b), with the log odds of the first one times ``slope``."""
    if slope == 1 or not len(log_p):
        return log_p
    best = np.clip(np.exp(log_p[0]), np.finfo(np.float64).tiny, 1 - 1e-6)
    shift = (1 / (1 + ((1 - best) / best) ** slope) - best) / (
        1 - best
    )  # share of all other traces that is added to the first
    p = (1 - shift) * np.exp(log_p)
    p[0] += shift
    with np.errstate(divide="ignore"):
        scaled: NDArray[np.float64] = np.log(np.clip(p, 0, 1))
    return scaled


def _trusted(log_p: NDArray[np.float64], parameters: NDArray[Any], unknown: NDArray[Any]) -> NDArray[np.float64]:
    """Return the log probabilities of traces, (k, b), mixed with uniform ones."""
    rate, power, labels = parameters.tolist()
    trust = np.exp(-rate * unknown.astype(np.float64) ** power)
    mixed: NDArray[np.float64] = np.log(
        trust * np.exp(log_p) + (1 - trust) / labels, where=log_p > -np.inf, out=log_p.copy()
    )
    return mixed


def _traced_back(
    arrays: Arrays, poured: _Poured, value: NDArray[np.float64], neuron: NDArray[np.int64], way: NDArray[np.int64]
) -> Decoded:
    """Follow every chosen stop back to the root."""
    exists = value > -np.inf  # a DAG may have fewer traces than k
    row = np.broadcast_to(np.arange(value.shape[1]), value.shape)
    neuron, way, row = (part.T[exists.T] for part in (neuron, way, row))  # ordered by row
    layer = arrays["layer_offsets"]
    lengths = np.searchsorted(layer, neuron, side="right") - 1
    offsets = _offsets(lengths)
    path = np.empty(offsets[-1], np.int64)
    if poured.parent.shape[2] == 1:
        row = np.zeros_like(row)
    for step in range(int(lengths.max(initial=0))):
        live = np.flatnonzero(lengths > step)
        path[offsets[live + 1] - 1 - step] = neuron[live]
        came = neuron[live], way[live], row[live]
        neuron[live], way[live] = poured.parent[came], poured.parent_way[came]
    return Decoded(_offsets(exists.sum(0)), offsets, path, value.T[exists.T])


def _best_labels(scores: NDArray[Any], arrays: Arrays, k: int) -> Decoded:
    """Return one trace of each of the ``k`` most probable labels of every row."""
    value, label = _largest(scores.astype(np.float64), k)
    chosen, bounds = label.T.ravel(), arrays["label_offsets"]
    lengths = bounds[chosen + 1] - bounds[chosen]
    offsets = _offsets(lengths)
    entries = np.repeat(bounds[chosen] - offsets[:-1], lengths) + np.arange(offsets[-1])
    row_offsets = _offsets(np.full(scores.shape[1], len(value)))
    return Decoded(row_offsets, offsets, arrays["label_neurons"][entries].astype(np.int64), value.T.ravel())


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
