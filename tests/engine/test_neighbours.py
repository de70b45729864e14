"""Neighbours against brute force: nearest labels, the search with them, files, taxonomies that change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hinet import Layers, Taxonomy, Traces
from hinet.data.matrices import MixedRows, SparseMatrix
from hinet.engine import EngineSettings, Search, ValidationRows, fit
from hinet.engine.model.experts import Mix
from hinet.engine.model.experts.neighbours import (
    COSINE_WEIGHT,
    NEAREST,
    Memory,
    nearest_entries,
    nearest_labels,
    quantised,
)
from hinet.engine.model.fused import FusedModel
from hinet.engine.training.deep import TitleColumns
from hinet.engine.training.neighbours import TextVectors, medoids
from hinet.errors import HiNetError

EDGES = [("food", "bread"), ("food", "milk"), ("toys", "car"), ("toys", "train"), ("toys", "kite")]
SECOND_PARENTS = [("food", "kite"), ("toys", "milk"), ("milk", "train")]
LABELS = ["bread", "milk", "car", "train"]
SETTINGS = EngineSettings(members=1, width=4, deep_epochs=1, wide_epochs=1, threads=1, neighbours=3)


def random_rows(count: int, seed: int = 0, unknown: Any = None) -> MixedRows:
    random = np.random.default_rng(seed)
    sparse = sp.random_array((count, 12), density=0.3, format="csr", dtype=np.float32, rng=random)
    return MixedRows(sparse, random.normal(size=(count, 6)).astype(np.float32), unknown)


def trained(edges: Sequence[tuple[str, str]] = EDGES, **changes: Any) -> FusedModel:
    layers = Layers.of(Taxonomy.from_edges(edges), ends=["food", "toys", "milk"])
    rows = random_rows(24)
    titles = TitleColumns(random_rows(3, seed=1).dense, layers.taxonomy.positions(["kite", "bread", "car"]))
    traces = Traces.encode(layers, [LABELS[row % 4] for row in range(24)])
    return fit(rows, traces, replace(SETTINGS, **changes), vectors=TextVectors(6, titles))


def with_growth(growth: float) -> FusedModel:
    model = trained()
    memory = model.experts.neighbours.with_growth(growth)
    return replace(model, experts=model.experts._replace(neighbours=memory))


def test_nearest_labels_are_those_with_the_greatest_cosine() -> None:
    random = np.random.default_rng(0)
    vectors, label = random.normal(size=(400, 8)).astype(np.float32), random.integers(0, 90, 400)
    memory = Memory.of(vectors, label, np.arange(400))
    queries = random.normal(size=(5, 8)).astype(np.float32)
    found, score = nearest_labels(queries, memory)
    units = [each / np.linalg.norm(each, axis=1, keepdims=True) for each in map(quantised, (queries, vectors))]
    cosine = np.full((5, 90), -np.inf)
    for entry, own in enumerate(label.tolist()):
        cosine[:, own] = np.maximum(cosine[:, own], (units[0] @ units[1][entry]))
    best = np.sort(np.argsort(-cosine, axis=1)[:, :NEAREST], axis=1)
    np.testing.assert_array_equal(found, best)
    own = np.take_along_axis(cosine, best, axis=1)
    np.testing.assert_allclose(score, COSINE_WEIGHT * (own - own.min(1, keepdims=True)), atol=1e-4)


@pytest.mark.parametrize("first_label", [0, 88])
def test_labels_with_many_entries_are_compared_with_all_of_them(
    first_label: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(1)
    vectors = random.normal(size=(600, 8)).astype(np.float32)
    label = np.where(np.arange(600) < 300, first_label, random.integers(0, 90, 600))
    memory, queries = Memory.of(vectors, label, np.arange(600)), random.normal(size=(5, 8)).astype(np.float32)
    at_once = nearest_labels(queries, memory)
    monkeypatch.setattr("hinet.engine.model.experts.neighbours.MAX_SLOTS", 1_000)
    for own, other in zip(at_once, nearest_labels(queries, memory), strict=True):
        np.testing.assert_array_equal(own, other)
    entries, cosine = nearest_entries(queries[:1], memory, 3)
    monkeypatch.setattr("hinet.engine.model.experts.neighbours.BLOCK_ENTRIES", 7)
    in_blocks = nearest_entries(queries[:1], memory, 3)
    np.testing.assert_array_equal(in_blocks[0], entries)
    np.testing.assert_array_equal(in_blocks[1], cosine)


def test_an_answer_does_not_depend_on_the_other_rows() -> None:
    search, rows = Search(trained()), random_rows(700, seed=2)
    together = search.traces(rows).traces
    for row in (0, 5, 699):
        assert search.traces(rows[[row]]).traces.log_p[0] == together.log_p[row]


def test_the_search_is_exact_with_neighbours() -> None:
    model = trained()
    assert model.mix.neighbours > 0
    search, rows = Search(model), random_rows(20, seed=3)
    answers = search.traces(rows, model.layers.count_traces())
    for row in range(20):
        chances = {}
        parts = search.row_parts(rows[[row]])
        for label in [*LABELS, "kite", "food", "toys"]:
            neurons, total = Traces.encode(model.layers, [label]).neurons.tolist(), 0.0
            for group, neuron in zip([0, *neurons], [*neurons, -1], strict=True):
                low, high = model.layers.option_offsets[group : group + 2].tolist()
                if model.layers.has_choice[group]:
                    logits = parts.of_group(group).logits
                    option = model.layers.option_neuron[low:high].tolist().index(neuron)
                    total += logits[option] - np.logaddexp.reduce(logits)
            chances[label] = total
        found = answers.traces.take(np.array([row]))
        ends = [model.layers.taxonomy.ids[node] for node in found.end_nodes.tolist()]
        assert ends == sorted(chances, key=lambda label: -chances[label])
        np.testing.assert_allclose(found.log_p, sorted(chances.values(), reverse=True), atol=1e-4)


def test_a_label_without_rows_is_found_by_its_title() -> None:
    model = trained()
    title = random_rows(3, seed=1)[[0]]
    query = MixedRows(sp.csr_array((1, 12), dtype=np.float32), title.dense, np.ones(1, np.float32))
    best = Search(replace(model, experts=model.experts._replace(mix=np.array(Mix(deep=0.1, neighbours=1), np.float32))))
    assert model.layers.taxonomy.ids[best.labels(query).nodes[0]] == "kite"


def test_neighbours_count_more_for_unknown_words() -> None:
    search = Search(trained())
    rows = random_rows(1, seed=4, unknown=np.zeros(1, np.float32))
    known, unknown = search._checked(rows), search._checked(replace(rows, unknown=np.ones(1, np.float32)))
    assert (unknown.near_score >= known.near_score).all()
    assert unknown.near_score.max() > 2 * known.near_score.max()


def test_validation_rows_teach_how_much_more_neighbours_count() -> None:
    layers, rows = Layers.of(Taxonomy.from_edges(EDGES)), random_rows(24, seed=2)
    traces = Traces.encode(layers, [LABELS[row % len(LABELS)] for row in range(24)])
    vectors, twice = TextVectors(rows.dense.shape[1]), np.tile(np.arange(24), 2)
    asked = replace(rows[twice], unknown=np.repeat([0, 1], 24).astype(np.float32))
    right, wrong = traces.take(np.arange(24)), traces.take((np.arange(24) + 1) % 24)
    growths = []
    for known, unknown in ((wrong, right), (right, wrong)):
        valid = ValidationRows(asked, Traces.joined(layers, [known, unknown]))
        growths.append(fit(rows, traces, SETTINGS, valid=valid, vectors=vectors).experts.neighbours.growth[0])
    assert growths[0] > growths[1]


def test_the_title_of_a_branch_is_not_an_entry() -> None:
    layers, rows = Layers.of(Taxonomy.from_edges(EDGES)), random_rows(3, seed=2)
    traces = Traces.encode_sets(layers, [[LABELS[0]], LABELS[:2], [LABELS[1]]])
    memory = fit(rows, traces, SETTINGS, vectors=TextVectors(rows.dense.shape[1])).experts.neighbours
    assert memory.row.tolist() == [0, 2]


def test_remembered_rows_keep_what_was_learned() -> None:
    model, rows = with_growth(3.0), random_rows(2, seed=7)
    traces = Traces.encode_sets(model.layers, [LABELS[:2], [LABELS[2]]])
    for limit in (None, 4):
        memory = Search(model).remembering(rows, traces, 100, limit).model.experts.neighbours
        assert memory.growth[0] == 3
        assert memory.row[memory.row >= 100].tolist() == [101]  # a row with several labels is not an entry


def test_an_empty_memory_keeps_what_was_learned() -> None:
    entries = trained().experts.neighbours
    assert entries.take(np.zeros(0, np.int64)).with_growth(3.0).joined(entries).growth[0] == 3


def test_a_label_keeps_as_many_rows_as_the_settings_say() -> None:
    memory = trained().experts.neighbours
    rows = memory.row < 24
    assert np.bincount(memory.label[rows]).max() == 3
    assert rows.sum() < len(rows) == rows.sum() + 3
    assert not len(trained(neighbours=0).experts.neighbours.label)


def test_medoids_are_rows_of_different_clusters() -> None:
    columns = np.repeat(np.eye(3, dtype=np.float32), 10, axis=0)
    kept = medoids(columns, np.arange(30), np.zeros(30, np.int64), 3)
    assert sorted(columns[kept].argmax(1).tolist()) == [0, 1, 2]


def test_a_saved_model_answers_the_same() -> None:
    model, rows = with_growth(3.0), random_rows(20, seed=5, unknown=np.ones(20, np.float32))
    again = FusedModel.from_arrays(model.layers, model.to_arrays())
    np.testing.assert_array_equal(Search(again).traces(rows).traces.log_p, Search(model).traces(rows).traces.log_p)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("label", lambda array: array[::-1].copy()),
        ("label", lambda array: np.full_like(array, 100)),
        ("row", lambda array: array[1:].copy()),
        ("growth", lambda array: np.full_like(array, -1)),
        ("growth", lambda array: np.full_like(array, np.nan)),
        ("growth", lambda array: np.full_like(array, 1e9)),
        ("growth", lambda array: np.repeat(array, 2)),
        ("vector", lambda array: array[:, 0].copy()),
        ("vector", lambda array: array.astype(np.float32)),
    ],
)
def test_forged_neighbours_are_refused(name: str, change: Any) -> None:
    model = trained()
    arrays = model.to_arrays()
    with pytest.raises(HiNetError, match="neighbours"):
        FusedModel.from_arrays(model.layers, arrays | {f"neighbours.{name}": change(arrays[f"neighbours.{name}"])})


def test_forged_neighbours_wider_than_the_rows_are_refused() -> None:
    model = trained()
    arrays = model.to_arrays()
    wide = np.repeat(arrays["neighbours.vector"], 4, axis=1)
    forged = FusedModel.from_arrays(model.layers, arrays | {"neighbours.vector": wide})
    with pytest.raises(HiNetError, match="24 columns"):
        Search(forged).traces(random_rows(2))


def test_neighbours_move_with_their_labels() -> None:
    model = with_growth(3.0)
    taxonomy = Taxonomy.from_edges([("toys", "train"), ("toys", "car"), ("food", "milk"), ("food", "rice")])
    layers = Layers.of(taxonomy)
    old = model.layers.taxonomy
    came_from = np.array([old.ids.index(each) if each in old.ids else -1 for each in taxonomy.ids] + [-1])
    moved = model.transferred(layers, came_from)
    assert moved.experts.neighbours.growth[0] == 3

    assert labels(moved) == [label for label in labels(model) if label in {"train", "car", "milk"}]


def labels(fused: FusedModel) -> list[str]:
    """Return the label of every entry."""
    nodes = fused.experts.spans.paths.node[fused.experts.neighbours.label]
    return sorted(fused.layers.taxonomy.ids[node] for node in nodes.tolist())


def test_entries_of_a_dag_are_those_of_a_tree_with_the_same_labels() -> None:
    tree, dag = trained(), trained([*EDGES, *SECOND_PARENTS])
    assert labels(dag) == labels(tree)
    rows = random_rows(20, seed=5)
    again = FusedModel.from_arrays(dag.layers, dag.to_arrays())
    np.testing.assert_array_equal(Search(again).traces(rows).traces.log_p, Search(dag).traces(rows).traces.log_p)


def test_a_remembered_row_of_a_dag_counts_on_all_paths_of_its_label() -> None:
    model, row = trained([*EDGES, *SECOND_PARENTS]), random_rows(1, seed=8)
    traces = Traces.encode(model.layers, ["train"])
    assert np.diff(traces.row_offsets).tolist() == [3]
    search = Search(model).remembering(row, traces, 100)
    assert labels(search.model).count("train") == labels(model).count("train") + 1
    found = search.traces(row, model.layers.count_traces())
    before = Search(model).traces(row, model.layers.count_traces())
    for path in traces.paths()[0]:
        now, then = (
            dict(zip(each.traces.paths()[0], each.traces.log_p, strict=True))[path] for each in (found, before)
        )
        assert now > then


@pytest.mark.parametrize("to_dag", [True, False])
def test_neighbours_move_between_trees_and_dags(to_dag: bool) -> None:
    edges = [EDGES, [*EDGES, *SECOND_PARENTS]]
    model, other = (trained(each) for each in (edges if to_dag else edges[::-1]))
    old, new = model.layers.taxonomy, other.layers.taxonomy
    came_from = np.append(old.positions(new.ids), -1)
    moved = model.transferred(other.layers, came_from)
    assert labels(moved) == labels(model)
    assert moved.mix.neighbours > 0
    rows = random_rows(3, seed=9)
    np.testing.assert_array_equal(
        nearest_labels(rows.dense, moved.experts.neighbours)[1].max(1),
        nearest_labels(rows.dense, model.experts.neighbours)[1].max(1),
    )
    answers = Search(moved).traces(rows, other.layers.count_traces()).traces
    np.testing.assert_allclose(
        np.bincount(np.repeat(range(3), np.diff(answers.row_offsets)), np.exp(answers.log_p)), 1, atol=1e-5
    )


def test_a_model_whose_known_labels_all_go_can_be_loaded() -> None:
    model = trained(EDGES)
    other = Layers.of(Taxonomy.from_edges([("new", "one"), ("new", "two")]))
    moved = model.transferred(other, np.full(len(other.taxonomy) + 1, -1))
    assert not len(moved.experts.neighbours.label)
    assert moved.mix.neighbours == 0
    assert FusedModel.from_arrays(other, moved.to_arrays()).mix == moved.mix


def test_rows_with_too_few_vector_columns_are_refused() -> None:
    rows = random_rows(3, seed=9)
    width = rows.dense.shape[1]
    with pytest.raises(HiNetError, match=f"rows have {width} dense columns, and the model compares {width + 1}"):
        SparseMatrix.of(rows).without_last(100, width + 1)
