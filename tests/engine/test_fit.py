from __future__ import annotations

import io
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hinet import FileError, HiNetError, Layers, Taxonomy, Traces
from hinet.data.matrices import MixedRows, SparseMatrix, validate_weights
from hinet.engine import EngineSettings, FusedModel, Search, Targets, ValidationRows, fit
from hinet.engine.model.experts import EXPERTS, PROTOTYPES, Experts, Mix, usual_mix
from hinet.engine.model.groups import LabelSpans
from hinet.engine.training.deep import TitleColumns
from hinet.engine.training.mixing import MixCost, learned_mix
from hinet.engine.training.neighbours import prototypes
from hinet.engine.training.plan import PlanInput, TrainingPlan
from hinet.progress import EpochRecord, LineProgress, SilentProgress

FEATURES = 40
QUICK = EngineSettings(width=16, flat_width=8, threads=2)
TREE = [
    *[("r", top) for top in "abc"],
    *[(top, f"{top}{child}") for top in "ab" for child in range(4)],
    *[("a0", f"a0{child}") for child in range(3)],
]
DAG = [("r", "a"), ("r", "b"), ("b", "c"), ("b", "d"), ("d", "e"), ("d", "f"), ("a", "f"), ("a", "d"), ("a", "g")]

UNKNOWN = ("a1", "f")  # labels of the tree and of the DAG without rows


def layers_of(kind: str) -> Layers:
    """A tree of 15 nodes below the root, or a DAG, in which inner nodes are labels as well."""
    return Layers.of(Taxonomy.from_edges(TREE if kind == "tree" else DAG))


def labels_of(layers: Layers) -> list[str]:
    return [node for node in layers.taxonomy if node != "r"]


def rows_of(labels: list[str], layers: Layers, seed: int = 0) -> sp.csr_array:
    """Rows of length 1 in which each label has a feature of its own among noise."""
    random = np.random.default_rng(seed)
    dense = (random.random((len(labels), FEATURES)) < 0.1).astype(np.float32)
    names = labels_of(layers)
    dense[:, : len(names)] = 0
    dense[np.arange(len(labels)), [names.index(label) for label in labels]] = 2
    return sp.csr_array(dense / np.linalg.norm(dense, axis=1, keepdims=True))


def data(kind: str = "tree", count: int = 300, seed: int = 0) -> tuple[sp.csr_array, Traces, list[str]]:
    layers = layers_of(kind)
    names = labels_of(layers)
    labels = [names[number] for number in np.random.default_rng([seed, 1]).integers(len(names), size=count)]
    return rows_of(labels, layers, seed), Traces.encode(layers, labels), labels


def accuracy(model: FusedModel, rows: sp.csr_array, labels: list[str]) -> float:
    ids = model.layers.taxonomy.ids
    found = Search(model).labels(rows)
    return float(np.mean([ids[node] == label for node, label in zip(found.nodes, labels, strict=True)]))


def assert_identical(first: FusedModel, second: FusedModel) -> None:
    one, other = first.to_arrays(), second.to_arrays()
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].dtype == other[name].dtype, name
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def differ(first: FusedModel, second: FusedModel, name: str) -> bool:
    return not np.array_equal(first.to_arrays()[name], second.to_arrays()[name])


@pytest.fixture(scope="module", params=["tree", "dag"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trained(kind: str) -> FusedModel:
    rows, traces, _ = data(kind)
    return fit(rows, traces, QUICK)


def test_a_model_learns_separable_labels(trained: FusedModel, kind: str) -> None:
    rows, _, labels = data(kind)
    assert accuracy(trained, rows, labels) > 0.95
    rows, _, labels = data(kind, seed=1)
    assert accuracy(trained, rows, labels) > 0.9
    assert (trained.mix.flat > 0) == (kind == "tree")


@pytest.mark.parametrize("expert", ["deep", "wide", "flat", "prototypes"])
def test_every_expert_alone_predicts_the_labels(expert: str) -> None:
    rows, traces, labels = data("tree")
    model = fit(rows, traces, QUICK)
    experts, alone = model.experts, np.array(Mix(**{expert: 1.0}), np.float32)
    if expert == "prototypes":
        known = prototypes(SparseMatrix.of(rows), FEATURES, Targets.of(traces), experts.spans, 20.0)
        experts = experts._replace(prototypes=known)
    assert accuracy(FusedModel(model.layers, experts._replace(mix=alone)), rows, labels) > 0.9


def test_rows_with_several_labels_are_shared_among_them(kind: str) -> None:
    layers = layers_of(kind)
    names = labels_of(layers)[:2]
    rows = sp.csr_array(np.ones((60, 3), np.float32) / np.sqrt(np.float32(3)))
    model = fit(rows, Traces.encode_sets(layers, [names] * 60), QUICK)
    found = Search(model).traces(rows[[0]], 2).traces
    assert set(found.decode_sets()[0]) == set(names)
    assert np.exp(found.log_p) == pytest.approx([0.5, 0.5], abs=0.1)


def test_the_number_of_threads_changes_nothing(trained: FusedModel, kind: str) -> None:
    rows, traces, _ = data(kind)
    for threads in (1, 3):
        assert_identical(fit(rows, traces, _with(QUICK, threads=threads)), trained)


def test_the_addresses_of_arrays_change_nothing() -> None:
    """Widths for which sums take several values at once; each run finds other memory free."""
    rows, traces, _ = data()
    wide = EngineSettings(width=64, flat_width=128, flat=True, wide=False, threads=2)
    first = fit(rows, traces, wide)
    for _ in range(20):
        assert_identical(fit(rows, traces, wide), first)


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        ({"dropout": 0.1}, {"features.weight", "flat.features.weight"}),
        ({"dropout": 0.3, "feature_dropout": 0.3}, {"features.weight", "flat.features.weight"}),
        ({"flat_upper": 1.0}, {"flat.features.weight"}),
    ],
)
def test_settings_change_the_experts_they_are_for(given: dict[str, Any], changed: set[str]) -> None:
    rows, traces, _ = data()
    plain, other = fit(rows, traces, _with(QUICK, flat=True)), fit(rows, traces, _with(QUICK, flat=True, **given))
    names = {"features.weight", "flat.features.weight", "wide.weight"}
    assert {name for name in names if differ(plain, other, name)} == changed


def test_quick_effort_trains_less_by_default() -> None:
    rows, traces, labels = data("tree")
    quick = fit(rows, traces, EngineSettings(effort="quick", flat=True))
    np.testing.assert_array_equal(quick.experts.mix, usual_mix(wide=False, flat=True))
    assert len(quick.history) == 2 * EngineSettings(effort="quick").epochs_of_deep(rows.shape[0])  # one deep, one flat
    assert EngineSettings(effort="quick", members=3, deep_epochs=9, width=7).members_for(10) == 3
    assert EngineSettings(effort="quick", deep_epochs=9).epochs_of_deep(10) == 9
    assert fit(rows, traces, EngineSettings(effort="quick", flat=False)).mix.wide > 0
    assert accuracy(quick, rows, labels) > 0.9


def test_another_seed_gives_another_model(trained: FusedModel, kind: str) -> None:
    rows, traces, _ = data(kind)
    other = fit(rows, traces, _with(QUICK, seed=1))
    assert all(differ(trained, other, name) for name in ("features.weight", "wide.weight"))


def test_rows_of_weight_zero_teach_nothing(kind: str) -> None:
    rows, _, labels = data(kind)
    layers = layers_of(kind)
    names = labels_of(layers)
    wrong = [names[(names.index(label) + 1) % len(names)] for label in labels]
    both, traces = sp.csr_array(sp.vstack([rows, rows, rows])), Traces.encode(layers, labels + wrong + wrong)
    weights = np.repeat([1.0, 0.0, 0.0], len(labels))
    assert accuracy(fit(both, traces, QUICK), rows, labels) < 0.5
    assert accuracy(fit(both, traces, QUICK, sample_weight=weights), rows, labels) > 0.95
    valid_rows, valid_traces, _ = data(kind, 60, 5)
    valid = ValidationRows(valid_rows, valid_traces)
    assert accuracy(fit(both, traces, QUICK, sample_weight=weights, valid=valid), rows, labels) > 0.95


def test_prototypes_follow_the_weights_of_rows() -> None:
    """A row of weight zero adds nothing to the mean of its label."""
    rows, traces, _ = data("tree", 20)
    spans, targets = LabelSpans.of(traces.layers), Targets.of(traces)
    half = np.arange(20) < 10
    weighted = prototypes(SparseMatrix.of(rows), FEATURES, targets.weighted(half.astype(float)), spans, 20.0)
    first = prototypes(SparseMatrix.of(rows[:10]), FEATURES, targets.take(np.arange(10)), spans, 20.0)
    shape = (FEATURES, len(spans.neuron))
    dense = [sp.csr_array((made.value, made.label, made.offsets), shape=shape).toarray() for made in (weighted, first)]
    np.testing.assert_allclose(*dense, rtol=1e-5, atol=1e-5)


def test_heavier_rows_win() -> None:
    layers = layers_of("tree")
    rows = sp.csr_array(np.full((90, 2), np.sqrt(0.5), np.float32))
    labels = ["a1"] * 60 + ["b1"] * 30
    traces = Traces.encode(layers, labels)
    for weight, winner in ((1.0, "a1"), (8.0, "b1")):
        weights = np.where(np.array(labels) == "b1", weight, 1.0)
        model = fit(rows, traces, _with(QUICK, prior_strength=0.0), sample_weight=weights)
        assert Search(model).traces(rows[[0]]).traces.decode() == [winner]


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 3.0, 1e300])
def test_only_the_ratios_of_weights_count(scale: float) -> None:
    weights = np.array([1.0, 2.0, 0.0, 3.0])
    np.testing.assert_allclose(validate_weights(scale * weights, 4), weights / 2, rtol=1e-12)
    np.testing.assert_array_equal(validate_weights(np.full(3, scale), 3), np.ones(3))


def test_one_row_of_nearly_all_the_weight_leaves_the_model_finite() -> None:
    rows, traces, labels = data()
    weights = np.where(np.arange(len(labels)) == 0, 1e300, 1e-300)
    assert accuracy(fit(rows, traces, QUICK, sample_weight=weights), rows[[0]], labels[:1]) == 1


def test_patience_stops_early_and_keeps_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[float] = []

    def heard_mix(cost_of: MixCost) -> tuple[Any, float]:
        mix, cost = learned_mix(cost_of)
        costs.append(cost)
        return mix, cost

    monkeypatch.setattr("hinet.engine.training.plan.learned_mix", heard_mix)
    rows, traces, _ = data("dag")
    valid_rows, _, _ = data("dag", 60, 5)
    random_traces = data("dag", 60, 6)[1]  # which nobody can learn, so that more training only costs
    settings = _with(QUICK, members=1, wide=False, deep_epochs=10, patience=2)
    model = fit(rows, traces, settings, valid=ValidationRows(valid_rows, random_traces))
    costs = costs[: len(model.history)]  # the last is of the final mix
    assert 2 < len(costs) < 10
    best = int(np.argmin(costs))
    assert len(costs) == best + 1 + 2
    assert all(record.valid_score is not None for record in model.history)
    deep = model.experts._replace(mix=np.array(Mix(deep=1), np.float32))
    targets = Targets.of(random_traces)
    cost = learned_mix(MixCost(SparseMatrix.of(valid_rows), targets, model.groups, deep))[1]
    assert costs[best] - 0.2 < cost <= costs[best]  # the shares of options lower it


def test_validation_rows_decide_the_mix(trained: FusedModel, kind: str) -> None:
    rows, traces, _ = data(kind)
    valid_rows, valid_traces, valid_labels = data(kind, 100, 5)
    model = fit(rows, traces, QUICK, valid=ValidationRows(valid_rows, valid_traces))
    usual = usual_mix(wide=True, flat=kind == "tree")
    np.testing.assert_array_equal(trained.experts.mix, usual)
    assert not np.allclose(model.experts.mix, usual, atol=1e-2)
    assert accuracy(model, valid_rows, valid_labels) > 0.9
    groups, targets, matrix = model.groups, Targets.of(valid_traces), SparseMatrix.of(valid_rows)

    def cost(experts: Any) -> float:
        found = Search(FusedModel(model.layers, experts)).traces(valid_rows, 1_000).traces
        assert found.log_p is not None
        total = 0.0
        for row, label in enumerate(valid_labels):
            traces = range(int(found.row_offsets[row]), int(found.row_offsets[row + 1]))
            node = model.layers.taxonomy.position(label)
            total -= np.log(sum(np.exp(found.log_p[trace]) for trace in traces if found.end_nodes[trace] == node))
        return total / len(valid_labels)

    assert cost(model.experts) < cost(model.experts._replace(mix=trained.experts.mix))
    assert learned_mix(MixCost(matrix, targets, groups, trained.experts))[1] < cost(trained.experts) + 1e-3


def test_rows_of_labels_that_were_not_trained_only_lower_how_sure_it_is(kind: str) -> None:
    rows, traces, labels = data(kind)
    known = [row for row, label in enumerate(labels) if label not in UNKNOWN]
    valid_rows, valid_traces, valid_labels = data(kind, 200, 5)
    seen = [row for row, label in enumerate(valid_labels) if label not in UNKNOWN]
    assert 0 < len(seen) < 190

    def mix(chosen: list[int]) -> Any:
        valid = ValidationRows(valid_rows[chosen], valid_traces.take(np.array(chosen)))
        return fit(rows[known], traces.take(np.array(known)), QUICK, valid=valid).experts.mix

    of_known, of_all = mix(seen), mix([*range(200)])
    assert of_all.sum() < 0.9 * of_known.sum()
    np.testing.assert_allclose(of_all / of_all.sum(), of_known / of_known.sum(), rtol=1e-3)


def test_a_few_validation_rows_hardly_move_the_mix(kind: str) -> None:
    rows, traces, _ = data(kind)
    valid_rows, valid_traces, valid_labels = data(kind, 100, 5)
    usual = usual_mix(wide=True, flat=kind == "tree")

    def moved(count: int) -> float:
        valid = ValidationRows(valid_rows[:count], valid_traces.take(np.arange(count)))
        model = fit(rows, traces, QUICK, valid=valid)
        assert accuracy(model, valid_rows[:count], valid_labels[:count]) == 1
        return float(np.linalg.norm(model.experts.mix - usual))

    assert moved(4) < 0.15 < moved(100)


def test_validation_rows_restore_the_shares_of_options() -> None:
    layers = Layers.of(Taxonomy.from_edges([("r", "often"), ("r", "seldom")]))
    labels = ["seldom" if number % 8 == 0 else "often" for number in range(2_000)]
    rows, traces = sp.csr_array(np.ones((2_000, 1), np.float32)), Traces.encode(layers, labels)  # all rows are alike
    settings = EngineSettings(width=8, wide=False, flat=False, prior_strength=0.8, threads=1)

    def share(valid: ValidationRows | None) -> float:
        found = Search(fit(rows, traces, settings, valid=valid)).traces(rows[:1], 1)
        return float(np.exp(found.log_p[0]))

    assert share(ValidationRows(rows, traces)) == pytest.approx(0.875, abs=0.01)
    assert share(ValidationRows(rows[:3], traces.take(np.arange(1, 4)))) < 0.75


def test_few_labels_are_worth_a_second_training() -> None:
    random = np.random.default_rng(0)

    def needs_holdout(labels: int, values: int) -> bool:
        layers = Layers.of(Taxonomy.from_edges([("r", f"l{number}") for number in range(labels)]))
        rows = sp.random_array((6_000, 400), density=values / 400, format="csr", dtype=np.float32, rng=random)
        traces = Traces.encode(layers, [f"l{number % labels}" for number in range(6_000)])
        return PlanInput(rows, traces, EngineSettings(threads=1, margin=False), None, None).plan().needs_holdout()

    assert needs_holdout(100, 20)
    assert not needs_holdout(200, 20)
    assert not needs_holdout(100, 140)  # long rows


def test_without_validation_rows_some_are_held_out_of_a_second_training() -> None:
    layers = Layers.of(Taxonomy.from_edges([(f"t{leaf // 10}", f"l{leaf}") for leaf in range(120)]))
    random = np.random.default_rng(0)
    leaf = np.arange(600) % 120
    rows = sp.random_array((600, 200), density=0.02, format="csr", dtype=np.float32, rng=random)
    rows = sp.csr_array(rows + sp.csr_array((np.ones(600, np.float32), (np.arange(600), leaf)), (600, 200)))
    traces = Traces.encode(layers, [f"l{number}" for number in leaf])
    settings = _with(QUICK, members=1, deep_epochs=3, seed=3)
    model = fit(rows, traces, settings)  # has a flat expert
    held = np.sort(np.random.default_rng(3).permutation(600)[:60])
    rest = np.setdiff1d(np.arange(600), held)
    rehearsed = fit(rows[rest], traces.take(rest), settings, valid=ValidationRows(rows[held], traces.take(held)))
    usual = usual_mix(wide=True, flat=True)
    assert not np.allclose(rehearsed.experts.mix, usual, atol=1e-2)
    np.testing.assert_array_equal(model.experts.mix, rehearsed.experts.mix)
    assert bool(model.experts.mix[PROTOTYPES]) is bool(len(model.experts.prototypes.label))
    few = fit(rows[:400], traces.take(np.arange(400)), settings)
    quick = fit(rows, traces, _with(settings, effort="quick"))
    np.testing.assert_array_equal(few.experts.mix, usual)
    np.testing.assert_array_equal(quick.experts.mix, usual_mix(wide=False, flat=True))


def test_titles_are_not_held_out_of_a_second_training(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = Layers.of(Taxonomy.from_edges([(f"t{leaf // 10}", f"l{leaf}") for leaf in range(120)]))
    random = np.random.default_rng(0)
    leaf = np.append(np.arange(600), np.arange(120)) % 120  # the last rows are titles
    sparse = sp.csr_array((np.ones(720, np.float32), (np.arange(720), leaf)), (720, 120))
    rows = MixedRows(sparse, random.standard_normal((720, 4)).astype(np.float32))
    traces = Traces.encode(layers, [f"l{number}" for number in leaf])
    titles = TitleColumns(rows.dense[600:], traces.end_nodes[600:].astype(np.int64))
    seen: list[np.ndarray] = []
    plan = PlanInput.plan

    def watched(data: PlanInput, start: FusedModel | None = None) -> TrainingPlan:
        if data.valid is not None:
            seen.append(data.valid.rows.dense)
        return plan(data, start)

    monkeypatch.setattr(PlanInput, "plan", watched)
    fit(rows, traces, _with(QUICK, members=1, deep_epochs=2), titles=titles)
    (held,) = seen
    assert len(held) == 60
    assert (held[:, None] == rows.dense[None, :600]).all(2).any(1).all()


@pytest.mark.parametrize("patience", [None, 1])
def test_validation_rows_of_one_label_are_enough(kind: str, patience: int | None) -> None:
    rows, traces, labels = data(kind)
    layers = layers_of(kind)
    chosen = [row for row, label in enumerate(labels) if label == "a"][:1]
    valid = ValidationRows(rows[chosen], Traces.encode(layers, ["a"]))
    model = fit(rows, traces, _with(QUICK, patience=patience, deep_epochs=3), valid=valid)
    assert np.isfinite(model.experts.mix).all()
    assert Search(model).labels(rows[chosen]).nodes.tolist() == [layers.taxonomy.position("a")]


class BreaksOff(SilentProgress):
    """Is interrupted after some steps."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advanced(self, rows: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt


class TrainsNothing(SilentProgress):
    """Refuses epochs: all of them should be done."""

    def epoch_done(self, record: EpochRecord) -> None:
        raise AssertionError(record)


def test_checkpoints_at_intervals_lose_at_most_an_interval(
    trained: FusedModel, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr("hinet.engine.training.checkpoints.time.monotonic", lambda: next(clock))
    monkeypatch.setattr("hinet.engine.training.checkpoints.MIN_WRITES", 0)
    rows, traces, _ = data(kind)
    with pytest.raises(KeyboardInterrupt):
        fit(rows, traces, QUICK, progress=BreaksOff(19), checkpoint=tmp_path, checkpoint_every=8)
    kept = len(list(tmp_path.iterdir()))
    assert kept > 0
    model = fit(rows, traces, QUICK, checkpoint=tmp_path, checkpoint_every=8)
    assert_identical(model, trained)


def test_a_watched_run_records_validation_accuracy_and_gives_the_same_model(kind: str) -> None:
    rows, traces, _ = data(kind)
    valid = ValidationRows(*data(kind, 60, 5)[:2])
    plain, watched = (fit(rows, traces, QUICK, valid=valid, watch=watch) for watch in (False, True))
    assert_identical(plain, watched)
    assert all(record.valid_score is None for record in plain.history)
    scores = [record.valid_score for record in watched.history if record.part.startswith("deep")]
    assert all(score is not None and 0 <= score <= 1 for score in scores)
    assert scores[-1] > 0.5


@pytest.mark.parametrize("after", [0, 3, 11, 19])
def test_an_interrupted_run_resumes_to_the_same_model(
    trained: FusedModel, kind: str, after: int, tmp_path: Path
) -> None:
    rows, traces, _ = data(kind)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        fit(rows, traces, QUICK, progress=BreaksOff(after), checkpoint=tmp_path / "run")
    assert threading.active_count() == before
    model = fit(rows, traces, QUICK, checkpoint=tmp_path / "run")
    assert_identical(model, trained)
    assert {(r.part, r.epoch, r.cost) for r in model.history} == {(r.part, r.epoch, r.cost) for r in trained.history}
    again = fit(rows, traces, QUICK, checkpoint=tmp_path / "run", progress=TrainsNothing())
    assert_identical(again, trained)
    assert set(again.history) == set(model.history)


@pytest.mark.parametrize("after", [2, 4, 6])
def test_an_interrupted_run_with_patience_resumes_to_the_same_model(after: int, tmp_path: Path) -> None:
    rows, traces, _ = data("dag")
    valid = ValidationRows(data("dag", 60, 5)[0], data("dag", 60, 6)[1])
    settings = _with(QUICK, members=1, wide=False, deep_epochs=10, patience=2)
    expected = fit(rows, traces, settings, valid=valid)
    stopped = len(expected.history)
    assert stopped < 10
    if after < stopped:
        with pytest.raises(KeyboardInterrupt):
            fit(rows, traces, settings, valid=valid, progress=BreaksOff(after), checkpoint=tmp_path)
    else:
        fit(rows, traces, settings, valid=valid, checkpoint=tmp_path)
    model = fit(rows, traces, settings, valid=valid, checkpoint=tmp_path)
    assert_identical(model, expected)


@pytest.fixture
def broken_off(tmp_path: Path) -> Path:
    """The checkpoint of a run that was interrupted."""
    rows, traces, _ = data()
    with pytest.raises(KeyboardInterrupt):
        fit(rows, traces, QUICK, progress=BreaksOff(8), checkpoint=tmp_path)
    assert list(tmp_path.iterdir())
    return tmp_path


def test_a_checkpoint_of_another_run_is_refused(broken_off: Path) -> None:
    rows, traces, labels = data()
    layers = traces.layers
    more = Layers.of(Taxonomy.from_edges([*TREE, ("a0", "a03")]))
    for other in (
        (rows, traces, _with(QUICK, seed=3)),
        (rows * np.float32(0.5), traces, QUICK),
        (rows, Traces.encode(layers, labels[::-1]), QUICK),
        (rows, Traces.encode(more, labels), QUICK),
    ):
        with pytest.raises(FileError, match="from other rows or settings; remove the folder"):
            fit(*other, checkpoint=broken_off)
    fit(rows, traces, _with(QUICK, threads=1, memory_limit=9.0), checkpoint=broken_off)  # which change no model


def test_nothing_is_trained_next_to_the_checkpoint_of_another_run(tmp_path: Path) -> None:
    rows, traces, _ = data()
    fit(rows, traces, QUICK, checkpoint=tmp_path / "all")
    for path in (tmp_path / "all").iterdir():
        folder = tmp_path / path.stem
        folder.mkdir()
        path.rename(folder / path.name)
        with pytest.raises(FileError, match="from other rows or settings"):
            fit(rows, traces, _with(QUICK, seed=3, threads=1), checkpoint=folder)
        assert [file.name for file in folder.iterdir()] == [path.name]


def test_a_checkpoint_of_another_taxonomy_is_refused(tmp_path: Path) -> None:
    """Even if the new node changes neither the numbers of neurons nor the way to any label that has rows."""
    rows, _, labels = data()
    chosen = [row for row, label in enumerate(labels) if label != "a02"]
    given = [labels[row] for row in chosen]
    fit(rows[chosen], Traces.encode(layers_of("tree"), given), QUICK, checkpoint=tmp_path)
    more = Layers.of(Taxonomy.from_edges([*TREE, ("a02", "a020")]))
    with pytest.raises(FileError, match="remove the folder to start again"):
        fit(rows[chosen], Traces.encode(more, given), QUICK, checkpoint=tmp_path)


def test_validation_rows_used_by_patience_belong_to_a_checkpoint(tmp_path: Path) -> None:
    rows, traces, _ = data()
    first, second = (ValidationRows(*data(count=40, seed=seed)[:2]) for seed in (5, 6))
    fit(rows, traces, QUICK, valid=first, checkpoint=tmp_path / "hasty")
    fit(rows, traces, QUICK, valid=second, checkpoint=tmp_path / "hasty")  # only the mix looks at them
    patient = _with(QUICK, patience=2)
    fit(rows, traces, patient, valid=first, checkpoint=tmp_path / "patient")
    with pytest.raises(FileError, match="remove the folder to start again"):
        fit(rows, traces, patient, valid=second, checkpoint=tmp_path / "patient")


def test_weights_belong_to_a_checkpoint(broken_off: Path) -> None:
    rows, traces, labels = data()
    with pytest.raises(FileError, match="from other rows or settings; remove the folder"):
        fit(rows, traces, QUICK, sample_weight=np.linspace(1, 2, len(labels)), checkpoint=broken_off)


def test_a_checkpoint_that_was_cut_off_is_named(broken_off: Path) -> None:
    rows, traces, _ = data()
    path = sorted(broken_off.iterdir())[0]
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FileError, match=rf"{path.name}.*damaged"):
        fit(rows, traces, QUICK, checkpoint=broken_off)


class Listens(SilentProgress):
    def __init__(self) -> None:
        self.cached: list[str] = []

    def message(self, text: str) -> None:
        self.cached.append(text)

    def started(self, epochs: int, rows: int) -> None:
        self.cached.append(f"started {epochs} {rows}")

    def advanced(self, rows: int) -> None:
        self.cached.append("advanced")

    def epoch_done(self, record: EpochRecord) -> None:
        self.cached.append(f"{record.part} {record.epoch}/{record.epochs}")

    def finished(self) -> None:
        self.cached.append("finished")


def test_too_little_memory_is_refused_before_training() -> None:
    rows, traces, _ = data()
    listens = Listens()
    with pytest.raises(HiNetError, match=r"takes 0\.00 GB.*`memory_limit=1e-06`; lower `width`.*`wide=False`"):
        fit(rows, traces, _with(QUICK, memory_limit=1e-6), progress=listens)
    assert not any(cached.startswith("started") for cached in listens.cached)
    fit(rows, traces, _with(QUICK, memory_limit=1.0, deep_epochs=1, wide_epochs=1))


def test_progress_reports_every_expert() -> None:
    rows, traces, _ = data()
    listens = Listens()
    model = fit(rows, traces, _with(QUICK, deep_epochs=2), progress=listens)
    epochs = [f"{record.part} {record.epoch}/{record.epochs}" for record in model.history]
    assert [cached for cached in listens.cached if "/" in cached] == epochs
    parts = ("deep 1", "deep 2", "flat 1", "flat 2")
    assert sorted(epochs)[:8] == [f"{part} {epoch}/2" for part in parts for epoch in (1, 2)]
    assert listens.cached[1] == f"started {len(epochs)} 300"
    assert listens.cached[-1] == "finished"
    stream = io.StringIO()
    fit(rows, traces, _with(QUICK, deep_epochs=2), progress=LineProgress("m", stream))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("m: training takes 0.00 GB: weights")
    assert {line.split("  ")[0] for line in lines[1:]} == {f"m: {epoch.rsplit(' ', 1)[0]}" for epoch in epochs}


def test_hashed_features_take_less_memory_and_still_learn(trained: FusedModel, kind: str) -> None:
    rows, traces, labels = data(kind)
    model = fit(rows, traces, _with(QUICK, wide_buckets=12))
    assert model.experts.wide.feature_rank.max() < 12
    assert len(model.experts.wide.weights) < len(trained.experts.wide.weights)
    assert accuracy(model, rows, labels) > 0.9
    np.testing.assert_array_equal(model.experts.deep.embedding, trained.experts.deep.embedding)


def test_a_model_is_its_arrays(trained: FusedModel, kind: str) -> None:
    rows, _, labels = data(kind)
    again = FusedModel.from_arrays(trained.layers, trained.to_arrays())
    assert_identical(again, trained)
    first, second = Search(trained).traces(rows, 3), Search(again).traces(rows, 3)
    np.testing.assert_array_equal(first.traces.log_p, second.traces.log_p)
    np.testing.assert_array_equal(first.traces.neurons, second.traces.neurons)
    arrays = trained.to_arrays(half=True)
    assert arrays["wide.weight"].dtype == np.float16
    halved = FusedModel.from_arrays(trained.layers, arrays)
    assert accuracy(halved, rows, labels) > 0.95
    np.testing.assert_allclose(
        Search(halved).labels(rows).probability, Search(trained).labels(rows).probability, atol=0.02
    )
    for name, array in trained.to_arrays().items():
        np.testing.assert_allclose(halved.to_arrays()[name], array, rtol=1e-3, atol=1e-4, err_msg=name)


def test_arrays_that_do_not_fit_are_refused(trained: FusedModel) -> None:
    arrays = trained.to_arrays()
    other = Layers.of(Taxonomy.from_edges([("r", "x"), ("r", "y")]))
    with pytest.raises(HiNetError, match="they belong to another taxonomy"):
        FusedModel.from_arrays(other, arrays)
    with pytest.raises(HiNetError, match=r"no 'head\.bias'"):
        FusedModel.from_arrays(trained.layers, {name: array for name, array in arrays.items() if name != "head.bias"})
    arrays["wide.weight"] = arrays["wide.weight"] * np.float32(1e9)
    with pytest.raises(HiNetError, match=r"wide\.weight has values too large for half precision; keep"):
        FusedModel.from_arrays(trained.layers, arrays).to_arrays(half=True)


def test_experts_can_be_left_out(kind: str) -> None:
    rows, traces, labels = data(kind)
    model = fit(rows, traces, _with(QUICK, wide=False, flat=False))
    assert model.mix == Mix(deep=1)
    assert len(model.experts.wide.weights) == 0
    assert accuracy(model, rows, labels) > 0.9
    if kind == "tree":
        assert fit(rows, traces, _with(QUICK, flat=True, wide=False)).mix == Mix(deep=0.5, flat=0.5)
        assert fit(rows, traces, QUICK).mix.flat > 0
    else:
        with pytest.raises(HiNetError, match="the flat expert is for trees; leave it out for a DAG"):
            fit(rows, traces, _with(QUICK, flat=True))


@pytest.mark.parametrize("root", [True, False])
@pytest.mark.parametrize("with_valid", [True, False])
def test_a_taxonomy_of_one_label_trains_and_predicts(root: bool, with_valid: bool) -> None:
    edges = [(None, "only")] if root else [("r", "middle"), ("middle", "only")]
    layers = Layers.of(Taxonomy.from_edges(edges), ends=["only"])
    rows, traces = sp.csr_array(np.eye(20, 4, dtype=np.float32)), Traces.encode(layers, ["only"] * 20)
    settings = _with(QUICK, patience=1 if with_valid else None)
    model = fit(rows, traces, settings, valid=ValidationRows(rows, traces) if with_valid else None)
    found = Search(model).traces(rows, 3)
    assert found.traces.decode() == ["only"] * 20
    assert found.traces.log_p.tolist() == [0.0] * 20
    assert Search(model).labels(rows).probability.tolist() == [1.0] * 20


def test_nodes_without_rows_are_legal(kind: str) -> None:
    layers = layers_of(kind)
    labels = ["a", "f" if kind == "dag" else "a01"] * 30
    rows = rows_of(labels, layers)
    model = fit(rows, Traces.encode(layers, labels), QUICK)
    assert accuracy(model, rows, labels) == 1


def test_empty_rows_are_rows(kind: str) -> None:
    rows, _, labels = data(kind)
    blank = sp.csr_array((40, FEATURES), dtype=np.float32)
    model = fit(sp.csr_array(sp.vstack([rows, blank])), Traces.encode(layers_of(kind), labels + ["b"] * 40), QUICK)
    assert accuracy(model, blank, ["b"] * 40) == 1
    nothing = fit(blank, Traces.encode(layers_of(kind), ["b"] * 40), QUICK)
    assert accuracy(nothing, blank, ["b"] * 40) == 1


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda x: x[:-1], "299 rows of features and 300 rows of labels; give one label per row"),
        (lambda x: x.toarray(), "reads rows of a CSR matrix, got ndarray"),
        (lambda x: x.tocsc(), r"expected a CSR matrix, got CSC; convert it with \.tocsr"),
        (lambda x: "text", "reads rows of a CSR matrix, got str"),
        (
            lambda x: x.multiply(sp.csr_array(([np.nan], ([7], [x[[7]].indices[0]])), x.shape)).tocsr() + x,
            "row 7: feat",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(spoil: Any, message: str) -> None:
    rows, traces, _ = data()
    with pytest.raises(HiNetError, match=message):
        fit(spoil(rows), traces, QUICK)
    with pytest.raises(HiNetError, match=message.replace("reads rows", "reads validation rows")):
        fit(rows, traces, QUICK, valid=ValidationRows(spoil(rows), traces))


def test_labels_that_do_not_fit_are_refused() -> None:
    rows, traces, labels = data()
    layers = traces.layers
    with pytest.raises(HiNetError, match="there are no rows"):
        fit(rows[:0], Traces.encode(layers, []), QUICK)
    with pytest.raises(HiNetError, match="there are no validation rows"):
        fit(rows, traces, QUICK, valid=ValidationRows(rows[:0], Traces.encode(layers, [])))
    without = Traces.encode_sets(layers, [["a"], [], ["b"], []])
    with pytest.raises(HiNetError, match=r"^row 1: no label \(2 such rows\); leave these rows out"):
        fit(rows[:4], without, QUICK)
    with pytest.raises(HiNetError, match=r"^validation row 1: no label"):
        fit(rows, traces, QUICK, valid=ValidationRows(rows[:4], without))
    other = Layers.of(Taxonomy.from_edges([("r", label) for label in labels_of(layers)]))
    with pytest.raises(HiNetError, match="other layers than the training rows; build both from the same Layers"):
        fit(rows, traces, QUICK, valid=ValidationRows(rows, Traces.encode(other, labels)))
    with pytest.raises(HiNetError, match="validation rows have 39 features and training rows 40"):
        fit(rows, traces, QUICK, valid=ValidationRows(rows[:, :39], traces))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(299), r"300 rows and sample weights of shape \(299,\); give one weight per row"),
        (np.where(np.arange(300) == 5, np.nan, 1), "row 5: sample weight nan; weights are finite"),
        (np.where(np.arange(300) == 6, np.inf, 1), "row 6: sample weight inf"),
        (np.where(np.arange(300) == 7, -1.0, 1), r"row 7: sample weight -1\.0; weights are finite and not negative"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: Any, message: str) -> None:
    rows, traces, _ = data()
    with pytest.raises(HiNetError, match=message):
        fit(rows, traces, QUICK, sample_weight=weights)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"width": 0}, "width: expected a whole number of at least 1 or None, got 0"),
        ({"dropout": 1.0}, "dropout: expected a number of at least 0 and below 1"),
        ({"feature_dropout": 1.0}, "feature_dropout: expected a number of at least 0 and below 1"),
        ({"flat_upper": -1.0}, r"flat_upper: expected a number of at least 0, got -1\.0"),
        ({"flat_upper": float("inf")}, "flat_upper: expected a number of at least 0, got inf"),
        ({"wide_rate": 0.0}, "wide_rate: expected a number above 0"),
        ({"patience": 0}, "patience: expected a whole number of at least 1"),
        ({"threads": 0}, "threads: expected a whole number other than 0"),
        ({"wide_buckets": 0}, "wide_buckets: expected a whole number of at least 1"),
    ],
)
def test_settings_out_of_range_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        EngineSettings(**given)


def test_a_cost_that_is_not_finite_ends_the_training() -> None:
    rows, traces, _ = data()
    before = threading.active_count()
    with pytest.raises(HiNetError, match="no longer finite; scale the features"):
        fit(rows, traces, _with(QUICK, deep_rate=1e38))
    assert threading.active_count() == before


def _with(settings: EngineSettings, **changed: Any) -> EngineSettings:
    return replace(settings, **changed)


def test_records_mixes_and_experts_name_the_same_experts() -> None:
    names = tuple(record.name for record in EXPERTS)
    assert names == Mix._fields
    assert (*names, "spans", "mix") == Experts._fields
