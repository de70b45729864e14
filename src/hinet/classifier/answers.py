"""Selection of answers by the options of a prediction; predictions as objects, HTML for notebooks and pandas frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.classifier.fitted import Fitted
from hinet.classifier.labels import NOTHING, LabelCodec
from hinet.classifier.predicted_sets import Answers
from hinet.data import Traces
from hinet.engine import Found, FoundNodes
from hinet.errors import HiNetError, counted
from hinet.extras import require
from hinet.ragged import offsets_of
from hinet.taxonomy import Taxonomy

MAX_HTML_ROWS = 20
_BAR = "display:inline-block;height:0.7em;margin-right:0.4em;border-radius:2px;background:"
_FOR, _AGAINST = "rgba(46,160,103,0.8)", "rgba(221,90,80,0.8)"
_MAX_BAR = 6.0  # em
STOPS = "(stops here)"  # the option to end at the node itself
SEARCHED_TRACES = (1, 16, 256)  # best traces per row among which one through a given node is looked for


def frame(columns: Sequence[str], rows: list[tuple[Any, ...]]) -> Any:
    """Return rows as a pandas DataFrame; raise HiNetError if pandas is missing."""
    require("pandas", "to_frame()")
    import pandas

    return pandas.DataFrame(rows, columns=columns)


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of cells that are HTML."""
    head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in names)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def probability_cell(probability: float) -> str:
    """Return a probability as a bar and a number."""
    return _bar(probability, _FOR) + f"{probability:.3f}"


def push_cell(push: float, largest: float) -> str:
    """Return a contribution for or against a node as a bar and a signed number."""
    return _bar(abs(push) / largest if largest else 0.0, _FOR if push >= 0 else _AGAINST) + f"{push:+.3f}"


def steps_cell(steps: Sequence[str], probabilities: Sequence[float]) -> str:
    """Return the steps of a trace with their probabilities."""
    parts = (f"{escape(step)} <small>{p:.3f}</small>" for step, p in zip(steps, probabilities, strict=True))
    return " &rsaquo; ".join(parts)


def label_text(label: Any) -> str:
    """Return a label, which may be a path, as escaped text."""
    steps = [step for step in label if step != ""] if isinstance(label, tuple) else [label]
    return " &rsaquo; ".join(escape(str(step)) for step in steps)


def _bar(share: float, colour: str) -> str:
    return f'<span style="{_BAR}{colour};width:{_MAX_BAR * min(max(share, 0.0), 1.0):.2f}em"></span>'


class Trace(NamedTuple):
    """A path from the top down to a label.

    Attributes
    ----------
    label
        The label as ``predict`` returns it; for a table, the cells as a tuple.
    steps : tuple of str
        Node ids of ``taxonomy_``, ending with the label; a label at the root has no steps.
    probabilities : tuple of float
        The probability of the path down to each step, descending.
    probability : float
        The probability of the whole trace, including that it ends at its last step.
    """

    label: Any
    steps: tuple[str, ...]
    probabilities: tuple[float, ...]
    probability: float

    def _repr_html_(self) -> str:
        steps = zip((*self.steps, STOPS), (*self.probabilities, self.probability), strict=True)
        return f"<b>{label_text(self.label)}</b>" + table(
            ("step", "probability"), ((label_text(step), probability_cell(p)) for step, p in steps)
        )


class PredictedLabel(NamedTuple):
    """A label as ``predict`` returns it, its probability summed over all its traces, and its most probable trace."""

    label: Any
    probability: float
    trace: Trace


Prediction = TypeVar("Prediction", bound=Trace | PredictedLabel)


class RowPredictions(Sequence[list[Prediction]]):
    """A list of predictions for every row, best first."""

    @abstractmethod
    def _row(self, row: int) -> list[Prediction]:
        """Return the predictions of a row."""

    @overload
    def __getitem__(self, row: int) -> list[Prediction]: ...

    @overload
    def __getitem__(self, row: slice) -> list[list[Prediction]]: ...

    def __getitem__(self, row: int | slice) -> list[Prediction] | list[list[Prediction]]:
        if isinstance(row, slice):
            return [self._row(index) for index in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._row(row % len(self))

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one line per prediction.

        Its columns are ``row``, ``rank`` (from 1), ``label`` and ``probability``, and ``steps`` and
        ``step_probabilities`` of the most probable trace.
        """
        lines = [
            (row, rank, one.label, one.probability, *_trace_of(one)[1:3])
            for row in range(len(self))
            for rank, one in enumerate(self._row(row), 1)
        ]
        return frame(("row", "rank", "label", "probability", "steps", "step_probabilities"), lines)

    def _repr_html_(self) -> str:
        cells = (
            (str(row), label_text(one.label), probability_cell(one.probability), steps_cell(*_trace_of(one)[1:3]))
            for row, predictions in enumerate(self[:MAX_HTML_ROWS])
            for one in predictions
        )
        more = f"<p>and {counted(len(self) - MAX_HTML_ROWS, 'more row')}</p>" if len(self) > MAX_HTML_ROWS else ""
        return table(("row", "label", "probability", "trace"), cells) + more


def _trace_of(prediction: Trace | PredictedLabel) -> Trace:
    return prediction.trace if isinstance(prediction, PredictedLabel) else prediction


@dataclass(frozen=True, eq=False)
class PredictedTraces(RowPredictions[Trace]):
    """The best traces of every row, best first; ``traces`` and ``log_p`` have all of them as arrays."""

    found: Found
    codec: LabelCodec | None = None  # writes the labels; without it they are node ids

    @property
    def traces(self) -> Traces:
        """The traces as arrays."""
        return self.found.traces

    @property
    def log_p(self) -> NDArray[np.float64]:
        """Log probability of every trace."""
        assert self.found.traces.log_p is not None
        return self.found.traces.log_p

    @property
    def taxonomy(self) -> Taxonomy:
        """The taxonomy of the steps."""
        return self.found.traces.layers.taxonomy

    def __repr__(self) -> str:
        counts = f"{counted(len(self), 'row')}, {counted(len(self.log_p), 'trace')}"
        return f"<PredictedTraces: {counts}; each row is a list of Trace>"

    def __len__(self) -> int:
        return len(self.found)

    def _row(self, row: int) -> list[Trace]:
        return [self._trace(trace) for trace in range(*self.traces.row_offsets[row : row + 2])]

    def _trace(self, trace: int) -> Trace:
        traces = self.found.traces
        part = slice(traces.offsets[trace], traces.offsets[trace + 1])
        path = traces.layers.node[traces.neurons[part]].tolist()
        probabilities = tuple(np.exp(self.found.log_p[part]).tolist())
        return trace_along(self._codec, path, probabilities, float(np.exp(self.log_p[trace])))

    @cached_property
    def _codec(self) -> LabelCodec:
        return self.codec or LabelCodec("ids", self.found.traces.layers)


@dataclass(frozen=True, eq=False)
class PredictedLabels(RowPredictions[PredictedLabel]):
    """The most probable labels of every row, distinct, best first; ``probability`` has all of them as an array."""

    traces: PredictedTraces  # the most probable trace of every label
    probability: NDArray[np.float64]

    def __repr__(self) -> str:
        counts = f"{counted(len(self), 'row')}, {counted(len(self.probability), 'label')}"
        return f"<PredictedLabels: {counts}; each row is a list of them>"

    def __len__(self) -> int:
        return len(self.traces)

    def _row(self, row: int) -> list[PredictedLabel]:
        start, end = self.traces.traces.row_offsets[row : row + 2]
        labels = zip(self.traces[row], self.probability[start:end].tolist(), strict=True)
        return [PredictedLabel(trace.label, probability, trace) for trace, probability in labels]


def trace_along(codec: LabelCodec, path: Sequence[int], probabilities: tuple[float, ...], probability: float) -> Trace:
    """Return a path of nodes below the root as a trace."""
    steps = tuple(codec.taxonomy.ids[node] for node in path)
    return Trace(codec.padded(codec.label_of(path)), steps, probabilities, probability)


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
    within, exclude : tuple of str
        Nodes at or below which the answer must be, and must not be; probabilities are conditional on that.
    """

    top: int | None = None
    min_confidence: float | None = None
    decoding: Decoding = "map"
    levels: bool = False
    titles: bool = False
    min_probability: float | None = None
    within: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

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
    if layers.taxonomy.root < 0 or not layers.ends[0] or not fitted.predictor.may_answer(layers.taxonomy.root):
        return deepest
    unsure = deepest.probability < threshold
    nodes, probability = np.where(unsure, layers.taxonomy.root, deepest.nodes), np.where(unsure, 1, deepest.probability)
    return replace(deepest, nodes=nodes, probability=probability)


def answer_rows(fitted: Fitted, rows: Any, options: PredictionOptions) -> NDArray[Any]:
    """Return the first answer of every row, or the set of all if rows have several labels, in the form of ``y``."""
    codec = fitted.codec
    answers = select_answers(fitted, rows, options, with_traces=codec.by_path)
    if codec.sets is not None:
        return codec.decode_sets(answers.nodes, answers.offsets)
    if answers.traces is not None:
        return codec.decode_traces(answers.traces)
    return codec.decode(answers.nodes_of_rank(0))


def traces_to_nodes(fitted: Fitted, rows: Any, nodes: NDArray[np.int64]) -> Traces:
    """Return for every row the most probable trace to its node, cut off there; none for ``NOTHING``.

    If none of the best traces passes through the node, it is the first path to the node.
    """
    layers, taxonomy = fitted.codec.layers, fitted.codec.taxonomy
    left = np.flatnonzero(nodes != NOTHING)
    paths: dict[int, tuple[str, ...]] = dict.fromkeys(left[nodes[left] == taxonomy.root].tolist(), ())
    left = left[nodes[left] != taxonomy.root]
    for count in SEARCHED_TRACES:
        if not len(left):
            break
        hits = _first_hits(fitted.predictor.traces(rows[left], count).traces, nodes[left])
        paths |= {int(left[index]): path for index, path in hits.items()}
        left = np.delete(left, list(hits))
    for row in left.tolist():
        paths[row] = tuple(taxonomy.ids[node] for node in fitted.codec.path_to(int(nodes[row])))
    answered = np.array(sorted(paths), np.int64)
    found = Traces.along(layers, [paths[row] for row in answered.tolist()])
    counts = np.bincount(answered, minlength=len(nodes))
    return Traces(layers, offsets_of(counts), found.offsets, found.neurons)


def _first_hits(traces: Traces, nodes: NDArray[np.int64]) -> dict[int, tuple[str, ...]]:
    """Return, by row, the first trace through the node of the row as ids, from the top down to the node."""
    trace_of = np.repeat(np.arange(len(traces.offsets) - 1), np.diff(traces.offsets))
    row_of = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))[trace_of]
    steps, ids = traces.layers.node[traces.neurons], traces.layers.taxonomy.ids
    hits = np.flatnonzero(steps == nodes[row_of])
    rows, first = np.unique(row_of[hits], return_index=True)
    ends = hits[first]
    bounds = zip(rows.tolist(), traces.offsets[trace_of[ends]].tolist(), ends.tolist(), strict=True)
    return {row: tuple(ids[node] for node in steps[start : end + 1].tolist()) for row, start, end in bounds}
