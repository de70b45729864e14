"""Answers of a fitted classifier as the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.truth import NOTHING
from hinet.data import Traces
from hinet.data.tables.writing import CellKind
from hinet.engine import Decoding, Found
from hinet.errors import HiNetError

Cells = dict[str, list[Any]]


@dataclass(frozen=True)
class Asked:
    """What of the answers is wanted.

    ``top`` answers a row, the best first: traces or, with the decoding ``label``, labels; or, with ``least``, the
    deepest node that is at least so probable. ``levels`` adds every step of the best trace with its probability,
    ``titles`` the title of the label.
    """

    top: int = 1
    least: float | None = None
    decoding: Decoding = "map"
    levels: bool = False
    titles: bool = False

    def __post_init__(self) -> None:
        by_node = self.least is not None or self.decoding != "map"
        if self.least is not None and self.decoding != "map":
            raise HiNetError("a least confidence has a decoding of its own; leave one of the two out")
        if self.top > 1 and (self.least is not None or self.decoding == "expected_f1"):
            raise HiNetError(
                f"top = {self.top} cannot be combined with a least confidence or the decoding expected_f1, which give "
                "one answer a row; leave out one of the two"
            )
        if by_node and self.levels:
            raise HiNetError("levels are those of the best trace; leave out the least confidence, or the decoding")


@dataclass(frozen=True, eq=False)
class AnswerTable:
    """Turns rows into columns: label, trace and probability, numbered from the second of several traces on."""

    fitted: Fitted
    asked: Asked
    path_sep: str = " > "  # between the steps of a label that is a path

    @property
    def kinds(self) -> dict[str, CellKind]:
        """The columns there will be, and what is in them."""
        kinds: dict[str, CellKind] = {}
        for rank in range(self.asked.top):
            mark = f"_{rank + 1}" if rank else ""
            kinds |= {f"label{mark}": "text", f"trace{mark}": "texts", f"probability{mark}": "number"}
            if self.asked.titles:
                kinds[f"title{mark}"] = "text"
        if self.asked.levels:
            for level in range(1, self._depth + 1):
                kinds |= {f"level_{level}": "text", f"level_{level}_probability": "number"}
        return kinds

    @cached_property
    def _depth(self) -> int:
        return self.fitted.form.layers.height

    @cached_property
    def _names(self) -> list[str]:
        """The name of every node as a step of a trace."""
        form = self.fitted.form
        return list(form.taxonomy.titles if form.named else form.taxonomy.ids)

    @cached_property
    def _known_paths(self) -> dict[int, list[str]]:
        return {}

    @cached_property
    def _known_labels(self) -> dict[int, str]:
        return {}

    def columns(self, rows: Any) -> Cells:
        """Return the answers of rows as the model reads them."""
        asked, search = self.asked, self.fitted.search
        if asked.decoding == "label":
            best = search.top_labels(rows, asked.top)
            return self._of_traces(best.found, best.probability)
        if asked.least is not None or asked.decoding != "map":
            found = (
                search.decode(rows, asked.decoding)
                if asked.least is None
                else search.as_deep_as_sure(rows, asked.least)
            )
            sure = found.probability >= (asked.least or 0.0)
            return self._ranked(
                0, np.where(sure, found.nodes, NOTHING), None, np.where(sure, found.probability, np.nan)
            )
        found_traces = search.traces(rows, asked.top)
        assert found_traces.traces.log_p is not None
        return self._of_traces(found_traces, np.exp(found_traces.traces.log_p))

    def _of_traces(self, found: Found, probability: NDArray[np.float64]) -> Cells:
        """Return the answers that some traces stand for, each with a probability: its own, or that of its label."""
        traces = found.traces
        counts = np.diff(traces.row_offsets)
        cells: Cells = {}
        for rank in range(self.asked.top):
            has = counts > rank
            at = np.where(has, traces.row_offsets[:-1] + rank, NOTHING)
            nodes = np.where(has, traces.end_nodes[at], NOTHING).astype(np.int64)
            cells |= self._ranked(rank, nodes, (traces, at), np.where(has, probability[at], np.nan))
        if self.asked.levels:
            cells |= self._levels(found)
        return cells

    def _ranked(
        self,
        rank: int,
        nodes: NDArray[np.int64],
        places: tuple[Traces, NDArray[np.int64]] | None,
        probability: NDArray[np.float64],
    ) -> Cells:
        """Return label, trace and probability of every row, of one rank."""
        mark = f"_{rank + 1}" if rank else ""
        by_trace = places is not None and not self.fitted.form.taxonomy.is_tree
        paths = self._paths_of_traces(*places) if by_trace and places else [self._path(node) for node in nodes.tolist()]
        cells: Cells = {
            f"label{mark}": [self._label(node) for node in nodes.tolist()],
            f"trace{mark}": paths,
            f"probability{mark}": [None if p != p else min(p, 1.0) for p in probability.tolist()],
        }
        if self.asked.titles:
            titles = self.fitted.form.taxonomy.titles
            cells[f"title{mark}"] = [None if node == NOTHING else titles[node] for node in nodes.tolist()]
        return cells

    def _label(self, node: int) -> str | None:
        if node == NOTHING:
            return None
        if node not in self._known_labels:
            written = self.fitted.form.decode(np.array([node]))[0]
            steps = written if isinstance(written, (tuple, np.ndarray)) else (written,)
            self._known_labels[node] = self.path_sep.join(str(step) for step in steps if step != "")
        return self._known_labels[node]

    def _path(self, node: int) -> list[str] | None:
        """Return the steps down to a node; of a DAG, the first way."""
        if node == NOTHING:
            return None
        if node not in self._known_paths:
            self._known_paths[node] = list(map(str, self.fitted.form.steps(node)))
        return self._known_paths[node]

    def _paths_of_traces(self, traces: Traces, at: NDArray[np.int64]) -> list[list[str] | None]:
        """Return the steps of traces as they are, of which a node of a DAG may have several; of none, None."""
        node_of = traces.layers.node
        bounds = zip(at.tolist(), traces.offsets[at].tolist(), traces.offsets[at + 1].tolist(), strict=True)
        return [
            [self._names[node] for node in node_of[traces.neurons[start:end]].tolist()] if place >= 0 else None
            for place, start, end in bounds
        ]

    def _levels(self, found: Found) -> Cells:
        """Return every step of the best traces, and how probable it is to come down to it."""
        traces = found.traces
        first = traces.row_offsets[:-1]
        starts, lengths = traces.offsets[first], np.diff(traces.offsets)[first]
        cells: Cells = {}
        for level in range(self._depth):
            has = lengths > level
            at = np.where(has, starts + level, 0)
            nodes = np.where(has, traces.layers.node[traces.neurons[at]], NOTHING).tolist()
            chances = np.where(has, np.exp(found.log_p[at]), np.nan).tolist()
            cells[f"level_{level + 1}"] = [None if node == NOTHING else self._names[node] for node in nodes]
            cells[f"level_{level + 1}_probability"] = [None if p != p else min(p, 1.0) for p in chances]
        return cells


def joined_traces(parts: Sequence[Found]) -> Found:
    """Return the answers of blocks of rows as one."""
    layers = parts[0].traces.layers
    traces = Traces.joined(layers, [part.traces for part in parts])
    log_p = np.concatenate([part.log_p for part in parts])
    return Found(traces, log_p, np.concatenate([part.touched for part in parts]))
