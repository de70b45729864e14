"""Scores the rows of a project in the background, and plans which to label next."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Thread

from hinet.classifier.fitted import Fitted
from hinet.labelling.queue import Queue
from hinet.labelling.scoring import known_vectors, score

BLOCK = 512  # rows that are scored at a time
NICENESS = 5

log = logging.getLogger("hinet.serving")


def prepare(queue: Queue, fitted: Fitted, texts: Sequence[str], goes_on: Callable[[], bool] = lambda: True) -> bool:
    """Score all rows that the model has not scored, and plan; return whether it was done."""
    has_new = False
    generation = queue.generation  # read before ``goes_on``, as a new model changes both
    while len(rows := queue.unscored(BLOCK)):
        if not goes_on():
            return False
        scores = score(fitted, [texts[row] for row in rows.tolist()])
        queue.set_scores(rows, scores, fitted.codec.taxonomy, generation)
        has_new = True
    if has_new or queue.needs_plan:
        queue.plan(0, known_vectors(fitted))
    return True


class Scorer:
    """A thread of low priority that prepares the queue whenever it is woken; a new model has all rows scored again."""

    def __init__(self, queue: Queue, texts: Sequence[str]) -> None:
        self._queue, self._texts = queue, texts
        self._changed = Condition()
        self._fitted: Fitted | None = None
        self._version: str | None = None
        self._is_due, self._is_closed = False, False
        self._thread = Thread(target=self._run, name="score", daemon=True)
        self._thread.start()

    def wake(self, version: str, fitted: Fitted) -> None:
        """Prepare the queue with a model, soon."""
        with self._changed:
            if version != self._version:
                self._queue.expire_scores()
            self._version, self._fitted, self._is_due = version, fitted, True
            self._changed.notify_all()

    def wake_again(self) -> None:
        """Prepare the queue with the same model: there are new rows, or few planned ones."""
        with self._changed:
            if self._fitted is not None:
                self._is_due = True
                self._changed.notify_all()

    def close(self) -> None:
        """Stop the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        with suppress(OSError, AttributeError):  # Linux has priorities of threads
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while True:
            with self._changed:
                while not (self._is_due or self._is_closed):
                    self._changed.wait()
                if self._is_closed:
                    return
                self._is_due, fitted, version = False, self._fitted, self._version
            assert fitted is not None
            try:
                prepare(self._queue, fitted, self._texts, lambda version=version: self._continues(version))  # type: ignore[misc]
            except Exception:
                log.exception("rows to label cannot be ranked")

    def _continues(self, version: str | None) -> bool:
        with self._changed:
            return not self._is_closed and version == self._version
