"""Feedback of people and the review queue, in an SQLite file; what was acknowledged survives a crash."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NamedTuple

from hinet.errors import FileError

APPLICATION = 0x68696E65  # marks our files: "hine"
FORMAT = 1
SECONDS = 10.0  # that a writer waits for another process

Order = Literal["unsure", "split"]
Json = dict[str, Any]

_TABLES = f"""
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
CREATE TABLE feedback (
    id INTEGER PRIMARY KEY AUTOINCREMENT, received TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL,
    verdict TEXT NOT NULL, row TEXT NOT NULL, nodes TEXT NOT NULL, predicted TEXT NOT NULL, digest BLOB NOT NULL
) STRICT;
CREATE INDEX feedback_of_input ON feedback (model, digest, id);
CREATE TABLE review (
    id INTEGER PRIMARY KEY AUTOINCREMENT, received TEXT NOT NULL, model TEXT NOT NULL, digest BLOB NOT NULL,
    input TEXT, unsure REAL NOT NULL, split REAL NOT NULL, UNIQUE (model, digest)
) STRICT;
CREATE INDEX review_unsure ON review (model, unsure) WHERE input IS NOT NULL;
CREATE INDEX review_split ON review (model, split) WHERE input IS NOT NULL;
"""


class Feedback(NamedTuple):
    """A verdict of a person, with the row as training rows are written."""

    received: str
    model: str
    version: str
    verdict: str
    row: Json
    nodes: Sequence[str]
    predicted: Sequence[str]
    input: Any  # the text, or of a model of several columns the row, that it was about
    review: int | None = None


class Doubt(NamedTuple):
    """A text or row that was classified, and how doubtful its answer is."""

    received: str
    model: str
    input: Any
    unsure: float
    split: float


class Queued(NamedTuple):
    """An item of the review queue."""

    id: int
    received: str
    input: Any
    unsure: float
    split: float


class Counted(NamedTuple):
    """How much feedback there is."""

    model: str
    verdict: str
    rows: int


@dataclass(frozen=True, eq=False)
class Store:
    """Keeps feedback and the review queue; any thread may ask, one at a time."""

    connection: sqlite3.Connection
    lock: Lock

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> Store:
        """Open a file, or create it.

        Raises
        ------
        FileError
            If the file is something else, or cannot be opened.
        """
        if not create and not path.is_file():
            raise FileError(path, "no such file; 'hinet serve --feedback' creates one")
        try:
            connection = sqlite3.connect(path, timeout=SECONDS, isolation_level=None, check_same_thread=False)
            is_new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # a commit is on disk when it returns
            if is_new:
                connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} COMMIT;")
            marks = tuple(
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
        except sqlite3.Error as error:
            raise FileError(path, f"cannot be opened as a file of feedback: {error}") from None
        if marks != (APPLICATION, FORMAT):
            connection.close()
            raise FileError(path, "is another database; name a new file for feedback")
        return cls(connection, Lock())

    def close(self) -> None:
        """Close the file."""
        with self.lock:
            self.connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self.lock:
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
            except BaseException:
                self.connection.execute("ROLLBACK")
                raise
            self.connection.execute("COMMIT")

    def add(self, feedback: Feedback) -> int:
        """Keep feedback and return its id; it is on disk then, and the row is off the review queue."""
        values = (
            feedback.received, feedback.model, feedback.version, feedback.verdict, json.dumps(feedback.row),
            json.dumps(feedback.nodes), json.dumps(feedback.predicted), _digest(feedback.input),
        )  # fmt: skip
        with self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO feedback (received, model, version, verdict, row, nodes, predicted, digest)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )
            connection.execute(
                "UPDATE review SET input = NULL WHERE model = ? AND (digest = ? OR id = ?)",
                (feedback.model, values[-1], feedback.review),
            )
            return int(cursor.lastrowid or 0)

    def skip(self, model: str, item: int) -> None:
        """Take a row off the review queue."""
        with self._transaction() as connection:
            connection.execute("UPDATE review SET input = NULL WHERE model = ? AND id = ?", (model, item))

    def enqueue(self, doubts: Sequence[Doubt], most: int) -> None:
        """Put rows on the review queue, except those that were ever there, and keep the ``most`` doubtful ones."""
        with self._transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO review (received, model, digest, input, unsure, split)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [(d.received, d.model, _digest(d.input), json.dumps(d.input), d.unsure, d.split) for d in doubts],
            )
            for (model,) in connection.execute("SELECT DISTINCT model FROM review").fetchall():
                connection.execute(
                    "DELETE FROM review WHERE model = ? AND input IS NOT NULL AND id NOT IN (SELECT id FROM review"
                    " WHERE model = ? AND input IS NOT NULL ORDER BY max(unsure, split) DESC, id LIMIT ?)",
                    (model, model, most),
                )

    def queue(self, model: str, order: Order, offset: int, limit: int) -> tuple[list[Queued], int]:
        """Return some items of the review queue, the most doubtful first, and how many there are."""
        column = {"unsure": "unsure", "split": "split"}[order]
        with self.lock:
            rows = self.connection.execute(
                "SELECT id, received, input, unsure, split FROM review WHERE model = ? AND input IS NOT NULL"
                f" ORDER BY {column} DESC, id LIMIT ? OFFSET ?",
                (model, limit, offset),
            ).fetchall()
            total = self.connection.execute(
                "SELECT count(*) FROM review WHERE model = ? AND input IS NOT NULL", (model,)
            ).fetchone()[0]
        return [Queued(row[0], row[1], json.loads(row[2]), row[3], row[4]) for row in rows], int(total)

    def queued(self, model: str, item: int) -> Queued | None:
        """Return an item of the review queue, if it is there."""
        with self.lock:
            row = self.connection.execute(
                "SELECT id, received, input, unsure, split FROM review"
                " WHERE model = ? AND id = ? AND input IS NOT NULL",
                (model, item),
            ).fetchone()
        return None if row is None else Queued(row[0], row[1], json.loads(row[2]), row[3], row[4])

    def counts(self) -> list[Counted]:
        """Return how much feedback there is of each model and verdict."""
        with self.lock:
            return [
                Counted(*row)
                for row in self.connection.execute(
                    "SELECT model, verdict, count(*) FROM feedback GROUP BY model, verdict ORDER BY model, verdict"
                )
            ]

    def training_rows(self, model: str) -> list[Json]:
        """Return the rows of a model with their right labels, in the order of their last verdict, which counts."""
        with self.lock:
            rows = self.connection.execute(
                "SELECT row FROM feedback WHERE id IN (SELECT max(id) FROM feedback WHERE model = ? GROUP BY digest)"
                " ORDER BY id",
                (model,),
            ).fetchall()
        return [json.loads(row) for (row,) in rows]


def _digest(given: Any) -> bytes:
    """Return what tells one text or row from another."""
    return hashlib.blake2b(json.dumps(given, sort_keys=True).encode(), digest_size=16).digest()
