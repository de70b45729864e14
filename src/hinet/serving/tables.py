"""Tables that are classified as a whole: stored on disk as they arrive, checked, then answered block by block.

The upload, the check and the answer each stop when the client disconnects.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import tempfile
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from threading import Event
from typing import IO, Any, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from hinet.choices import TableFormat
from hinet.classifier.answers import PredictionOptions
from hinet.classifier.prediction_table import PredictionOutput
from hinet.data.tables import FailFast, LabelledBlock, RowQuery, TableOptions, labelled_blocks
from hinet.data.tables.writing import LABEL_SEP, MAX_COLUMNS, new_table
from hinet.errors import FileError, HiNetError
from hinet.files.sheets import MAX_ROWS as MAX_SHEET_ROWS
from hinet.serving.endpoints import run_in
from hinet.serving.gate import drain, exceeds, slow_body, too_long
from hinet.serving.models import ServedModel
from hinet.serving.problems import FieldProblem, ProblemError
from hinet.serving.schemas import FileQuery
from hinet.serving.service import Service
from hinet.serving.settings import Settings

MAX_ROWS = 10_000_000  # per table
MAX_UNPACKED = 1 << 27  # bytes of an unpacked Excel file, whose parts need more memory than their size
MAX_UPLOAD_SECONDS = 3_600.0
COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
TYPES: dict[TableFormat, str] = {
    "csv": "text/csv; charset=utf-8",
    "tsv": "text/tab-separated-values; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
}
_FORMATS: dict[str, TableFormat] = {
    **{kind.partition(";")[0]: format for format, kind in TYPES.items()},
    "application/jsonl": "jsonl",
    "application/x-jsonlines": "jsonl",
}
_PARAMETER = re.compile(r"`(\w+)`")


async def answer_table(service: Service, request: Request, query: FileQuery) -> Response:
    """Store a table on disk, check it, and stream the answers."""
    settings = service.settings
    model = service.models.get(query.model)
    format = _format(request.headers.get("content-type"), query.format)
    if exceeds(request.headers.get("content-length", "").encode(), settings.max_file):
        await drain(request.receive)
        raise too_long(settings.max_file)
    handle, name = tempfile.mkstemp(f".{format}", "hinet-")
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            size = await receive_table(request, stream, settings)
        threshold = service.threshold(model, query.min_confidence)
        job = TableJob(model, path, format, query, threshold, settings)
        rows = await _check(service, request, job, settings.check_seconds(size))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    headers = {"Hinet-Rows": str(rows), "Content-Disposition": f'attachment; filename="classified.{job.to}"'}
    service.metrics.texts.labels(model.name).inc(rows)
    return _TableResponse(_stream(service, job), headers=headers, media_type=TYPES[job.to])


def _format(content_type: str | None, given: TableFormat | None) -> TableFormat:
    """Return the format of a table, or raise ProblemError."""
    kind = (content_type or "").partition(";")[0].strip().lower()
    if given is None and kind not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise ProblemError(415, "unsupported-type", f"send the table with a Content-Type of {known}, or set format")
    return given or _FORMATS[kind]


async def receive_table(request: Request, stream: IO[bytes], settings: Settings) -> int:
    """Write a body to a stream and return its size, or raise ProblemError if it is too long or too slow."""
    now = asyncio.get_running_loop().time
    start, size, parts = now(), 0, request.stream().__aiter__()
    while True:
        pace = start + min(settings.body_seconds + size / settings.min_upload_rate, MAX_UPLOAD_SECONDS)
        pause = now() + settings.body_seconds
        try:
            async with asyncio.timeout_at(min(pace, pause)):
                part = await anext(parts, None)
        except TimeoutError:
            raise slow_body(settings.body_seconds) if pause < pace else _slow_upload(settings) from None
        except ClientDisconnect:
            raise ProblemError(400, "invalid-body", "the body ended early") from None
        if part is None:
            return size
        size += len(part)
        if size > settings.max_file:
            raise too_long(settings.max_file)
        stream.write(part)


def _slow_upload(settings: Settings) -> ProblemError:
    rate, hours = settings.min_upload_rate, MAX_UPLOAD_SECONDS / 3_600
    message = f"a table must arrive at {rate:,} bytes per second or more, and within {hours:g} hour"
    return ProblemError(408, "slow-request", message)


async def _check(service: Service, request: Request, job: TableJob, seconds: float) -> int:
    """Return the number of rows.

    Raise ProblemError for an invalid row, after ``seconds``, or if the client disconnects.
    """
    checking = asyncio.ensure_future(_count_rows(service, job))
    leaving = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((checking, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if checking.done():
            return checking.result()
        if leaving.done():
            raise ProblemError(400, "invalid-body", "the client disconnected before the table was checked")
        message = f"the check of the table took more than {seconds:,.0f} seconds; send it in parts"
        raise ProblemError(503, "too-slow", message)
    except BaseException:
        job.stop.set()
        raise
    finally:
        for task in (checking, leaving):
            task.cancel()


async def _count_rows(service: Service, job: TableJob) -> int:
    rows, blocks = 0, job.check()
    while (count := await run_in(service.threads.tables, next, blocks, None)) is not None:
        rows = count
    return rows


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(service: Service, job: TableJob) -> AsyncIterator[bytes]:
    """Yield the answered table, and remove the uploaded one."""
    parts = job.parts()
    try:
        while (part := await run_in(service.threads.tables, next, parts, None)) is not None:
            if part:
                yield part
    finally:
        job.stop.set()
        job.path.unlink(missing_ok=True)
        with suppress(ValueError):  # a block is still being answered
            parts.close()


class _TableResponse(StreamingResponse):
    """A response that stops reading the table when the client disconnects."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


class TableStoppedError(Exception):
    """The client no longer waits for the table."""


class TableJob:
    """A table on disk, and what to predict for it; raises HiNetError if the options do not suit the model."""

    def __init__(
        self,
        model: ServedModel,
        path: Path,
        format: TableFormat,
        asked: FileQuery,
        threshold: float | None,
        settings: Settings,
    ) -> None:
        self.path, self.to, self.stop = path, asked.to or format, Event()  # stop: set to stop reading, from any thread
        self._format, self._asked, self._settings, self._loaded = format, asked, settings, model.model
        loaded = model.model
        columns = loaded.checked_columns(replace(loaded.columns, text=tuple(asked.text) or loaded.columns.text))
        self._query = RowQuery(
            columns, labels=False, keep=tuple(asked.keep), keep_all=asked.keep_all, allow_blank=True,
            widths=loaded.widths(columns),
        )  # fmt: skip
        several = loaded.fitted.codec.sets is not None
        min_confidence, min_probability = (None, threshold) if several else (threshold, None)
        self._table = loaded.table(
            PredictionOptions(
                asked.top, min_confidence, "map", asked.levels, asked.titles, min_probability, tuple(asked.within),
                tuple(asked.exclude),
            )
        )  # fmt: skip

    def check(self) -> Iterator[int]:
        """Read the table block by block, and yield the number of rows so far.

        Raises
        ------
        ProblemError
            For the first invalid row, or if the table is too large.
        """
        with self.path.open("rb") as stream:
            if stream.read(8).startswith(COMPRESSED):
                raise ProblemError(415, "unsupported-type", "the table is compressed; send it uncompressed")
        rows = decoded = 0
        try:
            for block in self._blocks():
                columns = 0 if rows else len(self._output(block).kinds())
                rows += len(block)
                decoded += block.rows.decoded_bytes
                self._check_size(columns, rows, decoded)
                for number, text in zip(block.rows.numbers, block.texts, strict=True):
                    if len(text) > self._settings.max_length:
                        message = f"the text has more than {self._settings.max_length:,} characters"
                        raise _too_large(f"{block.rows.unit} {number}: {message}")
                yield rows
        except HiNetError as error:
            raise table_problem(error) from None

    def _check_size(self, columns: int, rows: int, decoded: int) -> None:
        if self.to == "xlsx" and columns > MAX_COLUMNS:
            raise _too_large(f"the answer has {columns:,} columns, more than the {MAX_COLUMNS:,} of Excel; ask for CSV")
        if rows > MAX_ROWS:
            raise _too_large(f"the table has more than {MAX_ROWS:,} rows; send it in parts")
        if self.to == "xlsx" and rows >= MAX_SHEET_ROWS:
            raise _too_large(f"the answer has more than the {MAX_SHEET_ROWS - 1:,} rows of an Excel sheet; ask for CSV")
        if decoded > self._settings.max_file:
            message = f"the table has more than {self._settings.max_file:,} bytes when decoded; send it in parts"
            raise _too_large(message)

    def parts(self) -> Generator[bytes, None, None]:
        """Yield the answered table, block by block."""
        blocks = self._blocks()
        first = next(blocks)
        output, sink = self._output(first), _Sink()
        stream, label_sep = cast(IO[bytes], sink), self._loaded.columns.label_sep or LABEL_SEP
        escape = self._asked.escape_formulas
        with new_table("answer", self.to, output.kinds(), label_sep, escape_formulas=escape, stream=stream) as writer:
            for part in chain.from_iterable(block.parts(output.rows_at_a_time) for block in chain([first], blocks)):
                writer.write(output.columns(part))
                yield sink.pop()
        yield sink.pop()

    def _blocks(self) -> Iterator[LabelledBlock]:
        unpacked = min(self._settings.max_file, MAX_UNPACKED)
        options = TableOptions(self._format, on_read=self._check_stop, max_unpacked=unpacked)
        blocks = labelled_blocks([str(self.path)], self._query, options, FailFast())
        return (block for block in blocks if len(block))

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise TableStoppedError

    def _output(self, first: LabelledBlock) -> PredictionOutput:
        return PredictionOutput(self._loaded, self._table, self._query, self._asked.prefix, False, first)


def _too_large(message: str) -> ProblemError:
    return ProblemError(413, "too-large", message)


def table_problem(error: HiNetError) -> ProblemError:
    """Return the problem of an invalid table, with its line and the parameter that the message names."""
    message = str(error)
    if isinstance(error, FileError):
        message = error.message if error.line is None else f"line {error.line}: {error.message}"
    named = _PARAMETER.search(message)
    plain = _PARAMETER.sub(r"\1", message)
    return ProblemError(422, "invalid-request", plain, [FieldProblem(named[1], plain)] if named else [])


class _Sink(io.RawIOBase):
    """A stream in memory whose contents are taken as they are written."""

    def __init__(self) -> None:
        self._buffer, self._written = bytearray(), 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._buffer += data
        self._written += size
        return size

    def tell(self) -> int:
        return self._written

    def pop(self) -> bytes:
        """Return what was written since the last call."""
        part, self._buffer = bytes(self._buffer), bytearray()
        return part
