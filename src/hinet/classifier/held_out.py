"""Held-out rows as the model reads them, some of them made foreign, and the trust that both teach.

Trust is how far the model relies on a text with unknown words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import Features, FrameInput, TextInput, count_of, text_column
from hinet.classifier.labels import Truth
from hinet.data import Traces
from hinet.data.frames import as_table
from hinet.data.text.text_input import as_arrow
from hinet.engine.model.trust import Trust

MAX_FOREIGN_ROWS = 2_000
MIN_HELD_OUT_ROWS = 200  # fewer do not teach trust; training rows do
USUAL = Trust(rate=2.5, power=4.0)  # between the values learned on ICD-10-CM and NAICS
PULL = 1.0  # pull towards the previous trust, or the usual one, with the weight of one row
RATES, POWERS = (1e-3, 50.0), (1.0, 10.0)


@dataclass(frozen=True, eq=False)
class ForeignRows:
    """Rows with foreign words; ``index`` has the number of the row that each was made of."""

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
        return cls(features.foreign_rows(take_inputs(features, X, index), fitted.predictor.threads, seed), index)

    def made_of(self, rows: NDArray[np.int64]) -> ForeignRows:
        """Return the rows that were made of ``rows``, with an ``index`` into these."""
        position = np.full(max(rows.max(initial=-1), self.index.max(initial=-1)) + 1, -1)
        position[rows] = np.arange(len(rows))
        kept = np.flatnonzero(position[self.index] >= 0)
        return ForeignRows(self.rows[kept], position[self.index[kept]])


@dataclass(frozen=True)
class HeldOut:
    """Validation rows as the model reads them, with all their labels, even those that it cannot predict."""

    rows: Any
    truth: Truth
    foreign: ForeignRows | None = None  # made of some of the rows

    def take(self, rows: NDArray[np.int64]) -> HeldOut:
        """Return the chosen rows."""
        foreign = None if self.foreign is None else self.foreign.made_of(rows)
        return HeldOut(self.rows[rows], self.truth.take(rows), foreign)

    def halves(self) -> tuple[HeldOut, HeldOut]:
        """Return every other row, and the rest."""
        number = np.arange(len(self.truth))
        return self.take(number[::2]), self.take(number[1::2])


def held_out_rows(fitted: Fitted, X: Any, truth: Truth, seed: int) -> HeldOut:
    """Return checked input as held-out rows."""
    return HeldOut(fitted.rows(X), truth, ForeignRows.of(fitted, X, seed))


def take_inputs(features: Features, X: Any, rows: NDArray[np.int64]) -> Any:
    """Return the chosen rows of checked input."""
    values = as_table(X) if isinstance(features, FrameInput) else as_arrow(text_column(X))
    return values.take(pa.array(rows))


def with_learned_trust(
    fitted: Fitted, X: Any, traces: Traces, held_out: HeldOut | None, valid: Any, seed: int
) -> tuple[Fitted, HeldOut | None]:
    """Return a newly trained classifier with learned trust, and its held-out rows with foreign rows made of them.

    Trust is learned from the held-out rows if there are enough; ``valid`` has their checked input. Otherwise it is
    learned from the training rows ``X`` with labels ``traces``.
    """
    if held_out is not None:
        held_out = replace(held_out, foreign=ForeignRows.of(fitted, valid, seed))
        if held_out.foreign is not None and len(held_out.truth) >= MIN_HELD_OUT_ROWS:
            return trust_from_held_out_rows(fitted, held_out.rows, held_out.truth, held_out.foreign), held_out
    return trust_from_training_rows(fitted, X, traces, seed), held_out


def trust_from_training_rows(fitted: Fitted, X: Any, traces: Traces, seed: int) -> Fitted:
    """Return the classifier with trust learned from some of its training rows."""
    foreign = ForeignRows.of(fitted, X, seed)
    if foreign is None:
        return fitted
    rows = fitted.rows(take_inputs(fitted.features, X, foreign.index))
    nodes = traces.end_nodes.astype(np.int64)
    truth = Truth(fitted.codec.taxonomy, traces.row_offsets, nodes, np.ones(len(nodes), bool)).take(foreign.index)
    return fitted.with_trust(learned_trust(fitted, [(rows, truth), (foreign.rows, truth)]))


def trust_from_held_out_rows(fitted: Fitted, rows: Any, truth: Truth, foreign: ForeignRows) -> Fitted:
    """Return the classifier with trust learned from held-out rows and the foreign rows made of them."""
    if not len(foreign.index):
        return fitted
    return fitted.with_trust(learned_trust(fitted, [(rows, truth), (foreign.rows, truth.take(foreign.index))]))


def learned_trust(fitted: Fitted, parts: Sequence[tuple[Any, Truth]]) -> Trust:
    """Return the trust that minimises the log loss of whether first steps of answers are right, averaged over parts.

    The first step shows whether a text was understood at all. Errors in deeper steps have other causes as well.
    """
    from scipy.optimize import minimize  # only here: it takes long to import

    before = fitted.predictor.trust or USUAL
    plain = fitted.with_trust(None)
    steps = [_FirstSteps.of(plain, *part) for part in parts]
    rows = sum(len(part.p) for part in steps)
    bounds = np.log([RATES, POWERS])
    start = np.clip(np.log(before), *bounds.T)

    def loss(logs: NDArray[np.float64]) -> float:
        trust = Trust(*np.exp(logs).tolist())
        return float(sum(part.loss(trust) for part in steps) + PULL * ((logs - start) ** 2).sum() / max(rows, 1))

    best = minimize(loss, start, method="Nelder-Mead", bounds=bounds, options={"xatol": 5e-3, "fatol": 1e-6})
    return Trust(*np.exp(best.x).tolist())


@dataclass(frozen=True, eq=False)
class _FirstSteps:
    """The first step of each answer at which labels differ."""

    p: NDArray[np.float64]  # (n,)
    share: NDArray[np.float64]  # (n,) share of all labels that are below the node
    right: NDArray[np.bool_]  # (n,)
    unknown: NDArray[np.float64]  # (n,)

    @classmethod
    def of(cls, fitted: Fitted, rows: Any, truth: Truth) -> _FirstSteps:
        answers = fitted.predictor.traces(rows)
        nodes = answers.traces.layers.node[answers.traces.neurons].astype(np.int64)
        owner = np.repeat(np.arange(len(truth)), np.diff(answers.traces.offsets))
        share = fitted.predictor.label_shares[nodes]
        differ = np.flatnonzero(share < 1)
        row, first = np.unique(owner[differ], return_index=True)
        step = differ[first]
        right = truth.take(row).are_right(nodes[step], or_above=True)
        return cls(np.exp(answers.log_p[step]), share[step], right, rows.unknown[row].astype(np.float64))

    def loss(self, trust: Trust) -> float:
        """Return the mean log loss of whether these steps are right."""
        if not len(self.p):
            return 0.0
        row_trust = trust.of(self.unknown)
        p = np.clip(row_trust * self.p + (1 - row_trust) * self.share, 1e-6, 1 - 1e-6)
        return float(-np.log(np.where(self.right, p, 1 - p)).mean())
