"""Options of commands that read rows from tables: their columns, formats and invalid rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from hinet.choices import TableFormat
from hinet.cli.options import STANDARD, SharedOptions, check_outputs, option
from hinet.errors import FileError, HiNetError, counted, quoted

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet.data.tables import Columns, Conditions, RowBlock, RowErrors, TableOptions

NOT_PATHS = "none"  # instead of a separator: labels are not paths
SKIP_HINT = "; or skip such rows with --on-error skip"
FILES = (
    "CSV, TSV, JSON lines, Parquet, Excel (.xlsx) or ARFF files, plain or compressed (.gz, .xz, .zst); - for standard "
    "input."
)
_LABEL = "Label column; several are the levels of a path (default: 'label', or as in training)."
_PATH_SEP = (
    "Separator of the steps of a label that is a path; 'none' if labels are not paths (default: without --taxonomy, > "
    "if a label has it with text on both sides)."
)
_NUMBER = "Column of numbers, in addition to text or instead of it; repeatable (default: as in training)."
_CATEGORY = "Column of categories, such as brands; repeatable (default: as in training)."
_VECTOR = (
    "Column of lists of numbers, such as embeddings, or NAME for the file TABLE.NAME.npy next to the table TABLE.csv; "
    "repeatable (default: as in training)."
)
LabelSep = Annotated[str | None, option("Separator of several labels in a cell (default: one label).")]


@dataclass(frozen=True)
class ColumnOptions(SharedOptions):
    """The columns that the user named; None means not given."""

    panel = "Columns"
    text: Annotated[
        list[str] | None, option("Text column; several are joined (default: 'text', or as in training).")
    ] = None
    number: Annotated[list[str] | None, option(_NUMBER)] = None
    category: Annotated[list[str] | None, option(_CATEGORY)] = None
    vector: Annotated[list[str] | None, option(_VECTOR)] = None
    label: Annotated[list[str] | None, option(_LABEL)] = None
    label_sep: LabelSep = None
    path_sep: Annotated[str | None, option(_PATH_SEP)] = None

    def __post_init__(self) -> None:
        for name, value in (("--label-sep", self.label_sep), ("--path-sep", self.path_sep)):
            if value == "":
                raise HiNetError(f"{name} is empty; give the separator")

    def with_defaults(self, defaults: Columns) -> Columns:
        """Return the columns named here, and the defaults for the rest."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in vars(self).items()
        }
        given = {name: value for name, value in values.items() if value}
        return replace(defaults, **given | ({"path_sep": None} if self.path_sep == NOT_PATHS else {}))

    @property
    def are_mixed(self) -> bool:
        """Whether columns other than text are named."""
        return bool(self.number or self.category or self.vector)


TextColumns = Annotated[ColumnOptions, "text"]
InputColumns = Annotated[ColumnOptions, "text", "number", "category", "vector"]


@dataclass(frozen=True)
class RowOptions(SharedOptions):
    """How to read tables of rows, and what to do with invalid rows."""

    panel = "Rows"
    where: Annotated[list[str] | None, option("COLUMN=VALUE: read only such rows; repeatable (default: all rows).")] = (
        None
    )
    format: Annotated[
        TableFormat | None, option("Format of the rows; 'text' is one text per line (default: detected).")
    ] = None
    delimiter: Annotated[str | None, option("Delimiter of a table: a character or 'tab' (default: detected).")] = None
    quotes: Annotated[bool | None, option("Whether cells may be quoted (default: detected).")] = None
    encoding: Annotated[str, option("Encoding of the rows.")] = "utf-8"
    on_error: Annotated[
        Literal["fail", "skip"], option("What to do with an invalid row: fail, or skip it and write it to --rejects.")
    ] = "fail"
    rejects: Annotated[str | None, option("CSV file for skipped rows, with reasons (default: OUT.rejects.csv).")] = None

    def __post_init__(self) -> None:
        parse_delimiter(self.delimiter)
        parse_conditions(self.where)

    @property
    def options(self) -> TableOptions:
        """How to read tables."""
        from hinet.data.tables import TableOptions

        return TableOptions(self.format, parse_delimiter(self.delimiter), self.quotes, self.encoding)

    @property
    def conditions(self) -> Conditions:
        """The conditions on rows to read."""
        return parse_conditions(self.where)

    @property
    def skips_errors(self) -> bool:
        """Whether invalid rows are skipped."""
        return self.on_error == "skip"

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
        rejects = self.rejects_path(output) if self.skips_errors or self.rejects is not None else None
        check_outputs(reads, {**writes, "--rejects": rejects}, model)

    @contextmanager
    def row_errors(self, output: str) -> Iterator[RowErrors]:
        """Yield the receiver of invalid rows; rejects are written next to the output unless a file is named."""
        from hinet.data.tables import FailFast, collect_rejects

        if not self.skips_errors:
            yield FailFast(SKIP_HINT)
            return
        with collect_rejects(self.rejects_path(output)) as rejects:
            yield rejects
        if rejects.count:
            rows = counted(rejects.count, "row was/rows were")
            typer.echo(f"{rows} skipped; the reasons are in {rejects.path}", err=True)


def parse_conditions(where: list[str] | None) -> Conditions:
    """Return COLUMN=VALUE conditions as a mapping; several values of a column are alternatives."""
    values: dict[str, tuple[str, ...]] = {}
    for condition in where or ():
        column, mark, value = condition.partition("=")
        if not column or not mark:
            raise HiNetError(f"a condition is COLUMN=VALUE, such as split=train; got {condition!r}")
        values[column.strip()] = (*values.get(column.strip(), ()), value.strip())
    return values


def parse_delimiter(delimiter: str | None) -> str | None:
    """Return the character that an option names, where 'tab' stands for a tab."""
    if delimiter == "":
        raise HiNetError("--delimiter is empty; give the character between two cells")
    return "\t" if delimiter in ("tab", "\\t") else delimiter


def check_text_column(path: str, options: TableOptions, exclude: Collection[str]) -> None:
    """Raise FileError with the columns that look like text if no column has the default name of texts.

    Columns to ``exclude``, such as labels, are not suggested. Columns are only suggested, not chosen, because a column
    that repeats the label looks like text too.
    """
    from hinet.data.tables import Columns, ColumnSelection, read_blocks
    from hinet.data.tables.blocks import Skipped
    from hinet.files.delimited import missing_column_message

    (default,) = Columns().text
    if path == STANDARD or not Path(path).is_file():
        return
    selection = ColumnSelection((), read_all=True, explicit=False)
    block = next(read_blocks([path], selection, options, Skipped()), None)
    if block is None or default in block.names:
        return
    if names := _text_columns(block, exclude):
        message = missing_column_message(default, block.names)
        verb = "looks" if len(names) == 1 else "look"
        raise FileError(path, f"{message}; set `text`: {' and '.join(map(quoted, names))} {verb} like text")


def _text_columns(block: RowBlock, exclude: Collection[str]) -> tuple[str, ...]:
    import pyarrow as pa

    from hinet.classifier.columns import recognise

    columns = {name: block.values(name) for name in block.names if name not in exclude}
    texts = {
        name: pa.array(values, pa.large_string())
        for name, values in columns.items()
        if all(value is None or isinstance(value, str) for value in values) and not all(map(_is_number, values))
    }
    with suppress(HiNetError):  # all columns are ids
        return recognise(pa.table(texts)).kinds.text if texts else ()
    return ()


def _is_number(value: str | None) -> bool:
    try:
        float(value or "0")
    except ValueError:
        return False
    return True
