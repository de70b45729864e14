"""``hinet predict``: labels, traces and probabilities of rows, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, signal
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.choices import Decoding, TableFormat
from hinet.cli.options import STANDARD, ClusterOptions, EncoderFolder, ModelFolder, RunOptions, ThreadedRun, option
from hinet.cli.table_options import FILES, SKIP_HINT, ColumnOptions, InputColumns, RowOptions
from hinet.errors import FileError, HiNetError, counted

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet.classifier.prediction_table import PredictionJob, Sink
    from hinet.classifier.saved_model import LoadedModel
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
_WITHIN = "Node below which to predict; repeatable. Probabilities are conditional on what is allowed."
_LEVELS = "Add each level of the trace with its probability, and the share of known words."
_ESCAPE = (
    "Put ' before cells of CSV and TSV that a spreadsheet would compute (those that start with =, +, -, @ or a control "
    "character, except numbers)."
)
_MIN_PROBABILITY = "For a multilabel model: predict all labels of at least this probability."
_LABEL_SEP = "Separator of several predicted labels in a cell of CSV and TSV (default: as in training, or |)."


def predict(
    model: ModelFolder,
    column_options: InputColumns,
    rows: RowOptions,
    place: ClusterOptions,
    run: ThreadedRun,
    data: Annotated[list[str] | None, typer.Argument(help=_DATA, show_default=False)] = None,
    out: Annotated[str, option(_OUT)] = STANDARD,
    to: Annotated[TableFormat | None, option(_TO)] = None,
    top: Annotated[int | None, option(_TOP, min=1)] = None,
    min_probability: Annotated[float | None, option(_MIN_PROBABILITY)] = None,
    label_sep: Annotated[str | None, option(_LABEL_SEP)] = None,
    min_confidence: Annotated[str | None, option(_MIN_CONFIDENCE)] = None,
    decoding: Annotated[Decoding, option(_DECODING)] = "map",
    within: Annotated[list[str] | None, option(_WITHIN)] = None,
    exclude: Annotated[list[str] | None, option("Node that is never predicted, nor one below it; repeatable.")] = None,
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
    from hinet.classifier.parameters import MIN_PROBABILITY
    from hinet.classifier.prediction_table import PredictionJob, Sink
    from hinet.classifier.saved_model import load_model

    paths, output, cluster = data or [STANDARD], "predictions" if out == STANDARD else out, place.chosen(run.threads)
    _check_paths(paths, on_cluster=cluster is not None)
    rows.check_outputs(paths, {"--out": out}, output, model)
    loaded = load_model(model, run.threads, encoder=encoder)
    min_probability = MIN_PROBABILITY.validate("--min-probability", min_probability)
    threshold = _min_confidence(min_confidence, loaded, run)
    allowed = tuple(within or ()), tuple(exclude or ())
    options = PredictionOptions(top, threshold, decoding, levels, titles, min_probability, *allowed)
    query = _query(loaded, column_options, rows, keep or [], keep_all=keep_all)
    _report_inputs(paths, top, loaded.table(options).top, run)
    job = PredictionJob(
        model, tuple(paths), query, rows.options, options, prefix, rows.skips_errors, SKIP_HINT, encoder=encoder
    )
    may_be_folder = out != STANDARD and (out.endswith("/") or Path(out).is_dir() or not Path(out).suffix)
    is_folder = cluster is not None and to is None and may_be_folder
    sink = Sink(out, to, is_folder, label_sep or loaded.columns.label_sep, escape_formulas)
    with rows.row_errors(output) as row_errors:
        _write(job, loaded, sink, cluster, row_errors, run)


def _write(
    job: PredictionJob, loaded: LoadedModel, sink: Sink, cluster: Cluster | None, row_errors: RowErrors, run: RunOptions
) -> None:
    """Write the predictions, made here or on a cluster, and print what to know about them."""
    from hinet.classifier.prediction_table import write_predictions
    from hinet.progress import counter_for_terminal

    with counter_for_terminal(run.quiet) as counter, _report_interruption(sink.out, counter) as advanced:
        if cluster is None:
            notes = write_predictions(job, loaded, sink, row_errors, advanced)
        else:
            from hinet.cluster import predict_rows

            notes = predict_rows(job, cluster, sink, row_errors, advanced, loaded)
    if row_errors.blank_lines:
        noun = "blank line is not a row and has no prediction/blank lines are not rows and have no predictions"
        run.message(counted(row_errors.blank_lines, noun))
    for message in notes.messages():
        run.message(message)


@contextmanager
def _report_interruption(out: str, counter: RowCounter) -> Iterator[Callable[[int], None]]:
    """Print how many rows were finished, and what became of them, after Ctrl-C or SIGTERM.

    The yielded function counts finished rows, and raises KeyboardInterrupt after Ctrl-C. Compiled code turns a
    KeyboardInterrupt into a SystemError, and callbacks of the garbage collector swallow it.
    """
    interrupted = Event()

    def interrupt(number: int, frame: FrameType | None) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    def advanced(rows: int) -> None:
        counter.advanced(rows)
        if interrupted.is_set():
            raise KeyboardInterrupt

    before = signal(SIGINT, interrupt)
    try:
        yield advanced
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
        columns, labels=False, where=rows.conditions, keep=tuple(keep), keep_all=keep_all, explicit=explicit,
        allow_blank=True, widths=loaded.widths(columns),
    )  # fmt: skip


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
