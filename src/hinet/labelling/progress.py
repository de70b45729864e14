"""Quality of a project: accuracy of labels that were predicted before they were given, and agreement of people.

The accuracy leads to a risk bound, and to a message once more labels hardly help. Agreement is Cohen's kappa, plain and
with partial credit for common ancestors. All figures are those that the service shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import sqrt
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.errors import HiNetError
from hinet.evaluation.risk import CERTAINTY, THRESHOLDS, find_threshold
from hinet.labelling.store import Label
from hinet.taxonomy import Taxonomy

RECENT = 100  # labels that the current accuracy is about
MIN_RECENT = 10  # minimum number of them
MAX_POINTS = 20  # maximum number of points of the curve
WINDOWS = tuple(base * 10**power for power in range(7) for base in (10, 20, 25, 50))  # labels per point
RISK = 0.05
MAX_RISK_ROWS = 1_000  # last labels that the bound is computed from; earlier answers are those of worse models
MIN_SATURATION = 150  # labels
MAX_GAIN = 0.03  # a greater gain is not excluded before saturation is reported
Z95, Z90 = 1.96, 1.2816  # two-sided 95%, one-sided 90%
EPSILON = 1e-12

Nodes = frozenset[str]
Numbers = NDArray[np.int64]  # (n,) labels of a person, as numbers from 0 on


@dataclass(frozen=True)
class Share:
    """A share of rows with an interval of 95%."""

    value: float
    low: float
    high: float
    rows: int

    @classmethod
    def of(cls, right: int, rows: int) -> Share:
        """Return a share with the interval of Wilson.

        >>> share = Share.of(9, 10)
        >>> round(share.low, 2), round(share.high, 2)
        (0.6, 0.98)
        """
        if not rows:
            return Share(0.0, 0.0, 1.0, 0)
        share, square = right / rows, Z95**2 / rows
        middle, width = share + square / 2, Z95 * sqrt(share * (1 - share) / rows + square / (4 * rows))
        low, high = ((middle + sign * width) / (1 + square) for sign in (-1, 1))
        return Share(share, min(max(low, 0.0), share), max(min(high, 1.0), share), rows)


@dataclass(frozen=True)
class Point:
    """Accuracy of some consecutive labels, up to the number ``labels``."""

    labels: int
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class Level:
    """Accuracy down to a level; 1 is the top."""

    level: int
    accuracy: float
    rows: int


@dataclass(frozen=True)
class Branch:
    """Accuracy of the labels at or below a top node."""

    node: str
    title: str
    accuracy: float
    low: float
    high: float
    rows: int


@dataclass(frozen=True)
class Acceptance:
    """Answers of at least ``threshold`` are wrong in at most the share ``risk``."""

    threshold: float
    coverage: float
    risk: float
    certainty: float
    rows: int


@dataclass(frozen=True)
class Progress:
    """All figures about the first labels of rows."""

    labels: int
    accuracy: Share | None
    random: Share | None
    curve: list[Point]
    levels: list[Level]
    branches: list[Branch]  # most labels first
    accept: Acceptance | None
    saturation: str | None


@dataclass(frozen=True)
class Agreement:
    """Agreement on rows with two labels."""

    rows: int
    agreed: float
    kappa: float
    hierarchical_kappa: float


def progress(labels: Sequence[Label], taxonomy: Taxonomy, left: NDArray[np.floating[Any]]) -> Progress:
    """Return the figures about the first labels of rows, oldest first.

    ``left`` has the probability of the answers to the rows without labels.
    """
    right = np.array([label.is_right for label in labels], bool)
    random = right[[label.reason == "random" for label in labels]]
    recent = labels[-RECENT:] if len(labels) >= MIN_RECENT else []
    return Progress(
        len(labels), _recent(right), _recent(random), _curve(right), _levels(recent, taxonomy),
        _branches(labels, right, taxonomy), _acceptance(labels, right, left), _saturation(right),
    )  # fmt: skip


def _recent(right: NDArray[np.bool_]) -> Share | None:
    recent = right[-RECENT:]
    return Share.of(int(recent.sum()), len(recent)) if len(recent) >= MIN_RECENT else None


def _curve(right: NDArray[np.bool_]) -> list[Point]:
    window = next(size for size in WINDOWS if len(right) // size <= MAX_POINTS)
    ends = range(window, len(right) + 1, window)
    shares = [Share.of(int(right[end - window : end].sum()), window) for end in ends]
    return [Point(end, share.value, share.low, share.high) for end, share in zip(ends, shares, strict=True)]


def closures(lists: Sequence[Sequence[str]], taxonomy: Taxonomy) -> list[set[int]]:
    """Return the nodes of each list with their ancestors, without the root; unknown nodes are left out."""
    known = [[node for node in nodes if node in taxonomy] for nodes in lists]
    flat, offsets = taxonomy.ancestor_lists(taxonomy.positions([node for nodes in known for node in nodes]))
    parts = iter([flat[start:end].tolist() for start, end in pairwise(offsets.tolist())])
    return [{node for _ in nodes for node in next(parts)} for nodes in known]


def _levels(labels: Sequence[Label], taxonomy: Taxonomy) -> list[Level]:
    """Return the accuracy at each level, over the labels at least as deep."""
    if not labels:
        return []
    depth = taxonomy.depth
    true, predicted = (
        closures(lists, taxonomy) for lists in zip(*((x.nodes, x.predicted) for x in labels), strict=True)
    )
    levels = []
    for level in range(1, taxonomy.height + 1):
        right = []
        for label, *sets in zip(labels, true, predicted, strict=True):
            here, answered = ({node for node in nodes if depth[node] == level} for nodes in sets)
            if here:  # a DAG label may have several ancestors at a level
                right.append(bool(here & answered) if len(label.nodes) == 1 else here == answered)
        if right:
            levels.append(Level(level, sum(right) / len(right), len(right)))
    return levels


def _branches(labels: Sequence[Label], right: NDArray[np.bool_], taxonomy: Taxonomy) -> list[Branch]:
    tops, rights = set(taxonomy.tops.tolist()), dict[int, list[bool]]()
    for nodes, is_right in zip(closures([label.nodes for label in labels], taxonomy), right.tolist(), strict=True):
        for top in nodes & tops:
            rights.setdefault(top, []).append(is_right)
    branches = []
    for top, answers in sorted(rights.items(), key=lambda item: (-len(item[1]), item[0])):
        share, name = Share.of(sum(answers), len(answers)), taxonomy.ids[top]
        title = taxonomy.titles[top] or name
        branches.append(Branch(name, title, share.value, share.low, share.high, share.rows))
    return branches


def _acceptance(
    labels: Sequence[Label], right: NDArray[np.bool_], left: NDArray[np.floating[Any]]
) -> Acceptance | None:
    """Return the threshold with a bounded risk that answers the most of the last labels, if there is one."""
    recent = labels[-MAX_RISK_ROWS:]
    probability = np.array([label.probability for label in recent])
    is_wrong, thresholds = ~right[-MAX_RISK_ROWS:], np.array(THRESHOLDS)
    answered = probability[:, None] >= thresholds  # (labels, thresholds)
    counts = answered.sum(0), (answered & is_wrong[:, None]).sum(0)
    try:
        bound = find_threshold(THRESHOLDS, *counts, counts[0], len(recent), risk=RISK, certainty=CERTAINTY)
    except HiNetError:  # too few labels, or too many errors
        return None
    coverage = float((left >= bound.threshold).mean()) if len(left) else 0.0
    return Acceptance(bound.threshold, coverage, RISK, CERTAINTY, len(recent))


def _saturation(right: NDArray[np.bool_]) -> str | None:
    """Return a message if the last third of the labels is hardly more accurate than the third before it."""
    if len(right) < MIN_SATURATION:
        return None
    third = len(right) // 3
    before, since = float(right[-2 * third : -third].mean()), float(right[-third:].mean())
    error = sqrt((before * (1 - before) + since * (1 - since)) / third)
    if since - before + Z90 * error > MAX_GAIN:
        return None
    verb = "did not raise" if since <= before else "hardly raised"
    shares = f"{before:.0%} before, {since:.0%} since"
    return f"the last third of the labels {verb} accuracy: {shares}; more labels may not help"


def agreement(rows_labels: Sequence[Sequence[Label]], taxonomy: Taxonomy) -> Agreement | None:
    """Return how far people agree on rows that each have independent labels of two people or more.

    With more than two, it is the mean over pairs of people, weighted by their common rows.
    """
    pairs: dict[tuple[str, str], list[tuple[Nodes, Nodes]]] = {}
    for labels in rows_labels:
        for one, other in combinations(sorted(labels, key=lambda label: label.annotator), 2):
            nodes = frozenset(one.nodes), frozenset(other.nodes)
            pairs.setdefault((one.annotator, other.annotator), []).append(nodes)
    if not pairs:
        return None
    weights = [len(labels) for labels in pairs.values()]
    figures = [_agreement(labels, taxonomy) for labels in pairs.values()]
    return Agreement(sum(weights), *np.average(figures, axis=0, weights=weights).tolist())


def _agreement(labels: Sequence[tuple[Nodes, Nodes]], taxonomy: Taxonomy) -> tuple[float, float, float]:
    """Return the share of equal labels of two people, and both kappas."""
    distinct = sorted({nodes for pair in labels for nodes in pair}, key=sorted)
    number = {nodes: index for index, nodes in enumerate(distinct)}
    first, second = (np.array([number[pair[person]] for pair in labels]) for person in (0, 1))
    member = membership([sorted(nodes) for nodes in distinct], taxonomy)
    agreed = float((first == second).mean())
    return agreed, cohens_kappa(first, second), hierarchical_kappa(first, second, member)


def cohens_kappa(first: Numbers, second: Numbers) -> float:
    """Return the agreement of two people beyond chance.

    >>> cohens_kappa(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]))
    0.5
    """
    count = 1 + int(max(first.max(), second.max()))
    return _beyond_chance(float((first == second).mean()), float(_shares(first, count) @ _shares(second, count)))


def hierarchical_kappa(first: Numbers, second: Numbers, member: sp.csr_array) -> float:
    """Return Cohen's kappa with the hierarchical F1 of two labels as the credit for them.

    ``member``, (labels, nodes), is 1 for the nodes of a label and their ancestors. Labels without any have credit if
    they are the same. The credit by chance is summed over the sizes of labels, which are few, instead of all pairs.
    """
    size = np.diff(member.indptr)
    total = size[first] + size[second]
    common = member[first].multiply(member[second]).sum(1)
    credit = np.divide(2 * common, total, out=(first == second).astype(np.float64), where=total > 0)
    shares = [_shares(labels, len(size)) for labels in (first, second)]
    sizes, group = np.unique(size, return_inverse=True)
    by_size = [
        sp.csr_array((share, (group, np.arange(len(size)))), shape=(len(sizes), len(size))) @ member for share in shares
    ]
    common_by_chance = (by_size[0] @ by_size[1].T).toarray()  # (sizes, sizes)
    totals = np.maximum(sizes[:, None] + sizes[None, :], 1)
    by_chance = (2 * common_by_chance / totals).sum() + (shares[0] * shares[1])[size == 0].sum()
    return _beyond_chance(float(credit.mean()), float(by_chance))


def _shares(labels: Numbers, count: int) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.bincount(labels, minlength=count) / len(labels)
    return shares


def _beyond_chance(observed: float, by_chance: float) -> float:
    if by_chance >= 1 - EPSILON:  # both always gave the same label
        return 1.0
    return (observed - by_chance) / (1 - by_chance)


def membership(labels: Sequence[Sequence[str]], taxonomy: Taxonomy) -> sp.csr_array:
    """Return which nodes each label has, ancestors included, as (labels, nodes)."""
    nodes = [sorted(closure) for closure in closures(labels, taxonomy)]
    owner, flat = np.repeat(np.arange(len(nodes)), [*map(len, nodes)]), [node for each in nodes for node in each]
    return sp.csr_array((np.ones(len(flat)), (owner, flat)), shape=(len(nodes), len(taxonomy)))
