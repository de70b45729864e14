"""A saved model of texts or of rows of a table for prediction, and its answers as the columns of a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from hinet.classifier.bundle import load_fitted
from hinet.classifier.explanation import Explanation, explain_row
from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import FrameInput, text_of, text_part, unknown_rows
from hinet.classifier.labels import NOTHING, TextStyle, paths_of
from hinet.classifier.predicted_sets import Answers
from hinet.data import Traces
from hinet.data.tables import Columns, LabelledBlock, RowBlock, RowErrors, RowQuery, TableOptions, labelled_blocks
from hinet.data.tables.labelled_tables import input_table, is_blank
from hinet.data.tables.writing import LABEL_SEP, CellKind, new_table, output_format
from hinet.data.text import known_shares
from hinet.encoders.meaning import EncoderPlace
from hinet.engine import Found
from hinet.errors import FileError, HiNetError, LabelError, counted
from hinet.evaluation.risk import RiskBound
from hinet.files.delimited import missing_column_message
from hinet.taxonomy import PATH_MARK, Taxonomy, split_path

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

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


def concat_traces(parts: Sequence[Found]) -> Found:
    """Return the traces of blocks of rows as one."""
    layers = parts[0].traces.layers
    traces = Traces.joined(layers, [part.traces for part in parts])
    log_p = np.concatenate([part.log_p for part in parts])
    return Found(traces, log_p, np.concatenate([part.touched for part in parts]))


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


COLUMNS = "columns"  # note in the manifest with the columns of the training rows


class RowError(HiNetError):
    """A row cannot be read; ``row`` is its index."""

    def __init__(self, row: int, message: str) -> None:
        self.row = row
        super().__init__(message)


@dataclass(frozen=True)
class LoadedModel:
    """A model of texts, or of rows of a table, and its manifest."""

    fitted: Fitted
    manifest: Mapping[str, Any]

    @property
    def columns(self) -> Columns:
        """The columns of the training rows, or the default ones if they are unknown."""
        noted, features = saved_columns(self.manifest), self.fitted.features
        if isinstance(features, FrameInput) and noted is None:
            kinds = features.columns
            return Columns(kinds.text, number=kinds.number, category=kinds.category, vector=kinds.vector)
        return noted or Columns()

    def checked_columns(self, columns: Columns) -> Columns:
        """Return the columns; raise HiNetError unless each kind has as many as in training."""
        features = self.fitted.features
        if not isinstance(features, FrameInput):
            if columns.is_mixed:
                raise HiNetError("the model reads only texts; leave `number`, `category` and `vector` out")
            return columns
        for kind, names in features.columns.to_dict().items():
            given = getattr(columns, kind)
            if len(given) != len(names):
                trained = ", ".join(names) or "none"
                raise HiNetError(
                    f"the model was trained on {len(names)} columns of `{kind}` ({trained}), got {len(given)}; name as "
                    "many"
                )
        return columns

    def named_as_trained(self, inputs: Any) -> Any:
        """Return a table with the column names of training; texts unchanged."""
        features = self.fitted.features
        return inputs.rename_columns(list(features.columns.names)) if isinstance(features, FrameInput) else inputs

    @property
    def reads_rows(self) -> bool:
        """Whether the model reads the columns of a table, not only a text."""
        return isinstance(self.fitted.features, FrameInput)

    def inputs_of(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Return rows by column as inputs, texts or a table; raise RowError for a row that cannot be read."""
        columns = self.columns
        names = columns.inputs if self.reads_rows else columns.text
        for number, row in enumerate(rows):
            for name in names:
                if name not in row:
                    message = missing_column_message(name, list(row))
                    raise RowError(number, f"{message}; null stands for a missing value")
        if self.reads_rows:
            return self._table_of(rows)
        texts = []
        for number, row in enumerate(rows):
            cells = [row[name] for name in names]
            if not all(cell is None or isinstance(cell, str) for cell in cells):
                raise RowError(number, f"expected text in {', '.join(names)}")
            texts.append(" ".join(cell for cell in cells if cell))
        return texts

    def _table_of(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        columns, widths = self.columns, self.widths(self.columns)

        def table(some: Sequence[Mapping[str, Any]]) -> pa.Table:
            cells = {name: [row[name] for row in some] for name in columns.inputs}
            block = RowBlock("rows", "jsonl", list(range(1, len(some) + 1)), cells, positions=list(range(len(some))))
            return input_table(block, columns, widths)

        try:
            return self.named_as_trained(table(rows))
        except HiNetError:
            for number, row in enumerate(rows):
                try:
                    table([row])
                except HiNetError as reason:
                    raise RowError(number, str(reason)) from None
            raise

    def widths(self, columns: Columns) -> dict[str, int]:
        """Return the length of the vectors of each column."""
        vectors = self.fitted.features.vectors if isinstance(self.fitted.features, FrameInput) else ()
        return {name: vector.width for name, vector in zip(columns.vector, vectors, strict=True)}

    @property
    def given_taxonomy(self) -> Taxonomy | None:
        """The taxonomy that labels must be in; None if it was inferred from the labels."""
        codec = self.fitted.codec
        return None if codec.inferred else codec.taxonomy

    @property
    def risk_bound(self) -> RiskBound | None:
        """The calibrated threshold and its risk, if there is one."""
        risk_bound = (self.manifest["calibration"] or {}).get("promise")
        return None if risk_bound is None else RiskBound(**risk_bound)

    @property
    def style(self) -> TextStyle:
        """Text form of labels that are paths."""
        separator = self.columns.path_sep
        return TextStyle(PATH_MARK) if separator in (None, PATH_MARK) else TextStyle(separator, separator)

    def table(self, options: PredictionOptions) -> PredictionTable:
        """Return the converter of rows to columns of answers."""
        fitted = self.fitted.restricted(list(options.within) or None, list(options.exclude) or None)
        return PredictionTable(fitted, options, self.style)

    def explain(self, text: str, label: str | None = None, *, most: int) -> Explanation:
        """Explain the best trace of a text, or that of a label, which is written as in the training rows.

        If the model reads the rows of a table, the text is a row as a JSON object.

        Raises
        ------
        HiNetError
            If the model has no such label.
        """
        inputs = self._row(text) if self.reads_rows else [text]
        return explain_row(self.fitted, inputs, None if label is None else self._traces_of(label), most)

    def _row(self, text: str) -> Any:
        """Return a table of one row, given as a JSON object."""
        columns = self.columns
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            names = ", ".join(columns.inputs)
            raise HiNetError(f"the model reads the columns {names}; give a row as JSON, such as {_example(columns)}")
        return self.inputs_of([row])

    def _traces_of(self, label: str) -> Traces:
        codec = self.fitted.codec
        written = self.columns.parse_label([label])
        try:
            if not codec.predictable(codec.truth([written])).all():
                raise HiNetError(
                    f"the model has no label {label!r}: no training row ended there; name one that it predicts"
                )
            return codec.encode([written])
        except LabelError as error:
            raise HiNetError(str(error).removeprefix("row 0: ")) from None


def _example(columns: Columns) -> str:
    """Return an example row as JSON."""
    values = {"text": "…", "number": 12.5, "category": "…", "vector": None}
    return json.dumps(
        {name: value for kind, value in values.items() for name in getattr(columns, kind)}, ensure_ascii=False
    )


def saved_columns(manifest: Mapping[str, Any]) -> Columns | None:
    """Return the columns noted in a manifest."""
    noted = manifest.get("notes", {}).get(COLUMNS)
    return None if noted is None else Columns.from_dict(noted)


def meaning_entry(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the entry of the vectors of texts in a manifest, if there is one."""
    features = manifest["features"]
    text = features["text"] if features["kind"] == "frame" else features
    entry: Mapping[str, Any] | None = (text or {}).get("meaning")
    return entry


def load_model(
    path: str | Path, threads: int | None, *, mapped: bool = True, encoder: EncoderPlace | None = None
) -> LoadedModel:
    """Load a model of texts or tables from a folder; ``encoder`` is the current place of its encoder.

    Unless ``mapped``, the whole model is read into memory, and its files may change.
    """
    fitted, manifest = load_fitted(path, mapped=mapped, encoder=encoder)
    if fitted.features.kind not in ("text", "frame"):
        raise FileError(path, "the model reads rows of numbers, which tables of text cannot give; use it from Python")
    return LoadedModel(fitted.with_threads(threads), manifest)
