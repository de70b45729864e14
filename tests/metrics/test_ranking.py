from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, ndcg_score

from hinet import Taxonomy
from hinet.errors import HiNetError, LabelError
from hinet.metrics import au_prc, label_propensities, ndcg_at_k, precision_at_k, propensity_scored_precision
from tests.metrics.oracle import ancestors
from tests.strategies import taxonomies

ANIMALS = Taxonomy.from_edges([("animal", "cow"), ("animal", "pet"), ("pet", "cat"), ("pet", "dog")])


@st.composite
def scored(draw: st.DrawFn) -> tuple[Taxonomy, list[set[str]], np.ndarray]:
    """A small tree or DAG, the labels of some rows, and a score with ties for every node of each."""
    taxonomy = draw(taxonomies())
    labels = st.sampled_from(taxonomy.ids)
    truth = draw(st.lists(st.sets(labels, max_size=3), min_size=1, max_size=5))
    number = st.sampled_from([0.0, 0.0, 0.25, 0.5, 0.75, 1.0])
    scores = draw(st.lists(number, min_size=len(truth) * len(taxonomy), max_size=len(truth) * len(taxonomy)))
    return taxonomy, truth, np.array(scores).reshape(len(truth), -1)


def indicator(taxonomy: Taxonomy, truth: list[set[str]]) -> np.ndarray:
    """Which nodes each row has, ancestors included."""
    closed = [set().union(*(ancestors(taxonomy, label) for label in labels)) for labels in truth]
    return np.array([[node in nodes for node in taxonomy.ids] for nodes in closed])


@given(scored())
def test_the_area_is_the_micro_average_precision_of_scikit_learn(
    case: tuple[Taxonomy, list[set[str]], np.ndarray],
) -> None:
    taxonomy, truth, scores = case
    counts = taxonomy.depth > 0
    true = indicator(taxonomy, truth)[:, counts]
    if not true.any():
        with pytest.raises(LabelError, match="no row has a label below the root"):
            au_prc(truth, scores, taxonomy=taxonomy)
        return
    expected = average_precision_score(true.ravel(), scores[:, counts].ravel())
    assert au_prc(truth, scores, taxonomy=taxonomy) == pytest.approx(expected)
    assert au_prc(truth, sp.csr_array(scores), taxonomy=taxonomy) == pytest.approx(expected)
    order = np.random.default_rng(0).permutation(len(taxonomy))
    shuffled = [taxonomy.ids[column] for column in order]
    assert au_prc(truth, scores[:, order], labels=shuffled, taxonomy=taxonomy) == pytest.approx(expected)


@given(scored(), st.data())
def test_nodes_can_be_left_out_of_the_area(
    case: tuple[Taxonomy, list[set[str]], np.ndarray], data: st.DataObject
) -> None:
    taxonomy, truth, scores = case
    left_out = data.draw(st.sets(st.sampled_from(taxonomy.ids), max_size=2))
    counts = (taxonomy.depth > 0) & ~np.isin(np.array(taxonomy.ids, object), list(left_out))
    true = indicator(taxonomy, truth)[:, counts]
    if true.any():
        area = au_prc(truth, scores, leave_out=left_out, taxonomy=taxonomy)
        assert area == pytest.approx(average_precision_score(true.ravel(), scores[:, counts].ravel()))


def test_nodes_without_a_column_have_the_score_0() -> None:
    scores = np.array([[0.9, 0.2], [0.4, 0.1]])
    full = np.array([[0.0, 0.0, 0.9, 0.2, 0.0], [0.0, 0.0, 0.4, 0.1, 0.0]])
    truth = [{"cat"}, {"cow", "dog"}]
    part = au_prc(truth, scores, labels=["pet", "cat"], taxonomy=ANIMALS)
    assert part == au_prc(truth, full, labels=["animal", "cow", "pet", "cat", "dog"], taxonomy=ANIMALS)


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (np.zeros((1, 3)), r"expected 5 columns.*shape \(1, 3\)"),
        (np.full((1, 5), -1.0), "at least 0"),
        (np.full((1, 5), np.nan), "at least 0"),
        (np.zeros((2, 5)), "1 true rows and 2 predicted ones"),
    ],
)
def test_other_scores_are_refused(scores: np.ndarray, message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        au_prc([{"cat"}], scores, taxonomy=ANIMALS)


@st.composite
def rankings(draw: st.DrawFn) -> tuple[Taxonomy, list[set[str]], list[list[str]], int]:
    """A small tree or DAG, the labels of some rows, ranked labels of each, and how many of them count."""
    taxonomy = draw(taxonomies())
    label = st.sampled_from(taxonomy.ids)
    rows = st.tuples(st.sets(label, min_size=1, max_size=3), st.lists(label, max_size=5))
    cases = draw(st.lists(rows, min_size=1, max_size=5))
    return taxonomy, [true for true, _ in cases], [ranked for _, ranked in cases], draw(st.integers(1, 4))


@given(rankings())
def test_precision_and_gain_at_k_by_hand(case: tuple[Taxonomy, list[set[str]], list[list[str]], int]) -> None:
    taxonomy, truth, ranked, k = case
    first = [[*dict.fromkeys(labels)][:k] for labels in ranked]
    hits = [[label in true for label in labels] for true, labels in zip(truth, first, strict=True)]
    assert precision_at_k(truth, ranked, k, taxonomy=taxonomy) == pytest.approx(np.mean([sum(h) / k for h in hits]))
    gains = [sum(1 / np.log2(r + 2) for r, hit in enumerate(h) if hit) for h in hits]
    best = [sum(1 / np.log2(r + 2) for r in range(min(k, len(true)))) for true in truth]
    assert ndcg_at_k(truth, ranked, k, taxonomy=taxonomy) == pytest.approx(np.mean(np.divide(gains, best)))
    propensities = np.linspace(0.1, 1, len(taxonomy))
    weight = {node: 1 / p for node, p in zip(taxonomy.ids, propensities, strict=True)}
    gained = sum(weight[label] for true, labels in zip(truth, first, strict=True) for label in labels if label in true)
    possible = sum(sum(sorted((weight[label] for label in true), reverse=True)[:k]) for true in truth)
    scored = propensity_scored_precision(truth, ranked, k, propensities, taxonomy=taxonomy)
    assert scored == pytest.approx(gained / possible)


@given(scored(), st.integers(1, 3))
def test_scores_rank_the_labels(case: tuple[Taxonomy, list[set[str]], np.ndarray], k: int) -> None:
    taxonomy, truth, scores = case
    truth = [labels or {taxonomy.ids[0]} for labels in truth]
    scores = scores + np.linspace(0, 0.1, scores.size).reshape(scores.shape) * (scores > 0)  # without ties
    ranked = [[taxonomy.ids[node] for node in np.argsort(-row) if row[node] > 0] for row in scores]
    for matrix in (scores, sp.csr_array(scores)):
        for metric in (precision_at_k, ndcg_at_k):
            assert metric(truth, matrix, k, taxonomy=taxonomy) == pytest.approx(
                metric(truth, ranked, k, taxonomy=taxonomy)
            )
    if len(taxonomy) > 1 and (scores > 0).all():
        true = np.array([[node in labels for node in taxonomy.ids] for labels in truth])
        assert ndcg_at_k(truth, scores, k, taxonomy=taxonomy) == pytest.approx(ndcg_score(true, scores, k=k))


def test_propensities_are_those_of_the_paper() -> None:
    rows, a, b = 1_000, 0.55, 1.5
    counts = {"cat": 600, "dog": 400, "cow": 0}
    found = label_propensities([{"cat"}] * 600 + [{"dog"}] * 400, taxonomy=ANIMALS)
    scale = (np.log(rows) - 1) * (b + 1) ** a
    for node, count in counts.items():
        expected = 1 / (1 + scale * np.exp(-a * np.log(count + b)))
        assert found[ANIMALS.position(node)] == pytest.approx(expected)
    assert (label_propensities([{"cat"}], taxonomy=ANIMALS) == 1).all()


def test_ranks_begin_at_1() -> None:
    with pytest.raises(HiNetError, match="k: expected a whole number of at least 1, got 0"):
        precision_at_k(["cat"], [["cat"]], 0, taxonomy=ANIMALS)
