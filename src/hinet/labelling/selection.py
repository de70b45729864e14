"""The rows most worth a label: those that, with a label, teach the most about the rows that are left.

A label counts for similar rows, so a row is worth what its label would do for all rows left: the sum of their doubt,
times how much nearer they come to a known row. The rows are chosen one after the other, so that each adds to those
before it: they are uncertain, unlike known rows, like many others, and unlike each other. The sum is submodular, so
that the greedy choice has at least 63% of the greatest sum.

Doubt comes from the answers of the model; vectors say which rows are alike.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.classifier.answers import PredictionOptions, select_answers
from hinet.classifier.fitted import Fitted
from hinet.data.matrices import MixedRows
from hinet.labelling.store import Reason

WIDTH = 256  # length of the vectors of n-grams
MULTIPLIER, SHIFT = np.uint64(0x9E3779B97F4A7C15), np.uint64(55)  # Fibonacci hashing to 9 bits: bucket and sign
MAX_CANDIDATES, MAX_OTHERS = 4_096, 16_384  # rows to choose from, and rows that stand for all rows left
BLOCK = 256  # candidates that are compared at a time
MAX_COMPARED = 4_096  # vectors that others are compared with at a time
DIFFERENT = 0.4  # greatest cosine to a known row of a row that is unlike all of them
SHARPNESS = 2  # power of the cosine
SIMILAR = 16  # rows that are put in an order in which similar ones follow each other

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


def nearest_cosine(vectors: Vectors, others: Vectors) -> NDArray[np.float32]:
    """Return the greatest cosine of each vector to one of the others; 0 if there are none."""
    best = np.zeros(len(vectors), np.float32)
    for start in range(0, len(others), MAX_COMPARED):
        np.maximum(best, (vectors @ others[start : start + MAX_COMPARED].T).max(1), out=best)
    return best


class Pool(NamedTuple):
    """Rows without labels."""

    rows: NDArray[np.int64]  # (n,) positions in the project
    probability: NDArray[np.float32]  # (n,) of the answer
    branch: NDArray[np.int64]  # (n,) top node of the answer, -1 without one
    all_vectors: NDArray[np.floating[Any]]  # (rows of the project, d)

    def vectors(self, chosen: NDArray[np.int64]) -> Vectors:
        """Return the vectors of some of the rows."""
        return self.all_vectors[self.rows[chosen]].astype(np.float32)


class Plan(NamedTuple):
    """Rows in the order in which to label them."""

    rows: NDArray[np.int64]  # (n,) positions in the project
    reasons: list[Reason]
    branches: dict[int, NDArray[np.int64]]  # rows of each branch in the order of their worth


def plan(pool: Pool, labelled: Vectors, known: Vectors | None, count: int, rng: np.random.Generator) -> Plan:
    """Return up to ``count`` rows most worth a label.

    ``labelled`` has the vectors of rows with labels, ``known`` those of all that the model remembers.
    """
    if not len(pool.rows):
        return Plan(pool.rows, [], {})
    doubt = 1 - pool.probability
    candidates = _candidates(doubt, rng)
    others = np.sort(rng.permutation(len(pool.rows))[:MAX_OTHERS])
    vectors, other_vectors = pool.vectors(candidates), pool.vectors(others)
    reached = _likeness(nearest_cosine(other_vectors, labelled))
    chosen = similar_together(
        _greedy(vectors, other_vectors, reached, doubt[others], count), vectors, pool.branch[candidates]
    )
    all_known = labelled if known is None else np.concatenate([labelled, known])
    novel = nearest_cosine(vectors[chosen], all_known) < DIFFERENT
    reasons: list[Reason] = ["different" if is_novel else "uncertain" for is_novel in novel.tolist()]
    return Plan(pool.rows[candidates[chosen]], reasons, _by_branch(pool, candidates, doubt))


def _candidates(doubt: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return some rows, drawn with probabilities by their doubt."""
    if len(doubt) <= MAX_CANDIDATES:
        return np.arange(len(doubt))
    keys = np.log(np.maximum(doubt, 1e-6)) + rng.gumbel(size=len(doubt))
    return np.sort(np.argpartition(-keys, MAX_CANDIDATES)[:MAX_CANDIDATES])


def _greedy(
    vectors: Vectors, others: Vectors, reached: NDArray[np.float32], doubt: NDArray[np.float32], count: int
) -> NDArray[np.int64]:
    """Return the candidates to label, as indices; ``reached`` says how much others are like known rows."""
    blocks = (_likeness(vectors[start : start + BLOCK] @ others.T) for start in range(0, len(vectors), BLOCK))
    gains = [gain for block in blocks for gain in (np.maximum(block - reached, 0) @ doubt).tolist()]
    heap = [(-gain, candidate) for candidate, gain in enumerate(gains)]
    heapq.heapify(heap)
    chosen: list[int] = []
    while heap and len(chosen) < count:
        _, candidate = heapq.heappop(heap)
        likeness = _likeness(others @ vectors[candidate])
        gain = float(np.maximum(likeness - reached, 0) @ doubt)
        if heap and -gain > heap[0][0]:  # another one may be better by now
            heapq.heappush(heap, (-gain, candidate))
            continue
        chosen.append(candidate)
        reached = np.maximum(reached, likeness)
    return np.array(chosen, np.int64)


def _likeness(cosine: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return how much the label of a row says about another one, given their cosine."""
    likeness: NDArray[np.float32] = np.maximum(cosine, 0) ** SHARPNESS
    return likeness


def similar_together(chosen: NDArray[np.int64], vectors: Vectors, branch: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return chosen candidates in an order in which similar ones follow each other, within each ``SIMILAR`` of them."""
    ordered: list[int] = []
    for start in range(0, len(chosen), SIMILAR):
        left = chosen[start : start + SIMILAR].tolist()
        last = left.pop(0)
        ordered.append(last)
        while left:
            cosine = vectors[left] @ vectors[last]
            last = left.pop(int(np.argmax(cosine + (branch[left] == branch[last]))))
            ordered.append(last)
    return np.array(ordered, np.int64)


def _by_branch(pool: Pool, candidates: NDArray[np.int64], doubt: NDArray[np.float32]) -> dict[int, NDArray[np.int64]]:
    """Return the candidates of each branch, the most doubtful first."""
    order = candidates[np.argsort(-doubt[candidates], kind="stable")]
    return {branch: pool.rows[order[pool.branch[order] == branch]] for branch in np.unique(pool.branch[order]).tolist()}
