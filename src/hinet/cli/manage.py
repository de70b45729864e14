"""``hinet inspect``, ``export`` and ``compile``: a summary of a model, its ONNX graph, and the compiled engine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet.cli.options import (
    PLOT,
    STANDARD,
    AsJson,
    EncoderFolder,
    ModelFolder,
    QuietRun,
    ThreadedRun,
    check_outputs,
    check_plot,
    option,
    print_json,
)
from hinet.cli.table_options import ColumnOptions, RowOptions
from hinet.errors import HiNetError, counted

MAX_NAMES = 12  # names of columns to list per kind


def inspect(
    model: ModelFolder,
    run: QuietRun,
    as_json: AsJson = False,
    plot: Annotated[Path | None, option(f"Plot the training curve. {PLOT}")] = None,
    card: Annotated[bool, option("Write a model card: Markdown, with metadata for Hugging Face.", "--card")] = False,
    out: Annotated[str, option("File for the model card; - for standard output.")] = STANDARD,
) -> None:
    """Show the taxonomy, features, training, validation, calibration and files of a model.

    Example: hinet inspect model
    """
    from hinet.classifier.saved_model import read_description
    from hinet.cli.taxonomy import summary_lines
    from hinet.taxonomy.check import summarise

    check_plot(plot)
    if card and as_json:
        raise HiNetError("--card cannot be combined with --json; choose one")
    if out != STANDARD and not card:
        raise HiNetError("--out is the file of a model card; give --card too")
    check_outputs([], {"--plot": plot, "--out": out}, model)
    manifest, taxonomy = read_description(model)
    if plot is not None:
        from hinet.evaluation.plots import plot_history
        from hinet.progress import EpochRecord

        history = [EpochRecord(**record) for record in manifest.get("history", ())]
        if not history:
            raise HiNetError(f"{model}: the model has no training history to plot")
        plot_history(history, plot, model.name)
    if card:
        _write_card(model, manifest, summarise(taxonomy), out)
        return
    if as_json:
        print_json({**manifest, "taxonomy": summarise(taxonomy)})
        return
    for line in [*_lines(manifest), *summary_lines("taxonomy", summarise(taxonomy))]:
        typer.echo(line)


def _write_card(model: Path, manifest: dict[str, Any], taxonomy: dict[str, Any], out: str) -> None:
    from hinet.classifier.model_card import model_card
    from hinet.classifier.model_folder import read_evaluation
    from hinet.files import write_bytes

    text = model_card(model.resolve().name, manifest, taxonomy, read_evaluation(model, manifest["blake2b"]))
    if out == STANDARD:
        typer.echo(text, nl=False)
    else:
        write_bytes(Path(out), text.encode())


def _lines(manifest: dict[str, Any]) -> list[str]:
    """Return the summary of a manifest as lines."""
    from hinet.classifier.model_folder import UpdateCheck, metrics_text, training_text, trainings_of, updates_text

    features = manifest["features"]
    first, *updates = trainings_of(manifest)
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    lines = [
        f"model of the {manifest['engine']} engine, format {manifest['format']}, {size / 1e6:,.1f} MB; {versions}",
        f"  trained on  {training_text(first)}",
        *([f"  updated     {updates_text(updates)}"] if updates else []),
        *([f"  last update {UpdateCheck.restored(check)}"] if (check := manifest.get("update_check")) else []),
        f"  features    {_features_line(features)}",
        *_vector_lines(manifest),
    ]
    if columns := _columns(manifest):
        named = [f"{kind} {_listed(names)}" for kind, names in columns.items() if names]
        lines.append(f"  columns     {'; '.join(named)}")
    hidden = ("taxonomy", "columns", "verbose", "checkpoint_every", "n_jobs")  # without influence, or shown above
    settings = {k: v for k, v in manifest["parameters"].items() if v not in (None, "auto", False) and k not in hidden}
    lines.append(f"  settings    {', '.join(f'{name} {value}' for name, value in settings.items())}")
    for name, metrics in manifest["metrics"].items():
        lines.append(f"  {name:<11} {counted(metrics['rows'], 'row')}: {metrics_text(metrics)}")
    if (rule := manifest.get("set_rule")) is not None:
        from hinet.classifier.predicted_sets import SetRule

        lines.append(f"  sets        {SetRule.restored(rule)}")
    if (trust := manifest.get("trust")) is not None:
        from hinet.engine.model.fused import Trust

        lines.append(f"  trust       {Trust.restored(trust)}")
    return [*lines, *_calibration_lines(manifest["calibration"])]


def _vector_lines(manifest: dict[str, Any]) -> list[str]:
    """Return a line with the encoder or the static vectors of the model, if there are any."""
    from hinet.classifier.saved_model import meaning_entry

    if (entry := meaning_entry(manifest)) is None:
        return []
    if (encoder := entry["encoder"]) is not None:
        where = "in the model" if "bundled" in encoder else "not in the model"
        return [f"  encoder     {encoder['source']}, fingerprint {encoder['fingerprint']}; {where}"]
    if (packaged := entry.get("vectors")) is not None:
        return [f"  vectors     package {packaged['package']}, fingerprint {packaged['fingerprint']}; not in the model"]
    return ["  vectors     static vectors; in the model"]


def _columns(manifest: dict[str, Any]) -> dict[str, Sequence[str]]:
    """Return the input columns by kind, and the label columns if they are known."""
    from hinet.classifier.saved_model import saved_columns

    with suppress(HiNetError):  # the user may have saved another note of this name
        if (columns := saved_columns(manifest)) is not None:
            return {kind: getattr(columns, kind) for kind in ("text", "number", "category", "vector", "label")}
    return manifest["features"]["columns"] if manifest["features"]["kind"] == "frame" else {}


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _features_line(features: dict[str, Any]) -> str:
    if features["kind"] == "frame":
        columns = {kind: len(names) for kind, names in features["columns"].items() if names}
        return f"columns of a table: {', '.join(f'{count} {kind}' for kind, count in columns.items())}"
    if features["kind"] != "text":
        return f"{features['kind']} rows"
    if "tuned" in features:
        return f"texts, read by a fine-tuned encoder of the family {features['tuned']['family']}"
    settings = features["settings"]
    sizes = {"words": settings["word_ngrams"], "characters": settings["char_ngrams"]}
    parts = [f"{name} {size[0]} to {size[1]}" for name, size in sizes.items() if size]
    return f"n-grams of {' and '.join(parts)} of texts"


def _calibration_lines(calibration: dict[str, Any] | None) -> list[str]:
    if calibration is None:
        return ["  calibrated  no"]
    error = f"error {calibration['error_before']:.3f}"
    if calibration.get("scaled", True):
        error = f"temperature {calibration['temperature']:.2f}, {error}, then {calibration['error_after']:.3f}"
    else:
        error += ", not scaled"
    lines = [f"  calibrated  on {counted(calibration['rows'], 'row')}: {error}"]
    if calibration["promise"] is not None:
        from hinet.evaluation.risk import RiskBound

        lines.append(f"  threshold   --min-confidence calibrated: {RiskBound(**calibration['promise'])}")
    return lines


def export(
    model: ModelFolder,
    folder: Annotated[Path, typer.Argument(help="New folder for the graph.", show_default=False)],
    column_options: ColumnOptions,
    rows: RowOptions,
    run: ThreadedRun,
    data: Annotated[list[str] | None, option("Labelled rows to measure the accuracy of the graph; repeatable.")] = None,
    encoder: EncoderFolder = None,
) -> None:
    """Export a model as an ONNX graph; needs the extra 'export'.

    Example: hinet export model onnx_model --data test.csv
    """
    from hinet import HiNetClassifier
    from hinet.classifier.saved_model import LoadedModel, load_classifier
    from hinet.cli.training_rows import read_rows

    rows.check_outputs(data or [], {}, str(folder), model)
    classifier, manifest = load_classifier(HiNetClassifier, model, encoder=encoder)
    classifier.set_params(n_jobs=run.threads)
    if not data:
        typer.echo(str(classifier.export_onnx(folder)))
        return
    loaded = LoadedModel(classifier.fitted_, manifest)
    columns = loaded.checked_columns(column_options.with_defaults(loaded.columns))
    labelled = read_rows(data, columns, rows, loaded.given_taxonomy, str(folder))
    typer.echo(str(classifier.export_onnx(folder, loaded.named_as_trained(labelled.inputs), labelled.labels)))


def compile(run: ThreadedRun) -> None:
    """Compile the whole engine for this machine, on all cores, so that nothing is compiled later.

    Example: hinet compile --threads 2

    The compiled code is stored next to the package or, if that folder is read-only, in the user's cache folder; set
    NUMBA_CACHE_DIR to use another folder. It is compiled for this processor. If an image runs on several kinds of
    processors, set NUMBA_CPU_NAME=generic in it before compiling.
    """
    import time

    from rich.console import Console

    from hinet.engine.compiling import compile_everything
    from hinet.parameters import resolve_threads

    start = time.perf_counter()
    console = Console(stderr=True, quiet=run.quiet, highlight=False)
    done = 0
    with console.status("compiling") as status:
        for name, total in compile_everything(resolve_threads(run.threads)):
            done += 1
            status.update(f"compiling, {done} of {total}")
            if not console.is_terminal:
                run.message(f"{done}/{total}  {name}")
    run.message(f"compiled {done} kernels in {time.perf_counter() - start:.0f} s")
