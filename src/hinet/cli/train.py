"""``hinet train``: from tables of labelled texts to a saved model."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.column_options import ColumnChoice, names_columns
from hinet.cli.models import COLUMNS
from hinet.cli.options import Running, option, runs
from hinet.cli.plot_options import PLOT, check_plot
from hinet.cli.row_options import FILES, RowReading, reads_rows
from hinet.errors import FileError, HiNetError

if TYPE_CHECKING:  # imported when the command runs, so that --help stays instant
    from hinet import HiNetClassifier, Taxonomy
    from hinet.cli.training_rows import LabelledTexts, TrainingRows

EXAMPLE = (
    "Example: hinet train products.csv --text title --label category --taxonomy categories.csv "
    "--valid-share 0.1 --out model"
)
_VALIDATION, _TRAINING = "Validation", "Training"


@runs
@reads_rows
@names_columns
def train(
    data: Annotated[list[str], typer.Argument(help=FILES, show_default=False)],
    rows: RowReading,
    named: ColumnChoice,
    running: Running,
    out: Annotated[str, typer.Option("--out", help="Folder of the model; an older model there is replaced.")],
    taxonomy: Annotated[
        Path | None,
        option(
            "--taxonomy", "The hierarchy, see 'hinet taxonomy check'. Without it, labels are paths such as A > B > C."
        ),
    ] = None,
    valid: Annotated[
        list[str] | None,
        option(
            "--valid", "File of validation rows: they decide the mix and calibrate; repeat it for more.", _VALIDATION
        ),
    ] = None,
    valid_where: Annotated[
        str | None, option("--valid-where", "COLUMN=VALUE: rows of the data that are for validation.", _VALIDATION)
    ] = None,
    valid_share: Annotated[
        float | None, option("--valid-share", "Share of the rows to hold out for validation, such as 0.1.", _VALIDATION)
    ] = None,
    risk: Annotated[
        float | None,
        option(
            "--risk", "Share of wrong answers to promise; gives --min-confidence calibrated its threshold.", _VALIDATION
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs", min=1, help="By default by the number of rows.", show_default=False, rich_help_panel=_TRAINING
        ),
    ] = None,
    width: Annotated[
        int | None,
        typer.Option("--width", min=1, help="Of the deep expert.", show_default=False, rich_help_panel=_TRAINING),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            "--patience",
            min=1,
            help="Stop after so many epochs without gain.",
            show_default=False,
            rich_help_panel=_TRAINING,
        ),
    ] = None,
    memory_limit: Annotated[
        float | None, option("--memory-limit", "Gigabytes that training may take.", _TRAINING)
    ] = None,
    half: Annotated[
        bool, typer.Option("--half", help="Save weights in half precision.", rich_help_panel=_TRAINING)
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from the checkpoints of a run that was broken off.", rich_help_panel=_TRAINING
        ),
    ] = False,
    checkpoint_every: Annotated[
        float,
        typer.Option("--checkpoint-every", min=0, help="Seconds between two checkpoints.", rich_help_panel=_TRAINING),
    ] = 5.0,
    plot: Annotated[Path | None, option("--plot", f"Draw the training curve. {PLOT}")] = None,
) -> None:
    """Train a classifier on rows of text, and save it to a folder."""
    from hinet import HiNetClassifier
    from hinet.cli.training_rows import read_training_rows

    kept = Path(f"{out}.checkpoint")
    _check_outputs(out, kept, resume, plot)
    hierarchy = _hierarchy(taxonomy)
    start = time.perf_counter()
    given = read_training_rows(data, valid or [], valid_where, rows, named, hierarchy, beside=out)
    train_rows, valid_rows = _split(given, valid_share, running.seed)
    _check_wishes(valid_rows, patience, risk)
    running.say(f"{len(train_rows):,} training rows with {train_rows.count_labels():,} labels")
    if valid_rows is not None:
        running.say(f"{len(valid_rows):,} validation rows")
    classifier = HiNetClassifier(
        hierarchy, epochs=epochs, width=width, patience=patience, memory_limit=memory_limit, checkpoint=kept,
        checkpoint_every=checkpoint_every, random_state=running.seed, n_jobs=running.threads, verbose=not running.quiet,
    )  # fmt: skip
    try:
        _fit(classifier, train_rows, valid_rows, risk)
    except KeyboardInterrupt:
        if kept.is_dir():
            typer.echo(f"interrupted; finished epochs are in {kept}: the same command with --resume goes on", err=True)
        raise
    classifier.save(out, half=half, notes={COLUMNS: given.columns.described()})
    shutil.rmtree(kept, ignore_errors=True)
    if plot is not None:
        from hinet.evaluation.plots import plot_history

        plot_history(classifier.history_, plot)
    _tell(classifier, out, time.perf_counter() - start, running)


def _check_outputs(out: str, kept: Path, resume: bool, plot: Path | None) -> None:
    """Refuse what could not be written before minutes of training, not after."""
    from hinet.classifier.bundle import check_target

    check_target(Path(out))
    check_plot(plot)
    if kept.is_dir() and not resume:
        raise FileError(
            kept, "holds a run that was broken off; add --resume to go on with it, or remove the folder to start anew"
        )


def _hierarchy(path: Path | None) -> Taxonomy | None:
    from hinet.taxonomy import Taxonomy

    return None if path is None else Taxonomy.from_file(path)


def _split(given: TrainingRows, share: float | None, seed: int) -> tuple[LabelledTexts, LabelledTexts | None]:
    """Return rows to train on and rows to validate by."""
    if share is None:
        return given.train, given.valid
    if given.valid is not None:
        raise HiNetError("validation rows are given, and a share of the rows for validation as well; give one")
    return given.train.held_out(share, seed)


def _check_wishes(valid: LabelledTexts | None, patience: int | None, risk: float | None) -> None:
    for name, value in (("--patience", patience), ("--risk", risk)):
        if value is not None and valid is None:
            raise HiNetError(f"{name} needs validation rows; give --valid, --valid-where or --valid-share")


def _fit(classifier: HiNetClassifier, train: LabelledTexts, valid: LabelledTexts | None, risk: float | None) -> None:
    """Train, and calibrate where there are validation rows."""
    if valid is None:
        classifier.fit(train.texts, train.labels)
        return
    classifier.fit(train.texts, train.labels, valid=(valid.texts, valid.labels))
    if len(valid) > 1:
        classifier.calibrate(valid.texts, valid.labels, risk=risk)


def _tell(classifier: HiNetClassifier, out: str, seconds: float, running: Running) -> None:
    """Say how it went."""
    judged = classifier.metrics_.get("validation")
    if judged is not None:
        accuracy, f1 = (100 * judged[name] for name in ("accuracy", "hierarchical_f1"))
        running.say(f"validation: accuracy {accuracy:.1f}%, hierarchical F1 {f1:.1f}%")
    if hasattr(classifier, "calibration_"):
        found = classifier.calibration_
        running.say(f"calibration error {found.error_before:.3f}, after scaling {found.error_after:.3f}")
        if found.promise is not None:
            running.say(f"--min-confidence calibrated asks for {found.promise.threshold:.3f}")
    size = sum(path.stat().st_size for path in Path(out).iterdir()) / 1e6
    running.say(f"saved to {out}: {size:,.1f} MB, {seconds:.1f} s in all")
