"""Measure a peer in its own process: accuracy, speed and size."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hinet.metrics import accuracy, expected_calibration_error, hierarchical_f1, label_f1, lca_f1
from peers.data import PeerData, Rows
from peers.peer import Answers, Peer

SINGLE_ROWS = 100
COLD_START = 600.0  # maximum seconds until the first answer


class Clock:
    """Measure wall-clock and CPU seconds since creation."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()

    def seconds(self) -> tuple[float, float]:
        """Return wall-clock and CPU seconds."""
        return time.perf_counter() - self._wall, _cpu_seconds() - self._cpu


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def scores(data: PeerData, rows: Rows, answers: Answers) -> dict[str, float | None]:
    """Return the metrics of answers."""
    truth, taxonomy = rows.labels, data.taxonomy
    right = np.array([label in true for label, true in zip(answers.labels, truth, strict=True)])
    p = answers.probability
    return {
        "accuracy": round(accuracy(truth, answers.labels, taxonomy=taxonomy), 4),
        "hierarchical_f1": round(hierarchical_f1(truth, answers.labels, taxonomy=taxonomy), 4),
        "macro_f1": round(label_f1(truth, answers.labels, average="macro", taxonomy=taxonomy), 4),
        "lca_f1": round(lca_f1(truth, answers.labels, taxonomy=taxonomy), 4),
        "calibration_error": None if p is None else round(expected_calibration_error(p, right), 4),
    }


def validation_accuracy(peer: Peer, data: PeerData) -> dict[str, Any]:
    """Return the accuracy on validation rows after training on the others, or the error if training fails."""
    peer.prepare(data)
    try:
        peer.fit(*data.train.single(), data)
    except (RuntimeError, ValueError) as error:  # training diverged, for example
        return {"accuracy": 0.0, "error": str(error)}
    return {"accuracy": scores(data, data.valid, peer.answer(data.valid.texts))["accuracy"]}


def measured(peer: Peer, data: PeerData) -> dict[str, Any]:
    """Train on all but the test rows, predict those, and measure both."""
    peer.prepare(data)
    rows = data.train.joined(data.valid).single()
    clock = Clock()
    peer.fit(*rows, data)
    train, train_cpu = clock.seconds()
    peer.answer(data.test.texts[:1])
    clock = Clock()
    answers = peer.answer(data.test.texts)
    predict, predict_cpu = clock.seconds()
    latency = []
    for text in data.test.texts[:SINGLE_ROWS]:
        clock = Clock()
        peer.answer([text])
        latency.append(clock.seconds()[0])
    return {
        **scores(data, data.test, answers),
        "labels": len(set(rows[1])),
        "train_rows": len(rows[0]),
        "test_rows": len(data.test),
        "train_seconds": round(train, 3),
        "train_cpu_seconds": round(train_cpu, 3),
        "rows_per_second": round(len(data.test) / max(predict, 1e-3)),
        "predict_cpu_seconds": round(predict_cpu, 3),
        "single_row_milliseconds": round(1e3 * float(np.median(latency)), 3),
        **_kept(peer, data.test.texts[0]),
        "settings": peer.settings,
        "versions": peer.versions(),
    }


def _kept(peer: Peer, text: str) -> dict[str, float]:
    """Return the size of a saved peer, and the seconds a fresh process takes to load it and answer one text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        peer.save(path)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        code = (
            f"import sys; sys.path[:0] = {sys.path!r}\n"
            "from pathlib import Path\n"
            f"from {type(peer).__module__} import {type(peer).__qualname__} as Kind\n"
            f"Kind.load(Path({folder!r})).answer([{text!r}])"
        )
        clock = Clock()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=COLD_START)
        wall, cpu = clock.seconds()
    starts = {"cold_start_seconds": round(wall, 3), "cold_start_cpu_seconds": round(cpu, 3)}
    return {"megabytes": round(size / 1e6, 2), **starts}
