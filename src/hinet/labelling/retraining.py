"""Training in the background: a process of its own, started when there are enough new labels, retried if it fails."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from time import monotonic
from typing import IO, NamedTuple

from hinet.errors import HiNetError
from hinet.labelling.folder import ProjectFolder
from hinet.parameters import resolve_threads

PROGRAM = (sys.executable, "-P", "-m", "hinet.labelling.training")  # -P: nothing of the current folder is imported
MIN_LABELS, MAX_LABELS = 25, 1_000  # new labels that start a training
GROWTH = 4  # a training starts when the labels have grown by a quarter
IDLE_SECONDS = 60.0  # without new labels, after which the last ones are trained on
RETRY_SECONDS, MAX_RETRY_SECONDS = 60.0, 3_600.0  # time until a failed training is tried again, doubled each time
STOP_SECONDS = 10.0
NICENESS = 10
MAX_REASON = 500  # characters


class Running(NamedTuple):
    """A training that runs."""

    started: str
    rows: int
    process: subprocess.Popen[bytes]
    errors: IO[bytes]

    def stop(self) -> None:
        """End the process, if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.errors.close()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()


def labels_to_wait_for(rows: int) -> int:
    """Return the number of new labels that starts the next training of a model that knows some labelled rows.

    >>> [labels_to_wait_for(rows) for rows in (0, 100, 1_000, 19_000)]
    [25, 25, 250, 1000]
    """
    return min(max(MIN_LABELS, rows // GROWTH), MAX_LABELS)


def training_threads() -> int:
    """Return the number of threads for training: all but one, which answers."""
    return max(1, resolve_threads(None) - 1)


def train_first(folder: ProjectFolder) -> None:
    """Train the first model in a process of its own, and wait for it; raise HiNetError if it fails."""
    running = _started(folder, 0, resolve_threads(None), niceness=0)
    try:
        running.process.wait()
        running.errors.seek(0)
        reason = running.errors.read()
    finally:
        running.stop()
    if running.process.returncode:
        raise HiNetError(_reason(running.process.returncode, reason))


def _started(folder: ProjectFolder, rows: int, threads: int, niceness: int) -> Running:
    """Start a training; it ends when its standard input is closed, or this process ends."""
    started = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    errors = tempfile.TemporaryFile()  # noqa: SIM115 open as long as the process
    try:
        process = subprocess.Popen(
            [*PROGRAM, str(folder.path.resolve()), str(threads), str(niceness)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors,
        )  # fmt: skip
    except OSError as error:
        errors.close()
        raise HiNetError(f"training cannot start: {error}") from None
    return Running(started, rows, process, errors)


class Retrainer:
    """Starts trainings and watches them."""

    def __init__(self, folder: ProjectFolder, clock: Callable[[], float] = monotonic) -> None:
        self._folder, self._clock = folder, clock
        self._running: Running | None = None
        self._failures, self._not_before = 0, 0.0
        self._state: object = None  # state of the labels when the last training started
        self.problem: str | None = None  # why the last training failed

    @property
    def running(self) -> Running | None:
        """The training that runs, if one does."""
        return self._running

    def may_start(self, state: object) -> bool:
        """Return whether no training runs, the last one did not fail just now, or end well with these labels."""
        has_news = (
            self.problem is not None or state != self._state
        )  # a model that cannot be loaded is not trained again
        return self._running is None and has_news and self._clock() >= self._not_before

    def start(self, rows: int, state: object) -> None:
        """Start a training on a number of labelled rows."""
        self._state = state
        try:
            self._running = _started(self._folder, rows, training_threads(), NICENESS)
        except HiNetError as error:
            self._fail(str(error))

    def finished(self) -> bool:
        """Return whether a training has just ended well; a failure is kept as ``problem``."""
        if self._running is None or self._running.process.poll() is None:
            return False
        code, errors = self._running.process.returncode, self._running.errors
        errors.seek(0)
        reason = errors.read()
        self.close()
        if code:
            self._fail(_reason(code, reason))
            return False
        self.problem, self._failures = None, 0
        return True

    def _fail(self, reason: str) -> None:
        self.problem = reason
        wait = min(RETRY_SECONDS * 2**self._failures, MAX_RETRY_SECONDS)
        self._failures, self._not_before = self._failures + 1, self._clock() + wait

    def close(self) -> None:
        """Stop a training that runs; the old model stays."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()


def _reason(code: int, errors: bytes) -> str:
    """Return why a training failed: the last line that it wrote."""
    lines = errors.decode(errors="replace").strip().splitlines()
    reason = lines[-1] if lines else "no reason is known"
    ended = f"was ended by signal {-code}" if code < 0 else "failed"
    return f"training {ended}: {reason}"[:MAX_REASON]
