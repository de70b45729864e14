"""Answers of a saved model to rows of files, as the columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.choices import TableFormat
from hinet.classifier.answers import PredictionOptions, select_answers
from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import text_of, text_part, unknown_rows
from hinet.classifier.labels import NOTHING, TextStyle, paths_of
from hinet.classifier.predicted_sets import Answers
from hinet.data.tables import LabelledBlock, RowBlock, RowErrors, RowQuery, TableOptions, labelled_blocks
from hinet.data.tables.labelled_tables import is_blank
from hinet.data.tables.writing import LABEL_SEP, CellKind, new_table, output_format
from hinet.data.text import known_shares
from hinet.errors import FileError, HiNetError, counted
from hinet.files.delimited import first_repeated
from hinet.taxonomy import PATH_MARK, split_path

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from hinet.classifier.saved_model import LoadedModel
    from hinet.data.tables.writing import TableWriter

KNOWN_WORDS = "known_words"  # column with the share of words that the model knows
NO_ROWS = "there are no rows to predict: all were skipped, or none matches `where`"

Cells = dict[str, list[Any]]
DEFAULT_STYLE = TextStyle(PATH_MARK)
MAX_COLUMNS = 100_000  # maximum columns of a table
MAX_CELLS = 1_000_000  # maximum cells computed together
PORTION = 4  # blocks per portion of a cluster


@dataclass(frozen=True, eq=False)
class PredictionTable:
    """Converts rows to columns: label, trace and probability; names of further answers end in ``_2``, ``_3`` and so on.

    ``style`` is how paths are written as text.
    """

    fitted: Fitted
    options: PredictionOptions
    style: TextStyle = DEFAULT_STYLE
    max_columns: int = MAX_COLUMNS
    max_cells: int = MAX_CELLS

    def __post_init__(self) -> None:
        self.options.check(self.fitted.codec)
        if self._width > self.max_columns:
            raise HiNetError(
                f"top = {self.options.top:,} makes {self._width:,} columns, more than {self.max_columns:,}; ask for "
                "fewer"
            )

    @property
    def kinds(self) -> dict[str, CellKind]:
        """The columns and the kinds of their cells."""
        kinds: dict[str, CellKind] = {}
        if self.fitted.codec.sets is not None:
            kinds |= {"label": "labels", "probability": "numbers"}
            return kinds | ({"title": "titles"} if self.options.titles else {})
        for rank in range(self.top):
            suffix = _suffix(rank)
            kinds |= {f"label{suffix}": "text", f"trace{suffix}": "texts", f"probability{suffix}": "number"}
            if self.options.titles:
                kinds[f"title{suffix}"] = "text"
        if self.options.levels:
            for level in range(1, self._depth + 1):
                kinds |= {f"level_{level}": "text", f"level_{level}_probability": "number"}
            if text_of(self.fitted.features) is not None:
                kinds[KNOWN_WORDS] = "number"
        return kinds

    @cached_property
    def top(self) -> int:
        """Number of answers per row: the requested number, or all there are."""
        layers, top = self.fitted.codec.layers, self.options.top or 1
        if self.options.decoding == "label":
            return min(top, len(np.unique(layers.node[layers.ends])))
        return min(top, layers.count_traces())

    @cached_property
    def _width(self) -> int:
        """Number of columns."""
        return self.top * (4 if self.options.titles else 3) + (2 * self._depth if self.options.levels else 0)

    @property
    def rows_at_a_time(self) -> int:
        """Number of rows to predict together, so that memory is bounded."""
        return max(1, self.max_cells // self._width)

    @cached_property
    def _depth(self) -> int:
        codec = self.fitted.codec
        return codec.layers.height + codec.from_root

    @cached_property
    def _texts(self) -> dict[Any, tuple[str, list[str]]]:
        """Label and trace as text: by node in a tree, by path in a DAG."""
        return {}

    def columns(self, rows: list[str] | pa.Table, unknown: list[int] | None = None) -> Cells:
        """Return the answers to texts, blank for blank texts, or to the rows of a table.

        Rows without a known feature are appended to ``unknown``.
        """
        unknown = [] if unknown is None else unknown
        filled = [] if isinstance(rows, pa.Table) else [row for row, text in enumerate(rows) if not is_blank(text)]
        if isinstance(rows, pa.Table) or len(filled) == len(rows):
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
        options = replace(self.options, top=None if self.options.top is None else self.top)
        answers = select_answers(self.fitted, features, options, with_traces=True)
        if self.fitted.codec.sets is not None:
            return self._set_cells(answers)
        cells: Cells = {}
        for rank in range(self.top):
            cells |= self._ranked_cells(answers, rank)
        if self.options.levels:
            cells |= self._level_cells(answers)
            texts = text_part(self.fitted.features, rows)
            if texts is not None:
                shares = known_shares(texts[0].features, texts[1]).tolist()
                cells[KNOWN_WORDS] = [None if share != share else share for share in shares]
        return cells

    def _set_cells(self, answers: Answers) -> Cells:
        """Return the labels of every row as lists."""
        bounds = [*pairwise(answers.offsets.tolist())]
        nodes, probability = answers.nodes.tolist(), np.minimum(answers.probability, 1).tolist()
        cells: Cells = {
            "label": [[self._texts_of(node)[0] for node in nodes[start:end]] for start, end in bounds],
            "probability": [probability[start:end] for start, end in bounds],
        }
        if self.options.titles:
            titles = self.fitted.codec.taxonomy.titles
            cells["title"] = [[titles[node] for node in nodes[start:end]] for start, end in bounds]
        return cells

    def _ranked_cells(self, answers: Answers, rank: int) -> Cells:
        """Return label, trace and probability of the answers of one rank."""
        nodes, suffix = answers.nodes_of_rank(rank).tolist(), _suffix(rank)
        keys: list[Any] = [None if node == NOTHING else node for node in nodes]
        if answers.traces is not None and not self.fitted.codec.taxonomy.is_tree:
            paths = paths_of(answers.traces, answers.indices_of_rank(rank))
            keys = [None if path is None else tuple(path) for path in paths]
        texts = [(None, None) if key is None else self._texts_of(key) for key in keys]
        cells: Cells = {
            f"label{suffix}": [label for label, _ in texts],
            f"trace{suffix}": [trace for _, trace in texts],
            f"probability{suffix}": _probability_cells(answers.probabilities_of_rank(rank)),
        }
        if self.options.titles:
            titles = self.fitted.codec.taxonomy.titles
            cells[f"title{suffix}"] = [None if node == NOTHING else titles[node] for node in nodes]
        return cells

    def _texts_of(self, end: int | tuple[int, ...]) -> tuple[str, list[str]]:
        """Return label and trace as text, given a node or a path of nodes."""
        if end not in self._texts:
            codec = self.fitted.codec
            path = codec.path_to(end) if isinstance(end, int) else end
            self._texts[end] = label_text(codec.label_of(path), self.style), list(map(str, codec.steps(path)))
        return self._texts[end]

    def _level_cells(self, answers: Answers) -> Cells:
        """Return every step of the best traces with the probability of the path down to it."""
        traces, log_p, codec = answers.traces, answers.log_p, self.fitted.codec
        assert traces is not None
        assert log_p is not None
        names = codec.taxonomy.titles if codec.named_steps else codec.taxonomy.ids
        first = traces.row_offsets[:-1]
        starts, lengths = traces.offsets[first], np.diff(traces.offsets)[first]
        cells: Cells = {}
        if codec.from_root:
            cells["level_1"] = [names[codec.taxonomy.root]] * len(first)
            cells["level_1_probability"] = [1.0] * len(first)
        for level in range(codec.layers.height):
            has_level = lengths > level
            step = np.where(has_level, starts + level, 0)
            nodes = np.where(has_level, traces.layers.node[traces.neurons[step]], NOTHING).tolist()
            column = f"level_{level + 1 + codec.from_root}"
            cells[column] = [None if node == NOTHING else names[node] for node in nodes]
            cells[f"{column}_probability"] = _probability_cells(np.where(has_level, np.exp(log_p[step]), np.nan))
        return cells


def _suffix(rank: int) -> str:
    """Return the end of the names of the columns of a rank."""
    return f"_{rank + 1}" if rank else ""


def _probability_cells(probability: NDArray[np.float64]) -> list[float | None]:
    """Return probabilities of at most 1, None for NaN."""
    return [None if p != p else min(p, 1.0) for p in probability.tolist()]


def label_text(label: Any, style: TextStyle) -> str:
    """Return a label as one text; a path becomes a text that is split into the same steps."""
    if not isinstance(label, tuple):
        return str(label)
    steps = tuple(map(str, label))
    joined = style.between.join(steps)
    return joined if split_path(joined, style.mark) == steps else style.written(steps)


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
        numbers: dict[str, CellKind] = {} if self._number_column is None else {self._number_column: "integer"}
        kept: dict[str, CellKind] = dict.fromkeys(self._kept, "any")
        predicted = {self._prefix + name: kind for name, kind in self._table.kinds.items()}
        if (repeated := first_repeated([*numbers, *kept, *predicted])) is not None:
            raise HiNetError(f"a kept column has the name of the new column {repeated!r}; set `prefix`")
        return {**numbers, **kept, **predicted}

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


@dataclass(frozen=True)
class PredictionJob:
    """Rows of files to predict with a saved model, on one machine or on a cluster."""

    model: Path
    files: tuple[str, ...]
    query: RowQuery
    tables: TableOptions
    options: PredictionOptions
    prefix: str = ""
    skips: bool = False  # whether to skip invalid rows and add the line of each row to the output
    hint: str = ""  # end of the error of an invalid row
    portion: int = PORTION  # blocks of rows that a worker of a cluster gets at a time
    encoder: str | None = None  # new place of the encoder, if it moved since training

    def blocks(self, row_errors: RowErrors) -> Iterator[LabelledBlock]:
        """Yield blocks with at least one row; raise HiNetError if there are no rows."""
        blocks = (block for block in labelled_blocks(self.files, self.query, self.tables, row_errors) if len(block))
        first = next(blocks, None)
        if first is None:
            raise HiNetError(NO_ROWS)
        yield from chain([first], blocks)

    def output(self, loaded: LoadedModel, first: LabelledBlock) -> PredictionOutput:
        """Return the converter of rows with the columns of the first block."""
        return PredictionOutput(loaded, loaded.table(self.options), self.query, self.prefix, self.skips, first)


@dataclass(frozen=True)
class Sink:
    """Destination and format of predictions."""

    out: str
    format: TableFormat | None = None  # default: from the name, or that of the rows
    is_folder: bool = False  # folder of Parquet files that the workers of a cluster write
    label_sep: str | None = None  # separator of several labels in a cell of CSV and TSV
    escape_formulas: bool = False  # only for CSV and TSV

    def table(self, row_format: TableFormat, kinds: Mapping[str, CellKind]) -> AbstractContextManager[TableWriter]:
        """Open the file, for predictions of rows in a format."""
        format = output_format(self.out, self.format, row_format)
        return new_table(self.out, format, kinds, self.label_sep or LABEL_SEP, escape_formulas=self.escape_formulas)


def write_predictions(
    job: PredictionJob, loaded: LoadedModel, sink: Sink, row_errors: RowErrors, advanced: Callable[[int], None]
) -> PredictionNotes:
    """Write the predictions of all rows and return notes for the user; ``advanced`` gets finished rows."""
    blocks = job.blocks(row_errors)
    first = next(blocks)
    output = job.output(loaded, first)
    with sink.table(first.rows.format, output.kinds()) as table:
        for part in chain.from_iterable(block.parts(output.rows_at_a_time) for block in chain([first], blocks)):
            table.write(output.columns(part))
            advanced(len(part))
    return output.notes
