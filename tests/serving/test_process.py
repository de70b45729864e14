"""The service in its own process: shutdown, model updates, and feedback that survives a kill."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from subprocess import PIPE
from threading import Event

import pytest

from hinet import load
from hinet.serving.answers import Question
from hinet.serving.models import Models
from tests.processes import started, wait_until
from tests.serving.conftest import rows
from tests.serving.process import LAUNCH, ROOT, SECONDS, Running, free_port, received, running, wait_until_ready


def newer(folder: Path, seed: int) -> None:
    """Replace a model by one that was trained on more rows."""
    classifier = load(folder)
    classifier.partial_fit(*map(list, zip(*rows(20, seed), strict=True)))
    classifier.save(folder)


def test_running_requests_are_finished_at_shutdown(shop: Path) -> None:
    with running({"shop": shop}) as service:
        table = b"title\n" + b"dark bread\n" * 1_000
        head = b"POST /v1/classify/file HTTP/1.1\r\nhost: [::1]\r\ncontent-type: text/csv\r\ncontent-length: %d\r\n\r\n"
        with socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS) as connection:
            connection.sendall(head % len(table) + table[:5_000])
            assert service.request("GET", "/health")[0] == 200  # after the headers of the other request
            service.process.send_signal(signal.SIGTERM)
            assert service.process.stderr is not None
            assert any("Shutting down" in line for line in service.process.stderr)
            connection.sendall(table[5_000:])
            answer = received(connection)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.count(b"rye") >= 1_000
        assert service.process.wait(SECONDS) == 0


def test_uploads_that_outlast_the_grace_period_end_without_a_traceback(shop: Path, tmp_path: Path) -> None:
    head = (
        b"POST /v1/classify/file HTTP/1.1\r\nhost: [::1]\r\ncontent-type: text/csv\r\ncontent-length: 9999999\r\n\r\n"
    )
    with running({"shop": shop}, {"TMPDIR": str(tmp_path)}, grace=1) as service:
        with socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS) as connection:
            connection.sendall(head + b"title\n" + b"dark bread\n" * 100_000)
            assert service.request("GET", "/health")[0] == 200  # after the headers of the other request
            service.process.send_signal(signal.SIGTERM)
            assert received(connection).startswith(b"HTTP/1.1 503")
        assert service.process.wait(SECONDS) == 0
        assert service.process.stderr is not None
        log = service.process.stderr.read()
    assert "Traceback" not in log
    assert not list(tmp_path.glob("hinet-*"))


def test_a_table_is_dropped_when_the_client_does_not_read(shop: Path, tmp_path: Path) -> None:
    table = b"title\n" + b"dark bread and more words\n" * 50_000
    head = b"POST /v1/classify/file?top=6&titles=true&levels=true HTTP/1.1\r\nhost: [::1]\r\ncontent-type: text/csv\r\n"
    head += b"content-length: %d\r\n\r\n"
    settings = {"seconds": 0.5, "min_check_rate": 1}  # the check may take long, sending may not
    with running({"shop": shop}, {"TMPDIR": str(tmp_path)}, **settings) as service:
        with socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            connection.sendall(head % len(table) + table)
            assert connection.recv(12) == b"HTTP/1.1 200"
            assert list(tmp_path.glob("hinet-*"))
            assert service.process.stderr is not None
            assert any("without completing" in line for line in service.process.stderr)
        assert not list(tmp_path.glob("hinet-*"))
        assert service.request("GET", "/health")[0] == 200


def test_models_are_replaced_without_an_error(model: Path) -> None:
    with running({"shop": model}, poll=0.01) as service:
        stop = Event()

        def ask() -> set[str]:
            versions = set()
            while not stop.is_set():
                status, answer = service.request("POST", "/v1/classify", {"text": "dark bread"})
                assert (status, answer["results"][0]["labels"][0]["label"]) == (200, "rye")
                versions.add(answer["version"])
            return versions

        with ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(ask) for _ in range(3)]
            seen = {version_of(service)}
            try:
                for seed in range(3):
                    before = version_of(service)
                    newer(model, seed)
                    wait_until(lambda before=before: version_of(service) != before)
                    seen.add(version_of(service))
            finally:
                stop.set()
            assert set().union(*(each.result() for each in asking)) <= seen
        assert len(seen) == 4


def version_of(service: Running) -> str:
    return str(service.request("GET", "/v1/models")[1]["models"][0]["version"])


def test_a_broken_model_is_refused_and_the_old_one_is_kept(model: Path, tmp_path: Path) -> None:
    models = Models({"shop": model}, 1)
    models.load_all()
    old = models.get("shop")
    assert models.refresh() == []
    other = shutil.copytree(model, tmp_path / "other")
    newer(other, 1)
    weights = next(other.glob("model-*"))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    for path in other.iterdir():
        shutil.copy(path, model)
    assert models.refresh() == [("shop", False)]
    assert models.get("shop") is old
    assert weights.name in str(models.describe("shop")["problem"])
    assert models.refresh() == []
    (model / weights.name).write_bytes(whole)
    assert models.refresh() == [("shop", True)]
    assert (models.describe("shop")["problem"], models.get("shop") is old) == (None, False)
    (model / "manifest.json").unlink()
    assert models.refresh() == [("shop", False)]
    assert models.get("shop").answerer.answer(["dark bread"], Question())[0]["labels"]


def test_an_old_model_leaves_memory_without_a_garbage_collection(model: Path) -> None:
    models = Models({"shop": model}, 1)
    models.load_all()
    models.get("shop").answerer.answer(["dark bread"], Question(3, 0.5, 5, True))
    old = weakref.ref(models.get("shop")), weakref.ref(models.get("shop").model.fitted.predictor.model)
    newer(model, 1)
    gc.collect()
    gc.disable()
    try:
        assert models.refresh() == [("shop", True)]
        assert [each() for each in old] == [None, None]
    finally:
        gc.enable()


def test_a_service_stops_if_its_only_model_cannot_be_loaded(model: Path) -> None:
    next(model.glob("model-*")).write_bytes(b"")
    values = {"models": {"shop": str(model)}, "port": free_port()}
    with started([*LAUNCH, json.dumps(values)], stderr=PIPE, cwd=ROOT) as process:
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert "bytes instead of" in said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_acknowledged_feedback_is_lost_when_it_is_killed(shop: Path, tmp_path: Path) -> None:
    chance, store = random.Random(0), tmp_path / "feedback.db"
    known: dict[int, str] = {}
    with started([*LAUNCH, "--rounds"], stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for moment in range(10):
            port = free_port()
            values = {"models": {"shop": str(shop)}, "port": port, "feedback": str(store)}
            process.stdin.write(json.dumps(values) + "\n")
            process.stdin.flush()
            child = int(process.stdout.readline())
            wait_until_ready(process)
            kept = kill_while_writing(Running(process, port), child, chance.randrange(1, 30), f"round {moment}")
            database = sqlite3.connect(store)
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            known |= kept
            found = {
                number: json.loads(row)["title"] for number, row in database.execute("SELECT id, row FROM feedback")
            }
            database.close()
            assert known.items() <= found.items()
        process.stdin.close()
    assert len(known) > 20


def kill_while_writing(service: Running, child: int, after: int, name: str) -> dict[int, str]:
    """Send feedback from several threads, kill the process after some answers, and return acknowledged feedback."""
    kept: dict[int, str] = {}

    def write(thread: int) -> None:
        for number in range(1_000):
            text = f"{name} {thread} {number}"
            with suppress(OSError, HTTPException):
                body = {"text": text, "verdict": "accept", "nodes": ["rye"]}
                status, answer = service.request("POST", "/v1/feedback", body)
                assert status == 201
                kept[answer["id"]] = text
                if len(kept) == after:
                    os.kill(child, signal.SIGKILL)
                continue
            return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    return kept
