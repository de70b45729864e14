"""Measure corrections given to a running service, and the model after ``hinet update`` with the same corrections.

    HINET_DATA=folder python benchmarks/corrections.py

The phrases, which a model of NAICS with the vectors of the extra ``meaning`` gets wrong, are corrected one by one.
Their paraphrases were written before anything was measured and are never given to the model. Results:
``benchmarks/results/corrections.json``.
"""

from __future__ import annotations

import csv
import json
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meaning import Task
from measure import run_cases
from serve import wait_until

import hinet
from hinet import HiNetClassifier
from hinet.metrics import accuracy

PHRASES = Path(__file__).parent / "phrases" / "corrections.tsv"
LONGEST = 600.0  # maximum seconds per command
BLOCK = 500  # texts per request
COMMAND = str(Path(sys.executable).with_name("hinet"))

Ask = Callable[[Sequence[str]], list[Any]]


def request(address: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """Return the JSON response to a request."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(address + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=LONGEST) as answer:
        return json.load(answer)


@contextmanager
def serving(model: Path, feedback: Path) -> Iterator[str]:
    """Yield the address of a service that is ready and keeps feedback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [COMMAND, "serve", str(model), "--feedback", str(feedback), "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            wait_until(lambda: request(address, "/ready"))
            yield address
        finally:
            process.terminate()
            try:
                process.wait(timeout=LONGEST)
            except subprocess.TimeoutExpired:
                process.kill()


def right(ask: Ask, texts: Sequence[str], labels: Sequence[str]) -> int:
    """Return the number of texts whose first answer is right."""
    return sum(found == label for found, label in zip(ask(texts), labels, strict=True))


def corrected() -> dict[str, Any]:
    """Return the answers before corrections, after each of them in the service, and after ``hinet update``."""
    with PHRASES.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file, delimiter="\t"))
    phrases, paraphrases, labels = ([line[name] for line in lines] for name in ("phrase", "paraphrase", "code"))
    task = Task.load("naics")
    with tempfile.TemporaryDirectory() as folder:
        model, feedback, rows = Path(folder, "model"), Path(folder, "feedback.db"), Path(folder, "rows.csv")
        classifier = HiNetClassifier(task.taxonomy, random_state=0, vectors="wordllama")

        def scores(ask: Ask) -> dict[str, Any]:
            texts, blocks = task.test.texts, range(0, len(task.test.texts), BLOCK)
            answers = [label for start in blocks for label in ask(texts[start : start + BLOCK])]
            return {
                "right": right(ask, phrases, labels),
                "paraphrases": right(ask, paraphrases, labels),
                "accuracy": round(accuracy(task.test.labels, answers, taxonomy=task.taxonomy), 4),
            }

        classifier.fit(task.train.texts, task.train.labels).save(model)
        found: dict[str, Any] = {"corrections": len(phrases)}
        with serving(model, feedback) as address:

            def ask(texts: Sequence[str]) -> list[Any]:
                answers = request(address, "/v1/classify", {"texts": list(texts)})["results"]
                return [answer["labels"][0]["label"] for answer in answers]

            found["before"], at_once = scores(ask), 0
            for text, label in zip(phrases, labels, strict=True):
                body = {"model": "model", "text": text, "verdict": "correct", "nodes": [label]}
                assert request(address, "/v1/feedback", body)["learned"]
                at_once += right(ask, [text], [label])
            found["service"] = {"at_once": at_once, **scores(ask)}
        for command in (
            ["feedback", "export", str(feedback), "--out", str(rows)],
            ["update", str(model), "--rows", str(rows), "--quiet"],
        ):
            subprocess.run([COMMAND, *command], check=True, timeout=LONGEST)
        updated = hinet.load(model)
        found["update"] = scores(lambda texts: list(updated.predict(list(texts))))
    return found


if __name__ == "__main__":
    run_cases(str(Path(__file__)), "corrections", {"naics": corrected})
