"""``hinet predict``: labels, traces and probabilities of rows, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from signal import SIGINT, signal
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from hinet.choices import Decoding, TableFormat
from hinet.cli.options import (
    STANDARD,
    ClusterOptions,
    EncoderFolder,
    ModelFolder,
    RunOptions,
    cluster_options,
    option,
    thread_options,
)
from hinet.cli.table_options import FILES, SKIP_HINT, ColumnOptions, RowOptions, input_options, row_options
from hinet.errors import FileError, HiNetError, counted

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet.classifier.loaded import LoadedModel
    from hinet.classifier.prediction_table import PredictionNotes, PredictionTable
    from hinet.cluster import Cluster
    from hinet.data.tables import RowErrors, RowQuery
    from hinet.progress import RowCounter

_TOP = (
    "Predictions per row, best first: traces, or labels with --decoding label (default: 1; for a multilabel model, all "
    "labels above its thresholds)."
)
_MIN_CONFIDENCE = (
    "Predict the deepest node of at least this probability, or nothing; 'calibrated' is the threshold for the --risk "
    "of training (default: the best trace, whatever its probability)."
)
_DATA = f"{FILES} Also plain lines of text (default: standard input)."
_OUT = "File to write; - for standard output; with --cluster also a folder."
_TO = "Output format (default: by the extension of --out, else that of the rows)."
_DECODING = "Most probable trace (map), best expected hierarchical F1, or most probable label."
_LEVELS = "Add each level of the trace with its probability, and the share of known words."
_ESCAPE = (
    "Put ' before cells of CSV and TSV that a spreadsheet would compute (those that start with =, +, -, @ or a control "
    "character, except numbers)."
)
_MIN_PROBABILITY = "For a multilabel model: predict all labels of at least this probability."
_LABEL_SEP = "Separator of several predicted labels in a cell of CSV and TSV (default: as in training, or |)."


@thread_options
@cluster_options
@row_options
@input_options
def predict(
    model: ModelFolder,
    rows: RowOptions,
    column_options: ColumnOptions,
    place: ClusterOptions,
    run: RunOptions,
    data: Annotated[list[str] | None, typer.Argument(help=_DATA, show_default=False)] = None,
    out: Annotated[str, option(_OUT)] = STANDARD,
    to: Annotated[TableFormat | None, option(_TO)] = None,
    top: Annotated[int | None, option(_TOP, min=1)] = None,
    min_probability: Annotated[float | None, option(_MIN_PROBABILITY)] = None,
    label_sep: Annotated[str | None, option(_LABEL_SEP)] = None,
    min_confidence: Annotated[str | None, option(_MIN_CONFIDENCE)] = None,
    decoding: Annotated[Decoding, option(_DECODING)] = "map",
    levels: Annotated[bool, option(_LEVELS, "--levels")] = False,
    titles: Annotated[bool, option("Add the title of the label; several are separated by |.", "--titles")] = False,
    keep: Annotated[list[str] | None, option("Input column to copy to the output; repeatable.")] = None,
    keep_all: Annotated[bool, option("Copy all input columns to the output.", "--keep-all")] = False,
    prefix: Annotated[str, option("Prefix of the names of new columns.")] = "",
    escape_formulas: Annotated[bool, option(_ESCAPE, "--escape-formulas")] = False,
    encoder: EncoderFolder = None,
) -> None:
    """Predict the labels of rows, in their order and format, in constant memory.

    Example: hinet predict model new_products.csv --top 3 --out predictions.csv

    The new columns are label, trace and probability, with _2, _3 … for further predictions; --levels describes the
    first. For a multilabel model they are label and probability, each with all labels of the row: joined in CSV and
    TSV, as lists in JSON lines and Parquet. If a label has several paths, --decoding label sums over them, and the
    trace is the most probable one. With --on-error skip, a column has the line of each row. With --cluster, an --out
    without extension is a folder of Parquet files, which the workers write.

    A file appears once it is complete. After Ctrl-C, an older one is unchanged, and the exit code is 130.
    """
    from hinet.classifier.answers import PredictionOptions
    from hinet.classifier.loaded import load_model
    from hinet.classifier.parameters import MIN_PROBABILITY
    from hinet.data.tables.writing import LABEL_SEP
    from hinet.progress import counter_for_terminal

    paths, output = data or [STANDARD], "predictions" if out == STANDARD else out
    cluster = place.chosen(run.threads)
    _check_paths(paths, on_cluster=cluster is not None)
    rows.check_outputs(paths, {"--out": out}, output, model)
    loaded = load_model(model, run.threads, encoder=encoder)
    options = PredictionOptions(
        top, _min_confidence(min_confidence, loaded, run), decoding, levels, titles,
        MIN_PROBABILITY.validate("--min-probability", min_probability),
    )  # fmt: skip
    query = _query(loaded, column_options, rows, keep or [], keep_all=keep_all)
    task = _Task(model, encoder, loaded, loaded.table(options), paths, query, rows, prefix)
    _report_inputs(paths, top, task.table.top, run)
    target = _Target(out, to, label_sep or loaded.columns.label_sep or LABEL_SEP, escape_formulas)
    with (
        rows.row_errors(output) as row_errors,
        counter_for_terminal(run.quiet) as counter,
        _report_interruption(out, counter) as check_interrupted,
    ):
        if cluster is None:
            notes = task.write(target, row_errors, counter, check_interrupted)
        else:
            notes = task.write_on(cluster, target, row_errors, counter)
    for message in notes.messages():
        run.message(message)


class _Target(NamedTuple):
    """Output file and its format."""

    out: str
    format: TableFormat | None
    label_sep: str
    escape_formulas: bool


class _Task(NamedTuple):
    """A model and the rows to predict with it."""

    model: Path
    encoder: str | None
    loaded: LoadedModel
    table: PredictionTable
    paths: list[str]
    query: RowQuery
    rows: RowOptions
    prefix: str

    def write(
        self, target: _Target, row_errors: RowErrors, counter: RowCounter, check_interrupted: Callable[[], None]
    ) -> PredictionNotes:
        """Write the predictions and return what to report; open the file after the first block is read."""
        from hinet.classifier.prediction_table import NO_ROWS, PredictionOutput
        from hinet.data.tables import labelled_blocks, new_table, output_format

        blocks = labelled_blocks(self.paths, self.query, self.rows.options, row_errors)
        filled = (block for block in blocks if len(block))
        first = next(filled, None)
        if first is None:
            raise HiNetError(NO_ROWS)
        output = PredictionOutput(self.loaded, self.table, self.query, self.prefix, self.rows.skips_errors, first)
        out, format, label_sep, escape_formulas = target
        format = output_format(out, format, first.rows.format)
        with new_table(out, format, output.kinds(), label_sep=label_sep, escape_formulas=escape_formulas) as table:
            for block in chain.from_iterable(block.parts(output.rows_at_a_time) for block in chain([first], filled)):
                table.write(output.columns(block))
                counter.advanced(len(block))
                check_interrupted()
        return output.notes

    def write_on(
        self, cluster: Cluster, target: _Target, row_errors: RowErrors, counter: RowCounter
    ) -> PredictionNotes:
        """Write the predictions that the workers of a cluster make, and return what to report."""
        from hinet.cluster.prediction import PredictionJob, Sink, predict_rows

        job = PredictionJob(
            self.model, tuple(self.paths), self.query, self.rows.options, self.table.options, self.prefix,
            self.rows.skips_errors, SKIP_HINT, encoder=self.encoder,
        )  # fmt: skip
        out, format, label_sep, escape_formulas = target
        sink = Sink(out, format, format is None and _is_folder(out), label_sep, escape_formulas)
        return predict_rows(job, cluster, sink, row_errors, counter.advanced, self.loaded)


@contextmanager
def _report_interruption(out: str, counter: RowCounter) -> Iterator[Callable[[], None]]:
    """Print how many rows were finished, and what became of them, after Ctrl-C or SIGTERM.

    The yielded function raises KeyboardInterrupt after Ctrl-C. Compiled code turns a KeyboardInterrupt into a
    SystemError, and callbacks of the garbage collector swallow it.
    """
    interrupted = Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def check_interrupted() -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt

    before = signal(SIGINT, interrupt)
    try:
        yield check_interrupted
    except (KeyboardInterrupt, SystemExit, SystemError) as error:
        if isinstance(error, SystemError) and not interrupted.is_set():
            raise
        counter.end_line()
        finished = f"interrupted after {counted(counter.rows, 'row')}"
        remedy = "To keep finished rows, write them to --out -"
        outcome = "the output is incomplete" if out == STANDARD else f"{out} was not written. {remedy}"
        typer.echo(f"{finished}; {outcome}", err=True)
        if isinstance(error, SystemError):
            raise KeyboardInterrupt from None
        raise
    finally:
        signal(SIGINT, before)


def _check_paths(paths: list[str], *, on_cluster: bool) -> None:
    """Raise HiNetError for a text that is given instead of a file, and for standard input on a cluster."""
    for path in paths:
        if " " in path and not Path(path).exists():
            raise FileError(path, f"no such file; pass a text through standard input: echo {path!r} | hinet predict …")
    if on_cluster and STANDARD in paths:
        raise HiNetError("--cluster reads files, not standard input; name them")


def _report_inputs(paths: list[str], top: int | None, available: int, run: RunOptions) -> None:
    """Print that texts are read from the terminal, and that there are fewer predictions than --top."""
    from hinet.files.streams import standard_input

    if STANDARD in paths and standard_input().isatty():
        run.message("reading texts from the terminal, one per line; end with Ctrl-D")
    if top is not None and available < top:
        run.message(f"--top {top:,} is more than the model has: all {available:,} are given")


def _query(
    loaded: LoadedModel, column_options: ColumnOptions, rows: RowOptions, keep: list[str], *, keep_all: bool
) -> RowQuery:
    """Return the rows and columns to read; columns that no option names are those of training."""
    from hinet.data.tables import RowQuery

    columns = loaded.checked_columns(column_options.with_defaults(loaded.columns))
    explicit = bool(column_options.text) or len(columns.text) > 1 or columns.is_mixed
    return RowQuery(
        columns, labels=False, where=rows.where, keep=tuple(keep), keep_all=keep_all, explicit=explicit,
        allow_blank=True, widths=loaded.widths(columns),
    )  # fmt: skip


def _is_folder(out: str) -> bool:
    """Return whether an output of several workers is a folder, by its name or because it exists as one."""
    return out != STANDARD and (out.endswith("/") or Path(out).is_dir() or not Path(out).suffix)


def _min_confidence(value: str | None, loaded: LoadedModel, run: RunOptions) -> float | None:
    if value is None:
        return None
    if value == "calibrated":
        bound = loaded.risk_bound
        if bound is None:
            raise HiNetError(
                "this model has no calibrated threshold; train with --risk and enough held-out rows, or give "
                "--min-confidence a number"
            )
        run.message(f"--min-confidence calibrated: {bound}")
        return bound.threshold
    try:
        threshold = float(value)
    except ValueError:
        threshold = -1.0
    if not 0 < threshold <= 1:
        raise HiNetError(f"--min-confidence: expected a number above 0 and at most 1, or 'calibrated'; got {value!r}")
    return threshold
