"""Answers of a model to the rows of a project, and vectors by which rows are alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.classifier.answers import PredictionOptions, select_answers
from hinet.classifier.fitted import Fitted
from hinet.data.matrices import MixedRows

WIDTH = 256  # length of the vectors of n-grams
MULTIPLIER, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(55)  # Fibonacci hashing to 9 bits: bucket and sign

Vectors = NDArray[np.float32]


class Scores(NamedTuple):
    """Answers to rows."""

    probability: NDArray[np.float32]  # (n,) of the best answer; of the least probable label of a set
    node: NDArray[np.int64]  # (n,) the answer, or its first label; -1 without any
    vectors: Vectors  # (n, d) of length 1, or 0 for texts without known words


def score(fitted: Fitted, texts: Sequence[str]) -> Scores:
    """Return the answers to texts and their vectors."""
    rows = fitted.rows(list(texts))
    answers = select_answers(fitted, rows, PredictionOptions(), with_traces=False)
    counts = np.diff(answers.offsets)
    probability, node = np.zeros(len(counts), np.float32), np.full(len(counts), -1)
    filled = np.flatnonzero(counts)
    if len(filled):
        starts = answers.offsets[:-1][filled]
        probability[filled] = np.minimum.reduceat(answers.probability, starts)
        node[filled] = answers.nodes[starts]
    return Scores(np.minimum(probability, 1), node, row_vectors(fitted, rows))


def row_vectors(fitted: Fitted, rows: Any) -> Vectors:
    """Return the vectors of rows: those that the model compares texts by, or else their n-grams, hashed."""
    if fitted.predictor.can_remember:
        vectors = fitted.search.text_vectors(rows)
    else:
        vectors = _hashed(rows.tocsr() if isinstance(rows, MixedRows) else sp.csr_array(rows))
    length = np.sqrt(np.square(vectors).sum(1, keepdims=True))
    unit: Vectors = np.divide(vectors, length, out=np.zeros(vectors.shape, np.float32), where=length > 0)
    return unit


def _hashed(rows: Any) -> Vectors:
    """Return sparse rows with their columns hashed to ``WIDTH`` columns with signs."""
    code = (rows.indices.astype(np.uint64) * MULTIPLIER) >> SHIFT
    column, sign = (code >> np.uint64(1)).astype(np.int64), np.where(code & np.uint64(1), 1, -1)
    hashed = sp.csr_array((rows.data * sign, column, rows.indptr), shape=(rows.shape[0], WIDTH))
    hashed.sum_duplicates()
    dense: Vectors = hashed.toarray().astype(np.float32)
    return dense


def known_vectors(fitted: Fitted) -> Vectors | None:
    """Return the vectors of the texts that a model remembers, titles included; None without a memory."""
    if not fitted.predictor.can_remember:
        return None
    vectors = fitted.search.model.experts.neighbours.vector.astype(np.float32)
    unit: Vectors = vectors / np.maximum(np.sqrt(np.square(vectors).sum(1, keepdims=True)), 1)
    return unit


def nearest_cosine(vectors: Vectors, others: Vectors, block: int = 4_096) -> NDArray[np.float32]:
    """Return the greatest cosine of each vector to one of the others; 0 if there are none."""
    best = np.zeros(len(vectors), np.float32)
    for start in range(0, len(others), block):
        part = others[start : start + block].astype(np.float32)
        np.maximum(best, (vectors @ part.T).max(1), out=best)
    return best
