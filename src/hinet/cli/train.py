"""``hinet train``: from tables of labelled texts to a saved model."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.column_options import NO_PATHS, ColumnChoice, names_columns
from hinet.cli.finishing import calibrate, tell_model
from hinet.cli.models import COLUMNS
from hinet.cli.options import Running, option, runs
from hinet.cli.plot_options import PLOT, check_plot
from hinet.cli.row_options import FILES, RowReading, reads_rows
from hinet.cli.training_options import TrainingChoice, ValidationChoice, trains, validates
from hinet.errors import FileError, HiNetError

if TYPE_CHECKING:  # imported when the command runs, so that --help stays instant
    from hinet import HiNetClassifier, Taxonomy
    from hinet.cli.training_rows import LabelledTexts, TrainingRows

EXAMPLE = (
    "Example: hinet train products.csv --text title --label category --taxonomy categories.csv "
    "--valid-share 0.1 --out model"
)
_TAXONOMY = "The hierarchy, see 'hinet taxonomy check'. Without it, labels are paths such as A > B > C."


@runs
@reads_rows
@names_columns
@trains
@validates
def train(
    data: Annotated[list[str], typer.Argument(help=FILES, show_default=False)],
    rows: RowReading,
    named: ColumnChoice,
    training: TrainingChoice,
    validation: ValidationChoice,
    running: Running,
    out: Annotated[str, typer.Option("--out", help="Folder of the model; an older model there is replaced.")],
    taxonomy: Annotated[Path | None, option("--taxonomy", _TAXONOMY)] = None,
    plot: Annotated[Path | None, option("--plot", f"Draw the training curve. {PLOT}")] = None,
) -> None:
    """Train a classifier on rows of text, and save it to a folder."""
    from hinet import HiNetClassifier, Taxonomy
    from hinet.cli.training_rows import read_training_rows
    from hinet.engine.checkpoints import remove_checkpoints
    from hinet.engine.compiling import compile_for_training
    from hinet.evaluation.risk import check_share

    model = Path(out)
    kept = _check_outputs(model, training.resume, plot)
    rows.check_outputs(
        [*data, *validation.files, taxonomy], {"--out": model, "the folder of checkpoints": kept, "--plot": plot}, out
    )
    validation.require("--patience", training.patience)
    validation.require("--risk", validation.risk)
    check_share("risk", validation.risk)
    check_share("--valid-share", validation.share)
    start = time.perf_counter()
    compile_for_training()
    hierarchy = None if taxonomy is None else Taxonomy.from_file(taxonomy)
    given = read_training_rows(data, validation, rows, named, hierarchy, beside=out, seed=running.seed)
    running.say(f"{len(given.train):,} training rows with {len(given.train.distinct_labels):,} labels")
    _tell_shape(given, hierarchy, running)
    if training.resume and not kept.is_dir():
        running.say(f"there are no checkpoints in {kept}; training starts at the beginning")
    _tell_validation(given, validation.risk, running)
    classifier = HiNetClassifier(
        hierarchy, path_sep=given.train.path_sep or (None if named.path_sep == NO_PATHS else "auto"),
        epochs=training.epochs, width=training.width, patience=training.patience,
        memory_limit=training.memory_limit, checkpoint=kept, checkpoint_every=training.checkpoint_every,
        keep_examples=training.keep_examples, random_state=running.seed, n_jobs=running.threads,
        verbose=not running.quiet,
    )  # fmt: skip
    try:
        broken_promise = _fit(classifier, given.train, given.valid, validation.risk)
    except KeyboardInterrupt:
        if kept.is_dir():
            typer.echo(
                f"interrupted; the last checkpoints are in {kept}: the same command with --resume goes on", err=True
            )
        raise
    classifier.save(model, half=training.half, notes={COLUMNS: given.columns.described()})
    remove_checkpoints(kept)
    if plot is not None:
        from hinet.evaluation.plots import plot_history

        plot_history(classifier.history_, plot)
    tell_model(classifier, model, time.perf_counter() - start, running)
    if broken_promise is not None:
        raise HiNetError(f"the model is saved, but without its promise: {broken_promise}")


def _check_outputs(model: Path, resume: bool, plot: Path | None) -> Path:
    """Refuse what could not be written before minutes of training, not after; return the folder of checkpoints."""
    from hinet.classifier.model_folder import check_target
    from hinet.engine.checkpoints import check_folder

    check_target(model)
    named = model if model.name.strip(".") else Path(os.path.abspath(model))  # noqa: PTH100 such as . and ..
    kept = named.with_name(f"{named.name}.checkpoint")
    check_plot(plot)
    check_folder(kept)
    if kept.is_dir() and not resume:
        raise FileError(
            kept, "holds a run that was broken off; add --resume to go on with it, or remove the folder to start anew"
        )
    return kept


def _tell_shape(given: TrainingRows, hierarchy: Taxonomy | None, running: Running) -> None:
    """Say what the hierarchy is, and where it comes from."""
    if hierarchy is not None:
        kind = "tree" if hierarchy.is_tree else "DAG"
        running.say(f"labels are nodes of a {kind} of {len(hierarchy):,} nodes in {hierarchy.height} levels")
    elif given.columns.path_sep is None and len(given.columns.label) == 1:
        running.say("labels stand side by side, without a hierarchy: that comes from --taxonomy, or from paths A > B")


def _tell_validation(given: TrainingRows, risk: float | None, running: Running) -> None:
    """Say which rows validate, and how they stand to the training rows."""
    if given.valid is None:
        return
    running.say(f"{len(given.valid):,} validation rows")
    untrained = given.count_untrained_labels()
    if untrained:
        running.say(
            f"{untrained:,} labels are those of validation rows alone: no training row is left to learn them from"
        )
    repeated = 0 if risk is None else given.count_repeated_texts()
    if repeated:
        running.say(f"{repeated:,} validation rows repeat a training text: the risk holds for rows that do so as often")


def _fit(
    classifier: HiNetClassifier, train: LabelledTexts, valid: LabelledTexts | None, risk: float | None
) -> HiNetError | None:
    """Train, and calibrate where there are validation rows; return why the risk could not be promised, if so."""
    classifier.fit(train.texts, train.labels, valid=None if valid is None else (valid.texts, valid.labels))
    return None if valid is None else calibrate(classifier, len(valid), risk)
