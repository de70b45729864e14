"""``hinet train``: from tables of labelled texts to a saved model."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.choices import SplitBy
from hinet.cli.options import PLOT, ClusterOptions, RunOptions, check_plot, given_options, option
from hinet.cli.table_options import FILES, ColumnOptions, RowOptions
from hinet.cli.training import TrainingOptions, ValidationOptions, report_model, report_replaced, save_model
from hinet.errors import FileError, HiNetError

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet import HiNetClassifier
    from hinet.cli.training_rows import RowFiles, TrainingSource
    from hinet.cluster import Cluster

_SETTINGS = "Settings file, such as that of 'hinet tune'; options on the command line override it."
TAXONOMY = "File of the hierarchy, see 'hinet taxonomy check' (default: labels are paths such as A > B > C)."
_ROWS = f"{FILES} Without any, train on the titles of --taxonomy alone."
_INNER = "Without rows: inner nodes are labels too (default: only leaves)."
_SPLIT = (
    "With --cluster: give workers whole experts (jobs), which changes no result, or shares of the rows (rows); auto "
    "uses rows only if jobs would leave workers idle (default: auto)."
)


_OPTION_OF = {
    "random_state": "seed", "n_jobs": "threads", "verbose": "quiet", "engine": "fine_tune",
    "validation_fraction": "valid_share",
}  # fmt: skip


def train(
    context: typer.Context,
    column_options: ColumnOptions,
    validation: ValidationOptions,
    training: TrainingOptions,
    rows: RowOptions,
    place: ClusterOptions,
    run: RunOptions,
    out: Annotated[str, option("Folder for the model; replaces an older model there.")],
    data: Annotated[list[str] | None, typer.Argument(help=_ROWS, show_default=False)] = None,
    taxonomy: Annotated[Path | None, option(TAXONOMY)] = None,
    inner_labels: Annotated[bool, option(_INNER, "--inner-labels")] = False,
    plot: Annotated[Path | None, option(f"Plot the training curve. {PLOT}")] = None,
    settings: Annotated[Path | None, option(_SETTINGS)] = None,
    split: Annotated[SplitBy | None, option(_SPLIT)] = None,
) -> None:
    """Train a classifier on labelled texts, or on a taxonomy alone, and save it to a folder.

    Example: hinet train products.csv --text title --label category --taxonomy categories.csv --valid-share 0.1
    --out model

    With --number, --category or --vector, rows are more than a text; --text may then be left out. Empty cells of these
    columns are missing values. An ARFF file declares its columns and, as 'class hierarchical', the hierarchy itself.

    Without files of rows, titles, synonyms and definitions of the taxonomy are trained on: hinet train --taxonomy
    categories.csv --out model. The first rows of 'hinet update' then retrain it with both.
    """
    from hinet.cli.training_rows import RowFiles
    from hinet.engine.compiling import compile_for_training
    from hinet.engine.training.checkpoints import remove_checkpoints

    model, reads = Path(out), [*(data or []), *validation.files, taxonomy, settings]
    checkpoints = _check_outputs(model, plot, reads, rows, training.resume, run)
    validation.check(training.patience)
    training.check_bundle()
    known = _known_parameters(settings, training.min_df)
    files = RowFiles(data or [], rows, column_options, validation, out)
    if not data:
        _check_without_rows(files, taxonomy, training, place)
    elif inner_labels:
        raise HiNetError("--inner-labels is for training without rows; the labels are those of the rows: leave it out")
    cluster = _cluster(place, split, training, run)
    start = time.perf_counter()
    compile_for_training()
    if taxonomy is not None and not data:
        source: TrainingSource = files.without_rows(taxonomy, inner_labels)
    else:
        source = _read_rows(files.declared(taxonomy), training, checkpoints, run, on_cluster=cluster is not None)
    source.report(validation.risk, run)
    options = training.parameters | run.parameters | {"checkpoint": checkpoints}
    classifier = _classifier(options | source.parameters, known, given_options(context))
    with _resumable(checkpoints):
        risk_error = source.fit(classifier, validation.risk, cluster, split or "auto")
    save_model(classifier, model, source.trained_columns(classifier), training)
    remove_checkpoints(checkpoints)
    if plot is not None:
        from hinet.evaluation.plots import plot_history

        plot_history(classifier.history_, plot)
    report_model(classifier, model, time.perf_counter() - start, run, risk_error)


def _read_rows(
    files: RowFiles, training: TrainingOptions, checkpoints: Path, run: RunOptions, *, on_cluster: bool
) -> TrainingSource:
    """Return training rows in memory, or as a stream from disk if they are many or --stream asks for it."""
    from hinet.data.spill import is_spill

    stream = None if on_cluster else files.stream(training, run)
    if stream is not None:
        return stream
    if training.resume and checkpoints.is_dir() and any(is_spill(path.name) for path in checkpoints.iterdir()):
        raise FileError(
            checkpoints, "has checkpoints of a run with --stream; add --stream to continue it, or remove the folder"
        )
    return files.read(run.seed)


def _check_without_rows(
    files: RowFiles, taxonomy: Path | None, training: TrainingOptions, place: ClusterOptions
) -> None:
    """Raise HiNetError for options that need training rows, and if there is no taxonomy to train on instead."""
    if taxonomy is None:
        raise HiNetError(
            "there is nothing to train on; name files of labelled rows, or give --taxonomy to train on its titles"
        )
    need_rows = {
        "--number, --category and --vector": files.column_options.are_mixed,
        "--no-titles": training.titles is False,
        "--stream": bool(training.stream),
        "--cluster": place.cluster is not None,
        "--valid-where": files.validation.valid_where is not None,
        "--valid-share": files.validation.valid_share is not None,
    }
    for name, is_given in need_rows.items():
        if is_given:
            raise HiNetError(f"{name} cannot be used without rows; name files of rows, or leave it out")


def _known_parameters(settings: Path | None, min_df: int | None) -> dict[str, Any]:
    """Return the parameters of a settings file, with the option --min-df."""
    from hinet.classifier.parameters import read_settings
    from hinet.data.text import TextSettings

    known = {} if settings is None else read_settings(settings)
    if min_df is not None:
        known["text"] = replace(known.get("text") or TextSettings(), min_df=min_df)
    return known


@contextmanager
def _resumable(checkpoints: Path) -> Iterator[None]:
    """Print how to continue if training is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        if checkpoints.is_dir():
            typer.echo(
                f"interrupted; the checkpoints are in {checkpoints}: add --resume to the command to continue", err=True
            )
        raise


def _classifier(parameters: Mapping[str, Any], settings: Mapping[str, Any], given: Set[str]) -> HiNetClassifier:
    """Return a classifier with parameters from options and a settings file; ``given`` options override the file."""
    from hinet import HiNetClassifier

    defaults = HiNetClassifier().get_params()
    overriding = {
        name: value
        for name, value in parameters.items()
        if _OPTION_OF.get(name, name) in given or value != defaults[name]
    }
    return HiNetClassifier(**{**settings, **overriding})


def _check_outputs(
    model: Path, plot: Path | None, reads: list[str | Path | None], rows: RowOptions, resume: bool, run: RunOptions
) -> Path:
    """Raise FileError before training if an output could not be written; return the folder of checkpoints.

    Messages say if an updated model is replaced, and if there is no run to resume.
    """
    from hinet.classifier.model_folder import check_target
    from hinet.engine.training.checkpoints import check_folder

    check_target(model)
    folder = model if model.name.strip(".") else Path(os.path.abspath(model))  # noqa: PTH100 such as . and ..
    checkpoints = folder.with_name(f"{folder.name}.checkpoint")
    check_plot(plot)
    check_folder(checkpoints)
    if checkpoints.is_dir() and not resume:
        raise FileError(
            checkpoints,
            "has checkpoints of an interrupted run; add --resume to continue it, or remove the folder",
        )
    rows.check_outputs(reads, {"--out": model, "the folder of checkpoints": checkpoints, "--plot": plot}, str(model))
    if resume and not checkpoints.is_dir():
        run.message(f"there are no checkpoints in {checkpoints}; training starts from the beginning")
    report_replaced(model, run)
    return checkpoints


def _cluster(
    place: ClusterOptions, split: SplitBy | None, training: TrainingOptions, run: RunOptions
) -> Cluster | None:
    """Return the cluster to train on, if one is wanted; raise HiNetError if it cannot be used."""
    cluster = place.chosen(run.threads)
    if cluster is None:
        if split is not None:
            raise HiNetError("--split needs a cluster; add --cluster local, or leave it out")
        return None
    from hinet.cluster.session import check_cluster, connected

    if training.stream:
        raise HiNetError("--cluster trains on rows in memory; leave --stream out")
    if training.fine_tune:
        raise HiNetError("--cluster trains the fused engine, and --fine-tune a network; leave one of them out")
    if cluster.threads > 1:
        raise HiNetError(
            "with --cluster each worker trains in one thread; leave --threads out, and give more --workers"
        )
    check_cluster(cluster)  # before rows are read
    if not cluster.is_local:
        with connected(cluster):
            pass
    return cluster
