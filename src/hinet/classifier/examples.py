"""Some training rows that a model keeps, as features: what a changed taxonomy is learned from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data.matrices import MixedRows, is_sparse
from hinet.files import narrowest
from hinet.files.schema import FINITE, Schema, check_arrays, floats, indices, offsets

SHARE_OF_MODEL = 0.05  # bytes of examples against those of the model
MIN_BYTES = 1_000_000  # for small models
MAX_EXAMPLES = 50_000

_LABELS = {"examples.nodes": indices("examples", below="nodes")}
_SPARSE: Schema = {
    "examples.indptr": offsets("examples", "values"),
    "examples.indices": indices("values", below="features"),
    "examples.data": floats("values", low=-FINITE, high=FINITE),
    **_LABELS,
}
_DENSE: Schema = {"examples.rows": floats("examples", "features", low=-FINITE, high=FINITE), **_LABELS}


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows as the model reads them, CSR or dense, with the label of each as a position in the taxonomy."""

    rows: Any
    nodes: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.nodes)

    def chosen(self, bytes_of_model: int, seed: int) -> Examples:
        """Return a sample of the rows that fits into the bytes for examples, balanced over labels."""
        kept = self.take(self.choice(bytes_of_model, seed))
        return Examples(_as_one(kept.rows), kept.nodes).rounded()

    def choice(self, bytes_of_model: int, seed: int) -> NDArray[np.int64]:
        """Return which rows :meth:`chosen` takes, in their order; their values do not matter."""
        order = np.random.default_rng(seed).permutation(len(self))
        order = order[np.argsort(self.nodes[order], kind="stable")]
        label = self.nodes[order]
        starts = np.flatnonzero(np.diff(label, prepend=-1))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        tie = np.random.default_rng([seed, 1]).permutation(len(order))
        order = order[np.lexsort((tie, rank))][:MAX_EXAMPLES]
        room = max(MIN_BYTES, SHARE_OF_MODEL * bytes_of_model)
        fits = np.cumsum(self._sizes()[order]) <= room
        return np.sort(order[fits])

    def take(self, rows: NDArray[np.int64]) -> Examples:
        """Return the chosen rows."""
        return Examples(self.rows[rows], self.nodes[rows])

    def rounded(self) -> Examples:
        """Return the rows as they are kept on disk: in half precision, unless a value is too large for that."""
        values = self.rows.data if is_sparse(self.rows) else self.rows
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not np.isfinite(half).all():
            return self
        rows = self.rows.copy()
        (rows.data if is_sparse(rows) else rows)[...] = half
        return Examples(rows, self.nodes)

    def joined(self, more: Examples) -> Examples:
        """Return these rows and more."""
        both = [_as_one(self.rows), _as_one(more.rows)]
        rows = (sp.vstack if is_sparse(both[0]) else np.vstack)(both)
        return Examples(sp.csr_array(rows) if is_sparse(rows) else rows, np.concatenate([self.nodes, more.nodes]))

    def moved(self, new_position: NDArray[np.int64]) -> Examples:
        """Return the rows whose labels are still there, in a changed taxonomy."""
        nodes = new_position[self.nodes]
        kept = np.flatnonzero(nodes >= 0)
        return Examples(self.rows[kept], nodes[kept])

    def _sizes(self) -> NDArray[np.int64]:
        """Return about the bytes that each row takes on disk, in half precision."""
        if isinstance(self.rows, MixedRows):
            of_value = 2 + np.min_scalar_type(self.rows.shape[1]).itemsize
            values = np.diff(self.rows.sparse.indptr).astype(np.int64) + self.rows.dense.shape[1]
            return np.asarray(values * of_value + 8)
        if is_sparse(self.rows):
            of_value = 2 + np.min_scalar_type(max(self.rows.shape[1] - 1, 0)).itemsize
            return np.asarray(np.diff(self.rows.indptr).astype(np.int64) * of_value + 8)
        return np.full(len(self), self.rows.shape[1] * 2 + 4, np.int64)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are kept on disk, numbers in the fewest bytes that hold them."""
        rows = self.rows
        parts = [(rows.indptr, np.int64), (rows.indices, np.int32), (rows.data, np.float32)] if is_sparse(rows) else []
        parts = [*(parts or [(rows, np.float32)]), (self.nodes, np.int64)]
        names = _SPARSE if is_sparse(rows) else _DENSE
        return {
            name: _halved(narrowest(np.ascontiguousarray(array, kind)))
            for name, (array, kind) in zip(names, parts, strict=True)
        }

    @classmethod
    def pop_from(cls, arrays: dict[str, NDArray[Any]], *, features: int, nodes: int) -> Examples | None:
        """Take the examples of so many features out of the arrays of a model, if it has any.

        Raises
        ------
        HiNetError
            If they contradict each other, or a taxonomy of so many ``nodes``; names the array.
        """
        saved = {name: arrays.pop(name) for name in {**_SPARSE, **_DENSE} if name in arrays}
        if not saved:
            return None
        schema = _DENSE if "examples.rows" in saved else _SPARSE
        sizes = check_arrays(saved, schema, {"features": features, "nodes": nodes})
        *parts, nodes_of = (np.array(saved[name]) for name in schema)
        labels = nodes_of.astype(np.int64)
        if schema is _DENSE:
            return cls(parts[0].astype(np.float32), labels)
        kinds = (np.int64, np.int32, np.float32)
        indptr, columns, data = (part.astype(kind) for part, kind in zip(parts, kinds, strict=True))
        return cls(sp.csr_array((data, columns, indptr), shape=(sizes["examples"], features)), labels)


def _as_one(rows: Any) -> Any:
    """Return rows as one matrix: those with dense columns beside as CSR, which models read alike."""
    return rows.tocsr() if isinstance(rows, MixedRows) else rows


def _halved(array: NDArray[Any]) -> NDArray[Any]:
    """Return fractions in half precision where that loses nothing, and other numbers as they are."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    return half if np.array_equal(half, array) else array
