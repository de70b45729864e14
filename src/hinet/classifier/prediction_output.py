"""Predictions of blocks of rows as the columns of an output table, beside columns of the input that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hinet.classifier.loaded import LoadedModel
from hinet.classifier.prediction_table import PredictionTable
from hinet.data.tables import LabelledBlock, RowBlock, RowQuery
from hinet.data.tables.columns import is_blank
from hinet.data.tables.writing import CellKind
from hinet.errors import FileError, HiNetError, counted

NO_ROWS = "there are no rows to predict: all were skipped, or none matches `where`"


@dataclass(frozen=True)
class PredictionNotes:
    """Rows to report: without text, and with a text but without a feature that the model knows."""

    blank: int = 0
    unknown: int = 0
    first_unknown: str = ""  # file and line, or row, of the first

    def __add__(self, other: PredictionNotes) -> PredictionNotes:
        first = self.first_unknown or other.first_unknown
        return PredictionNotes(self.blank + other.blank, self.unknown + other.unknown, first)

    def messages(self) -> list[str]:
        """Return the lines that report them."""
        lines = []
        if self.blank:
            rows = counted(self.blank, "row has no text: its prediction is/rows have no text: their predictions are")
            lines.append(f"{rows} blank")
        if self.unknown:
            rows = counted(self.unknown, "row has/rows have")
            lines.append(
                f"warning: {rows} no word that the model knows, the first at {self.first_unknown}; the prediction does "
                "not depend on the text"
            )
        return lines


class PredictionOutput:
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
        self.notes = PredictionNotes()
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
                    raise HiNetError(f"a kept column has the name of the new column {name!r}; set `prefix`")
            kinds |= part
        return kinds

    def columns(self, block: LabelledBlock) -> Mapping[str, Any]:
        """Return the columns of a block."""
        self._check(block.rows)
        number_column = self._number_column
        columns: dict[str, Any] = {} if number_column is None else {number_column: block.rows.numbers}
        columns |= {name: block.rows.column(name) for name in self._kept}
        unknown: list[int] = []
        answers = self._table.columns(self._loaded.named_as_trained(block.inputs), unknown)
        blank = sum(map(is_blank, block.texts)) if block.table is None else 0
        first = f"{block.rows.path}, {block.rows.unit} {block.rows.numbers[unknown[0]]:,}" if unknown else ""
        self.notes += PredictionNotes(blank, len(unknown), first)
        return columns | {self._prefix + name: cells for name, cells in answers.items()}

    def _check(self, rows: RowBlock) -> None:
        """Raise FileError for a file with other columns than the first, if all are kept."""
        if self._keeps_all and {*rows.names} != {*self._kept}:
            other = next(iter({*rows.names} ^ {*self._kept}))
            raise FileError(rows.path, f"the files differ in the column {other!r}; name the columns to `keep`")
