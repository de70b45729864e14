from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import brier_score_loss

from hinet import HiNetError, Layers, Taxonomy, Traces
from hinet.metrics import (
    brier_score,
    confidence,
    coverage_risk,
    expected_calibration_error,
    level_calibration_error,
    log_loss,
)
from tests.metrics.oracle import Rows, ancestors, judged

answers = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=20)


def test_log_loss_by_hand() -> None:
    assert log_loss([1.0, 0.5, 0.25]) == pytest.approx(np.log(2))
    assert log_loss([0.0]) == pytest.approx(36.04, abs=0.01)
    assert log_loss(np.array([1 + 1e-7], np.float32)) == 0.0


@given(answers)
def test_brier_score_is_that_of_scikit_learn(rows: list[tuple[float, bool]]) -> None:
    sure, right = zip(*rows, strict=True)
    assert brier_score(sure, right) == pytest.approx(brier_score_loss(right, sure, pos_label=True))


@given(answers, st.integers(1, 12))
def test_calibration_error_is_that_of_its_bins(rows: list[tuple[float, bool]], bins: int) -> None:
    error = 0.0
    for number in range(bins):
        inside = [(p, hit) for p, hit in rows if min(int(p * bins), bins - 1) == number]
        if inside:
            gap = np.mean([p for p, _ in inside]) - np.mean([hit for _, hit in inside])
            error += len(inside) / len(rows) * abs(gap)
    sure, right = zip(*rows, strict=True)
    assert expected_calibration_error(sure, right, bins=bins) == pytest.approx(error)


def test_the_surest_rows_are_in_the_last_bin() -> None:
    assert expected_calibration_error([1.0, 1.0], [True, False], bins=10) == 0.5
    with pytest.raises(HiNetError, match="bins: expected a whole number of at least 1, got 0"):
        expected_calibration_error([1.0], [True], bins=0)


@given(answers)
def test_the_coverage_risk_curve_is_what_thresholds_do(rows: list[tuple[float, bool]]) -> None:
    sure, right = zip(*rows, strict=True)
    curve = coverage_risk(sure, right)
    assert curve.threshold.tolist() == sorted(set(sure), reverse=True)
    area, covered = 0.0, 0.0
    for threshold, coverage, risk in zip(curve.threshold, curve.coverage, curve.risk, strict=True):
        answered = [hit for p, hit in rows if p >= threshold]
        assert coverage == pytest.approx(len(answered) / len(rows))
        assert risk == pytest.approx(1 - np.mean(answered))
        area, covered = area + (coverage - covered) * risk, coverage
    assert curve.area == pytest.approx(area)
    assert curve.coverage[-1] == 1.0


@given(judged(), st.data())
def test_calibration_by_level_is_that_of_the_nodes_there(rows: Rows, data: st.DataObject) -> None:
    taxonomy, truth, guesses = rows
    layers = Layers.of(taxonomy, ends=taxonomy.ids)
    predicted = Traces.encode(layers, guesses)
    size = len(predicted.neurons)
    p = data.draw(st.lists(st.floats(0.01, 1), min_size=size, max_size=size))
    levels: dict[int, list[tuple[float, bool]]] = {}
    for row, true in enumerate(truth):
        trace = predicted.row_offsets[row]
        known = {node for label in true for node in ancestors(taxonomy, label)}
        for level, place in enumerate(range(*predicted.offsets[trace : trace + 2])):
            name = taxonomy.ids[layers.node[predicted.neurons[place]]]
            levels.setdefault(level, []).append((p[place], name in known))
    wanted = [expected_calibration_error(*zip(*levels[level], strict=True)) for level in sorted(levels)]
    assert level_calibration_error(truth, predicted, np.log(p)) == pytest.approx(wanted)


LAYERS = Layers.of(Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "c")]))


def test_confidence_is_that_of_the_first_trace() -> None:
    first = Traces.encode_sets(LAYERS, [["c", "b"], ["b"]])
    with pytest.raises(HiNetError, match="the traces have no log probabilities; predict them"):
        confidence(first)
    scored = Traces(LAYERS, first.row_offsets, first.offsets, first.neurons, np.log([0.75, 0.25, 0.5]))
    assert confidence(scored) == pytest.approx([0.75, 0.5])


def test_log_probabilities_belong_to_neurons() -> None:
    with pytest.raises(HiNetError, match=r"1 log probabilities for 2 neurons; give Found\.log_p"):
        level_calibration_error(["c"], Traces.encode(LAYERS, ["c"]), [-1.0])
    with pytest.raises(HiNetError, match="neuron 1: probability is inf, not from 0 to 1"):
        level_calibration_error(["c"], Traces.encode(LAYERS, ["c"]), [-1.0, 800.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.5, float("nan")], "row 1: probability is nan, not from 0 to 1; give probabilities, not logits"),
        ([0.5, -3.0], "row 1: probability is -3, not from 0 to 1"),
        ([1.5], "row 0: probability is 1.5, not from 0 to 1"),
        ([], "probability: there are no rows to evaluate; give at least one"),
        ([[0.5, 0.5]], "probability: expected one number per row, got an array of shape (1, 2); choose a column"),
        (["sure"], "probability: expected numbers from 0 to 1, got ['sure']"),
    ],
)
def test_what_is_no_probability_is_named(values: Any, message: str) -> None:
    with pytest.raises(HiNetError) as raised:
        log_loss(values)
    assert str(raised.value).startswith(message)


def test_confidence_and_correctness_are_of_the_same_rows() -> None:
    with pytest.raises(HiNetError, match="2 confidences and 1 values of correct; they must be of the same rows"):
        brier_score([0.5, 0.5], [True])
