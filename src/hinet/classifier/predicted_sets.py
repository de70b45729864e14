"""Rows with several labels: which sets they are answered with, by thresholds that held-out rows teach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.label_rows import SetForm
from hinet.classifier.labels import Truth
from hinet.data import Traces
from hinet.engine.search.search import Search
from hinet.errors import HiNetError, counted
from hinet.ragged import gather, offsets_of
from hinet.taxonomy import Taxonomy

Objective = Literal["micro_f1", "macro_f1"]

USUAL_THRESHOLD = 0.5  # without held-out rows
LEAST_PROBABILITY = 0.01  # of a label that a threshold may let through
NEVER = 2.0  # the threshold of a level where no label is sure enough
LEAST_LABELS = 10  # held-out labels of a level; fewer cannot tell a better threshold than the usual one
MOST_STEPS = 50  # of the search for the best F1
GRID = np.linspace(LEAST_PROBABILITY, 1, 100)  # thresholds tried for macro-F1

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SetRule:
    """Which labels a row is answered with: those of at least a threshold.

    Attributes
    ----------
    thresholds : tuple of float
        One for all labels; or one for each level, the last for all deeper ones.
    best_always : bool
        Whether the most probable label is answered even if it is below its threshold.
    objective : "micro_f1", "macro_f1", a precision, or None
        What the thresholds were learned for; None if they were not.
    rows : int
        Held-out rows that they were learned from.
    """

    thresholds: tuple[float, ...] = (USUAL_THRESHOLD,)
    best_always: bool = True
    objective: Objective | float | None = None
    rows: int = 0

    @classmethod
    def restored(cls, metadata: Mapping[str, Any]) -> SetRule:
        """Return the rule that a manifest holds, or raise HiNetError if its values are out of range."""
        thresholds, objective = tuple(metadata["thresholds"]), metadata["objective"]
        if not thresholds or not all(0 <= threshold <= NEVER for threshold in thresholds):
            raise HiNetError(f"thresholds should be numbers from 0 to {NEVER:g}, got {list(thresholds)}")
        if isinstance(objective, int | float) and not 0 < objective <= 1:
            raise HiNetError(f"a precision should be above 0 and at most 1, got {objective}")
        return cls(thresholds, metadata["best_always"], objective, metadata["rows"])

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
        """Return the threshold of nodes at a depth of 1 or more."""
        thresholds: Floats = np.array(self.thresholds)[np.clip(depth - 1, 0, len(self.thresholds) - 1)]
        return thresholds


class PredictedSets(NamedTuple):
    """Sets of nodes: those of row ``i`` are ``offsets[i]:offsets[i + 1]``, with their probabilities, the best first."""

    nodes: Ints
    offsets: Ints
    probability: Floats

    @property
    def owner(self) -> Ints:
        """The row of every node."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))

    def take(self, kept: NDArray[np.bool_]) -> PredictedSets:
        """Return the sets with the nodes that are kept."""
        counts = np.bincount(self.owner[kept], minlength=len(self.offsets) - 1)
        return PredictedSets(self.nodes[kept], offsets_of(counts), self.probability[kept])


def form_of(traces: Traces) -> SetForm:
    """Return how the labels of rows relate: whether they come with all their ancestors, or never with one."""
    return form_from(*ancestors_given(traces))


def form_from(some: bool, whole: bool) -> SetForm:
    """Return how labels relate that come with some of their ancestors, or with all of them."""
    if not some:
        return "deepest"
    return "closed" if whole else "any"


def ancestors_given(traces: Traces) -> tuple[bool, bool]:
    """Return whether some labels of rows come with an ancestor, and whether all come with all of theirs."""
    taxonomy, size = traces.layers.taxonomy, np.int64(len(traces.layers.taxonomy))
    row = np.repeat(np.arange(len(traces)), np.diff(traces.row_offsets))
    given = np.unique(row * size + traces.end_nodes)
    own, counts = gather(*_proper_ancestors(taxonomy), given % size)
    above = np.unique(np.repeat(given // size, counts) * size + own)
    has = np.isin(above, given)
    return bool(has.any()), bool(has.all())


def most_probable(search: Search, rows: Any, k: int | None = None, least: float = 0.0) -> PredictedSets:
    """Return the ``k`` most probable labels of rows, or all, of at least a probability."""
    found = search.traces(rows, k or search.layers.count_traces(), least=least).traces
    assert found.log_p is not None
    return PredictedSets(found.end_nodes.astype(np.int64), np.asarray(found.row_offsets), np.exp(found.log_p))


def answer_sets(search: Search, rows: Any, rule: SetRule, form: SetForm) -> PredictedSets:
    """Return the set of labels of every row by a rule, in the form of the training labels."""
    lowest = min(rule.thresholds)
    likely = most_probable(search, rows, None, lowest) if lowest <= 1 else most_probable(search, rows, 1)
    if rule.best_always:
        likely = _with_best(likely, search, rows)
    return formed(_allowed(likely, rule, search.layers.taxonomy), search.layers.taxonomy, form)


def _with_best(likely: PredictedSets, search: Search, rows: Any) -> PredictedSets:
    """Return sets with the most probable label of the rows that have none."""
    counts = np.diff(likely.offsets)
    empty = np.flatnonzero(counts == 0)
    if not len(empty):
        return likely
    best = most_probable(search, rows[empty], 1)
    owner = np.concatenate([likely.owner, empty[best.owner]])
    order = np.argsort(owner, kind="stable")
    return PredictedSets(
        np.concatenate([likely.nodes, best.nodes])[order],
        offsets_of(np.bincount(owner, minlength=len(counts))),
        np.concatenate([likely.probability, best.probability])[order],
    )


def _allowed(likely: PredictedSets, rule: SetRule, taxonomy: Taxonomy) -> PredictedSets:
    """Return the labels of at least their threshold and, if the rule has it so, the best of every row."""
    kept = likely.probability >= rule.of_depth(taxonomy.depth[likely.nodes])
    if rule.best_always:
        kept[likely.offsets[:-1][np.diff(likely.offsets) > 0]] = True
    return likely.take(kept)


def formed(sets: PredictedSets, taxonomy: Taxonomy, form: SetForm) -> PredictedSets:
    """Return sets with all ancestors, or with no label above another, as a form has it.

    An ancestor that is added is at least as probable. Of a label and one above it the more probable stays, so that a
    lower threshold only adds labels.
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
    return PredictedSets(
        distinct % size, offsets_of(np.bincount(distinct // size, minlength=len(sets.offsets) - 1)),
        sets.probability[source],
    )  # fmt: skip


def _undominated(labels: Ints, ancestors: Ints, below: Ints) -> NDArray[np.bool_]:
    """Return which labels stay if none may be above another, the first ones taken first.

    ``ancestors`` are those of the labels numbered ``below``.
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


class JudgedLabels(NamedTuple):
    """Likely labels of held-out rows: how probable, at which level, whether right, whether the best of the row."""

    probability: Floats
    level: Ints
    right: NDArray[np.bool_]
    best: NDArray[np.bool_]
    node: Ints


def judged_labels(search: Search, rows: Any, truth: Truth) -> JudgedLabels:
    """Return the likely labels of held-out rows, and which of them are right."""
    taxonomy = search.layers.taxonomy
    likely = most_probable(search, rows, None, LEAST_PROBABILITY)
    size, known = np.int64(len(taxonomy)), truth.exact
    right = np.isin(likely.owner * size + likely.nodes, truth.owner[known] * size + truth.nodes[known])
    best = np.zeros(len(right), bool)
    best[likely.offsets[:-1][np.diff(likely.offsets) > 0]] = True
    level = taxonomy.depth[likely.nodes].astype(np.int64) - 1
    return JudgedLabels(likely.probability, level, right, best, likely.nodes)


def learned_rule(
    search: Search, rows: Any, truth: Truth, objective: Objective | float, *, by_level: bool = False
) -> SetRule:
    """Return the rule that is best for an objective on held-out rows: an F1, or as many answers as a precision allows.

    The form of sets is left aside: what it adds or removes is little. A level with few held-out labels keeps the usual
    threshold.
    """
    taxonomy, known = search.layers.taxonomy, truth.exact
    judged = judged_labels(search, rows, truth)
    levels = int(taxonomy.depth[judged.node].max(initial=1)) if by_level else 1
    judged = judged._replace(level=np.clip(judged.level, 0, levels - 1))
    if not isinstance(objective, str):
        thresholds = tuple(_for_precision(judged, level, objective) for level in range(levels))
        return SetRule(thresholds, False, objective, len(truth))
    learn = _for_micro_f1 if objective == "micro_f1" else _for_macro_f1
    held_out = np.bincount(np.clip(taxonomy.depth[truth.nodes[known]] - 1, 0, levels - 1), minlength=levels)
    if held_out.max() < LEAST_LABELS:
        return SetRule()
    scored = []
    for best_always in (True, False):  # as good with as without: an answer is more use than none
        learned, score = learn(judged, truth, levels, best_always)
        pairs = zip(learned, held_out, strict=True)
        thresholds = tuple(own if count >= LEAST_LABELS else USUAL_THRESHOLD for own, count in pairs)
        scored.append((score, SetRule(thresholds, best_always, objective, len(truth))))
    return max(scored, key=lambda pair: pair[0])[1] if held_out.sum() >= LEAST_LABELS else scored[0][1]


def _for_precision(judged: JudgedLabels, level: int, precision: float) -> float:
    """Return the lowest threshold at which the labels of a level are as precise as wanted."""
    own = judged.level == level
    order = np.argsort(-judged.probability[own], kind="stable")
    probability = judged.probability[own][order]
    enough = np.cumsum(judged.right[own][order]) >= precision * np.arange(1, len(order) + 1)
    last = np.append(probability[1:] != probability[:-1], True)[: len(order)]  # equal ones go together
    fitting = np.flatnonzero(enough & last)
    return float(probability[fitting[-1]]) if len(fitting) else NEVER


def _for_micro_f1(
    judged: JudgedLabels, truth: Truth, levels: int, best_always: bool
) -> tuple[tuple[float, ...], float]:
    """Return the thresholds of the best micro-F1, and it.

    With the best F1, ``f``, each level has the most of ``right - f / 2 * answered``; so ``f`` is raised step by step.
    """
    free = ~judged.best if best_always else np.ones(len(judged.right), bool)
    sure_right, sure = int((judged.right & ~free).sum()), int((~free).sum())
    runs = []
    for level in range(levels):
        own = free & (judged.level == level)
        order = np.argsort(-judged.probability[own], kind="stable")
        probability, right = judged.probability[own][order], np.append(0, np.cumsum(judged.right[own][order]))
        within = np.flatnonzero(probability[1:] == probability[:-1]) + 1  # equal ones go together
        right = right.astype(np.float64)
        right[within] = -np.inf
        runs.append((probability, right))
    f1, thresholds = 0.0, (USUAL_THRESHOLD,) * levels
    for _ in range(MOST_STEPS):
        chosen = [int(np.argmax(right - f1 / 2 * np.arange(len(right)))) for _, right in runs]
        hits = sure_right + sum(int(right[count]) for count, (_, right) in zip(chosen, runs, strict=True))
        now = 2 * hits / max(sure + sum(chosen) + len(truth.nodes), 1)
        thresholds = tuple(_between(p, count) for count, (p, _) in zip(chosen, runs, strict=True))
        if now <= f1 + 1e-12:
            break
        f1 = now
    return thresholds, f1


def _between(probability: Floats, count: int) -> float:
    """Return the threshold that lets the first ``count`` of falling probabilities through, half way to the next."""
    ends = np.concatenate([[1.0], probability, [LEAST_PROBABILITY]])
    return float(ends[count : count + 2].mean())


def _for_macro_f1(
    judged: JudgedLabels, truth: Truth, levels: int, best_always: bool
) -> tuple[tuple[float, ...], float]:
    """Return the thresholds of the best mean F1 of labels, and it."""
    size = len(truth.taxonomy)
    known = truth.nodes[truth.exact]
    wanted = np.bincount(known, minlength=size)
    total, thresholds = 0.0, []
    for level in range(levels):
        own = judged.level == level
        scores = []
        for threshold in GRID:
            kept = own & ((judged.probability >= threshold) | (judged.best & best_always))
            hits = np.bincount(judged.node[kept & judged.right], minlength=size)
            answered = np.bincount(judged.node[kept], minlength=size)
            scores.append(float((2 * hits / np.maximum(answered + wanted, 1)).sum()))
        best = int(np.argmax(scores))
        thresholds.append(float(GRID[best]))
        total += scores[best]
    return tuple(thresholds), total / max(int(np.count_nonzero(wanted)), 1)


def micro_f1_of(sets: PredictedSets, truth: Truth) -> float:
    """Return the micro-F1 of sets of labels."""
    size, known = np.int64(len(truth.taxonomy)), truth.exact
    right = np.isin(sets.owner * size + sets.nodes, truth.owner[known] * size + truth.nodes[known])
    return 2 * float(right.sum()) / max(len(sets.nodes) + len(truth.nodes), 1)
