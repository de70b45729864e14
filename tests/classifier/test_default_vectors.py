"""``vectors="auto"``, the default: experts read words, and texts with unknown words are compared with known ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hinet
from hinet import HiNetClassifier, HiNetError, Taxonomy, load
from hinet.classifier import inputs
from hinet.classifier.inputs import COMPARED_COLUMNS, MIN_TEXTS
from hinet.classifier.model_folder import sealed
from hinet.encoders import token_vectors as packaged
from hinet.errors import FileError

WORDS = {
    "dentists": ["dental", "tooth", "teeth", "dentures"],
    "hospitals": ["hospital", "surgery", "patients", "nursing"],
    "bakeries": ["bread", "cakes", "pastry", "flour"],
    "fish": ["salmon", "tuna", "seafood", "herring"],
    "trains": ["railway", "locomotive", "train", "wagons"],
    "ships": ["shipping", "vessel", "harbor", "cargo"],
}
EDGES = [
    ("health", "dentists"), ("health", "hospitals"), ("food", "bakeries"), ("food", "fish"), ("transport", "trains"),
    ("transport", "ships"),
]  # fmt: skip
PLACES = ["services", "manufacturing", "retail", "wholesale", "offices", "repair"]
TEXTS = [f"{word} {place}" for words in WORDS.values() for word in words for place in PLACES]
LABELS = [label for label, words in WORDS.items() for _ in words for _ in PLACES]
ASKED = {"orthodontist": "dentists", "surgeon": "hospitals", "shrimp": "fish", "tramway": "trains"}
SMALL: dict[str, Any] = {"width": 8, "members": 1, "epochs": 3, "n_jobs": 1}
FRENCH = "épée œuvre hôpital tramway châtaigne crêpe naïf évêque"


def trained(vectors: Any = "auto", **options: Any) -> HiNetClassifier:
    given = {"taxonomy": Taxonomy.from_edges(EDGES), **SMALL, **options}
    return HiNetClassifier(vectors=vectors, **given).fit(TEXTS, LABELS)


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inputs, "is_installed", lambda: packaged.is_installed())
        yield


@pytest.fixture(scope="module")
def model() -> HiNetClassifier:
    return trained()


@pytest.fixture(scope="module")
def words_only() -> HiNetClassifier:
    return trained(None)


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "_package_folder", lambda: None)


def compares(classifier: HiNetClassifier) -> bool:
    """Return whether a classifier compares texts with known ones by vectors that no other expert reads."""
    return classifier.fitted_.predictor.can_remember and classifier.fitted_.features.meaning.private


def test_the_trained_experts_are_those_of_words_alone(model: HiNetClassifier, words_only: HiNetClassifier) -> None:
    assert compares(model)
    arrays, others = (each.fitted_.predictor.model.to_arrays() for each in (model, words_only))
    own = {name: array for name, array in arrays.items() if not name.startswith(("neighbours.", "mix"))}
    assert own.keys() == others.keys() - {"mix"}
    assert all(np.array_equal(array, others[name]) for name, array in own.items())


def test_texts_of_known_words_are_answered_as_without_vectors(
    model: HiNetClassifier, words_only: HiNetClassifier
) -> None:
    assert np.array_equal(model.predict(TEXTS), words_only.predict(TEXTS))


def test_unknown_words_are_answered_by_the_most_similar_text(model: HiNetClassifier) -> None:
    assert model.predict([*ASKED]).tolist() == [*ASKED.values()]


def test_an_answer_does_not_depend_on_other_rows(model: HiNetClassifier) -> None:
    mixed = [*ASKED, *TEXTS[:20]]
    together = model.predict_proba(mixed)
    assert all(np.array_equal(model.predict_proba([text])[0], row) for text, row in zip(mixed, together, strict=True))


def test_declined_or_not_installed(words_only: HiNetClassifier, not_installed: None) -> None:
    for classifier in (trained("none"), trained()):
        assert classifier.fitted_.features.meaning is None
        assert np.array_equal(classifier.predict_proba([*ASKED]), words_only.predict_proba([*ASKED]))


def test_a_saved_model_needs_the_package(
    model: HiNetClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save(tmp_path / "model")
    loaded = hinet.load(tmp_path / "model")
    assert loaded.vectors == "auto"
    assert compares(loaded)
    mixed = [*ASKED, *TEXTS]
    assert np.array_equal(loaded.predict_proba(mixed), model.predict_proba(mixed))
    monkeypatch.setattr(packaged, "_package_folder", lambda: None)
    with pytest.raises(FileError, match=r"not installed; install it with: pip install 'hinet\[meaning\]'"):
        hinet.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (TEXTS[: MIN_TEXTS - 1], f"{MIN_TEXTS - 1} texts are too few"),
        ([f"{word} {number}" for word in FRENCH.split() for number in range(20)], "these are for English"),
        ([f"{number} 東京 駅" for number in range(200)], "these are for English"),
    ],
    ids=["few", "French", "Japanese"],
)
def test_texts_that_the_vectors_do_not_suit(texts: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    labels = [LABELS[number % len(LABELS)] for number in range(len(texts))]
    classifier = HiNetClassifier(**SMALL, verbose=1).fit(texts, labels)
    assert classifier.fitted_.features.meaning is None
    assert f"no static vectors: {reason}" in capsys.readouterr().err


def test_sets_and_torch_do_without() -> None:
    several = [{label, "fish"} for label in LABELS]
    assert HiNetClassifier(**SMALL).fit(TEXTS, several).fitted_.features.meaning is None
    classifier = HiNetClassifier(engine="torch", epochs=1, n_jobs=1).fit(TEXTS, LABELS)
    assert classifier.fitted_.features.meaning is None


def test_several_columns_of_text_next_to_numbers_are_compared() -> None:
    import pandas as pd

    def frame(texts: list[str]) -> Any:
        words = [text.split() for text in texts]
        parts = {"word": [own[0] for own in words], "place": [own[-1] for own in words], "size": [1.5] * len(texts)}
        return pd.DataFrame(parts)

    columns = {"text": ["word", "place"], "number": ["size"]}
    models = {
        given: HiNetClassifier(vectors=given, columns=columns, **SMALL).fit(frame(TEXTS), LABELS)
        for given in ("auto", None)
    }
    assert compares(models["auto"])
    asked = frame([f"{word} {word}" for word in ASKED])
    assert models["auto"].predict(asked).tolist() == [*ASKED.values()]
    known = frame(TEXTS)
    assert np.array_equal(models["auto"].predict(known), models[None].predict(known))


def test_texts_are_compared_in_a_dag() -> None:
    assert trained(taxonomy=Taxonomy.from_edges([*EDGES, ("food", "ships")])).predict(["shrimp"])[0] == "fish"


def test_a_correction_counts_at_once_for_known_words_too(model: HiNetClassifier) -> None:
    text = "tooth repair"
    corrected = trained()
    assert corrected.predict([text])[0] == "dentists"
    for _ in range(2):
        corrected.remember([text], ["trains"])
    assert corrected.predict([text])[0] == "trains"
    others = [other for other in TEXTS if "tooth" not in other and "teeth" not in other]
    assert (corrected.predict(others) == model.predict(others)).mean() > 0.95


def test_more_rows_and_a_changed_taxonomy() -> None:
    classifier = trained()
    classifier.update_taxonomy(Taxonomy.from_edges([*EDGES, ("transport", "coaches")]))
    assert compares(classifier)
    assert classifier.predict([*ASKED]).tolist() == [*ASKED.values()]
    classifier.partial_fit(["bus stop", "bus garage"] * 10, ["coaches"] * 20)
    assert classifier.predict(["bus stop"])[0] == "coaches"
    assert classifier.predict([*ASKED]).tolist()[:3] == [*ASKED.values()][:3]  # a tramway is like a bus


def test_explanations_add_up(model: HiNetClassifier) -> None:
    explanation = model.explain("shrimp")
    assert explanation.nearest
    for step in explanation.steps:
        assert sum(push for _, push in step.pushes()) == pytest.approx(step.difference, abs=1e-4)
    assert any(reason.feature == "shrimp (meaning)" for step in explanation.steps for reason in step.reasons)


def test_kept_rows_have_no_vectors(model: HiNetClassifier) -> None:
    examples = model.fitted_.examples
    width = model.fitted_.features.private_columns
    assert examples.rows.shape[1] == model.fitted_.features.count
    assert width > 0
    assert examples.rows.indices.max() < examples.rows.shape[1] - width


def test_exported_graphs_ignore_the_vectors(model: HiNetClassifier, tmp_path: Path) -> None:
    exported = model.export_onnx(tmp_path / "graph", TEXTS, LABELS)
    assert "neighbours" in exported.left_out
    assert exported.accuracy is not None
    assert exported.accuracy > 0.5


def test_no_comparison_without_neighbours(words_only: HiNetClassifier) -> None:
    classifier = trained(neighbours=0)
    assert classifier.fitted_.features.meaning is None
    assert np.array_equal(classifier.predict_proba(TEXTS), words_only.predict_proba(TEXTS))


def test_validation_rows_decide_whether_texts_are_compared() -> None:
    taxonomy = Taxonomy.from_edges(EDGES)
    right, wrong = [*ASKED.values()], ["trains", "ships", "dentists", "bakeries"]
    weights = []
    for truth in (right, wrong):
        classifier = HiNetClassifier(taxonomy, **SMALL).fit(TEXTS, LABELS, valid=([*ASKED] * 25, truth * 25))
        weights.append(classifier.fitted_.predictor.model.mix.neighbours)
    assert weights[0] > 0
    assert weights[1] == 0


def test_a_forged_width_of_vectors_is_refused(model: HiNetClassifier, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    manifest = json.loads((tmp_path / "model" / "manifest.json").read_text())
    assert manifest["features"]["meaning"].pop("private")
    (tmp_path / "model" / "manifest.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(HiNetError, match="it compares 256 columns, and rows have 0 for that"):
        load(tmp_path / "model")


def test_many_rows_are_compared_by_the_first_columns_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: HiNetClassifier
) -> None:
    monkeypatch.setattr("hinet.classifier.training.FEW_ROWS", len(TEXTS))
    narrow = trained()
    widths = [each.fitted_.search.model.experts.neighbours.vector.shape[1] for each in (model, narrow)]
    assert widths == [256, COMPARED_COLUMNS]
    assert narrow.predict([*ASKED]).tolist() == [*ASKED.values()]
    narrow.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert np.array_equal(loaded.predict_proba([*ASKED]), narrow.predict_proba([*ASKED]))
    path = tmp_path / "model" / "manifest.json"
    manifest = json.loads(path.read_text())
    for width in (0, -1, 257):
        manifest["features"]["meaning"]["vectors"]["width"] = width
        path.write_text(json.dumps(sealed(manifest)))
        with pytest.raises(HiNetError, match=f"have 256 columns, and {width} of them are asked for"):
            load(tmp_path / "model")
