"""Feedback and the review queue in an SQLite file; acknowledged feedback survives a crash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hinet.errors import FileError
from hinet.files.database import Database, DatabaseKind
from hinet.serving.settings import Settings

Order = Literal["unsure", "split"]
Json = dict[str, Any]

SCHEMA = """
CREATE TABLE feedback (
    id INTEGER PRIMARY KEY AUTOINCREMENT, received TEXT NOT NULL, model TEXT NOT NULL, version TEXT NOT NULL,
    verdict TEXT NOT NULL, row TEXT NOT NULL, nodes TEXT NOT NULL, predicted TEXT NOT NULL, digest BLOB NOT NULL,
    exported TEXT
) STRICT;
CREATE INDEX feedback_of_input ON feedback (model, digest, id);
CREATE TABLE review (
    id INTEGER PRIMARY KEY AUTOINCREMENT, received TEXT NOT NULL, model TEXT NOT NULL, digest BLOB NOT NULL,
    input TEXT, unsure REAL NOT NULL, split REAL NOT NULL, UNIQUE (model, digest)
) STRICT;
CREATE INDEX review_unsure ON review (model, unsure) WHERE input IS NOT NULL;
CREATE INDEX review_split ON review (model, split) WHERE input IS NOT NULL;
"""
FEEDBACK = DatabaseKind("feedback", 0x68696E65, 2, SCHEMA)  # the application id is "hine"
_NOW = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now')"


class Entry(NamedTuple):
    """A verdict with its training row."""

    id: int  # 0 until it is stored
    received: str
    model: str
    version: str
    verdict: str
    row: Json
    nodes: list[str]
    predicted: list[str]
    exported: str | None = None  # time of the first export


class Doubt(NamedTuple):
    """A classified text or row, and the doubt in its answer."""

    received: str
    model: str
    input: Any
    unsure: float
    split: float
    id: int = 0  # number in the review queue; 0 until it is stored


_ENTRY = f"SELECT {', '.join(Entry._fields)} FROM feedback"
_QUEUED = f"SELECT {', '.join(Doubt._fields)} FROM review WHERE model = ? AND input IS NOT NULL"


class Counted(NamedTuple):
    """Number of rows per model and verdict."""

    model: str
    verdict: str
    rows: int


@dataclass(frozen=True, eq=False)
class Store(Database):
    """Feedback and the review queue, shared by all threads.

    Every method raises StoreError if the file cannot be read or written now.
    """

    @classmethod
    def open(cls, path: Path, *, create: bool = True, lock_seconds: float = Settings.lock_seconds) -> Store:
        """Open or create a file; raise FileError if it is not a feedback file or cannot be opened."""
        if not create and not path.is_file():
            raise FileError(path, "no such file; 'hinet serve --feedback' creates one")
        return cls.open_kind(path, FEEDBACK, lock_seconds)

    def _entries(self, rest: str, *values: Any) -> list[Entry]:
        """Return the feedback that the rest of a query selects."""
        return [
            Entry._make((*head, json.loads(row), json.loads(nodes), json.loads(predicted), exported))
            for *head, row, nodes, predicted, exported in self.select(f"{_ENTRY} {rest}", *values)
        ]

    def add(self, entry: Entry, given: Any, review: int | None = None) -> int:
        """Write feedback on a text or row to disk, remove it from the review queue, and return its id."""
        digest = _digest(given)
        with self.transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO feedback (received, model, version, verdict, row, nodes, predicted, digest)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*entry[1:5], json.dumps(entry.row), json.dumps(entry.nodes), json.dumps(entry.predicted), digest),
            )
            connection.execute(
                "UPDATE review SET input = NULL WHERE model = ? AND (digest = ? OR id = ?)",
                (entry.model, digest, review),
            )
            return int(cursor.lastrowid or 0)

    def skip(self, model: str, item: int) -> None:
        """Remove a row from the review queue."""
        with self.transaction() as connection:
            connection.execute("UPDATE review SET input = NULL WHERE model = ? AND id = ?", (model, item))

    def enqueue(self, doubts: Sequence[Doubt], max_rows: int) -> None:
        """Add rows that were never in the review queue, and keep the ``max_rows`` most doubtful ones."""
        with self.transaction() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO review (received, model, digest, input, unsure, split)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                [(d.received, d.model, _digest(d.input), json.dumps(d.input), d.unsure, d.split) for d in doubts],
            )
            for (model,) in connection.execute("SELECT DISTINCT model FROM review").fetchall():
                connection.execute(
                    "DELETE FROM review WHERE model = ? AND input IS NOT NULL AND id NOT IN (SELECT id FROM review"
                    " WHERE model = ? AND input IS NOT NULL ORDER BY max(unsure, split) DESC, id LIMIT ?)",
                    (model, model, max_rows),
                )

    def queue(self, model: str, order: Order, offset: int, limit: int) -> tuple[list[Doubt], int]:
        """Return a page of the review queue, the most doubtful first, and the total number."""
        rows = self.select(f"{_QUEUED} ORDER BY {order} DESC, id LIMIT ? OFFSET ?", model, limit, offset)
        ((total,),) = self.select("SELECT count(*) FROM review WHERE model = ? AND input IS NOT NULL", model)
        return list(map(_queued, rows)), total

    def queued(self, model: str, item: int) -> Doubt | None:
        """Return an item of the review queue; None if it is not there."""
        rows = self.select(f"{_QUEUED} AND id = ?", model, item)
        return _queued(rows[0]) if rows else None

    def counts(self) -> list[Counted]:
        """Return the number of rows per model and verdict."""
        query = "SELECT model, verdict, count(*) FROM feedback GROUP BY model, verdict ORDER BY model, verdict"
        return [Counted(*row) for row in self.select(query)]

    def entries(self, model: str | None = None) -> list[Entry]:
        """Return all feedback, or that of one model, the oldest first."""
        return self._entries("WHERE ?1 IS NULL OR model = ?1 ORDER BY id", model)

    def page(self, model: str, offset: int, limit: int) -> tuple[list[Entry], int]:
        """Return a page of the feedback of a model, the newest first, and the total number."""
        ((total,),) = self.select("SELECT count(*) FROM feedback WHERE model = ?", model)
        return self._entries("WHERE model = ? ORDER BY id DESC LIMIT ? OFFSET ?", model, limit, offset), total

    def delete(self, ids: Iterable[int]) -> list[int]:
        """Delete feedback by id; if any ids are missing, delete nothing and return them.

        An earlier verdict on the same text counts again, as not exported if the deleted one was exported.
        """
        with self.transaction() as connection:
            found = {
                number: connection.execute(
                    "SELECT model, digest, exported FROM feedback WHERE id = ?", (number,)
                ).fetchone()
                for number in ids
            }
            missing = [number for number, row in found.items() if row is None]
            if missing:
                return missing
            connection.executemany("DELETE FROM feedback WHERE id = ?", [(number,) for number in found])
            connection.executemany(
                "UPDATE feedback SET exported = NULL"
                " WHERE id = (SELECT max(id) FROM feedback WHERE model = ? AND digest = ?)",
                [(model, digest) for model, digest, exported in found.values() if exported is not None],
            )
        return []

    def training_rows(self, model: str, *, only_new: bool = False) -> list[Entry]:
        """Return the last verdict on each text of a model, oldest first; with ``only_new``, those never exported."""
        last = "id IN (SELECT max(id) FROM feedback WHERE model = ? GROUP BY digest)"
        return self._entries(f"WHERE {last} AND (exported IS NULL OR NOT ?) ORDER BY id", model, only_new)

    def mark_exported(self, ids: Iterable[int]) -> None:
        """Mark feedback as exported."""
        with self.transaction() as connection:
            connection.executemany(
                f"UPDATE feedback SET exported = {_NOW} WHERE id = ? AND exported IS NULL",
                [(number,) for number in ids],
            )


def _queued(row: tuple[Any, ...]) -> Doubt:
    doubt = Doubt._make(row)
    return doubt._replace(input=json.loads(doubt.input))


def _digest(given: Any) -> bytes:
    """Return a digest that identifies a text or row."""
    return hashlib.blake2b(json.dumps(given, sort_keys=True).encode(), digest_size=16).digest()
