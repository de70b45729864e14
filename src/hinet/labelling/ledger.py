"""The labels that count, in memory: the last of each person for each row, and one of them for the row."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from hinet.labelling.store import Label


class PersonCounts(NamedTuple):
    """Label, skip or undo of a person."""

    labels: int
    skipped: int


class Ledger:
    """Labels and skips by row; ``revision`` grows with each change.

    Of a row, the last settlement counts, else the last label.
    """

    def __init__(self, labels: Iterable[Label] = ()) -> None:
        self.revision = 0
        self.counted: dict[int, Label] = {}  # the label that counts, by row
        self.skipped: set[int] = set()  # rows without a label that somebody skipped
        self.disputed: set[int] = set()  # rows with different labels that nobody settled
        self.twice: set[int] = set()  # rows that two people or more labelled independently
        self._by_person: dict[str, PersonCounts] = {}
        self._given: dict[int, list[Label]] = {}  # labels and skips that were not undone, by row
        self._undone: dict[int, Label] = {}  # labels as they were given, by id
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
        self._undone[label.id] = label
        self._update(label.row)

    def _record(self, label: Label) -> None:
        if label.undone is None:
            self._given.setdefault(label.row, []).append(label)
        else:
            self._undone[label.id] = label._replace(undone=None)
        if label.action != "skip":
            self._first.setdefault(label.row, label._replace(undone=None))

    def _count(self, row: int, sign: int) -> None:
        for label in self.current(row):
            counts = self._by_person.get(label.annotator, PersonCounts(0, 0))
            is_skip = label.action == "skip"
            changed = PersonCounts(counts.labels + sign * (not is_skip), counts.skipped + sign * is_skip)
            self._by_person[label.annotator] = changed

    def _update(self, row: int) -> None:
        self.revision += 1
        self._count(row, 1)
        current = self.current(row)
        labels = [label for label in current if label.action != "skip"]
        settled = [label for label in labels if label.action == "settle"]
        counted = (settled or labels)[-1:]
        for rows, belongs in (
            (self.skipped, bool(current) and not labels),
            (self.disputed, not settled and len({frozenset(label.nodes) for label in labels}) > 1),
            (self.twice, len(self.independent(row)) > 1),
        ):
            (rows.add if belongs else rows.discard)(row)
        if counted:
            self.counted[row] = counted[0]
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

    def first(self, row: int) -> Label:
        """Return the first label that a row ever had, whose answer was given without knowing any."""
        return self._first[row]

    def firsts(self) -> list[Label]:
        """Return the first label of each labelled row with the nodes that count now, the oldest first."""
        return sorted(self._first[row]._replace(nodes=label.nodes) for row, label in self.counted.items())

    def people(self) -> dict[str, PersonCounts]:
        """Return what each person did, in the order of names."""
        return {name: counts for name, counts in sorted(self._by_person.items()) if any(counts)}

    @property
    def labellers(self) -> set[str]:
        """The people whose labels count."""
        return {name for name, counts in self._by_person.items() if counts.labels}

    def counted_at(self, last: int, undone: Collection[int]) -> dict[int, Label]:
        """Return the labels that counted when ``last`` was the newest id and the ids ``undone`` were undone, by row."""
        given = [label for labels in self._given.values() for label in labels]
        gone = set(undone)
        back = [label for label in self._undone.values() if label.id not in gone]
        return Ledger(sorted(label for label in [*given, *back] if label.id <= last)).counted
