"""``hinet compare``: the Flatten Network, the network of the paper and the default one, with the same training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.options import RunOptions, check_outputs, check_parent, check_plot, option
from hinet.cli.table_options import LabelSep
from hinet.errors import FileError, counted
from hinet.extras import require

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet.evaluation.comparison import ComparisonData, Outcome

TEST_HELP = "File of test rows (default: those of --split, else a fifth by hash, or validation.txt of a folder)."
MODELS_HELP = "Comma-separated: flatten, paper, paper-masked, default, skip-level-squared-masked…"


def compare(
    data: Annotated[Path, typer.Argument(help="A table of rows, or a folder of LSHTC files.", show_default=False)],
    run: RunOptions,
    taxonomy: Annotated[
        Path | None, option("File of the hierarchy (default: labels are paths such as A > B > C).")
    ] = None,
    text: Annotated[str, option("Text column.")] = "text",
    label: Annotated[str, option("Label column.")] = "label",
    label_sep: LabelSep = None,
    split: Annotated[str | None, option("Column with 'train' for training rows; others are test rows.")] = None,
    test: Annotated[Path | None, option(TEST_HELP)] = None,
    models: Annotated[str, option(MODELS_HELP)] = "flatten,paper,default",
    seeds: Annotated[int, option("Number of seeds, starting at --seed.", min=1)] = 1,
    epochs: Annotated[
        int | None, option("Training epochs of every model (default: chosen from the number of rows).", min=1)
    ] = None,
    width: Annotated[int | None, option("Width of the feature layer (default: that of the network).", min=1)] = None,
    out: Annotated[Path, option("JSON file for the results.")] = Path("compare.json"),
    plot: Annotated[Path, option("File for the plot: .png, .svg or .pdf.")] = Path("compare.png"),
) -> None:
    """Train flat and hierarchical networks with the same features and budget; needs the extra 'torch'.

    Example: hinet compare products.csv --taxonomy categories.csv --text title --label category
    """
    from hinet.data.tables import Columns
    from hinet.evaluation.comparison import compare as compare_models
    from hinet.evaluation.comparison import lshtc_comparison, table_comparison

    require("torch", "compare")
    check_plot(plot)
    if out.is_dir():
        raise FileError(out, "is a folder; name a file for the results")
    check_parent(out)
    inputs = [*data.glob("*.txt")] if data.is_dir() else [data, test]
    check_outputs([*inputs, taxonomy], {"--out": out, "--plot": plot})
    if data.is_dir():
        rows = lshtc_comparison(data, None if test is None else str(test))
    else:
        rows = table_comparison(data, Columns((text,), (label,), label_sep), split=split, hierarchy=taxonomy, test=test)
    names = [name.strip() for name in models.split(",")]
    training = {} if epochs is None else {"epochs": epochs}
    seed_range = range(run.seed, run.seed + seeds)
    outcomes = compare_models(
        rows, names, seeds=seed_range, width=width, training=training, threads=run.threads, quiet=run.quiet
    )
    print_outcomes(rows, outcomes)
    _save(rows, outcomes, out, plot)
    run.message(f"saved {out} and {plot}")


def _save(data: ComparisonData, outcomes: list[Outcome], out: Path, plot: Path) -> None:
    import json

    from hinet.evaluation.comparison import summarise_outcomes
    from hinet.evaluation.plots import plot_comparison
    from hinet.files.atomic import write_text

    results = {
        "data": data.name,
        "train_rows": len(data.train),
        "test_rows": len(data.test),
        "features": data.train_rows.shape[1],
        "summary": summarise_outcomes(outcomes),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    write_text(out, json.dumps(results, indent=2) + "\n")
    plot_comparison(outcomes, data.name, plot)


def print_outcomes(data: ComparisonData, outcomes: list[Outcome]) -> None:
    """Print a row per model with the means over its seeds."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{data.name}: {counted(len(data.train), 'training row')}, {counted(len(data.test), 'test row')}",
        title_justify="left",
    )
    columns = ("model", "accuracy", "hier. F1", "by level", "output parameters", "s/epoch", "peak GB")
    for column in columns:
        table.add_column(column, justify="left" if column in ("model", "by level") else "right")
    for model in dict.fromkeys(outcome.model for outcome in outcomes):
        chosen = [outcome for outcome in outcomes if outcome.model == model]
        levels = np.mean([outcome.level_accuracy for outcome in chosen], axis=0)
        table.add_row(
            model,
            _spread([100 * outcome.accuracy for outcome in chosen]),
            _spread([100 * outcome.hierarchical_f1 for outcome in chosen]),
            " ".join(f"{100 * level:.0f}" for level in levels),
            f"{chosen[0].output_parameters:,}",
            f"{np.mean([outcome.seconds_per_epoch for outcome in chosen]):.1f}",
            f"{max(outcome.peak_gb for outcome in chosen):.2f}",
        )
    Console(width=max(100, Console().width)).print(table)


def _spread(values: list[float]) -> str:
    import numpy as np

    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")
