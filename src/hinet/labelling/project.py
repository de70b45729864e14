"""A labelling project that people work on: its rows, labels and queue, and the training of its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from hinet.classifier.fitted import Fitted
from hinet.errors import FileError
from hinet.files.database import utc_now
from hinet.labelling.folder import ProjectFolder
from hinet.labelling.progress import Agreement, Progress, agreement, progress
from hinet.labelling.queue import Lent, Queue, Scorer
from hinet.labelling.store import AddedRows, Label, LabelStore, Ledger
from hinet.labelling.training import Retrainer, TrainedOn, labels_to_wait_for
from hinet.taxonomy import Taxonomy

IDLE_SECONDS = 60.0  # without new labels, after which the last ones are trained on


class Change(NamedTuple):
    """Change of the label that counts for a row, after a label, skip or undo."""

    before: Label | None
    after: Label | None


class Project:
    """A project; one process at a time has it. Writing methods are for one thread at a time."""

    def __init__(self, path: Path) -> None:
        self.folder = ProjectFolder(path)
        self.name = self.folder.name  # name of the project and of its model
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
        self._scorer = Scorer(self.queue, self.texts)
        self.retrainer = Retrainer(self.folder)
        self.trained_on = TrainedOn(0, 0, "")
        self._trained: tuple[TrainedOn, dict[int, Label]] = self.trained_on, {}
        self._last_change = monotonic()
        self._figures: tuple[tuple[int, int], tuple[Progress, Agreement | None]] | None = None

    def close(self) -> None:
        """Stop the background work, and release the folder."""
        self.retrainer.close()
        self._scorer.close()
        self._open.close()

    # The model

    def use_model(self, manifest: Mapping[str, Any], fitted: Fitted) -> None:
        """Rank the rows by a model, and count what it was trained on."""
        self.trained_on = TrainedOn.of(manifest)
        self._scorer.wake(str(manifest["blake2b"]), fitted)

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

    def retrain(self) -> None:
        """Start a training if one is due."""
        if self.retrainer.finished():
            return
        new = self.new_labels
        is_idle = monotonic() - self._last_change >= IDLE_SECONDS
        if (new >= self.next_training or (new and is_idle)) and self.retrainer.may_start(self.ledger.revision):
            self.retrainer.start(len(self.ledger.counted), self.ledger.revision)

    # Rows

    def text(self, row: int) -> str:
        """Return the text of a row."""
        return self.texts[row - 1]

    def add_texts(self, texts: Sequence[str]) -> AddedRows:
        """Add rows, unless they are there already."""
        added = self.store.add_texts(texts)
        if added.added:
            new = [text for row, text in sorted({*zip(added.ids, texts, strict=True)}) if row > len(self.texts)]
            with self.lock:
                self.texts += new
                self.queue.grow(len(self.texts))
            self._scorer.wake_again()
        return added

    def next_rows(self, annotator: str, count: int) -> tuple[list[Lent], int]:
        """Lend rows to a person; return them, and the number left."""
        lent = self.queue.next(annotator, count)
        if self.queue.needs_plan:
            self._scorer.wake_again()
        return lent

    # Labels

    def add(self, label: Label) -> tuple[Label, Change]:
        """Write a label or skip to disk; it counts when this returns."""
        added = self.store.add(label._replace(reason=self.queue.reason(label.row)))
        return added, self._change(self.ledger.add, added)

    def undo(self, label: Label) -> Change:
        """Take a label or skip back."""
        self.store.undo(label.id, utc_now())
        return self._change(self.ledger.undo, label)

    def _change(self, change: Callable[[Label], None], label: Label) -> Change:
        with self.lock:
            before = self.ledger.counted.get(label.row)
            change(label)
            self.queue.done(label.row)
            self._last_change = monotonic()
            return Change(before, self.ledger.counted.get(label.row))

    def figures(self, taxonomy: Taxonomy) -> tuple[Progress, Agreement | None]:
        """Return how good the model is, and how far people agree."""
        with self.lock:
            key = self.ledger.revision, self.queue.scored
            if self._figures is not None and self._figures[0] == key:
                return self._figures[1]
            firsts, left, independent = self.ledger.firsts(), self.queue.probabilities(), self.ledger.all_independent()
        figures = progress(firsts, taxonomy, left), agreement(independent, taxonomy)
        self._figures = key, figures
        return figures
