"""Tables that are classified as a whole: kept on disk as they arrive, checked, then answered block by block."""

from __future__ import annotations

import io
import re
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from threading import Event
from typing import IO, Any, cast

from hinet.choices import TableFormat
from hinet.classifier.answers import PredictionOptions
from hinet.classifier.prediction_table import PredictionOutput, PredictionTable
from hinet.data.tables import FailFast, LabelledBlock, RowQuery, TableOptions, labelled_blocks
from hinet.data.tables.writing import LABEL_SEP, table_writer
from hinet.errors import FileError, HiNetError
from hinet.serving.models import ServedModel
from hinet.serving.problems import FieldProblem, ProblemError
from hinet.serving.schemas import FileQuery
from hinet.serving.settings import Settings

MAX_ROWS = 10_000_000  # per table
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
TYPES: dict[TableFormat, str] = {
    "csv": "text/csv; charset=utf-8",
    "tsv": "text/tab-separated-values; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
_FORMATS: dict[str, TableFormat] = {
    **{kind.partition(";")[0]: format for format, kind in TYPES.items()},
    "application/jsonl": "jsonl",
    "application/x-jsonlines": "jsonl",
}
_PARAMETER = re.compile(r"`(\w+)`")


def format_of(content_type: str | None, given: TableFormat | None) -> TableFormat:
    """Return the format of a table, or raise ProblemError."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if given is None and kind not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise ProblemError(415, "unsupported-type", f"send the table with a Content-Type of {known}, or set format")
    return given or _FORMATS[kind]


class TableStoppedError(Exception):
    """Nobody waits for the table any more."""


@dataclass(frozen=True)
class TableJob:
    """A table on disk, and what is asked of it."""

    model: ServedModel
    path: Path
    format: TableFormat
    query: RowQuery
    table: PredictionTable
    prefix: str
    escape_formulas: bool
    settings: Settings
    stop: Event = field(default_factory=Event)  # set to end the reading of the table, in whatever thread

    @classmethod
    def of(
        cls,
        model: ServedModel,
        path: Path,
        format: TableFormat,
        asked: FileQuery,
        threshold: float | None,
        settings: Settings,
    ) -> TableJob:
        """Return the job that a request asks for, or raise HiNetError."""
        loaded = model.model
        columns = loaded.checked_columns(replace(loaded.columns, text=tuple(asked.text) or loaded.columns.text))
        query = RowQuery(
            columns, labels=False, keep=tuple(asked.keep), keep_all=asked.keep_all, allow_blank=True,
            widths=loaded.widths(columns),
        )  # fmt: skip
        several = loaded.fitted.codec.sets is not None
        min_confidence, min_probability = (None, threshold) if several else (threshold, None)
        options = PredictionOptions(asked.top, min_confidence, "map", asked.levels, asked.titles, min_probability)
        table = loaded.table(options)
        return cls(model, path, format, query, table, asked.prefix, asked.escape_formulas, settings)

    def check(self) -> Iterator[int]:
        """Read the table block by block, and yield the number of rows so far.

        Raises
        ------
        ProblemError
            For the first bad row, or if the table is too large.
        """
        with self.path.open("rb") as stream:
            if stream.read(8).startswith(COMPRESSED):
                raise ProblemError(415, "unsupported-type", "the table is compressed; send it as it is")
        rows = decoded = 0
        try:
            for block in self._blocks():
                if not rows:
                    self._output(block).kinds()
                rows += len(block)
                decoded += block.rows.decoded_bytes
                self._check_size(rows, decoded)
                self._check_lengths(block)
                yield rows
        except HiNetError as error:
            raise table_problem(error) from None

    def _check_size(self, rows: int, decoded: int) -> None:
        if rows > MAX_ROWS:
            raise ProblemError(413, "too-large", f"the table has more than {MAX_ROWS:,} rows; send it in parts")
        if decoded > self.settings.max_file:
            message = f"the table has more than {self.settings.max_file:,} bytes when decoded; send it in parts"
            raise ProblemError(413, "too-large", message)

    def _check_lengths(self, block: LabelledBlock) -> None:
        longest = self.settings.max_length
        for number, text in zip(block.rows.numbers, block.texts, strict=True):
            if len(text) > longest:
                message = f"{block.rows.unit} {number}: the text has more than {longest:,} characters"
                raise ProblemError(413, "too-large", message)

    def parts(self) -> Generator[bytes, None, None]:
        """Yield the answered table, block by block."""
        blocks = self._blocks()
        first = next(blocks)
        output, sink = self._output(first), _Sink()
        with ExitStack() as stack:
            stream, label_sep = cast(IO[bytes], sink), self.model.model.columns.label_sep or LABEL_SEP
            writer = stack.enter_context(
                table_writer(
                    "answer", stream, self.format, output.kinds(), label_sep, escape_formulas=self.escape_formulas
                )
            )
            for block in chain([first], blocks):
                for part in block.parts(output.rows_at_a_time):
                    writer.write(output.columns(part))
                    yield sink.taken()
        yield sink.taken()

    def _blocks(self) -> Iterator[LabelledBlock]:
        options = TableOptions(self.format, on_read=self._check_stop)
        blocks = labelled_blocks([str(self.path)], self.query, options, FailFast())
        return (block for block in blocks if len(block))

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise TableStoppedError

    def _output(self, first: LabelledBlock) -> PredictionOutput:
        return PredictionOutput(self.model.model, self.table, self.query, self.prefix, False, first)


def table_problem(error: HiNetError) -> ProblemError:
    """Return the problem of a table that cannot be read: its line, and the parameter that the message names."""
    message = str(error)
    if isinstance(error, FileError):
        message = error.message if error.line is None else f"line {error.line}: {error.message}"
    named = _PARAMETER.search(message)
    plain = _PARAMETER.sub(r"\1", message)
    return ProblemError(422, "invalid-request", plain, [FieldProblem(named[1], plain)] if named else [])


class _Sink(io.RawIOBase):
    """A stream in memory that is emptied as it fills."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._written = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._written += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._written

    def taken(self) -> bytes:
        """Return what was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)
