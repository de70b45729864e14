"""Requests with a table: the upload, its check, and the answer, each of which ends when the client leaves."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from hinet.serving.gate import drain, is_too_long, slow_body, too_long
from hinet.serving.problems import ProblemError
from hinet.serving.schemas import FileQuery
from hinet.serving.service import Service
from hinet.serving.settings import Settings
from hinet.serving.tables import TYPES, TableJob, format_of

MAX_UPLOAD_SECONDS = 3_600.0


class _TableResponse(StreamingResponse):
    """A table whose reading ends when the client leaves."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


async def answer_table(service: Service, request: Request, asked: FileQuery) -> Response:
    """Keep a table on disk, check it, and stream the answers."""
    settings = service.settings
    model = service.models.get(asked.model)
    format = format_of(request.headers.get("content-type"), asked.format)
    if is_too_long(request.headers.get("content-length", "").encode(), settings.max_file):
        await drain(request.receive)
        raise too_long(settings.max_file)
    handle, name = tempfile.mkstemp(f".{format}", "hinet-")
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            size = await receive_table(request, stream, settings)
        threshold = service.threshold(model, asked.min_confidence)
        job = TableJob.of(model, path, format, asked, threshold, settings)
        rows = await _check(service, request, job, settings.check_seconds(size))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    headers = {"Hinet-Rows": str(rows), "Content-Disposition": f'attachment; filename="classified.{format}"'}
    service.metrics.texts.labels(model.name).inc(rows)
    return _TableResponse(_stream(service, job), headers=headers, media_type=TYPES[format])


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
    return ProblemError(
        408, "slow-request", f"a table must arrive at {rate:,} bytes per second or more, and within {hours:g} hour"
    )


async def _check(service: Service, request: Request, job: TableJob, seconds: float) -> int:
    """Return the number of rows; raise ProblemError if one is bad, after ``seconds``, or if the client leaves."""
    checking = asyncio.ensure_future(_count_rows(service, job))
    leaving = asyncio.ensure_future(_wait_until_gone(request))
    try:
        await asyncio.wait((checking, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if checking.done():
            return checking.result()
        if leaving.done():
            raise ProblemError(400, "invalid-body", "the client left before the table was checked")
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
    while (count := await service.work_on_table(next, blocks, None)) is not None:
        rows = count
    return rows


async def _wait_until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _stream(service: Service, job: TableJob) -> AsyncIterator[bytes]:
    """Yield the answered table, and remove the one that was asked about."""
    parts = job.parts()
    try:
        while (part := await service.work_on_table(next, parts, None)) is not None:
            if part:
                yield part
    finally:
        job.stop.set()
        job.path.unlink(missing_ok=True)
        with suppress(ValueError):  # a block is still being answered
            parts.close()
