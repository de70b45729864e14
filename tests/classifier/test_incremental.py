"""More rows and changed taxonomies keep what was learned; branches that did not change answer the same."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from hinet import HiNetError, LabelError, Taxonomy
from tests.classifier.data import EDGES, PATHS, numbers, small, taxonomy, texts

TEXTS, LABELS = texts(90)
NEW, TRUE = texts(40, seed=1)
ENGINES = ["fused", "torch"]
EVERY = [{}, {"flat": True}, {"engine": "torch", "epochs": None}]


def ids(settings: dict[str, Any]) -> str:
    return next(iter(settings), "fused")


def probabilities(classifier: Any, rows: list[str]) -> dict[str, np.ndarray]:
    return dict(zip(classifier.classes_.tolist(), classifier.predict_proba(rows).T, strict=True))


@pytest.mark.parametrize("settings", EVERY, ids=ids)
def test_a_new_node_leaves_other_branches_as_they_were(settings: dict[str, Any]) -> None:
    classifier = small(taxonomy=taxonomy(), **settings).fit(TEXTS, LABELS)
    classifier.fitted_ = classifier.fitted_.with_trust(None)  # which depends on the number of labels
    before, score = probabilities(classifier, NEW), classifier.score(NEW, TRUE)
    classifier.update_taxonomy(Taxonomy.from_edges([*EDGES, ("food", "eggs")]))
    after = probabilities(classifier, NEW)
    np.testing.assert_allclose(after["toy"], before["toy"], rtol=1e-5)
    np.testing.assert_allclose(
        after["bread"] + after["milk"] + after["eggs"], before["bread"] + before["milk"], rtol=1e-5
    )
    np.testing.assert_allclose(after["bread"] * before["milk"], after["milk"] * before["bread"], rtol=1e-3, atol=1e-6)
    assert after["eggs"].max() < 0.5
    assert classifier.score(NEW, TRUE) >= score
    assert "eggs" in classifier.taxonomy


@pytest.mark.parametrize("settings", EVERY, ids=ids)
def test_renamed_nodes_keep_their_weights(settings: dict[str, Any]) -> None:
    classifier = small(taxonomy=taxonomy(), **settings).fit(TEXTS, LABELS)
    before = probabilities(classifier, NEW)
    renamed = Taxonomy.from_edges([("all", "meals"), ("all", "game"), ("meals", "milk"), ("meals", "loaves")])
    classifier.update_taxonomy(renamed, renamed={"food": "meals", "bread": "loaves", "toy": "game"})
    after = probabilities(classifier, NEW)
    for old, new in (("bread", "loaves"), ("milk", "milk"), ("toy", "game")):
        np.testing.assert_allclose(after[new], before[old], rtol=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_moved_and_removed_nodes(engine: Any) -> None:
    deep = Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "bread"), ("a", "milk"), ("b", "toy"), ("b", "tool")])
    labels = ["tool" if at % 7 == 0 and label == "toy" else label for at, label in enumerate(LABELS)]
    classifier = small(taxonomy=deep, engine=engine, epochs=None, flat=False).fit(TEXTS, labels)
    before = probabilities(classifier, NEW)
    moved = Taxonomy.from_edges([("r", "a"), ("r", "b"), ("a", "bread"), ("b", "milk"), ("b", "toy"), ("a", "jam")])
    classifier.update_taxonomy(moved)
    assert set(classifier.classes_) == {"bread", "milk", "toy", "jam"}
    found = probabilities(classifier, NEW)
    np.testing.assert_allclose(sum(found.values()), 1, rtol=1e-5)
    kept = np.array([label != "tool" for label in TRUE])
    for name in ("bread", "milk"):
        assert np.abs(found[name] - before[name])[kept].mean() < 0.1
    assert found["jam"].max() < 0.5


@pytest.mark.parametrize("engine", ENGINES)
def test_an_only_child_gets_a_sibling(engine: Any) -> None:
    single = Taxonomy.from_edges([("r", "a"), ("a", "bread"), ("r", "toy")])
    rows = [(text, label) for text, label in zip(TEXTS, LABELS, strict=True) if label != "milk"]
    classifier = small(taxonomy=single, engine=engine).fit(*map(list, zip(*rows, strict=True)))
    classifier.fitted_ = classifier.fitted_.with_trust(None)  # which depends on the number of labels
    before = probabilities(classifier, NEW)
    classifier.update_taxonomy(Taxonomy.from_edges([("r", "a"), ("a", "bread"), ("a", "cake"), ("r", "toy")]))
    after = probabilities(classifier, NEW)
    np.testing.assert_allclose(after["toy"], before["toy"], rtol=1e-5)
    assert (after["bread"] > 10 * after["cake"]).all()


@pytest.mark.parametrize("settings", EVERY, ids=ids)
def test_more_rows_teach_a_new_node(settings: dict[str, Any]) -> None:
    rest = [at for at, text in enumerate(TEXTS) if "crust" not in text]
    classifier = small(taxonomy=taxonomy(), **{"epochs": 20, **settings}).fit(TEXTS, LABELS)
    classifier.update_taxonomy(Taxonomy.from_edges([*EDGES, ("food", "pizza")]))
    more = ["crust", "crust cow", "crust crust rye", "car crust"] * 8
    rows, labels = [*more, *(TEXTS[at] for at in rest)], ["pizza"] * len(more) + [LABELS[at] for at in rest]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the update made old rows worse")  # old rows with a crust are pizza now
        classifier.partial_fit(rows, labels)
    assert (classifier.predict(["crust", "crust cow"]) == "pizza").all()
    others = [at for at, text in enumerate(NEW) if "crust" not in text]
    assert classifier.score([NEW[at] for at in others], [TRUE[at] for at in others]) > 0.85


def test_more_rows_after_patience_and_in_a_changed_taxonomy() -> None:
    patient = small(taxonomy=taxonomy(), patience=1, validation_fraction=0.3).fit(TEXTS, LABELS)
    assert patient.partial_fit(TEXTS, LABELS).metrics_ == {}
    patient.set_params(taxonomy=Taxonomy.from_edges([*EDGES, ("food", "eggs")]))
    assert "eggs" in patient.partial_fit(TEXTS, LABELS).classes_


@pytest.mark.parametrize("engine", ENGINES)
def test_partial_fits_start_and_go_on(engine: Any) -> None:
    classifier = small(taxonomy=taxonomy(), engine=engine)
    for low in range(0, 90, 30):
        classifier.partial_fit(TEXTS[low : low + 30], LABELS[low : low + 30])
    assert classifier.score(NEW, TRUE) > 0.8
    told = classifier.fitted_.fingerprint
    assert [each["rows"] for each in (*told["before"], told)] == [30, 30, 30]
    assert not any("before" in each for each in told["before"])  # so that any number of them can be saved


def test_further_texts_of_unknown_words_bring_a_warning() -> None:
    classifier = small().fit(TEXTS, LABELS)
    new, labels = ["kimono haori", f"obi haori {TEXTS[0].split()[0]}"] * 4, ["dress"] * 8
    for learn in (classifier.partial_fit, classifier.set_params(warm_start=True).fit):
        with pytest.warns(UserWarning, match="the model knows 1.% of the words of these texts; new words stay unknown"):
            learn(new, labels)
    assert "dress" in classifier.classes_
    classifier.partial_fit(["", *TEXTS[:2]], ["bread", *LABELS[:2]])


def test_labels_that_come_later_join_an_inferred_taxonomy() -> None:
    plain = small().partial_fit(TEXTS, LABELS).partial_fit(["puzzle doll"] * 8, ["doll"] * 8)
    assert plain.classes_.tolist() == ["bread", "doll", "milk", "toy"]
    paths = small().partial_fit(TEXTS, [PATHS[label] for label in LABELS])
    paths.partial_fit(["car train"] * 8, [("toy", "wheels")] * 8)
    assert ("toy", "wheels") in paths.classes_.tolist()
    assert set(PATHS.values()) <= set(paths.classes_.tolist())
    first = small().partial_fit(TEXTS, LABELS, classes=["bread", "milk", "toy", "doll"])
    assert first.classes_.tolist() == ["bread", "doll", "milk", "toy"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_warm_fit_goes_on_from_what_was_learned(engine: Any) -> None:
    classifier = small(taxonomy=taxonomy(), engine=engine, epochs=None, warm_start=True).fit(TEXTS, LABELS)
    classifier.set_params(taxonomy=Taxonomy.from_edges([*EDGES, ("toy", "puzzle")]), epochs=1)
    few = [at for at, label in enumerate(LABELS) if label == "toy"][:4]
    with pytest.warns(UserWarning, match="the update made old rows worse"):
        classifier.fit([TEXTS[at] for at in few], ["puzzle"] * len(few))  # which were toys before
    assert "puzzle" in classifier.classes_
    food = [at for at, label in enumerate(TRUE) if label != "toy"]
    assert classifier.score([NEW[at] for at in food], [TRUE[at] for at in food]) > 0.8
    cold = small(taxonomy=taxonomy(), engine=engine).fit(TEXTS, LABELS).fit(["rye loaf"] * 2, ["bread"] * 2)
    assert len(cold.fitted_.features.names(np.arange(1))) == 1
    assert cold.fitted_.features.features.texts == 2


def test_what_cannot_be_continued_is_said() -> None:
    classifier = small(taxonomy=taxonomy()).fit(TEXTS, LABELS)
    with pytest.raises(LabelError, match="row 1: label 'eggs' is not in the taxonomy"):
        classifier.partial_fit(NEW[:2], ["bread", "eggs"])
    with pytest.raises(HiNetError, match="2 rows and 1 label;"):
        classifier.partial_fit(NEW[:2], ["bread"])
    with pytest.raises(LabelError, match="'flour' is not in the taxonomy"):
        classifier.update_taxonomy(taxonomy(), renamed={"flour": "bread"})
    with pytest.raises(HiNetError, match="'toy' is renamed to 'milk', which was a node already"):
        classifier.update_taxonomy(taxonomy(), renamed={"toy": "milk"})
    with pytest.raises(LabelError, match="whole numbers so far"):
        small().fit(TEXTS, [(len(label),) for label in LABELS]).partial_fit(NEW[:2], [(1.5,), (5,)])
    with pytest.raises(HiNetError, match="the taxonomy was inferred from the labels"):
        small().fit(TEXTS, LABELS).update_taxonomy(taxonomy())
    rows, labels = numbers()
    with pytest.raises(ValueError, match="features"):
        small().fit(rows, labels).partial_fit(rows[:, :2], labels)
