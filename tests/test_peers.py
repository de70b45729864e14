"""The comparison harness, on a few rows."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import bench_peers
from engine_data import Texts
from peers import report
from peers.catalogue import PEERS
from peers.data import PeerData
from peers.label_trees import tree_of
from peers.linear import LinearSVM
from peers.measuring import measured, scores, validation_accuracy
from peers.ours import HiNet
from peers.peer import Answers

from hinet import Taxonomy

WORDS = {"bread": "rye flour loaf", "milk": "cow cream whole", "car": "wheels drive race", "food": "any eaten goods"}


@pytest.fixture(scope="module")
def data() -> PeerData:
    taxonomy = Taxonomy.from_edges([("food", "bread"), ("food", "milk"), ("toys", "car")])
    labels = [(label,) for label in WORDS] * 15
    texts = [f"{WORDS[label]} {row % 5}" for row, (label,) in enumerate(labels)]
    return PeerData.of("tiny", Texts(taxonomy, (texts, labels), (texts[:8], labels[:8])))


def test_every_tenth_training_row_chooses_settings(data: PeerData) -> None:
    assert len(data.valid) == 6
    assert data.valid.labels[1] == data.train.joined(data.valid).labels[-5]
    assert len(data.train) + len(data.valid) == 60


def test_row_with_several_labels_is_repeated_per_label(data: PeerData) -> None:
    rows = data.test.take([0])
    texts, labels = type(rows)(rows.texts, [("bread", "milk")]).single()
    assert (texts, labels) == (rows.texts * 2, ["bread", "milk"])


@pytest.mark.parametrize("kind", [LinearSVM, HiNet])
def test_peer_is_measured_from_texts_to_a_cold_start(kind: Any, data: PeerData) -> None:
    found = measured(kind(1, C=1.0) if kind is LinearSVM else kind(1), data)
    assert {*report.COLUMNS.values()} <= {*found, "peak_gb"}
    assert found["accuracy"] == found["hierarchical_f1"] == 1.0
    assert (found["calibration_error"] is None) is (kind is LinearSVM)
    assert found["megabytes"] > 0
    assert found["cold_start_seconds"] > 0


def test_only_new_settings_are_tried_before_choosing_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []

    def in_process(step: str, data: str, peer: str, settings: dict[str, Any], _: Namespace) -> dict[str, Any]:
        steps.append((step, settings))
        return {"accuracy": 1 / settings["C"]} if settings["C"] != 10 else {"did_not_finish": step}

    monkeypatch.setattr(bench_peers, "_in_process", in_process)
    before = {"tried": [{"C": 0.1, "accuracy": 0.9}, {"C": 0.3, "accuracy": 0.2}, {"C": 1.0, "accuracy": 0.3}]}
    found = bench_peers._measured("tiny", "svm", before, Namespace(threads=1, limit=1))
    assert steps == [("choose", {"C": 3.0}), ("choose", {"C": 10.0}), ("measure", {"C": 0.1})]
    assert found["settings"] == {"C": 0.1}
    assert found["tried"][-1] == {"C": 10.0, "did_not_finish": "choose"}


def test_validation_accuracy_is_0_if_training_fails(data: PeerData) -> None:
    assert validation_accuracy(LinearSVM(1, C=1.0), data) == {"accuracy": 1.0}
    failed = validation_accuracy(LinearSVM(1, C=-3), data)
    assert failed["accuracy"] == 0
    assert "C" in failed["error"]


def test_report_names_all_commits(tmp_path: Path) -> None:
    row = {"accuracy": 0.5, "hierarchical_f1": 0.5, "labels": 2, "train_rows": 2, "test_rows": 2, "threads": 1}
    header = {"commit": "old", "python": "3", "cores": 2, "processor": "p"}
    (tmp_path / "peers.json").write_text(json.dumps({**header, "results": {"svm": row}}))
    results = bench_peers._earlier_results(tmp_path / "peers.json") | {"hinet": {**row, "commit": "new"}}
    assert "\nCommits new, old, Python 3" in report.tables({"icd": {**header, "commit": "new", "results": results}})


def test_any_true_label_counts_as_right(data: PeerData) -> None:
    rows = type(data.test)(["a"], [("bread", "car")])
    assert scores(data, rows, Answers(["car"]))["accuracy"] == 1


def test_napkinxc_tree_has_every_label_once_below_its_ancestors(data: PeerData) -> None:
    labels = sorted(WORDS)
    edges = tree_of(labels, data)
    parents = {node: parent for parent, node, _ in edges}
    assert len(parents) == len(edges)
    assert all(parent in parents for parent in parents.values() if parent >= 0)
    node_of = {labels[label]: node for _, node, label in edges if label >= 0}
    assert {*node_of} == {*WORDS}
    assert parents[node_of["bread"]] == parents[node_of["milk"]] == parents[node_of["food"]]
    assert not {*node_of.values()} & {*parents.values()}  # labels are leaves


def test_paths_omit_only_the_root(data: PeerData) -> None:
    assert [data.path(label) for label in ("bread", "food")] == [("food", "bread"), ("food",)]
    rooted = Taxonomy.from_edges([("all", "food"), ("all", "toys"), ("food", "bread")])
    below = PeerData("rooted", rooted, data.train, data.valid, data.test)
    assert [below.path(label) for label in ("bread", "food", "all")] == [("food", "bread"), ("food",), ("all",)]


def test_timeout_of_a_peer_is_recorded() -> None:
    found = bench_peers._in_process("measure", "icd", "hinet", {}, Namespace(threads=1, limit=0.01))
    assert found == {"did_not_finish": "measure", "limit_seconds": 0.01}


def test_page_and_readme_contain_the_tables_of_the_results() -> None:
    results = report.read_results()
    for path, text in ((report.PAGE, report.tables(results)), (report.README, report.summary(results))):
        assert report.page_with(text, path.read_text()) == path.read_text()


def test_best_result_of_each_group_is_bold_and_gaps_are_marked() -> None:
    counts = {"labels": 1_010, "train_rows": 2_000, "test_rows": 30}
    row = {"accuracy": 0.5, "hierarchical_f1": 0.75, "train_seconds": 1.0, "threads": 1, "settings": {}, **counts}
    results = {
        "hinet": row, "svm": {**row, "accuracy": 0.4}, "hinet-encoder": {**row, "accuracy": 0.3},
        "logistic": {"did_not_finish": "measure", "limit_seconds": 60},
        "napkinxc": {"failed": "choose", "error": "gone"},
    }  # fmt: skip
    header = {"commit": "c", "python": "3", "cores": 2, "processor": "p"}
    text = report.tables({"icd": {**header, "results": results}})
    titles = {name: entry.title for name, entry in PEERS.items()}
    assert f"| {titles['hinet']} | **50.0** |" in text
    assert f"| {titles['svm']} | 40.0 |" in text
    assert f"| {titles['hinet-encoder']} | **30.0** |" in text
    assert f"| {titles['logistic']} | did not finish in 60 s |" in text
    assert f"| {titles['napkinxc']} | failed: gone |" in text
    assert "1,010 labels, 2,000 training rows, 30 test rows" in text
    short = report.overview({"icd": {**header, "results": results}, "naics": {**header, "results": {}}})
    assert "| ICD-10-CM, 1,010 labels | NAICS |" in short
    assert f"| {titles['hinet']} | **50.0 / 75.0** | - |" in short
    assert f"| {titles['hinet-encoder']} | **30.0 / 75.0** | - |" in short
    assert titles["logistic"] not in short
