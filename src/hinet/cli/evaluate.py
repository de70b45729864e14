"""``hinet evaluate``: metrics of a model on labelled rows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from hinet.cli.column_options import ColumnOptions, column_options
from hinet.cli.options import AsJson, ModelFolder, RunOptions, option, thread_options
from hinet.cli.outputs import PLOT, check_plot
from hinet.cli.row_options import FILES, RowOptions, row_options
from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from rich.table import Table

    from hinet.classifier.loaded import LoadedModel
    from hinet.data.tables import LabelledBlock
    from hinet.engine import Found
    from hinet.evaluation.evaluation import Evaluation
    from hinet.evaluation.risk import AnswerCounts

_OUTPUT = "evaluation"  # the start of the default of --rejects
EXAMPLE = "hinet evaluate model test.csv --plot report.png"


@thread_options
@row_options
@column_options
def evaluate(
    model: ModelFolder,
    data: Annotated[list[str], typer.Argument(help=FILES, show_default=False)],
    rows: RowOptions,
    column_options: ColumnOptions,
    run: RunOptions,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, option(f"Plot accuracy by level, reliability, risk against coverage, and errors. {PLOT}")
    ] = None,
) -> None:
    """Evaluate a model on labelled rows: accuracy, hierarchical F1, accuracy by level, calibration, coverage."""
    from hinet.classifier.loaded import load_model
    from hinet.data.tables import RowQuery, labelled_blocks, taxonomy_check
    from hinet.evaluation.risk import AnswerCounts
    from hinet.progress import counter_for_terminal

    check_plot(plot)
    rows.check_outputs(data, {"--plot": plot}, _OUTPUT, model)
    loaded = load_model(model, run.threads)
    check = taxonomy_check(loaded.given_taxonomy)
    columns = loaded.checked_columns(column_options.with_defaults(loaded.columns))
    query = RowQuery(columns, where=rows.where, check=check, widths=loaded.widths(columns))
    start = time.perf_counter()
    with rows.row_errors(_OUTPUT) as row_errors, counter_for_terminal(run.quiet or as_json) as counter:
        parts = []
        for block in labelled_blocks(data, query, rows.options, row_errors):
            if len(block):
                parts.append(_evaluate_block(loaded, block))
                counter.advanced(len(block))
    evaluation = _combine(loaded, parts)
    speed = len(evaluation) / (time.perf_counter() - start - sum(part.seconds for part in parts))
    if plot is not None:
        from hinet.evaluation.plots import plot_evaluation

        plot_evaluation(evaluation, plot, f"{model.name}: {len(evaluation):,} rows")
    counts = [part.counts for part in parts if part.counts is not None]
    _print(evaluation, loaded, speed, AnswerCounts.joined(counts) if counts else None, as_json)


class _JudgedBlock(NamedTuple):
    """The true labels of rows, the predictions, which are right, and the answers at the calibrated threshold."""

    labels: list[tuple[str, ...]]
    found: Found
    right: Any
    counts: AnswerCounts | None  # of answers at the threshold, if there is one
    seconds: float  # that it took to count them


def _evaluate_block(loaded: LoadedModel, block: LabelledBlock) -> _JudgedBlock:
    from hinet.classifier.calibration import answers_at

    truth = loaded.fitted.codec.truth(block.labels)
    rows = loaded.fitted.rows(loaded.named_as_trained(block.inputs))
    found = loaded.fitted.predictor.traces(rows)
    ends = found.traces.end_nodes[found.traces.row_offsets[:-1]].astype("int64")
    start, bound = time.perf_counter(), loaded.risk_bound
    counts = None if bound is None else answers_at(loaded.fitted, rows, truth, ends, bound.threshold)
    return _JudgedBlock(truth.ids(), found, truth.are_right(ends), counts, time.perf_counter() - start)


def _combine(loaded: LoadedModel, parts: list[_JudgedBlock]) -> Evaluation:
    import numpy as np

    from hinet.classifier.prediction_table import concat_traces
    from hinet.evaluation.evaluation import Evaluation

    if not parts:
        raise HiNetError("there are no rows to evaluate: all were skipped, or none matches --where")
    labels = [ids for part in parts for ids in part.labels]
    if not any(labels):
        raise HiNetError("the model knows none of the labels or their ancestors; are --text and --label right?")
    right = np.concatenate([part.right for part in parts])
    return Evaluation(loaded.fitted.codec.taxonomy, labels, concat_traces([part.found for part in parts]), right)


def _print(
    evaluation: Evaluation, loaded: LoadedModel, speed: float, counts: AnswerCounts | None, as_json: bool
) -> None:
    import json
    from dataclasses import asdict

    bound = loaded.risk_bound
    if as_json:
        figures = {**evaluation.as_dict(), "rows_a_second": speed}
        if bound is not None and counts is not None:
            figures["min_confidence_calibrated"] = {"promise": asdict(bound), **counts.as_shares()}
        typer.echo(json.dumps(figures, indent=2))
        return
    from rich.console import Console

    table = evaluation_table(evaluation, loaded.fitted.predictor.outputs, speed)
    if counts is not None:
        table.add_row("at --min-confidence calibrated", str(counts))
    Console(highlight=False).print(table)
    if bound is not None:
        typer.echo(f"--min-confidence calibrated: {bound}")


def evaluation_table(evaluation: Evaluation, outputs: int, speed: float) -> Table:
    """Return the figures as a table."""
    from rich.table import Table

    report = evaluation.report
    table = Table(title=f"{len(evaluation):,} rows", title_justify="left", show_header=False)
    figures = [
        ("accuracy", f"{100 * evaluation.accuracy:.1f}%"),
        ("hierarchical F1", f"{100 * report.hierarchical_f1:.1f}%"),
        ("hierarchical precision, recall", _percent((report.hierarchical_precision, report.hierarchical_recall))),
        ("accuracy by level", _percent(report.level_accuracy)),
        ("mean distance to the true label, in edges", f"{report.tree_distance:.2f}"),
        ("calibration error", f"{evaluation.calibration_error:.3f}"),
        ("coverage with at most 5% wrong", f"{100 * evaluation.coverage_at(0.05):.1f}%"),
        ("speed, from text", f"{speed:,.0f} rows per second"),
    ]
    touched = evaluation.found.touched.mean() / max(outputs, 1)
    figures.append(("output neurons computed per row", f"{100 * touched:.2f}%"))
    for name, value in figures:
        table.add_row(name, value)
    return table


def _percent(shares: Any) -> str:
    return "  ".join(f"{100 * share:.1f}%" for share in shares)
