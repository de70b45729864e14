"""Whatever truth and prediction come as, they are judged alike, and what cannot be judged is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from hinet import LabelError, Layers, Taxonomy, Traces
from hinet.metrics import accuracy, hierarchical_f1, label_report
from tests.metrics.oracle import Rows, judged

TREE = Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "7")])


@given(judged())
def test_traces_and_ids_are_judged_alike(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    layers = Layers.of(taxonomy, ends=taxonomy.ids)
    encoded, guesses = Traces.encode_sets(layers, truth), Traces.encode(layers, predicted)
    report = label_report(truth, predicted, taxonomy=taxonomy)
    assert label_report(encoded, guesses) == report
    assert label_report(truth, guesses) == report
    assert label_report([set(true) for true in truth], np.array(predicted, object), taxonomy=taxonomy) == report


@given(judged())
def test_rows_may_be_repeated_and_shuffled(rows: Rows) -> None:
    taxonomy, truth, predicted = rows
    once = label_report(truth, predicted, taxonomy=taxonomy)
    again = label_report((truth * 2)[::-1], (predicted * 2)[::-1], taxonomy=taxonomy)
    for name, value in vars(once).items():
        assert vars(again)[name] == pytest.approx(value)


def test_numbers_are_ids_and_rows_may_mix_one_and_several() -> None:
    assert accuracy([7, ("a", "b")], np.array(["7", "b"]), taxonomy=TREE) == 1.0


def test_a_prediction_is_the_first_trace() -> None:
    layers = Layers.of(TREE)
    assert accuracy(["a", "a"], Traces.encode_sets(layers, [["a", "b"], ["b", "a"]])) == 0.5


def test_what_the_root_does_not_reach_is_no_ancestor() -> None:
    taxonomy = Taxonomy.from_edges([("r", "a"), ("r", "b"), ("q", "a"), ("q", "b")], root="r")
    assert hierarchical_f1(["a"], ["b"], taxonomy=taxonomy) == 0.0
    with pytest.raises(
        LabelError, match=r"y_pred: row 0: 'q' cannot be reached from the root; name a node below the root"
    ):
        accuracy(["a"], ["q"], taxonomy=taxonomy)


@pytest.mark.parametrize(
    ("y_true", "y_pred", "message"),
    [
        (["a", "b"], ["a"], "2 true rows and 1 predicted ones; they must be the same rows"),
        ([], [], "there are no rows to evaluate; give at least one"),
        (["a", "A1"], ["a", "b"], "y_true: row 1: label 'A1' is not in the taxonomy of 4 nodes"),
        (["a", ("b", "bb")], ["a", "b"], "y_true: row 1: label 'bb' is not in the taxonomy of 4 nodes"),
        (["a", "b"], ["a", "c"], "y_pred: row 1: label 'c' is not in the taxonomy of 4 nodes"),
        (["a", "b"], [None, ""], "y_pred: no row has a prediction, so there is nothing to evaluate"),
        (["a", float("nan")], ["a", "b"], "y_true: row 1: there is no true label; leave rows without labels out"),
        (["a", ()], ["a", "b"], "y_true: row 1: there is no true label; leave rows without labels out"),
        (["a", "b"], ["a", ["b", "7"]], "y_pred: row 1: expected one label, got 2; name the best one"),
        ("ab", ["a", "b"], "y_true: expected Traces or a list of labels, got 'ab'; put it into a list"),
        (["a"], 3, "y_pred: expected Traces or a list of labels, got '3'; put it into a list"),
    ],
)
def test_what_cannot_be_judged_is_named(y_true: Any, y_pred: Any, message: str) -> None:
    with pytest.raises(LabelError) as raised:
        accuracy(y_true, y_pred, taxonomy=TREE)
    assert str(raised.value).startswith(message)


def test_traces_that_cannot_be_evaluated_are_named() -> None:
    layers = Layers.of(TREE)
    both = Traces.encode(layers, ["a", "b"])
    assert accuracy(both, Traces.encode_sets(layers, [["a"], []])) == 1  # only rows with a prediction count
    with pytest.raises(LabelError, match="row 1: there is no true label"):
        accuracy(Traces.encode_sets(layers, [["a"], []]), both)
    with pytest.raises(LabelError, match="set `taxonomy`"):
        accuracy(["a"], ["a"])
    with pytest.raises(LabelError, match="have two taxonomies"):
        accuracy(both, both, taxonomy=Taxonomy.from_edges([("r", "a"), ("r", "b")]))
