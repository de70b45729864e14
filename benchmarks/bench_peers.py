"""hinet and its peers from raw text to labels: how right, how fast, how large.

    HINET_DATA=folder python benchmarks/bench_peers.py [--data naics lshtc] [--peers hinet svm] [--threads 2]

Every peer runs alone in a fresh process, with word and character n-grams. The settings of each are chosen on
validation rows, once, and kept with the results; then it learns from training and validation rows, and answers the test
rows. A peer that takes longer than ``--limit`` seconds is recorded as such. Results join those in
``benchmarks/results/peers_<data>.json``; ``--report`` writes the tables and plots of the docs from them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from measure import RESULTS, save
from peers import report
from peers.catalogue import PEERS
from peers.data import LOADERS, SINGLE_WORDS

LIMIT = 1_800.0


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
        results: dict[str, Any] = json.loads(path.read_text())["results"] if path.exists() else {}
        for peer in arguments.peers:
            if not PEERS[peer].is_installed or (PEERS[peer].pretrained and name in SINGLE_WORDS):
                print(f"{name} {peer}: left out, not installed or not for texts without meaning")
                continue
            before = {} if arguments.choose else results.get(peer, {})
            results[peer] = _measured(name, peer, before, arguments)
            print(f"{name} {peer}: {json.dumps(results[peer])}", flush=True)
            save(f"peers_{name}", results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", nargs="+", choices=LOADERS, default=["icd"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds that each step of a peer may take")
    parser.add_argument("--choose", action="store_true", help="choose settings anew")
    parser.add_argument("--report", action="store_true", help="write tables and plots from the results")
    parser.add_argument("--step", choices=("choose", "measure"), help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, default={}, help=argparse.SUPPRESS)
    return parser.parse_args()


def _measured(data: str, peer: str, before: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Choose the settings of a peer, if that was not done before, then measure it with them."""
    choice = {"settings": PEERS[peer].choices[0]}
    if len(PEERS[peer].choices) > 1:
        choice = {"settings": before["settings"], "tried": before["tried"]} if "tried" in before else {}
        choice = choice or _in_process("choose", data, peer, {}, arguments)
    if "settings" not in choice:
        return choice
    found = _in_process("measure", data, peer, choice["settings"], arguments)
    return {**choice, **found, "threads": arguments.threads}


def _in_process(
    step: str, data: str, peer: str, settings: dict[str, Any], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Run a step in a fresh process; return what it found, or why it found nothing."""
    threads = str(arguments.threads)
    command = [sys.executable, __file__, "--step", step, "--data", data, "--peers", peer, "--threads", threads]
    limits = {f"{name}_NUM_THREADS": threads for name in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
    environment = {**os.environ, **limits, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as cache:  # no embedding was computed before
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
    """Be the fresh process of one step."""
    from peers.data import load
    from peers.measuring import chosen, measured

    from hinet.evaluation.comparison import peak_gb

    data, entry = load(arguments.data[0]), PEERS[arguments.peers[0]]
    if arguments.step == "choose":
        print(json.dumps(chosen(entry.kind, entry.choices, data, arguments.threads)))
        return
    found = measured(entry.kind(arguments.threads, **arguments.settings), data)
    print(json.dumps({**found, "peak_gb": peak_gb()}))


if __name__ == "__main__":
    main()
