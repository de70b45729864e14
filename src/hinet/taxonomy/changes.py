"""The difference between two taxonomies: nodes that were added, moved, renamed and removed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError, quoted
from hinet.ragged import Bools
from hinet.taxonomy.taxonomy import VIRTUAL_ROOT, Taxonomy

ADDED = -1  # old position of an added node

_EXAMPLES = 3


@dataclass(frozen=True, eq=False)
class TaxonomyChange:
    """How the nodes of a new taxonomy relate to those of an old one.

    A node is moved if it has other parents than before. Renaming the root moves no node.

    Attributes
    ----------
    old, new : Taxonomy
        The two taxonomies.
    old_position : int array of shape (nodes of new,)
        Position in ``old`` of each node, or -1 for one that was added.

    Examples
    --------
    >>> old = Taxonomy.from_edges([(None, "food"), (None, "toys"), ("food", "milk"), ("food", "bread")])
    >>> new = Taxonomy.from_edges([(None, "food"), (None, "games"), ("games", "milk"), ("food", "rice")])
    >>> change = TaxonomyChange.between(old, new, {"toys": "games"})
    >>> change.added, change.moved, change.renamed, change.removed
    (('rice',), ('milk',), (('toys', 'games'),), ('bread',))
    """

    old: Taxonomy
    new: Taxonomy
    old_position: NDArray[np.int64]

    @classmethod
    def between(cls, old: Taxonomy, new: Taxonomy, renamed: Mapping[str, str] | None = None) -> TaxonomyChange:
        """Return the change; nodes are the same if their ids are, or ``renamed`` maps the old id to the new one.

        Raises
        ------
        LabelError
            If a taxonomy lacks a node that ``renamed`` names.
        HiNetError
            If a node is renamed to an id that another node has, or two nodes to one id.
        """
        renamed = renamed or {}
        before: dict[str, str] = {}
        for name, after in renamed.items():
            old.position(name)
            new.position(after)
            if after in old and after not in renamed:
                raise HiNetError(f"{name!r} is renamed to {after!r}, which was a node already; rename that one as well")
            if after in before:
                raise HiNetError(f"{before[after]!r} and {name!r} are both renamed to {after!r}; rename one of them")
            before[after] = name
        position_of = {renamed.get(name, name): position for position, name in enumerate(old.ids)}
        return cls(old, new, np.array([position_of.get(name, ADDED) for name in new.ids], np.int64))

    @cached_property
    def new_position(self) -> NDArray[np.int64]:
        """(nodes of old,) Position in ``new`` of each old node, or -1 for one that was removed."""
        positions = np.full(len(self.old), -1, np.int64)
        kept = np.flatnonzero(self.old_position != ADDED)
        positions[self.old_position[kept]] = kept
        return positions

    @cached_property
    def has_moved(self) -> Bools:
        """(nodes of new,) Whether a node has other parents than in ``old``."""
        size = len(self.new)
        parent, child = _edges(self.old)
        child = self.new_position[child]
        parent = np.append(self.new_position, size)[parent]  # -1 for a removed node, ``size`` for the root
        old_edges = ((parent + 1) * size + child)[child >= 0]
        parent, child = _edges(self.new)
        parent = np.where(parent == VIRTUAL_ROOT, size, parent)
        new_edges = ((parent + 1) * size + child)[self.old_position[child] != ADDED]
        moved = np.zeros(size, bool)
        moved[np.setxor1d(old_edges, new_edges) % size] = True
        if self.new.root != VIRTUAL_ROOT:
            moved[self.new.root] = False
        return moved

    @cached_property
    def added(self) -> tuple[str, ...]:
        """Ids of new nodes."""
        return self._ids(self.old_position == ADDED)

    @cached_property
    def moved(self) -> tuple[str, ...]:
        """Ids of nodes whose parents changed."""
        return self._ids(self.has_moved)

    @cached_property
    def renamed(self) -> tuple[tuple[str, str], ...]:
        """Old and new ids of nodes that have another id now."""
        pairs = (
            (self.old.ids[self.old_position[node]], self.new.ids[node])
            for node in np.flatnonzero(self.old_position != ADDED)
        )
        return tuple((before, after) for before, after in pairs if before != after)

    @cached_property
    def removed(self) -> tuple[str, ...]:
        """Ids of removed nodes."""
        return tuple(self.old.ids[node] for node in np.flatnonzero(self.new_position < 0))

    @property
    def _counts(self) -> dict[str, int]:
        return {kind: len(getattr(self, kind)) for kind in ("added", "moved", "renamed", "removed")}

    def __bool__(self) -> bool:
        """Return whether anything changed."""
        return any(self._counts.values())

    def __repr__(self) -> str:
        changes = ", ".join(f"{count:,} {kind}" for kind, count in self._counts.items() if count)
        return f"<TaxonomyChange: {changes or 'no node changed'}>"

    def __str__(self) -> str:
        """Return a line for each kind of change, with its count and the first of its nodes."""
        examples = {
            "added": [quoted(name) for name in self.added[:_EXAMPLES]],
            "moved": [self._move(name) for name in self.moved[:_EXAMPLES]],
            "renamed": [f"{quoted(before)} to {quoted(after)}" for before, after in self.renamed[:_EXAMPLES]],
            "removed": [quoted(name) for name in self.removed[:_EXAMPLES]],
        }
        lines = [
            f"{count:,} {kind}: {', '.join(examples[kind])}{', …' if count > _EXAMPLES else ''}"
            for kind, count in self._counts.items()
            if count
        ]
        return "\n".join(lines) or "no node was added, moved, renamed or removed"

    def _move(self, name: str) -> str:
        before = self.old.ids[self.old_position[self.new.position(name)]]
        ends = (
            " and ".join(map(quoted, parents)) or "the top"
            for parents in (self.old.parents(before), self.new.parents(name))
        )
        return f"{quoted(name)} from {' to '.join(ends)}"

    def _ids(self, mask: Bools) -> tuple[str, ...]:
        return tuple(self.new.ids[node] for node in np.flatnonzero(mask))

    def nodes_with_other_labels(self) -> NDArray[np.int64]:
        """Return the moved nodes of ``new``, and their ancestors in only one of the two taxonomies."""
        moved = np.flatnonzero(self.has_moved)
        size = len(self.new)
        old_flat, old_offsets = self.old.ancestor_lists(self.old_position[moved])
        owner = np.repeat(np.arange(len(moved)), np.diff(old_offsets))
        position = self.new_position[old_flat]
        before = (owner * size + position)[position >= 0]
        flat, offsets = self.new.ancestor_lists(moved)
        after = np.repeat(np.arange(len(moved)), np.diff(offsets)) * size + flat
        nodes: NDArray[np.int64] = np.unique(np.concatenate([np.setxor1d(before, after) % size, moved]))
        return nodes


def _edges(taxonomy: Taxonomy) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the parents and children of all edges; the root, virtual or not, is -1."""
    tops = taxonomy.tops.astype(np.int64)
    own = taxonomy.edge_parent != taxonomy.root
    parent = np.concatenate([np.full(len(tops), VIRTUAL_ROOT), taxonomy.edge_parent[own].astype(np.int64)])
    return parent, np.concatenate([tops, taxonomy.edge_child[own].astype(np.int64)])
