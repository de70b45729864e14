"""``hinet inspect``: what a saved model is, from its manifest and its taxonomy alone."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from hinet.cli.models import columns_noted
from hinet.cli.options import Running, option, runs
from hinet.cli.outputs import check_outputs
from hinet.cli.plot_options import PLOT, check_plot
from hinet.errors import HiNetError

EXAMPLE = "Example: hinet inspect model"


@runs
def inspect(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)],
    running: Running,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")] = False,
    plot: Annotated[Path | None, option("--plot", f"Draw the training curve. {PLOT}")] = None,
) -> None:
    """Show what a model is: its taxonomy, features, training, validation, calibration and files."""
    import json

    from hinet.classifier.bundle import read_description
    from hinet.cli.taxonomy import summary_lines
    from hinet.taxonomy.check import summarise

    check_plot(plot)
    check_outputs([], {"--plot": plot}, model)
    manifest, taxonomy = read_description(model)
    if plot is not None:
        _draw(manifest, model, plot)
    if as_json:
        typer.echo(json.dumps({**manifest, "taxonomy": summarise(taxonomy)}, indent=2, ensure_ascii=False))
        return
    for line in [*_lines(manifest), *summary_lines("taxonomy", summarise(taxonomy))]:
        typer.echo(line)


def _draw(manifest: dict[str, Any], model: Path, plot: Path) -> None:
    from hinet.evaluation.plots import plot_history
    from hinet.progress import EpochRecord

    history = [EpochRecord(**record) for record in manifest.get("history", ())]
    if not history:
        raise HiNetError(f"{model}: the model has no training history to draw")
    plot_history(history, plot, model.name)


def _lines(manifest: dict[str, Any]) -> list[str]:
    """Return what the manifest tells, for a person."""
    features, data = manifest["features"], manifest["training_data"]
    size = sum(told["bytes"] for told in manifest["files"].values())
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    lines = [
        f"model of the {manifest['engine']} engine, format {manifest['format']}, {size / 1e6:,.1f} MB; {versions}",
        f"  trained on  {data.get('rows', 0):,} rows with {data.get('labels', 0):,} labels",
        f"  features    {_features_line(features)}",
    ]
    with suppress(HiNetError):  # a note of this name may be of the user's own, and mean something else
        columns = columns_noted(manifest)
        if columns is not None:
            lines.append(f"  columns     text {', '.join(columns.text)}; label {', '.join(columns.label)}")
    aside = ("taxonomy", "verbose", "checkpoint_every", "n_jobs")  # which do not shape the model
    chosen = {k: v for k, v in manifest["parameters"].items() if v not in (None, "auto", False) and k not in aside}
    lines.append(f"  settings    {', '.join(f'{name} {value}' for name, value in chosen.items())}")
    for name, judged in manifest["metrics"].items():
        lines.append(
            f"  {name:<11} {judged['rows']:,} rows: accuracy {100 * judged['accuracy']:.1f}%, "
            f"hierarchical F1 {100 * judged['hierarchical_f1']:.1f}%"
        )
    return [*lines, *_calibration_lines(manifest["calibration"])]


def _features_line(features: dict[str, Any]) -> str:
    if features["kind"] != "text":
        return f"{features['kind']} rows"
    settings = features["settings"]
    sizes = {"words": settings["word_ngrams"], "characters": settings["char_ngrams"]}
    parts = [f"{name} {size[0]} to {size[1]}" for name, size in sizes.items() if size]
    return f"n-grams of {' and '.join(parts)} of texts"


def _calibration_lines(calibration: dict[str, Any] | None) -> list[str]:
    if calibration is None:
        return ["  calibrated  no"]
    lines = [
        f"  calibrated  on {calibration['rows']:,} rows: temperature {calibration['temperature']:.2f}, "
        f"error {calibration['error_before']:.3f}, then {calibration['error_after']:.3f}"
    ]
    if calibration["promise"] is not None:
        from hinet.evaluation.risk import RiskBound

        lines.append(f"  promise     --min-confidence calibrated: {RiskBound(**calibration['promise'])}")
    return lines
