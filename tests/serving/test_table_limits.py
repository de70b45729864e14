"""Hostile and abandoned tables: they cost little, end soon, and delay no other request."""

from __future__ import annotations

import asyncio
import io
import zipfile
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hinet.data.tables import (
    Columns,
    FailFast,
    LabelledBlock,
    RowBlock,
    RowQuery,
    TableOptions,
    labelled_blocks,
    new_table,
)
from hinet.serving.endpoints import TABLE_WORKERS
from hinet.serving.models import Models
from hinet.serving.problems import ProblemError
from hinet.serving.settings import Settings
from hinet.serving.tables import MAX_UNPACKED, TableJob, TableStoppedError, receive_table
from tests.processes import wait_until
from tests.serving.conftest import Service, serving
from tests.serving.process import SECONDS
from tests.serving.test_tables import post

TABLE = b"title\ndark bread\n"


def block() -> LabelledBlock:
    return LabelledBlock(RowBlock("a.csv", "csv", [2], {"title": ["rye"]}), ["rye"], [])


def endless(job: TableJob) -> Iterator[LabelledBlock]:
    while True:
        yield block()


def repeated(text: str, rows: int) -> bytes:
    """Return a small Parquet file with the same text in many rows."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int8)), pa.array([text]))
    buffer = io.BytesIO()
    pq.write_table(pa.table({"title": texts}), buffer, compression="zstd", row_group_size=rows)
    return buffer.getvalue()


def test_other_requests_and_models_do_not_wait_for_tables(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released, refreshed = Event(), Event()
    reading: list[int] = []

    def waiting(job: TableJob) -> Iterator[LabelledBlock]:
        reading.append(1)
        assert released.wait(SECONDS)
        yield block()

    refresh = Models.refresh

    def observed(models: Models) -> list[tuple[str, bool]]:
        refreshed.set()
        return refresh(models)

    monkeypatch.setattr(TableJob, "_blocks", waiting)
    monkeypatch.setattr(Models, "refresh", observed)
    settings = Settings({"shop": shop}, feedback=tmp_path / "feedback.db", poll=0.001)
    for service in serving(settings):
        with ThreadPoolExecutor(settings.max_files) as pool:
            tables = [pool.submit(post, service, TABLE) for _ in range(settings.max_files)]
            try:
                wait_until(lambda: len(reading) >= TABLE_WORKERS)
                refreshed.clear()
                service.post("/v1/feedback", {"text": "dark rye", "verdict": "accept", "nodes": ["rye"]})
                service.post("/v1/explain", {"text": "dark rye"})
                service.get("/v1/taxonomy/search", q="rye")
                service.post("/v1/classify", {"rows": [{"title": "dark rye"}]})
                assert refreshed.wait(SECONDS)
            finally:
                released.set()
            assert {table.result().status_code for table in tables} == {200}


def test_the_check_of_a_table_has_a_deadline(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(TableJob, "_blocks", endless)
    for service in serving(Settings({"shop": shop}, seconds=0.01)):
        answer = post(service, TABLE)
        assert (answer.status_code, answer.json()["type"]) == (503, "urn:hinet:problem:too-slow")
        assert "send it in parts" in answer.json()["detail"]
        assert not list(tmp_path.iterdir())


def test_a_larger_file_has_more_time() -> None:
    settings = Settings({}, seconds=30.0, min_check_rate=1_000)
    assert settings.check_seconds(0) == 30.0
    assert settings.check_seconds(5_000) == 35.0


@pytest.mark.parametrize("leaves", [True, False])
def test_the_check_ends_when_the_client_leaves_or_the_service_ends(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    checked, jobs = asyncio.Event(), []

    def blocks(job: TableJob) -> Iterator[LabelledBlock]:
        jobs.append(job)
        for number, each in enumerate(endless(job)):
            if number == 3:
                loop.call_soon_threadsafe(checked.set)
            yield each

    monkeypatch.setattr(TableJob, "_blocks", blocks)
    messages = [{"type": "http.request", "body": TABLE, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await checked.wait()
        await (asyncio.sleep(0) if leaves else asyncio.Event().wait())
        return {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": "/v1/classify/file", "raw_path": b"/v1/classify/file",
        "query_string": b"", "headers": [(b"content-type", b"text/csv"), (b"host", b"localhost")],
        "http_version": "1.1", "scheme": "http", "root_path": "", "server": ("localhost", 80), "client": ("a", 1),
    }  # fmt: skip
    for service in serving(Settings({"shop": shop}, seconds=SECONDS)):
        assert service.client.portal is not None
        loop = service.client.portal.call(running_loop)
        request = service.client.portal.start_task_soon(service.app, scope, receive, send)
        request.add_done_callback(lambda _, loop=loop: loop.call_soon_threadsafe(checked.set))  # however it ends
        service.client.portal.call(checked.wait)
        if not leaves:
            request.cancel()  # uvicorn does so at the end of the grace period
        with suppress(CancelledError):
            request.result(SECONDS)
        assert jobs[0].stop.wait(SECONDS)
        wait_until(lambda: len(sent) == 2)
        assert [message.get("status") for message in sent] == [400 if leaves else 503, None]
    assert not list(tmp_path.iterdir())


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_reading_can_be_stopped_where_there_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "lines.csv"
    path.write_bytes(b"title,id\n" + b"\n" * 1_000_000)
    reads: list[int] = []

    def stop() -> None:
        reads.append(1)
        if len(reads) == 3:
            raise TableStoppedError

    query = RowQuery(Columns(("title",)), labels=False)
    with pytest.raises(TableStoppedError):
        list(labelled_blocks([str(path)], query, TableOptions("csv", on_read=stop), FailFast()))


def test_a_table_is_limited_by_its_decoded_size(shop: Path) -> None:
    small, large = repeated("dark bread", 100), repeated("dark bread " * 90, 100)
    for service in serving(Settings({"shop": shop}, max_file=20_000)):
        assert max(len(small), len(large)) < 20_000
        assert post(service, small, "parquet").status_code == 200
        answer = post(service, large, "parquet")
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:hinet:problem:too-large")
        assert "decoded" in answer.json()["detail"]


def sheet(rows: bytes) -> bytes:
    """Return an Excel file with a sheet of these rows after a header."""
    buffer = io.BytesIO()
    with new_table("sheet", "xlsx", {"title": "any"}, stream=buffer) as table:
        table.write({"title": ["rows"]})
    bomb = io.BytesIO()
    with zipfile.ZipFile(buffer) as archive, zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as packed:
        for name in archive.namelist():
            content = archive.read(name)
            end = content.find(b"</sheetData>")
            packed.writestr(name, content if end < 0 else content[:end] + rows + content[end:])
    return bomb.getvalue()


@pytest.mark.parametrize(
    ("limit", "message"),
    [("MAX_SHEET_ROWS", "more than the 1 rows of an Excel sheet"), ("MAX_COLUMNS", "more than the 2 of Excel")],
)
def test_answers_that_excel_cannot_hold_are_refused_before_they_start(
    shop: Path, limit: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"hinet.serving.tables.{limit}", 2)
    table = b"title\ndark bread\nwhole milk\n"
    for service in serving(Settings({"shop": shop})):
        answer = post(service, table, to="xlsx")
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:hinet:problem:too-large")
        assert message in answer.json()["detail"]
        assert post(service, table, to="csv").status_code == 200


def test_excel_files_that_unpack_to_too_much_are_refused_before_they_are_read(shop: Path) -> None:
    pytest.importorskip("openpyxl")
    bomb = sheet(b"<!--" + b" " * (MAX_UNPACKED + 1) + b"-->")
    assert len(bomb) < 200_000
    for service in serving(Settings({"shop": shop})):
        answer = post(service, bomb, "xlsx")
        assert answer.status_code == 422
        assert "bytes, more than 134,217,728; save it as CSV, or in parts" in answer.json()["detail"]


def test_excel_files_that_take_too_long_free_their_threads(shop: Path, tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    wide = b"".join(b'<row r="%d"><c r="XFD%d"/></row>' % (row, row) for row in range(3, 200_000))
    for service in serving(Settings({"shop": shop}, seconds=0.3, min_check_rate=1 << 40)):
        for _ in range(TABLE_WORKERS):
            answer = post(service, sheet(wide), "xlsx")
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:hinet:problem:too-slow")
        wait_until(partial(answers, service), SECONDS)


def answers(service: Service) -> bool:
    return post(service, TABLE).status_code == 200


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time is set."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Upload:
    """A body of which ``part`` arrives every ``seconds``."""

    def __init__(self, loop: Clock, part: bytes, seconds: float, parts: int) -> None:
        self._loop, self._part, self._seconds, self._parts = loop, part, seconds, parts

    async def stream(self) -> Any:
        for _ in range(self._parts):
            self._loop.now += self._seconds
            await asyncio.sleep(0)  # timers run
            await asyncio.sleep(0)
            yield self._part


@pytest.mark.parametrize(
    ("part", "seconds", "parts", "arrives"),
    [
        (b"a", 3.0, 1_000, False),
        (b"a" * 100, 3.0, 1_000, False),
        (b"a" * 400, 3.0, 1_000, True),
        (b"a" * 10_000, 11.0, 2, False),
        (b"a" * 4_000, 9.0, 500, False),  # longer than an hour
    ],
)
def test_a_table_must_arrive_at_a_minimum_rate(part: bytes, seconds: float, parts: int, arrives: bool) -> None:
    loop, stream = Clock(), io.BytesIO()
    settings = Settings({}, body_seconds=10.0, min_upload_rate=100)
    upload: Any = Upload(loop, part, seconds, parts)
    try:
        if arrives:
            assert loop.run_until_complete(receive_table(upload, stream, settings)) == len(part) * parts
            assert stream.getvalue() == part * parts
        else:
            with pytest.raises(ProblemError, match="408"):
                loop.run_until_complete(receive_table(upload, stream, settings))
    finally:
        loop.close()
