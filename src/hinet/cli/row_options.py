"""The options every command takes that reads rows from tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.options import option, takes
from hinet.cli.outputs import STANDARD, check_outputs
from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when a command runs, so that --help stays instant
    from hinet.data.tables import Conditions, RowErrors, TableOptions

_PANEL = "Reading rows"


class RowFormat(StrEnum):
    """The formats a table may be in; a test holds them equal to the library's."""

    csv = "csv"
    tsv = "tsv"
    jsonl = "jsonl"
    parquet = "parquet"
    text = "text"


class OnError(StrEnum):
    """What to do with a row that cannot be used."""

    fail = "fail"
    skip = "skip"


@dataclass(frozen=True)
class RowReading:
    """How to read tables of rows, and what to do with rows that cannot be used."""

    options: TableOptions
    where: Conditions
    on_error: OnError
    rejects: str | None

    def rejects_beside(self, beside: str) -> str:
        """Return the file that skipped rows go to."""
        return self.rejects or f"{beside.rstrip('/')}.rejects.csv"

    def check_outputs(
        self,
        reads: Iterable[str | Path | None],
        writes: Mapping[str, str | Path | None],
        beside: str,
        model: Path | None = None,
    ) -> None:
        """Refuse results that are written over what is read, or over each other, rejects included."""
        if self.rejects == STANDARD:
            raise HiNetError("--rejects - would be standard output, where results go; name a file")
        skips = self.on_error is OnError.skip or self.rejects is not None
        check_outputs(reads, {**writes, "--rejects": self.rejects_beside(beside) if skips else None}, model)

    @contextmanager
    def row_errors(self, beside: str) -> Iterator[RowErrors]:
        """Yield what hears of rows that cannot be used: rejects are written to a file of their own or ``beside``."""
        from hinet.data.tables import FailFast, collect_rejects

        if self.on_error is OnError.fail:
            yield FailFast("; or skip such rows with --on-error skip")
            return
        with collect_rejects(self.rejects_beside(beside)) as rejects:
            yield rejects
        if rejects.count:
            some = "1 row was" if rejects.count == 1 else f"{rejects.count:,} rows were"
            typer.echo(f"{some} skipped; the reasons are in {rejects.path}", err=True)


def conditions(where: list[str]) -> Conditions:
    """Return COLUMN=VALUE conditions as a mapping; several values of a column stand for any of them."""
    pairs = [condition.partition("=") for condition in where]
    for column, mark, value in pairs:
        if not column or not mark:
            raise HiNetError(f"a condition is COLUMN=VALUE, such as split=train; got {column + mark + value!r}")
    found: dict[str, tuple[str, ...]] = {}
    for column, _, value in pairs:
        found[column.strip()] = (*found.get(column.strip(), ()), value.strip())
    return found


def _reading(
    format: Annotated[
        RowFormat | None,
        option("--format", "Format of the rows; by name or contents unless given. 'text' is a text a line.", _PANEL),
    ] = None,
    delimiter: Annotated[
        str | None, option("--delimiter", "Delimiter of a table: a character or 'tab'. Detected unless given.", _PANEL)
    ] = None,
    quotes: Annotated[
        bool | None, option("--quotes/--no-quotes", "Whether cells may be quoted. Detected unless given.", _PANEL)
    ] = None,
    encoding: Annotated[str, typer.Option("--encoding", help="Encoding of text.", rich_help_panel=_PANEL)] = "utf-8",
    where: Annotated[
        list[str] | None,
        option("--where", "COLUMN=VALUE: read such rows alone; repeat it for more values or columns.", _PANEL),
    ] = None,
    on_error: Annotated[
        OnError,
        typer.Option(
            "--on-error",
            help="A row that cannot be used ends the work, or is skipped and written to the rejects, with its line.",
            rich_help_panel=_PANEL,
        ),
    ] = OnError.fail,
    rejects: Annotated[
        str | None,
        option("--rejects", "CSV file for skipped rows, with reasons; by default OUT.rejects.csv.", _PANEL),
    ] = None,
) -> RowReading:
    """Return how to read rows."""
    from hinet.data.tables import TableOptions

    if delimiter == "":
        raise HiNetError("--delimiter is empty; give the character between two cells")
    delimiter = "\t" if delimiter in ("tab", "\\t") else delimiter
    options = TableOptions(None if format is None else format.value, delimiter, quotes, encoding)
    return RowReading(options, conditions(where or []), on_error, rejects)


reads_rows = takes(_reading, "rows")

FILES = "CSV, TSV, JSON lines or Parquet; plain, .gz, .xz or .zst; several files; - for standard input."
