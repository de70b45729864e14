"""Options of commands that read rows from tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hinet.cli.options import option, shared_options
from hinet.cli.outputs import STANDARD, check_outputs
from hinet.errors import HiNetError, counted

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet.data.tables import Conditions, RowErrors, TableOptions


SKIP_HINT = "; or skip such rows with --on-error skip"


class RowFormat(StrEnum):
    """The formats of tables; a test keeps them equal to the library's."""

    csv = "csv"
    tsv = "tsv"
    jsonl = "jsonl"
    parquet = "parquet"
    arff = "arff"
    xlsx = "xlsx"
    text = "text"


class OnError(StrEnum):
    """What to do with an invalid row."""

    fail = "fail"
    skip = "skip"


@dataclass(frozen=True)
class RowOptions:
    """How to read tables of rows, and what to do with invalid rows."""

    options: TableOptions
    where: Conditions
    on_error: OnError
    rejects: str | None

    def rejects_path(self, output: str) -> str:
        """Return the file for skipped rows, by default next to the output."""
        return self.rejects or f"{output.rstrip('/')}.rejects.csv"

    def check_outputs(
        self,
        reads: Iterable[str | Path | None],
        writes: Mapping[str, str | Path | None],
        output: str,
        model: Path | None = None,
    ) -> None:
        """Raise FileError if an output, rejects included, is an input or another output."""
        if self.rejects == STANDARD:
            raise HiNetError("--rejects cannot be standard output, where results go; name a file")
        skips = self.on_error is OnError.skip or self.rejects is not None
        check_outputs(reads, {**writes, "--rejects": self.rejects_path(output) if skips else None}, model)

    @contextmanager
    def row_errors(self, output: str) -> Iterator[RowErrors]:
        """Yield the receiver of invalid rows; rejects are written next to the output unless a file is named."""
        from hinet.data.tables import FailFast, collect_rejects

        if self.on_error is OnError.fail:
            yield FailFast(SKIP_HINT)
            return
        with collect_rejects(self.rejects_path(output)) as rejects:
            yield rejects
        if rejects.count:
            rows = counted(rejects.count, "row was/rows were")
            typer.echo(f"{rows} skipped; the reasons are in {rejects.path}", err=True)


def conditions(where: list[str]) -> Conditions:
    """Return COLUMN=VALUE conditions as a mapping; several values of a column are alternatives."""
    pairs = [condition.partition("=") for condition in where]
    for column, mark, value in pairs:
        if not column or not mark:
            raise HiNetError(f"a condition is COLUMN=VALUE, such as split=train; got {column + mark + value!r}")
    values: dict[str, tuple[str, ...]] = {}
    for column, _, value in pairs:
        values[column.strip()] = (*values.get(column.strip(), ()), value.strip())
    return values


def _rows(
    where: Annotated[
        list[str] | None, option("COLUMN=VALUE: read only such rows; repeatable (default: all rows).")
    ] = None,
    format: Annotated[
        RowFormat | None, option("Format of the rows; 'text' is one text per line (default: detected).")
    ] = None,
    delimiter: Annotated[str | None, option("Delimiter of a table: a character or 'tab' (default: detected).")] = None,
    quotes: Annotated[bool | None, option("Whether cells may be quoted (default: detected).")] = None,
    encoding: Annotated[str, option("Encoding of the rows.")] = "utf-8",
    on_error: Annotated[
        OnError, option("What to do with an invalid row: fail, or skip it and write it to --rejects.")
    ] = OnError.fail,
    rejects: Annotated[
        str | None, option("CSV file for skipped rows, with reasons (default: OUT.rejects.csv).")
    ] = None,
) -> RowOptions:
    from hinet.data.tables import TableOptions

    if delimiter == "":
        raise HiNetError("--delimiter is empty; give the character between two cells")
    delimiter = "\t" if delimiter in ("tab", "\\t") else delimiter
    options = TableOptions(None if format is None else format.value, delimiter, quotes, encoding)
    return RowOptions(options, conditions(where or []), on_error, rejects)


row_options = shared_options(_rows, "rows", "Rows")

FILES = (
    "CSV, TSV, JSON lines, Parquet, Excel (.xlsx) or ARFF files, plain or compressed (.gz, .xz, .zst); - for standard "
    "input."
)
