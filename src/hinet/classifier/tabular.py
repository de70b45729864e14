"""Answers of a fitted classifier as the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import TextInput
from hinet.classifier.labels import paths_of
from hinet.classifier.leading import leading_traces
from hinet.classifier.text_paths import TextStyle
from hinet.classifier.truth import NOTHING
from hinet.data import Traces
from hinet.data.tables.columns import is_blank
from hinet.data.tables.writing import CellKind
from hinet.data.text import known_shares
from hinet.engine import Decoding, Found
from hinet.errors import HiNetError
from hinet.taxonomy import PATH_MARK, split_path

KNOWN_WORDS = "known_words"  # the column of the share of words that the model knows

Cells = dict[str, list[Any]]
MOST_COLUMNS = 100_000  # of a table
MOST_CELLS = 1_000_000  # that are made at a time
USUAL_STYLE = TextStyle(PATH_MARK)


@dataclass(frozen=True)
class PredictionOptions:
    """What of the answers is wanted.

    ``top`` answers a row, the best first: traces or, with the decoding ``label``, labels; or, with ``least``, the
    deepest node that is at least so probable. ``levels`` adds every step of the best trace with its probability, and
    for texts the share of their words that the model knows; ``titles`` the title of the label.
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
class PredictionTable:
    """Turns rows into columns: label, trace and probability, numbered from the second of several traces on."""

    fitted: Fitted
    asked: PredictionOptions
    style: TextStyle = USUAL_STYLE  # of labels that are paths

    def __post_init__(self) -> None:
        if self._width > MOST_COLUMNS:
            raise HiNetError(
                f"top = {self.asked.top:,} makes {self._width:,} columns, more than {MOST_COLUMNS:,}; ask for fewer"
            )

    @property
    def kinds(self) -> dict[str, CellKind]:
        """The columns there will be, and what is in them."""
        kinds: dict[str, CellKind] = {}
        for rank in range(self.top):
            mark = f"_{rank + 1}" if rank else ""
            kinds |= {f"label{mark}": "text", f"trace{mark}": "texts", f"probability{mark}": "number"}
            if self.asked.titles:
                kinds[f"title{mark}"] = "text"
        if self.asked.levels:
            for level in range(1, self._depth + 1):
                kinds |= {f"level_{level}": "text", f"level_{level}_probability": "number"}
            if isinstance(self.fitted.features, TextInput):
                kinds[KNOWN_WORDS] = "number"
        return kinds

    @cached_property
    def top(self) -> int:
        """Answers a row: as many as asked for, or all there are."""
        layers = self.fitted.form.layers
        if self.asked.decoding == "label":
            return min(self.asked.top, len(np.unique(layers.node[layers.ends])))
        return min(self.asked.top, layers.count_traces())

    @cached_property
    def _width(self) -> int:
        """How many columns there are."""
        return self.top * (4 if self.asked.titles else 3) + (2 * self._depth if self.asked.levels else 0)

    @property
    def rows_at_a_time(self) -> int:
        """How many rows to answer at a time, so that what they take in memory is bounded."""
        return max(1, MOST_CELLS // self._width)

    @cached_property
    def _depth(self) -> int:
        form = self.fitted.form
        return form.layers.height + form.rooted

    @cached_property
    def _names(self) -> list[str]:
        """The name of every node as a step of a trace."""
        form = self.fitted.form
        return list(form.taxonomy.titles if form.named else form.taxonomy.ids)

    @cached_property
    def _known(self) -> dict[Any, tuple[str, list[str]]]:
        """Label and trace as they are written: by node in a tree, by path in a DAG."""
        return {}

    def columns(self, texts: list[str]) -> Cells:
        """Return the answers of texts, blank where there is no text; with levels also how well words are known."""
        filled = [row for row, text in enumerate(texts) if not is_blank(text)]
        if len(filled) == len(texts):
            return self._filled(texts)
        columns: Cells = {name: [None] * len(texts) for name in self.kinds}
        if filled:
            for name, cells in self._filled([texts[row] for row in filled]).items():
                for row, cell in zip(filled, cells, strict=True):
                    columns[name][row] = cell
        return columns

    def _filled(self, texts: list[str]) -> Cells:
        cells = self._answers(self.fitted.rows(texts))
        if self.asked.levels and isinstance(self.fitted.features, TextInput):
            shares = known_shares(self.fitted.features.features, texts).tolist()
            cells[KNOWN_WORDS] = [None if share != share else share for share in shares]
        return cells

    def _answers(self, rows: Any) -> Cells:
        asked, search = self.asked, self.fitted.predictor
        if asked.decoding == "label":
            best = search.top_labels(rows, self.top)
            return self._of_traces(best.found, best.probability)
        if asked.least is not None or asked.decoding != "map":
            found = (
                search.decode(rows, asked.decoding)
                if asked.least is None
                else search.deepest_confident(rows, asked.least)
            )
            sure = found.probability >= (asked.least or 0.0)
            nodes = np.where(sure, found.nodes, NOTHING)
            traces = None if self._is_tree else leading_traces(self.fitted, rows, nodes)
            at = np.where(sure, np.cumsum(sure) - 1, NOTHING)
            return self._ranked(0, nodes, traces, at, np.where(sure, found.probability, np.nan))
        found_traces = search.traces(rows, self.top)
        assert found_traces.traces.log_p is not None
        return self._of_traces(found_traces, np.exp(found_traces.traces.log_p))

    def _of_traces(self, found: Found, probability: NDArray[np.float64]) -> Cells:
        """Return the answers that some traces stand for, each with a probability: its own, or that of its label."""
        traces = found.traces
        counts = np.diff(traces.row_offsets)
        cells: Cells = {}
        for rank in range(self.top):
            has = counts > rank
            at = np.where(has, traces.row_offsets[:-1] + rank, NOTHING)
            nodes = np.where(has, traces.end_nodes[at], NOTHING).astype(np.int64)
            cells |= self._ranked(rank, nodes, traces, at, np.where(has, probability[at], np.nan))
        if self.asked.levels:
            cells |= self._levels(found)
        return cells

    def _ranked(
        self,
        rank: int,
        nodes: NDArray[np.int64],
        traces: Traces | None,
        at: NDArray[np.int64],
        probability: NDArray[np.float64],
    ) -> Cells:
        """Return label, trace and probability of every row, of one rank; in a DAG by the trace at each place."""
        mark = f"_{rank + 1}" if rank else ""
        if self._is_tree or traces is None:
            cells = [None if node == NOTHING else self._by_node(node) for node in nodes.tolist()]
        else:
            cells = [None if path is None else self._by_path(path) for path in paths_of(traces, at)]
        columns: Cells = {
            f"label{mark}": [None if cell is None else cell[0] for cell in cells],
            f"trace{mark}": [None if cell is None else cell[1] for cell in cells],
            f"probability{mark}": [None if p != p else min(p, 1.0) for p in probability.tolist()],
        }
        if self.asked.titles:
            titles = self.fitted.form.taxonomy.titles
            columns[f"title{mark}"] = [None if node == NOTHING else titles[node] for node in nodes.tolist()]
        return columns

    @property
    def _is_tree(self) -> bool:
        return self.fitted.form.taxonomy.is_tree

    def _by_node(self, node: int) -> tuple[str, list[str]]:
        if node not in self._known:
            self._known[node] = self._written(self.fitted.form.path_to(node))
        return self._known[node]

    def _by_path(self, path: list[int]) -> tuple[str, list[str]]:
        key = tuple(path)
        if key not in self._known:
            self._known[key] = self._written(path)
        return self._known[key]

    def _written(self, path: list[int]) -> tuple[str, list[str]]:
        form = self.fitted.form
        return label_text(form.label_of(path), self.style), list(map(str, form.steps(path)))

    def _levels(self, found: Found) -> Cells:
        """Return every step of the best traces, and how probable it is to come down to it."""
        traces = found.traces
        first = traces.row_offsets[:-1]
        starts, lengths = traces.offsets[first], np.diff(traces.offsets)[first]
        cells: Cells = {}
        form = self.fitted.form
        if form.rooted:
            cells["level_1"] = [self._names[form.taxonomy.root]] * len(first)
            cells["level_1_probability"] = [1.0] * len(first)
        for level in range(form.layers.height):
            has = lengths > level
            at = np.where(has, starts + level, 0)
            nodes = np.where(has, traces.layers.node[traces.neurons[at]], NOTHING).tolist()
            chances = np.where(has, np.exp(found.log_p[at]), np.nan).tolist()
            column = f"level_{level + 1 + form.rooted}"
            cells[column] = [None if node == NOTHING else self._names[node] for node in nodes]
            cells[f"{column}_probability"] = [None if p != p else min(p, 1.0) for p in chances]
        return cells


def label_text(label: Any, style: TextStyle) -> str:
    """Return a label as a cell has it, a path as one text that is cut into the same steps."""
    if not isinstance(label, tuple):
        return str(label)
    steps = tuple(map(str, label))
    joined = style.between.join(steps)
    return joined if split_path(joined, style.mark) == steps else style.written(steps)


def joined_traces(parts: Sequence[Found]) -> Found:
    """Return the answers of blocks of rows as one."""
    layers = parts[0].traces.layers
    traces = Traces.joined(layers, [part.traces for part in parts])
    log_p = np.concatenate([part.log_p for part in parts])
    return Found(traces, log_p, np.concatenate([part.touched for part in parts]))
