"""Changes between two taxonomies, compared with sets of parents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetError, LabelError, Taxonomy
from hinet.taxonomy import TaxonomyChange

NAMES = list("abcdef")
ROOT = "the root"


@st.composite
def small(draw: st.DrawFn) -> Taxonomy:
    """A tree or DAG of a few of the same names, with or without a node as its root."""
    nodes = draw(st.permutations(NAMES))[: draw(st.integers(2, len(NAMES)))]
    rooted = draw(st.booleans())
    edges: list[tuple[str | None, str]] = []
    for place, node in enumerate(nodes):
        above = st.lists(st.sampled_from(nodes[:place]), min_size=int(rooted), max_size=2, unique=True)
        parents = draw(above) if place else []
        edges += [(parent, node) for parent in parents] or [(None, node)]
    return Taxonomy.from_edges(edges)


def parents_of(taxonomy: Taxonomy, node: str) -> set[str]:
    root = taxonomy.ids[taxonomy.root] if taxonomy.root >= 0 else None
    if node == root:
        return set()
    found = {ROOT if parent == root else parent for parent in taxonomy.parents(node)}
    return found or ({ROOT} if root is None else set())


@given(old=small(), new=small(), rename=st.booleans())
def test_changes_match_names_and_parents(old: Taxonomy, new: Taxonomy, rename: bool) -> None:
    gone, fresh = [n for n in old if n not in new], [n for n in new if n not in old]
    renamed = {gone[0]: fresh[0]} if rename and gone and fresh else {}
    change = TaxonomyChange.between(old, new, renamed)
    after = {node: renamed.get(node, node) for node in old}
    moved = []
    for node in new:
        before = next((name for name in old if after[name] == node), None)
        if before is not None and parents_of(new, node):
            was = {after.get(parent, parent) for parent in parents_of(old, before)}
            moved += [node] if was != parents_of(new, node) else []
    assert change.moved == tuple(moved)
    assert change.added == tuple(name for name in new if name not in after.values())
    assert change.removed == tuple(name for name in old if after[name] not in new)
    assert change.renamed == tuple(renamed.items())
    assert bool(change) == bool(moved or change.added or change.removed or renamed)
    told = {new.ids[node] for node in change.nodes_with_other_labels()}
    assert told >= set(moved)
    assert not told or moved


def test_nodes_that_gain_or_lose_labels_are_below_the_common_ancestor() -> None:
    old = Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c"), ("a", "d"), ("c", "x"), ("c", "y"), ("d", "z")])
    new = Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c"), ("a", "d"), ("d", "x"), ("c", "y"), ("d", "z")])
    change = TaxonomyChange.between(old, new)
    assert [new.ids[node] for node in change.nodes_with_other_labels()] == ["c", "d", "x"]


def test_a_change_as_text() -> None:
    old = Taxonomy.from_edges([(None, "food"), (None, "toys"), ("food", "milk"), ("food", "bread")])
    new = Taxonomy.from_edges(
        [(None, "food"), (None, "toys"), ("toys", "milk"), *[("food", f"n{n}") for n in range(9)]]
    )
    change = TaxonomyChange.between(old, new)
    assert str(change).splitlines() == [
        "9 added: 'n0', 'n1', 'n2', …",
        "1 moved: 'milk' from 'food' to 'toys'",
        "1 removed: 'bread'",
    ]
    assert repr(change) == "<TaxonomyChange: 9 added, 1 moved, 1 removed>"
    same = TaxonomyChange.between(old, old)
    assert not same
    assert str(same) == "no node was added, moved, renamed or removed"


def test_invalid_renames_raise() -> None:
    old = Taxonomy.from_edges([("r", "a"), ("r", "b"), ("r", "c")])
    new = Taxonomy.from_edges([("r", "d"), ("r", "c")])
    with pytest.raises(LabelError, match="'x' is not in the taxonomy"):
        TaxonomyChange.between(old, new, {"x": "d"})
    with pytest.raises(LabelError, match="'e' is not in the taxonomy"):
        TaxonomyChange.between(old, new, {"a": "e"})
    with pytest.raises(HiNetError, match="'a' is renamed to 'c', which was a node already"):
        TaxonomyChange.between(old, new, {"a": "c"})
    with pytest.raises(HiNetError, match="'a' and 'b' are both renamed to 'd'"):
        TaxonomyChange.between(old, new, {"a": "d", "b": "d"})
