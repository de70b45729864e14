"""Compare hinet with its peers, from raw text to labels: accuracy, speed and size.

    HINET_DATA=folder python benchmarks/bench_peers.py [--data naics lshtc] [--peers hinet svm] [--threads 2]

Every peer runs alone in a fresh process, with word and character n-grams. Its settings are chosen on validation rows
and saved with the results, so that a later run tries only new ones. It is then trained on training and validation rows
and predicts the test rows. A step that takes longer than ``--limit`` seconds is recorded as unfinished. Results are
added to ``benchmarks/results/peers_<data>.json``; ``--report`` writes the tables and plots of the docs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measure import RESULTS, commit, save
from peers import report
from peers.catalogue import PEERS
from peers.data import LOADERS, SINGLE_WORDS

LIMIT = 1_800.0
OUTCOMES = ("accuracy", "error", "failed", "did_not_finish", "limit_seconds")  # stored next to the tried settings


def main() -> None:
    arguments = _arguments()
    if arguments.report:
        report.write()
        return
    if arguments.step:
        _run_step(arguments)
        return
    for name in arguments.data:
        path = RESULTS / f"peers_{name}.json"
        results = _earlier_results(path)
        for peer in arguments.peers:
            if not PEERS[peer].is_installed or (PEERS[peer].pretrained and name in SINGLE_WORDS):
                print(f"{name} {peer}: skipped, not installed or not applicable to texts without meaning")
                continue
            before = {} if arguments.choose else results.get(peer, {})
            results[peer] = _measured(name, peer, before, arguments)
            print(f"{name} {peer}: {json.dumps(results[peer])}", flush=True)
            save(f"peers_{name}", results)


def _earlier_results(path: Path) -> dict[str, Any]:
    """Return the results in a file, each with the commit it was measured at."""
    if not path.exists():
        return {}
    earlier = json.loads(path.read_text())
    return {peer: {"commit": earlier["commit"], **row} for peer, row in earlier["results"].items()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", choices=LOADERS, default=["icd"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=LIMIT, help="maximum seconds per step of a peer")
    parser.add_argument("--choose", action="store_true", help="try all settings again")
    parser.add_argument("--report", action="store_true", help="write tables and plots from the results")
    parser.add_argument("--step", choices=("choose", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, default={}, help=argparse.SUPPRESS)
    return parser.parse_args()


def _measured(data: str, peer: str, before: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Choose the settings of a peer, if there is a choice, and measure it with them."""
    choices = PEERS[peer].choices
    choice: dict[str, Any] = {"settings": choices[0]}
    if len(choices) > 1:
        tried = before.get("tried", [])
        for settings in choices:
            if settings not in map(_settings, tried):
                tried = [*tried, {**settings, **_in_process("choose", data, peer, settings, arguments)}]
        best = max(tried, key=lambda row: row.get("accuracy", 0.0))
        if "accuracy" not in best:
            return {"did_not_finish": "choose", "limit_seconds": arguments.limit, "tried": tried}
        choice = {"settings": _settings(best), "tried": tried}
    found = _in_process("measure", data, peer, choice["settings"], arguments)
    return {**choice, **found, "threads": arguments.threads, "commit": commit()}


def _settings(tried: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tried.items() if name not in OUTCOMES}


def _in_process(
    step: str, data: str, peer: str, settings: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run a step in a fresh process and return its results, or why there are none."""
    threads = str(arguments.threads)
    command = [sys.executable, __file__, "--step", step, "--data", data, "--peers", peer, "--threads", threads]
    limits = {f"{name}_NUM_THREADS": threads for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    environment = {**os.environ, **limits, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as cache:  # empty, so that no embedding is cached
        try:
            done = subprocess.run(
                [*command, "--settings", json.dumps(settings)],
                capture_output=True, text=True, check=False, timeout=arguments.limit,
                env={**environment, "XDG_CACHE_HOME": cache},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"did_not_finish": step, "limit_seconds": arguments.limit}
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {"failed": step, "error": done.stderr.strip().splitlines()[-1][:300] if done.stderr else "killed"}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _run_step(arguments: argparse.Namespace) -> None:
    """Run one step; this is the entry point of the fresh process."""
    from peers.data import load
    from peers.measuring import measured, validation_accuracy

    from hinet.evaluation.comparison import peak_gb

    data, entry = load(arguments.data[0]), PEERS[arguments.peers[0]]
    peer = entry.kind(arguments.threads, **arguments.settings)
    if arguments.step == "choose":
        print(json.dumps(validation_accuracy(peer, data)))
        return
    found = measured(peer, data)
    print(json.dumps({**found, "peak_gb": peak_gb()}))


if __name__ == "__main__":
    main()
