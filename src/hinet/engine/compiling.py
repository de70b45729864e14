"""Kernels compiled in processes of their own, side by side: numba compiles one at a time in a process.

A training run has others compile what it will need, while it reads and vectorises; ``hinet compile`` has everything
compiled. A worker that fails changes nothing: what it leaves is compiled where it is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Condition, Lock, Thread

from hinet.compiled import Kernel, claimed_by, functions_of
from hinet.engine.model.column_kernels import column_digests, mean_sizes, merge_columns
from hinet.engine.search.scoring_kernels import expert_logits
from hinet.engine.search.search_kernels import best_traces
from hinet.engine.training.deep_kernels import train_deep, train_flat
from hinet.engine.training.target_kernels import mixed_cost, most_of_a_row
from hinet.engine.training.wide_kernels import count_weights, prune_weights, train_groups
from hinet.parameters import resolve_threads

WORKER = (sys.executable, "-P", "-m", "hinet.engine.every_kernel")  # -P: nothing of the current folder is imported
MOST_WORKERS = 3  # beside a training run, which compiles what they have not begun
FOR_TRAINING: tuple[Kernel, ...] = (
    best_traces,
    train_groups,
    train_deep,
    expert_logits,
    mixed_cost,
    train_flat,
    prune_weights,
    count_weights,
    most_of_a_row,
    mean_sizes,
    column_digests,
    merge_columns,
)  # of a tree, in about the order of need, those that take long first


class Workers:
    """Processes that compile kernels by name, in the order given; ``on_done`` is called with each that is done with."""

    def __init__(self, names: Iterable[str], count: int, on_done: Callable[[str], None] = lambda name: None) -> None:
        self._waiting, self._running, self._on_done = list(names), set[str](), on_done
        self.left: list[str] = []  # what a worker began and did not compile
        self._changed = Condition()
        self._threads = [Thread(target=self._feed, daemon=True) for _ in range(min(count, len(self._waiting)))]
        for thread in self._threads:
            thread.start()

    def claim(self, name: str) -> None:
        """Leave a kernel to this process, or wait until the worker that has begun it is done."""
        with self._changed:
            if name in self._waiting:
                self._waiting.remove(name)
            self._changed.wait_for(lambda: name not in self._running)

    def join(self) -> None:
        """Wait until all is done; what no worker began is left too."""
        for thread in self._threads:
            thread.join()
        self.left += self._waiting

    def _feed(self) -> None:
        with suppress(OSError), _worker() as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for name in self._taken():
                process.stdin.write(f"{name}\n")
                process.stdin.flush()
                if not process.stdout.readline():
                    self.left.append(name)
                    return

    def _taken(self) -> Iterator[str]:
        """Yield kernels that wait, each marked as begun until the next is asked for."""
        while True:
            with self._changed:
                if not self._waiting:
                    return
                name = self._waiting.pop(0)
                self._running.add(name)
            try:
                yield name
            finally:
                with self._changed:
                    self._running.discard(name)
                    self._changed.notify_all()
                self._on_done(name)


def _worker() -> subprocess.Popen[str]:
    """Start a process that imports this very package; it ends when its input does, and so when this process does."""
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
    """Have other processes compile what training needs, if it is not kept and there is a core to spare; once.

    A program that is frozen into one file has no interpreter to start.
    """
    spare = 0 if getattr(sys, "frozen", False) else min(resolve_threads(None) - 1, MOST_WORKERS)
    if spare > 0 and _once.acquire(blocking=False):
        names = [kernel.__name__ for kernel in FOR_TRAINING if not kernel.is_kept()]
        if names:
            claimed_by(Workers(names, spare).claim)


def compile_everything(processes: int) -> Iterator[tuple[str, int]]:
    """Compile every kernel for every way it is called; yield each name when it is done, and how many there are.

    What the workers leave is compiled in this process, so that what is wrong is raised here.
    """
    from hinet.engine.every_kernel import calls

    known = calls()
    largest_first = sorted(known, key=lambda name: -_size(known[name][0][0]))
    done: SimpleQueue[str | None] = SimpleQueue()
    workers = Workers(largest_first, processes, done.put)

    def tell_end() -> None:
        workers.join()
        done.put(None)

    Thread(target=tell_end, daemon=True).start()
    for name in iter(done.get, None):
        if name not in workers.left:
            yield name, len(known)
    for name in workers.left:
        for kernel, types in known[name]:
            kernel.compiled.compile(types)
        yield name, len(known)


def _size(kernel: Kernel) -> int:
    """Return the size of the code of a kernel, with the functions it calls."""
    return sum(len(function.__code__.co_code) for function in functions_of(kernel.py_func))
