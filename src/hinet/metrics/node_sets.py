"""Sets of labels of rows as arrays, with or without their ancestors, and scores of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.errors import HiNetError, quoted
from hinet.metrics.cases import Labels, label_lists
from hinet.ragged import Bools, Ints, distinct, gather, offsets_of
from hinet.taxonomy import Taxonomy


@dataclass(frozen=True, eq=False)
class NodeSets:
    """The set of labels of every row, which may be empty: each (row, node) as one number, ascending."""

    taxonomy: Taxonomy
    rows: int
    keys: NDArray[np.int64]  # row * len(taxonomy) + node

    @classmethod
    def of(cls, labels: Labels, taxonomy: Taxonomy, side: str) -> NodeSets:
        """Return the labels of rows; None and an empty set are no label."""
        nodes, offsets = label_lists(labels, taxonomy, side)
        row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return cls(taxonomy, len(offsets) - 1, distinct(row * np.int64(len(taxonomy)) + nodes))

    @property
    def row(self) -> NDArray[np.int64]:
        """The row of every label."""
        return self.keys // len(self.taxonomy)

    @property
    def node(self) -> NDArray[np.int64]:
        """The node of every label."""
        return self.keys % len(self.taxonomy)

    def with_ancestors(self) -> NodeSets:
        """Return the sets with all ancestors, the root left out."""
        nodes, inverse = np.unique(self.node, return_inverse=True)
        above, counts = gather(*self.taxonomy.ancestor_lists(nodes), inverse)
        keys = np.repeat(self.row, counts) * np.int64(len(self.taxonomy)) + above
        return NodeSets(self.taxonomy, self.rows, distinct(keys))

    def only(self, chosen: Bools) -> NodeSets:
        """Return the sets without the nodes that are not chosen, (nodes of the taxonomy,)."""
        return NodeSets(self.taxonomy, self.rows, self.keys[chosen[self.node]])

    def has(self, row: Ints, node: Ints) -> Bools:
        """Return whether each node is in the set of each row."""
        if not len(self.keys):
            return np.zeros(len(row), np.bool_)
        keys = row * np.int64(len(self.taxonomy)) + node
        return np.asarray(self.keys[np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)] == keys)


@dataclass(frozen=True, eq=False)
class NodeScores:
    """The scores above 0 of the nodes of every row, row by row; all other nodes have 0."""

    offsets: NDArray[np.int64]  # (n + 1,)
    node: NDArray[np.int64]
    score: NDArray[Any]

    @classmethod
    def of(cls, scores: Any, taxonomy: Taxonomy, labels: Sequence[str] | None) -> NodeScores:
        """Return a dense or CSR matrix of scores, with a column for each of ``labels``, or for each node."""
        matrix: Any = sp.csr_array(scores) if sp.issparse(scores) else np.asarray(scores)
        width = len(taxonomy) if labels is None else len(labels)
        if matrix.ndim != 2 or matrix.shape[1] != width:
            what = "node of the taxonomy" if labels is None else "label"
            raise HiNetError(
                f"scores: expected a column for each of {width:,}, a {what}, got an array of shape {matrix.shape}; "
                "name the columns with `labels`"
            )
        column = np.arange(width) if labels is None else taxonomy.positions(labels)
        values = matrix.data if sp.issparse(matrix) else matrix
        if not np.isfinite(values).all() or (values < 0).any():
            raise HiNetError("scores: expected numbers of at least 0, such as probabilities; got others")
        if sp.issparse(matrix):
            row, found = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices
            kept = matrix.data > 0
            row, found, score = row[kept], found[kept], matrix.data[kept]
        else:
            row, found = np.nonzero(matrix)
            score = matrix[row, found]
        return cls(offsets_of(np.bincount(row, minlength=matrix.shape[0])), column[found], score)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def row(self) -> NDArray[np.int64]:
        """The row of every score."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))


def evaluated_nodes(taxonomy: Taxonomy, leave_out: Iterable[str]) -> Bools:
    """Return which nodes below the root count, (nodes,)."""
    counts = taxonomy.depth > 0
    for name in leave_out:
        counts[taxonomy.position(name)] = False
    if not counts.any():
        raise HiNetError(f"no node is left to evaluate without {', '.join(map(quoted, leave_out))} and the root")
    return counts
