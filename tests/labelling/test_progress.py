"""Accuracy as it came, and what follows from it."""

from __future__ import annotations

import tracemalloc
from dataclasses import astuple

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import cohen_kappa_score

from hinet import Taxonomy
from hinet.labelling.progress import Share, agreement, cohens_kappa, hierarchical_kappa, membership, progress
from hinet.labelling.store import Ledger
from tests.labelling.conftest import label

NOTHING_LEFT = np.zeros(0)


@given(st.integers(1, 300), st.integers(0, 300))
def test_the_interval_is_that_of_wilson(rows: int, right: int) -> None:
    right = min(right, rows)
    expected = binomtest(right, rows).proportion_ci(method="wilson")
    share = Share.of(right, rows)
    assert (share.low, share.high) == (pytest.approx(expected.low, abs=1e-4), pytest.approx(expected.high, abs=1e-4))


def test_the_curve_counts_consecutive_labels(tree: Taxonomy) -> None:
    labels = [label(number, number, "rye" if number > 10 else "milk") for number in range(1, 32)]
    figures = progress(labels, tree, NOTHING_LEFT)
    assert figures.labels == 31
    assert [(point.labels, point.accuracy) for point in figures.curve] == [(10, 0), (20, 1), (30, 1)]
    assert figures.accuracy is not None
    assert figures.accuracy.value == pytest.approx(21 / 31)
    assert figures.random is None


def test_levels_and_branches_count_the_labels_that_reach_them(tree: Taxonomy) -> None:
    given_labels = ["rye"] * 5 + ["white"] * 5 + ["doll"] * 5 + ["bread"] * 5
    labels = [label(number, number, node) for number, node in enumerate(given_labels, 1)]
    figures = progress(labels, tree, NOTHING_LEFT)
    assert [astuple(level) for level in figures.levels] == [(1, 0.75, 20), (2, 0.75, 20), (3, 0.5, 10)]
    assert [(branch.node, branch.rows, branch.accuracy) for branch in figures.branches] == [
        ("food", 15, pytest.approx(1 / 3)), ("toys", 5, 0),
    ]  # fmt: skip


def test_a_level_of_a_dag_is_right_by_a_common_ancestor(dag: Taxonomy) -> None:
    labels = [label(number, number, "doll") for number in range(1, 21)]  # predicted: rye, which is also a toy
    assert [level.accuracy for level in progress(labels, dag, NOTHING_LEFT).levels][:2] == [1, 0]


def test_sets_of_labels_are_right_as_a_whole(tree: Taxonomy) -> None:
    labels = [label(number, number, "rye doll", predicted=("doll", "rye")) for number in range(1, 11)]
    labels += [label(number, number, "rye doll") for number in range(11, 21)]
    figures = progress(labels, tree, NOTHING_LEFT)
    assert figures.accuracy is not None
    assert figures.accuracy.value == 0.5
    assert figures.levels[0].accuracy == 0.5


def test_a_threshold_is_accepted_only_with_enough_right_answers(tree: Taxonomy) -> None:
    sure = [label(number, number, "rye", probability=0.99) for number in range(1, 201)]
    left = np.array([0.2, 0.99, 0.99, 0.1])
    accept = progress(sure, tree, left).accept
    assert accept is not None
    assert (accept.risk, accept.rows, accept.coverage) == (0.05, 200, 0.5)
    assert progress(sure[:50], tree, left).accept is None
    wrong = [each._replace(nodes=("milk",)) if each.id % 5 == 0 else each for each in sure]
    assert progress(wrong, tree, left).accept is None


def test_more_labels_do_not_help_once_accuracy_stays(tree: Taxonomy) -> None:
    same = [label(number, number, "rye" if number % 10 else "milk") for number in range(1, 6_001)]
    assert "more labels may not help" in (progress(same, tree, NOTHING_LEFT).saturation or "")
    rising = [label(number, number, "rye" if number > 3_000 else "milk") for number in range(1, 6_001)]
    assert progress(rising, tree, NOTHING_LEFT).saturation is None
    assert progress(same[:100], tree, NOTHING_LEFT).saturation is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=30))
def test_kappa_is_that_of_cohen(pairs: list[tuple[int, int]]) -> None:
    first, second = (np.array(labels) for labels in zip(*pairs, strict=True))
    found = cohens_kappa(first, second)
    if len({*first, *second}) > 1:
        assert found == pytest.approx(cohen_kappa_score(first, second))
    else:
        assert found == 1


SETS = [["rye"], ["white"], ["doll"], ["rye", "rail"], ["food"], ["unknown"], ["gone"]]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=30))
def test_hierarchical_kappa_equals_its_definition(tree: Taxonomy, pairs: list[tuple[int, int]]) -> None:
    first, second = (np.array(labels) for labels in zip(*pairs, strict=True))
    member = membership(SETS, tree)
    sets = [{*row.nonzero()[0].tolist()} for row in member.toarray()]
    credit = np.array(
        [
            [2 * len(one & other) / (len(one) + len(other)) if one or other else float(i == j)
             for j, other in enumerate(sets)]
            for i, one in enumerate(sets)
        ]
    )  # fmt: skip
    assert credit[0, :3] == pytest.approx([1, 2 / 3, 0])
    observed, by_chance = credit[first, second].mean(), credit[first][:, second].mean()
    expected = 1 if by_chance > 1 - 1e-9 else (observed - by_chance) / (1 - by_chance)
    assert hierarchical_kappa(first, second, member) == pytest.approx(expected)


def test_agreement_on_many_different_labels_needs_little_memory() -> None:
    count = 20_000
    numbers, member = np.arange(count), sp.eye_array(count, format="csr")
    tracemalloc.start()
    try:
        assert (cohens_kappa(numbers, numbers), hierarchical_kappa(numbers, numbers, member)) == (1, 1)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_hierarchical_kappa_gives_credit_for_common_ancestors(tree: Taxonomy) -> None:
    pairs = [("rye", "rye"), ("rye", "white"), ("doll", "doll"), ("white", "white")]
    labels = [
        label(2 * row + person, row, node, "Ada" if person else "Bob")
        for row, pair in enumerate(pairs, 1)
        for person, node in enumerate(pair)
    ]
    found = agreement(Ledger(labels).all_independent(), tree)
    assert found is not None
    assert (found.rows, found.agreed) == (4, 0.75)
    assert 0 < found.kappa < found.hierarchical_kappa < 1


def test_a_settlement_is_no_independent_label(tree: Taxonomy) -> None:
    labels = [label(1, 1, "rye"), label(2, 1, "white", "Bob")]
    settled = Ledger([*labels, label(3, 1, "rye", "Bob", action="settle")])
    found = agreement(settled.all_independent(), tree)
    assert found is not None
    assert found.agreed == 0
    assert agreement(Ledger(labels[:1]).all_independent(), tree) is None
