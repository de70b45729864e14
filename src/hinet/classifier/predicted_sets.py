"""Rows with several labels: the predicted sets, and thresholds learned from held-out rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.labels import NOTHING, SetForm, Truth
from hinet.data import Traces
from hinet.engine import Search
from hinet.errors import HiNetError, counted
from hinet.ragged import gather, offsets_of
from hinet.taxonomy import Taxonomy

Objective = Literal["micro_f1", "macro_f1"]

DEFAULT_THRESHOLD = 0.5  # used without held-out rows
MIN_PROBABILITY = 0.01  # labels below it are never predicted
NEVER = 2.0  # threshold of a level on which no label is predicted
MIN_LABELS = 10  # held-out labels that a level needs for a threshold of its own
MAX_STEPS = 50  # maximum steps of the search for the best F1
GRID = np.linspace(MIN_PROBABILITY, 1, 100)  # thresholds tried for macro-F1

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SetRule:
    """Rule for predicted sets: the labels with at least a threshold probability.

    Attributes
    ----------
    thresholds : tuple of float
        One threshold for all labels, or one per level; the last is for all deeper levels.
    best_always : bool
        Whether the most probable label is predicted even if it is below its threshold.
    objective : "micro_f1", "macro_f1", a precision, or None
        Objective of the thresholds; None if they were not learned.
    rows : int
        Number of held-out rows that they were learned from.
    """

    thresholds: tuple[float, ...] = (DEFAULT_THRESHOLD,)
    best_always: bool = True
    objective: Objective | float | None = None
    rows: int = 0

    @classmethod
    def restored(cls, metadata: Mapping[str, Any]) -> SetRule:
        """Return the rule of a manifest; raise HiNetError if its values are out of range."""
        rule = cls(**{**metadata, "thresholds": tuple(metadata["thresholds"])})
        if not rule.thresholds or not all(0 <= threshold <= NEVER for threshold in rule.thresholds):
            raise HiNetError(f"thresholds should be numbers from 0 to {NEVER:g}, got {list(rule.thresholds)}")
        if isinstance(rule.objective, int | float) and not 0 < rule.objective <= 1:
            raise HiNetError(f"a precision should be above 0 and at most 1, got {rule.objective}")
        return rule

    def __str__(self) -> str:
        named = [f"{threshold:.3g}" if threshold <= 1 else "none" for threshold in self.thresholds]
        levels = f" ({', '.join(named)} from the top level down)" if len(named) > 1 else ""
        least = "the probability of their level" if levels else f"probability {named[0]}"
        best = "; the most probable label always" if self.best_always else ""
        precision = isinstance(self.objective, int | float)
        goal = f"a precision of {self.objective:g}" if precision else str(self.objective).replace("_f1", "-F1")
        learned = f"learned for {goal} on {counted(self.rows, 'row')}" if self.rows else "not learned"
        return f"labels of at least {least}{levels}, {learned}{best}"

    def of_depth(self, depth: NDArray[np.integer]) -> Floats:
        """Return the threshold of nodes at the given depths, which are at least 1."""
        thresholds: Floats = np.array(self.thresholds)[np.clip(depth - 1, 0, len(self.thresholds) - 1)]
        return thresholds


class Answers(NamedTuple):
    """Answers to rows: those of row ``i`` are ``offsets[i]:offsets[i + 1]``, best first."""

    nodes: Ints
    offsets: Ints
    probability: Floats
    traces: Traces | None = None  # the trace of every answer, if there is one
    log_p: Floats | None = None  # log probability of the path down to each neuron of the traces

    @classmethod
    def of_traces(cls, traces: Traces, probability: Floats | None = None, log_p: Floats | None = None) -> Answers:
        """Return the ends of traces as answers; their probability is by default that of the trace."""
        if probability is None:
            assert traces.log_p is not None
            probability = np.exp(traces.log_p)
        return cls(traces.end_nodes.astype(np.int64), np.asarray(traces.row_offsets), probability, traces, log_p)

    @property
    def owner(self) -> Ints:
        """The row of every answer."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def is_best(self) -> NDArray[np.bool_]:
        """Return which answers are the first of their rows."""
        best = np.zeros(len(self.nodes), bool)
        best[self.offsets[:-1][np.diff(self.offsets) > 0]] = True
        return best

    def indices_of_rank(self, rank: int) -> Ints:
        """Return the index of the answer of every row at a rank, from 0; -1 if it has fewer."""
        return np.where(np.diff(self.offsets) > rank, self.offsets[:-1] + rank, -1)

    def nodes_of_rank(self, rank: int) -> Ints:
        """Return the node of every row at a rank; ``NOTHING`` if it has fewer answers."""
        return self._of_rank(self.nodes, rank, NOTHING)

    def probabilities_of_rank(self, rank: int) -> Floats:
        """Return the probability of every row at a rank; NaN if it has fewer answers."""
        return self._of_rank(self.probability, rank, np.nan)

    def _of_rank(self, values: NDArray[Any], rank: int, missing: float) -> NDArray[Any]:
        indices = self.indices_of_rank(rank)
        return np.where(indices < 0, missing, values.take(indices, mode="clip") if len(values) else missing)

    def take(self, kept: NDArray[np.bool_]) -> Answers:
        """Return only the nodes that are kept."""
        counts = np.bincount(self.owner[kept], minlength=len(self.offsets) - 1)
        return Answers(self.nodes[kept], offsets_of(counts), self.probability[kept])


def form_from(some: bool, whole: bool) -> SetForm:
    """Return the form of sets, given whether they include some and whether they include all ancestors of labels."""
    if not some:
        return "deepest"
    return "closed" if whole else "any"


def ancestors_given(traces: Traces) -> tuple[bool, bool]:
    """Return whether rows have some ancestors of their labels, and whether they have all of them."""
    taxonomy, size = traces.layers.taxonomy, np.int64(len(traces.layers.taxonomy))
    row = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
    given = np.unique(row * size + traces.end_nodes)
    own, counts = gather(*_proper_ancestors(taxonomy), given % size)
    above = np.unique(np.repeat(given // size, counts) * size + own)
    has = np.isin(above, given)
    return bool(has.any()), bool(has.all())


def most_probable(search: Search, rows: Any, k: int | None = None, least: float = 0.0) -> Answers:
    """Return the ``k`` most probable labels of rows, or all, with a probability of at least ``least``."""
    return Answers.of_traces(search.traces(rows, k or search.layers.count_traces(), least=least).traces)


def answer_sets(search: Search, rows: Any, rule: SetRule, form: SetForm) -> Answers:
    """Return the set of labels of every row by a rule, in the form of the training labels."""
    lowest, taxonomy = min(rule.thresholds), search.layers.taxonomy
    likely = most_probable(search, rows, None, lowest) if lowest <= 1 else most_probable(search, rows, 1)
    if rule.best_always:
        likely = _with_best(likely, search, rows)
    kept = likely.probability >= rule.of_depth(taxonomy.depth[likely.nodes])
    if rule.best_always:
        kept |= likely.is_best()
    return formed(likely.take(kept), taxonomy, form)


def _with_best(likely: Answers, search: Search, rows: Any) -> Answers:
    """Return sets to which rows without a label add their most probable one."""
    counts = np.diff(likely.offsets)
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return likely
    best = most_probable(search, rows[empty], 1)
    owner = np.concatenate([likely.owner, empty[best.owner]])
    order = np.argsort(owner, kind="stable")
    return Answers(
        np.concatenate([likely.nodes, best.nodes])[order],
        offsets_of(np.bincount(owner, minlength=len(counts))),
        np.concatenate([likely.probability, best.probability])[order],
    )


def formed(sets: Answers, taxonomy: Taxonomy, form: SetForm) -> Answers:
    """Return sets with all ancestors (form "closed"), or without any label above another (form "deepest").

    An added ancestor is at least as probable as its label. Of a label and its ancestor the more probable stays, so
    that a lower threshold only adds labels.
    """
    if form == "any":
        return sets
    size, owner = np.int64(len(taxonomy)), sets.owner
    above, counts = gather(*_proper_ancestors(taxonomy), sets.nodes)
    keys = np.repeat(owner, counts) * size + above
    if form == "deepest":
        return sets.take(_undominated(owner * size + sets.nodes, keys, np.repeat(np.arange(len(owner)), counts)))
    rank = np.concatenate([np.arange(len(owner)), np.repeat(np.arange(len(owner)), counts)])
    key = np.concatenate([owner * size + sets.nodes, keys])
    distinct, first = np.unique(key, return_index=True)  # the label itself, or the best below an ancestor
    order = np.lexsort((rank[first], distinct // size))
    distinct, source = distinct[order], rank[first][order]
    return Answers(
        distinct % size, offsets_of(np.bincount(distinct // size, minlength=len(sets.offsets) - 1)),
        sets.probability[source],
    )  # fmt: skip


def _undominated(labels: Ints, ancestors: Ints, below: Ints) -> NDArray[np.bool_]:
    """Return which labels stay if none may be above another; earlier labels have priority.

    ``ancestors`` are the ancestors of the labels at the indices ``below``.
    """
    order = np.argsort(labels)
    position = np.minimum(np.searchsorted(labels, ancestors, sorter=order), len(labels) - 1)
    above = order[position] if len(labels) else position
    both = labels[above] == ancestors
    pair = np.sort(np.stack([above[both], below[both]]), axis=0)  # (2, pairs) the label that comes first, and the other
    stays = np.ones(len(labels), bool)
    while True:
        dropped = np.zeros(len(labels), bool)
        dropped[pair[1][stays[pair[0]]]] = True
        if np.array_equal(stays, ~dropped):
            return stays
        stays = ~dropped


def _proper_ancestors(taxonomy: Taxonomy) -> tuple[Ints, Ints]:
    """Return the ancestors of every node, without itself and the root, as a ragged array."""
    flat, offsets = taxonomy.ancestor_lists(np.arange(len(taxonomy)))
    own = np.repeat(np.arange(len(taxonomy)), np.diff(offsets))
    other = flat != own
    return flat[other].astype(np.int64), offsets_of(np.bincount(own[other], minlength=len(taxonomy)))


class LabelCandidates(NamedTuple):
    """Likely labels of held-out rows."""

    probability: Floats
    level: Ints
    right: NDArray[np.bool_]  # whether the row has the label
    best: NDArray[np.bool_]  # whether it is the most probable label of the row
    node: Ints


def label_candidates(search: Search, rows: Any, truth: Truth) -> LabelCandidates:
    """Return the likely labels of held-out rows."""
    likely = most_probable(search, rows, None, MIN_PROBABILITY)
    level = search.layers.taxonomy.depth[likely.nodes].astype(np.int64) - 1
    right = truth.has(likely.owner, likely.nodes)
    return LabelCandidates(likely.probability, level, right, likely.is_best(), likely.nodes)


def learned_rule(
    search: Search, rows: Any, truth: Truth, objective: Objective | float, *, by_level: bool = False
) -> SetRule:
    """Return the best rule for an objective on held-out rows: an F1, or the most answers at a given precision.

    The form of sets is ignored, as it changes little. A level with few held-out labels keeps the default threshold.
    """
    taxonomy, known = search.layers.taxonomy, truth.exact
    candidates = label_candidates(search, rows, truth)
    levels = int(taxonomy.depth[candidates.node].max(initial=1)) if by_level else 1
    candidates = candidates._replace(level=np.clip(candidates.level, 0, levels - 1))
    if not isinstance(objective, str):
        thresholds = tuple(_for_precision(candidates, level, objective) for level in range(levels))
        return SetRule(thresholds, False, objective, len(truth))
    learn = _for_micro_f1 if objective == "micro_f1" else _for_macro_f1
    held_out = np.bincount(np.clip(taxonomy.depth[truth.nodes[known]] - 1, 0, levels - 1), minlength=levels)
    if held_out.max() < MIN_LABELS:
        return SetRule()
    scored = []
    for best_always in (True, False):  # on a tie, prefer an answer to none
        learned, score = learn(candidates, truth, levels, best_always)
        pairs = zip(learned, held_out, strict=True)
        thresholds = tuple(own if count >= MIN_LABELS else DEFAULT_THRESHOLD for own, count in pairs)
        scored.append((score, SetRule(thresholds, best_always, objective, len(truth))))
    return max(scored, key=lambda pair: pair[0])[1]


def _for_precision(candidates: LabelCandidates, level: int, precision: float) -> float:
    """Return the lowest threshold at which the labels of a level have at least the given precision."""
    own = candidates.level == level
    order = np.argsort(-candidates.probability[own], kind="stable")
    probability = candidates.probability[own][order]
    enough = np.cumsum(candidates.right[own][order]) >= precision * np.arange(1, len(order) + 1)
    last = np.append(probability[1:] != probability[:-1], True)[: len(order)]  # ties go together
    fitting = np.flatnonzero(enough & last)
    return float(probability[fitting[-1]]) if len(fitting) else NEVER


def _for_micro_f1(
    candidates: LabelCandidates, truth: Truth, levels: int, best_always: bool
) -> tuple[tuple[float, ...], float]:
    """Return the thresholds of the best micro-F1, and that F1.

    At the best F1, ``f``, each level maximises ``right - f / 2 * answered``, so ``f`` is raised step by step.
    """
    free = ~candidates.best if best_always else np.ones(len(candidates.right), bool)
    sure_right, sure = int((candidates.right & ~free).sum()), int((~free).sum())
    runs = []
    for level in range(levels):
        own = free & (candidates.level == level)
        order = np.argsort(-candidates.probability[own], kind="stable")
        probability, right = candidates.probability[own][order], np.append(0, np.cumsum(candidates.right[own][order]))
        within = np.flatnonzero(probability[1:] == probability[:-1]) + 1  # ties go together
        right = right.astype(np.float64)
        right[within] = -np.inf
        runs.append((probability, right))
    f1, thresholds = 0.0, (DEFAULT_THRESHOLD,) * levels
    for _ in range(MAX_STEPS):
        chosen = [int(np.argmax(right - f1 / 2 * np.arange(len(right)))) for _, right in runs]
        hits = sure_right + sum(int(right[count]) for count, (_, right) in zip(chosen, runs, strict=True))
        now = 2 * hits / max(sure + sum(chosen) + len(truth.nodes), 1)
        thresholds = tuple(_between(p, count) for count, (p, _) in zip(chosen, runs, strict=True))
        if now <= f1 + 1e-12:
            break
        f1 = now
    return thresholds, f1


def _between(probability: Floats, count: int) -> float:
    """Return the threshold half way between the last of ``count`` descending probabilities and the next one."""
    ends = np.concatenate([[1.0], probability, [MIN_PROBABILITY]])
    return float(ends[count : count + 2].mean())


def _for_macro_f1(
    candidates: LabelCandidates, truth: Truth, levels: int, best_always: bool
) -> tuple[tuple[float, ...], float]:
    """Return the thresholds of the best mean F1 of labels, and that F1."""
    size = len(truth.taxonomy)
    wanted = np.bincount(truth.nodes[truth.exact], minlength=size)
    total, thresholds = 0.0, []
    for level in range(levels):
        own = candidates.level == level
        scores = []
        for threshold in GRID:
            kept = own & ((candidates.probability >= threshold) | (candidates.best & best_always))
            hits = np.bincount(candidates.node[kept & candidates.right], minlength=size)
            answered = np.bincount(candidates.node[kept], minlength=size)
            scores.append(float((2 * hits / np.maximum(answered + wanted, 1)).sum()))
        best = int(np.argmax(scores))
        thresholds.append(float(GRID[best]))
        total += scores[best]
    return tuple(thresholds), total / max(int(np.count_nonzero(wanted)), 1)


def micro_f1_of(sets: Answers, truth: Truth) -> float:
    """Return the micro-F1 of sets of labels."""
    return 2 * float(truth.has(sets.owner, sets.nodes).sum()) / max(len(sets.nodes) + len(truth.nodes), 1)
