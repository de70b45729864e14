"""Reference metrics with Python sets and breadth-first search, one row at a time."""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st

from hinet import Taxonomy
from tests.strategies import taxonomies

VIRTUAL = "\0the virtual root"

Rows = tuple[Taxonomy, list[list[str]], list[str]]


@st.composite
def judged(draw: st.DrawFn, *, max_labels: int = 3) -> Rows:
    """A small tree or DAG, true labels of some rows, and a predicted label for each; the root may be a label."""
    taxonomy = draw(taxonomies())
    labels = st.sampled_from(taxonomy.ids)
    truth = draw(st.lists(st.lists(labels, min_size=1, max_size=max_labels, unique=True), min_size=1, max_size=6))
    return taxonomy, truth, draw(st.lists(labels, min_size=len(truth), max_size=len(truth)))


def root(taxonomy: Taxonomy) -> str:
    return taxonomy.ids[taxonomy.root] if taxonomy.root >= 0 else VIRTUAL


def parents(taxonomy: Taxonomy, node: str) -> list[str]:
    if node == root(taxonomy):
        return []
    return sorted(taxonomy.parents(node), key=taxonomy.position) or [VIRTUAL]


def ways_up(taxonomy: Taxonomy, node: str) -> dict[str, int]:
    """Edges up to each ancestor, the node itself and the root included."""
    steps, queue = {node: 0}, deque([node])
    while queue:
        at = queue.popleft()
        for parent in parents(taxonomy, at):
            if parent not in steps:
                steps[parent] = steps[at] + 1
                queue.append(parent)
    return steps


def ancestors(taxonomy: Taxonomy, node: str) -> set[str]:
    """The node and its ancestors, the root left out."""
    return set(ways_up(taxonomy, node)) - {root(taxonomy)}


def depth(taxonomy: Taxonomy, node: str) -> int:
    """Edges on the longest way from the root."""
    return max((depth(taxonomy, parent) + 1 for parent in parents(taxonomy, node)), default=0)


def lowest(taxonomy: Taxonomy, true: str, predicted: str) -> str:
    """The common ancestor with the fewest edges to both, then the deepest, then the first."""
    up, over = ways_up(taxonomy, true), ways_up(taxonomy, predicted)

    def rank(node: str) -> tuple[int, int, int]:
        place = len(taxonomy) if node == VIRTUAL else taxonomy.position(node)
        return up[node] + over[node], -depth(taxonomy, node), place

    return min(up.keys() & over.keys(), key=rank)


def distance(taxonomy: Taxonomy, true: str, predicted: str) -> int:
    meeting = lowest(taxonomy, true, predicted)
    return ways_up(taxonomy, true)[meeting] + ways_up(taxonomy, predicted)[meeting]


def way_down(taxonomy: Taxonomy, top: str, node: str) -> set[str]:
    """The nodes of a shortest way from an ancestor down to a node; of several, at each step the first."""
    steps = ways_up(taxonomy, node)
    way = [top]
    while way[-1] != node:
        below = [n for n in steps if way[-1] in parents(taxonomy, n) and steps[n] == steps[way[-1]] - 1]
        way.append(min(below, key=taxonomy.position))
    return set(way)


def shares(common: int, true: int, predicted: int) -> tuple[float, float, float]:
    """Precision, recall and F1; an empty set is matched by an empty one only."""
    return (
        common / predicted if predicted else float(not true),
        common / true if true else float(not predicted),
        2 * common / (true + predicted) if true + predicted else 1.0,
    )
