"""Training rows and scored rows of trials: parts that are held out in turn, or given validation rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hinet.classifier.inputs import check_container, kind_of
from hinet.data.datasets import holdout_mask
from hinet.data.frames import as_table, is_frame
from hinet.data.matrices import is_sparse
from hinet.data.text.text_input import as_arrow
from hinet.errors import HiNetError
from hinet.ragged import Ints

PARTS = 5  # parts of the rows, held out in turn
MAX_SCORED = 10_000  # maximum number of rows that a trial is scored on
MIN_SCORED = 20  # minimum number, for the jackknife error of a difference


@dataclass(frozen=True)
class TuningRows:
    """Rows in a container that can be indexed, with their labels."""

    rows: Any
    labels: Any

    @classmethod
    def of(cls, X: Any, y: Any) -> TuningRows:
        """Return rows of any container; frames become Arrow tables, lists of numbers become arrays."""
        check_container(X)
        if is_frame(X):
            X = as_table(X)
        elif kind_of(X) == "dense" and getattr(getattr(X, "dtype", None), "kind", "O") not in "biuf":
            try:
                X = np.asarray(X, np.float64)
            except (TypeError, ValueError) as error:
                raise HiNetError(f"X: expected texts, or rows of numbers of one length: {error}") from None
        return cls(_indexable(X), _indexable(y))

    def __len__(self) -> int:
        return int(self.labels.shape[0]) if hasattr(self.labels, "shape") else len(self.labels)

    def take(self, rows: Ints) -> TuningRows:
        """Return the rows of these numbers."""
        return TuningRows(_taken(self.rows, rows), _taken(self.labels, rows))

    def digest(self) -> str:
        """Return a digest of the rows and labels in their order."""
        digest = hashlib.blake2b(digest_size=16)
        add_rows(digest.update, self.rows)
        for label in self.labels.to_pylist() if hasattr(self.labels, "to_pylist") else self.labels:
            several = isinstance(label, set | frozenset)
            digest.update(repr(sorted(map(repr, label)) if several else label).encode())
        return digest.hexdigest()


def _indexable(values: Any) -> Any:
    return values.to_numpy() if hasattr(values, "iloc") else values  # pandas


def _taken(values: Any, rows: Ints) -> Any:
    if hasattr(values, "to_pylist"):  # Arrow
        return values.take(pa.array(rows))
    return values[rows] if hasattr(values, "shape") else [values[row] for row in rows.tolist()]


def add_rows(update: Callable[[Any], None], rows: Any) -> None:
    """Add the bytes of rows to a digest, however they are chunked."""
    if is_sparse(rows):
        csr = rows.tocsr()
        arrays = [csr.indptr, csr.indices, csr.data]
    elif isinstance(rows, np.ndarray) and rows.dtype != object:
        arrays = [rows]
    else:
        table = rows if isinstance(rows, pa.Table) else pa.table({"text": as_arrow(rows)})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table.combine_chunks())
        return update(sink.getvalue())
    for array in arrays:
        update(np.ascontiguousarray(array).view(np.uint8).data)
    return None


@dataclass(frozen=True)
class Split:
    """Rows to train on, validation rows that weight the experts, if any, and rows to score."""

    train: TuningRows
    valid: TuningRows | None
    scored: TuningRows

    @property
    def valid_pair(self) -> tuple[Any, Any] | None:
        """The validation rows and their labels, as ``fit`` takes them."""
        return None if self.valid is None else (self.valid.rows, self.valid.labels)


@dataclass(frozen=True)
class Splits:
    """Numbered splits of the rows; a share of the training rows is the same for every trial.

    Given validation rows are scored in two halves: one weights the experts while the other is scored. Without them, the
    rows are cut into parts that are scored in turn; ``valid_share`` of the others weights the experts, as it will when
    the final model is trained.
    """

    train: TuningRows
    valid: TuningRows | None
    valid_share: float | None
    seed: int

    def __post_init__(self) -> None:
        scored, needed = (self.train if self.valid is None else self.valid), self.count * MIN_SCORED
        if len(scored) < needed:
            kind = "rows" if self.valid is None else "validation rows"
            raise HiNetError(f"got {len(scored)} {kind}, and a search needs at least {needed}; give more")

    @property
    def count(self) -> int:
        """The number of splits."""
        return PARTS if self.valid is None else 2

    @property
    def trains_with_valid(self) -> bool:
        """Whether validation rows weight the experts."""
        return self.valid is not None or self.valid_share is not None

    def rows_of(self, share: float) -> int:
        """Return the approximate number of training rows of a trial."""
        rows = len(self.train)
        if self.valid is None:
            rows = round(rows * (1 - 1 / PARTS) * (1 - (self.valid_share or 0.0)))
        return max(1, round(share * rows))

    def split(self, number: int, share: float = 1.0) -> Split:
        """Return a split with a share of its training rows."""
        if self.valid is not None:
            halves = _parts(len(self.valid), 2, self.seed)
            scored, other = halves[number], halves[1 - number]
            train = np.arange(len(self.train))
            return Split(
                self.train.take(self._some(train, share, number)),
                self.valid.take(other),
                self.valid.take(scored[:MAX_SCORED]),
            )
        parts = _parts(len(self.train), PARTS, self.seed)
        train = np.sort(np.concatenate([part for other, part in enumerate(parts) if other != number]))
        valid = None
        if self.valid_share is not None:
            mask = holdout_mask(len(train), self.valid_share, self.seed + number)
            valid, train = self.train.take(train[mask]), train[~mask]
        scored = parts[number][:MAX_SCORED]
        return Split(self.train.take(self._some(train, share, number)), valid, self.train.take(scored))

    def _some(self, rows: Ints, share: float, number: int) -> Ints:
        """Return a share of rows in their order; smaller shares are subsets of larger ones."""
        order = np.random.default_rng([self.seed, number, 1 << 22]).permutation(len(rows))
        return rows[np.sort(order[: max(1, round(share * len(rows)))])]


def _parts(count: int, parts: int, seed: int) -> list[Ints]:
    order = np.random.default_rng([seed, 1 << 23]).permutation(count)
    return [order[part::parts] for part in range(parts)]
