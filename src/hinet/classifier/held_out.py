"""Held-out rows: as the model reads them, and some of them made foreign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import Features, FrameInput, TextInput, count_of, text_column
from hinet.classifier.labels import Truth
from hinet.data.frames import as_table
from hinet.data.text.text_input import as_arrow

MAX_FOREIGN_ROWS = 2_000


@dataclass(frozen=True, eq=False)
class ForeignRows:
    """Rows made foreign; ``index`` has the number of the row that each was made of."""

    rows: Any
    index: NDArray[np.int64]

    @classmethod
    def of(cls, fitted: Fitted, X: Any, seed: int) -> ForeignRows | None:
        """Return some rows of checked input, made foreign; None if the model is not one of texts in a tree."""
        features = fitted.features
        has_text = isinstance(features, TextInput) or (isinstance(features, FrameInput) and features.text is not None)
        if not (has_text and fitted.predictor.can_scale_odds):
            return None
        assert isinstance(features, TextInput | FrameInput)
        order = np.random.default_rng(seed).permutation(count_of(X))
        index = np.sort(order[:MAX_FOREIGN_ROWS]).astype(np.int64)
        return cls(features.foreign_rows(taken(features, X, index), fitted.predictor.threads, seed), index)

    def made_of(self, rows: NDArray[np.int64]) -> ForeignRows:
        """Return those that were made of some rows, whose numbers are then places among these."""
        place = np.full(max(rows.max(initial=-1), self.index.max(initial=-1)) + 1, -1)
        place[rows] = np.arange(len(rows))
        kept = np.flatnonzero(place[self.index] >= 0)
        return ForeignRows(self.rows[kept], place[self.index[kept]])


@dataclass(frozen=True)
class HeldOut:
    """Validation rows as the model reads them, with all their labels, whether it can predict them or not."""

    rows: Any
    truth: Truth
    foreign: ForeignRows | None = None  # some of them, made foreign

    def take(self, rows: NDArray[np.int64]) -> HeldOut:
        """Return the chosen rows."""
        foreign = None if self.foreign is None else self.foreign.made_of(rows)
        return HeldOut(self.rows[rows], self.truth.take(rows), foreign)

    def halves(self) -> tuple[HeldOut, HeldOut]:
        """Return every other row, and the rest."""
        number = np.arange(len(self.truth))
        return self.take(number[::2]), self.take(number[1::2])


def taken(features: Features, X: Any, rows: NDArray[np.int64]) -> Any:
    """Return the chosen rows of checked input."""
    values = as_table(X) if isinstance(features, FrameInput) else as_arrow(text_column(X))
    return values.take(pa.array(rows))
