"""The true labels of rows as nodes of a taxonomy, and which answers are right."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.ragged import gather, offsets_of
from hinet.taxonomy import Taxonomy

NOTHING = -1  # the node of a row without an answer


@dataclass(frozen=True, eq=False)
class Truth:
    """The true labels of rows, as nodes of the taxonomy, whether the classifier can predict them or not.

    A label that an inferred taxonomy does not know stands for the deepest node above it that is known, if any, and is
    not ``exact``: nothing that is predicted can be that label. ``names`` has the ids of all labels then.
    """

    taxonomy: Taxonomy
    offsets: NDArray[np.int64]  # (n + 1,)
    nodes: NDArray[np.int64]  # those of row i are offsets[i]:offsets[i + 1]; NOTHING where no node is known
    exact: NDArray[np.bool_]  # as long as nodes
    paths: tuple[tuple[str, ...], ...] | None = None  # of rows that were given as paths in a DAG: ids below the root
    names: NDArray[np.object_] | None = None  # as long as nodes; None if all labels are known

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def owner(self) -> NDArray[np.int64]:
        """The row of every node."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def take(self, rows: NDArray[Any]) -> Truth:
        """Return the chosen rows, by a mask or by number."""
        entries, counts = gather(np.arange(len(self.nodes)), self.offsets, np.arange(len(self))[rows])
        paths = None if self.paths is None else tuple(self.paths[row] for row in np.arange(len(self))[rows].tolist())
        names = None if self.names is None else self.names[entries]
        return Truth(self.taxonomy, offsets_of(counts), self.nodes[entries], self.exact[entries], paths, names)

    def are_right(self, nodes: NDArray[np.int64], *, or_above: bool = False) -> NDArray[np.bool_]:
        """Return whether the node of every row is one of its labels or, with ``or_above``, above one."""
        known = np.flatnonzero(self.nodes != NOTHING if or_above else self.exact)
        labels, owner = self.nodes[known], self.owner[known]
        if or_above:
            distinct, inverse = np.unique(labels, return_inverse=True)
            above, counts = gather(*self.taxonomy.ancestor_lists(distinct), inverse)
            labels, owner = above.astype(np.int64), np.repeat(owner, counts)
        right = np.zeros(len(self), bool)
        right[owner[labels == nodes[owner]]] = True
        return right

    def ids(self) -> list[tuple[str, ...]]:
        """Return the labels of every row by their ids, as far as they are known."""
        known = self.nodes != NOTHING
        names = [self.taxonomy.ids[node] for node in self.nodes[known].tolist()]
        bounds = offsets_of(np.bincount(self.owner[known], minlength=len(self))).tolist()
        return [tuple(names[start:end]) for start, end in pairwise(bounds)]

    def whole_ids(self) -> list[tuple[str, ...]]:
        """Return the labels of every row by their ids, those that are not known too."""
        if self.names is None:
            return self.ids()
        return [tuple(self.names[start:end].tolist()) for start, end in pairwise(self.offsets.tolist())]
