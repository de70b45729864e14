"""How good the model is, from labels that were predicted before they were given: accuracy, a risk bound, saturation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
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


class Share(NamedTuple):
    """A share of rows with an interval of 95%."""

    value: float
    low: float
    high: float
    rows: int


class Point(NamedTuple):
    """Accuracy of some consecutive labels, up to the number ``labels``."""

    labels: int
    accuracy: Share


class Level(NamedTuple):
    """Accuracy down to a level; 1 is the top."""

    level: int
    accuracy: float
    rows: int


class Acceptance(NamedTuple):
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
    branches: list[tuple[int, Share]]  # top nodes, most labels first
    accept: Acceptance | None
    saturation: str | None


def wilson(right: int, rows: int) -> Share:
    """Return a share with the interval of Wilson.

    >>> share = wilson(9, 10)
    >>> round(share.low, 2), round(share.high, 2)
    (0.6, 0.98)
    """
    if not rows:
        return Share(0.0, 0.0, 1.0, 0)
    share, square = right / rows, Z95**2 / rows
    middle, width = share + square / 2, Z95 * sqrt(share * (1 - share) / rows + square / (4 * rows))
    low, high = ((middle + sign * width) / (1 + square) for sign in (-1, 1))
    return Share(share, min(max(low, 0.0), share), max(min(high, 1.0), share), rows)


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
    return wilson(int(recent.sum()), len(recent)) if len(recent) >= MIN_RECENT else None


def _curve(right: NDArray[np.bool_]) -> list[Point]:
    window = next(size for size in WINDOWS if len(right) // size <= MAX_POINTS)
    ends = range(window, len(right) + 1, window)
    return [Point(end, wilson(int(right[end - window : end].sum()), window)) for end in ends]


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


def _branches(labels: Sequence[Label], right: NDArray[np.bool_], taxonomy: Taxonomy) -> list[tuple[int, Share]]:
    tops, counts = set(taxonomy.tops.tolist()), dict[int, list[int]]()
    for nodes, is_right in zip(closures([label.nodes for label in labels], taxonomy), right.tolist(), strict=True):
        for top in nodes & tops:
            count = counts.setdefault(top, [0, 0])
            count[0] += is_right
            count[1] += 1
    shares = [(top, wilson(*count)) for top, count in counts.items()]
    return sorted(shares, key=lambda pair: (-pair[1].rows, pair[0]))


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
