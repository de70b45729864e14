"""Rows and labels of a project: all of them in a database, which survives a crash; in memory, the labels that count."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from hinet.files.database import Database, DatabaseKind

Action = Literal["label", "skip", "settle"]
Reason = Literal["uncertain", "different", "branch", "random", "second", "requested"]

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
        labels = map(Label._make, self.select(f"SELECT {', '.join(Label._fields)} FROM labels ORDER BY id"))
        return [
            label._replace(nodes=tuple(json.loads(str(label.nodes))), predicted=tuple(json.loads(str(label.predicted))))
            for label in labels
        ]

    def add(self, label: Label) -> Label:
        """Write a label or skip to disk, and return it with its id."""
        values = label._asdict() | {"nodes": json.dumps(label.nodes), "predicted": json.dumps(label.predicted)}
        del values["id"]
        names, places = ", ".join(values), ", ".join("?" * len(values))
        with self.transaction() as connection:
            cursor = connection.execute(f"INSERT INTO labels ({names}) VALUES ({places})", (*values.values(),))
            return label._replace(id=int(cursor.lastrowid or 0))

    def undo(self, number: int, time: str) -> None:
        """Mark a label or skip as undone."""
        with self.transaction() as connection:
            connection.execute("UPDATE labels SET undone = ? WHERE id = ? AND undone IS NULL", (time, number))


class PersonCounts(NamedTuple):
    """Labels and skips of a person."""

    labels: int
    skipped: int


class Ledger:
    """Labels and skips by row: the last ones of each person, and the label that counts for the row.

    This is the last settlement, else the last label. ``revision`` grows with each change.
    """

    def __init__(self, labels: Iterable[Label] = ()) -> None:
        self.revision = 0
        self.counted: dict[int, Label] = {}  # the label that counts, by row
        self.skipped: set[int] = set()  # rows without a label that somebody skipped
        self.disputed: set[int] = set()  # rows with different labels that nobody settled
        self.twice: set[int] = set()  # rows that two people or more labelled independently
        self._by_person = Counter[tuple[str, bool]]()  # keys are names, and whether it is a skip
        self._all: dict[int, Label] = {}  # labels and skips as they were given, by id
        self._given: dict[int, list[Label]] = {}  # labels and skips that were not undone, by row
        self._first: dict[int, Label] = {}  # the first label of a row, even if it was undone
        rows = set()
        for label in labels:
            self._record(label)
            rows.add(label.row)
        for row in rows:
            self._update(row)

    def add(self, label: Label) -> None:
        """Add a new label or skip."""
        self._count(label.row, -1)
        self._record(label)
        self._update(label.row)

    def undo(self, label: Label) -> None:
        """Remove a label or skip; one of the same person that it had replaced counts again."""
        self._count(label.row, -1)
        self._given[label.row].remove(label)
        self._update(label.row)

    def _record(self, label: Label) -> None:
        given = label if label.undone is None else label._replace(undone=None)
        self._all[label.id] = given
        if label.undone is None:
            self._given.setdefault(label.row, []).append(label)
        if label.action != "skip":
            self._first.setdefault(label.row, given)

    def _count(self, row: int, sign: int) -> None:
        for label in self.current(row):
            self._by_person[label.annotator, label.action == "skip"] += sign

    def _update(self, row: int) -> None:
        self.revision += 1
        self._count(row, 1)
        current = self.current(row)
        labels = [label for label in current if label.action != "skip"]
        settled = [label for label in labels if label.action == "settle"]
        for rows, belongs in (
            (self.skipped, bool(current) and not labels),
            (self.disputed, not settled and len({frozenset(label.nodes) for label in labels}) > 1),
            (self.twice, len(self.independent(row)) > 1),
        ):
            (rows.add if belongs else rows.discard)(row)
        if labels:
            self.counted[row] = (settled or labels)[-1]
        else:
            self.counted.pop(row, None)

    def current(self, row: int) -> list[Label]:
        """Return the last label or skip of each person for a row, the oldest first."""
        last = {label.annotator: label for label in self._given.get(row, ())}
        return sorted(last.values())

    def find(self, number: int) -> Label | None:
        """Return a label or skip that was neither undone nor replaced, by its id."""
        return next((label for label in self.all_current() if label.id == number), None)

    def all_current(self) -> Iterator[Label]:
        """Yield the last label or skip of each person for each row."""
        for row, given in self._given.items():
            yield from given if len(given) == 1 else self.current(row)

    def newest(self, annotator: str | None) -> list[Label]:
        """Return the labels and skips that count, of one person or all, the newest first."""
        return sorted((each for each in self.all_current() if annotator in (None, each.annotator)), reverse=True)

    def independent(self, row: int) -> list[Label]:
        """Return the last label of each person for a row, without settlements, which know those of others.

        A later skip withdraws a label.
        """
        skipped = {given.annotator for given in self.current(row) if given.action == "skip"}
        last = {label.annotator: label for label in self._given.get(row, ()) if label.action == "label"}
        return sorted(label for name, label in last.items() if name not in skipped)

    def all_independent(self) -> list[list[Label]]:
        """Return the independent labels of each row that has two or more."""
        return [self.independent(row) for row in sorted(self.twice & self.counted.keys())]

    def firsts(self) -> list[Label]:
        """Return the first label of each labelled row with the nodes that count now, the oldest first.

        Its answer was given without knowing any label of the row.
        """
        return sorted(self._first[row]._replace(nodes=label.nodes) for row, label in self.counted.items())

    def people(self) -> dict[str, PersonCounts]:
        """Return what each person did, in the order of names."""
        counts = self._by_person
        names = sorted({name for (name, _), count in counts.items() if count})
        return {name: PersonCounts(counts[name, False], counts[name, True]) for name in names}

    @property
    def labellers(self) -> set[str]:
        """The people whose labels count."""
        return {name for (name, is_skip), count in self._by_person.items() if count and not is_skip}

    def counted_at(self, last: int, undone: Collection[int]) -> dict[int, Label]:
        """Return the labels that counted when ``last`` was the newest id and the ids ``undone`` were undone, by row."""
        gone = set(undone)
        return Ledger(label for label in self._all.values() if label.id <= last and label.id not in gone).counted
