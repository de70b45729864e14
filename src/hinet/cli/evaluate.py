"""``hinet evaluate``: how a model does on labelled rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hinet.cli.column_options import ColumnChoice, names_columns
from hinet.cli.options import Running, option, runs
from hinet.cli.plot_options import PLOT, check_plot
from hinet.cli.row_options import FILES, RowReading, reads_rows
from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when the command runs, so that --help stays instant
    from rich.table import Table

    from hinet.classifier.truth import Truth
    from hinet.cli.models import LoadedModel
    from hinet.data.tables import LabelledBlock
    from hinet.engine import Found
    from hinet.evaluation.evaluation import Evaluation
    from hinet.evaluation.risk import AnswerCounts

_BESIDE = "evaluation"  # the name that the default of --rejects begins with
EXAMPLE = "Example: hinet evaluate model test.csv --plot report.png"


@runs
@reads_rows
@names_columns
def evaluate(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)],
    data: Annotated[list[str], typer.Argument(help=FILES, show_default=False)],
    rows: RowReading,
    named: ColumnChoice,
    running: Running,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    plot: Annotated[
        Path | None,
        option("--plot", f"Draw accuracy by level, reliability, coverage and risk, and where errors fall. {PLOT}"),
    ] = None,
) -> None:
    """Judge a model on labelled rows: accuracy, hierarchical F1, accuracy by level, calibration, coverage."""
    from hinet.cli.models import load_model
    from hinet.data.tables import RowQuery, labelled_blocks, taxonomy_check
    from hinet.progress import counter_for_terminal

    check_plot(plot)
    rows.check_outputs(data, {"--plot": plot}, _BESIDE, model)
    loaded = load_model(model, running.threads)
    check = taxonomy_check(loaded.given_taxonomy)
    query = RowQuery(named.over(loaded.columns), where=rows.where, check=check)
    start = time.perf_counter()
    with rows.row_errors(_BESIDE) as row_errors, counter_for_terminal(running.quiet or as_json) as counter:
        parts = []
        for block in labelled_blocks(data, query, rows.options, row_errors):
            if len(block):
                parts.append(_judged(loaded, block))
                counter.advanced(len(block))
    evaluation = _joined(loaded, parts)
    speed = len(evaluation) / (time.perf_counter() - start - sum(part.at_threshold.seconds for part in parts))
    if plot is not None:
        from hinet.evaluation.plots import plot_evaluation

        plot_evaluation(evaluation, plot, f"{model.name}: {len(evaluation):,} rows")
    _print(evaluation, loaded, speed, _counts(parts), as_json)


class _AtThreshold(NamedTuple):
    """How rows are answered at the calibrated threshold, if there is one, and how long that took."""

    counts: AnswerCounts | None
    seconds: float


class _JudgedBlock(NamedTuple):
    """The labels of rows, what was found, which rows are right, and the answers at the calibrated threshold."""

    labels: list[tuple[str, ...]]
    found: Found
    right: Any
    at_threshold: _AtThreshold


def _judged(loaded: LoadedModel, block: LabelledBlock) -> _JudgedBlock:
    truth = loaded.fitted.form.truth(block.labels)
    rows = loaded.rows_of(block.texts)
    found = loaded.fitted.search.traces(rows)
    ends = found.traces.end_nodes[found.traces.row_offsets[:-1]].astype("int64")
    return _JudgedBlock(truth.ids(), found, truth.are_right(ends), _at_threshold(loaded, rows, truth, ends))


def _at_threshold(loaded: LoadedModel, rows: Any, truth: Truth, labels: Any) -> _AtThreshold:
    from hinet.classifier.confidence import answers_at

    start = time.perf_counter()
    promise = loaded.promise
    counts = None if promise is None else answers_at(loaded.fitted, rows, truth, labels, promise.threshold)
    return _AtThreshold(counts, time.perf_counter() - start)


def _joined(loaded: LoadedModel, parts: list[_JudgedBlock]) -> Evaluation:
    import numpy as np

    from hinet.classifier.tabular import joined_traces
    from hinet.evaluation.evaluation import Evaluation

    if not parts:
        raise HiNetError("there are no rows to judge by; all were skipped, or --where chose none")
    labels = [ids for part in parts for ids in part.labels]
    if not any(labels):
        raise HiNetError("the model knows none of the labels, nor what is above them; were the columns named right?")
    right = np.concatenate([part.right for part in parts])
    return Evaluation(loaded.fitted.form.taxonomy, labels, joined_traces([part.found for part in parts]), right)


def _counts(parts: list[_JudgedBlock]) -> AnswerCounts | None:
    """Return how all rows are answered at the calibrated threshold, if there is one."""
    from hinet.evaluation.risk import AnswerCounts

    counts = [part.at_threshold.counts for part in parts if part.at_threshold.counts is not None]
    return AnswerCounts.joined(counts) if counts else None


def _print(
    evaluation: Evaluation, loaded: LoadedModel, speed: float, counts: AnswerCounts | None, as_json: bool
) -> None:
    import json
    from dataclasses import asdict

    promise = loaded.promise
    if as_json:
        told = {**evaluation.as_dict(), "rows_a_second": speed}
        if promise is not None and counts is not None:
            told["min_confidence_calibrated"] = {"promise": asdict(promise), **counts.as_shares()}
        typer.echo(json.dumps(told, indent=2))
        return
    from rich.console import Console

    table = evaluation_table(evaluation, loaded.fitted.model, speed)
    if counts is not None:
        table.add_row("at --min-confidence calibrated", str(counts))
    Console(highlight=False).print(table)
    if promise is not None:
        typer.echo(f"--min-confidence calibrated: {promise}")


def evaluation_table(evaluation: Evaluation, model: Any, speed: float) -> Table:
    """Return the figures for a person."""
    from rich.table import Table

    report = evaluation.report
    table = Table(title=f"{len(evaluation):,} rows", title_justify="left", show_header=False)
    shown = [
        ("accuracy", f"{100 * evaluation.accuracy:.1f}%"),
        ("hierarchical F1", f"{100 * report.hierarchical_f1:.1f}%"),
        ("hierarchical precision, recall", _percent((report.hierarchical_precision, report.hierarchical_recall))),
        ("accuracy by level", _percent(report.level_accuracy)),
        ("edges from the right label, on average", f"{report.tree_distance:.2f}"),
        ("calibration error", f"{evaluation.calibration_error:.3f}"),
        ("rows answered with at most 5% wrong", f"{100 * evaluation.coverage_at(0.05):.1f}%"),
        ("exact best traces, from text", f"{speed:,.0f} rows a second"),
    ]
    if hasattr(model, "outputs"):
        touched = evaluation.found.touched.mean() / model.outputs
        shown.append(("output neurons looked at for a row", f"{100 * touched:.2f}%"))
    for name, value in shown:
        table.add_row(name, value)
    return table


def _percent(shares: Any) -> str:
    return "  ".join(f"{100 * share:.1f}%" for share in shares)
