"""The file of feedback: what may be opened, who may create it, and what a full disk or another writer leads to."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from hinet.errors import FileError
from hinet.files.database import StoreError
from hinet.serving.settings import Settings
from hinet.serving.store import FEEDBACK, Store
from tests.processes import started
from tests.serving.conftest import Service, serving
from tests.serving.test_feedback import verdict

BODY = {"text": "dark rye", "verdict": "accept", "nodes": ["rye"]}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "feedback.db"


@pytest.fixture
def fresh(shop: Path, path: Path) -> Iterator[Service]:
    """A service that does not wait for other writers."""
    yield from serving(Settings({"shop": shop}, feedback=path, review=20, lock_seconds=0.0))


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_another_database_is_refused_and_not_touched(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute("CREATE TABLE a (b)")
    before = {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()}
    with pytest.raises(FileError, match="is another database; name a new file"):
        Store.open(path)
    assert {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("format", [FEEDBACK.format - 1, FEEDBACK.format + 1])
def test_a_file_of_another_format_is_refused(path: Path, format: int) -> None:
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA user_version = {format}")
    with pytest.raises(FileError, match=f"has the format {format} of another version of hinet"):
        Store.open(path)


def test_a_file_whose_creation_was_interrupted_is_opened(path: Path) -> None:
    marks = f"PRAGMA application_id = {FEEDBACK.application}; PRAGMA user_version = {FEEDBACK.format};"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(f"BEGIN; {FEEDBACK.schema} {marks} COMMIT;")  # all of it is in the write-ahead log
        with closing(Store.open(path)) as store:
            assert store.add(*verdict("a", "rye")) == 1


CREATE = "import sys; from pathlib import Path; from hinet.serving.store import Store\nfor line in sys.stdin:\n"
CREATE += "    Store.open(Path(line.strip())).close(); print('opened', flush=True)"


def test_processes_that_create_one_file_at_once_all_open_it(tmp_path: Path) -> None:
    options: Any = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, "bufsize": 1}
    command = [sys.executable, "-c", CREATE]
    with started(command, **options) as a, started(command, **options) as b, started(command, **options) as c:
        for number in range(20):
            for process in (a, b, c):
                process.stdin.write(f"{tmp_path / str(number)}\n")
            assert [process.stdout.readline() for process in (a, b, c)] == ["opened\n"] * 3
        for process in (a, b, c):
            process.stdin.close()


def test_a_transaction_that_fails_leaves_the_store_usable(path: Path) -> None:
    with closing(Store.open(path)) as store:
        store.add(*verdict("a", "rye"))
        pages = store.connection.execute("PRAGMA page_count").fetchone()[0]
        store.connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreError, match=r"feedback.db: .*full"):
            store.add(*verdict("x" * 100_000, "rye"))
        store.connection.execute("PRAGMA max_page_count = 100000")
        assert store.add(*verdict("b", "milk")) == 2


def test_a_file_that_another_process_writes_is_reported(path: Path) -> None:
    with closing(Store.open(path, lock_seconds=0.0)) as store, closing(Store.open(path)) as other:
        other.connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match=r"feedback.db: feedback cannot be read or written now: .* locked"):
            store.add(*verdict("a", "rye"))


def unavailable(answer: Any) -> None:
    assert answer.status_code == 503, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["type"] == "urn:hinet:problem:store-unavailable"


def test_a_full_disk_and_another_writer_are_reported(fresh: Service, path: Path) -> None:
    fresh.post("/v1/feedback", BODY)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        unavailable(fresh.client.post("/v1/feedback", json=BODY))
        unavailable(fresh.client.delete("/v1/feedback/1"))
        fresh.post("/v1/classify", {"texts": ["screen", "bread"]})
        unavailable(fresh.client.get("/v1/review"))
    assert fresh.get("/v1/review")["total"] == 2  # they waited
    connection = fresh.service.store.connection
    connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
    unavailable(fresh.client.post("/v1/feedback", json={**BODY, "text": "x" * 50_000}))


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("POST", "/v1/feedback", BODY),
        ("POST", "/v1/feedback", {"verdict": "skip", "review": 1}),
        ("GET", "/v1/feedback", None),
        ("DELETE", "/v1/feedback/1", None),
        ("GET", "/v1/review", None),
    ],
)
def test_every_endpoint_reports_a_broken_disk(fresh: Service, method: str, url: str, body: object) -> None:
    class Broken:
        in_transaction = False

        def execute(self, *_: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

    whole = fresh.service.store
    fresh.service.store = replace(whole, connection=Broken())
    try:
        unavailable(fresh.client.request(method, url, json=body))
    finally:
        fresh.service.store = whole
