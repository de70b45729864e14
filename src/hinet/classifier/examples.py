"""Some training rows that a model keeps, as features: what a changed taxonomy is learned from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data.matrices import is_sparse
from hinet.errors import HiNetError

SHARE_OF_MODEL = 0.05  # bytes of examples against those of the model
LEAST_BYTES = 1_000_000  # for small models
MOST_EXAMPLES = 50_000

_SPARSE = ("examples.indptr", "examples.indices", "examples.data", "examples.shape")
_DENSE, _NODES = "examples.rows", "examples.nodes"


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows as the model reads them, CSR or dense, with the label of each as a position in the taxonomy."""

    rows: Any
    nodes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nodes)

    def chosen(self, bytes_of_model: int, seed: int) -> Examples:
        """Return as many of the rows as are worth their room, of every label about as many."""
        order = np.random.default_rng(seed).permutation(len(self))
        order = order[np.argsort(self.nodes[order], kind="stable")]
        label = self.nodes[order]
        starts = np.flatnonzero(np.diff(label, prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        tie = np.random.default_rng([seed, 1]).permutation(len(order))
        order = order[np.lexsort((tie, rank))][:MOST_EXAMPLES]
        room = max(LEAST_BYTES, SHARE_OF_MODEL * bytes_of_model)
        fits = np.cumsum(self._sizes()[order]) <= room
        return self.take(np.sort(order[fits]))

    def take(self, rows: NDArray[np.int64]) -> Examples:
        """Return the chosen rows."""
        return Examples(self.rows[rows], self.nodes[rows])

    def joined(self, more: Examples) -> Examples:
        """Return these rows and more."""
        stack = sp.vstack if is_sparse(self.rows) else np.vstack
        rows = stack([self.rows, more.rows])
        return Examples(sp.csr_array(rows) if is_sparse(rows) else rows, np.concatenate([self.nodes, more.nodes]))

    def moved(self, new_position: NDArray[np.int64]) -> Examples:
        """Return the rows whose labels are still there, in a changed taxonomy."""
        nodes = new_position[self.nodes]
        kept = np.flatnonzero(nodes >= 0)
        return Examples(self.rows[kept], nodes[kept])

    def _sizes(self) -> NDArray[np.int64]:
        """Return the bytes that each row takes."""
        if is_sparse(self.rows):
            return np.asarray(np.diff(self.rows.indptr).astype(np.int64) * 8 + 16)
        return np.full(len(self), self.rows.shape[1] * self.rows.dtype.itemsize + 8, np.int64)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are kept on disk."""
        if not is_sparse(self.rows):
            return {_DENSE: np.ascontiguousarray(self.rows, np.float32), _NODES: self.nodes}
        kinds: tuple[type[np.generic], ...] = (np.int64, np.int32, np.float32, np.int64)
        parts = (self.rows.indptr, self.rows.indices, self.rows.data, self.rows.shape)
        arrays = [np.ascontiguousarray(part, kind) for part, kind in zip(parts, kinds, strict=True)]
        return {**dict(zip(_SPARSE, arrays, strict=True)), _NODES: self.nodes}

    @classmethod
    def pop_from(cls, arrays: dict[str, NDArray[Any]], nodes: int) -> Examples | None:
        """Take the examples out of the arrays of a model, if it has any.

        Raises
        ------
        HiNetError
            If they contradict each other, or a taxonomy of so many ``nodes``; names the array.
        """
        found = {name: arrays.pop(name) for name in (*_SPARSE, _DENSE, _NODES) if name in arrays}
        if not found:
            return None
        labels = _checked(found, _NODES, "i", 1)
        if len(labels) and not (labels.min() >= 0 and labels.max() < nodes):
            raise _damaged(_NODES)
        if _DENSE in found:
            rows: Any = _checked(found, _DENSE, "f", 2)
        else:
            rows = _restored_rows(*(_checked(found, name, kind, 1) for name, kind in zip(_SPARSE, "iifi", strict=True)))
        if rows.shape[0] != len(labels):
            raise _damaged(_NODES)
        return cls(rows, labels.astype(np.int64))


def _restored_rows(indptr: Any, indices: Any, data: Any, shape: Any) -> Any:
    """Return CSR rows of arrays that can be trusted."""
    rises = len(indptr) > 0 and indptr[0] == 0 and bool((np.diff(indptr) >= 0).all()) and indptr[-1] == len(indices)
    if not rises or len(data) != len(indices):
        raise _damaged(_SPARSE[0])
    if shape.shape != (2,) or shape[0] != len(indptr) - 1 or not 0 <= shape[1] <= np.iinfo(np.int32).max:
        raise _damaged(_SPARSE[3])
    if len(indices) and not (indices.min() >= 0 and indices.max() < shape[1]):
        raise _damaged(_SPARSE[1])
    return sp.csr_array((np.array(data), np.array(indices), np.array(indptr)), shape=tuple(shape.tolist()))


def _checked(arrays: Mapping[str, NDArray[Any]], name: str, kind: str, axes: int) -> NDArray[Any]:
    array = arrays.get(name)
    if array is None or array.dtype.kind != kind or array.ndim != axes or not np.isfinite(array).all():
        raise _damaged(name)
    return array


def _damaged(name: str) -> HiNetError:
    return HiNetError(f"the array {name} is missing, or contradicts the others; the model is damaged")
