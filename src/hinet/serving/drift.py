"""Texts that no longer look like those that a model used to get: counts of known words, similarity and confidence.

Every answer of ``/v1/classify`` adds to counts per day, in memory; these are written to an SQLite file every so often.
The first days of a version of a model are its reference. A later day differs if the greatest difference between the
cumulative shares of both, the Kolmogorov-Smirnov distance, is more than chance explains and more than ``MIN_DISTANCE``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.data.matrices import MixedRows
from hinet.engine import Found
from hinet.engine.model.experts.neighbours import nearest_cosines
from hinet.files.database import Database, DatabaseKind
from hinet.serving.settings import Settings

Signal = Literal["known_words", "similarity", "confidence"]
SIGNALS: tuple[Signal, ...] = ("known_words", "similarity", "confidence")
BINS = 50  # number of bins for values from 0 to 1
MIN_REFERENCE = 500  # texts of the first days that others are compared with
MIN_TEXTS = 200  # texts of the last days, which are joined until they have as many
MAX_DAYS = 7  # days that are joined
MIN_DISTANCE = 0.1  # smaller differences do not matter, however sure they are
FALSE_ALARM = 0.001  # maximum probability that a day of independent texts of the same kind is reported
SHOWN_DAYS = 30
SAMPLE = 8  # texts of a version that are compared with its memory at a time
MAX_SHARE = 0.02  # maximum share of time that these comparisons take
MAX_SAMPLED = 256  # texts that wait for that
SCHEMA = """
CREATE TABLE counts (
    model TEXT NOT NULL, version TEXT NOT NULL, day TEXT NOT NULL, signal TEXT NOT NULL, bin INTEGER NOT NULL,
    texts INTEGER NOT NULL, PRIMARY KEY (model, version, day, signal, bin)
) STRICT, WITHOUT ROWID;
"""
COUNTS = DatabaseKind("counts of texts", 0x68696E64, 1, SCHEMA)  # the application id is "hind"
ADD = (
    "INSERT INTO counts VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (model, version, day, signal, bin) DO UPDATE SET texts = texts + excluded.texts"
)

Json = dict[str, Any]
Bins = NDArray[np.int64]  # (BINS,)
Days = dict[str, dict[Signal, Bins]]  # keys are days, then signals


class ModelKey(NamedTuple):
    """A version of a model."""

    model: str
    version: str


Place = tuple[ModelKey, str, Signal]  # version, day and signal


class Counts:
    """Counts of all models, shared by threads; those of the file, and those that are not written yet."""

    def __init__(self, feedback: Path | None, lock_seconds: float = Settings.lock_seconds) -> None:
        self._store = None
        if feedback is not None:
            self._store = Database.open_kind(feedback.with_name(f"{feedback.name}.counts"), COUNTS, lock_seconds)
        self._lock = Lock()
        self._pending: dict[Place, Bins] = {}
        self._written: dict[Place, Bins] = {}
        self._samples: list[tuple[ModelKey, str, Fitted, Any]] = []
        self._to_sample: dict[ModelKey, int] = {}
        self._rests_until = 0.0  # when texts may be compared with memories again

    def load(self, keys: Iterable[ModelKey]) -> None:
        """Read the counts of these versions, including those of other processes; may raise StoreError."""
        if self._store is None:
            return
        written: dict[Place, Bins] = {}
        query = "SELECT day, signal, bin, texts FROM counts WHERE model = ? AND version = ?"
        for key in keys:
            for day, signal, number, texts in self._store.select(query, *key):
                if signal in SIGNALS and 0 <= number < BINS:
                    written.setdefault((key, day, signal), np.zeros(BINS, np.int64))[number] = texts
        with self._lock:
            self._written = written

    def observe(self, key: ModelKey, fitted: Fitted, rows: Any, found: Found) -> None:
        """Count answered texts, given their features and traces; keep a few of them for :meth:`measure`."""
        day, offsets = _today(), found.traces.row_offsets
        assert found.traces.log_p is not None
        self.add(key, day, "confidence", np.exp(found.traces.log_p[offsets[:-1][np.diff(offsets) > 0]]))
        if isinstance(rows, MixedRows) and rows.unknown is not None:
            self.add(key, day, "known_words", 1 - rows.unknown)
        with self._lock:
            room = min(self._to_sample.get(key, SAMPLE), MAX_SAMPLED - len(self._samples))
            if room > 0 and fitted.predictor.can_remember:
                sample = rows[np.arange(min(room, rows.shape[0]))]
                self._samples.append((key, day, fitted, sample))
                self._to_sample[key] = room - sample.shape[0]

    def add(self, key: ModelKey, day: str, signal: Signal, shares: NDArray[Any]) -> None:
        """Count values of texts."""
        number = np.clip((shares * BINS).astype(np.int64), 0, BINS - 1)
        with self._lock:
            _add(self._pending, {(key, day, signal): np.bincount(number, minlength=BINS)})

    def measure(self) -> None:
        """Count the similarity of the nearest known text of a few texts.

        One comparison with a large memory takes long, however few texts are compared: the next ones wait for as long as
        ``MAX_SHARE`` demands.
        """
        start = monotonic()
        if start < self._rests_until:
            return
        try:
            self._compare_samples()
        finally:
            end = monotonic()
            self._rests_until = end + (end - start) / MAX_SHARE

    def _compare_samples(self) -> None:
        with self._lock:
            samples, self._samples, self._to_sample = self._samples, [], {}
        together: dict[tuple[ModelKey, str, int], list[tuple[Fitted, Any]]] = {}
        for key, day, fitted, rows in samples:
            together.setdefault((key, day, id(fitted)), []).append((fitted, rows))
        for (key, day, _), parts in together.items():
            search = parts[0][0].search
            vectors = np.concatenate([search.text_vectors(rows) for _, rows in parts])
            vectors, memory = vectors[vectors.any(axis=1)], search.model.experts.neighbours
            if len(vectors) and len(memory.label):
                self.add(key, day, "similarity", nearest_cosines(vectors, memory))

    def flush(self) -> None:
        """Write the counts to the file; if it cannot be written now, raise StoreError and keep them."""
        if self._store is None:
            return
        with self._lock:
            pending, self._pending = self._pending, {}
        values = [
            (*key, day, signal, number, int(bins[number]))
            for (key, day, signal), bins in pending.items()
            for number in np.flatnonzero(bins).tolist()
        ]
        try:
            if values:
                with self._store.transaction() as connection:
                    connection.executemany(ADD, values)
        except BaseException:
            with self._lock:
                _add(self._pending, pending)
            raise
        with self._lock:
            _add(self._written, pending)

    def close(self) -> None:
        """Close the file."""
        if self._store is not None:
            self._store.close()

    def days(self, key: ModelKey) -> Days:
        """Return the counts of a version by day, in order; those of every signal, even without any texts."""
        with self._lock:
            counts = dict(self._written)
            _add(counts, self._pending)
        days: Days = {}
        for (version, day, signal), bins in counts.items():
            if version == key:
                days.setdefault(day, dict.fromkeys(SIGNALS, np.zeros(BINS, np.int64)))[signal] = bins
        return dict(sorted(days.items()))


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _add(counts: dict[Place, Bins], more: Mapping[Place, Bins]) -> None:
    """Add counts to others; arrays are shared, and none is changed."""
    for place, bins in more.items():
        counts[place] = counts[place] + bins if place in counts else bins


class Comparison(NamedTuple):
    """The texts of the last days next to those of the first days, by one signal."""

    signal: Signal
    first: Bins
    last: Bins

    @property
    def distance(self) -> float:
        """The greatest difference of the cumulative shares."""
        shares = [np.cumsum(bins) / bins.sum() for bins in (self.first, self.last)]
        return float(np.abs(shares[0] - shares[1]).max())

    @property
    def limit(self) -> float:
        """The distance that is reported: it has a probability of at most ``FALSE_ALARM`` for all signals together."""
        first, last = int(self.first.sum()), int(self.last.sum())
        chance = math.log(2 * len(SIGNALS) / FALSE_ALARM) / 2 * (1 / first + 1 / last)
        return max(MIN_DISTANCE, math.sqrt(chance))

    def to_json(self) -> Json:
        """Return the comparison as JSON values."""
        return {
            "signal": self.signal, "reference": _mean(self.first), "recent": _mean(self.last),
            "distance": self.distance, "limit": self.limit, "differs": self.distance > self.limit,
        }  # fmt: skip


def compare(days: Days, today: str) -> tuple[list[str], list[str], list[Comparison]]:
    """Return the reference days, the last complete days, and the comparisons; without enough texts, none of them."""
    complete = [day for day in days if day < today]
    first = _until(days, complete, MIN_REFERENCE)
    later = complete[len(first) :]
    last = _until(days, later[::-1][:MAX_DAYS], MIN_TEXTS)[::-1]
    if not first or not last:
        return first, [], []
    comparisons = [Comparison(signal, _sum(days, first, signal), _sum(days, last, signal)) for signal in SIGNALS]
    return first, last, [each for each in comparisons if min(each.first.sum(), each.last.sum()) >= MIN_TEXTS]


def _until(days: Days, order: list[str], texts: int) -> list[str]:
    """Return days in order until they have as many texts; none if all have fewer."""
    total = 0
    for number, day in enumerate(order, 1):
        total += _texts(days[day])
        if total >= texts:
            return order[:number]
    return []


def _texts(signals: Mapping[Signal, Bins]) -> int:
    return int(signals["confidence"].sum())


def _sum(days: Days, chosen: list[str], signal: Signal) -> Bins:
    return sum((days[day][signal] for day in chosen), np.zeros(BINS, np.int64))


def _mean(bins: Bins) -> float | None:
    """Return the mean value, by the middles of the bins."""
    return float(bins @ (np.arange(BINS) + 0.5)) / BINS / int(bins.sum()) if bins.any() else None


def report(days: Days, today: str | None = None) -> Json | None:
    """Return the last days, and how they compare with the first ones; None without any texts."""
    if not days:
        return None
    first, last, comparisons = compare(days, today or _today())
    shown = [
        {"day": day, "texts": _texts(signals), **{signal: _mean(signals[signal]) for signal in SIGNALS}}
        for day, signals in [*days.items()][-SHOWN_DAYS:]
    ]
    signals = [comparison.to_json() for comparison in comparisons]
    return {
        "reference": _span(days, first), "recent": _span(days, last), "signals": signals,
        "differs": any(signal["differs"] for signal in signals), "days": shown,
    }  # fmt: skip


def _span(days: Days, chosen: list[str]) -> Json | None:
    if not chosen:
        return None
    return {"first": chosen[0], "last": chosen[-1], "texts": sum(_texts(days[day]) for day in chosen)}
