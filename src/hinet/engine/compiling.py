"""Kernels compiled in worker processes in parallel, as numba compiles one at a time in a process.

A training run lets workers compile the kernels that it will need while it reads and vectorises rows; ``hinet compile``
compiles all of them. Kernels that a worker fails to compile are compiled where they are needed. Run as a program,
``python -m hinet.engine.compiling``, this module is a worker: it reads names of kernels, one per line, and writes each
name again when the kernel is compiled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from queue import SimpleQueue
from threading import Condition, Lock, Thread
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp

from hinet.compiled import Kernel, claimed_by, functions_of, interpreting
from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.data.text import TextFeatures, TextSettings
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine.model.experts import EXPERTS
from hinet.engine.model.fused import FusedModel, with_merged
from hinet.engine.model.groups import Targets
from hinet.engine.model.kernels import column_digests, merge_columns
from hinet.engine.search.best_first import best_traces
from hinet.engine.search.predictor import Search
from hinet.engine.search.restricted import RestrictedSearch
from hinet.engine.search.scoring_kernels import expert_logits
from hinet.engine.settings import EngineSettings
from hinet.engine.training.fit import fit
from hinet.engine.training.relearning import option_targets, taught
from hinet.engine.training.rows import ColumnDigests, ValidationRows
from hinet.engine.training.target_kernels import mixed_cost
from hinet.parameters import resolve_threads
from hinet.taxonomy import Layers, Taxonomy

Calls: TypeAlias = dict[str, list[tuple[Kernel, tuple[Any, ...]]]]

WORKER = (sys.executable, "-P", "-m", "hinet.engine.compiling")  # -P: nothing of the current folder is imported
MAX_WORKERS = 3  # next to a training run, which compiles kernels that they have not begun

TEXTS = ("rye bread", "white bread", "whole milk", "toy car", "ähre", "rye milk")
EDGES = [("food", "bread"), ("food", "milk"), ("toys", "car"), ("toys", "train")]
SECOND_PARENT = [("food", "train"), ("car", "wheel"), ("train", "wheel")]
LABELS = ("bread", "milk", "food", "car", "train", "milk")
SMALL = EngineSettings(members=1, width=2, flat_width=2, deep_epochs=1, wide_epochs=1, threads=1)
WITH_LABELS = replace(SMALL, flat=True, margin=True)  # also trains the experts on labels


def kernel_size(kernel: Kernel) -> int:
    """Return the size of the bytecode of a kernel with the functions it calls."""
    return sum(len(function.__code__.co_code) for function in functions_of(kernel.py_func))


def training_kernels() -> list[Kernel]:
    """Return the kernels that training on a tree needs, the largest first."""
    shared = [best_traces, expert_logits, mixed_cost, column_digests, merge_columns]
    own = [kernel for record in EXPERTS for kernel in resolve_name(record.training).kernels]
    return sorted([*shared, *own], key=kernel_size, reverse=True)


class Workers:
    """Processes that compile kernels by name, in the given order; ``on_done`` is called with each finished name."""

    def __init__(self, names: Iterable[str], count: int, on_done: Callable[[str], None] = lambda name: None) -> None:
        self._waiting, self._running, self._on_done = list(names), set[str](), on_done
        self.left: list[str] = []  # kernels that were not compiled
        self._changed = Condition()
        self._threads = [Thread(target=self._feed, daemon=True) for _ in range(min(count, len(self._waiting)))]
        for thread in self._threads:
            thread.start()

    def claim(self, name: str) -> None:
        """Leave a kernel to this process, or wait for the worker that has begun it."""
        with self._changed:
            if name in self._waiting:
                self._waiting.remove(name)
            self._changed.wait_for(lambda: name not in self._running)

    def join(self) -> None:
        """Wait for all workers; kernels that none of them began are left too."""
        for thread in self._threads:
            thread.join()
        self.left += self._waiting

    def _feed(self) -> None:
        with suppress(OSError), _worker() as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for name in self._next_names():
                process.stdin.write(f"{name}\n")
                process.stdin.flush()
                if not process.stdout.readline():
                    self.left.append(name)
                    return

    def _next_names(self) -> Iterator[str]:
        """Yield waiting kernels, each marked as running until the next one is requested."""
        while True:
            with self._changed:
                if not self._waiting:
                    return
                name = self._waiting.pop(0)
                self._running.add(name)
                self._changed.notify_all()
            try:
                yield name
            finally:
                with self._changed:
                    self._running.discard(name)
                    self._changed.notify_all()
                self._on_done(name)


def _worker() -> subprocess.Popen[str]:
    """Start a process that imports this package; it ends when its input ends, and so with this process."""
    home = str(Path(__file__).parents[2])
    paths = [home, *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        WORKER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


_once = Lock()


def compile_for_training() -> None:
    """Let other processes compile the kernels of training, once, if some are not cached and there is a free core.

    A program frozen into one file has no interpreter to start.
    """
    spare = 0 if getattr(sys, "frozen", False) else min(resolve_threads(None) - 1, MAX_WORKERS)
    if spare > 0 and _once.acquire(blocking=False):
        names = [kernel.__name__ for kernel in training_kernels() if not kernel.is_cached()]
        if names:
            claimed_by(Workers(names, spare).claim)


def compile_everything(processes: int) -> Iterator[tuple[str, int]]:
    """Compile every kernel for all argument types; yield the name of each finished kernel, and their number.

    Kernels that the workers leave are compiled in this process, so that errors are raised here.
    """
    known = calls()
    largest_first = sorted(known, key=lambda name: -kernel_size(known[name][0][0]))
    done: SimpleQueue[str | None] = SimpleQueue()
    workers = Workers(largest_first, processes, done.put)

    def report_end() -> None:
        workers.join()
        done.put(None)

    Thread(target=report_end, daemon=True).start()
    for name in iter(done.get, None):
        if name not in workers.left:
            yield name, len(known)
    for name in workers.left:
        for kernel, types in known[name]:
            kernel.compiled.compile(types)
        yield name, len(known)


def calls() -> Calls:
    """Return every kernel by name with all its argument types, recorded while tiny models are trained and used."""
    kernels: dict[str, dict[tuple[Any, ...], Kernel]] = {}

    def listener(kernel: Kernel, arguments: tuple[Any, ...]) -> None:
        from numba import typeof

        kernels.setdefault(kernel.__name__, {})[tuple(map(typeof, arguments))] = kernel

    with interpreting(listener):
        rows = _read_texts()
        _train_and_search(EDGES, rows)
        _train_and_search(EDGES + SECOND_PARENT, rows)
        _train_and_search_sets(rows)
    return {name: [(kernel, types) for types, kernel in by_types.items()] for name, by_types in kernels.items()}


def _read_texts() -> Any:
    settings = TextSettings(min_df=1, char_ngrams=(3, 4))
    TextFeatures.fit_chunks([TEXTS, TEXTS[:2]], settings, threads=1)
    hashed, _ = TextFeatures.fit_transform(TEXTS, TextSettings(min_df=1, hash_bits=4, keep_names=False), threads=1)
    hashed.transform(TEXTS)
    TokenVectors.of(TEXTS, np.ones((len(TEXTS), 2), np.float32)).sums(TEXTS)
    features, rows = TextFeatures.fit_transform(TEXTS, settings, threads=1)
    features.transform(TEXTS)
    return rows


def _train_and_search(edges: list[tuple[str, str]], rows: Any) -> None:
    layers = Layers.of(Taxonomy.from_edges(edges))
    traces = Traces.encode(layers, list(LABELS))
    wide = sp.csr_array((rows.data, rows.indices.astype(np.int64), rows.indptr.astype(np.int64)), shape=rows.shape)
    model = fit(rows, traces, SMALL, valid=ValidationRows(wide, traces), watch=True)
    if layers.taxonomy.is_tree:
        fit(rows, traces, WITH_LABELS)
        matrix = SparseMatrix.of(rows)  # fit checks for redundant features only with many rows
        with_merged(matrix, ColumnDigests.of(matrix, rows.shape[1]).merged(), rows.shape[1])
        _relearn(model, rows)
    search = _searched(model, rows, traces)
    search.labels(rows)
    search.top_labels(rows, 2)
    search.deepest_confident(rows, 0.5)
    search.expected_f1(rows)
    food = np.isin(model.layers.taxonomy.ids, ["food", "bread"])
    RestrictedSearch.of(search, food).traces(rows, 2)


def _train_and_search_sets(rows: Any) -> None:
    layers = Layers.of(Taxonomy.from_edges(EDGES + SECOND_PARENT), multilabel=True)
    traces = Traces.encode_sets(layers, [{label, "car"} for label in LABELS])
    _searched(fit(rows, traces, WITH_LABELS, valid=ValidationRows(rows, traces), watch=True), rows, traces)


def _searched(model: FusedModel, rows: Any, traces: Traces) -> Search:
    search = Search(model, threads=1)
    search.traces(rows, 2, least=0.01)
    search.label_probabilities(rows)
    search.logits_along(rows, Targets.of(traces))
    return search


def _relearn(model: FusedModel, rows: Any) -> None:
    layers = model.layers
    targets = option_targets(Search(model).traces(rows).traces, layers, np.arange(len(layers.taxonomy)))
    taught(model, np.ones(model.groups.rows, bool), targets, SparseMatrix.of(rows))


def main() -> None:
    """Compile the kernels named on standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # left to the parent process, which ends the input
    known, names = calls(), SimpleQueue[str]()
    Thread(target=_read_names, args=(names,), daemon=True).start()
    while True:
        name = names.get()
        for kernel, types in known.get(name, ()):
            kernel.compiled.compile(types)
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


def _read_names(names: SimpleQueue[str]) -> None:
    """Read names; end the process when the input ends, even during compilation, but not while a file is written."""
    from hinet.machine_code import SAVING

    with open(0, "rb", buffering=0, closefd=False) as stream:  # without a lock that an exit would wait for
        for line in stream:
            names.put(line.decode().strip())
    with SAVING:
        os._exit(0)


if __name__ == "__main__":
    main()
