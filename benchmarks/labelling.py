"""Measure the speed of a labelling project: ICD-10-CM with 19,608 labels, 100,000 rows, up to 19,000 labelled ones.

    HINET_DATA=folder python benchmarks/labelling.py [case ...]

A case is a number of rows labelled before the service starts. Rows are those of the set and, to make them 100,000,
pairs of their halves. Times are those of a client on the same machine, in milliseconds: of a request for the next row,
of a label until it is acknowledged, and of both while a training runs. Results: ``benchmarks/results/labelling.json``.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from meaning import Task
from measure import Case, run_cases
from serve import wait_until

from hinet.labelling.folder import ProjectFolder, ProjectSettings, create_project
from hinet.labelling.store import LabelStore
from hinet.labelling.training import train

ROWS = 100_000
ASKED = 200  # rows that are labelled one after the other
LONGEST = 600.0
COMMAND = str(Path(sys.executable).with_name("hinet"))


def rows(task: Task, count: int) -> tuple[list[str], list[str]]:
    """Return texts and labels: those of the training rows, and pairs of their halves with the label of the first."""
    chance, texts = random.Random(0), dict(zip(task.train.texts, task.train.labels, strict=True))
    known = list(texts.items())
    while len(texts) < count:
        (one, label), (other, _) = chance.choice(known), chance.choice(known)
        words, more = one.split(), other.split()
        texts.setdefault(" ".join([*words[: len(words) // 2 + 1], *more[len(more) // 2 :]]), label)
    return list(texts)[:count], list(texts.values())[:count]


def made(folder: Path, task: Task, labels: int) -> tuple[ProjectFolder, list[str]]:
    """Return a project with some labelled rows and a model that was trained on them."""
    texts, truth = rows(task, ROWS)
    project, _ = create_project(folder / "project", task.taxonomy, texts, ProjectSettings())
    store = LabelStore.open(project.database)
    with store.transaction() as connection:
        connection.executemany(
            "INSERT INTO labels (row, action, nodes, annotator, time, note, predicted, probability, version, reason)"
            " VALUES (?, 'label', ?, 'Ada', '2026-01-01T00:00:00.000Z', '', '[]', 0.5, '', 'uncertain')",
            [(row, json.dumps([truth[row - 1]])) for row in range(1, labels + 1)],
        )
    store.close()
    train(project)
    return project, truth


def times(milliseconds: list[float]) -> dict[str, float]:
    """Return the median, the 95th percentile and the maximum."""
    names = {"median": 50, "p95": 95, "max": 100}
    return {name: round(float(np.percentile(milliseconds, share)), 1) for name, share in names.items()}


class Client:
    """Sends requests, and measures them."""

    def __init__(self, address: str, truth: list[str]) -> None:
        self.address, self.truth = address, truth

    def __call__(self, path: str, body: Any = None) -> Any:
        """Return the answer to a request."""
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=LONGEST) as answer:
            return json.load(answer)

    def label_rows(self, count: int) -> dict[str, dict[str, float]]:
        """Label rows one after the other; return the times, separately while a training runs."""
        found: dict[str, list[float]] = {}
        for _ in range(count):
            state = "_in_training" if self("/v1/project")["retraining"] else ""
            start = time.perf_counter()
            (row,) = self("/v1/project/next", {"annotator": "Ada"})["rows"]
            middle = time.perf_counter()
            label = {"annotator": "Ada", "id": row["id"], "nodes": [self.truth[row["id"] - 1]]}
            self("/v1/project/labels", label)
            end = time.perf_counter()
            found.setdefault(f"next{state}", []).append(1e3 * (middle - start))
            found.setdefault(f"label{state}", []).append(1e3 * (end - middle))
        return {name: {**times(each), "requests": len(each)} for name, each in found.items()}


def measured(labels: int) -> dict[str, Any]:
    """Return the times of requests while rows are ranked, and when they are."""
    with tempfile.TemporaryDirectory() as folder:
        project, truth = made(Path(folder), Task.load("icd"), labels)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        start = time.perf_counter()
        command = [COMMAND, "start", str(project.path), "--port", str(port)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            try:
                client = Client(f"http://127.0.0.1:{port}", truth)
                wait_until(lambda: client("/ready"))
                ready = time.perf_counter()
                ranking = client.label_rows(20)
                while client("/v1/project")["scored"] < 1:
                    time.sleep(0.2)
                ranked = time.perf_counter()
                found = client.label_rows(ASKED)
                start_progress = time.perf_counter()
                client("/v1/project/progress")
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
                return {
                    "rows": ROWS, "labelled": labels, "seconds_until_ready": round(ready - start, 1),
                    "seconds_until_ranked": round(ranked - ready, 1), "while_ranking": ranking, "ranked": found,
                    "progress": round(1e3 * (time.perf_counter() - start_progress), 1),
                    "service_gb": round(peak / 1e6, 2),
                }  # fmt: skip
            finally:
                process.terminate()
                try:
                    process.wait(timeout=LONGEST)
                except subprocess.TimeoutExpired:
                    process.kill()


CASES: dict[str, Case] = {f"{labels} labels": partial(measured, labels) for labels in (0, 1_000, 19_000)}

if __name__ == "__main__":
    run_cases(str(Path(__file__)), "labelling", CASES)
