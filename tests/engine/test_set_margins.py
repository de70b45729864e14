"""Margins for sets of labels: the solver against a general optimiser, and what every expert has to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import minimize

from hinet import FileError, HiNetError, Layers, Taxonomy, Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine import EngineSettings, FusedModel, Search, ValidationRows, fit
from hinet.engine.model.experts import Mix
from hinet.engine.model.experts.labels import ABSENT_LOGIT
from hinet.engine.search.scoring_kernels import group_logits
from hinet.engine.training.checkpoints import Checkpoints
from hinet.engine.training.margins import (
    ABSENT_MARGIN,
    COST,
    LOGITS_PER_SET_MARGIN,
    SetRows,
    Steps,
    sum_steps,
    train_set_margins,
)
from hinet.engine.training.plan import PlanInput
from hinet.files import read_arrays
from tests.engine.test_fit import assert_identical
from tests.engine.test_sets import toy

SETTINGS = EngineSettings(width=4, flat_width=4, threads=2, deep_epochs=3, flat=True, margin=True)
ALONE = np.array(Mix(margin=1.0), np.float32)
LABELS, FEATURES = 6, 50


def random_rows(count: int, seed: int = 0) -> tuple[sp.csr_array, np.ndarray]:
    """Rows in which one to three labels have a feature each among noise, and which labels each row has."""
    random = np.random.default_rng(seed)
    has = random.random((count, LABELS)) < 0.25
    has[np.arange(count), random.integers(0, LABELS - 1, count)] = True
    has[:, LABELS - 1] = False  # a label without rows
    dense = (random.random((count, FEATURES)) < 0.2) * random.random((count, FEATURES))
    dense[:, :LABELS] = 0.7 * has
    return sp.csr_array(dense.astype(np.float32)), has


def trained_steps(
    rows: sp.csr_array, has: np.ndarray, share: np.ndarray | None = None
) -> tuple[SetRows, Steps, np.ndarray, np.ndarray, float]:
    """Return the data, the steps, the weights and offsets of all labels, and the objective."""
    row, label = np.nonzero(has)
    share = np.ones(len(has), np.float32) if share is None else share.astype(np.float32)
    data = SetRows.of(SparseMatrix.of(rows), FEATURES, label, row, share, LABELS)
    steps = Steps.none(data)
    objective = train_set_margins(data, 0, LABELS, 0, steps)
    weights, offsets = np.zeros((LABELS, FEATURES), np.float32), np.zeros(LABELS)
    for number in range(LABELS):
        offsets[number] = sum_steps(data, number, steps, weights[number])
    return data, steps, weights, offsets, float(objective)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_objective_is_nearly_the_lowest(weighted: bool) -> None:
    rows, has = random_rows(60)
    share = np.random.default_rng(1).uniform(0.5, 2, 60) if weighted else np.ones(60)
    _, _, weights, offsets, objective = trained_steps(rows, has, share)
    units = rows.toarray() / np.linalg.norm(rows.toarray(), axis=1, keepdims=True)
    inputs = np.hstack([units, np.ones((60, 1))])
    lowest, found = 0.0, 0.0
    for label in range(LABELS - 1):
        sign = np.where(has[:, label], 1.0, -1.0)

        def primal(solution: np.ndarray, sign: np.ndarray = sign) -> tuple[float, np.ndarray]:
            slack = np.maximum(1 - sign * (inputs @ solution + ABSENT_MARGIN), 0)
            gradient = solution - 2 * COST * inputs.T @ (share * sign * slack)
            return 0.5 * float(solution @ solution) + COST * float(share @ slack**2), gradient

        lowest += minimize(primal, np.zeros(FEATURES + 1), jac=True, method="L-BFGS-B").fun
        found += primal(np.append(weights[label], offsets[label] - ABSENT_MARGIN))[0]
    assert lowest <= found <= 1.05 * lowest
    assert objective == pytest.approx(lowest, rel=0.1)


def test_a_label_is_trained_on_its_rows_and_on_the_hardest_others() -> None:
    rows, has = random_rows(3_000, seed=2)
    has[:, 0] = False
    has[:20, 0] = True
    data, steps, _, offsets, _ = trained_steps(rows, has)
    assert steps.offsets[1] == data.capacity()[0] < 3_000
    row, step = steps.row[: steps.offsets[1]], steps.step[: steps.offsets[1]]
    assert len(np.unique(row)) == len(row)
    assert {*range(20)} <= {*row.tolist()}
    assert (step[has[row, 0]] >= 0).all()
    assert (step[~has[row, 0]] <= 0).all()
    units = rows.multiply(1 / np.linalg.norm(rows.toarray(), axis=1)[:, None]).tocsr()
    likeness = units @ units[:20].sum(0)
    rest = np.setdiff1d(np.arange(3_000), row)
    assert np.median(likeness[row[~has[row, 0]]]) > np.quantile(likeness[rest], 0.7)
    assert steps.offsets[LABELS - 1] == steps.offsets[LABELS]  # a label without rows has none
    assert offsets[LABELS - 1] == ABSENT_MARGIN


@pytest.fixture(scope="module", params=[False, True], ids=["tree", "dag"])
def data(request: pytest.FixtureRequest) -> tuple[sp.csr_array, Traces]:
    return toy(np.random.default_rng(1), 200, dag=request.param)


@pytest.fixture(scope="module")
def trained(data: tuple[sp.csr_array, Traces]) -> FusedModel:
    return fit(*data, SETTINGS)


def test_the_expert_alone_finds_the_labels(trained: FusedModel, data: tuple[sp.csr_array, Traces]) -> None:
    assert trained.mix.margin > 0
    assert trained.mix.wide == 0
    model = replace(trained, experts=trained.experts._replace(mix=ALONE))
    found = Search(model, threads=1).traces(data[0], 9, least=0.5).traces.decode_sets()
    right = [set(one) == set(other) for one, other in zip(found, data[1].decode_sets(), strict=True)]
    assert np.mean(right) > 0.6


def test_alone_each_label_has_its_own_chance(trained: FusedModel, data: tuple[sp.csr_array, Traces]) -> None:
    margin, features = trained.experts.margin, data[0].shape[1]
    weights = sp.csr_array((margin.value, margin.label, margin.offsets), shape=(features, len(margin.bias)))
    rows = data[0].toarray()
    units = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)
    chance = 1 / (1 + np.exp(-(units @ weights.toarray() + margin.bias)))
    some = 1 - np.prod(1 - chance, axis=1, keepdims=True)  # every row has a label
    model = replace(trained, experts=trained.experts._replace(mix=ALONE))
    found = Search(model, threads=1).label_probabilities(data[0]).toarray()
    np.testing.assert_allclose(
        found[:, trained.layers.node[trained.experts.spans.neuron]], chance / some, rtol=5e-3, atol=1e-4
    )


def test_the_number_of_threads_does_not_matter(trained: FusedModel, data: tuple[sp.csr_array, Traces]) -> None:
    assert_identical(trained, fit(*data, replace(SETTINGS, threads=1)))


def test_the_weight_is_learned_on_validation_rows(trained: FusedModel, data: tuple[sp.csr_array, Traces]) -> None:
    model = fit(*data, SETTINGS, valid=ValidationRows(*data))
    assert model.mix.margin not in (0, trained.mix.margin)


def test_an_interrupted_run_resumes_with_the_same_result(
    trained: FusedModel, data: tuple[sp.csr_array, Traces], tmp_path: Path
) -> None:
    fit(*data, SETTINGS, checkpoint=tmp_path)
    files = sorted(tmp_path.glob("margin-*"))
    assert len(files) > 1
    for file in files[::2]:
        file.unlink()
    assert_identical(trained, fit(*data, SETTINGS, checkpoint=tmp_path))


def test_a_checkpoint_with_rows_that_do_not_exist_is_refused(data: tuple[sp.csr_array, Traces], tmp_path: Path) -> None:
    fit(*data, SETTINGS, checkpoint=tmp_path)
    plan = PlanInput(*data, SETTINGS, None, None).plan()
    job = next(job for job in plan.jobs() if job.name.startswith("margin"))
    path = next(file for file in tmp_path.glob("margin-*") if file.stem == job.name.replace(" ", "-"))
    arrays, _ = read_arrays(path)
    checkpoints = Checkpoints(tmp_path, plan.fingerprint())
    done = checkpoints.resume(job)
    for row in (-1, data[0].shape[0]):
        job.restore(arrays | {"row": np.full_like(arrays["row"], row)})
        checkpoints.started(job)
        checkpoints.write(job, done)
        with pytest.raises(FileError, match="a row is not below 200"):
            checkpoints.resume(job)


def test_a_saved_expert_is_the_same_after_loading(trained: FusedModel) -> None:
    arrays = trained.to_arrays()
    assert_identical(trained, FusedModel.from_arrays(trained.layers, arrays))
    with pytest.raises(HiNetError, match=r"'margin\.label' holds"):
        FusedModel.from_arrays(trained.layers, arrays | {"margin.label": arrays["margin.label"] + np.int64(99)})


def test_a_new_label_scores_as_one_without_rows(trained: FusedModel) -> None:
    old = trained.layers.taxonomy
    edges = [(parent, node) for node in old for parent in old.parents(node) if parent != old.ids[0]]
    edges += [(None, node) for node in old.children(old.ids[0])]
    layers = Layers.of(Taxonomy.from_edges([*edges, ("a", "new")]), multilabel=True)
    new = layers.taxonomy
    came_from = np.array([old.position(node) if node in old else -1 for node in new.ids])
    moved = trained.transferred(layers, came_from)
    label = moved.experts.spans.labels_at(np.flatnonzero(layers.node == new.position("new")))
    assert moved.experts.margin.bias[label] == ABSENT_LOGIT
    assert not np.isin(label, moved.experts.margin.label).any()
    kept = moved.experts.spans.labels_at(np.flatnonzero(layers.node == new.position("b2")))
    before = trained.experts.spans.labels_at(np.flatnonzero(trained.layers.node == old.position("b2")))
    assert moved.experts.margin.bias[kept] == trained.experts.margin.bias[before]


@pytest.mark.parametrize("mix", [Mix(margin=1.0), Mix(deep=0.2, flat=0.5, margin=0.3)])
def test_contributions_sum_to_the_logit(trained: FusedModel, data: tuple[sp.csr_array, Traces], mix: Mix) -> None:
    model = replace(trained, experts=trained.experts._replace(mix=np.array(mix, np.float32)))
    matrix = SparseMatrix.of(data[0][:1])
    for neuron in np.flatnonzero(np.diff(model.groups.first_row)).tolist():
        logits, _ = group_logits(matrix, np.zeros(1, np.int64), neuron, model.groups, model.experts)
        parts = model.contributions(matrix, neuron)
        found, expected = (np.clip(each, -7, 7) for each in (parts.logits, logits[0]))
        np.testing.assert_allclose(found, expected, rtol=5e-3, atol=5e-3)  # log odds above 7 differ


def test_further_training_keeps_the_weights(trained: FusedModel, data: tuple[sp.csr_array, Traces]) -> None:
    further = fit(*data, SETTINGS, start=trained)
    for one, other in zip(further.experts.margin, trained.experts.margin, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("margin", [False, True])
def test_next_to_margins_one_member_is_enough(data: tuple[sp.csr_array, Traces], margin: bool) -> None:
    members = PlanInput(*data, replace(SETTINGS, margin=margin), None, None).plan().context.members
    assert members == (1 if margin else 2)
    given = replace(SETTINGS, margin=margin, members=3)
    assert PlanInput(*data, given, None, None).plan().context.members == 3


def test_by_default_long_rows_with_a_flat_expert_have_it() -> None:
    layers = Layers.of(Taxonomy.from_edges([("a", "a1"), ("b", "a1")]), multilabel=True)
    settings = EngineSettings()
    assert settings.wants_margin(3_000, 200_000, 1_000, 100_000, layers, flat=True)
    assert not settings.wants_margin(3_000, 100_000, 1_000, 100_000, layers, flat=True)
    assert not settings.wants_margin(3_000, 200_000, 1_000, 100_000, layers, flat=False)
    assert not EngineSettings(margin=False).wants_margin(3_000, 200_000, 1_000, 100_000, layers, flat=True)


def test_logits_per_margin_put_absent_labels_at_their_logit() -> None:
    assert LOGITS_PER_SET_MARGIN * ABSENT_MARGIN == ABSENT_LOGIT
