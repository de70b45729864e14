"""``hinet feedback``: what people told the service, as rows to train on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.options import AsJson, RunOptions, help_with_example, option, quiet_option
from hinet.errors import HiNetError, counted, did_you_mean

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet.serving.store import Store

app = typer.Typer(no_args_is_help=True, help="Use the feedback that 'hinet serve' keeps.")

StoreFile = Annotated[Path, typer.Argument(help="File of 'hinet serve --feedback'.", show_default=False)]


@quiet_option
def export(
    file: StoreFile,
    run: RunOptions,
    out: Annotated[str, option("File to write: .csv, .tsv, .jsonl or .parquet; - for standard output, as CSV.")] = "-",
    model: Annotated[str | None, option("Name that the model is served by (default: the only one).")] = None,
) -> None:
    """Write rows with their right labels, in the columns of the training rows; of a text, the last verdict counts.

    'hinet update' learns from them, and 'hinet train' takes them beside other rows.
    """
    from hinet.data.tables import new_table, output_format

    store = _open(file)
    rows = store.training_rows(_model_of(store, file, model))
    names = list(dict.fromkeys(name for row in rows for name in row))
    format = output_format(out, None, "csv")
    several = any(isinstance(cell, list) for row in rows for cell in row.values())
    if format != "jsonl" and several:
        raise HiNetError(f"some rows have several labels, which {format} has no room for; write .jsonl")
    with new_table(out, format, dict.fromkeys(names, "any")) as table:
        table.write({name: [row.get(name) for row in rows] for name in names})
    run.message(counted(len(rows), "row"))


@quiet_option
def show(file: StoreFile, run: RunOptions, as_json: AsJson = False) -> None:
    """Count the feedback of each model by verdict."""
    import json

    counts = _open(file).counts()
    if as_json:
        typer.echo(json.dumps([count._asdict() for count in counts], ensure_ascii=False))
        return
    for count in counts:
        typer.echo(f"{count.model}  {count.verdict}  {count.rows:,}")


for command, example in (
    (export, "hinet feedback export feedback.db --out rows.csv"),
    (show, "hinet feedback show feedback.db"),
):
    app.command(help=help_with_example(command, example))(command)


def _open(file: Path) -> Store:
    from hinet.serving.store import Store

    return Store.open(file, create=False)


def _model_of(store: Store, file: Path, model: str | None) -> str:
    """Return the model whose feedback is wanted: the named one, or the only one."""
    names = list(dict.fromkeys(count.model for count in store.counts()))
    if not names:
        raise HiNetError(f"{file}: there is no feedback yet")
    if model is None and len(names) > 1:
        raise HiNetError(f"{file}: there is feedback of {', '.join(names)}; give --model")
    if model is not None and model not in names:
        raise HiNetError(f"{file}: there is no feedback of {model!r}{did_you_mean(model, names)}")
    return names[0] if model is None else model
