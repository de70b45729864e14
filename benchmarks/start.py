"""Measure startup with and without compiled kernels: first answers, the demo, a small training run.

    HINET_DATA=folder python benchmarks/start.py [case ...]

CPU seconds are those of all processes together. Results: ``benchmarks/results/start.json``.
"""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import LONGEST, Case, Stopwatch, run_cases

PROGRAM = [sys.executable, "-c", "from hinet.cli import main; main()"]
TEXTS = {"naics": "dairy cattle farming\n", "icd": "broken left wrist after a fall\n"}
SMALL = 2_000  # rows of a small training run


def timed(*arguments: str, cache: Path, stdin: str | None = None) -> dict[str, float]:
    """Run the program with a folder of compiled kernels; return its wall-clock and CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    watch = Stopwatch()
    subprocess.run(
        [*PROGRAM, *arguments],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        input=stdin,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
        timeout=LONGEST,
    )
    seconds = watch.seconds
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2)}


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def cold_and_warm(*arguments: str) -> dict[str, Any]:
    with folder() as cache:
        return {"cold": timed(*arguments, cache=cache), "warm": timed(*arguments, cache=cache)}


def naics_training(where: Path, max_rows: int | None = None) -> list[str]:
    """Write NAICS for the program; return the arguments for training on it, or on its first rows."""
    source = Path(os.environ["HINET_DATA"]) / "naics2022_index"
    with (source / "naics2022_index.tsv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream, delimiter="\t") if row["split"] == "train"][:max_rows]
    with (where / "rows.csv").open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["text", "label"])
        table.writerows((row["text"], row["code"]) for row in rows)
    files = [
        "train",
        str(where / "rows.csv"),
        "--taxonomy",
        str(source / "hierarchy.tsv"),
        "--vectors",
        "none",
        "--quiet",
    ]
    return [*files, "--out", str(where / "naics")]


def answers() -> dict[str, Any]:
    """Answer one text with a saved model: with nothing compiled, with everything compiled, and repeatedly."""
    results: dict[str, Any] = {}
    with folder() as where, folder() as full:
        timed(*naics_training(where), cache=full)
        timed("demo", "--out", str(where / "icd"), "--quiet", cache=full)
        for name, text in TEXTS.items():
            model = str(where / name)
            with folder() as empty:
                cold = [timed("predict", model, "-q", cache=empty, stdin=text) for _ in range(5)]
            warm = [timed("predict", model, "-q", cache=full, stdin=text) for _ in range(5)]
            results[name] = {"cold": cold, "warm": warm}
            results[f"{name}_cold_seconds"] = max(run["seconds"] for run in cold)
    return results


def demo() -> dict[str, Any]:
    return cold_and_warm("demo")


def small_training() -> dict[str, Any]:
    with folder() as where, folder() as cache:
        first, second = (where / name for name in ("cold", "warm"))
        arguments = naics_training(where, SMALL)[:-1]
        return {
            "rows": SMALL,
            "cold": timed(*arguments, str(first), cache=cache),
            "warm": timed(*arguments, str(second), cache=cache),
        }


def ahead() -> dict[str, Any]:
    """Compile everything with ``hinet compile``, then run it again."""
    return cold_and_warm("compile")


CASES: dict[str, Case] = {"answers": answers, "demo": demo, "small training": small_training, "ahead": ahead}


if __name__ == "__main__":
    run_cases(__file__, "start", CASES)
