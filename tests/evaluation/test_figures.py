"""The figures that are kept with a model, against counts by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet import Layers, Taxonomy, Traces
from hinet.classifier.model_folder import EVALUATION, keep_evaluation, read_evaluation
from hinet.engine import Found
from hinet.errors import FileError
from hinet.evaluation.evaluation import Evaluation
from hinet.evaluation.figures import figures_of

PATHS = {"rye": ("food", "bread", "rye"), "white": ("food", "bread", "white"), "milk": ("food", "milk"), "tv": ("tv",)}
TAXONOMY = Taxonomy.from_paths(list(PATHS.values()), steps="ids")
LABELS = st.sampled_from(list(PATHS))


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


@given(st.lists(st.tuples(LABELS, LABELS, st.floats(0.01, 1)), min_size=1, max_size=40))
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
