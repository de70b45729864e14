"""Training on the titles, synonyms and definitions of a taxonomy, without rows, and the first rows after that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet import HiNetClassifier, HiNetError, LabelError, Taxonomy, load
from hinet.classifier.calibration import practice_texts
from hinet.classifier.model_folder import read_manifest, training_text
from hinet.classifier.rows import TitleRows

EDGES = [("food", "bread"), ("food", "milk"), ("toys", "rail"), ("toys", "dolls")]
TITLES = {"food": "Groceries", "bread": "Rye bread", "milk": "Cow milk", "toys": "Playthings", "rail": "Model railways",
          "dolls": "Dolls"}  # fmt: skip
SYNONYMS = {"bread": "loaf|toast", "toys": "games"}
DEFINITIONS = {"milk": "white liquid of mammals"}


def shop(edges: list[tuple[Any, str]] = EDGES, **attributes: dict[str, str]) -> Taxonomy:
    given = attributes or {"title": TITLES, "synonyms": SYNONYMS, "definition": DEFINITIONS}
    return Taxonomy.from_edges(edges, attributes=given)


def fitted(taxonomy: Taxonomy | None = None, classes: Any = None, **parameters: Any) -> HiNetClassifier:
    return HiNetClassifier(shop() if taxonomy is None else taxonomy, n_jobs=1, **parameters).fit_taxonomy(classes)


def top(classifier: HiNetClassifier, text: str) -> str:
    """Return the most probable top node of a text."""
    by_top: dict[str, float] = {}
    above = {child: parent for parent, child in EDGES}
    for label, p in zip(classifier.classes_.tolist(), classifier.predict_proba([text])[0].tolist(), strict=True):
        by_top[above[label]] = by_top.get(above[label], 0) + p
    return max(by_top, key=lambda node: by_top[node])


def test_titles_synonyms_and_definitions_of_labels_are_known() -> None:
    classifier = fitted()
    texts = ["rye", "some toast", "mammals", "a railway", "my doll"]
    assert classifier.predict(texts).tolist() == ["bread", "bread", "milk", "rail", "dolls"]
    assert classifier.classes_.tolist() == ["bread", "milk", "rail", "dolls"]
    assert "validation" not in classifier.metrics_


def test_texts_of_inner_nodes_lead_to_their_branch() -> None:
    classifier = fitted()
    assert [top(classifier, text) for text in ("groceries", "games", "plaything")] == ["food", "toys", "toys"]
    assert classifier.explain("groceries").steps


def test_inner_nodes_are_labels_only_if_they_are_named() -> None:
    classifier = fitted(classes=["food"])
    assert classifier.classes_.tolist() == ["food", "bread", "milk", "rail", "dolls"]
    assert classifier.predict(["groceries", "rye bread"]).tolist() == ["food", "bread"]
    paths = fitted(classes=[("food", "bread"), ("toys",)])
    assert paths.predict(["rye bread", "games"]).tolist() == [("food", "bread"), ("toys",)]
    with pytest.raises(LabelError, match=r"classes: .*'cheese' is not in the taxonomy"):
        fitted(classes=["cheese"])


def test_a_node_with_several_parents() -> None:
    dag = shop([*EDGES, ("food", "dolls")])
    assert not dag.is_tree
    classifier = fitted(dag)
    assert classifier.predict(["dolls", "toast"]).tolist() == ["dolls", "bread"]


def test_sets_of_labels() -> None:
    classifier = fitted(multilabel=True)
    assert classifier.predict(["rye bread"])[0] == {"bread"}
    first = classifier.predict_labels(["rye bread"], k=2)[0][0]
    assert first.label == "bread"


def test_titles_of_branches_are_shared_by_some_of_the_labels_below() -> None:
    edges = [("top", f"label{number}") for number in range(500)]
    taxonomy = Taxonomy.from_edges([(None, "top"), (None, "other"), *edges], attributes={"title": {"top": "Top"}})
    classifier = HiNetClassifier(Taxonomy.from_edges([(None, "top"), (None, "other"), *edges])).fit(["a"], ["other"])
    layers = classifier.fitted_.codec.layers
    traces = TitleRows(["Top", "Other"], taxonomy.positions(["top", "other"])).traces(layers)
    counts = np.diff(traces.row_offsets).tolist()
    assert counts == [200, 1]
    assert len(np.unique(traces.end_nodes)) == 201


def test_a_taxonomy_without_titles_is_refused() -> None:
    remedy = r"no titles to learn from; give it a column 'title', 'synonyms' or 'definition'"
    with pytest.raises(HiNetError, match=remedy):
        fitted(Taxonomy.from_edges(EDGES))
    with pytest.raises(HiNetError, match=remedy):  # titles of branches alone do not tell labels apart
        fitted(shop(title={"food": "Groceries"}))
    fitted(shop(definition=DEFINITIONS | {"rail": "small trains"}))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"titles": False}, "`titles=False`"),
        ({"columns": {"text": "title"}}, "`columns` names columns of rows"),
        ({"validation_fraction": 0.1}, "`validation_fraction` holds out rows"),
        ({"patience": 2}, "`patience` requires validation rows"),
        ({"multilabel": True, "decoding": "label"}, "`decoding='label'` answers with one label"),
    ],
)
def test_parameters_that_need_rows_are_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        fitted(**parameters)


def test_a_taxonomy_is_required_and_a_fitted_model_is_not_continued() -> None:
    with pytest.raises(HiNetError, match="training without rows needs a taxonomy"):
        HiNetClassifier().fit_taxonomy()
    with pytest.raises(HiNetError, match="set `warm_start=False`"):
        fitted(warm_start=True).fit_taxonomy()
    with pytest.raises(HiNetError, match="got none; leave valid out"):
        HiNetClassifier(shop()).fit_taxonomy(valid=([], []))


def test_validation_rows_are_reported_and_calibrate() -> None:
    texts = ["rye loaf", "milk of cows", "railways", "dolls house"] * 30
    labels = ["bread", "milk", "rail", "dolls"] * 30
    classifier = HiNetClassifier(shop()).fit_taxonomy(valid=(texts, labels))
    assert classifier.metrics_["validation"]["rows"] == 120
    assert classifier.calibrate().rows == 120
    classifier = fitted()
    with pytest.raises(HiNetError, match="there are no validation rows to calibrate with"):
        classifier.calibrate()
    assert classifier.calibrate(texts, labels).rows == 120


def test_probabilities_are_lower_for_texts_with_unknown_words() -> None:
    classifier = fitted()
    known, unknown = classifier.predict_proba(["rye bread", "zanzibar quixotic bread xylophone"]).max(1)
    assert known > unknown


def test_texts_to_calibrate_on_have_words_of_their_titles() -> None:
    titles = ["Rye bread, sliced", "Cow milk", "", "Dolls"] * 20
    texts = practice_texts(titles, seed=0)
    assert texts == practice_texts(titles, seed=0) != practice_texts(titles, seed=1)
    for title, text in zip(titles, texts, strict=True):
        words = title.lower().replace(",", "").split()
        assert not words or {*words} & {*text.split()}
    assert practice_texts(["", "!"], seed=0) is not None


def test_the_first_rows_train_anew_and_teach_new_words() -> None:
    classifier = fitted()
    assert classifier.fitted_.has_no_rows
    classifier.partial_fit(["brioche with butter", "marionette"] * 3, ["bread", "dolls"] * 3)
    assert classifier.predict(["brioche", "marionette", "railways"]).tolist() == ["bread", "dolls", "rail"]
    fingerprint = classifier.fitted_.fingerprint
    assert (fingerprint["rows"], fingerprint["titles"]) == (6, 10)
    assert not classifier.fitted_.has_no_rows
    classifier.partial_fit(["rye bread"], ["bread"])  # continues
    assert [classifier.fitted_.fingerprint["rows"], classifier.fitted_.fingerprint["before"][0]["rows"]] == [1, 6]


def test_the_first_rows_keep_the_labels_and_their_form() -> None:
    classifier = fitted(classes=[("food", "bread"), ("toys",)])
    classifier.partial_fit(["brioche"], [("food", "bread")])
    assert classifier.predict(["games", "brioche"]).tolist() == [("toys",), ("food", "bread")]
    sets = fitted(multilabel=True).partial_fit(["brioche and butter milk"], [{"bread", "milk"}])
    assert sets.predict(["brioche and butter milk"])[0] == {"bread", "milk"}


def test_a_changed_taxonomy_trains_anew() -> None:
    classifier = fitted(classes=["food"])
    titles = {**TITLES, "puppets": "Puppets", "kites": "Kites and gliders"}
    del titles["dolls"]
    new = shop([*EDGES[:3], ("toys", "puppets"), ("toys", "kites")], title=titles)
    classifier.update_taxonomy(new, renamed={"dolls": "puppets"})
    assert classifier.predict(["a glider", "groceries"]).tolist() == ["kites", "food"]
    assert classifier.taxonomy_change_.added == ("kites",)
    assert classifier.fitted_.has_no_rows
    classifier.update_taxonomy(shop(), {"puppets": "dolls"}, ["marionette"] * 3, ["dolls"] * 3)
    assert classifier.predict(["marionette", "railway"]).tolist() == ["dolls", "rail"]
    assert not classifier.fitted_.has_no_rows


def test_a_saved_model_says_that_it_has_seen_no_rows_and_learns_the_first(tmp_path: Path) -> None:
    classifier = fitted()
    classifier.save(tmp_path / "model")
    manifest = read_manifest(tmp_path / "model")
    assert training_text(manifest["training_data"]) == "no rows, only 10 texts of the taxonomy with 4 labels"
    loaded = load(tmp_path / "model")
    texts = ["toast", "games", "other"]
    np.testing.assert_allclose(loaded.predict_proba(texts), classifier.predict_proba(texts), atol=0.02)
    loaded.partial_fit(["brioche"], ["bread"])
    assert loaded.predict(["brioche"])[0] == "bread"


def test_the_same_seed_gives_the_same_model() -> None:
    first, second = fitted(), fitted()
    np.testing.assert_array_equal(first.predict_proba(["toast"]), second.predict_proba(["toast"]))


def test_class_weights_apply_to_titles() -> None:
    heavy = fitted(class_weight={"dolls": 50.0})
    assert heavy.predict_proba(["thing"])[0][3] > fitted().predict_proba(["thing"])[0][3]


def test_a_network_learns_from_titles() -> None:
    pytest.importorskip("torch")
    classifier = fitted(engine="torch", epochs=40, width=16)
    assert classifier.predict(["toast", "railways"]).tolist() == ["bread", "rail"]
    assert classifier.fitted_.has_no_rows
