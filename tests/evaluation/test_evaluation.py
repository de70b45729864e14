"""A judgement gives the figures of the metrics, and says where in the tree errors fall."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hinet import HiNetClassifier, Taxonomy
from hinet.evaluation.evaluation import Evaluation
from hinet.evaluation.plots import plot_evaluation, plot_history
from hinet.metrics import accuracy, expected_calibration_error, level_calibration_error
from hinet.progress import EpochRecord

ANIMALS = Taxonomy.from_edges(
    [(None, "pet"), (None, "farm"), ("pet", "cat"), ("pet", "dog"), ("farm", "cow"), ("farm", "hen"), ("cow", "calf")]
)
TEXTS = ["purr", "bark", "moo", "cluck", "small moo"] * 6
LABELS = ["cat", "dog", "cow", "hen", "calf"] * 6


def judged(truth: list[tuple[str, ...]]) -> Evaluation:
    classifier = HiNetClassifier(ANIMALS, width=8, epochs=20, members=1).fit(TEXTS, LABELS)
    found = classifier.predict_traces(TEXTS).found
    right = np.array([label in row for label, row in zip(found.traces.decode(), truth, strict=True)])
    return Evaluation(ANIMALS, truth, found, right)


def test_figures_are_those_of_the_metrics() -> None:
    truth = [(label,) for label in LABELS]
    truth[0] = ("dog",)  # right above, wrong below
    judgement = judged(truth)
    traces, log_p = judgement.found.traces, judgement.found.log_p
    told = judgement.as_dict()
    assert told["accuracy"] == accuracy(truth, traces) < 1
    assert told["calibration_error"] == pytest.approx(
        expected_calibration_error(np.minimum(np.exp(traces.log_p), 1), judgement.right)
    )
    assert told["level_calibration_error"] == pytest.approx(
        level_calibration_error(truth, traces, np.minimum(log_p, 0))
    )
    assert told["coverage_at_risk"]["0.1"] == 1.0
    assert told["coverage_at_risk"]["0.01"] < 1


def test_labels_that_no_trace_leads_to_are_wrong_at_their_full_depth() -> None:
    truth: list[tuple[str, ...]] = [(label,) for label in LABELS]
    truth[0], truth[1] = ("lion cub",), ("fish",)  # a cat and a dog by their traces
    found = judged([(label,) for label in LABELS]).found
    wider = ANIMALS.with_nodes({"lion": "cat", "lion cub": "lion", "fish": None})
    judgement = Evaluation(wider, truth, found, np.arange(len(TEXTS)) > 1)
    report, depths = judgement.report, dict(zip(ANIMALS.ids, ANIMALS.depth.tolist(), strict=True))
    predicted = sum(depths[label] for label in LABELS)
    assert judgement.accuracy == report.accuracy == pytest.approx(28 / 30)
    assert report.hierarchical_precision == pytest.approx((predicted - 2) / predicted)  # pet, dog
    assert report.hierarchical_recall == pytest.approx((predicted - 2) / (predicted + 2 - 1))
    assert report.level_accuracy == pytest.approx((29 / 30, 1, 6 / 7, 0))
    assert judgement.level_calibration[0] == pytest.approx(
        expected_calibration_error(
            np.minimum(np.exp(found.log_p[found.traces.offsets[:-1]]), 1), np.arange(len(TEXTS)) != 1
        )
    )
    assert {each.top: each.by_agreement for each in judgement.errors_by_top()} == {
        "pet": (0, 0, 1, 0, 0),
        "fish": (1, 0, 0, 0, 0),
    }


def test_errors_are_counted_below_the_top_node_of_the_truth_by_the_last_level_that_is_right() -> None:
    truth: list[tuple[str, ...]] = [(label,) for label in LABELS]
    truth[0] = ("dog",)  # a cat: right down to pet
    truth[1] = ("calf",)  # a dog: nothing is right
    truth[4] = ("hen",)  # a calf: right down to farm
    truth[9] = ("cow",)  # a calf: right down to cow, but too deep
    found = {each.top: each.by_agreement for each in judged(truth).errors_by_top()}
    assert found == {"farm": (1, 1, 1, 0), "pet": (0, 1, 0, 0)}
    assert judged([(label,) for label in LABELS]).errors_by_top() == []


def test_plots_are_drawn_with_and_without_errors(tmp_path: Path) -> None:
    truth: list[tuple[str, ...]] = [(label,) for label in LABELS]
    plot_evaluation(judged(truth), tmp_path / "all_right.png", "title")
    truth[0] = ("dog",)
    plot_evaluation(judged(truth), tmp_path / "one_wrong.svg", "title")
    history = [
        EpochRecord(epoch, 3, 1 / epoch, 0.5, 1.0, 0.5, part) for epoch in (1, 2, 3) for part in ("deep 1", "flat 1")
    ]
    plot_history([*history, EpochRecord(1, 1, 0.1, None, 1.0, 0.0, "wide 1")], tmp_path / "curve.pdf")
    assert (tmp_path / "all_right.png").read_bytes().startswith(b"\x89PNG")
    assert "one_wrong.svg" in {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")
