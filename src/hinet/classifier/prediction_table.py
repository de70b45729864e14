"""Predictions of a fitted classifier as the columns of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.classifier.dag_labels import traces_to_nodes
from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import text_of, text_part, unknown_rows
from hinet.classifier.label_rows import TextStyle
from hinet.classifier.labels import NOTHING, paths_of
from hinet.data import Traces
from hinet.data.tables import LabelledBlock, RowBlock, RowQuery
from hinet.data.tables.labelled_tables import is_blank
from hinet.data.tables.writing import CellKind
from hinet.data.text import known_shares
from hinet.engine import Found
from hinet.errors import FileError, HiNetError, counted
from hinet.taxonomy import PATH_MARK, split_path

if TYPE_CHECKING:
    from hinet.classifier.loaded import LoadedModel

KNOWN_WORDS = "known_words"  # the column of the share of words that the model knows

Cells = dict[str, list[Any]]
MAX_COLUMNS = 100_000  # of a table
MAX_CELLS = 1_000_000  # that are made at a time
DEFAULT_STYLE = TextStyle(PATH_MARK)


@dataclass(frozen=True)
class PredictionOptions:
    """Which predictions a table has.

    ``top`` predictions a row, the best first: traces or, with the decoding ``label``, labels; or, with
    ``min_confidence``, the deepest node with at least this probability. Where rows have several labels, these are the
    labels of at least the learned thresholds or ``min_probability``, or the ``top`` most probable. ``levels`` adds
    every step of the best trace with its probability, and for texts the share of known words; ``titles`` adds the title
    of the label.
    """

    top: int | None = None  # None is 1, or as many as the thresholds let through
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
            raise HiNetError("`levels` are those of the best trace; leave out `min_confidence` and the decoding")

    def check(self, fitted: Fitted) -> None:
        """Raise HiNetError for options that do not go with the labels of a model."""
        if fitted.codec.sets is None:
            if self.min_probability is not None:
                raise HiNetError("`min_probability` is for rows with several labels; give `min_confidence`")
        elif self.min_confidence is not None:
            raise HiNetError("`min_confidence` is for one label a row; give `min_probability`")
        elif self.decoding != "map" or self.levels:
            raise HiNetError(
                "`decoding` and `levels` are for one label a row, and the model has several; leave them out"
            )


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """Turns rows into columns: label, trace and probability, numbered from the second of several traces on."""

    fitted: Fitted
    options: PredictionOptions
    style: TextStyle = DEFAULT_STYLE  # of labels that are paths

    def __post_init__(self) -> None:
        self.options.check(self.fitted)
        if self._width > MAX_COLUMNS:
            raise HiNetError(
                f"top = {self.options.top:,} makes {self._width:,} columns, more than {MAX_COLUMNS:,}; ask for fewer"
            )

    @property
    def kinds(self) -> dict[str, CellKind]:
        """The columns and the kind of their cells."""
        if self.fitted.codec.sets is not None:
            of_sets: dict[str, CellKind] = {"label": "labels", "probability": "numbers"}
            return of_sets | ({"title": "titles"} if self.options.titles else {})
        kinds: dict[str, CellKind] = {}
        for rank in range(self.top):
            mark = f"_{rank + 1}" if rank else ""
            kinds |= {f"label{mark}": "text", f"trace{mark}": "texts", f"probability{mark}": "number"}
            if self.options.titles:
                kinds[f"title{mark}"] = "text"
        if self.options.levels:
            for level in range(1, self._depth + 1):
                kinds |= {f"level_{level}": "text", f"level_{level}_probability": "number"}
            if text_of(self.fitted.features) is not None:
                kinds[KNOWN_WORDS] = "number"
        return kinds

    @cached_property
    def top(self) -> int:
        """Predictions a row: as many as requested, or all there are."""
        layers, top = self.fitted.codec.layers, self.options.top or 1
        if self.options.decoding == "label":
            return min(top, len(np.unique(layers.node[layers.ends])))
        return min(top, layers.count_traces())

    @cached_property
    def _width(self) -> int:
        """How many columns there are."""
        return self.top * (4 if self.options.titles else 3) + (2 * self._depth if self.options.levels else 0)

    @property
    def rows_at_a_time(self) -> int:
        """How many rows to answer at a time, so that what they take in memory is bounded."""
        return max(1, MAX_CELLS // self._width)

    @cached_property
    def _depth(self) -> int:
        codec = self.fitted.codec
        return codec.layers.height + codec.from_root

    @cached_property
    def _names(self) -> list[str]:
        """The name of every node as a step of a trace."""
        codec = self.fitted.codec
        return list(codec.taxonomy.titles if codec.named_steps else codec.taxonomy.ids)

    @cached_property
    def _texts(self) -> dict[Any, tuple[str, list[str]]]:
        """Label and trace as they are written: by node in a tree, by path in a DAG."""
        return {}

    def columns(self, rows: list[str] | pa.Table, unknown: list[int] | None = None) -> Cells:
        """Return the answers of rows; with levels also how well words are known.

        Rows are texts, whose answers are blank where there is no text, or those of a table. Rows without a known
        feature are appended to ``unknown``.
        """
        unknown = [] if unknown is None else unknown
        if isinstance(rows, pa.Table):
            return self._filled(rows, unknown)
        filled = [row for row, text in enumerate(rows) if not is_blank(text)]
        if len(filled) == len(rows):
            return self._filled(rows, unknown)
        columns: Cells = {name: [None] * len(rows) for name in self.kinds}
        if filled:
            unknown_filled: list[int] = []
            for name, cells in self._filled([rows[row] for row in filled], unknown_filled).items():
                for row, cell in zip(filled, cells, strict=True):
                    columns[name][row] = cell
            unknown += [filled[row] for row in unknown_filled]
        return columns

    def _filled(self, rows: list[str] | pa.Table, unknown: list[int]) -> Cells:
        features = self.fitted.rows(rows)
        unknown += unknown_rows(self.fitted.features, features).tolist()
        cells = self._answers(features)
        texts = text_part(self.fitted.features, rows) if self.options.levels else None
        if texts is not None:
            shares = known_shares(texts[0].features, texts[1]).tolist()
            cells[KNOWN_WORDS] = [None if share != share else share for share in shares]
        return cells

    def _answers(self, rows: Any) -> Cells:
        options, search = self.options, self.fitted.predictor
        if self.fitted.codec.sets is not None:
            return self._of_sets(rows)
        if options.decoding == "label":
            best = search.top_labels(rows, self.top)
            return self._of_traces(best.found, best.probability)
        if options.min_confidence is not None or options.decoding != "map":
            answers = (
                search.decode(rows, options.decoding)
                if options.min_confidence is None
                else search.deepest_confident(rows, options.min_confidence)
            )
            answered = answers.probability >= (options.min_confidence or 0.0)
            nodes = np.where(answered, answers.nodes, NOTHING)
            traces = None if self._is_tree else traces_to_nodes(self.fitted, rows, nodes)
            trace = np.where(answered, np.cumsum(answered) - 1, NOTHING)
            return self._ranked(0, nodes, traces, trace, np.where(answered, answers.probability, np.nan))
        found_traces = search.traces(rows, self.top)
        assert found_traces.traces.log_p is not None
        return self._of_traces(found_traces, np.exp(found_traces.traces.log_p))

    def _of_sets(self, rows: Any) -> Cells:
        """Return the labels of rows that may have several, as lists."""
        top = None if self.options.top is None else self.top
        sets = self.fitted.label_sets(rows, top=top, min_probability=self.options.min_probability)
        bounds = [*pairwise(sets.offsets.tolist())]
        nodes, probability = sets.nodes.tolist(), np.minimum(sets.probability, 1).tolist()
        cells: Cells = {
            "label": [[self._texts_of(node)[0] for node in nodes[start:end]] for start, end in bounds],
            "probability": [probability[start:end] for start, end in bounds],
        }
        if self.options.titles:
            titles = self.fitted.codec.taxonomy.titles
            cells["title"] = [[titles[node] for node in nodes[start:end]] for start, end in bounds]
        return cells

    def _of_traces(self, found: Found, probability: NDArray[np.float64]) -> Cells:
        """Return the answers that some traces stand for, each with a probability: its own, or that of its label."""
        traces = found.traces
        counts = np.diff(traces.row_offsets)
        cells: Cells = {}
        for rank in range(self.top):
            has_trace = counts > rank
            trace = np.where(has_trace, traces.row_offsets[:-1] + rank, NOTHING)
            nodes = np.where(has_trace, traces.end_nodes[trace], NOTHING).astype(np.int64)
            cells |= self._ranked(rank, nodes, traces, trace, np.where(has_trace, probability[trace], np.nan))
        if self.options.levels:
            cells |= self._levels(found)
        return cells

    def _ranked(
        self,
        rank: int,
        nodes: NDArray[np.int64],
        traces: Traces | None,
        trace_index: NDArray[np.int64],
        probability: NDArray[np.float64],
    ) -> Cells:
        """Return label, trace and probability of every row, of one rank; in a DAG by the trace at each place."""
        mark = f"_{rank + 1}" if rank else ""
        if self._is_tree or traces is None:
            cells = [None if node == NOTHING else self._texts_of(node) for node in nodes.tolist()]
        else:
            cells = [None if path is None else self._texts_of(tuple(path)) for path in paths_of(traces, trace_index)]
        columns: Cells = {
            f"label{mark}": [None if cell is None else cell[0] for cell in cells],
            f"trace{mark}": [None if cell is None else cell[1] for cell in cells],
            f"probability{mark}": [None if p != p else min(p, 1.0) for p in probability.tolist()],
        }
        if self.options.titles:
            titles = self.fitted.codec.taxonomy.titles
            columns[f"title{mark}"] = [None if node == NOTHING else titles[node] for node in nodes.tolist()]
        return columns

    @property
    def _is_tree(self) -> bool:
        return self.fitted.codec.taxonomy.is_tree

    def _texts_of(self, end: int | tuple[int, ...]) -> tuple[str, list[str]]:
        """Return label and trace as text, of a node or a path of nodes."""
        if end not in self._texts:
            codec = self.fitted.codec
            path = codec.path_to(end) if isinstance(end, int) else end
            self._texts[end] = label_text(codec.label_of(path), self.style), list(map(str, codec.steps(path)))
        return self._texts[end]

    def _levels(self, found: Found) -> Cells:
        """Return every step of the best traces, and how probable it is to come down to it."""
        traces = found.traces
        first = traces.row_offsets[:-1]
        starts, lengths = traces.offsets[first], np.diff(traces.offsets)[first]
        cells: Cells = {}
        codec = self.fitted.codec
        if codec.from_root:
            cells["level_1"] = [self._names[codec.taxonomy.root]] * len(first)
            cells["level_1_probability"] = [1.0] * len(first)
        for level in range(codec.layers.height):
            has_level = lengths > level
            step = np.where(has_level, starts + level, 0)
            nodes = np.where(has_level, traces.layers.node[traces.neurons[step]], NOTHING).tolist()
            probabilities = np.where(has_level, np.exp(found.log_p[step]), np.nan).tolist()
            column = f"level_{level + 1 + codec.from_root}"
            cells[column] = [None if node == NOTHING else self._names[node] for node in nodes]
            cells[f"{column}_probability"] = [None if p != p else min(p, 1.0) for p in probabilities]
        return cells


def label_text(label: Any, style: TextStyle) -> str:
    """Return a label as a cell has it, a path as one text that is cut into the same steps."""
    if not isinstance(label, tuple):
        return str(label)
    steps = tuple(map(str, label))
    joined = style.between.join(steps)
    return joined if split_path(joined, style.mark) == steps else style.written(steps)


def concat_traces(parts: Sequence[Found]) -> Found:
    """Return the answers of blocks of rows as one."""
    layers = parts[0].traces.layers
    traces = Traces.joined(layers, [part.traces for part in parts])
    log_p = np.concatenate([part.log_p for part in parts])
    return Found(traces, log_p, np.concatenate([part.touched for part in parts]))


NO_ROWS = "there are no rows to predict: all were skipped, or none matches `where`"


@dataclass(frozen=True)
class PredictionNotes:
    """Rows to report: without text, and with a text but without a feature that the model knows."""

    blank: int = 0
    unknown: int = 0
    first_unknown: str = ""  # file and line, or row, of the first

    def __add__(self, other: PredictionNotes) -> PredictionNotes:
        first = self.first_unknown or other.first_unknown
        return PredictionNotes(self.blank + other.blank, self.unknown + other.unknown, first)

    def messages(self) -> list[str]:
        """Return the lines that report them."""
        lines = []
        if self.blank:
            rows = counted(self.blank, "row has no text: its prediction is/rows have no text: their predictions are")
            lines.append(f"{rows} blank")
        if self.unknown:
            rows = counted(self.unknown, "row has/rows have")
            lines.append(
                f"warning: {rows} no word that the model knows, the first at {self.first_unknown}; the prediction does "
                "not depend on the text"
            )
        return lines


class PredictionOutput:
    """Converts blocks of rows to output columns: line numbers if rows may be skipped, kept columns, predictions."""

    def __init__(
        self,
        loaded: LoadedModel,
        table: PredictionTable,
        query: RowQuery,
        prefix: str,
        skips: bool,
        first: LabelledBlock,
    ) -> None:
        self._loaded = loaded
        self._table, self._prefix, self._keeps_all = table, prefix, query.keep_all
        self._number_column = first.rows.unit if skips else None
        self.notes = PredictionNotes()
        self.rows_at_a_time = table.rows_at_a_time
        self._kept = first.rows.names if query.keep_all else list(query.keep)

    def kinds(self) -> dict[str, CellKind]:
        """Return the output columns and their kinds."""
        parts: list[dict[str, CellKind]] = [
            {} if self._number_column is None else {self._number_column: "integer"},
            dict.fromkeys(self._kept, "any"),
            {self._prefix + name: kind for name, kind in self._table.kinds.items()},
        ]
        kinds: dict[str, CellKind] = {}
        for part in parts:
            for name in part:
                if name in kinds:
                    raise HiNetError(f"a kept column has the name of the new column {name!r}; set `prefix`")
            kinds |= part
        return kinds

    def columns(self, block: LabelledBlock) -> Mapping[str, Any]:
        """Return the columns of a block."""
        self._check(block.rows)
        number_column = self._number_column
        columns: dict[str, Any] = {} if number_column is None else {number_column: block.rows.numbers}
        columns |= {name: block.rows.column(name) for name in self._kept}
        unknown: list[int] = []
        answers = self._table.columns(self._loaded.named_as_trained(block.inputs), unknown)
        blank = sum(map(is_blank, block.texts)) if block.table is None else 0
        first = f"{block.rows.path}, {block.rows.unit} {block.rows.numbers[unknown[0]]:,}" if unknown else ""
        self.notes += PredictionNotes(blank, len(unknown), first)
        return columns | {self._prefix + name: cells for name, cells in answers.items()}

    def _check(self, rows: RowBlock) -> None:
        """Raise FileError for a file with other columns than the first, if all are kept."""
        if self._keeps_all and {*rows.names} != {*self._kept}:
            other = next(iter({*rows.names} ^ {*self._kept}))
            raise FileError(rows.path, f"the files differ in the column {other!r}; name the columns to `keep`")
