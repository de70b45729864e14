"""Progress of long work: a moving bar on a terminal, plain lines in a log, nothing where it is not wanted."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class EpochRecord:
    """What one epoch of training did."""

    epoch: int
    epochs: int  # that are planned
    cost: float
    valid_score: float | None  # accuracy on validation rows
    seconds: float
    rate_share: float  # of the full learning rates, at its last step
    part: str = ""  # which of several experts, where each is trained by itself


class Progress(Protocol):
    """Hears of the start, of every batch and epoch, and of the end of a training run."""

    def said(self, text: str) -> None:
        """Hear something worth knowing, such as the memory a run will take."""

    def started(self, epochs: int, rows: int) -> None:
        """Hear that a run of so many epochs over so many rows begins."""

    def advanced(self, rows: int) -> None:
        """Hear that so many more rows of the epoch are done."""

    def epoch_done(self, record: EpochRecord) -> None:
        """Hear that an epoch is complete."""

    def finished(self) -> None:
        """Hear that the run is over, or was broken off."""


class SilentProgress:
    """Says nothing."""

    def said(self, text: str) -> None:
        """Say nothing of it."""

    def started(self, epochs: int, rows: int) -> None:
        """Say nothing of the start."""

    def advanced(self, rows: int) -> None:
        """Say nothing of batches."""

    def epoch_done(self, record: EpochRecord) -> None:
        """Say nothing of epochs."""

    def finished(self) -> None:
        """Say nothing of the end."""


class LineProgress(SilentProgress):
    """A line for every epoch."""

    def __init__(self, name: str = "", stream: TextIO | None = None) -> None:
        self._prefix = f"{name}: " if name else ""
        self._stream = stream or sys.stderr

    def said(self, text: str) -> None:
        """Write it as a line."""
        self._stream.write(f"{self._prefix}{text}\n")
        self._stream.flush()

    def epoch_done(self, record: EpochRecord) -> None:
        """Write the line of an epoch."""
        self._stream.write(f"{self._prefix}{describe(record)}\n")
        self._stream.flush()


class RichProgress:
    """A bar that fills with the rows of all epochs, and a line for every epoch above it."""

    def __init__(self, name: str = "") -> None:
        from rich.console import Console
        from rich.progress import Progress as Bars

        self._bars = Bars(console=Console(stderr=True), transient=True)
        self._name = name

    def said(self, text: str) -> None:
        """Write it above the bar."""
        self._bars.console.print(f"{self._name}: {text}" if self._name else text, highlight=False)

    def started(self, epochs: int, rows: int) -> None:
        """Show the bar."""
        self._bars.start()
        self._task = self._bars.add_task(self._name or "training", total=epochs * rows)

    def advanced(self, rows: int) -> None:
        """Move the bar."""
        self._bars.advance(self._task, rows)

    def epoch_done(self, record: EpochRecord) -> None:
        """Write the line of an epoch above the bar."""
        prefix = f"{self._name}: " if self._name else ""
        self._bars.console.print(prefix + describe(record), highlight=False)

    def finished(self) -> None:
        """Take the bar away."""
        self._bars.stop()


def progress_for_terminal(name: str = "") -> Progress:
    """Return a bar if a person is watching, lines if not."""
    return RichProgress(name) if sys.stderr.isatty() else LineProgress(name)


def describe(record: EpochRecord) -> str:
    """Return an epoch as one line."""
    score = f"  valid accuracy {100 * record.valid_score:.1f}%" if record.valid_score is not None else ""
    part = f"{record.part}  " if record.part else ""
    return f"{part}epoch {record.epoch}/{record.epochs}  cost {record.cost:.4f}{score}  {record.seconds:.1f} s"


class RowCounter:
    """Counts rows that are done: a moving line on a terminal, now and then a line in a log, and a last one."""

    def __init__(self, quiet: bool = False, stream: TextIO | None = None) -> None:
        self._quiet, self._stream = quiet, stream or sys.stderr
        self._moving = self._stream.isatty()
        self._start = self._said = time.monotonic()
        self.rows = 0

    def advanced(self, rows: int) -> None:
        """Hear that so many more rows are done."""
        self.rows += rows
        now = time.monotonic()
        if not self._quiet and now - self._said >= (0.2 if self._moving else SECONDS_BETWEEN_LINES):
            self._said = now
            self._stream.write(f"\r{self}\x1b[K" if self._moving else f"{self}\n")
            self._stream.flush()

    def finished(self) -> None:
        """Say how many rows there were."""
        if not self._quiet:
            self._stream.write(f"\r{self}\x1b[K\n" if self._moving else f"{self}\n")
            self._stream.flush()

    def __str__(self) -> str:
        seconds = time.monotonic() - self._start
        rows = "1 row" if self.rows == 1 else f"{self.rows:,} rows"
        return f"{rows} in {seconds:.1f} s, {self.rows / max(seconds, 1e-9):,.0f} a second"


@contextmanager
def counter_for_terminal(quiet: bool) -> Iterator[RowCounter]:
    """Yield a counter that tells of the end if it is a good one."""
    counter = RowCounter(quiet)
    yield counter
    counter.finished()
