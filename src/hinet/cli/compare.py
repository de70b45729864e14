"""``hinet compare``: the Flatten Network, the paper to the letter and our default, on the same footing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:  # imported when the command runs, so that --help stays instant
    from hinet.evaluation import ComparisonData, Outcome

EXAMPLE = "Example: hinet compare products.csv --taxonomy categories.csv --text title --label category"


def compare(
    data: Annotated[Path, typer.Argument(help="A table of rows, or a folder of LSHTC files.", show_default=False)],
    taxonomy: Annotated[
        Path | None,
        typer.Option("--taxonomy", help="The hierarchy; without it, labels are paths such as A > B > C."),
    ] = None,
    text: Annotated[str, typer.Option("--text", help="Column of the text.")] = "text",
    label: Annotated[str, typer.Option("--label", help="Column of the label.")] = "label",
    label_sep: Annotated[
        str | None, typer.Option("--label-sep", help="Separator of several labels in one cell.", show_default=False)
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            "--split", help="Column that says 'train' for training rows; others are test.", show_default=False
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            "--test",
            help="File of test rows. Without it or --split: about a fifth, by hash, or a folder's validation.txt.",
            show_default=False,
        ),
    ] = None,
    models: Annotated[
        str,
        typer.Option(
            "--models", help="Names with commas: flatten, paper, paper-masked, default, skip-level-squared-masked…"
        ),
    ] = "flatten,paper,default",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Number of seeds, from --seed on.")] = 1,
    seed: Annotated[int, typer.Option("--seed", help="The first seed.")] = 0,
    epochs: Annotated[
        int | None, typer.Option("--epochs", min=1, help="Epochs of every model.", show_default=False)
    ] = None,
    width: Annotated[
        int | None,
        typer.Option("--width", min=1, help="Width k of the feature layer, by default 256.", show_default=False),
    ] = None,
    threads: Annotated[
        int | None, typer.Option("--threads", min=1, help="Threads, by default all.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Where to save the figures as JSON.")] = Path("compare.json"),
    plot: Annotated[Path, typer.Option("--plot", help="Where to save the plot: .png, .svg or .pdf.")] = Path(
        "compare.png"
    ),
) -> None:
    """Train flat and hierarchical networks with the same features, seeds and budget, and print how they do."""
    from hinet.evaluation import compare as compare_models
    from hinet.evaluation.comparison_data import TextColumns, lshtc_comparison, table_comparison
    from hinet.evaluation.plots import plot_comparison

    _check_outputs(out, plot)
    if data.is_dir():
        rows = lshtc_comparison(data, None if test is None else str(test))
    else:
        rows = table_comparison(data, TextColumns(text, label, label_sep, split), hierarchy=taxonomy, test=test)
    outcomes = compare_models(
        rows,
        [name.strip() for name in models.split(",")],
        seeds=range(seed, seed + seeds),
        width=width,
        training={} if epochs is None else {"epochs": epochs},
        threads=threads,
    )
    print_outcomes(rows, outcomes)
    _save(rows, outcomes, out)
    plot_comparison(outcomes, rows.name, plot)
    typer.echo(f"saved {out} and {plot}")


def _check_outputs(out: Path, plot: Path) -> None:
    """Refuse what could not be written before minutes of training, not after."""
    from hinet.errors import FileError
    from hinet.evaluation.plots import require_matplotlib

    require_matplotlib()
    for path in (out, plot):
        if not path.parent.is_dir():
            raise FileError(path, "cannot be written: the folder does not exist")
    if plot.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise FileError(plot, "a plot is written as .png, .svg or .pdf; rename it")


def _save(data: ComparisonData, outcomes: list[Outcome], out: Path) -> None:
    import json

    from hinet.evaluation import summarise_outcomes
    from hinet.files import write_text

    found = {
        "data": data.name,
        "train_rows": len(data.train),
        "test_rows": len(data.test),
        "features": data.train_rows.shape[1],
        "summary": summarise_outcomes(outcomes),
        "outcomes": [outcome.as_dict() for outcome in outcomes],
    }
    write_text(out, json.dumps(found, indent=2) + "\n")


def print_outcomes(data: ComparisonData, outcomes: list[Outcome]) -> None:
    """Print a row for every model, the means over its seeds."""
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    table = Table(
        title=f"{data.name}: {len(data.train):,} training rows, {len(data.test):,} test rows", title_justify="left"
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
