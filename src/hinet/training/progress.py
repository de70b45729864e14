"""Progress of long work: a moving bar on a terminal, plain lines in a log, nothing where it is not wanted."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from hinet.training.loop import EpochRecord


class Progress(Protocol):
    """Hears of the start, of every batch and epoch, and of the end of a training run."""

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
        self._epochs = 0

    def started(self, epochs: int, rows: int) -> None:
        """Remember how many epochs there will be."""
        self._epochs = epochs

    def epoch_done(self, record: EpochRecord) -> None:
        """Write the line of an epoch."""
        self._stream.write(f"{self._prefix}{describe(record, self._epochs)}\n")
        self._stream.flush()


class RichProgress:
    """A bar that fills with the rows of all epochs, and a line for every epoch above it."""

    def __init__(self, name: str = "") -> None:
        from rich.console import Console
        from rich.progress import Progress as Bars

        self._bars = Bars(console=Console(stderr=True), transient=True)
        self._name = name
        self._epochs = 0

    def started(self, epochs: int, rows: int) -> None:
        """Show the bar."""
        self._epochs = epochs
        self._bars.start()
        self._task = self._bars.add_task(self._name or "training", total=epochs * rows)

    def advanced(self, rows: int) -> None:
        """Move the bar."""
        self._bars.advance(self._task, rows)

    def epoch_done(self, record: EpochRecord) -> None:
        """Write the line of an epoch above the bar."""
        prefix = f"{self._name}: " if self._name else ""
        self._bars.console.print(prefix + describe(record, self._epochs), highlight=False)

    def finished(self) -> None:
        """Take the bar away."""
        self._bars.stop()


def progress_for_terminal(name: str = "") -> Progress:
    """Return a bar if a person is watching, lines if not."""
    return RichProgress(name) if sys.stderr.isatty() else LineProgress(name)


def describe(record: EpochRecord, epochs: int) -> str:
    """Return an epoch as one line."""
    score = f"  valid {record.valid_score:.4f}" if record.valid_score is not None else ""
    return f"epoch {record.epoch}/{epochs}  cost {record.cost:.4f}{score}  {record.seconds:.1f} s"
