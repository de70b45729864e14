"""``hinet tune``: settings found by search, and the model trained with them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.options import PLOT, RunOptions, check_plot, option
from hinet.cli.table_options import FILES, ColumnOptions, RowOptions
from hinet.cli.train import TAXONOMY
from hinet.cli.training import TrainingOptions, ValidationOptions, report_model, report_replaced, save_model
from hinet.errors import HiNetError, counted

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet import HiNetClassifier
    from hinet.cli.training_rows import TrainingData
    from hinet.tuning import Tuning

MAX_SHOWN = 8  # maximum number of other settings in the report
_OUT = "Folder for the model that is trained with the best settings (default: none is trained)."
_RESULTS = "Folder for settings.json, trials.csv and the finished trials (default: OUT.tune)."
_MINUTES = "Minutes to search, those before --resume included; the model is trained after that."
_METRIC = (
    "What to improve: accuracy, hierarchical_f1, label_f1_macro…; for several labels per row micro_f1, macro_f1, "
    "exact_match… (default: accuracy, or micro_f1)."
)
_RESUME = "Continue the search in the folder of results; finished trials are kept."

SearchedTraining = Annotated[
    TrainingOptions, "vectors", "encoder", "bundle_encoder", "memory_limit", "half", "keep_examples", "multilabel"
]


def tune(
    data: Annotated[list[str], typer.Argument(help=FILES, show_default=False)],
    column_options: ColumnOptions,
    validation: ValidationOptions,
    training: SearchedTraining,
    rows: RowOptions,
    run: RunOptions,
    out: Annotated[str | None, option(_OUT)] = None,
    results: Annotated[str | None, option(_RESULTS)] = None,
    taxonomy: Annotated[Path | None, option(TAXONOMY)] = None,
    minutes: Annotated[float, option(_MINUTES)] = 5.0,
    metric: Annotated[str | None, option(_METRIC)] = None,
    resume: Annotated[bool, option(_RESUME, "--resume")] = False,
    plot: Annotated[Path | None, option(f"Plot the gain of trials against seconds. {PLOT}")] = None,
) -> None:
    """Search for settings that score better than the defaults, on rows that are held out.

    Example: hinet tune products.csv --text title --label category --taxonomy categories.csv --minutes 10 --out model

    The defaults stay unless other settings beat them by more than chance. Without validation rows, a fifth of the rows
    is held out in turn. With --vectors, settings with and without them are compared.
    """
    from hinet import HiNetClassifier
    from hinet.cli.training_rows import RowFiles
    from hinet.tuning.search import MINUTES, SETTINGS_FILE, TABLE_FILE, plot_trials, validate_metric, write_results

    MINUTES.validate("--minutes", minutes)
    if out is None and results is None:
        raise HiNetError("give --out for the model, or --results for the settings alone")
    folder = Path(results if results is not None else f"{str(out).rstrip('/')}.tune")
    writes = {"--out": out, "--results": folder, "--plot": plot}
    rows.check_outputs([*data, *validation.files, taxonomy], writes, str(folder))
    _check_outputs(out, folder, plot, run, resume=resume)
    validation.check()
    training.check_bundle()
    validate_metric(metric)
    if out is not None:
        report_replaced(Path(out), run)
    start = time.perf_counter()
    files = RowFiles(data, rows, column_options, replace(validation, valid_share=None), str(folder))
    read = files.declared(taxonomy).read(run.seed)  # rows of --valid-share are still among the training rows
    run.message(f"{counted(len(read.train), 'row')} with {counted(len(read.train.distinct_labels), 'label')}")
    read.report_hierarchy(run, read.train.labels)
    classifier = HiNetClassifier(**read.parameters, **training.parameters, **run.parameters | {"verbose": False})
    tuning = _search(
        classifier, read, folder, run, valid_share=validation.valid_share, metric=metric, minutes=minutes, resume=resume
    )
    write_results(tuning, folder)
    if plot is not None:
        plot_trials(tuning, plot)
    print_ranking(tuning)
    run.message(f"the best settings are in {folder / SETTINGS_FILE}, all trials in {folder / TABLE_FILE}")
    if out is not None:  # a model as that of 'hinet train' with these settings
        if validation.valid_share is not None:
            read = read.with_holdout(validation.valid_share, run.seed)
        classifier.set_params(**tuning.parameters, verbose=not run.quiet)
        risk_error = read.fit(classifier, validation.risk)
        save_model(classifier, Path(out), read.columns, training)
        report_model(classifier, Path(out), time.perf_counter() - start, run, risk_error)


def _check_outputs(out: str | None, folder: Path, plot: Path | None, run: RunOptions, *, resume: bool) -> None:
    """Raise FileError before rows are read if an output could not be written, or has another search."""
    from hinet.classifier.model_folder import check_target
    from hinet.tuning.trials import TrialFolder

    if out is not None:
        check_target(Path(out))
    TrialFolder(folder).check(resume=resume)
    check_plot(plot)
    if resume and not TrialFolder(folder).has_search:
        run.message(f"there are no trials in {folder}; the search starts from the beginning")


def _search(classifier: HiNetClassifier, read: TrainingData, folder: Path, run: RunOptions, **options: Any) -> Tuning:
    from hinet.progress import progress_for_terminal
    from hinet.tuning import tune as search
    from hinet.tuning.trials import TrialFolder

    valid = None if read.valid is None else read.valid.pair
    try:
        progress = progress_for_terminal("tune", quiet=run.quiet)
        return search(
            classifier, *read.train.pair, folder=folder, valid=valid, seed=run.seed, progress=progress, **options
        )
    except KeyboardInterrupt:
        kept = f"interrupted; the finished trials are in {folder}: add --resume to the command to continue"
        typer.echo(
            kept if TrialFolder(folder).has_search else "interrupted before a trial ended: none is kept", err=True
        )
        raise


def print_ranking(tuning: Tuning) -> None:
    """Print the settings that were tried on all rows, best first, and which were chosen."""
    from rich.console import Console
    from rich.table import Table

    from hinet.tuning.space import text_of

    best = tuning.best
    table = Table(title=f"{counted(len(tuning.trials), 'trial')} in {tuning.seconds:.0f} s", title_justify="left")
    for column in ("settings", tuning.metric, "gain", "error of the gain", "splits"):
        table.add_column(column, justify="left" if column == "settings" else "right")
    others = [gain for gain in tuning.ranking if gain.changes not in (best.changes, {})]
    defaults = [gain for gain in tuning.ranking if not gain.changes and best.changes]
    for gain in [best, *defaults, *others[:MAX_SHOWN]]:
        name = text_of(gain.changes) + (" (chosen)" if gain is best else "")
        compared = [f"{100 * gain.value:+.2f}", f"{100 * gain.error:.2f}"] if gain.changes else ["", ""]
        table.add_row(name, f"{100 * gain.score:.2f}", *compared, str(gain.splits))
    Console(width=max(100, Console().width)).print(table, markup=False)
    if not best.changes:
        Console().print("no other settings are better than the defaults by more than chance", highlight=False)
