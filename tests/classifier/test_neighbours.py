"""Neighbours of a classifier of texts: corrections that count at once, explanations, saved models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet import HiNetClassifier, Taxonomy
from hinet.classifier.incremental import MAX_CORRECTIONS
from hinet.classifier.rows import TitleRows
from hinet.encoders.token_vectors import TokenVectors
from hinet.errors import HiNetError, LabelError

WORDS = ("rye", "wheat", "loaf", "milk", "cream", "cheese", "car", "truck", "train", "doll", "kite", "bun")
TOPIC = {"rye": 0, "wheat": 0, "loaf": 0, "bun": 0, "milk": 1, "cream": 1, "cheese": 1}
EDGES = [("food", "bread"), ("food", "dairy"), ("toys", "vehicles"), ("toys", "others")]
DAG = [*EDGES, ("food", "others"), ("toys", "bread")]
TITLES = {"bread": "bun", "dairy": "cheese", "vehicles": "train", "others": "doll"}
ROWS = [
    ("rye loaf", "bread"), ("wheat loaf", "bread"), ("milk cream", "dairy"), ("cream milk", "dairy"),
    ("car truck", "vehicles"), ("truck car", "vehicles"), ("doll", "others"), ("doll doll", "others"),
]  # fmt: skip


def vectors() -> TokenVectors:
    """Vectors in which words of a topic are alike."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(4, 16))
    topics = [TOPIC.get(word, 3 if word in ("doll", "kite") else 2) for word in WORDS]
    return TokenVectors.of(WORDS, (centres[topics] + 0.3 * random.normal(size=(len(WORDS), 16))).astype(np.float32))


def trained(edges: Sequence[tuple[str, str]] = EDGES, **options: object) -> HiNetClassifier:
    taxonomy = Taxonomy.from_edges(edges, attributes={"title": TITLES})
    classifier = HiNetClassifier(taxonomy, vectors=vectors(), titles=False, width=8, members=1, epochs=2, **options)
    return classifier.fit([text for text, _ in ROWS], [label for _, label in ROWS])


@pytest.mark.parametrize("edges", [EDGES, DAG])
def test_a_correction_counts_at_once_and_others_stay(edges: list[tuple[str, str]]) -> None:
    classifier, texts = trained(edges), [text for text, _ in ROWS]
    before = list(classifier.predict(texts))
    assert classifier.predict(["kite kite"])[0] != "vehicles"
    classifier.remember(["kite"], ["vehicles"])
    assert list(classifier.predict(["kite", "kite kite"])) == ["vehicles"] * 2
    assert list(classifier.predict(texts)) == before


def test_a_later_correction_replaces_an_earlier_one() -> None:
    classifier = trained().remember(["kite"], ["vehicles"]).remember(["kite"], ["bread"])
    assert classifier.predict(["kite"])[0] == "bread"


def test_a_correction_counts_before_a_training_row_of_the_same_text() -> None:
    assert trained().remember(["rye loaf"], ["dairy"]).predict(["rye loaf"])[0] == "dairy"


@pytest.mark.parametrize("edges", [EDGES, DAG])
def test_corrections_are_saved_with_the_model(edges: list[tuple[str, str]], tmp_path: Path) -> None:
    classifier = trained(edges).remember(["kite"], ["vehicles"])
    classifier.save(tmp_path / "model")
    again = HiNetClassifier.load(tmp_path / "model")
    asked = ["kite", "rye bun", "milk car", "unheard"]
    assert list(again.predict(asked)) == list(classifier.predict(asked))
    np.testing.assert_allclose(again.predict_proba(asked), classifier.predict_proba(asked), atol=1e-6)
    assert [str(each) for each in again.explain("kite").nearest] == [
        str(each) for each in classifier.explain("kite").nearest
    ]


@pytest.mark.parametrize("edges", [EDGES, DAG])
def test_an_explanation_names_the_nearest_texts(edges: list[tuple[str, str]]) -> None:
    classifier = trained(edges).remember(["kite"], ["vehicles"])
    nearest = classifier.explain("rye loaf").nearest
    assert (nearest[0].text, nearest[0].label, nearest[0].origin, nearest[0].row) == ("rye loaf", "bread", "row", 0)
    assert nearest[0].similarity == pytest.approx(1, abs=1e-3)
    assert "most like: 'rye loaf' (row 0), bread, 1.00" in str(classifier.explain("rye loaf"))
    assert classifier.explain("bun").nearest[0].origin == "title"
    assert classifier.explain("kite").nearest[0].origin == "correction"


def test_texts_are_not_kept_without_examples() -> None:
    nearest = trained(keep_examples=False).explain("rye loaf").nearest
    assert nearest[0].text is None
    assert nearest[0].label == "bread"


def test_a_text_without_a_vector_cannot_be_remembered() -> None:
    with pytest.raises(HiNetError, match="row 1: the text has no word with a vector"):
        trained().remember(["kite", "unheard"], ["vehicles", "bread"])


def test_the_last_of_two_corrections_given_together_counts() -> None:
    classifier = trained().remember(["kite", "kite"], ["bread", "vehicles"])
    assert classifier.predict(["kite"])[0] == "vehicles"
    assert int((classifier.fitted_.search.model.experts.neighbours.boost > 0).sum()) == 1


def test_a_model_is_saved_after_a_label_with_the_last_entry_is_gone(tmp_path: Path) -> None:
    classifier = trained().remember(["kite"], ["others"])
    edges = [edge for edge in EDGES if edge[1] != "others"]
    classifier.update_taxonomy(Taxonomy.from_edges(edges))
    classifier.remember(["kite"], ["vehicles"]).save(tmp_path / "model")
    again = HiNetClassifier.load(tmp_path / "model")
    assert again.predict(["kite"])[0] == "vehicles"
    assert again.explain("kite").nearest[0].text == "kite"


def test_corrections_stay_in_a_taxonomy_that_becomes_a_dag_and_a_tree_again() -> None:
    classifier = trained().remember(["kite"], ["bread"])
    for edges in (DAG, EDGES):
        classifier.update_taxonomy(Taxonomy.from_edges(edges))
        assert classifier.predict(["kite"])[0] == "bread"


def test_any_number_of_corrections_counts() -> None:
    texts = [f"kite {number}" for number in range(MAX_CORRECTIONS + 1)]  # all of them have the same vector
    classifier = trained().remember(texts, ["vehicles"] * len(texts))
    assert classifier.predict(["kite"])[0] == "vehicles"


def test_many_further_rows_are_no_corrections() -> None:
    classifier = trained()
    texts = ["rye loaf", "milk cream"] * (MAX_CORRECTIONS // 2 + 1)
    classifier.partial_fit(texts, ["bread", "dairy"] * (MAX_CORRECTIONS // 2 + 1))
    memory = classifier.fitted_.search.model.experts.neighbours
    assert not memory.boost.any()
    assert len(memory.label) <= 12 + 2 * 16


def test_the_pushes_of_an_explanation_add_up_with_neighbours() -> None:
    explanation = trained().explain("rye bun")
    for step in explanation.steps:
        assert sum(push for _, push in step.pushes()) == pytest.approx(step.difference, abs=1e-4)


def test_partial_fit_remembers_its_rows() -> None:
    classifier = trained()
    classifier.partial_fit(["kite"], ["vehicles"])
    assert classifier.predict(["kite kite"])[0] == "vehicles"
    assert classifier.explain("kite").nearest[0].origin == "correction"


def test_few_corrections_are_only_remembered_and_more_rows_train_the_experts() -> None:
    classifier = trained()
    classifier.fit([text for text, _ in ROWS] * 3, [label for _, label in ROWS] * 3)
    deep = classifier.fitted_.search.model.experts.deep
    classifier.partial_fit(["kite"], ["vehicles"])
    assert classifier.predict(["kite kite"])[0] == "vehicles"
    assert classifier.fitted_.search.model.experts.deep is deep
    classifier.partial_fit(["kite"] * 10, ["vehicles"] * 10)
    assert classifier.fitted_.search.model.experts.deep is not deep


def test_a_model_without_vectors_cannot_remember() -> None:
    taxonomy = Taxonomy.from_edges(EDGES)
    classifier = HiNetClassifier(taxonomy, width=8, members=1, epochs=2)
    classifier.fit([text for text, _ in ROWS], [label for _, label in ROWS])
    with pytest.raises(HiNetError, match="no memory of texts; train it with `vectors`"):
        classifier.remember(["kite"], ["vehicles"])
    assert classifier.explain("rye").nearest == ()


def test_an_unknown_label_is_not_remembered() -> None:
    classifier = trained()
    with pytest.raises(LabelError, match="row 0"):
        classifier.remember(["kite"], ["planes"])


def test_the_neighbours_of_a_taxonomy_alone_are_titles() -> None:
    taxonomy = Taxonomy.from_edges(EDGES, attributes={"title": TITLES})
    classifier = HiNetClassifier(taxonomy, vectors=vectors(), width=8, members=1, epochs=2).fit_taxonomy()
    assert {each.origin for each in classifier.explain("rye loaf").nearest} == {"title"}
    assert classifier.predict(["rye loaf"])[0] == "bread"


def test_the_first_rows_keep_corrections() -> None:
    taxonomy = Taxonomy.from_edges(EDGES, attributes={"title": TITLES})
    options: dict[str, Any] = {"vectors": vectors(), "width": 8, "members": 1, "epochs": 2}
    texts, labels = [text for text, _ in ROWS], [label for _, label in ROWS]
    classifier = HiNetClassifier(taxonomy, **options).fit_taxonomy().remember(["kite"], ["vehicles"])
    classifier.partial_fit(texts, labels)
    assert list(classifier.predict(["kite", "kite kite"])) == ["vehicles"] * 2
    assert classifier.explain("kite").nearest[0].origin == "correction"
    forgetful = (
        HiNetClassifier(taxonomy, keep_examples=False, **options).fit_taxonomy().remember(["kite"], ["vehicles"])
    )
    with pytest.warns(UserWarning, match="1 remembered correction is lost; remember them again"):
        forgetful.partial_fit(texts, labels)


def test_titles_are_compared_in_their_context() -> None:
    titles = {"food": "Food", "bread": "Bread", "rye": "Rye"}
    taxonomy = Taxonomy.from_edges([("food", "bread"), ("bread", "rye"), ("toys", "car")], attributes={"title": titles})
    rows = TitleRows(["Rye", "cars", "Food"], taxonomy.positions(["rye", "car", "food"]))
    assert rows.in_context(taxonomy) == [
        ["Rye", "cars", "Food"], ["Rye, Bread", "cars", "Food"], ["Rye, Food", "cars", "Food"],
    ]  # fmt: skip


def test_no_neighbours_on_demand() -> None:
    assert not trained(neighbours=0).fitted_.predictor.can_remember
