"""The database of a project: rows, and all labels, skips and undos; what is acknowledged survives a crash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from hinet.files.database import Database, DatabaseKind

Action = Literal["label", "skip", "settle"]
Reason = Literal["uncertain", "different", "branch", "random", "second", "requested"]
ACTIONS: tuple[Action, ...] = get_args(Action)

SCHEMA = """
CREATE TABLE rows (id INTEGER PRIMARY KEY, text TEXT NOT NULL, digest BLOB NOT NULL UNIQUE) STRICT;
CREATE TABLE labels (
    id INTEGER PRIMARY KEY AUTOINCREMENT, row INTEGER NOT NULL REFERENCES rows, action TEXT NOT NULL,
    nodes TEXT NOT NULL, annotator TEXT NOT NULL, time TEXT NOT NULL, note TEXT NOT NULL, predicted TEXT NOT NULL,
    probability REAL NOT NULL, version TEXT NOT NULL, reason TEXT, undone TEXT
) STRICT;
"""
PROJECT = DatabaseKind("a labelling project", 0x68696E6C, 1, SCHEMA)  # the application id is "hinl"
LOCK_SECONDS = 5.0
_LABEL = "SELECT id, row, action, nodes, annotator, time, note, predicted, probability, version, reason, undone"


class Label(NamedTuple):
    """A label or skip, with the answer of the model before it."""

    id: int
    row: int
    action: Action
    nodes: tuple[str, ...]
    annotator: str
    time: str
    note: str
    predicted: tuple[str, ...]
    probability: float
    version: str  # version of the model
    reason: Reason | None  # why the row was lent; None if it was not
    undone: str | None = None  # time

    @property
    def is_right(self) -> bool:
        """Whether the answer was the label."""
        return set(self.predicted) == set(self.nodes)


class AddedRows(NamedTuple):
    """The rows of some texts."""

    ids: list[int]  # one per text
    added: int  # number of new rows


@dataclass(frozen=True, eq=False)
class LabelStore(Database):
    """The database of a project, shared by all threads.

    Every method raises StoreError if the file cannot be read or written now. Rows are numbered from 1 on.
    """

    @classmethod
    def open(cls, path: Path) -> LabelStore:
        """Open or create a file; raise FileError if it is not that of a project or cannot be opened."""
        return cls.open_kind(path, PROJECT, LOCK_SECONDS)

    def texts(self) -> list[str]:
        """Return the texts of all rows in their order."""
        return [text for (text,) in self.select("SELECT text FROM rows ORDER BY id")]

    def add_texts(self, texts: Sequence[str]) -> AddedRows:
        """Write texts as rows, unless there is a row with the same text."""
        ids = []
        with self.transaction() as connection:
            ((before,),) = connection.execute("SELECT count(*) FROM rows").fetchall()
            count = before
            for text in texts:
                digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
                known = connection.execute("SELECT id FROM rows WHERE digest = ?", (digest,)).fetchone()
                if known is None:
                    count += 1
                    connection.execute("INSERT INTO rows (id, text, digest) VALUES (?, ?, ?)", (count, text, digest))
                ids.append(count if known is None else known[0])
        return AddedRows(ids, count - before)

    def labels(self) -> list[Label]:
        """Return all labels and skips, even undone ones, the oldest first."""
        labels = map(Label._make, self.select(f"{_LABEL} FROM labels ORDER BY id"))
        return [
            label._replace(nodes=tuple(json.loads(str(label.nodes))), predicted=tuple(json.loads(str(label.predicted))))
            for label in labels
        ]

    def add(self, label: Label) -> Label:
        """Write a label or skip to disk, and return it with its id."""
        with self.transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO labels"
                " (row, action, nodes, annotator, time, note, predicted, probability, version, reason)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    label.row, label.action, json.dumps(label.nodes), label.annotator, label.time, label.note,
                    json.dumps(label.predicted), label.probability, label.version, label.reason,
                ),
            )  # fmt: skip
            return label._replace(id=int(cursor.lastrowid or 0))

    def undo(self, number: int, time: str) -> None:
        """Mark a label or skip as undone."""
        with self.transaction() as connection:
            connection.execute("UPDATE labels SET undone = ? WHERE id = ? AND undone IS NULL", (time, number))
