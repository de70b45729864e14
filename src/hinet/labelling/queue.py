"""The queue of a project: which row goes to whom, and why; each row is lent to one person at a time.

A thread scores the rows in the background, and plans which to label next.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, RLock, Thread
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.labelling.selection import Plan, Pool, Scores, Vectors, known_vectors, plan, score
from hinet.labelling.store import Ledger, Reason
from hinet.taxonomy import Taxonomy

LEASE_SECONDS = 600.0
RANDOM_EVERY, BRANCH_EVERY = 10, 8  # every tenth row is drawn at random, every eighth is of a branch with few labels
SECOND_SHARE, SECOND_EVERY = 0.1, 4  # share of the labelled rows that get a second label, at most every fourth row
TRIES = 100  # labelled rows that are drawn to find one for a second label
PLANNED = 300  # rows that are planned at a time
LOW_WATER = 100  # rows of a plan, below which the next one is made
GROWTH = 1.5  # factor of the room for vectors
BLOCK = 512  # rows that are scored at a time
NICENESS = 5  # niceness of the thread that scores rows

log = logging.getLogger("hinet.serving")


class Lent(NamedTuple):
    """A row that is lent, by its id."""

    row: int
    reason: Reason


class Queue:
    """Rows by position, which is their id less 1. Only ``plan`` takes long; ``lock`` also guards the ledger."""

    def __init__(self, rows: int, ledger: Ledger, seed: int = 0, clock: Callable[[], float] = monotonic) -> None:
        self.lock = RLock()
        self._clock, self._ledger = clock, ledger
        self.generation = 0  # number of models that came after the first
        self._rng = np.random.default_rng(seed)
        self._leases: dict[int, tuple[float, Reason]] = {}  # ends and reasons, by row id
        self._lent = Counter[str]()  # rows by person
        self.scored = 0  # grows with each change of the scores
        self._plan = Plan(np.zeros(0, np.int64), [], {})
        self._planned: list[tuple[int, Reason]] = []  # positions that are left of the plan, the last one first
        self._is_left, self._is_labelled = np.zeros(0, bool), np.zeros(0, bool)  # left: neither labelled nor skipped
        self._probability = np.zeros(0, np.float32)  # NaN if not scored
        self._branch = np.zeros(0, np.int64)
        self._room: Vectors = np.zeros((0, 0), np.float16)  # space for the vectors, including those of later rows
        self._vectors = self._room
        self._scored = np.zeros(0, bool)  # whether the current model has scored a row
        self.grow(rows)
        for row in [*ledger.counted, *ledger.skipped]:
            self._mark(row)

    # Rows and their scores

    def grow(self, rows: int) -> None:
        """Add new rows, so that there are ``rows``."""
        with self.lock:
            new = rows - len(self._is_left)
            self._is_left = np.append(self._is_left, np.ones(new, bool))
            self._is_labelled = np.append(self._is_labelled, np.zeros(new, bool))
            self._probability = np.append(self._probability, np.full(new, np.nan, np.float32))
            self._branch = np.append(self._branch, np.full(new, -1))
            self._scored = np.append(self._scored, np.zeros(new, bool))
            if rows > len(self._room):
                self._room = np.zeros((max(rows, int(GROWTH * len(self._room))), self._vectors.shape[1]), np.float16)
                self._room[: len(self._vectors)] = self._vectors
            self._vectors = self._room[:rows]

    def expire_scores(self) -> None:
        """Have all rows scored again, by a new model; until then, their old scores count."""
        with self.lock:
            self._scored[:] = False
            self.generation += 1

    def unscored(self, count: int) -> NDArray[np.int64]:
        """Return the positions of some rows that the current model has not scored; rows without labels come first."""
        with self.lock:
            rows = np.flatnonzero(~self._scored)
            return rows[np.argsort(~self._is_left[rows], kind="stable")][:count]

    def set_scores(self, rows: NDArray[np.int64], scores: Scores, taxonomy: Taxonomy, generation: int = 0) -> None:
        """Keep the scores of rows, unless a new model has come since this ``generation`` of scores."""
        branch = top_nodes(scores.node, taxonomy)
        with self.lock:
            if generation != self.generation:
                return
            if self._vectors.shape[1] != scores.vectors.shape[1]:  # the first, or a model with other vectors
                self._room = self._vectors = np.zeros((len(self._is_left), scores.vectors.shape[1]), np.float16)
            self._probability[rows], self._branch[rows] = scores.probability, branch
            self._vectors[rows], self._scored[rows] = scores.vectors, True
            self.scored += 1

    def plan(self, known: Vectors | None) -> None:
        """Choose the next rows from the scored ones that are left; requests are answered in the meantime."""
        with self.lock:
            rows = np.flatnonzero(self._is_left & ~np.isnan(self._probability))
            pool = Pool(rows, self._probability[rows], self._branch[rows], self._vectors)
            labelled, rng = self._vectors[self._is_labelled], self._rng.spawn(1)[0]
        planned = plan(pool, labelled.astype(np.float32), known, PLANNED, rng)
        with self.lock:
            self._plan = planned
            self._planned = list(zip(planned.rows.tolist(), planned.reasons, strict=True))[::-1]

    @property
    def needs_plan(self) -> bool:
        """Whether few rows of the plan are left, and others could be planned."""
        with self.lock:
            return len(self._planned) < min(LOW_WATER, self._n_free())

    @property
    def left(self) -> int:
        """Number of rows that nobody has labelled or skipped."""
        return int(self._is_left.sum())

    @property
    def scored_share(self) -> float:
        """Share of the rows left that the current model has scored."""
        with self.lock:
            return float(self._scored[self._is_left].mean()) if self._is_left.any() else 1.0

    def probabilities(self) -> NDArray[np.float32]:
        """Return the probability of the answer to each row left that is scored."""
        with self.lock:
            probability = self._probability[self._is_left]
        return probability[~np.isnan(probability)]

    # Rows to label

    def next(self, annotator: str, count: int) -> tuple[list[Lent], int]:
        """Lend up to ``count`` rows to a person; return them, and the number left."""
        with self.lock:
            now = self._clock()
            self._leases = {row: lease for row, lease in self._leases.items() if lease[0] > now}
            lent: list[Lent] = []
            while len(lent) < count and (choice := self._choose(annotator)) is not None:
                self._leases[choice.row] = now + LEASE_SECONDS, choice.reason
                lent.append(choice)
                self._lent[annotator] += 1
            return lent, self._n_free()

    def lend(self, rows: Sequence[int]) -> tuple[list[Lent], int]:
        """Lend rows by their ids, even if they are lent already; return them, and the number left."""
        with self.lock:
            lent = [Lent(row, self.reason(row) or "requested") for row in rows]
            self._leases |= {row: (self._clock() + LEASE_SECONDS, reason) for row, reason in lent}
            return lent, self._n_free()

    def _n_free(self) -> int:
        """Return the number of rows that nobody has labelled, skipped or borrowed."""
        return self.left - sum(bool(self._is_left[row - 1]) for row in self._leases)

    def done(self, row: int) -> None:
        """Note a label or skip of a row, which is in the ledger."""
        with self.lock:
            self._leases.pop(row, None)
            self._mark(row)

    def reason(self, row: int) -> Reason | None:
        """Return why a row is lent, if it is."""
        with self.lock:
            return self._leases[row][1] if row in self._leases else None

    def _mark(self, row: int) -> None:
        self._is_labelled[row - 1] = row in self._ledger.counted
        self._is_left[row - 1] = row not in self._ledger.counted and row not in self._ledger.skipped

    def _choose(self, annotator: str) -> Lent | None:
        """Choose the next row for a person, in the first of several ways that finds one."""
        number, ways = self._lent[annotator], list[Callable[[str], Lent | None]]()
        if number % SECOND_EVERY == SECOND_EVERY - 1:
            ways.append(self._second)
        if number % RANDOM_EVERY == RANDOM_EVERY - 1:
            ways.append(self._random)
        elif number % BRANCH_EVERY == BRANCH_EVERY - 1:
            ways.append(self._of_branch)
        ways += [self._next_planned, self._random, self._second, self._skipped_by_others]
        return next((choice for way in ways if (choice := way(annotator)) is not None), None)

    def _is_free(self, row: int, annotator: str) -> bool:
        """Return whether nobody has a row, and the person has not skipped it."""
        given = self._ledger.current(row)
        skipped = any(label.action == "skip" and label.annotator == annotator for label in given)
        return row not in self._leases and not skipped

    def _next_planned(self, annotator: str) -> Lent | None:
        while self._planned:
            position, reason = self._planned.pop()
            if self._is_left[position] and position + 1 not in self._leases:
                return Lent(position + 1, reason)
        return None

    def _random(self, annotator: str) -> Lent | None:
        is_free = self._is_left.copy()
        is_free[[row - 1 for row in self._leases]] = False
        free = np.flatnonzero(is_free)
        return Lent(int(self._rng.choice(free)) + 1, "random") if len(free) else None

    def _of_branch(self, annotator: str) -> Lent | None:
        """Choose a row of the branch with the fewest labels for the rows that seem to belong there."""
        labels, left = (
            np.bincount(self._branch[rows] + 1, minlength=1 + max(self._plan.branches, default=0) + 1)
            for rows in (self._is_labelled, self._is_left)
        )
        branches = [branch for branch in self._plan.branches if branch >= 0]
        for branch in sorted(branches, key=lambda each: (labels[each + 1] + 1) / (left[each + 1] + 1)):
            for position in self._plan.branches[branch].tolist():
                if self._is_left[position] and position + 1 not in self._leases:
                    return Lent(position + 1, "branch")
        return None

    def _second(self, annotator: str) -> Lent | None:
        """Choose a row that only others have labelled, if too few rows have two labels."""
        ledger = self._ledger
        waiting = sum(reason == "second" for _, reason in self._leases.values())
        if not ledger.labellers - {annotator} or len(ledger.twice) + waiting >= SECOND_SHARE * len(ledger.counted):
            return None
        rows = self._rng.permutation(np.flatnonzero(self._is_labelled))[:TRIES] + 1
        for row in rows.tolist():
            by = {label.annotator for label in ledger.independent(row)}
            if len(by) == 1 and annotator not in by and self._is_free(row, annotator):
                return Lent(row, "second")
        return None

    def _skipped_by_others(self, annotator: str) -> Lent | None:
        rows = (row for row in sorted(self._ledger.skipped) if self._is_free(row, annotator))
        return next((Lent(row, "uncertain") for row in rows), None)


def top_nodes(nodes: NDArray[np.int64], taxonomy: Taxonomy) -> NDArray[np.int64]:
    """Return a top node above each node, or itself; -1 for -1."""
    distinct, inverse = np.unique(nodes, return_inverse=True)
    known = distinct[distinct >= 0]
    flat, offsets = taxonomy.ancestor_lists(known)
    is_top = np.zeros(len(taxonomy), bool)
    is_top[taxonomy.tops] = True
    owner = np.repeat(np.arange(len(known)), np.diff(offsets))
    tops = np.full(len(distinct), -1)
    of_known = np.full(len(known), -1)
    of_known[owner[is_top[flat]][::-1]] = flat[is_top[flat]][::-1]  # the first one stays
    tops[distinct >= 0] = of_known
    return tops[inverse]


def prepare(queue: Queue, fitted: Fitted, texts: Sequence[str], continues: Callable[[], bool] = lambda: True) -> None:
    """Score all rows that the model has not scored, and plan, as long as it ``continues``."""
    has_new = False
    generation = queue.generation  # read before ``continues``, as a new model changes both
    while len(rows := queue.unscored(BLOCK)):
        if not continues():
            return
        scores = score(fitted, [texts[row] for row in rows.tolist()])
        queue.set_scores(rows, scores, fitted.codec.taxonomy, generation)
        has_new = True
    if has_new or queue.needs_plan:
        queue.plan(known_vectors(fitted))


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
                self._changed.wait_for(lambda: self._is_due or self._is_closed)
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
