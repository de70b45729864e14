"""Nodes that a changed taxonomy moves are answered below their new parents; what did not change answers as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from hinet import HiNetClassifier, HiNetError, Layers, Taxonomy, Traces, load
from hinet.classifier.fitted import EXAMPLES, HELD_OUT, Examples, bytes_to_keep
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import Mix
from hinet.engine.training.relearning import option_targets
from hinet.taxonomy import TaxonomyChange
from tests.classifier.data import small
from tests.strategies import taxonomies

WORDS = {
    "rye": "dark bread loaf crust", "bun": "soft burger round sesame", "milk": "cow litre white cream",
    "car": "wheels motor race speed", "doll": "dress hair plush arms", "saw": "teeth cut timber blade",
}  # fmt: skip
PARENTS = {
    "bakery": "food",
    "rye": "bakery",
    "bun": "bakery",
    "milk": "food",
    "car": "toys",
    "doll": "toys",
    "saw": "r",
}
MOVED = {"leaf": {"car": "food"}, "inner": {"bakery": "toys"}, "top": {"milk": "r", "saw": "food"}}
EVERY: list[dict[str, Any]] = [{}, {"flat": True}, {"wide": False}, {"engine": "torch", "epochs": 60}]


def tree(**changed: str) -> Taxonomy:
    return Taxonomy.from_edges([("r", "food"), ("r", "toys"), *((p, n) for n, p in {**PARENTS, **changed}.items())])


def texts(rows: int, seed: int = 0) -> tuple[list[str], list[str]]:
    random = np.random.default_rng(seed)
    labels = random.choice(list(WORDS), rows).tolist()
    return [" ".join(random.choice(WORDS[label].split(), 3)) for label in labels], labels


TEXTS, LABELS = texts(180)
NEW, TRUE = texts(60, seed=1)


def ids(settings: Any) -> str:
    return settings if isinstance(settings, str) else "-".join(map(str, settings)) or "fused"


@pytest.mark.parametrize("settings", EVERY, ids=ids)
def test_moved_nodes_are_answered_and_the_rest_as_before(settings: dict[str, Any]) -> None:
    classifier = small(taxonomy=tree(), **settings).fit(TEXTS, LABELS)
    fitted, before = classifier.fitted_, classifier.predict(NEW)
    assert (before == TRUE).mean() > 0.95
    for changed in MOVED.values():
        classifier._set_fitted(fitted)
        classifier.update_taxonomy(tree(**changed))
        assert set(classifier.taxonomy_change_.moved) == set(changed)
        after = classifier.predict(NEW)
        assert (after == before).mean() > 0.95
        trace = classifier.predict_traces([f"{WORDS['car']}"])[0][0]
        assert trace.steps == (changed.get("car", "toys"), "car")
        np.testing.assert_allclose(classifier.predict_proba(NEW).sum(1), 1, rtol=1e-4)


def test_choices_that_nothing_moved_into_or_out_of_stay_to_the_bit() -> None:
    classifier = small(taxonomy=tree()).fit(TEXTS, LABELS)
    before = classifier.fitted_
    after = classifier.update_taxonomy(tree(car="food")).fitted_
    old, new = (dict(zip(c.codec.taxonomy.ids, range(99), strict=False)) for c in (before, after))
    for node in ("bakery",):
        rows = [
            (fitted.codec.layers.neurons_of[0][fitted.codec.layers.neurons_of[1][place[node]]], fitted.predictor.model)
            for fitted, place in ((before, old), (after, new))
        ]
        parts = [
            model.experts.deep.weight[model.groups.first_row[n] : model.groups.first_row[n + 1]] for n, model in rows
        ]
        assert len(parts[0]) == 2
        assert np.array_equal(*parts)


@pytest.mark.parametrize("engine", ["fused", "torch"])
def test_nodes_move_below_a_new_one_a_root_above_or_out_of_a_removed_one(engine: Any) -> None:
    classifier = small(taxonomy=tree(), engine=engine, epochs=60 if engine == "torch" else None).fit(TEXTS, LABELS)
    fitted, before = classifier.fitted_, classifier.predict(NEW)
    edges = [("r", "food"), ("r", "toys"), *((parent, node) for node, parent in PARENTS.items())]
    changes = {
        "new": [("food", "drinks"), ("drinks", "milk"), *(edge for edge in edges if edge[1] != "milk")],
        "above": [("world", "r"), ("world", "others"), *edges],
        "removed": [(("food" if parent == "bakery" else parent), n) for parent, n in edges if n != "bakery"],
        "several": [*edges, ("toys", "milk")],
    }
    for name, changed in changes.items():
        classifier._set_fitted(fitted)
        classifier.update_taxonomy(Taxonomy.from_edges(changed))
        assert (classifier.predict(NEW) == before).mean() > 0.9, name


def test_the_last_node_moves_below_one_before_a_node_where_rows_end() -> None:
    edges = [("a", "x"), (None, "b"), ("c", "z")]
    texts, labels = ["rye", "oat", "milk", "car", "toy"], ["x", "b", "z", "y", "x"]
    classifier = HiNetClassifier(Taxonomy.from_edges([*edges, ("c", "y")]), epochs=5)
    classifier.fit(8 * texts, 8 * labels).update_taxonomy(Taxonomy.from_edges([*edges, ("a", "y")]))
    assert classifier.predict_traces(["car"])[0][0].steps == ("a", "y")


def test_in_a_dag_a_moved_node_is_answered() -> None:
    dag = [("r", "food"), ("r", "toys"), ("toys", "bakery"), *((parent, node) for node, parent in PARENTS.items())]
    classifier = small(taxonomy=Taxonomy.from_edges(dag)).fit(TEXTS, LABELS)
    before = classifier.predict(NEW)
    assert (before == TRUE).mean() > 0.95
    moved = [("toys" if node == "milk" else parent, node) for parent, node in dag]
    assert (classifier.update_taxonomy(Taxonomy.from_edges(moved)).predict(NEW) == before).mean() > 0.9


def test_without_examples_rows_can_be_given() -> None:
    classifier = small(taxonomy=tree(), keep_examples=False).fit(TEXTS, LABELS)
    assert classifier.fitted_.examples is None
    before, fitted = classifier.predict(NEW), classifier.fitted_
    moved = np.array([label == "car" for label in TRUE])
    after = classifier.update_taxonomy(tree(car="food")).predict(NEW)
    assert (after == before)[moved].mean() < 0.5  # what its ancestors do not learn, they do not know
    classifier._set_fitted(fitted)
    assert (classifier.update_taxonomy(tree(car="food"), X=TEXTS).predict(NEW) == before).mean() > 0.95


def test_a_calibrated_model_and_one_whose_deep_expert_does_not_count() -> None:
    classifier = small(taxonomy=tree(), flat=True).fit(TEXTS, LABELS)
    before = classifier.predict(NEW)
    experts = classifier.fitted_.predictor.model.experts
    experts.mix[:] = Mix(wide=0.5, flat=0.5)
    classifier.calibrate(*texts(120, seed=2))
    after = classifier.update_taxonomy(tree(car="food"))
    assert not hasattr(after, "calibration_")
    assert (after.predict(NEW) == before).mean() > 0.9


def test_dense_rows_and_rows_of_features() -> None:
    random = np.random.default_rng(0)
    places = {label: random.normal(size=5) * 4 for label in WORDS}
    dense = np.stack([places[label] + random.normal(size=5) for label in LABELS])
    vocabulary = sorted({word for text in TEXTS for word in text.split()})
    counts = sp.csr_array([[text.split().count(word) for word in vocabulary] for text in TEXTS], dtype=np.float32)
    for rows in (dense, counts):
        classifier = small(taxonomy=tree(), epochs=None).fit(rows, LABELS)
        before = classifier.predict(rows)
        assert (before == LABELS).mean() > 0.95
        assert (classifier.update_taxonomy(tree(car="food", bakery="toys")).predict(rows) == before).mean() > 0.95


def test_examples_are_saved_join_more_rows_and_are_checked(tmp_path: Path) -> None:
    classifier = small(taxonomy=tree()).fit(TEXTS, LABELS)
    assert len(classifier.fitted_.examples) > 6
    classifier.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    kept = loaded.fitted_.examples
    assert (kept.rows != classifier.fitted_.examples.rows).nnz == 0
    assert np.array_equal(kept.nodes, classifier.fitted_.examples.nodes)
    assert loaded.update_taxonomy(tree(car="food")).predict(["wheels motor race"])[0] == "car"
    loaded.partial_fit(NEW, TRUE)
    assert len(loaded.fitted_.examples) >= len(kept)


@pytest.mark.parametrize("name", [EXAMPLES, HELD_OUT])
@pytest.mark.parametrize("counts", [[1, 1, 1, 1], [2, 1, 0, 3]], ids=["one label", "any number"])
@pytest.mark.parametrize("is_dense", [False, True], ids=["sparse", "dense"])
def test_kept_rows_are_restored_and_forged_ones_refused(name: str, counts: list[int], is_dense: bool) -> None:
    values = np.arange(1, 13, dtype=np.float32).reshape(4, 3)
    kept = Examples.of_nodes(values if is_dense else sp.csr_array(values), np.arange(sum(counts)), np.array(counts))
    arrays = kept.to_arrays(name)
    whole = Examples.restored(arrays, name, features=3, nodes=6)
    assert whole is not None
    np.testing.assert_array_equal(whole.rows if is_dense else whole.rows.toarray(), values)
    np.testing.assert_array_equal(whole.nodes, kept.nodes)
    np.testing.assert_array_equal(whole.offsets, kept.offsets)
    for array_name, array in arrays.items():
        wrong = array * np.inf if array.dtype.kind == "f" else array.astype(np.int64) - 10**6
        for broken in (array[:-1], array.astype(np.complex64), wrong, None):
            forged = {key: value for key, value in {**arrays, array_name: broken}.items() if value is not None}
            with pytest.raises(HiNetError, match=rf"'{name}\.\w+'"):
                Examples.restored(forged, name, features=3, nodes=6)
    with pytest.raises(HiNetError, match=rf"the arrays have the unknown '{name}\.more'"):
        Examples.restored({**arrays, f"{name}.more": values}, name, features=3, nodes=6)


def test_as_many_examples_are_kept_as_fit_of_every_label_some() -> None:
    nodes = np.repeat(np.arange(5), [100, 50, 3, 1, 1])
    rows = sp.csr_array(np.ones((len(nodes), 24_998), np.float32))  # each takes 100,000 bytes
    every = Examples.of_nodes(rows, nodes, np.ones(len(nodes), np.int64))
    few = every.chosen(bytes_to_keep(40_000_000), seed=0)
    assert len(few) == 20
    assert np.bincount(few.nodes).tolist() in ([8, 7, 3, 1, 1], [7, 8, 3, 1, 1])
    assert len(every.chosen(bytes_to_keep(10**9), seed=0)) == len(nodes)
    assert len(every.chosen(bytes_to_keep(0), seed=0)) == 10


@given(taxonomy=taxonomies(), other=taxonomies(), seed=st.integers(0, 9))
def test_labels_keep_their_probability_in_other_layers(taxonomy: Taxonomy, other: Taxonomy, seed: int) -> None:
    old, new = Layers.of(taxonomy), Layers.of(other)
    change = TaxonomyChange.between(taxonomy, other)
    labels = [node for node in taxonomy if taxonomy.depth[taxonomy.position(node)] > 0]
    if not labels:
        return
    found = Traces.encode(old, labels)
    log_p = np.log(np.random.default_rng(seed).random(len(found.offsets) - 1))
    found = Traces(old, found.row_offsets, found.offsets, found.neurons, log_p)
    targets = option_targets(found, new, change.new_position).toarray()
    for row, label in enumerate(labels):
        mass = np.exp(log_p[found.row_offsets[row] : found.row_offsets[row + 1]]).sum()
        kept = label in other and other.depth[other.position(label)] > 0
        root = targets[row, new.option_offsets[0] : new.option_offsets[1]].sum()
        np.testing.assert_allclose(root, mass if kept else 0, rtol=1e-6)
        if kept:
            flat, offsets = new.neurons_of
            place = other.position(label)
            ends = flat[offsets[place] : offsets[place + 1]]
            np.testing.assert_allclose(targets[row, new.option_offsets[ends + 1] - 1].sum(), mass, rtol=1e-6)


def test_rows_of_examples_are_those_that_kernels_read() -> None:
    classifier = small(taxonomy=tree()).fit(TEXTS, LABELS)
    examples = classifier.fitted_.examples
    assert SparseMatrix.of(examples.joined(examples).rows).row_count == 2 * len(examples)
