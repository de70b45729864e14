"""``hinet evaluate``: metrics of a model on labelled rows."""

from __future__ import annotations

import time
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.options import PLOT, AsJson, EncoderFolder, ModelFolder, ThreadedRun, check_plot, option, print_json
from hinet.cli.table_options import FILES, ColumnOptions, RowOptions
from hinet.errors import HiNetError, counted

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from rich.table import Table

    from hinet.classifier.saved_model import LoadedModel
    from hinet.data.tables import LabelledBlock
    from hinet.engine import Found
    from hinet.evaluation.evaluation import Evaluation, SetEvaluation
    from hinet.evaluation.risk import AnswerCounts
    from hinet.taxonomy import Taxonomy

MIN_SCORE = 1e-4  # minimum probability of nodes for AU(PRC)
_OF_LABELS = (
    "accuracy", "hierarchical F1", "hierarchical precision, recall", "accuracy by level",
    "mean distance to the true label, in edges",
)  # metrics that sets have too  # fmt: skip
_OUTPUT = "evaluation"  # prefix of the default of --rejects


def evaluate(
    model: ModelFolder,
    data: Annotated[list[str], typer.Argument(help=FILES, show_default=False)],
    column_options: ColumnOptions,
    rows: RowOptions,
    run: ThreadedRun,
    as_json: AsJson = False,
    plot: Annotated[
        Path | None, option(f"Plot accuracy by level, reliability, risk against coverage, and errors. {PLOT}")
    ] = None,
    keep: Annotated[
        bool, option("Save the metrics in the folder of the model, for 'hinet serve' to show.", "--keep")
    ] = False,
    encoder: EncoderFolder = None,
) -> None:
    """Evaluate a model on labelled rows: accuracy, hierarchical F1, calibration, coverage.

    Example: hinet evaluate model test.csv --plot report.png

    If rows have several labels, any of them is a right answer; metrics of sets and of ranked labels are added.
    """
    from hinet.classifier.saved_model import load_model
    from hinet.data.tables import RowQuery, labelled_blocks, taxonomy_check
    from hinet.progress import counter_for_terminal

    check_plot(plot)
    rows.check_outputs(data, {"--plot": plot}, _OUTPUT, model)
    loaded = load_model(model, run.threads, encoder=encoder)
    check = taxonomy_check(loaded.given_taxonomy)
    columns = loaded.checked_columns(column_options.with_defaults(loaded.columns))
    query = RowQuery(columns, where=rows.conditions, check=check, widths=loaded.widths(columns))
    start, results = time.perf_counter(), _Results(loaded)
    with rows.row_errors(_OUTPUT) as row_errors, counter_for_terminal(run.quiet or as_json, has_rate=False) as counter:
        for block in labelled_blocks(data, query, rows.options, row_errors):
            if len(block):
                results.add(block)
                counter.advanced(len(block))
    evaluation = results.evaluation()
    speed = len(evaluation) / (time.perf_counter() - start - results.seconds)
    sets = results.set_evaluation(evaluation.taxonomy)
    if plot is not None:
        from hinet.evaluation.plots import plot_evaluation, plot_set_evaluation

        title = f"{model.name}: {counted(len(evaluation), 'row')}"
        if sets is not None and sets.scores is not None:  # a multilabel model
            plot_set_evaluation(sets, plot, title)
        else:
            plot_evaluation(evaluation, plot, title)
    if keep:
        from hinet.classifier.model_folder import keep_evaluation
        from hinet.evaluation.evaluation import figures_of

        name = ", ".join(dict.fromkeys("standard input" if path == "-" else Path(path).name for path in data))
        keep_evaluation(model, loaded.manifest["blake2b"], figures_of(evaluation, name))
    results.report(evaluation, sets, speed, as_json)


class _Results:
    """True labels and predictions of all rows, added block by block."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.labels: list[tuple[str, ...]] = []
        self.knows_labels = False  # whether the model knows a label or an ancestor of one
        self.found: list[Found] = []
        self.right: list[Any] = []
        self.counts: list[AnswerCounts] = []  # answers at the calibrated threshold, if there is one
        self.ranked: list[list[str]] = []  # most probable labels, of blocks whose rows have several
        self.predicted: list[list[str]] = []  # sets of a multilabel model
        self.scores: list[Any] = []  # probabilities of all nodes of a multilabel model
        self.seconds = 0.0  # time spent on counts, ranked, predicted and scores

    def add(self, block: LabelledBlock) -> None:
        """Predict the labels of a block."""
        from hinet.classifier.calibration import answers_at
        from hinet.classifier.labels import NOTHING
        from hinet.evaluation.evaluation import RANKS

        fitted, bound = self.loaded.fitted, self.loaded.risk_bound
        truth = fitted.codec.truth(block.labels)
        rows = fitted.rows(self.loaded.named_as_trained(block.inputs))
        found = fitted.predictor.traces(rows)
        ends = found.traces.end_nodes[found.traces.row_offsets[:-1]].astype("int64")
        start = time.perf_counter()
        if bound is not None:
            self.counts.append(answers_at(fitted, rows, truth, ends, bound.threshold))
        has_sets = fitted.codec.sets is not None
        if has_sets or any(isinstance(label, frozenset) for label in block.labels):
            traces = fitted.predictor.top_labels(rows, max(RANKS)).found.traces
            self.ranked += self._names(traces.end_nodes, traces.row_offsets)
        if has_sets:
            sets = fitted.label_sets(rows)
            self.predicted += self._names(sets.nodes, sets.offsets)
            self.scores.append(fitted.search.node_probabilities(rows, MIN_SCORE))
        self.seconds += time.perf_counter() - start
        self.labels += truth.whole_ids()
        self.knows_labels |= bool((truth.nodes != NOTHING).any())
        self.found.append(found)
        self.right.append(truth.are_right(ends))

    def _names(self, nodes: Any, offsets: Any) -> list[list[str]]:
        """Return the ids of the nodes of every row."""
        names = [self.loaded.fitted.codec.taxonomy.ids[node] for node in nodes.tolist()]
        return [names[start:end] for start, end in pairwise(offsets.tolist())]

    def evaluation(self) -> Evaluation:
        """Return the evaluation of the most probable labels; raise HiNetError if there is nothing to evaluate."""
        import numpy as np

        from hinet.engine import Found
        from hinet.evaluation.evaluation import Evaluation

        if not self.labels:
            raise HiNetError("there are no rows to evaluate: all were skipped, or none matches --where")
        if not self.knows_labels:
            raise HiNetError("the model knows none of the labels or their ancestors; are --text and --label right?")
        taxonomy = self.loaded.fitted.codec.taxonomy_with(self.labels)
        return Evaluation(taxonomy, self.labels, Found.joined(self.found), np.concatenate(self.right))

    def set_evaluation(self, taxonomy: Taxonomy) -> SetEvaluation | None:
        """Return the evaluation of sets, if rows have several labels; a single-label model predicts the best one."""
        import scipy.sparse as sp

        from hinet.evaluation.evaluation import SetEvaluation

        if len(self.ranked) < len(self.labels):
            return None
        if self.loaded.fitted.codec.sets is None:
            return SetEvaluation(taxonomy, self.labels, [labels[:1] for labels in self.ranked], self.ranked)
        scores = sp.vstack(self.scores, format="csr")
        scores.resize(len(self.labels), len(taxonomy))  # labels that the model does not know have no score
        return SetEvaluation(taxonomy, self.labels, self.predicted, self.ranked, scores)

    def report(self, evaluation: Evaluation, sets: SetEvaluation | None, speed: float, as_json: bool) -> None:
        """Print all figures."""
        from hinet.evaluation.risk import AnswerCounts

        bound = self.loaded.risk_bound
        counts = AnswerCounts.joined(self.counts) if self.counts else None
        if as_json:
            figures = {**evaluation.as_dict(), "rows_a_second": speed}
            if bound is not None and counts is not None:
                figures["min_confidence_calibrated"] = {"promise": asdict(bound), **counts.as_shares()}
            if sets is not None:
                figures["sets"] = sets.as_dict()
            print_json(figures)
            return
        from rich.console import Console

        figures = evaluation_figures(evaluation, self.loaded.fitted.predictor.outputs, speed)
        if counts is not None:
            figures["at --min-confidence calibrated"] = str(counts)
        if sets is not None:
            first = {f"{name} of the first label" if name in _OF_LABELS else name: figures[name] for name in figures}
            figures = set_figures(sets) | first
        Console(highlight=False).print(figures_table(figures, len(evaluation)))
        if bound is not None:
            typer.echo(f"--min-confidence calibrated: {bound}")


def figures_table(figures: dict[str, str], rows: int) -> Table:
    """Return metrics of rows as a table."""
    from rich.table import Table

    table = Table(title=counted(rows, "row"), title_justify="left", show_header=False)
    for name, value in figures.items():
        table.add_row(name, value)
    return table


def evaluation_figures(evaluation: Evaluation, outputs: int, speed: float) -> dict[str, str]:
    """Return the metrics of the most probable label, as text."""
    report = evaluation.report
    return {
        "accuracy": f"{100 * evaluation.accuracy:.1f}%",
        "hierarchical F1": f"{100 * report.hierarchical_f1:.1f}%",
        "hierarchical precision, recall": _percent((report.hierarchical_precision, report.hierarchical_recall)),
        "accuracy by level": _percent(report.level_accuracy),
        "mean distance to the true label, in edges": f"{report.tree_distance:.2f}",
        "calibration error": f"{evaluation.calibration_error:.3f}",
        "coverage with at most 5% wrong": f"{100 * evaluation.coverage_at(0.05):.1f}%",
        "speed of predictions, from text": f"{speed:,.0f} rows per second",
        "output neurons computed per row": f"{100 * evaluation.found.touched.mean() / max(outputs, 1):.2f}%",
    }


def set_figures(sets: SetEvaluation) -> dict[str, str]:
    """Return the metrics of label sets and of ranked labels, as text."""
    from hinet.evaluation.evaluation import RANKS

    report, ranking = sets.report, sets.ranking
    true, predicted = sets.labels_per_row
    figures = {
        "labels per row, true and predicted": f"{true:.2f}  {predicted:.2f}",
        "F1 of sets: pairs, labels, rows": _percent((report.set_f1, report.set_f1_macro, report.set_f1_samples)),
        "hierarchical F1 of sets": f"{100 * report.hierarchical_set_f1:.1f}%",
        "exact match": f"{100 * report.exact_match:.1f}%",
    }
    if ranking is not None:
        ranks = ", ".join(map(str, RANKS))
        figures[f"precision at {ranks}"] = _percent(map(ranking.precision, RANKS))
        figures[f"nDCG at {ranks}"] = _percent(map(ranking.ndcg, RANKS))
    if sets.curve is not None:
        figures["AU(PRC) of all nodes"] = f"{sets.curve.area:.3f}"
    return figures


def _percent(shares: Any) -> str:
    return "  ".join(f"{100 * share:.1f}%" for share in shares)
