"""Labelled texts, and how rows are split into parts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hinet.errors import HiNetError, LabelError, counted
from hinet.ragged import Ints


@dataclass(frozen=True)
class LabelledRows:
    """Texts and the label of each."""

    texts: tuple[str, ...]
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.labels):
            raise LabelError(
                f"{counted(len(self.texts), 'text')} and {counted(len(self.labels), 'label')}; give one label per text"
            )

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: Ints) -> LabelledRows:
        """Return the selected rows, in this order."""
        selected = rows.tolist()
        return LabelledRows(tuple(self.texts[row] for row in selected), tuple(self.labels[row] for row in selected))


def split_by_hash(rows: LabelledRows, shares: Mapping[str, float], rest: str) -> dict[str, LabelledRows]:
    """Split rows into named parts by a hash of each row, independent of machine and order.

    Each part of ``shares`` gets about its share of the rows, and ``rest`` the others. The row of each label with the
    largest hash always goes to ``rest``, so that every label has a row there.

    >>> rows = LabelledRows(("a", "b", "c", "d"), ("x", "x", "y", "y"))
    >>> {name: len(part) for name, part in split_by_hash(rows, {"test": 0.5}, "train").items()}
    {'train': 3, 'test': 1}
    """
    order = _hashes(rows)
    part = np.full(len(rows), -1)
    bound = 0.0
    for number, share in enumerate(shares.values()):
        part[(order >= bound) & (order < bound + share)] = number
        bound += share
    _, label = np.unique(np.array(rows.labels, object), return_inverse=True)
    largest_first = np.lexsort((-order, label))
    part[largest_first[np.unique(label[largest_first], return_index=True)[1]]] = -1
    names = [rest, *shares]
    return {name: rows.take(np.flatnonzero(part == number - 1)) for number, name in enumerate(names)}


def _hashes(rows: LabelledRows) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return a number in [0, 1) for every row that depends only on its text and label."""
    digests = b"".join(
        hashlib.blake2b(f"{label}\0{text}".encode(), digest_size=8).digest()
        for text, label in zip(rows.texts, rows.labels, strict=True)
    )
    return np.frombuffer(digests, ">u8") / 2.0**64


def holdout_mask(count: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask of the rows to hold out: a random share of ``count`` rows.

    The choice depends only on the seed, not on labels or texts, so the only row of a label may be held out. Held-out
    rows relate to training rows like new rows of the same source, so estimates on them are valid for new rows. At
    least one row is held out, and at least one is kept.

    >>> holdout_mask(5, 0.4, seed=0).sum()
    np.int64(2)
    """
    if count < 2:
        raise HiNetError(
            f"got {counted(count, 'row')}, but holding some out needs at least 2; give more rows, or validation rows"
        )
    mask = np.zeros(count, bool)
    size = min(max(round(share * count), 1), count - 1)
    mask[np.random.default_rng(seed).permutation(count)[:size]] = True
    return mask
