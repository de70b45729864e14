"""A labelling project that people work on: its rows, labels and queue, and the training of its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from hinet.classifier.fitted import Fitted
from hinet.errors import FileError
from hinet.labelling.agreement import Agreement, agreement, independent_labels
from hinet.labelling.folder import ProjectFolder
from hinet.labelling.ledger import Ledger
from hinet.labelling.progress import Progress, progress
from hinet.labelling.queue import Lent, Queue
from hinet.labelling.retraining import IDLE_SECONDS, Retrainer, labels_to_wait_for
from hinet.labelling.scorer import Scorer
from hinet.labelling.store import AddedRows, Label, LabelStore
from hinet.labelling.training import TrainedOn
from hinet.taxonomy import Taxonomy


class Change(NamedTuple):
    """Change of the label that counts for a row, after a label, skip or undo."""

    before: Label | None
    after: Label | None


class Project:
    """A project; one process at a time has it. Writing methods are for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.folder = ProjectFolder(path)
        self.settings = self.folder.settings()
        self._open = ExitStack()
        try:
            self._open.enter_context(self.folder.locked())
            if not self.folder.has_model:
                raise FileError(path, f"has no model yet; train it: hinet start {path}")
            self.store = LabelStore.open(self.folder.database)
            self._open.callback(self.store.close)
            self.texts = self.store.texts()
            self.ledger = Ledger(self.store.labels())
        except BaseException:
            self._open.close()
            raise
        self.queue = Queue(len(self.texts), self.ledger, self.settings.seed)
        self.lock = self.queue.lock
        self.scorer = Scorer(self.queue, self.texts)
        self.retrainer = Retrainer(self.folder)
        self.trained_on = TrainedOn(0, 0, "")
        self._trained: tuple[TrainedOn, dict[int, Label]] = self.trained_on, {}
        self._last_change = monotonic()
        self._progress: tuple[tuple[int, int], tuple[Progress, Agreement | None]] | None = None

    def close(self) -> None:
        """Stop the background work, and release the folder."""
        self.retrainer.close()
        self.scorer.close()
        self._open.close()

    @property
    def name(self) -> str:
        """The name of the project and of its model."""
        return self.folder.name

    # The model

    def use_model(self, manifest: Mapping[str, Any], fitted: Fitted) -> None:
        """Rank the rows by a model, and count what it was trained on."""
        self.trained_on = TrainedOn.of(manifest)
        self.scorer.wake(str(manifest["blake2b"]), fitted)

    def to_remember(self, manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the texts and nodes of labels that a model was not trained on, the oldest first."""
        trained_on = TrainedOn.of(manifest)
        with self.lock:
            before = self._labels_of(trained_on)
            labels = sorted(label for row, label in self.ledger.counted.items() if before.get(row) != label)
        return [(self.text(label.row), label.nodes[0]) for label in labels if len(label.nodes) == 1]

    @property
    def new_labels(self) -> int:
        """Number of rows whose label is new to the model, or no longer counts."""
        with self.lock:
            before, now = self._labels_of(self.trained_on), self.ledger.counted
            return sum(before.get(row) != now.get(row) for row in before.keys() | now.keys())

    def _labels_of(self, trained_on: TrainedOn) -> dict[int, Label]:
        """Return the labels that a model was trained on, by row."""
        if self._trained[0] != trained_on:
            self._trained = trained_on, self.ledger.counted_at(trained_on.last, trained_on.undone)
        return self._trained[1]

    @property
    def next_training(self) -> int:
        """Number of new labels that starts the next training."""
        return labels_to_wait_for(self.trained_on.rows)

    def retrain(self) -> bool:
        """Start a training if one is due; return whether one has just ended well."""
        if self.retrainer.finished():
            return True
        new = self.new_labels
        is_idle = monotonic() - self._last_change >= IDLE_SECONDS
        if (new >= self.next_training or (new and is_idle)) and self.retrainer.may_start(self.ledger.revision):
            self.retrainer.start(len(self.ledger.counted), self.ledger.revision)
        return False

    # Rows

    def has_row(self, row: int) -> bool:
        """Return whether there is a row."""
        return 1 <= row <= len(self.texts)

    def text(self, row: int) -> str:
        """Return the text of a row."""
        return self.texts[row - 1]

    def add_texts(self, texts: Sequence[str]) -> AddedRows:
        """Add rows, unless they are there already."""
        added = self.store.add_texts(texts)
        if added.added:
            new = [text for row, text in sorted({*zip(added.ids, texts, strict=True)}) if row > len(self.texts)]
            with self.queue.lock:
                self.texts += new
                self.queue.grow(len(self.texts))
            self.scorer.wake_again()
        return added

    def next_rows(self, annotator: str, count: int) -> tuple[list[Lent], int]:
        """Lend rows to a person."""
        lent = self.queue.next(annotator, count)
        if self.queue.needs_plan:
            self.scorer.wake_again()
        return lent

    def lend(self, rows: Sequence[int]) -> tuple[list[Lent], int]:
        """Lend rows by their ids."""
        return self.queue.lend(rows)

    # Labels

    def add(self, label: Label) -> tuple[Label, Change]:
        """Write a label or skip to disk; it counts when this returns."""
        added = self.store.add(label._replace(reason=self.queue.reason(label.row)))
        with self.lock:
            before = self.ledger.counted.get(label.row)
            self.ledger.add(added)
            self.queue.done(label.row, label.annotator)
            self._last_change = monotonic()
            return added, Change(before, self.ledger.counted.get(label.row))

    def undo(self, label: Label) -> Change:
        """Take a label or skip back."""
        self.store.undo(label.id, utc_now())
        with self.lock:
            before = self.ledger.counted.get(label.row)
            self.ledger.undo(label)
            self.queue.done(label.row, label.annotator)
            self._last_change = monotonic()
            return Change(before, self.ledger.counted.get(label.row))

    def figures(self, taxonomy: Taxonomy) -> tuple[Progress, Agreement | None]:
        """Return how good the model is, and how far people agree."""
        with self.lock:
            key = self.ledger.revision, self.queue.scored
            if self._progress is not None and self._progress[0] == key:
                return self._progress[1]
            firsts, left = self.ledger.firsts(), self.queue.probabilities()
            independent = independent_labels(self.ledger)
        figures = progress(firsts, taxonomy, left), agreement(independent, taxonomy)
        self._progress = key, figures
        return figures


def utc_now() -> str:
    """Return the time in UTC as ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
