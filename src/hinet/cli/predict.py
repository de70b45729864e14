"""``hinet predict``: rows in, the same rows in the same order out, with label, trace and probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.column_options import ColumnChoice, names_text
from hinet.cli.options import Running, option, runs
from hinet.cli.row_options import FILES, OnError, RowFormat, RowReading, reads_rows
from hinet.errors import FileError, HiNetError

if TYPE_CHECKING:  # imported when the command runs, so that --help stays instant
    from hinet.classifier.tabular import AnswerTable
    from hinet.cli.models import LoadedModel
    from hinet.data.tables import LabelledBlock, RowBlock, RowQuery
    from hinet.data.tables.writing import CellKind

EXAMPLE = "Example: hinet predict model new_products.csv --top 3 --out predictions.csv"


class DecodingName(StrEnum):
    """How an answer is chosen; a test holds them equal to the library's."""

    map = "map"
    expected_f1 = "expected_f1"
    label = "label"


@runs
@reads_rows
@names_text
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
    top: Annotated[
        int,
        typer.Option("--top", min=1, help="Answers a row, the best first: traces or, with --decoding label, labels."),
    ] = 1,
    min_confidence: Annotated[
        str | None,
        option(
            "--min-confidence",
            "Answer with the deepest node that is at least so probable, up to 1, or with nothing; "
            "'calibrated' takes the threshold that the model was calibrated for.",
        ),
    ] = None,
    decoding: Annotated[
        DecodingName,
        typer.Option("--decoding", help="The best trace, the best expected hierarchical F1, or the best label."),
    ] = DecodingName.map,
    levels: Annotated[
        bool,
        typer.Option(
            "--levels", help="Add every level of the trace with its probability, and the share of known words."
        ),
    ] = False,
    titles: Annotated[bool, typer.Option("--titles", help="Add the title of the label.")] = False,
    keep: Annotated[list[str] | None, option("--keep", "Column of the rows to carry over; repeat it for more.")] = None,
    keep_all: Annotated[bool, typer.Option("--keep-all", help="Carry all columns of the rows over.")] = False,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Before the names of new columns, to tell them from kept ones.")
    ] = "",
) -> None:
    """Predict the labels of rows: in their order, in their format, in constant memory.

    Columns are label, trace and probability, with _2, _3 … for further answers; --levels are those of the first. Where
    a label has several paths, --decoding label sums over them, and the trace is the most probable one. Where rows may
    be skipped, a column tells the line of each.
    """
    from hinet.classifier.tabular import AnswerTable, Asked
    from hinet.cli.models import load_model
    from hinet.data.tables import RowQuery, labelled_blocks
    from hinet.files.streams import standard_input
    from hinet.progress import counter_for_terminal

    paths = data or ["-"]
    beside = "predictions" if out == "-" else out
    _check_paths(paths)
    rows.check_outputs(paths, {"--out": out}, beside, model)
    loaded = load_model(model, running.threads)
    asked = Asked(top, _least(min_confidence, loaded, running), decoding.value, levels, titles)
    columns = named.over(loaded.columns)
    if "-" in paths and standard_input().isatty():
        running.say("reading texts from the terminal, one a line; Ctrl-D ends them")
    by_name = named.text is not None or len(columns.text) > 1
    query = RowQuery(
        columns, labels=False, where=rows.where, keep=tuple(keep or ()), keep_all=keep_all, explicit=by_name,
        allow_blank=True,
    )  # fmt: skip
    table = AnswerTable(loaded.fitted, asked, loaded.style)
    if table.top < top:
        running.say(f"--top {top:,} asks for more answers than the model has: all {table.top:,} are given")
    with rows.row_errors(beside) as row_errors, counter_for_terminal(running.quiet) as counter:
        blocks = labelled_blocks(paths, query, rows.options, row_errors)
        output = partial(_Output, table, query, prefix, rows.on_error is OnError.skip)
        blank = _write(blocks, out, None if to is None else to.value, output, counter)
    if blank:
        some = "1 row has no text: its answer is" if blank == 1 else f"{blank:,} rows have no text: their answers are"
        running.say(f"{some} blank")


def _check_paths(paths: list[str]) -> None:
    """Tell who gives a text instead of a file."""
    for path in paths:
        if " " in path and not Path(path).exists():
            raise FileError(path, f"no such file; a text goes through standard input: echo {path!r} | hinet predict …")


def _least(given: str | None, loaded: LoadedModel, running: Running) -> float | None:
    if given is None:
        return None
    if given == "calibrated":
        promise = loaded.promise
        if promise is None:
            raise HiNetError("the model was calibrated for no risk; train it with --risk, or name a --min-confidence")
        running.say(f"--min-confidence calibrated: {promise}")
        return promise.threshold
    try:
        least = float(given)
    except ValueError:
        least = -1.0
    if not 0 < least <= 1:
        raise HiNetError(f"--min-confidence is more than 0 and at most 1, or 'calibrated'; got {given!r}")
    return least


class _Output:
    """Turns blocks of rows into the columns that are written: places if rows may be skipped, kept ones, answers."""

    def __init__(self, table: AnswerTable, query: RowQuery, prefix: str, skips: bool, first: LabelledBlock) -> None:
        self._table, self._prefix, self._keeps_all = table, prefix, query.keep_all
        self._place = first.rows.unit if skips else None
        self.blank = 0  # rows without a text so far
        self.rows_at_a_time = table.rows_at_a_time
        self._kept = first.rows.names if query.keep_all else list(query.keep)

    def kinds(self) -> dict[str, CellKind]:
        """Return the columns there will be, and what they hold."""
        parts: list[dict[str, CellKind]] = [
            {} if self._place is None else {self._place: "integer"},
            dict.fromkeys(self._kept, "any"),
            {self._prefix + name: kind for name, kind in self._table.kinds.items()},
        ]
        kinds: dict[str, CellKind] = {}
        for part in parts:
            for name in part:
                if name in kinds:
                    raise HiNetError(f"a kept column is called {name!r} as a new one is; tell them apart with --prefix")
            kinds |= part
        return kinds

    def columns(self, block: LabelledBlock) -> Mapping[str, Any]:
        """Return the columns of a block."""
        self._check(block.rows)
        columns: dict[str, Any] = {} if self._place is None else {self._place: block.rows.numbers}
        columns |= {name: block.rows.column(name) for name in self._kept}
        return columns | {self._prefix + name: cells for name, cells in self._answers(block.texts).items()}

    def _answers(self, texts: list[str]) -> dict[str, list[Any]]:
        """Return the columns of answers, blank where there is no text."""
        from hinet.data.tables.columns import is_blank

        filled = [row for row, text in enumerate(texts) if not is_blank(text)]
        self.blank += len(texts) - len(filled)
        if len(filled) == len(texts):
            return self._table.columns(texts)
        columns: dict[str, list[Any]] = {name: [None] * len(texts) for name in self._table.kinds}
        if filled:
            answers = self._table.columns([texts[row] for row in filled])
            for name, cells in answers.items():
                for row, cell in zip(filled, cells, strict=True):
                    columns[name][row] = cell
        return columns

    def _check(self, rows: RowBlock) -> None:
        """Refuse a file with other columns than the first, if all are kept."""
        if self._keeps_all and {*rows.names} != {*self._kept}:
            other = next(iter({*rows.names} ^ {*self._kept}))
            raise FileError(rows.path, f"the files differ in the column {other!r}; name the columns to --keep")


def _write(blocks: Iterator[LabelledBlock], out: str, to: Any, output: Callable[..., _Output], counter: Any) -> int:
    """Write the answers of blocks; nothing is opened before the first rows are good. Return how many are blank."""
    from hinet.data.tables import new_table, output_format

    filled = (block for block in blocks if len(block))
    first = next(filled, None)
    if first is None:
        raise HiNetError("there are no rows to predict; all were skipped, or --where chose none")
    chosen = output_format(out, to, first.rows.format)
    answers = output(first)
    with new_table(out, chosen, answers.kinds()) as table:
        for block in chain.from_iterable(block.parts(answers.rows_at_a_time) for block in chain([first], filled)):
            table.write(answers.columns(block))
            counter.advanced(len(block))
    return answers.blank
