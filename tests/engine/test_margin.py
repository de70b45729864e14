"""The margin expert: its solver against scikit-learn's, and what every expert has to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.svm import LinearSVC

from hinet import HiNetError, Layers, Taxonomy, Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine import EngineSettings, FusedModel, fit
from hinet.engine.model.experts import LabelWeights, Mix
from hinet.engine.search.scoring_kernels import group_logits
from hinet.engine.training.margins import COST, LOGITS_PER_MARGIN, LabelledRows, train_margin
from hinet.engine.training.plan import PlanInput
from tests.engine.test_fit import FEATURES, TREE, UNKNOWN, accuracy, assert_identical, data, layers_of

SETTINGS = EngineSettings(width=8, flat_width=8, threads=2, margin=True)
ALONE = np.array(Mix(margin=1.0), np.float32)


def known_data(seed: int = 0) -> tuple[sp.csr_array, Traces, list[str]]:
    """Rows of the tree without those of one label."""
    rows, traces, labels = data("tree", seed=seed)
    chosen = np.flatnonzero(np.array(labels) != UNKNOWN[0])
    return rows[chosen], traces.take(chosen), [labels[row] for row in chosen]


def alone(model: FusedModel) -> FusedModel:
    return replace(model, experts=model.experts._replace(mix=ALONE))


@pytest.fixture(scope="module")
def trained() -> FusedModel:
    rows, traces, _ = known_data()
    return fit(rows, traces, SETTINGS)


def labelled(rows: Any, traces: Traces, weight: Any = None) -> LabelledRows:
    return LabelledRows.of(PlanInput(rows, traces, SETTINGS, weight, None).plan().context)


@pytest.mark.parametrize("label", [0, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_solver_finds_the_optimum_of_scikit_learn(label: int, weighted: bool) -> None:
    random = np.random.default_rng(0)
    rows, traces, _ = known_data()
    rows = sp.csr_array(rows + sp.random_array(rows.shape, density=0.3, dtype=np.float32, rng=random))
    weight = random.uniform(0.5, 2, rows.shape[0]) if weighted else None
    known = labelled(rows, traces, weight)
    bias, weights = np.zeros(20, np.float32), np.zeros(FEATURES, np.float32)
    objective = train_margin(known, label, (2_000, 1e-5, 0), bias, weights)
    units = rows.toarray() / np.linalg.norm(rows.toarray(), axis=1, keepdims=True)
    sign = np.where(known.label == label, 1, -1)
    peer = LinearSVC(C=COST, tol=1e-7, max_iter=100_000).fit(units, sign, sample_weight=known.cost / COST)
    slack = np.maximum(1 - sign * (units @ weights + bias[label]), 0)
    primal = 0.5 * (weights @ weights + bias[label] ** 2) + known.cost @ slack**2
    of_peer = np.maximum(1 - sign * peer.decision_function(units), 0)
    expected = 0.5 * (np.square(peer.coef_).sum() + peer.intercept_[0] ** 2) + known.cost @ of_peer**2
    assert primal == pytest.approx(expected, rel=1e-4)
    assert objective == pytest.approx(expected, rel=1e-3)
    np.testing.assert_allclose(weights, peer.coef_[0], atol=5e-3)


def test_the_expert_alone_predicts_the_labels(trained: FusedModel) -> None:
    assert trained.mix.margin > 0
    rows, _, labels = known_data(seed=1)
    assert accuracy(alone(trained), rows, labels) > 0.95


def test_a_label_without_rows_is_not_predicted(trained: FusedModel) -> None:
    margin, spans = trained.experts.margin, trained.experts.spans
    unknown = spans.labels_at(
        np.array([np.flatnonzero(trained.layers.node == trained.layers.taxonomy.position("a1"))[0]])
    )
    assert not np.isin(unknown, margin.label).any()
    assert margin.bias[unknown] == 0
    rows, _, labels = known_data(seed=1)
    assert "a1" not in labels
    assert accuracy(alone(trained), rows, ["a1"] * len(labels)) == 0


def test_the_number_of_threads_does_not_matter(trained: FusedModel) -> None:
    rows, traces, _ = known_data()
    assert_identical(trained, fit(rows, traces, replace(SETTINGS, threads=1)))


def test_an_interrupted_run_resumes_with_the_same_result(trained: FusedModel, tmp_path: Path) -> None:
    rows, traces, _ = known_data()
    fit(rows, traces, SETTINGS, checkpoint=tmp_path)
    files = sorted(tmp_path.glob("margin-*"))
    assert len(files) == 8
    for file in files[::2]:
        file.unlink()
    assert_identical(trained, fit(rows, traces, SETTINGS, checkpoint=tmp_path))


def test_a_saved_expert_is_the_same_after_loading(trained: FusedModel) -> None:
    arrays = trained.to_arrays()
    assert {"margin.offsets", "margin.label", "margin.value", "margin.bias"} <= arrays.keys()
    assert_identical(trained, FusedModel.from_arrays(trained.layers, arrays))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("margin.label", lambda array: array.astype(np.int64) + 99, "'margin.label' holds"),
        ("margin.offsets", lambda array: array[::-1].astype(np.int64), "'margin.offsets'"),
        ("margin.bias", lambda array: array[1:], "'margin.bias' has the shape"),
        ("margin.value", lambda array: array * np.float32(np.nan), "'margin.value' holds nan"),
        ("margin.value", lambda array: array[1:], "the array 'margin"),
    ],
)
def test_forged_arrays_are_refused(trained: FusedModel, name: str, change: Any, message: str) -> None:
    arrays = trained.to_arrays()
    with pytest.raises(HiNetError, match=message):
        FusedModel.from_arrays(trained.layers, arrays | {name: change(arrays[name])})


def test_a_mix_that_uses_a_missing_expert_is_refused(trained: FusedModel) -> None:
    arrays = {name: array for name, array in trained.to_arrays().items() if not name.startswith("margin.")}
    with pytest.raises(HiNetError, match="uses the margin expert, which the model does not have"):
        FusedModel.from_arrays(trained.layers, arrays)


def test_a_changed_taxonomy_keeps_the_weights_of_its_labels(trained: FusedModel) -> None:
    layers = Layers.of(Taxonomy.from_edges([*(edge for edge in TREE if edge[1] != "b3"), ("c", "new")]))
    old, new = trained.layers.taxonomy, layers.taxonomy
    came_from = np.array([old.position(node) if node in old else -1 for node in new.ids])
    moved = trained.transferred(layers, came_from)
    assert len(moved.experts.margin.bias) == len(moved.experts.spans.neuron)
    rows, _, labels = known_data(seed=1)
    chosen = np.flatnonzero(np.array(labels) != "b3")
    assert accuracy(alone(moved), rows[chosen], [labels[row] for row in chosen]) > 0.95
    back = moved.experts.margin
    label = moved.experts.spans.labels_at(np.flatnonzero(layers.node == new.position("new")))
    assert not np.isin(label, back.label).any()


@pytest.mark.parametrize("mix", [Mix(margin=1.0), Mix(deep=0.3, wide=0.2, flat=0.3, margin=0.4)])
def test_contributions_sum_to_the_logit(trained: FusedModel, mix: Mix) -> None:
    rows, _, _ = known_data(seed=1)
    model = replace(trained, experts=trained.experts._replace(mix=np.array(mix, np.float32)))
    matrix = SparseMatrix.of(rows[:1])
    for neuron in np.flatnonzero(np.diff(model.groups.first_row)).tolist():
        logits, _ = group_logits(matrix, np.zeros(1, np.int64), neuron, model.groups, model.experts)
        parts = model.contributions(matrix, neuron)
        np.testing.assert_allclose(parts.logits, logits[0], atol=1e-3)


def test_further_training_keeps_the_weights(trained: FusedModel) -> None:
    rows, traces, _ = known_data(seed=2)
    further = fit(rows, traces, SETTINGS, start=trained)
    for one, other in zip(further.experts.margin, trained.experts.margin, strict=True):
        np.testing.assert_array_equal(one, other)
    assert further.mix.margin == trained.mix.margin


def test_further_training_adds_the_weights_of_new_labels(trained: FusedModel) -> None:
    rows, traces, labels = data("tree", seed=2)
    further = fit(rows, traces, SETTINGS, start=trained)
    before, after = (
        sp.csr_array((margin.value, margin.label, margin.offsets), shape=(FEATURES, len(margin.bias))).toarray()
        for margin in (trained.experts.margin, further.experts.margin)
    )
    new = trained.experts.margin.bias == 0
    learned = new & (further.experts.margin.bias != 0)
    assert learned.sum() == 1
    np.testing.assert_array_equal(after[:, ~learned], before[:, ~learned])
    own = np.flatnonzero(np.array(labels) == UNKNOWN[0])
    assert accuracy(alone(further), rows[own], [labels[row] for row in own]) > 0.9


def test_a_new_label_without_enough_rows_of_others_scores_as_before(trained: FusedModel) -> None:
    rows, traces, labels = data("tree", seed=2)
    own = np.flatnonzero(np.array(labels) == UNKNOWN[0])
    further = fit(rows[own], traces.take(own), SETTINGS, start=trained)
    for one, other in zip(further.experts.margin, trained.experts.margin, strict=True):
        np.testing.assert_array_equal(one, other)


def test_it_is_not_for_dags_with_one_label_per_row() -> None:
    rows, traces, _ = data("dag")
    with pytest.raises(HiNetError, match="the margin expert is for trees and for several labels per row; leave it out"):
        fit(rows, traces, SETTINGS)
    assert fit(rows, traces, replace(SETTINGS, margin=None)).mix.margin == 0


def test_by_default_rows_of_few_labels_have_it_if_they_are_long_or_few() -> None:
    layers, settings = layers_of("tree"), EngineSettings()
    assert settings.wants_margin(20, 2_000_000, 10_000, 10_000, layers)
    assert not settings.wants_margin(20, 1_000_000, 10_000, 10_000, layers)
    assert settings.wants_margin(20, 10_000, 1_000, 10_000, layers)
    assert not settings.wants_margin(20, 10_000, 1_000, 10_000, layers, dense=True)
    assert not settings.wants_margin(20, 4_990, 499, 10_000, layers)
    assert not settings.wants_margin(20, 10_000, 1_000, 10_000, layers, titles=501)
    assert not settings.wants_margin(129, 20_000, 2_000, 10_000, layers)
    assert not settings.wants_margin(2_501, 200_000, 1_000, 10_000, layers)
    assert not settings.wants_margin(20, 200_000, 1_000, 10_000_000, layers)
    assert not EngineSettings(effort="quick").wants_margin(20, 200_000, 1_000, 10_000, layers)
    assert not settings.wants_margin(20, 200_000, 1_000, 10_000, layers_of("dag"))


def test_scores_are_margins_plus_one_in_logits(trained: FusedModel) -> None:
    rows, traces, _ = known_data()
    known = labelled(rows, traces)
    bias, weights = np.zeros(20, np.float32), np.zeros(FEATURES, np.float32)
    label = int(known.label[0])
    train_margin(known, label, (6, 0.1, 0), bias, weights)
    margin: LabelWeights = trained.experts.margin
    dense = sp.csr_array((margin.value, margin.label, margin.offsets), shape=(FEATURES, len(margin.bias))).toarray()
    np.testing.assert_allclose(dense[:, label], LOGITS_PER_MARGIN * weights, atol=0.1)
    assert margin.bias[label] == pytest.approx(LOGITS_PER_MARGIN * (bias[label] + 1), rel=1e-5)
