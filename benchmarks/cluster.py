"""Measure a cluster of two workers on this machine: equal answers, a killed worker, throughput, and training.

    HINET_DATA=folder python benchmarks/cluster.py [case ...]

Each case runs alone in a fresh process that starts Ray. Training seconds run from rows in memory to the model, after
the workers have started; ``start_seconds`` is the time Ray took before that. Ratios compare two workers with one, one
thread each, one after the other in the same process. Results: ``benchmarks/results/cluster.json``.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
import threading
import time
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from engine import load
from measure import Case, Stopwatch, run_cases

from hinet import HiNetClassifier, load_icd10cm
from hinet.choices import SplitBy
from hinet.classifier.answers import PredictionOptions
from hinet.classifier.prediction_table import PORTION as BLOCKS
from hinet.classifier.prediction_table import PredictionOutput
from hinet.classifier.saved_model import load_model
from hinet.cluster import Cluster, PredictionJob, RayRunner, Sink, connected, predict_rows
from hinet.data.tables import Columns, FailFast, RowQuery, TableOptions, labelled_blocks, new_table
from hinet.data.tables.blocks import MAX_ROWS
from hinet.engine import EngineSettings, Search, fit
from hinet.engine.compiling import compile_for_training
from hinet.metrics import accuracy
from hinet.progress import Progress

ROWS = int(os.environ.get("HINET_CLUSTER_ROWS", "2000000"))
WORKERS = 2
PORTION = BLOCKS * MAX_ROWS
QUERY = RowQuery(Columns(), labels=False, keep=("id",), allow_blank=True)


class Clock(Progress):
    """Record when the workers of a run have started, and how much they exchange."""

    def __init__(self) -> None:
        self.start = self.waited = 0.0  # time when workers have started, and seconds until then
        self.exchanged = 0.0  # GB per worker

    def message(self, text: str) -> None:
        """Add up the data that workers exchange."""
        self.exchanged += float(found[1]) if (found := re.search(r"([\d.]+) GB exchanged", text)) else 0.0

    def started(self, epochs: int, rows: int) -> None:
        """Record that workers have started."""
        self.start = time.perf_counter()


def new_rows(folder: Path) -> tuple[Path, str]:
    """Return an ICD-10-CM model, and a table of ``rows`` rows: its texts, each with a number."""
    icd = load_icd10cm()
    classifier = HiNetClassifier(icd.taxonomy, vectors=None, n_jobs=1, epochs=3)
    classifier.fit(list(icd.train.texts), list(icd.train.labels)).save(folder / "model")
    texts = np.array([*icd.test.texts, *icd.valid.texts], object)
    path = folder / "rows.parquet"
    numbers = np.arange(ROWS)
    chosen = [f"{text} {number}" for text, number in zip(texts[numbers % len(texts)], numbers.tolist(), strict=True)]
    pq.write_table(pa.table({"id": numbers, "text": chosen}), path, row_group_size=100_000)
    return folder / "model", str(path)


def write_alone(model: Path, path: str, out: Path) -> None:
    """Predict in this process with one thread, as the command does."""
    loaded = load_model(model, 1)
    blocks = labelled_blocks([path], QUERY, TableOptions(), FailFast())
    first = next(blocks)
    output = PredictionOutput(loaded, loaded.table(PredictionOptions()), QUERY, "", False, first)
    with new_table(str(out), "parquet", output.kinds()) as table:
        for block in chain([first], blocks):
            table.write(output.columns(block))


def predicted(model: Path, path: str, out: Path, workers: int) -> dict[str, float]:
    """Predict with workers; return the total seconds, and rows per second after the first portion was written.

    Answers arrive in order, so their arrival does not show the pace; the times of the workers' files do.
    """
    job = PredictionJob(model, (path,), QUERY, TableOptions(), PredictionOptions())
    watch = Stopwatch()
    predict_rows(job, Cluster("local", workers), Sink(str(out), is_folder=True), FailFast(), lambda rows: None)
    seconds = watch.seconds
    written = sorted((part.stat().st_mtime_ns, pq.read_metadata(part).num_rows) for part in out.iterdir())
    rate = sum(rows for _, rows in written[1:]) / ((written[-1][0] - written[0][0]) / 1e9)
    return {"seconds": seconds, "rows_per_second": round(rate)}


def equal(folder: Path, alone: Path) -> bool:
    """Return whether a folder has the rows of a file, in their order, bit by bit."""
    return bool(pq.read_table(folder).equals(pq.read_table(alone)))


def prediction() -> dict[str, Any]:
    """Compare one process, one worker, two workers, and two of which one is killed halfway."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, path = new_rows(folder)
        watch = Stopwatch()
        write_alone(model, path, folder / "alone.parquet")
        alone_seconds = watch.seconds
        with connected(Cluster("local", 1)):
            one = predicted(model, path, folder / "one", 1)
        with connected(Cluster("local", WORKERS)):
            two = predicted(model, path, folder / "two", WORKERS)
            with Killer(folder, "killed") as killer:
                predicted(model, path, folder / "killed", WORKERS)
        return {
            "rows": ROWS,
            "seconds_alone": alone_seconds,
            "seconds_one_worker": one["seconds"],
            "seconds_two_workers": two["seconds"],
            "rows_per_second_one_worker": one["rows_per_second"],
            "rows_per_second_two_workers": two["rows_per_second"],
            "throughput_ratio": round(two["rows_per_second"] / one["rows_per_second"], 3),
            "equal": equal(folder / "two", folder / "alone.parquet"),
            "killed_after_portions": killer.portions,
            "portions": len([*(folder / "killed").iterdir()]),
            "equal_after_kill": equal(folder / "killed", folder / "alone.parquet"),
        }


class Killer:
    """Kill a worker with -9 when half of the rows are written, before the folder is renamed."""

    def __init__(self, folder: Path, name: str) -> None:
        self._parts = partial(folder.glob, f".{name}.*/part-*")
        self.portions = 0  # portions written when the worker was killed; 0 if it was not
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *others: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            written = len([*self._parts()])
            if written * PORTION * 2 >= ROWS:
                workers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
                os.kill(next(filter(is_worker, workers)), signal.SIGKILL)
                self.portions = written
                return


def is_worker(pid: int) -> bool:
    """Return whether a process is a worker that this process started."""
    try:
        if not Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::MapWorker"):
            return False
        while pid > 1 and pid != os.getpid():
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return False
    return pid == os.getpid()


def training(name: str, split: SplitBy) -> dict[str, Any]:
    """Measure accuracy on test rows and training seconds of one process, one worker and two."""
    data = load(name)
    compile_for_training()
    traces, settings = data.traces(data.train), EngineSettings(threads=1)
    truth = data.traces(data.test)

    def run(workers: int) -> tuple[float, float, Clock, Any]:
        clock, before = Clock(), time.perf_counter()
        with connected(Cluster("local", workers)):
            runner = RayRunner(Cluster("local", workers), split)
            model = fit(data.train.rows, traces, settings, valid=data.validation, progress=clock, runner=runner)
            end = time.perf_counter()
        score = 100 * accuracy(truth, Search(model, 1).traces(data.test.rows).traces)
        clock.waited = clock.start - before
        return score, end - clock.start, clock, model

    watch = Stopwatch()
    alone = fit(data.train.rows, traces, settings, valid=data.validation)
    alone_seconds = watch.seconds
    alone_accuracy = 100 * accuracy(truth, Search(alone, 1).traces(data.test.rows).traces)
    _, one, _, _ = run(1)
    together, two, clock, model = run(WORKERS)
    same = bool(np.array_equal(alone.experts.deep.embedding, model.experts.deep.embedding))
    return {
        "accuracy_alone": round(alone_accuracy, 2),
        "accuracy_two_workers": round(together, 2),
        "accuracy_loss": round(alone_accuracy - together, 2),
        "seconds_alone": round(alone_seconds, 1),
        "seconds_one_worker": round(one, 1),
        "seconds_two_workers": round(two, 1),
        "time_ratio": round(two / one, 3),
        "start_seconds": round(clock.waited, 1),
        "exchanged_gb": round(clock.exchanged, 2),
        "same_model": same,
    }


CASES: dict[str, Case] = {
    "prediction": prediction,
    **{
        f"{name}, {split}": partial(training, name, split)
        for name in ("icd", "wikitaxa")
        for split in ("auto", "rows")
    },
}  # fmt: skip

if __name__ == "__main__":
    run_cases(__file__, "cluster", CASES)
