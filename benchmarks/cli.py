"""Measure the command line on ICD-10-CM: startup, speed, memory, and training that is killed.

    python benchmarks/cli.py [case ...]

Every case runs alone in a fresh process. Results: ``benchmarks/results/cli.json``.
"""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

from measure import LONGEST, Case, Stopwatch, run_cases

from hinet import load_icd10cm
from hinet.data import LabelledRows

HINET = Path(sys.executable).with_name("hinet")
MANY = 2_000_000
KILLS = 20
IN_PYTHON = """
import sys, csv
from hinet import load
rows = list(csv.DictReader(open(sys.argv[2])))
found = load(sys.argv[1]).predict_traces([row["text"] for row in rows])
for (best,) in found:
    print(best.label, best.probability)
"""


def write_csv(path: Path, rows: LabelledRows) -> None:
    with path.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "label"])
        table.writerows(zip(rows.texts, rows.labels, strict=True))


@contextmanager
def files(train: bool = True) -> Iterator[Path]:
    """Yield a folder with the data set as files and, if requested, a model that the program trained on them."""
    icd = load_icd10cm()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        icd.taxonomy.write(folder / "codes.tsv")
        for part in ("train", "valid", "test"):
            write_csv(folder / f"{part}.csv", getattr(icd, part))
        if train:
            run("train", "train.csv", "--valid", "valid.csv", *COMMON, "--out", "model", cwd=folder)
            run("predict", "model", "test.csv", "--out", "warm.csv", cwd=folder)  # compiles the kernels
        yield folder


COMMON = ("--taxonomy", "codes.tsv", "--quiet", "--vectors", "none")


def run(*arguments: str, cwd: Path, stdin: str | None = None) -> str:
    command = [str(HINET), *arguments]
    return subprocess.run(
        command, cwd=cwd, input=stdin, capture_output=True, text=True, check=True, timeout=LONGEST
    ).stdout


def seconds_of(times: int, *arguments: str, cwd: Path, stdin: str | None = None) -> list[float]:
    found = []
    for _ in range(times):
        watch = Stopwatch()
        run(*arguments, cwd=cwd, stdin=stdin)
        found.append(watch.seconds)
    return found


def peak_of(*command: str, cwd: Path) -> tuple[float, float]:
    """Return the peak memory of a command in MB, and its duration in seconds."""
    watch = Stopwatch()
    process = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    timer = Timer(LONGEST, process.kill)
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    assert status == 0
    return usage.ru_maxrss / 1024, watch.seconds


def start() -> dict[str, Any]:
    with files() as folder:
        one = seconds_of(7, "predict", "model", "-q", cwd=folder, stdin="broken left wrist after a fall\n")
        helped = seconds_of(7, "--help", cwd=folder)
        rows = seconds_of(5, "predict", "model", "test.csv", "--out", "out.csv", "-q", cwd=folder)
        python = []
        for _ in range(3):
            watch = Stopwatch()
            subprocess.run(
                [sys.executable, "-c", IN_PYTHON, "model", "test.csv"],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                check=True,
                timeout=LONGEST,
            )
            python.append(watch.seconds)
        count = len((folder / "out.csv").read_text().splitlines()) - 1
    return {
        "one_row_seconds": round(statistics.median(one), 2),
        "one_row_all": one,
        "help_seconds": round(statistics.median(helped), 2),
        "test_rows": count,
        "test_rows_seconds": round(statistics.median(rows), 2),
        "test_rows_all": rows,
        "python_seconds": round(statistics.median(python), 2),
        "program_to_python": round(statistics.median(rows) / statistics.median(python), 2),
    }


def many() -> dict[str, Any]:
    with files() as folder:
        texts = load_icd10cm().test.texts
        with (folder / "many.csv").open("w", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(["id", "text"])
            table.writerows((number, texts[number % len(texts)]) for number in range(MANY))
        (folder / "one.csv").write_text("id,text\n0,broken wrist\n")
        loaded, _ = peak_of(str(HINET), "predict", "model", "one.csv", "--out", "one_out.csv", cwd=folder)
        asked = ("predict", "model", "many.csv", "--keep", "id", "--out", "out.csv", "-q")
        peak, seconds = peak_of(str(HINET), *asked, cwd=folder)
        wanted = [
            row["label"] for row in csv.DictReader(run("predict", "model", "test.csv", "-q", cwd=folder).splitlines())
        ]
        in_order = 0
        with (folder / "out.csv").open(newline="") as stream:
            for number, row in enumerate(csv.DictReader(stream)):
                in_order += row["id"] == str(number) and row["label"] == wanted[number % len(wanted)]
    return {
        "rows": MANY,
        "rows_in_order": in_order,
        "seconds": seconds,
        "rows_a_second": round(MANY / seconds),
        "peak_mb": round(peak),
        "loaded_mb": round(loaded),
        "above_loaded_mb": round(peak - loaded),
    }


def reading() -> dict[str, Any]:
    """Read a table in blocks, and with Arrow's reader, which does not report lines."""
    from pyarrow import csv as arrow_csv

    from hinet.data.tables import Columns, FailFast, RowQuery, TableOptions, labelled_blocks

    texts = load_icd10cm().train
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "rows.csv"
        write_csv(path, LabelledRows(texts.texts * 7, texts.labels * 7))
        ours, arrows = [], []
        for _ in range(3):
            watch = Stopwatch()
            blocks = labelled_blocks([str(path)], RowQuery(Columns()), TableOptions(), FailFast())
            count = sum(len(block) for block in blocks)
            ours.append(watch.seconds)
            watch = Stopwatch()
            assert arrow_csv.read_csv(path).num_rows == count
            arrows.append(watch.seconds)
    ratio = statistics.median(ours) / statistics.median(arrows)
    return {
        "rows": count,
        "microseconds_a_row": round(1e6 * statistics.median(ours) / count, 2),
        "to_arrow": round(ratio, 1),
    }


def demo() -> dict[str, Any]:
    """Run the demo with nothing compiled, then a second time."""
    with tempfile.TemporaryDirectory() as cache:
        seconds = []
        for _ in range(2):
            watch = Stopwatch()
            subprocess.run(
                [HINET, "demo"],
                env={**os.environ, "NUMBA_CACHE_DIR": cache},
                capture_output=True,
                check=True,
                timeout=LONGEST,
            )
            seconds.append(watch.seconds)
    return {"first_seconds": seconds[0], "seconds": seconds[1]}


def kills() -> dict[str, Any]:
    """Kill training at random moments and resume it; a run that ends before it is killed is restarted."""
    chance = random.Random(0)
    asked = ["train", "train.csv", *COMMON, "--threads", "1", "--checkpoint-every", "1"]
    with files(train=False) as folder:
        watch = Stopwatch()
        run(*asked, "--out", "whole", cwd=folder)
        whole = watch.seconds
        done = lost = finished = max_epochs = 0
        kept: dict[str, int] = {}
        while done < KILLS:
            process = subprocess.Popen([str(HINET), *asked, "--out", "killed", "--resume"], cwd=folder)
            time.sleep(chance.uniform(0.2, 0.5) * whole)
            process.send_signal(signal.SIGKILL)
            if process.wait(timeout=LONGEST) == 0:
                finished += 1
                kept = {}
                continue
            done += 1
            found = _epochs_kept(folder / "killed.checkpoint")
            lost += any(found.get(name, 0) < epochs for name, epochs in kept.items())
            kept, max_epochs = found, max([max_epochs, *found.values()])
        run(*asked, "--out", "killed", "--resume", cwd=folder)
        files_of = [json.loads((folder / name / "manifest.json").read_text())["files"] for name in ("whole", "killed")]
    return {
        "whole_seconds": whole,
        "kills": done,
        "finished_before_the_kill": finished,
        "checkpoints_lost": lost,
        "most_epochs_kept": max_epochs,
        "same_model": files_of[0] == files_of[1],
    }


def _epochs_kept(folder: Path) -> dict[str, int]:
    from hinet.files import read_arrays

    paths = folder.glob("[!.]*.safetensors")
    return {path.name: len(json.loads(read_arrays(path)[1]["records"])) for path in paths}


CASES: dict[str, Case] = {"demo": demo, "start": start, "many rows": many, "reading": reading, "kills": kills}


if __name__ == "__main__":
    run_cases(__file__, "cli", CASES)
