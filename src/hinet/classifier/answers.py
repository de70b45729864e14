"""What a classifier answers: whole traces with the probability of every step, and labels with theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.labels import LabelForm
from hinet.data import Traces
from hinet.engine import Found
from hinet.taxonomy import Taxonomy


class Trace(NamedTuple):
    """A path from the top down to a label.

    ``label`` is what ``predict`` would answer (of level columns, the cells as a tuple), ``steps`` are node ids of
    ``taxonomy_``, the last of them that of the label; a label at the root has no step.

    ``probabilities`` fall from step to step: each is that of the path down to there. ``probability`` is that of the
    whole trace, which also stops at its last step.
    """

    label: Any
    steps: tuple[str, ...]
    probabilities: tuple[float, ...]
    probability: float


class PredictedLabel(NamedTuple):
    """A label, as ``predict`` answers, its probability summed over all its traces, and the most probable of these."""

    label: Any
    probability: float
    trace: Trace


@dataclass(frozen=True, eq=False)
class PredictedTraces(Sequence[list[Trace]]):
    """For every row its best traces, the best first; ``traces`` and ``log_p`` have all of them as arrays."""

    found: Found
    form: LabelForm | None = None  # how labels are written; without it, as node ids

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
        """Whose nodes the steps are."""
        return self.found.traces.layers.taxonomy

    def __repr__(self) -> str:
        return f"<PredictedTraces: {len(self):,} rows, {len(self.log_p):,} traces; each row is a list of Trace>"

    def __len__(self) -> int:
        return len(self.found)

    @overload
    def __getitem__(self, row: int) -> list[Trace]: ...

    @overload
    def __getitem__(self, row: slice) -> list[list[Trace]]: ...

    def __getitem__(self, row: int | slice) -> list[Trace] | list[list[Trace]]:
        if isinstance(row, slice):
            return [self._row(at) for at in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self._row(row % len(self))

    def __iter__(self) -> Iterator[list[Trace]]:
        return (self._row(row) for row in range(len(self)))

    def _row(self, row: int) -> list[Trace]:
        traces = self.found.traces
        return [self._trace(at) for at in range(traces.row_offsets[row], traces.row_offsets[row + 1])]

    def _trace(self, at: int) -> Trace:
        traces = self.found.traces
        part = slice(traces.offsets[at], traces.offsets[at + 1])
        path = traces.layers.node[traces.neurons[part]].tolist()
        along = tuple(np.exp(self.found.log_p[part]).tolist())
        return trace_along(self._form, path, along, float(np.exp(self.log_p[at])))

    @cached_property
    def _form(self) -> LabelForm:
        return self.form or LabelForm("ids", self.found.traces.layers)


@dataclass(frozen=True, eq=False)
class PredictedLabels(Sequence[list[PredictedLabel]]):
    """For every row its most probable labels, all different, the best first; ``probability`` has all as an array."""

    traces: PredictedTraces  # the most probable trace of every label
    probability: NDArray[np.float64]

    def __repr__(self) -> str:
        return f"<PredictedLabels: {len(self):,} rows, {len(self.probability):,} labels; each row is a list of them>"

    def __len__(self) -> int:
        return len(self.traces)

    @overload
    def __getitem__(self, row: int) -> list[PredictedLabel]: ...

    @overload
    def __getitem__(self, row: slice) -> list[list[PredictedLabel]]: ...

    def __getitem__(self, row: int | slice) -> list[PredictedLabel] | list[list[PredictedLabel]]:
        if isinstance(row, slice):
            return [self[at] for at in range(*row.indices(len(self)))]
        traces = self.traces[row]
        start = self.traces.traces.row_offsets[row % len(self)]
        chances = self.probability[start : start + len(traces)].tolist()
        return [PredictedLabel(trace.label, p, trace) for trace, p in zip(traces, chances, strict=True)]


def trace_along(form: LabelForm, path: Sequence[int], along: tuple[float, ...], probability: float) -> Trace:
    """Return a path of nodes below the root as a trace."""
    steps = tuple(form.taxonomy.ids[node] for node in path)
    return Trace(form.padded(form.label_of(path)), steps, along, probability)
