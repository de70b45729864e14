"""Training and validation rows that a model keeps, as features: updates learn from them and are checked on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.classifier.labels import Truth
from hinet.data import Traces
from hinet.data.matrices import MixedRows, is_sparse
from hinet.errors import HiNetError, counted
from hinet.files import check_plain, narrowest
from hinet.files.schema import FINITE, Schema, check_arrays, floats, indices, offsets
from hinet.ragged import gather, offsets_of
from hinet.taxonomy import Layers, Taxonomy

SHARE_OF_MODEL = 0.05  # size of kept rows relative to the model
MIN_BYTES = 1_000_000  # room for kept rows in small models
HELD_OUT_SHARE = 0.5  # maximum share of validation rows in the bytes of kept rows
MAX_EXAMPLES = 50_000
MAX_LOSS = 0.002  # maximum loss of the score in an update without a warning
CHECK_EVERY = 5  # every fifth kept training row is checked
EXAMPLES, HELD_OUT = "examples", "held_out"  # names of training rows and validation rows in a file


def bytes_to_keep(bytes_of_model: int) -> int:
    """Return the maximum size of the rows that a model keeps."""
    return int(max(MIN_BYTES, SHARE_OF_MODEL * bytes_of_model))


def _schema(name: str, *, is_dense: bool, has_offsets: bool) -> Schema:
    """Return the schema of the arrays of kept rows; without offsets each row has one label."""
    labels = "labels" if has_offsets else "rows"
    dense = {f"{name}.rows": floats("rows", "features", low=-FINITE, high=FINITE)}
    sparse = {
        f"{name}.indptr": offsets("rows", "values"),
        f"{name}.indices": indices("values", below="features"),
        f"{name}.data": floats("values", low=-FINITE, high=FINITE),
    }
    own = {f"{name}.label_offsets": offsets("rows", labels)} if has_offsets else {}
    return {**(dense if is_dense else sparse), f"{name}.nodes": indices(labels, below="nodes"), **own}


@dataclass(frozen=True, eq=False)
class Examples:
    """Rows as the model reads them, CSR or dense, with their labels as positions in the taxonomy.

    A validation row whose labels the model does not know has none.
    """

    rows: Any
    nodes: NDArray[np.int64]  # labels of row i are nodes[label_offsets[i]:label_offsets[i + 1]]
    offsets: NDArray[np.int64] | None = None  # None: each row has one label

    @classmethod
    def of(cls, rows: Any, traces: Traces) -> Examples:
        """Return rows with the nodes in which their traces end."""
        owner = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
        size = np.int64(len(traces.layers.taxonomy))
        ends = np.unique(owner * size + traces.end_nodes)  # traces may end in the same node
        return cls.of_nodes(rows, (ends % size).astype(np.int64), np.bincount(ends // size, minlength=len(traces)))

    @classmethod
    def of_truth(cls, rows: Any, truth: Truth) -> Examples:
        """Return rows with the labels that the model knows."""
        rows = rows.features() if isinstance(rows, MixedRows) else rows
        return cls.of_nodes(rows, truth.nodes[truth.exact], np.bincount(truth.owner[truth.exact], minlength=len(truth)))

    @classmethod
    def of_nodes(cls, rows: Any, nodes: NDArray[np.int64], counts: NDArray[np.int64]) -> Examples:
        """Return rows with ``counts`` labels each."""
        return cls(rows, nodes, None if (counts == 1).all() else offsets_of(counts))

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def label_offsets(self) -> NDArray[np.int64]:
        """(n + 1,) Start of the labels of each row."""
        return np.arange(len(self) + 1) if self.offsets is None else self.offsets

    def truth(self, taxonomy: Taxonomy) -> Truth:
        """Return the labels in the taxonomy of the model."""
        return Truth(taxonomy, self.label_offsets, self.nodes, np.ones(len(self.nodes), bool))

    def traces(self, layers: Layers) -> Traces:
        """Return the labels as traces."""
        return Traces.of_node_lists(layers, self.nodes, self.label_offsets)

    def chosen(self, room: int, seed: int) -> Examples:
        """Return a sample of the rows that fits into ``room`` bytes, balanced over labels."""
        return self.take(self.choice(room, seed)).as_kept()

    def choice(self, room: int, seed: int) -> NDArray[np.int64]:
        """Return the numbers of the rows that :meth:`chosen` takes, in order; they depend on sizes and labels only."""
        order = np.random.default_rng(seed).permutation(len(self))
        label = self._rarest_labels()
        order = order[np.argsort(label[order], kind="stable")]
        starts = np.flatnonzero(np.diff(label[order], prepend=-2))
        rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
        tie = np.random.default_rng([seed, 1]).permutation(len(order))
        return self._fitting(order[np.lexsort((tie, rank))], room)

    def evenly_chosen(self, room: int, seed: int) -> Examples:
        """Return a random sample of the rows that fits into ``room`` bytes, regardless of labels."""
        order = np.random.default_rng(seed).permutation(len(self))
        return self.take(self._fitting(order, room)).as_kept()

    def _fitting(self, order: NDArray[np.int64], room: int) -> NDArray[np.int64]:
        """Return the first rows of an order that fit, sorted."""
        order = order[:MAX_EXAMPLES]
        return np.sort(order[np.cumsum(self._sizes()[order]) <= room])

    def _rarest_labels(self) -> NDArray[np.int64]:
        """(n,) The rarest label of each row; -1 for a row without labels."""
        if self.offsets is None:
            return self.nodes
        owner = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        rows_with = np.bincount(self.nodes)[self.nodes]
        rarest = np.full(len(self), -1)
        order = np.lexsort((-self.nodes, -rows_with))  # the rarest is assigned last
        rarest[owner[order]] = self.nodes[order]
        return rarest

    def take(self, rows: NDArray[np.int64]) -> Examples:
        """Return the chosen rows, by number."""
        if self.offsets is None:
            return Examples(self.rows[rows], self.nodes[rows])
        nodes, counts = gather(self.nodes, self.offsets, rows)
        return Examples.of_nodes(self.rows[rows], nodes.astype(np.int64), counts)

    def as_kept(self) -> Examples:
        """Return the rows as one matrix, in the precision that they have on disk."""
        return replace(self, rows=_as_one(self.rows)).rounded()

    def rounded(self) -> Examples:
        """Return the rows in half precision, as on disk, unless a value is too large."""
        values = self.rows.data if is_sparse(self.rows) else self.rows
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if not np.isfinite(half).all():
            return self
        rows = self.rows.copy()
        (rows.data if is_sparse(rows) else rows)[...] = half
        return replace(self, rows=rows)

    def joined(self, more: Examples) -> Examples:
        """Return these rows and more."""
        both = [_as_one(self.rows), _as_one(more.rows)]
        rows = (sp.vstack if is_sparse(both[0]) else np.vstack)(both)
        counts = np.concatenate([np.diff(self.label_offsets), np.diff(more.label_offsets)])
        rows = sp.csr_array(rows) if is_sparse(rows) else rows
        return Examples.of_nodes(rows, np.concatenate([self.nodes, more.nodes]), counts)

    def moved(self, new_position: NDArray[np.int64]) -> tuple[Examples, NDArray[np.int64]]:
        """Return the rows that still have labels in a changed taxonomy, or never had any, and their numbers."""
        nodes = new_position[self.nodes]
        owner = np.repeat(np.arange(len(self)), np.diff(self.label_offsets))
        counts = np.bincount(owner[nodes >= 0], minlength=len(self))
        kept = np.flatnonzero((counts > 0) | (np.diff(self.label_offsets) == 0))
        return Examples.of_nodes(self.rows[kept], nodes[nodes >= 0], counts[kept]), kept

    def with_labels(self, allowed: NDArray[np.bool_]) -> Examples:
        """Return the rows all of whose labels are ``allowed``, (nodes,)."""
        owner = np.repeat(np.arange(len(self)), np.diff(self.label_offsets))
        other = np.bincount(owner[~allowed[self.nodes]], minlength=len(self))
        return self.take(np.flatnonzero(other == 0))

    def rehearsed(self, *, has_held_out: bool) -> Examples:
        """Return the training rows to train on again: all, or all but the :meth:`checked` ones."""
        return self if has_held_out else self.take(np.flatnonzero(np.arange(len(self)) % CHECK_EVERY > 0))

    def checked(self) -> Examples:
        """Return the training rows that an update is checked on if there are no validation rows."""
        return self.take(np.arange(0, len(self), CHECK_EVERY))

    def _sizes(self) -> NDArray[np.int64]:
        """(n,) Return the approximate size of each row on disk, in half precision."""
        if isinstance(self.rows, MixedRows):
            of_value = 2 + np.min_scalar_type(self.rows.shape[1]).itemsize
            values = np.diff(self.rows.sparse.indptr).astype(np.int64) + self.rows.dense.shape[1]
            return np.asarray(values * of_value + 8)
        if is_sparse(self.rows):
            of_value = 2 + np.min_scalar_type(max(self.rows.shape[1] - 1, 0)).itemsize
            return np.asarray(np.diff(self.rows.indptr).astype(np.int64) * of_value + 8)
        return np.full(len(self), self.rows.shape[1] * 2 + 4, np.int64)

    @property
    def nbytes(self) -> int:
        """Approximate size of the rows on disk."""
        return int(self._sizes().sum())

    def to_arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Return the arrays to save under a name, with the smallest data types that hold the numbers."""
        rows = self.rows
        parts = [(rows.indptr, np.int64), (rows.indices, np.int32), (rows.data, np.float32)] if is_sparse(rows) else []
        parts = [*(parts or [(rows, np.float32)]), (self.nodes, np.int64)]
        if self.offsets is not None:
            parts.append((self.offsets, np.int64))
        names = _schema(name, is_dense=not is_sparse(rows), has_offsets=self.offsets is not None)
        return {
            name: _halved(narrowest(np.ascontiguousarray(array, kind)))
            for name, (array, kind) in zip(names, parts, strict=True)
        }

    @classmethod
    def pop_from(cls, arrays: dict[str, NDArray[Any]], name: str, *, features: int, nodes: int) -> Examples | None:
        """Remove the rows saved under a name from the arrays of a model and return them, if there are any.

        Raises
        ------
        HiNetError
            If they contradict each other, or do not have ``features`` columns, or labels among ``nodes`` nodes; names
            the array.
        """
        saved = {each: arrays.pop(each) for each in [*arrays] if each.startswith(f"{name}.")}
        if not saved:
            return None
        has_offsets = f"{name}.label_offsets" in saved
        schema = _schema(name, is_dense=f"{name}.rows" in saved, has_offsets=has_offsets)
        if unknown := saved.keys() - schema.keys():
            raise HiNetError(f"the arrays have the unknown {min(unknown)!r}")
        sizes = check_arrays(saved, schema, {"features": features, "nodes": nodes})
        labels = np.array(saved[f"{name}.nodes"]).astype(np.int64)
        starts = np.array(saved[f"{name}.label_offsets"]).astype(np.int64) if has_offsets else None
        if f"{name}.rows" in saved:
            return cls(np.array(saved[f"{name}.rows"]).astype(np.float32), labels, starts)
        indptr, columns, data = (
            np.array(saved[f"{name}.{part}"]).astype(kind)
            for part, kind in (("indptr", np.int64), ("indices", np.int32), ("data", np.float32))
        )
        return cls(sp.csr_array((data, columns, indptr), shape=(sizes["rows"], features)), labels, starts)


@dataclass(frozen=True)
class UpdateCheck:
    """The score of rows that a model keeps, before and after an update.

    Attributes
    ----------
    metric : {"accuracy", "micro_f1"}
        The metric; micro-F1 for sets of labels.
    before, after : float
        The score.
    rows : int
        The number of rows.
    held_out : bool
        Whether they are validation rows. Otherwise they are training rows that the update left out.
    """

    metric: Literal["accuracy", "micro_f1"]
    before: float
    after: float
    rows: int
    held_out: bool

    @classmethod
    def restored(cls, metadata: Mapping[str, Any]) -> UpdateCheck:
        """Return the check that a manifest holds, or raise HiNetError if its values are out of range."""
        check_plain(metadata, cls, "update_check")
        check = cls(**metadata)
        if not (0 <= check.before <= 1 and 0 <= check.after <= 1 and check.rows > 0):
            raise HiNetError(f"update_check should have scores from 0 to 1 of some rows, got {dict(metadata)}")
        return check

    @property
    def has_lost(self) -> bool:
        """Whether the score fell by more than 0.2 points."""
        return self.before - self.after > MAX_LOSS

    def __str__(self) -> str:
        name = {"accuracy": "accuracy", "micro_f1": "micro-F1"}[self.metric]
        kind = "validation" if self.held_out else "training"
        rows = counted(self.rows, f"kept {kind} row")
        return f"{name} {100 * self.before:.1f}% before and {100 * self.after:.1f}% after, on {rows}"

    @property
    def warning(self) -> str:
        """The warning about a loss."""
        return f"the update made old rows worse: {self}; train again with all rows to avoid that"


def _as_one(rows: Any) -> Any:
    """Return rows as one matrix; mixed rows become CSR, which models read in the same way."""
    return rows.tocsr() if isinstance(rows, MixedRows) else rows


def _halved(array: NDArray[Any]) -> NDArray[Any]:
    """Return floats in half precision if that is exact, and other numbers unchanged."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(over="ignore"):
        half = array.astype(np.float16)
    return half if np.array_equal(half, array) else array
