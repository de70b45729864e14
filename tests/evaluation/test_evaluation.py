"""A evaluation gives the figures of the metrics, and says where in the tree errors fall."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetClassifier, Layers, Taxonomy, Traces
from hinet.classifier.model_folder import EVALUATION, keep_evaluation, read_evaluation
from hinet.engine import Found
from hinet.errors import FileError
from hinet.evaluation.evaluation import Evaluation, figures_of
from hinet.evaluation.plots import plot_evaluation, plot_history
from hinet.metrics import accuracy, expected_calibration_error, level_calibration_error
from hinet.progress import EpochRecord

ANIMALS = Taxonomy.from_edges(
    [(None, "pet"), (None, "farm"), ("pet", "cat"), ("pet", "dog"), ("farm", "cow"), ("farm", "hen"), ("cow", "calf")]
)
TEXTS = ["purr", "bark", "moo", "cluck", "small moo"] * 6
LABELS = ["cat", "dog", "cow", "hen", "calf"] * 6


def evaluated(truth: list[tuple[str, ...]]) -> Evaluation:
    classifier = HiNetClassifier(ANIMALS, width=8, epochs=20, members=1).fit(TEXTS, LABELS)
    found = classifier.predict_traces(TEXTS).found
    right = np.array([label in row for label, row in zip(found.traces.decode(), truth, strict=True)])
    return Evaluation(ANIMALS, truth, found, right)


def test_figures_are_those_of_the_metrics() -> None:
    truth = [(label,) for label in LABELS]
    truth[0] = ("dog",)  # right above, wrong below
    evaluation = evaluated(truth)
    traces, log_p = evaluation.found.traces, evaluation.found.log_p
    told = evaluation.as_dict()
    assert told["accuracy"] == accuracy(truth, traces) < 1
    assert told["calibration_error"] == pytest.approx(
        expected_calibration_error(np.minimum(np.exp(traces.log_p), 1), evaluation.right)
    )
    assert told["level_calibration_error"] == pytest.approx(
        level_calibration_error(truth, traces, np.minimum(log_p, 0))
    )
    assert told["coverage_at_risk"]["0.1"] == 1.0
    assert told["coverage_at_risk"]["0.01"] < 1


def test_labels_that_no_trace_leads_to_are_wrong_at_their_full_depth() -> None:
    truth: list[tuple[str, ...]] = [(label,) for label in LABELS]
    truth[0], truth[1] = ("lion cub",), ("fish",)  # a cat and a dog by their traces
    found = evaluated([(label,) for label in LABELS]).found
    wider = ANIMALS.with_nodes({"lion": "cat", "lion cub": "lion", "fish": None})
    evaluation = Evaluation(wider, truth, found, np.arange(len(TEXTS)) > 1)
    report, depths = evaluation.report, dict(zip(ANIMALS.ids, ANIMALS.depth.tolist(), strict=True))
    predicted = sum(depths[label] for label in LABELS)
    assert evaluation.accuracy == report.accuracy == pytest.approx(28 / 30)
    assert report.hierarchical_precision == pytest.approx((predicted - 2) / predicted)  # pet, dog
    assert report.hierarchical_recall == pytest.approx((predicted - 2) / (predicted + 2 - 1))
    assert report.level_accuracy == pytest.approx((29 / 30, 1, 6 / 7, 0))
    assert evaluation.as_dict()["level_calibration_error"][0] == pytest.approx(
        expected_calibration_error(
            np.minimum(np.exp(found.log_p[found.traces.offsets[:-1]]), 1), np.arange(len(TEXTS)) != 1
        )
    )
    assert {each.top: each.by_agreement for each in evaluation.errors_by_top()} == {
        "pet": (0, 0, 1, 0, 0),
        "fish": (1, 0, 0, 0, 0),
    }


def test_errors_are_counted_below_the_top_node_of_the_truth_by_the_last_level_that_is_right() -> None:
    truth: list[tuple[str, ...]] = [(label,) for label in LABELS]
    truth[0] = ("dog",)  # a cat: right down to pet
    truth[1] = ("calf",)  # a dog: nothing is right
    truth[4] = ("hen",)  # a calf: right down to farm
    truth[9] = ("cow",)  # a calf: right down to cow, but too deep
    found = {each.top: each.by_agreement for each in evaluated(truth).errors_by_top()}
    assert found == {"farm": (1, 1, 1, 0), "pet": (0, 1, 0, 0)}
    assert evaluated([(label,) for label in LABELS]).errors_by_top() == []


def test_plots_are_drawn_with_and_without_errors(tmp_path: Path) -> None:
    truth: list[tuple[str, ...]] = [(label,) for label in LABELS]
    plot_evaluation(evaluated(truth), tmp_path / "all_right.png", "title")
    truth[0] = ("dog",)
    plot_evaluation(evaluated(truth), tmp_path / "one_wrong.svg", "title")
    history = [
        EpochRecord(epoch, 3, 1 / epoch, 0.5, 1.0, 0.5, part) for epoch in (1, 2, 3) for part in ("deep 1", "flat 1")
    ]
    plot_history([*history, EpochRecord(1, 1, 0.1, None, 1.0, 0.0, "wide 1")], tmp_path / "curve.pdf")
    assert (tmp_path / "all_right.png").read_bytes().startswith(b"\x89PNG")
    assert "one_wrong.svg" in {path.name for path in tmp_path.iterdir()}
    assert (tmp_path / "curve.pdf").read_bytes().startswith(b"%PDF")


PATHS = {"rye": ("food", "bread", "rye"), "white": ("food", "bread", "white"), "milk": ("food", "milk"), "tv": ("tv",)}
TAXONOMY = Taxonomy.from_paths(list(PATHS.values()), steps="ids")
LABEL = st.sampled_from(list(PATHS))


def evaluation_of(pairs: list[tuple[str, str]], confidence: list[float]) -> Evaluation:
    """Return the evaluation of rows with a true and a predicted label."""
    traces = Traces.encode(Layers.of(TAXONOMY), [predicted for _, predicted in pairs])
    log_p = np.log(confidence)
    along = np.repeat(log_p, np.diff(traces.offsets))
    found = Found(
        Traces(traces.layers, traces.row_offsets, traces.offsets, traces.neurons, log_p),
        along,
        np.ones(len(pairs), int),
    )
    return Evaluation(
        TAXONOMY, [(true,) for true, _ in pairs], found, np.array([true == other for true, other in pairs])
    )


@given(st.lists(st.tuples(LABEL, LABEL, st.floats(0.01, 1)), min_size=1, max_size=40))
def test_figures_count_rows(rows: list[tuple[str, str, float]]) -> None:
    pairs, confidence = [row[:2] for row in rows], [row[2] for row in rows]
    figures = figures_of(evaluation_of(pairs, confidence), "rows.csv")
    wrong = Counter(pair for pair in pairs if pair[0] != pair[1])
    told = {(each["true"]["node"], each["predicted"]["node"]): each["rows"] for each in figures["confused"]}
    assert told == wrong
    assert [each["rows"] for each in figures["confused"]] == sorted(wrong.values(), reverse=True)
    below = Counter(node for true, _ in pairs for node in PATHS[true])
    errors = Counter(node for true, other in pairs if true != other for node in PATHS[true])
    branches = {each["node"]: each for each in figures["branches"]}
    assert {node: each["errors"] for node, each in branches.items()} == errors
    listed: set[str] = set()
    for node, each in branches.items():
        assert each["rows"] == below[node]
        path = next(path for path in PATHS.values() if node in path)
        assert each["depth"] == path.index(node) + 1
        assert each["parent"] == (path[path.index(node) - 1] if each["depth"] > 1 else None)
        assert each["parent"] is None or each["parent"] in listed  # parents come first
        listed.add(node)
    assert sum(each["share"] for each in figures["calibration"]) == pytest.approx(1, abs=1e-4)
    right = sum(each["share"] * each["accuracy"] for each in figures["calibration"])
    assert right == pytest.approx(figures["metrics"]["accuracy"], abs=1e-4)
    coverage = [each["coverage"] for each in figures["coverage"]]
    assert coverage == sorted(coverage)
    assert (coverage[-1], figures["rows"], figures["name"]) == (1, len(rows), "rows.csv")


def test_an_evaluation_belongs_to_one_model(tmp_path: Path) -> None:
    assert read_evaluation(tmp_path, "a") is None
    keep_evaluation(tmp_path, "a", {"rows": 3})
    assert read_evaluation(tmp_path, "a") == {"rows": 3}
    assert read_evaluation(tmp_path, "b") is None
    (tmp_path / EVALUATION).write_text("{")
    with pytest.raises(FileError, match="evaluate the model again"):
        read_evaluation(tmp_path, "a")
