"""Predictions: traces with the probability of every step, and labels; as HTML for notebooks, and as pandas frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.labels import LabelCodec
from hinet.data import Traces
from hinet.engine import Found
from hinet.errors import counted
from hinet.extras import require
from hinet.taxonomy import Taxonomy

MAX_HTML_ROWS = 20
_BAR = "display:inline-block;height:0.7em;margin-right:0.4em;border-radius:2px;background:"
_FOR, _AGAINST = "rgba(46,160,103,0.8)", "rgba(221,90,80,0.8)"
_MAX_BAR = 6.0  # em


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


STOPS = "(stops here)"  # the option to end at the node itself


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
