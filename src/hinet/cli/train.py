"""``hinet train``: from tables of labelled texts to a saved model."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.choices import SplitBy
from hinet.cli.finishing import calibrate, report_model
from hinet.cli.options import (
    PLOT,
    ClusterOptions,
    RunOptions,
    check_plot,
    cluster_options,
    given_options,
    option,
    seed_options,
)
from hinet.cli.table_options import (
    FILES,
    NOT_PATHS,
    ColumnOptions,
    RowOptions,
    column_options,
    conditions,
    row_options,
)
from hinet.cli.training_options import TrainingOptions, ValidationOptions, training_options, validation_options
from hinet.errors import FileError, HiNetError, counted, quoted

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet import HiNetClassifier, Taxonomy
    from hinet.cli.training_rows import LabelledInputs, TrainingData
    from hinet.cluster import Cluster
    from hinet.data.tables import Columns

_SETTINGS = "Settings file, such as that of 'hinet tune'; options on the command line override it."
TAXONOMY = "File of the hierarchy, see 'hinet taxonomy check' (default: labels are paths such as A > B > C)."
_SPLIT = (
    "Of --cluster: give workers whole experts (jobs), which changes no result, or shares of the rows (rows); auto "
    "takes rows only where jobs would leave workers idle (default: auto)."
)


_OPTION_OF = {
    "random_state": "seed", "n_jobs": "threads", "verbose": "quiet", "engine": "fine_tune",
    "validation_fraction": "valid_share",
}  # fmt: skip


@seed_options
@cluster_options
@row_options
@training_options
@validation_options
@column_options
def train(
    context: typer.Context,
    data: Annotated[list[str], typer.Argument(help=FILES, show_default=False)],
    rows: RowOptions,
    column_options: ColumnOptions,
    training: TrainingOptions,
    validation: ValidationOptions,
    place: ClusterOptions,
    run: RunOptions,
    out: Annotated[str, option("Folder for the model; replaces an older model there.")],
    taxonomy: Annotated[Path | None, option(TAXONOMY)] = None,
    plot: Annotated[Path | None, option(f"Plot the training curve. {PLOT}")] = None,
    settings: Annotated[Path | None, option(_SETTINGS)] = None,
    split: Annotated[SplitBy | None, option(_SPLIT)] = None,
) -> None:
    """Train a classifier on labelled texts and save it to a folder.

    Example: hinet train products.csv --text title --label category --taxonomy categories.csv --valid-share 0.1
    --out model

    With --number, --category or --vector, rows are more than a text; --text may then be left out. Empty cells of these
    columns are missing values. An ARFF file declares its columns and, as 'class hierarchical', the hierarchy itself.
    """
    from hinet.classifier.loaded import COLUMNS
    from hinet.classifier.parameters import read_settings
    from hinet.cli.streaming import stream_of
    from hinet.cli.training_rows import read_training_rows
    from hinet.data.text import TextSettings
    from hinet.engine.compiling import compile_for_training
    from hinet.engine.training.checkpoints import remove_checkpoints

    model = Path(out)
    checkpoints = _check_outputs(model, training.resume, plot)
    rows.check_outputs(
        [*data, *validation.files, taxonomy, settings],
        {"--out": model, "the folder of checkpoints": checkpoints, "--plot": plot},
        out,
    )
    validation.check(training.patience)
    training.check_bundle()
    known = {} if settings is None else read_settings(settings)
    if training.min_df is not None:
        known["text"] = replace(known.get("text") or TextSettings(), min_df=training.min_df)
    cluster = _cluster(place, split, training, run)
    start = time.perf_counter()
    compile_for_training()
    defaults, hierarchy = declared_by(data[0], rows, column_options, validation, taxonomy)
    if training.resume and not checkpoints.is_dir():
        run.message(f"there are no checkpoints in {checkpoints}; training starts from the beginning")
    stream = None
    if cluster is None:
        stream = stream_of(data, validation, rows, column_options, hierarchy, defaults, training, run, out)
    if stream is None:
        if training.resume and checkpoints.is_dir():
            _check_resumed(checkpoints)
        rows_read = read_training_rows(
            data, validation, rows, column_options, hierarchy, output=out, seed=run.seed, defaults=defaults
        )
        labels = counted(len(rows_read.train.distinct_labels), "label")
        run.message(f"{counted(len(rows_read.train), 'training row')} with {labels}")
        report_hierarchy(rows_read.columns, hierarchy, run, rows_read.train.labels)
        report_validation(rows_read, validation.risk, run)
        columns, path_sep = rows_read.columns, rows_read.train.path_sep
    else:
        columns, path_sep = stream.columns, None
        report_hierarchy(columns, hierarchy, run)
    parameters = _parameters(training, run) | {
        "taxonomy": hierarchy, "path_sep": path_sep_of(path_sep, column_options), "columns": column_kinds(columns),
        "validation_fraction": None if stream is None else validation.valid_share, "checkpoint": checkpoints,
    }  # fmt: skip
    classifier = _classifier(parameters, known, given_options(context))
    try:
        if stream is None:
            risk_error = fit_rows(classifier, rows_read.train, rows_read.valid, validation.risk, cluster, split)
        else:
            risk_error, columns = stream.fit(classifier, validation.risk)
    except KeyboardInterrupt:
        if checkpoints.is_dir():
            typer.echo(
                f"interrupted; the checkpoints are in {checkpoints}: add --resume to the command to continue", err=True
            )
        raise
    classifier.save(
        model, half=training.half, notes={COLUMNS: columns.to_dict()}, bundle_encoder=training.bundle_encoder
    )
    remove_checkpoints(checkpoints)
    if plot is not None:
        from hinet.evaluation.plots import plot_history

        plot_history(classifier.history_, plot)
    report_model(classifier, model, time.perf_counter() - start, run, risk_error)


def declared_by(
    path: str, rows: RowOptions, column_options: ColumnOptions, validation: ValidationOptions, taxonomy: Path | None
) -> tuple[Columns | None, Taxonomy | None]:
    """Return the columns that a file declares, if it does, and the hierarchy: the given one, or what it declares."""
    from hinet import Taxonomy
    from hinet.cli.table_options import check_text_column
    from hinet.data.tables import Columns, declared_columns

    unused = {*rows.where, *conditions(validation.conditions)}
    declared = declared_columns(path, rows.options, column_options.label or (), unused)
    if declared is None and not column_options.text and not column_options.are_mixed:
        check_text_column(path, rows.options, {*unused, *(column_options.label or Columns().label)})
    if taxonomy is not None:
        return declared and declared.columns, Taxonomy.from_file(taxonomy)
    return (None, None) if declared is None else (declared.columns, declared.taxonomy)


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


def _parameters(training: TrainingOptions, run: RunOptions) -> dict[str, Any]:
    """Return the parameters of a classifier that options name."""
    return {
        "vectors": training.vectors, "encoder": training.encoder, "titles": training.titles,
        "effort": training.effort.value, "epochs": training.epochs, "width": training.width,
        "patience": training.patience, "memory_limit": training.memory_limit,
        "checkpoint_every": training.checkpoint_every, "keep_examples": training.keep_examples,
        "multilabel": "auto" if training.multilabel is None else training.multilabel,
        "objective": training.parsed_objective, "thresholds_by": training.thresholds_by.value,
        "engine": "torch" if training.fine_tune else "auto",
        "random_state": run.seed, "n_jobs": run.threads, "verbose": not run.quiet,
    }  # fmt: skip


def path_sep_of(found: str | None, column_options: ColumnOptions) -> str | None:
    """Return the separator of labels that are paths, as the classifier takes it; rows may have told it."""
    return found or (None if column_options.path_sep == NOT_PATHS else "auto")


def column_kinds(columns: Columns) -> dict[str, tuple[str, ...]] | None:
    """Return the columns by kind, if rows are more than a text."""
    if not columns.is_mixed:
        return None
    return {kind: getattr(columns, kind) for kind in ("text", "number", "category", "vector")}


def _check_outputs(model: Path, resume: bool, plot: Path | None) -> Path:
    """Raise FileError before training if an output could not be written; return the folder of checkpoints."""
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
    return checkpoints


def _check_resumed(checkpoints: Path) -> None:
    """Raise FileError if rows in memory were to go on where a stream was broken off that has its rows on disk."""
    from hinet.data.spill import is_spill

    if any(is_spill(path.name) for path in checkpoints.iterdir()):
        raise FileError(
            checkpoints, "has checkpoints of a run with --stream; add --stream to continue it, or remove the folder"
        )


def report_hierarchy(
    columns: Columns, hierarchy: Taxonomy | None, run: RunOptions, labels: Sequence[Any] | None = None
) -> None:
    """Print the shape of the hierarchy, as far as it is known; a stream has not read its ``labels`` yet."""
    from hinet.cli.training_rows import label_separator

    if hierarchy is not None:
        kind = "tree" if hierarchy.is_tree else "DAG"
        run.message(
            f"labels are nodes of a {kind} of {counted(len(hierarchy), 'node')} in {counted(hierarchy.height, 'level')}"
        )
    elif labels is not None and len(columns.label) == 1:
        if columns.path_sep is None:
            run.message("labels have no hierarchy; give --taxonomy, or labels that are paths A > B")
        elif columns.label_sep is None and (found := label_separator(labels)) is not None:
            separator, example = found
            run.message(
                f"warning: labels such as {quoted(example)} look like several paths in a cell, and are read as one; "
                f"add --label-sep '{separator}' if they are several"
            )


def report_validation(data: TrainingData, risk: float | None, run: RunOptions) -> None:
    """Print the number of validation rows, and how they relate to the training rows."""
    if data.valid is None:
        return
    run.message(counted(len(data.valid), "validation row"))
    untrained = data.count_untrained_labels()
    if untrained:
        only = "only in validation rows, so the model cannot learn"
        run.message(counted(untrained, f"label occurs {only} it/labels occur {only} them"))
    repeated = 0 if risk is None else data.count_repeated_texts()
    if repeated:
        repeat = counted(repeated, "validation row repeats/validation rows repeat")
        run.message(f"{repeat} a training text: the risk is valid for rows that do so as often")


def _cluster(
    place: ClusterOptions, split: SplitBy | None, training: TrainingOptions, run: RunOptions
) -> Cluster | None:
    """Return the cluster to train on, if one is wanted; raise HiNetError if it cannot be used."""
    cluster = place.chosen(run.threads)
    if cluster is None:
        if split is not None:
            raise HiNetError("--split is of a cluster; add --cluster local, or leave it out")
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


def fit_rows(
    classifier: HiNetClassifier,
    train: LabelledInputs,
    valid: LabelledInputs | None,
    risk: float | None,
    cluster: Cluster | None = None,
    split: SplitBy | None = None,
) -> HiNetError | None:
    """Train, and calibrate if there are validation rows; return why the risk cannot be guaranteed, if so."""
    held_out = None if valid is None else (valid.inputs, valid.labels)
    if cluster is None:
        classifier.fit(train.inputs, train.labels, valid=held_out)
    else:
        from hinet.cluster import fit_on_cluster

        fit_on_cluster(classifier, cluster, train.inputs, train.labels, valid=held_out, split=split or "auto")
    return None if valid is None else calibrate(classifier, len(valid), risk)
