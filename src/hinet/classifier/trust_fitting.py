"""Learns how far texts with unknown words are trusted, from rows as they are and from the same rows made foreign."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.held_out import ForeignRows, HeldOut, taken
from hinet.classifier.labels import Truth
from hinet.data import Traces
from hinet.engine.model.trust import Trust

MIN_HELD_OUT_ROWS = 200  # fewer tell less than training rows do
USUAL = Trust(rate=2.5, power=4.0)  # between what ICD-10-CM and NAICS learn; for few rows
PULL = 1.0  # towards the trust before, or the usual one, as strong as one row
RATES, POWERS = (1e-3, 50.0), (1.0, 10.0)


def with_learned_trust(
    fitted: Fitted, X: Any, traces: Traces, held_out: HeldOut | None, valid: Any, seed: int
) -> tuple[Fitted, HeldOut | None]:
    """Return a classifier right after training with the trust that it learns, and its held-out rows made foreign too.

    It learns from held-out rows if there are enough; ``valid`` has these as checked input. Otherwise from ``X``, which
    are training rows, and their ``traces``.
    """
    if held_out is not None:
        held_out = replace(held_out, foreign=ForeignRows.of(fitted, valid, seed))
        if held_out.foreign is not None and len(held_out.truth) >= MIN_HELD_OUT_ROWS:
            return trust_from_held_out_rows(fitted, held_out.rows, held_out.truth, held_out.foreign), held_out
    return trust_from_training_rows(fitted, X, traces, seed), held_out


def trust_from_training_rows(fitted: Fitted, X: Any, traces: Traces, seed: int) -> Fitted:
    """Return the classifier with the trust that some of its training rows teach."""
    foreign = ForeignRows.of(fitted, X, seed)
    if foreign is None:
        return fitted
    rows = fitted.rows(taken(fitted.features, X, foreign.index))
    nodes = traces.end_nodes.astype(np.int64)
    truth = Truth(fitted.codec.taxonomy, traces.row_offsets, nodes, np.ones(len(nodes), bool)).take(foreign.index)
    return fitted.with_trust(learned_trust(fitted, [(rows, truth), (foreign.rows, truth)]))


def trust_from_held_out_rows(fitted: Fitted, rows: Any, truth: Truth, foreign: ForeignRows) -> Fitted:
    """Return the classifier with the trust that held-out rows teach, as they are and made foreign."""
    if not len(foreign.index):
        return fitted
    return fitted.with_trust(learned_trust(fitted, [(rows, truth), (foreign.rows, truth.take(foreign.index))]))


def learned_trust(fitted: Fitted, parts: Sequence[tuple[Any, Truth]]) -> Trust:
    """Return the trust with the least log loss of the first steps of answers being right; all parts count alike.

    The first step tells whether a text was understood at all. Errors in deeper steps have other causes as well.
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
    """The first steps of the answers to rows at which labels differ."""

    p: NDArray[np.float64]  # (n,)
    share: NDArray[np.float64]  # (n,) of the labels that the node has
    right: NDArray[np.bool_]  # (n,)
    unknown: NDArray[np.float64]  # (n,)

    @classmethod
    def of(cls, fitted: Fitted, rows: Any, truth: Truth) -> _FirstSteps:
        found = fitted.predictor.traces(rows)
        nodes = found.traces.layers.node[found.traces.neurons].astype(np.int64)
        owner = np.repeat(np.arange(len(truth)), np.diff(found.traces.offsets))
        share = fitted.predictor.label_shares[nodes]
        differ = np.flatnonzero(share < 1)
        row, first = np.unique(owner[differ], return_index=True)
        step = differ[first]
        right = truth.take(row).are_right(nodes[step], or_above=True)
        return cls(np.exp(found.log_p[step]), share[step], right, rows.unknown[row].astype(np.float64))

    def loss(self, trust: Trust) -> float:
        """Return the mean log loss of these steps being right, with trust."""
        if not len(self.p):
            return 0.0
        of_row = trust.of(self.unknown)
        p = np.clip(of_row * self.p + (1 - of_row) * self.share, 1e-6, 1 - 1e-6)
        return float(-np.log(np.where(self.right, p, 1 - p)).mean())
