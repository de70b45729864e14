from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import LabelError, Layers, Taxonomy, Traces
from hinet.evaluation import accuracy, hierarchical_f1, level_accuracy
from tests.strategies import taxonomies


@st.composite
def judged(draw: st.DrawFn) -> tuple[Layers, list[list[str]], list[str]]:
    layers = Layers.of(draw(taxonomies()))
    labels = [node for node in layers.taxonomy if layers.taxonomy.position(node) != layers.taxonomy.root]
    truth = draw(
        st.lists(st.lists(st.sampled_from(labels), min_size=1, max_size=3, unique=True), min_size=1, max_size=5)
    )
    return layers, truth, draw(st.lists(st.sampled_from(labels), min_size=len(truth), max_size=len(truth)))


def ancestors(taxonomy: Taxonomy, node: str) -> set[str]:
    found = {node}.union(*(ancestors(taxonomy, parent) for parent in taxonomy.parents(node)))
    return found - ({taxonomy.ids[taxonomy.root]} if taxonomy.root >= 0 else set())


@given(judged())
def test_metrics_are_what_sets_say(case: tuple[Layers, list[list[str]], list[str]]) -> None:
    layers, truth, predicted = case
    encoded, guesses = Traces.encode_sets(layers, truth), Traces.encode(layers, predicted)
    assert accuracy(encoded, guesses) == np.mean([p in t for t, p in zip(truth, predicted, strict=True)])
    true = [set().union(*(ancestors(layers.taxonomy, label) for label in row)) for row in truth]
    guessed = [ancestors(layers.taxonomy, label) for label in predicted]
    common = sum(len(t & g) for t, g in zip(true, guessed, strict=True))
    total = sum(map(len, true)) + sum(map(len, guessed))
    assert hierarchical_f1(encoded, guesses) == pytest.approx(2 * common / total)


def test_levels_are_judged_one_by_one() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c"), ("a", "d"), ("d", "e")]))
    truth = Traces.encode(layers, ["c", "d", "e", "b"])
    predicted = Traces.encode(layers, ["d", "d", "d", "a"])
    assert level_accuracy(truth, predicted) == pytest.approx([3 / 4, 2 / 3, 0.0])
    assert level_accuracy(truth, truth) == [1.0, 1.0, 1.0]
    rooted = Layers.of(layers.taxonomy, ends=[*layers.taxonomy])
    assert level_accuracy(Traces.encode(rooted, ["c"]), Traces.encode(rooted, ["r"])) == [0.0, 0.0]


def test_rows_must_be_the_same() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b")]))
    with pytest.raises(LabelError, match="2 true rows and 1 predicted"):
        accuracy(Traces.encode(layers, ["a", "b"]), Traces.encode(layers, ["a"]))
    with pytest.raises(LabelError, match="row 1: nothing is predicted"):
        accuracy(Traces.encode(layers, ["a", "b"]), Traces.encode_sets(layers, [["a"], []]))
