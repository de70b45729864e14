"""``hinet predict``: rows in, the same rows in the same order out, with label, trace and probability."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.column_options import ColumnChoice, names_columns
from hinet.cli.options import Running, option, runs
from hinet.cli.row_options import FILES, OnError, RowFormat, RowReading, reads_rows
from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when the command runs, so that --help stays instant
    from hinet.classifier.tabular import AnswerTable
    from hinet.cli.models import LoadedModel
    from hinet.data.tables import LabelledBlock, RowQuery

EXAMPLE = "Example: hinet predict model new_products.csv --top 3 --out predictions.csv"


class DecodingName(StrEnum):
    """How an answer is chosen; a test holds them equal to the library's."""

    map = "map"
    expected_f1 = "expected_f1"
    label = "label"


@runs
@reads_rows
@names_columns
def predict(
    model: Annotated[Path, typer.Argument(help="Folder of a trained model.", show_default=False)],
    rows: RowReading,
    named: ColumnChoice,
    running: Running,
    data: Annotated[
        list[str] | None,
        typer.Argument(help=f"{FILES} Plain lines are texts. Without it, standard input.", show_default=False),
    ] = None,
    out: Annotated[str, typer.Option("--out", help="File to write; - for standard output.")] = "-",
    to: Annotated[
        RowFormat | None, option("--to", "Format to write; by default that of --out's name, or that of the rows.")
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, help="Traces a row, the best first.")] = 1,
    min_confidence: Annotated[
        str | None,
        option(
            "--min-confidence",
            "Answer with the deepest node that is at least so probable, from 0 to 1, or with nothing; "
            "'calibrated' takes the threshold that the model was calibrated for.",
        ),
    ] = None,
    decoding: Annotated[
        DecodingName,
        typer.Option("--decoding", help="The best trace, the best expected hierarchical F1, or the best label."),
    ] = DecodingName.map,
    levels: Annotated[
        bool, typer.Option("--levels", help="Add every level of the trace with its probability.")
    ] = False,
    titles: Annotated[bool, typer.Option("--titles", help="Add the title of the label.")] = False,
    keep: Annotated[list[str] | None, option("--keep", "Column of the rows to carry over; repeat it for more.")] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Carry all columns of the rows over.")] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Before the names of new columns, to tell them from kept ones.")
    ] = "",
) -> None:
    """Predict the labels of rows: in their order, in their format, in constant memory."""
    from hinet.classifier.tabular import AnswerTable, Asked
    from hinet.cli.models import load_model
    from hinet.data.tables import RowQuery, labelled_blocks
    from hinet.progress import counter_for_terminal

    loaded = load_model(model, running.threads)
    asked = Asked(top, _least(min_confidence, loaded), decoding.value, levels, titles)
    columns = named.over(loaded.columns)
    paths = data or ["-"]
    if "-" in paths and sys.stdin.isatty():
        running.say("reading texts from the terminal, one a line; Ctrl-D ends them")
    by_name = named.names_text or len(columns.text) > 1
    query = RowQuery(columns, labels=False, where=rows.where, keep=tuple(keep or ()), keep_all=keep_all, named=by_name)
    table = AnswerTable(loaded.fitted, asked, _path_mark(columns.path_sep))
    with rows.faults("predictions" if out == "-" else out) as faults, counter_for_terminal(running.quiet) as counter:
        blocks = labelled_blocks(paths, query, rows.options, faults)
        skips = rows.on_error is OnError.skip
        _write(blocks, out, None if to is None else to.value, _Output(loaded, table, query, prefix, skips), counter)


def _least(given: str | None, loaded: LoadedModel) -> float | None:
    if given is None:
        return None
    if given == "calibrated":
        calibration = loaded.manifest["calibration"]
        if calibration is None or calibration["promise"] is None:
            raise HiNetError("the model was calibrated for no risk; train it with --risk, or name a --min-confidence")
        return float(calibration["promise"]["threshold"])
    try:
        least = float(given)
    except ValueError:
        least = -1.0
    if not 0 < least <= 1:
        raise HiNetError(f"--min-confidence is more than 0 and at most 1, or 'calibrated'; got {given!r}")
    return least


def _path_mark(path_sep: str | None) -> str:
    return " > " if path_sep is None or path_sep.strip() == ">" else path_sep


class _Output:
    """Turns blocks of rows into the columns that are written."""

    def __init__(self, loaded: LoadedModel, table: AnswerTable, query: RowQuery, prefix: str, skips: bool) -> None:
        self._loaded, self._table, self._query, self._prefix, self._skips = loaded, table, query, prefix, skips

    def kinds(self, first: LabelledBlock) -> dict[str, Any]:
        """Return the columns there will be and what they hold: places if rows may be skipped, kept ones, answers."""
        kinds: dict[str, Any] = {first.rows.unit: "number"} if self._skips else {}
        kinds |= dict.fromkeys(self._kept(first), "any")
        answers = {self._prefix + name: kind for name, kind in self._table.kinds.items()}
        for name in answers:
            if name in kinds:
                raise HiNetError(f"a kept column is called {name!r} as a new one is; tell them apart with --prefix")
        return kinds | answers

    def columns(self, block: LabelledBlock) -> Mapping[str, Any]:
        """Return the columns of a block."""
        cells: dict[str, Any] = {block.rows.unit: block.rows.places} if self._skips else {}
        cells |= {name: block.rows.cells[name] for name in self._kept(block)}
        answers = self._table.columns(self._loaded.rows_of(block.texts))
        return cells | {self._prefix + name: cells for name, cells in answers.items()}

    def _kept(self, block: LabelledBlock) -> list[str]:
        return list(block.rows.cells) if self._query.keep_all else list(self._query.keep)


def _write(blocks: Iterator[LabelledBlock], out: str, to: Any, output: _Output, counter: Any) -> None:
    """Write the answers of blocks; nothing is opened before the first rows are good."""
    from hinet.data.tables import format_for_output, new_table

    first = next(blocks, None)
    if first is None:
        raise HiNetError("there are no rows to predict; all were skipped, or --where chose none")
    chosen = format_for_output(out, to, first.rows.format)
    with new_table(out, chosen, output.kinds(first)) as table:
        for block in chain([first], blocks):
            if len(block):
                table.write(output.columns(block))
                counter.advanced(len(block))
