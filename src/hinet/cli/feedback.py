"""``hinet feedback``: feedback that users gave to the service, as training rows."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.options import AsJson, CommandGroup, QuietRun, option
from hinet.errors import HiNetError, counted, did_you_mean, printable, quoted

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet.choices import TableFormat
    from hinet.serving.store import Entry, Store

app = CommandGroup(no_args_is_help=True, help="Use the feedback that 'hinet serve' keeps.")

StoreFile = Annotated[Path, typer.Argument(help="File of 'hinet serve --feedback'.", show_default=False)]


@app.command()
def export(
    file: StoreFile,
    run: QuietRun,
    out: Annotated[
        str, option("File to write: .csv, .tsv, .jsonl, .parquet or .xlsx; - for standard output, as CSV.")
    ] = "-",
    model: Annotated[str | None, option("Name that the model is served by (default: the only one).")] = None,
    since_last: Annotated[bool, option("Write only rows that were never exported.", "--since-last")] = False,
) -> None:
    """Write rows with their correct labels, in the columns of the training rows; the last verdict on a text counts.

    Example: hinet feedback export feedback.db --out rows.csv

    Train on the rows with 'hinet update', or with 'hinet train' together with other rows. Rows that the
    format cannot hold are listed with their ids on standard error, and the exit code is 0. If there is no row to write,
    no file is written, and the exit code is 2. Rows count as exported once the file is complete.
    """
    from hinet.data.tables import new_table, output_format

    with closing(_open(file)) as store:
        kept = store.training_rows(_model_of(store, file, model), only_new=since_last)
        format = output_format(out, None, "csv")
        problems = {row.id: problem for row in kept if (problem := _problem(row, format))}
        exported = [row for row in kept if row.id not in problems]
        if exported:
            rows = [row.row for row in exported]
            names = list(dict.fromkeys(name for row in rows for name in row))
            with new_table(out, format, dict.fromkeys(names, "any")) as table:
                table.write({name: [row.get(name) for row in rows] for name in names})
            store.mark_exported(row.id for row in exported)
            run.message(counted(len(rows), "row"))
    if problems:
        lines = [f"  {number}: {text}" for number, text in problems.items()]
        remedy = "correct them at the source, or delete them with 'hinet feedback delete'"
        title = f"{counted(len(problems), 'row was/rows were')} not exported; {remedy}:"
        typer.echo("\n".join([title, *lines]), err=True)
    if not exported:
        raise HiNetError(f"{file}: there is no feedback to export{' since the last export' if since_last else ''}")


def _problem(row: Entry, format: TableFormat) -> str:
    """Return why a row cannot be written in a format; an empty string if it can."""
    if format == "jsonl":
        return ""
    if format != "parquet" and any("\0" in cell for cell in row.row.values() if isinstance(cell, str)):
        return f"has a NUL character, which {format} cannot hold; write .jsonl"
    labels = next((cell for cell in row.row.values() if isinstance(cell, list)), None)
    if labels is None:
        return ""
    return f"has several labels ({', '.join(map(quoted, labels))}), which {format} cannot hold; write .jsonl"


@app.command()
def show(file: StoreFile, run: QuietRun, as_json: AsJson = False) -> None:
    """Count the feedback of each model by verdict.

    Example: hinet feedback show feedback.db
    """
    with closing(_open(file)) as store:
        counts = store.counts()
    if as_json:
        typer.echo(json.dumps([count._asdict() for count in counts], ensure_ascii=False))
        return
    for count in counts:
        typer.echo(f"{count.model}  {count.verdict}  {count.rows:,}")


@app.command("list")
def list_(
    file: StoreFile,
    run: QuietRun,
    model: Annotated[str | None, option("Name that the model is served by (default: all).")] = None,
    as_json: AsJson = False,
) -> None:
    """List feedback with its ids, the oldest first.

    Example: hinet feedback list feedback.db
    """
    with closing(_open(file)) as store:
        entries = store.entries(None if model is None else _model_of(store, file, model))
    if as_json:
        typer.echo(json.dumps([entry._asdict() for entry in entries], ensure_ascii=False))
        return
    for entry in entries:
        state = "new" if entry.exported is None else "exported"
        row = json.dumps(entry.row, ensure_ascii=False)
        line = f"id {entry.id}  {entry.received}  {entry.model}  {entry.verdict}  {state}  {row}"
        typer.echo(printable(line))


@app.command()
def delete(
    file: StoreFile,
    run: QuietRun,
    ids: Annotated[list[int], typer.Argument(metavar="ID...", help="Ids, as listed.", show_default=False)],
) -> None:
    """Delete feedback; an earlier verdict on the same text then counts again.

    Example: hinet feedback delete feedback.db 1 2
    """
    with closing(_open(file)) as store:
        missing = store.delete(ids)
    if missing:
        numbers = ", ".join(map(str, missing))
        raise HiNetError(f"{file}: there is no feedback {numbers}; nothing was deleted. See 'hinet feedback list'")
    run.message(f"{counted(len({*ids}), 'row')} deleted")


def _open(file: Path) -> Store:
    from hinet.serving.store import Store

    return Store.open(file, create=False)


def _model_of(store: Store, file: Path, model: str | None) -> str:
    """Return the named model, or the only one."""
    names = list(dict.fromkeys(count.model for count in store.counts()))
    if not names:
        raise HiNetError(f"{file}: there is no feedback yet")
    if model is None and len(names) > 1:
        raise HiNetError(f"{file}: there is feedback of {', '.join(names)}; give --model")
    if model is not None and model not in names:
        raise HiNetError(f"{file}: there is no feedback of {model!r}{did_you_mean(model, names)}")
    return names[0] if model is None else model
