"""``hinet predict``: labels, traces and probabilities of rows, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hinet.cli.column_options import ColumnOptions, input_options
from hinet.cli.options import ModelFolder, RunOptions, option, thread_options
from hinet.cli.row_options import FILES, OnError, RowFormat, RowOptions, row_options
from hinet.errors import FileError, HiNetError

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from hinet.classifier.loaded import LoadedModel
    from hinet.classifier.prediction_table import PredictionTable
    from hinet.data.tables import LabelledBlock, RowBlock, RowQuery
    from hinet.data.tables.writing import CellKind

EXAMPLE = "hinet predict model new_products.csv --top 3 --out predictions.csv"


class DecodingName(StrEnum):
    """How a prediction is chosen; a test keeps them equal to the library's."""

    map = "map"
    expected_f1 = "expected_f1"
    label = "label"


@thread_options
@row_options
@input_options
def predict(
    model: ModelFolder,
    rows: RowOptions,
    column_options: ColumnOptions,
    run: RunOptions,
    data: Annotated[
        list[str] | None,
        typer.Argument(help=f"{FILES} Also plain lines of text (default: standard input).", show_default=False),
    ] = None,
    out: Annotated[str, option("File to write; - for standard output.")] = "-",
    to: Annotated[
        RowFormat | None, option("Output format (default: by the extension of --out, else that of the rows).")
    ] = None,
    top: Annotated[
        int, option("Predictions per row, best first: traces, or labels with --decoding label.", least=1)
    ] = 1,
    min_confidence: Annotated[
        str | None,
        option(
            "Predict the deepest node of at least this probability, or nothing; 'calibrated' is the threshold for the "
            "--risk of training (default: the best trace, whatever its probability)."
        ),
    ] = None,
    decoding: Annotated[
        DecodingName, option("Most probable trace (map), best expected hierarchical F1, or most probable label.")
    ] = DecodingName.map,
    levels: Annotated[
        bool, option("Add each level of the trace with its probability, and the share of known words.", "--levels")
    ] = False,
    titles: Annotated[bool, option("Add the title of the label.", "--titles")] = False,
    keep: Annotated[list[str] | None, option("Input column to copy to the output; repeatable.")] = None,
    keep_all: Annotated[bool, option("Copy all input columns to the output.", "--keep-all")] = False,
    prefix: Annotated[str, option("Prefix of the names of new columns.")] = "",
) -> None:
    """Predict the labels of rows, in their order and format, in constant memory.

    The new columns are label, trace and probability, with _2, _3 … for further predictions; --levels describes the
    first. If a label has several paths, --decoding label sums over them, and the trace is the most probable one. With
    --on-error skip, a column has the line of each row.
    """
    from hinet.classifier.loaded import load_model
    from hinet.classifier.prediction_table import PredictionOptions
    from hinet.data.tables import RowQuery, labelled_blocks
    from hinet.files.streams import standard_input
    from hinet.progress import counter_for_terminal

    paths = data or ["-"]
    output = "predictions" if out == "-" else out
    _check_paths(paths)
    rows.check_outputs(paths, {"--out": out}, output, model)
    loaded = load_model(model, run.threads)
    options = PredictionOptions(top, _min_confidence(min_confidence, loaded, run), decoding.value, levels, titles)
    columns = loaded.checked_columns(column_options.with_defaults(loaded.columns))
    if "-" in paths and standard_input().isatty():
        run.message("reading texts from the terminal, one per line; end with Ctrl-D")
    explicit = bool(column_options.text) or len(columns.text) > 1 or columns.is_mixed
    query = RowQuery(
        columns, labels=False, where=rows.where, keep=tuple(keep or ()), keep_all=keep_all, explicit=explicit,
        allow_blank=True, widths=loaded.widths(columns),
    )  # fmt: skip
    table = loaded.table(options)
    if table.top < top:
        run.message(f"--top {top:,} is more than the model has: all {table.top:,} are given")
    with rows.row_errors(output) as row_errors, counter_for_terminal(run.quiet) as counter:
        blocks = labelled_blocks(paths, query, rows.options, row_errors)
        new_output = partial(_Output, loaded, table, query, prefix, rows.on_error is OnError.skip)
        blank = _write(blocks, out, None if to is None else to.value, new_output, counter)
    if blank:
        rows_without = (
            "1 row has no text: its prediction is"
            if blank == 1
            else f"{blank:,} rows have no text: their predictions are"
        )
        run.message(f"{rows_without} blank")


def _check_paths(paths: list[str]) -> None:
    """Raise FileError with a remedy for a text that is given instead of a file."""
    for path in paths:
        if " " in path and not Path(path).exists():
            raise FileError(path, f"no such file; pass a text through standard input: echo {path!r} | hinet predict …")


def _min_confidence(value: str | None, loaded: LoadedModel, run: RunOptions) -> float | None:
    if value is None:
        return None
    if value == "calibrated":
        bound = loaded.risk_bound
        if bound is None:
            raise HiNetError(
                "this model has no calibrated threshold; train with --risk, or give --min-confidence a number"
            )
        run.message(f"--min-confidence calibrated: {bound}")
        return bound.threshold
    try:
        threshold = float(value)
    except ValueError:
        threshold = -1.0
    if not 0 < threshold <= 1:
        raise HiNetError(f"--min-confidence: expected a number above 0 and at most 1, or 'calibrated'; got {value!r}")
    return threshold


class _Output:
    """Converts blocks of rows to output columns: line numbers if rows may be skipped, kept columns, predictions."""

    def __init__(
        self,
        loaded: LoadedModel,
        table: PredictionTable,
        query: RowQuery,
        prefix: str,
        skips: bool,
        first: LabelledBlock,
    ) -> None:
        self._loaded = loaded
        self._table, self._prefix, self._keeps_all = table, prefix, query.keep_all
        self._number_column = first.rows.unit if skips else None
        self.blank = 0  # rows without text so far
        self.rows_at_a_time = table.rows_at_a_time
        self._kept = first.rows.names if query.keep_all else list(query.keep)

    def kinds(self) -> dict[str, CellKind]:
        """Return the output columns and their kinds."""
        parts: list[dict[str, CellKind]] = [
            {} if self._number_column is None else {self._number_column: "integer"},
            dict.fromkeys(self._kept, "any"),
            {self._prefix + name: kind for name, kind in self._table.kinds.items()},
        ]
        kinds: dict[str, CellKind] = {}
        for part in parts:
            for name in part:
                if name in kinds:
                    raise HiNetError(f"a kept column has the name of the new column {name!r}; set --prefix")
            kinds |= part
        return kinds

    def columns(self, block: LabelledBlock) -> Mapping[str, Any]:
        """Return the columns of a block."""
        from hinet.data.tables.columns import is_blank

        self._check(block.rows)
        number_column = self._number_column
        columns: dict[str, Any] = {} if number_column is None else {number_column: block.rows.numbers}
        columns |= {name: block.rows.column(name) for name in self._kept}
        answers = self._table.columns(self._loaded.named_as_trained(block.inputs))
        self.blank += sum(map(is_blank, block.texts)) if block.table is None else 0
        return columns | {self._prefix + name: cells for name, cells in answers.items()}

    def _check(self, rows: RowBlock) -> None:
        """Raise FileError for a file with other columns than the first, if all are kept."""
        if self._keeps_all and {*rows.names} != {*self._kept}:
            other = next(iter({*rows.names} ^ {*self._kept}))
            raise FileError(rows.path, f"the files differ in the column {other!r}; name the columns to --keep")


def _write(blocks: Iterator[LabelledBlock], out: str, to: Any, output: Callable[..., _Output], counter: Any) -> int:
    """Write the predictions of blocks and return how many are blank; open the file after the first block is read."""
    from hinet.data.tables import new_table, output_format

    filled = (block for block in blocks if len(block))
    first = next(filled, None)
    if first is None:
        raise HiNetError("there are no rows to predict: all were skipped, or none matches --where")
    chosen = output_format(out, to, first.rows.format)
    answers = output(first)
    with new_table(out, chosen, answers.kinds()) as table:
        for block in chain.from_iterable(block.parts(answers.rows_at_a_time) for block in chain([first], filled)):
            table.write(answers.columns(block))
            counter.advanced(len(block))
    return answers.blank
