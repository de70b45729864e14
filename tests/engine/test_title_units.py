"""Titles as hidden units: the law of their logits, in trees and DAGs, and what a fitted model has of them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

from hinet import Layers, Taxonomy, Traces
from hinet.data.matrices import MixedRows
from hinet.engine import EngineSettings, Search, fit
from hinet.engine.model.groups import Groups
from hinet.engine.training import deep, rows
from hinet.engine.training.deep import COSINE_WEIGHT, title_units
from hinet.engine.training.rows import TitleColumns
from hinet.taxonomy import STOP

TREE = [("food", "bread"), ("food", "milk"), ("toys", "car"), ("toys", "train")]
DAG = [*TREE, ("toys", "bread")]
LABELS = ("bread", "milk", "car", "train", "food")
FEATURES, COLUMNS, LENGTH = 12, 6, 2.0


def titles_of(taxonomy: Taxonomy, labels: tuple[str, ...] = LABELS) -> TitleColumns:
    columns = np.random.default_rng(1).standard_normal((len(labels), COLUMNS)).astype(np.float32)
    return TitleColumns(columns, taxonomy.positions(labels))


def unit(vector: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(vector)
    return vector / length if length else vector


def by_hand(titles: TitleColumns, layers: Layers, row: np.ndarray) -> list[np.ndarray]:
    """Return the logits of each group with several options, up to a constant, from the paths below each option."""
    own = {int(node): unit(column.astype(float)) for node, column in zip(titles.nodes, titles.columns, strict=True)}

    def below(neuron: int) -> np.ndarray:
        """Return the sum over all paths to a label."""
        start, end = layers.option_offsets[neuron : neuron + 2].tolist()
        children = [below(child) for child in layers.option_neuron[start:end].tolist() if child != STOP]
        mine = own.get(int(layers.node[neuron]), np.zeros(COLUMNS)) * bool(layers.ends[neuron])
        return mine + sum(children, np.zeros(COLUMNS))

    logits_of_groups = []
    for group in range(len(layers.node)):
        start, end = layers.option_offsets[group : group + 2].tolist()
        options = layers.option_neuron[start:end].tolist()
        if len(options) > 1:
            vectors = [own[int(layers.node[group])] if child == STOP else below(child) for child in options]
            logits = np.array([COSINE_WEIGHT * row @ unit(vector) / LENGTH for vector in vectors])
            logits_of_groups.append(logits - logits.mean())
    return logits_of_groups


@pytest.mark.parametrize("edges", [TREE, DAG])
def test_logits_are_cosines_with_the_titles_below_each_option(edges: list[tuple[str, str]]) -> None:
    taxonomy = Taxonomy.from_edges(edges)
    layers = Layers.of(taxonomy, LABELS)
    titles = titles_of(taxonomy)
    member = title_units(titles, layers, FEATURES, LENGTH)
    assert member is not None
    assert not member.embedding[: FEATURES - COLUMNS].any()  # sparse features have no weights
    row = np.random.default_rng(2).standard_normal(COLUMNS)
    logits = (row @ member.embedding[FEATURES - COLUMNS :]) @ member.weight.T
    groups = Groups.of(layers)
    parts = np.split(logits, groups.first_row[1:-1])
    for part, wanted in zip([part for part in parts if len(part)], by_hand(titles, layers, row), strict=True):
        np.testing.assert_allclose(part - part.mean(), wanted, atol=1e-5)


def test_few_units_keep_the_directions_in_which_options_differ_most(monkeypatch: pytest.MonkeyPatch) -> None:
    taxonomy = Taxonomy.from_edges(TREE)
    layers, titles = Layers.of(taxonomy, LABELS), titles_of(taxonomy)
    whole = title_units(titles, layers, FEATURES, LENGTH)
    monkeypatch.setattr(deep, "MAX_UNITS", 2)
    few = title_units(titles, layers, FEATURES, LENGTH)
    assert whole is not None
    assert few is not None
    assert few.width == 2
    products = [member.weight @ member.embedding[-COLUMNS:].T for member in (whole, few)]
    singular = np.linalg.svd(products[0], compute_uv=False)
    assert np.linalg.norm(products[0] - products[1]) == pytest.approx(np.linalg.norm(singular[2:]), rel=1e-4)


def test_an_option_without_a_title_is_as_near_as_the_others_are_on_average() -> None:
    taxonomy = Taxonomy.from_edges(TREE)
    layers = Layers.of(taxonomy, ("bread", "milk", "car", "train"))
    member = title_units(titles_of(taxonomy, ("bread", "car", "train")), layers, FEATURES, LENGTH)
    assert member is not None
    groups = Groups.of(layers)
    milk = groups.option_neuron[groups.row_options()] == np.flatnonzero(layers.node == taxonomy.position("milk"))[0]
    assert not member.weight[milk].any()


def test_synonyms_of_a_label_count_together() -> None:
    taxonomy = Taxonomy.from_edges(TREE)
    layers = Layers.of(taxonomy, LABELS)
    titles = titles_of(taxonomy, (*LABELS, "milk"))
    twice = titles._replace(columns=titles.columns.copy())
    directions = [column / np.linalg.norm(column) for column in titles.columns[[1, 5]]]
    twice.columns[[1, 5]] = sum(directions)
    members = [title_units(each, layers, FEATURES, LENGTH) for each in (titles, twice)]
    products = [member.weight @ member.embedding.T for member in members if member is not None]
    np.testing.assert_allclose(*products, atol=1e-5)


@pytest.mark.parametrize("length", [0.0, float("nan")])
def test_rows_without_any_vector_get_no_units(length: float) -> None:
    taxonomy = Taxonomy.from_edges(TREE)
    assert title_units(titles_of(taxonomy), Layers.of(taxonomy, LABELS), FEATURES, length) is None


def test_too_many_neurons_get_no_units(monkeypatch: pytest.MonkeyPatch) -> None:
    taxonomy = Taxonomy.from_edges(TREE)
    layers, titles = Layers.of(taxonomy, LABELS), titles_of(taxonomy)
    assert titles.memory(layers) == 4 * 4 * len(layers.node) * COLUMNS
    monkeypatch.setattr(rows, "MAX_TITLE_VALUES", len(layers.node) * COLUMNS - 1)
    assert titles.memory(layers) == 0
    assert title_units(titles, layers, FEATURES, LENGTH) is None


def test_titles_that_are_alike_make_no_units() -> None:
    taxonomy = Taxonomy.from_edges(TREE)
    same = TitleColumns(np.ones((5, COLUMNS), np.float32), taxonomy.positions(LABELS))
    assert title_units(same, Layers.of(taxonomy, LABELS), FEATURES, LENGTH) is None


@pytest.mark.parametrize("whiten", [False, True])
def test_a_model_answers_rows_of_unknown_features_by_titles(whiten: bool) -> None:
    taxonomy = Taxonomy.from_edges(TREE)
    layers = Layers.of(taxonomy, ("bread", "milk", "car", "train"))
    random = np.random.default_rng(0)
    labels = random.choice(["bread", "milk", "car"], 200)
    sparse = sp.csr_array(np.eye(3, dtype=np.float32)[[["bread", "milk", "car"].index(label) for label in labels]])
    noise = random.standard_normal((200, COLUMNS)).astype(np.float32)
    rows, traces = MixedRows(sparse, noise), Traces.encode(layers, labels.tolist())
    titles = TitleColumns(
        3 * np.eye(4, COLUMNS, dtype=np.float32), taxonomy.positions(("bread", "milk", "car", "train"))
    )
    settings = EngineSettings(members=2, width=8, deep_epochs=4, threads=1, whiten=whiten)
    asked = MixedRows(sp.csr_array((4, 3), dtype=np.float32), 4 * titles.columns)
    with_titles, without = (
        Search(fit(rows, traces, settings, titles=given), 1).label_probabilities(asked).toarray()
        for given in (titles, None)
    )
    nodes = taxonomy.positions(("bread", "milk", "car", "train"))
    own = np.arange(4), nodes
    assert (with_titles[own] > without[own]).all()
