"""Selection of answers: which labels rows are answered with, by the options of a prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.classifier.fitted import Fitted
from hinet.classifier.labels import NOTHING, LabelCodec
from hinet.classifier.predicted_sets import Answers
from hinet.data import Traces
from hinet.engine import FoundNodes
from hinet.errors import HiNetError
from hinet.ragged import offsets_of

SEARCHED_TRACES = (1, 16, 256)  # best traces per row among which one through a given node is looked for


@dataclass(frozen=True)
class PredictionOptions:
    """Options of a prediction.

    Attributes
    ----------
    top : int, optional
        Number of answers per row, best first: traces, or labels if ``decoding`` is ``"label"``. None is 1 or, if rows
        have several labels, all labels above the thresholds.
    min_confidence : float, optional
        If given, the answer is the deepest node with at least this probability.
    decoding : {"map", "expected_f1", "label"}
        See :class:`hinet.classifier.HiNetClassifier`.
    levels : bool
        Whether to add each step of the best trace with its probability and, for texts, the share of known words.
    titles : bool
        Whether to add the title of each label.
    min_probability : float, optional
        Threshold that replaces the learned ones, if rows have several labels.
    """

    top: int | None = None
    min_confidence: float | None = None
    decoding: Decoding = "map"
    levels: bool = False
    titles: bool = False
    min_probability: float | None = None

    def __post_init__(self) -> None:
        by_node = self.min_confidence is not None or self.decoding != "map"
        if self.min_confidence is not None and self.decoding != "map":
            raise HiNetError(
                "`min_confidence` cannot be combined with a `decoding` other than map; leave out one of the two"
            )
        if (self.top or 1) > 1 and (self.min_confidence is not None or self.decoding == "expected_f1"):
            raise HiNetError(
                f"`top` must be 1 with `min_confidence` or `decoding='expected_f1'`, which give one answer per row; "
                f"got {self.top}"
            )
        if by_node and self.levels:
            raise HiNetError("`levels` are those of the best trace; leave out `min_confidence` and `decoding`")

    def check(self, codec: LabelCodec) -> None:
        """Raise HiNetError if the options do not suit the labels of a model."""
        check_thresholds(codec, self.min_confidence, self.min_probability)
        if codec.sets is not None and (self.decoding != "map" or self.levels):
            raise HiNetError(
                "`decoding` and `levels` are for one label per row, and the model predicts several; leave them out"
            )


def check_thresholds(codec: LabelCodec, min_confidence: Any, min_probability: float | None) -> None:
    """Raise HiNetError if a threshold is for one label per row and the model predicts several, or vice versa."""
    if codec.sets is None and min_probability is not None:
        raise HiNetError("`min_probability` is for rows with several labels; give `min_confidence`")
    if codec.sets is not None and min_confidence is not None:
        raise HiNetError("`min_confidence` is for one label per row; give `min_probability`")


def select_answers(fitted: Fitted, rows: Any, options: PredictionOptions, *, with_traces: bool) -> Answers:
    """Return the answers to rows, best first.

    With ``with_traces`` each answer has a trace, except in a tree, where its node determines the trace, and for rows
    with several labels.
    """
    predictor, threshold, decoding = fitted.predictor, options.min_confidence, options.decoding
    if fitted.codec.sets is not None:
        return fitted.label_sets(rows, top=options.top, min_probability=options.min_probability)
    if threshold is None and decoding == "map":
        found = predictor.traces(rows, options.top or 1)
        return Answers.of_traces(found.traces, None, found.log_p)
    if threshold is None and decoding == "label" and with_traces:
        labels = predictor.top_labels(rows, options.top or 1)
        return Answers.of_traces(labels.found.traces, labels.probability, labels.found.log_p)
    best = predictor.decode(rows, decoding) if threshold is None else deepest_confident(fitted, rows, threshold)
    answered = best.probability >= (threshold or 0.0)
    traces = None
    if with_traces and not fitted.codec.taxonomy.is_tree:
        traces = traces_to_nodes(fitted, rows, np.where(answered, best.nodes, NOTHING))
    return Answers(best.nodes[answered], offsets_of(answered.astype(np.int64)), best.probability[answered], traces)


def deepest_confident(fitted: Fitted, rows: Any, threshold: float) -> FoundNodes:
    """Return the deepest node of every row whose probability is at least ``threshold``.

    Where even the top nodes are less probable, it is the root if that is a label, else the most probable top node.
    """
    deepest, layers = fitted.predictor.deepest_confident(rows, threshold), fitted.codec.layers
    if layers.taxonomy.root < 0 or not layers.ends[0]:
        return deepest
    unsure = deepest.probability < threshold
    nodes, probability = np.where(unsure, layers.taxonomy.root, deepest.nodes), np.where(unsure, 1, deepest.probability)
    return replace(deepest, nodes=nodes, probability=probability)


def decode_answers(codec: LabelCodec, answers: Answers) -> NDArray[Any]:
    """Return the first answer of every row, or the set of all if rows have several labels, in the form of ``y``."""
    if codec.sets is not None:
        return codec.decode_sets(answers.nodes, answers.offsets)
    if answers.traces is not None:
        return codec.decode_traces(answers.traces)
    return codec.decode(answers.nodes_of_rank(0))


def traces_to_nodes(fitted: Fitted, rows: Any, nodes: NDArray[np.int64]) -> Traces:
    """Return for every row the most probable trace to its node, cut off there; none for ``NOTHING``.

    If none of the best traces passes through the node, it is the first path to the node.
    """
    layers = fitted.codec.layers
    parts: dict[int, NDArray[np.int32]] = {}
    if layers.taxonomy.root >= 0:
        parts = {row: np.zeros(0, np.int32) for row in np.flatnonzero(nodes == layers.taxonomy.root).tolist()}
    left = np.flatnonzero((nodes != NOTHING) & (nodes != layers.taxonomy.root))
    for count in SEARCHED_TRACES:
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
    """Return, by row, the first trace through the node of the row, from the top down to the node."""
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
