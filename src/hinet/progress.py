"""Progress of long operations: a bar on a terminal, lines in a log, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

from hinet.errors import counted

SECONDS_BETWEEN_LINES = 10.0


@dataclass(frozen=True)
class EpochRecord:
    """The result of one training epoch."""

    epoch: int
    epochs: int  # planned in total
    cost: float
    valid_score: float | None  # accuracy on validation rows
    seconds: float
    rate_share: float  # fraction of the full learning rate at the last step
    part: str = ""  # the expert, where experts are trained separately


class Progress:
    """Callbacks of a training run; here they do nothing."""

    def message(self, text: str) -> None:
        """Called with a note for the user, such as the memory that the run needs."""

    def started(self, epochs: int, rows: int) -> None:
        """Called when training starts, with the planned epochs and the rows of each."""

    def advanced(self, rows: int) -> None:
        """Called with the number of rows processed since the last call."""

    def epoch_done(self, record: EpochRecord) -> None:
        """Called after each epoch."""

    def finished(self) -> None:
        """Called when training ends or is interrupted."""


class SilentProgress(Progress):
    """Shows nothing."""


class LineProgress(Progress):
    """Writes a line for every message and epoch."""

    def __init__(self, name: str = "", stream: TextIO | None = None) -> None:
        self._prefix = f"{name}: " if name else ""
        self._stream = stream or sys.stderr

    def message(self, text: str) -> None:
        """Write a line."""
        self._stream.write(f"{self._prefix}{text}\n")
        self._stream.flush()

    def epoch_done(self, record: EpochRecord) -> None:
        """Write a line for the epoch."""
        self.message(format_epoch(record))


class RichProgress(LineProgress):
    """Shows a progress bar over the rows of all epochs, with a line for every epoch above it."""

    def __init__(self, name: str = "") -> None:
        from rich.console import Console
        from rich.progress import Progress as Bars

        super().__init__(name)
        self._bars = Bars(console=Console(stderr=True), transient=True)
        self._name = name

    def message(self, text: str) -> None:
        """Write a line above the bar."""
        self._bars.console.print(f"{self._prefix}{text}", highlight=False)

    def started(self, epochs: int, rows: int) -> None:
        """Show the bar."""
        self._bars.start()
        self._task = self._bars.add_task(self._name or "training", total=epochs * rows)

    def advanced(self, rows: int) -> None:
        """Move the bar."""
        self._bars.advance(self._task, rows)

    def finished(self) -> None:
        """Remove the bar."""
        self._bars.stop()


def progress_for_terminal(name: str = "", *, quiet: bool = False) -> Progress:
    """Return a progress bar if standard error is a terminal, else lines; nothing is shown with ``quiet``."""
    if quiet:
        return SilentProgress()
    return RichProgress(name) if sys.stderr.isatty() else LineProgress(name)


def format_epoch(record: EpochRecord) -> str:
    """Return an epoch as one line."""
    score = f"  valid accuracy {100 * record.valid_score:.1f}%" if record.valid_score is not None else ""
    part = f"{record.part}  " if record.part else ""
    return f"{part}epoch {record.epoch}/{record.epochs}  cost {record.cost:.4f}{score}  {record.seconds:.1f} s"


class RowCounter:
    """Counts processed rows: one updated line on a terminal, or a line every few seconds in a log, and a final line.

    ``has_rate`` adds the rows per second.
    """

    def __init__(self, quiet: bool, *, has_rate: bool) -> None:
        self._quiet, self._stream, self._has_rate = quiet, sys.stderr, has_rate
        self._is_terminal = self._stream.isatty()
        self._start = self._last_update = time.monotonic()
        self.rows = 0

    def advanced(self, rows: int) -> None:
        """Count more processed rows."""
        self.rows += rows
        now = time.monotonic()
        if not self._quiet and now - self._last_update >= (0.2 if self._is_terminal else SECONDS_BETWEEN_LINES):
            self._last_update = now
            self._stream.write(f"\r{self}\x1b[K" if self._is_terminal else f"{self}\n")
            self._stream.flush()

    def end_line(self) -> None:
        """End the updated line of a terminal, so that a message can follow."""
        if self._is_terminal and not self._quiet:
            self._stream.write("\n")

    def finished(self) -> None:
        """Write the final count."""
        if not self._quiet:
            self._stream.write(f"\r{self}\x1b[K\n" if self._is_terminal else f"{self}\n")
            self._stream.flush()

    def __str__(self) -> str:
        seconds = time.monotonic() - self._start
        rate = f", {self.rows / max(seconds, 1e-9):,.0f} per second" if self._has_rate else ""
        return f"{counted(self.rows, 'row')} in {seconds:.1f} s{rate}"


@contextmanager
def counter_for_terminal(quiet: bool, *, has_rate: bool = True) -> Iterator[RowCounter]:
    """Yield a counter that writes the final count unless the block raises."""
    counter = RowCounter(quiet, has_rate=has_rate)
    yield counter
    counter.finished()
