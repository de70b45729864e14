"""Run benchmarks: each case alone in a fresh process, with its time and peak memory, saved with the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.evaluation.comparison import peak_gb
from hinet.metrics import expected_calibration_error

RESULTS = Path(__file__).parent / "results"
LONGEST = 4 * 3600.0  # maximum seconds per process
DATA = Path(os.environ.get("HINET_DATA", "data"))  # folder with the data sets

DRAWS = 200  # random outcomes of perfect probabilities

Case = Callable[[], dict[str, Any]]


class Stopwatch:
    """Measure wall-clock and CPU seconds since creation."""

    def __init__(self) -> None:
        self._start, self._processors = time.perf_counter(), time.process_time()

    @property
    def seconds(self) -> float:
        """Elapsed seconds, to the millisecond."""
        return round(time.perf_counter() - self._start, 3)

    @property
    def processor_seconds(self) -> float:
        """CPU seconds of this process, over all threads."""
        return round(time.process_time() - self._processors, 3)


def run_alone(script: str, case: str) -> dict[str, Any]:
    """Run one case of ``script`` in a fresh process; return its result with its peak memory in GB."""
    done = subprocess.run(
        [sys.executable, script, "--case", case], capture_output=True, text=True, check=False, timeout=LONGEST
    )
    if done.returncode:
        raise SystemExit(f"case {case} failed:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def answer_if_asked(cases: Mapping[str, Case]) -> None:
    """If this is the process of one case, run it, print its result, and exit."""
    if len(sys.argv) == 3 and sys.argv[1] == "--case":
        measured = cases[sys.argv[2]]()
        print(json.dumps({**measured, "peak_gb": peak_gb()}))
        raise SystemExit


def run_cases(script: str, name: str, cases: Mapping[str, Case]) -> dict[str, Any]:
    """Run all cases, or those named on the command line, and save each result when it is done. Return all results."""
    answer_if_asked(cases)
    path = RESULTS / f"{name}.json"
    results: dict[str, Any] = {}
    for case in sys.argv[1:] or cases:
        found = run_alone(script, case)
        print(f"{case:24} " + "  ".join(f"{name} {value}" for name, value in found.items()), flush=True)
        saved = json.loads(path.read_text())["results"] if path.exists() else {}  # another process may have added some
        results = {**saved, case: found}
        save(name, results)
    return results


def save(name: str, results: Mapping[str, Any]) -> None:
    """Write results as JSON under ``benchmarks/results``, with the machine and versions."""
    header = {
        "commit": commit(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "processor": _processor(),
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**header, "results": results}, indent=2, ensure_ascii=False) + "\n")
    print(f"saved {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def errors_by_chance(confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the calibration errors that these probabilities would show on as many rows if they were perfect."""
    random = np.random.default_rng(0)
    outcomes = (random.random(len(confidence)) < confidence for _ in range(DRAWS))
    return np.array([expected_calibration_error(confidence, right) for right in outcomes])


def commit() -> str:
    """Return the commit of the sources, marked if there are uncommitted changes."""
    described = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(described, capture_output=True, text=True, check=False, timeout=LONGEST)
    return done.stdout.strip()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
