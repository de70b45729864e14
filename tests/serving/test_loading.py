"""Models that cannot be loaded and background tasks that fail: the service reports it and continues."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from hinet.errors import HiNetError
from hinet.serving import schemas
from hinet.serving.models import Models, ServedModel
from hinet.serving.service import Service
from hinet.serving.settings import Settings
from hinet.serving.store import Doubt
from tests.processes import wait_until
from tests.serving.conftest import serving


def damage(folder: Path) -> bytes:
    """Truncate a file of a model, and return its contents."""
    weights = next(folder.glob("model-*"))
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    return whole


def test_a_model_that_cannot_be_loaded_does_not_stop_the_others(
    shop: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = damage(model)
    for service in serving(Settings({"broken": model, "shop": shop}, poll=0.01)):
        assert service.get("/ready")["models"] == ["shop"]
        assert "model broken cannot be served: " in caplog.text
        listed = schemas.ModelList.model_validate(service.get("/v1/models"))
        assert [each.name for each in listed.models] == ["shop"]
        assert [each.name for each in listed.failed] == ["broken"]
        assert "bytes instead of" in listed.failed[0].problem
        assert service.post("/v1/classify", {"model": "shop", "text": "dark bread"})["results"][0]["labels"]
        for body in ({"text": "dark bread"}, {"text": "dark bread", "model": "broken"}):  # the first is the default
            assert "broken could not be loaded" in service.problem(503, "/v1/classify", body)["detail"]
        service.problem(503, "/v1/models/broken")
        service.problem(404, "/v1/models/none")
        next(model.glob("model-*")).write_bytes(whole)
        wait_until(lambda service=service: not service.get("/v1/models")["failed"])
        assert service.post("/v1/classify", {"text": "dark bread"})["model"] == "broken"


def test_any_failure_to_load_is_logged_and_the_others_are_served(
    shop: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm_up = ServedModel.warm_up

    def fail(model: ServedModel) -> None:
        if model.name == "odd":
            raise RuntimeError("out of luck")
        warm_up(model)

    monkeypatch.setattr(ServedModel, "warm_up", fail)
    for service in serving(Settings({"odd": shop, "shop": shop})):
        assert service.get("/v1/models")["failed"] == [{"name": "odd", "problem": "RuntimeError: out of luck"}]
        assert "Traceback" in caplog.text
        assert service.post("/v1/classify", {"model": "shop", "text": "dark bread"})["results"]


def test_a_service_without_any_model_ends_with_the_reasons(shop: Path, model: Path, tmp_path: Path) -> None:
    damage(model)
    with pytest.raises(HiNetError, match=r"^no model can be served: one: .*bytes instead of.*; two: .*no such folder"):
        next(serving(Settings({"one": model, "two": tmp_path / "none"})))


def test_a_start_that_fails_in_any_way_is_reported(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(models: Models) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Models, "load_all", fail)
    with pytest.raises(HiNetError, match="RuntimeError: out of luck"):
        next(serving(Settings({"shop": shop})))


class _Written:
    """Keeps rows of the review queue in memory, and counts the threads that write at once."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.writers = self.max_writers = 0

    def enqueue(self, doubts: list[Any], max_rows: int) -> None:
        self.writers += 1
        self.max_writers = max(self.max_writers, self.writers)
        self.rows += doubts
        self.writers -= 1

    def close(self) -> None:
        pass


def test_threads_that_write_the_review_queue_at_once_write_each_row_once() -> None:
    service, written = Service(Settings({}, review=10)), _Written()
    service.store = written  # type: ignore[assignment]
    threads, interval = 8, sys.getswitchinterval()
    barrier = Barrier(threads)

    def flush() -> None:
        barrier.wait()
        service.flush()

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(30):
                service._doubts.extend(Doubt("", "shop", str(number), 0.5, 0.5) for number in range(50))
                for flushed in [pool.submit(flush) for _ in range(threads)]:
                    flushed.result()
    finally:
        sys.setswitchinterval(interval)
        service.close()
    assert len(written.rows) == 30 * 50
    assert written.max_writers == 1


def test_the_watcher_continues_after_any_failure(
    shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(Settings({"shop": shop}, poll=0.0, review=10))
    calls: list[str] = []

    def refresh() -> list[tuple[str, bool]]:
        calls.append("refresh")
        raise RuntimeError("out of luck")

    def flush() -> None:
        calls.append("flush")
        if calls.count("flush") == 2:
            raise asyncio.CancelledError
        raise RuntimeError("out of luck")

    monkeypatch.setattr(service.models, "refresh", refresh)
    monkeypatch.setattr(service, "flush", flush)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(service.watch())
    service.close()
    assert calls == ["refresh", "flush"] * 2
    assert caplog.text.count("RuntimeError: out of luck") == 3
