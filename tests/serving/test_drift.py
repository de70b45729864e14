"""Counts of classified texts: kept on disk, compared with the first days, and reported only if they differ."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet.classifier.saved_model import COLUMNS
from hinet.data.tables import Columns
from hinet.files.database import StoreError
from hinet.serving import drift
from hinet.serving.drift import (
    BINS,
    FALSE_ALARM,
    SAMPLE,
    SIGNALS,
    Bins,
    Comparison,
    Counts,
    Days,
    ModelKey,
    compare,
    report,
)
from hinet.serving.gate import Metrics
from hinet.serving.settings import Settings
from tests.classifier.test_neighbours import EDGES, trained
from tests.processes import LONGEST, wait_until
from tests.serving.conftest import Service, rows, serving

KEY = ModelKey("shop", "0123")
TEXTS = [text for text, _ in rows(40, 5)]
FOREIGN = ["zzyzx qwerty", "lorem ipsum dolor", "sit amet elit"]


def binned(values: Any) -> Bins:
    return np.bincount(np.minimum((values * BINS).astype(int), BINS - 1), minlength=BINS)


def day(draw: Callable[[int], Any], texts: int) -> dict[drift.Signal, Bins]:
    return {signal: binned(draw(texts)) for signal in SIGNALS}


@pytest.mark.parametrize("texts", [(500, 200), (500, 5_000), (5_000, 300)])
@pytest.mark.parametrize("shape", [(1.0, 1.0), (8.0, 1.2), (0.3, 0.2), (40.0, 40.0)])
def test_days_of_the_same_texts_are_rarely_reported(texts: tuple[int, int], shape: tuple[float, float]) -> None:
    chance, days = np.random.default_rng(0), 1_000
    alarms = 0
    for _ in range(days):
        first, last = (day(lambda count: chance.beta(*shape, count), count) for count in texts)
        found = [Comparison(signal, first[signal], last[signal]) for signal in SIGNALS]
        alarms += any(each.distance > each.limit for each in found)
    assert alarms <= 2 * FALSE_ALARM * days


@pytest.mark.parametrize("moved", [(2.0, 1.5), (8.0, 3.0)])
def test_other_texts_are_reported(moved: tuple[float, float]) -> None:
    chance = np.random.default_rng(0)
    for _ in range(100):
        comparison = Comparison("confidence", binned(chance.beta(8, 1.2, 500)), binned(chance.beta(*moved, 200)))
        assert comparison.distance > comparison.limit


def test_small_differences_are_not_reported_however_many_texts_show_them() -> None:
    comparison = Comparison("confidence", binned(np.full(10**6, 0.9)), binned(np.r_[np.full(91, 0.9), np.full(9, 0.1)]))
    assert comparison.distance == pytest.approx(0.09)
    assert comparison.limit > comparison.distance


def uniform(texts: int) -> Any:
    return (np.arange(texts) + 0.5) / texts


def test_first_and_last_complete_days_are_joined_until_they_have_enough_texts() -> None:
    counts = {1: 300, 2: 300, 3: 300, 4: 150, 5: 90, 6: 1_000}
    days: Days = {f"2026-11-0{number}": day(uniform, texts) for number, texts in counts.items()}
    first, last, comparisons = compare(days, "2026-11-06")
    assert first == ["2026-11-01", "2026-11-02"]
    assert last == ["2026-11-04", "2026-11-05"]
    assert [each.signal for each in comparisons] == [*SIGNALS]
    assert compare(days, "2026-11-02") == ([], [], [])
    assert compare(days, "2026-11-05")[:2] == (first, ["2026-11-03", "2026-11-04"])
    told = report(days, "2026-11-06")
    assert told is not None
    assert told["reference"] == {"first": "2026-11-01", "last": "2026-11-02", "texts": 600}
    assert [each["texts"] for each in told["days"]] == [*counts.values()]
    assert told["differs"] is False
    assert report({}) is None


def test_counts_are_written_once_and_added_to_those_of_other_processes(tmp_path: Path) -> None:
    first, second = Counts(tmp_path / "feedback.db"), Counts(tmp_path / "feedback.db")
    for counts, values in ((first, [0.5, 0.99]), (second, [0.5, 1.0])):
        counts.add(KEY, "2026-11-01", "confidence", np.array(values))
        counts.flush()
        counts.flush()
    for counts in (first, second):
        counts.load([KEY])
        assert counts.days(KEY)["2026-11-01"]["confidence"].tolist() == [0] * 25 + [2] + [0] * 23 + [2]
        counts.close()


def test_counts_that_cannot_be_written_are_kept(tmp_path: Path) -> None:
    counts = Counts(tmp_path / "feedback.db", lock_seconds=0.01)
    counts.add(KEY, "2026-11-01", "confidence", np.array([0.5]))
    other = sqlite3.connect(tmp_path / "feedback.db.counts", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="counts of texts cannot be read or written now"):
        counts.flush()
    other.close()
    assert counts.days(KEY)["2026-11-01"]["confidence"].sum() == 1
    counts.flush()
    assert counts.days(KEY)["2026-11-01"]["confidence"].sum() == 1
    counts.close()


def stored(path: Path) -> int:
    connection = sqlite3.connect(path)
    (total,) = connection.execute("SELECT coalesce(sum(texts), 0) FROM counts WHERE signal = 'confidence'").fetchone()
    connection.close()
    return int(total)


def texts_of(service: Service) -> Any:
    return service.get("/v1/models/shop")["texts"]


def test_answers_are_counted_in_memory_and_written_at_the_end(shop: Path, tmp_path: Path) -> None:
    settings = Settings({"shop": shop}, feedback=tmp_path / "feedback.db", review=10, poll=0.01, seconds=LONGEST)
    for service in serving(settings):
        assert texts_of(service) is None  # the warm-up is not counted
        service.post("/v1/classify", {"texts": TEXTS[:30]})
        service.post("/v1/classify", {"texts": TEXTS})  # more than are answered together with others
        service.post("/v1/classify", {"text": TEXTS[0], "within": ["food"]})  # conditional probabilities
        service.get("/v1/review")
        (today,) = texts_of(service)["days"]
        assert today["texts"] == 70
        assert today["known_words"] > 0.9
        assert 0 < today["confidence"] <= 1
        assert today["similarity"] is None
        assert stored(tmp_path / "feedback.db.counts") == 0
        known = today["known_words"]
        service.post("/v1/classify", {"texts": FOREIGN * 10})
        assert texts_of(service)["days"][0]["known_words"] < known
    assert stored(tmp_path / "feedback.db.counts") == 100
    for service in serving(settings):
        wait_until(lambda service=service: texts_of(service))  # the counts are read after the model
        assert texts_of(service)["days"][0]["texts"] == 100


def test_the_similarity_of_a_few_texts_is_counted_between_requests(tmp_path: Path) -> None:
    columns = Columns(text=("text",), label=("label",)).to_dict()
    trained(EDGES).save(tmp_path / "shop", notes={COLUMNS: columns})
    for service in serving(Settings({"shop": tmp_path / "shop"}, poll=LONGEST)):
        service.post("/v1/classify", {"texts": ["rye loaf"] * 20})
        service.post("/v1/classify", {"texts": ["car"]})
        assert texts_of(service)["days"][0]["similarity"] is None
        service.service.counts.measure()
        key = ModelKey("shop", service.get("/v1/models/shop")["version"])
        (signals,) = service.service.counts.days(key).values()
        assert signals["similarity"].sum() == SAMPLE
        assert texts_of(service)["days"][0]["similarity"] > 0.9  # a training row
        service.service.counts.measure()
        (signals,) = service.service.counts.days(key).values()
        assert signals["similarity"].sum() == SAMPLE


def test_a_memory_is_compared_once_for_all_texts_and_then_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = Columns(text=("text",), label=("label",)).to_dict()
    trained(EDGES).save(tmp_path / "shop", notes={COLUMNS: columns})
    now, compared = [100.0], []

    def compare_slowly(vectors: Any, memory: Any) -> Any:
        now[0] += 1
        compared.append((now[0], len(vectors)))
        return np.ones(len(vectors), np.float32)

    monkeypatch.setattr(drift, "monotonic", lambda: now[0])
    monkeypatch.setattr(drift, "nearest_cosines", compare_slowly)
    for service in serving(Settings({"shop": tmp_path / "shop"}, poll=LONGEST)):
        for _ in range(160):
            service.service.counts.measure()
            for _ in range(2 if len(compared) < 3 else 0):
                service.post("/v1/classify", {"texts": ["rye loaf", "car"]})
            now[0] += 1
    assert [texts for _, texts in compared] == [4, SAMPLE, SAMPLE]
    starts = [time for time, _ in compared]
    assert all(later - earlier >= 1 / drift.MAX_SHARE for earlier, later in pairwise(starts))


def test_a_new_version_has_no_values_of_the_old_one_and_is_reported_again() -> None:
    metrics = Metrics()
    day = {"known_words": 0.5, "similarity": None, "confidence": 0.5}
    texts = {"days": [day], "signals": [{"signal": "known_words", "distance": 0.4}], "differs": True}
    assert metrics.set_drift("shop", "1", texts)
    assert not metrics.set_drift("shop", "1", texts)
    assert b'hinet_texts_differ{model="shop"} 1.0' in metrics.text()
    assert not metrics.set_drift("shop", "2", None)
    assert b'model="shop"' not in metrics.text()
    assert metrics.set_drift("shop", "2", texts)
    assert metrics.set_drift("shop", "3", texts)


def test_other_texts_are_reported_in_the_log_the_metrics_and_the_model(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hinet.serving.service.log.propagate", True)
    settings = Settings({"shop": shop}, feedback=tmp_path / "feedback.db", max_texts=1_000)
    for service in serving(settings):
        for number, texts in enumerate((TEXTS * 13, TEXTS * 5, FOREIGN * 70), 1):
            monkeypatch.setattr(drift, "_today", lambda number=number: f"2026-11-0{number}")
            service.post("/v1/classify", {"texts": texts})
            service.service.count(0)
            assert texts_of(service)["differs"] is False
        monkeypatch.setattr(drift, "_today", lambda: "2026-11-03")
        assert texts_of(service)["recent"]["texts"] == 200
        assert 'hinet_texts_differ{model="shop"} 0.0' in service.client.get("/metrics").text
        monkeypatch.setattr(drift, "_today", lambda: "2026-11-04")
        service.service.count(0)
        service.service.count(0)
        found = texts_of(service)
        assert found["differs"]
        assert [each["signal"] for each in found["signals"] if each["differs"]] == ["known_words", "confidence"]
        assert found["signals"][0]["reference"] > 0.9 > 0.1 > found["signals"][0]["recent"]
        metrics = service.client.get("/metrics").text
        assert 'hinet_texts_differ{model="shop"} 1.0' in metrics
        assert 'hinet_text_mean{model="shop",signal="known_words"}' in metrics
    warnings = [record.message for record in caplog.records if "differ" in record.message]
    assert {*warnings} == {"model shop: texts differ from those of its first days: known_words, confidence"}
    assert len(warnings) <= 2  # once per comparison of days at most: the watcher may compare them, too
