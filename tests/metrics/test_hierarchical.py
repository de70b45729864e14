from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from hinet import HiNetError, Taxonomy
from hinet.metrics import (
    depth_of_agreement,
    hierarchical_f1,
    hierarchical_precision,
    hierarchical_recall,
    lca_f1,
    lca_precision,
    lca_recall,
    tree_distance,
)
from hinet.metrics.cases import Cases
from hinet.metrics.lca import LowestAncestors
from tests.metrics.oracle import Rows, ancestors, depth, distance, judged, lowest, root, shares, way_down, ways_up

HIERARCHICAL = (hierarchical_precision, hierarchical_recall, hierarchical_f1)
LCA = (lca_precision, lca_recall, lca_f1)
PETS = Taxonomy.from_edges([("r", "pet"), ("r", "cow"), ("pet", "cat"), ("pet", "dog"), ("cat", "kitten")])
#      r
#    / | \     m is below a and b; n below b and, by a longer way, below c
#   a  b  c
#    \ | \ |
#      m   n
DAG = Taxonomy.from_edges(
    [("r", "a"), ("r", "b"), ("r", "c"), ("a", "m"), ("b", "m"), ("b", "n"), ("c", "d"), ("d", "n")]
)


@given(judged())
def test_hierarchical_measures_are_what_sets_say(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    sizes = []
    for true, guess in zip(truth, predicted, strict=True):
        meant, said = set().union(*(ancestors(taxonomy, label) for label in true)), ancestors(taxonomy, guess)
        sizes.append((len(meant & said), len(meant), len(said)))
    micro = shares(*(sum(column) for column in zip(*sizes, strict=True)))
    macro = np.mean([shares(*row) for row in sizes], axis=0)
    assert [measure(truth, predicted, taxonomy=taxonomy) for measure in HIERARCHICAL] == pytest.approx(micro)
    found = [measure(truth, predicted, average="macro", taxonomy=taxonomy) for measure in HIERARCHICAL]
    assert found == pytest.approx(macro)


@given(judged())
def test_lca_measures_are_what_walks_say(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    found = []
    for true, guess in zip(truth, predicted, strict=True):
        meetings = {label: lowest(taxonomy, label, guess) for label in true}
        meant = set().union(*(way_down(taxonomy, top, label) for label, top in meetings.items()))
        said = set().union(*(way_down(taxonomy, top, guess) for top in meetings.values()))
        found.append(shares(len(meant & said), len(meant), len(said)))
    wanted = np.mean(found, axis=0)
    assert [measure(truth, predicted, taxonomy=taxonomy) for measure in LCA] == pytest.approx(wanted)


@given(judged(max_labels=1))
def test_paths_of_one_label_share_only_the_lowest_common_ancestor(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    up, over = [], []
    for (true,), guess in zip(truth, predicted, strict=True):
        meeting = lowest(taxonomy, true, guess)
        up.append(1 / (1 + ways_up(taxonomy, true)[meeting]))
        over.append(1 / (1 + ways_up(taxonomy, guess)[meeting]))
    assert lca_precision(truth, predicted, taxonomy=taxonomy) == pytest.approx(np.mean(over))
    assert lca_recall(truth, predicted, taxonomy=taxonomy) == pytest.approx(np.mean(up))


@given(judged())
def test_distance_and_depth_are_what_walks_say(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    edges, depths = [], []
    for true, guess in zip(truth, predicted, strict=True):
        edges.append(min(distance(taxonomy, label, guess) for label in true))
        common = {root(taxonomy)}.union(*(ancestors(taxonomy, label) & ancestors(taxonomy, guess) for label in true))
        depths.append(max(depth(taxonomy, node) for node in common))
    assert tree_distance(truth, predicted, taxonomy=taxonomy) == pytest.approx(np.mean(edges))
    assert depth_of_agreement(truth, predicted, taxonomy=taxonomy) == pytest.approx(np.mean(depths))


@given(judged(max_labels=1))
def test_truth_and_prediction_may_change_places(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    labels = [true[0] for true in truth]
    for average in ("micro", "macro"):
        there = hierarchical_precision(labels, predicted, average=average, taxonomy=taxonomy)  # type: ignore[arg-type]
        back = hierarchical_recall(predicted, labels, average=average, taxonomy=taxonomy)  # type: ignore[arg-type]
        assert there == pytest.approx(back)
    for measure in (tree_distance, depth_of_agreement, hierarchical_f1, lca_f1):
        back = measure(predicted, labels, taxonomy=taxonomy)
        assert measure(labels, predicted, taxonomy=taxonomy) == pytest.approx(back)


@given(judged())
@settings(max_examples=30)
def test_cases_looked_at_a_few_at_a_time_are_the_same(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    cases = Cases.of(truth, predicted, taxonomy)
    whole, chunked = LowestAncestors.of(cases), LowestAncestors.of(cases, chunk=4)
    assert chunked.up_true.tolist() == whole.up_true.tolist()
    assert chunked.up_predicted.tolist() == whole.up_predicted.tolist()


def test_a_tree_by_hand() -> None:
    truth, predicted = ["kitten", "cow"], ["dog", "cow"]
    # {pet, cat, kitten} and {pet, dog} share {pet}; {cow} and {cow} share {cow}
    assert [m(truth, predicted, taxonomy=PETS) for m in HIERARCHICAL] == pytest.approx([2 / 3, 2 / 4, 4 / 7])
    macro = [m(truth, predicted, average="macro", taxonomy=PETS) for m in HIERARCHICAL]
    assert macro == pytest.approx([(1 / 2 + 1) / 2, (1 / 3 + 1) / 2, (2 / 5 + 1) / 2])
    # kitten, cat, pet and dog, pet: they meet in pet, at depth 1, over 3 edges
    assert [m(truth, predicted, taxonomy=PETS) for m in LCA] == pytest.approx([3 / 4, 4 / 6, (2 / 5 + 1) / 2])
    assert tree_distance(truth, predicted, taxonomy=PETS) == 3 / 2
    assert depth_of_agreement(truth, predicted, taxonomy=PETS) == (1 + 1) / 2


def test_several_labels_by_hand() -> None:
    # the prediction is right; dog, pet is the way to the other label, which meets cat in pet
    assert [m([("cat", "dog")], ["cat"], taxonomy=PETS) for m in LCA] == pytest.approx([1, 2 / 3, 4 / 5])
    assert hierarchical_recall([("cat", "dog")], ["cat"], taxonomy=PETS) == pytest.approx(2 / 3)
    assert tree_distance([("cat", "dog")], ["kitten"], taxonomy=PETS) == 1
    assert depth_of_agreement([("cow", "dog")], ["kitten"], taxonomy=PETS) == 1


def test_a_dag_by_hand() -> None:
    # m has the ancestors a, b; n has b, c, d; both are 1 edge below b
    assert hierarchical_precision(["m"], ["n"], taxonomy=DAG) == 1 / 4
    assert hierarchical_recall(["m"], ["n"], taxonomy=DAG) == 1 / 3
    assert tree_distance(["m"], ["n"], taxonomy=DAG) == 2
    assert tree_distance(["a"], ["n"], taxonomy=DAG) == 3  # up to r and down past b, not past c and d
    assert [m(["m"], ["n"], taxonomy=DAG) for m in LCA] == [1 / 2, 1 / 2, 1 / 2]


def test_the_root_matches_itself_only() -> None:
    for measure in (*HIERARCHICAL, *LCA):
        assert measure(["r"], ["r"], taxonomy=PETS) == 1.0
    for measure in HIERARCHICAL:
        assert measure(["r"], ["cat"], taxonomy=PETS) == measure(["cat"], ["r"], taxonomy=PETS) == 0.0
    assert depth_of_agreement(["r"], ["cat"], taxonomy=PETS) == 0


def test_an_average_has_a_name() -> None:
    with pytest.raises(HiNetError, match="average: expected 'micro' or 'macro', got 'samples'"):
        hierarchical_f1(["cat"], ["cat"], average="samples", taxonomy=PETS)  # type: ignore[arg-type]
