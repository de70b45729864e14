"""Classifiers with word vectors: unknown words, saving, explaining, partial_fit, and titles of labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet import HiNetClassifier, Layers, Taxonomy, Traces
from hinet.classifier.inputs import TextInput
from hinet.classifier.rows import TitleRows, best_titles, learned_weight
from hinet.data.matrices import MixedRows
from hinet.data.text import TextSettings
from hinet.data.text.features import HashedBlock
from hinet.data.text.text_input import TextBlock
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine import Search
from hinet.errors import FileError, HiNetError
from tests.classifier.test_forged import forge_array
from tests.encoders.conftest import make_encoder

SUBJECTS = {
    "bakery": ("bread", "rye", "loaf", "bun", "toast", "crust"),
    "dairy": ("milk", "cheese", "cream", "butter", "yoghurt", "curd"),
    "garage": ("car", "tyre", "engine", "brake", "clutch", "wheel"),
    "station": ("train", "rail", "platform", "track", "signal", "locomotive"),
}
EDGES = [("food", "bakery"), ("food", "dairy"), ("transport", "garage"), ("transport", "station")]
KNOWN = 4  # words per subject in training rows; only the vectors know the others
TWICE = TextSettings(min_df=2)
WORDS = TextSettings(char_ngrams=None, min_df=2)


@pytest.fixture(scope="module")
def vectors() -> TokenVectors:
    """Vectors in which the words of a subject are close to each other."""
    random = np.random.default_rng(0)
    words, rows = [], []
    for centre, group in zip(np.eye(8)[:4] * 3, SUBJECTS.values(), strict=True):
        words += group
        rows += [centre + 0.3 * random.standard_normal(8) for _ in group]
    return TokenVectors.of(words, np.array(rows, np.float32))


def texts_of(count: int, low: int, high: int, seed: int = 0) -> tuple[list[str], list[str]]:
    random = np.random.default_rng(seed)
    labels = [list(SUBJECTS)[number % 4] for number in range(count)]
    return [" ".join(random.choice(SUBJECTS[label][low:high], 2, replace=False)) for label in labels], labels


@pytest.fixture(scope="module")
def taxonomy() -> Taxonomy:
    return Taxonomy.from_edges(EDGES)


@pytest.fixture(scope="module")
def trained(taxonomy: Taxonomy, vectors: TokenVectors) -> HiNetClassifier:
    return HiNetClassifier(taxonomy, vectors=vectors, titles=False, n_jobs=1).fit(*texts_of(160, 0, KNOWN))


def test_words_without_training_rows_are_understood(taxonomy: Taxonomy, trained: HiNetClassifier) -> None:
    rows = texts_of(40, KNOWN, 6)
    without = HiNetClassifier(taxonomy, titles=False, n_jobs=1).fit(*texts_of(160, 0, KNOWN))
    assert trained.score(*rows) > 0.95
    assert without.score(*rows) < 0.6
    assert trained.score(*texts_of(40, 0, KNOWN, seed=1)) == 1


def test_unknown_words_fade_known_ones(trained: HiNetClassifier) -> None:
    rows = trained.features_of(["bread rye", "bread toast", "toast crust", ""])
    assert isinstance(rows, MixedRows)
    length = np.sqrt(rows.sparse.multiply(rows.sparse).sum(1))
    assert length[0] == pytest.approx(1, abs=1e-3)
    assert 0 < length[1] < 0.6
    assert not length[3]
    assert not rows.dense[3].any()
    assert np.linalg.norm(rows.dense[:3], axis=1).min() > 0.5


def test_a_saved_model_needs_nothing_else(trained: HiNetClassifier, tmp_path: Path) -> None:
    trained.save(tmp_path / "model")
    loaded = HiNetClassifier.load(tmp_path / "model")
    texts, _ = texts_of(40, 2, 6)
    assert np.array_equal(loaded.predict_proba(texts), trained.predict_proba(texts))
    assert isinstance(loaded.vectors, TokenVectors)
    again = loaded.fit(*texts_of(80, 0, KNOWN))
    assert again.score(*texts_of(40, KNOWN, 6)) > 0.9


@pytest.mark.parametrize(
    ("array", "change"),
    [
        ("vectors.vectors", lambda array: array[:, :3]),
        ("vectors.hashes", lambda array: array[::-1]),
        ("meaning.mean", lambda array: array * np.float32(np.nan)),
    ],
)
def test_forged_vectors_are_rejected(trained: HiNetClassifier, tmp_path: Path, array: str, change: Any) -> None:
    trained.save(tmp_path / "model")
    forge_array(tmp_path / "model", "features", array, change)
    with pytest.raises(FileError, match="cannot be used"):
        HiNetClassifier.load(tmp_path / "model")


def test_explanations_name_words(trained: HiNetClassifier) -> None:
    explanation = trained.explain("toast crust")
    assert explanation.unknown_words == ("toast", "crust")
    for step in explanation.steps:
        assert {reason.feature for reason in step.reasons} == {"toast (meaning)", "crust (meaning)"}
        total = sum(push for _, push in step.pushes())
        assert total == pytest.approx(step.difference, abs=1e-3)
    assert explanation.trace.steps == ("food", "bakery")


def test_partial_fit_with_vectors(taxonomy: Taxonomy, trained: HiNetClassifier, tmp_path: Path) -> None:
    trained.save(tmp_path / "model")
    loaded = HiNetClassifier.load(tmp_path / "model")
    loaded.partial_fit(*texts_of(40, 0, KNOWN, seed=3))
    assert loaded.score(*texts_of(40, KNOWN, 6)) > 0.9
    moved = Taxonomy.from_edges(
        [("food", "bakery"), ("transport", "garage"), ("transport", "station"), ("farm", "dairy")]
    )
    loaded.update_taxonomy(moved)
    assert loaded.predict(["yoghurt curd"]).tolist() == ["dairy"]
    calibration = loaded.calibrate(*texts_of(120, 0, 6, seed=4))
    assert calibration.error_after <= calibration.error_before + 0.05


def test_checkpoints_resume_with_vectors(
    taxonomy: Taxonomy, vectors: TokenVectors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hinet.engine.training import deep

    rows = texts_of(60, 0, KNOWN)
    settings: dict[str, Any] = {"vectors": vectors, "titles": False, "n_jobs": 1, "epochs": 4}
    whole = HiNetClassifier(taxonomy, **settings).fit(*rows)
    run, calls = deep.DeepJob.run_epoch, []

    def interrupted(self: Any, *arguments: Any) -> float:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return run(self, *arguments)

    monkeypatch.setattr(deep.DeepJob, "run_epoch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        HiNetClassifier(taxonomy, **settings, checkpoint=tmp_path / "kept").fit(*rows)
    monkeypatch.setattr(deep.DeepJob, "run_epoch", run)
    resumed = HiNetClassifier(taxonomy, **settings, checkpoint=tmp_path / "kept").fit(*rows)
    assert np.array_equal(resumed.predict_proba(rows[0]), whole.predict_proba(rows[0]))


def test_invalid_vectors_are_rejected(taxonomy: Taxonomy, vectors: TokenVectors, tmp_path: Path) -> None:
    rows = texts_of(20, 0, KNOWN)
    with pytest.raises(HiNetError, match="`vectors` and `encoder` both"):
        HiNetClassifier(taxonomy, vectors=vectors, encoder=tmp_path).fit(*rows)
    with pytest.raises(HiNetError, match="read texts, but the rows are numbers"):
        HiNetClassifier(taxonomy, vectors=vectors).fit(np.eye(20), rows[1])
    with pytest.raises(FileError, match="does not exist"):
        HiNetClassifier(taxonomy, vectors=tmp_path / "nowhere").fit(*rows)
    with pytest.raises(HiNetError, match="no label has a title"):
        HiNetClassifier(taxonomy, titles=True).fit(*rows)


def titled(taxonomy_rows: dict[str, str], tmp_path: Path) -> Taxonomy:
    lines = ["node\tparent\ttitle", "food\t\tFood", "transport\t\tTransport"]
    lines += [f"{child}\t{parent}\t{taxonomy_rows[child]}" for parent, child in EDGES]
    path = tmp_path / "taxonomy.tsv"
    path.write_text("\n".join(lines))
    return Taxonomy.from_file(path)


def test_titles_make_labels_without_rows_reachable(vectors: TokenVectors, tmp_path: Path) -> None:
    titles = {label: " ".join(words[:2]) for label, words in SUBJECTS.items()}
    texts, labels = texts_of(160, 0, KNOWN)
    kept = [number for number, label in enumerate(labels) if label != "station"]
    rows = [texts[number] for number in kept], [labels[number] for number in kept]
    hidden = [text for text, label in zip(*texts_of(40, KNOWN, 6), strict=True) if label == "station"]
    classifier = HiNetClassifier(titled(titles, tmp_path), vectors=vectors, titles=True, n_jobs=1).fit(*rows)
    assert (classifier.predict(hidden) == "station").mean() > 0.8
    assert classifier.score(*rows) > 0.95


def title_logits(classifier: HiNetClassifier, texts: list[str]) -> dict[str, np.ndarray]:
    """Return the logits of nodes for texts, from only the units of the deep expert that read no n-gram."""
    fitted = classifier.fitted_
    assert isinstance(fitted.predictor, Search)
    assert isinstance(fitted.features, TextInput)
    model, count = fitted.predictor.model, fitted.features.features.count
    deep = model.experts.deep.in_floats()
    units = ~deep.embedding[:count].any(0)
    logits = classifier.features_of(texts).dense @ deep.embedding[count:, units] @ deep.weight[:, units].T
    layers, groups = model.layers, model.groups
    nodes = layers.node[groups.option_neuron[groups.row_options()]]
    return {layers.taxonomy.ids[node]: logits[:, row] for row, node in enumerate(nodes.tolist())}


@pytest.mark.parametrize("streamed", [False, True])
def test_texts_are_compared_with_titles_by_their_vectors(vectors: TokenVectors, tmp_path: Path, streamed: bool) -> None:
    titles = {label: " ".join(words[4:]) for label, words in SUBJECTS.items()}
    rows = texts_of(160, 0, KNOWN)
    trained = HiNetClassifier(titled(titles, tmp_path), vectors=vectors, titles=True, n_jobs=1)
    trained = trained.fit_stream([rows]) if streamed else trained.fit(*rows)
    assert (trained.fitted_.fingerprint["rows"], trained.fitted_.fingerprint["titles"]) == (160, 4)
    logits = title_logits(trained, list(titles.values()))
    for number, (own, other) in enumerate([("bakery", "dairy"), ("dairy", "bakery"), ("garage", "station")]):
        assert logits[own][number] > logits[other][number] + 1
    assert (logits["food"] > logits["transport"]).tolist() == [True, True, False, False]
    without = HiNetClassifier(titled(titles, tmp_path), vectors=vectors, titles=False, n_jobs=1).fit(*rows)
    assert not any(values.any() for values in title_logits(without, list(titles.values())).values())


def test_the_wide_expert_counts_less_with_vectors(vectors: TokenVectors, taxonomy: Taxonomy) -> None:
    settings: dict[str, Any] = {"titles": False, "flat": False, "n_jobs": 1, "epochs": 1}
    mixes = []
    for given in ({}, {"vectors": vectors}):
        predictor = HiNetClassifier(taxonomy, **settings, **given).fit(*texts_of(160, 0, KNOWN)).fitted_.predictor
        assert isinstance(predictor, Search)
        mixes.append(predictor.model.mix)
    assert (mixes[0].deep, mixes[0].wide) == (0.5, 0.5)
    assert mixes[1].wide / mixes[1].deep == pytest.approx(0.2 / 0.7)


def test_texts_about_a_label_without_rows_count_as_much_as_the_rows_of_others() -> None:
    taxonomy = Taxonomy.from_edges([("top", f"n{number}") for number in range(3)])
    traces = Traces.encode(Layers.of(taxonomy), ["n0"] * 12 + ["n1"] * 8)
    titles = TitleRows(["a", "b", "c", "d"], taxonomy.positions(["n0", "n1", "n2", "n2"]))
    weights = titles.weights_after(np.full(20, 0.5), traces)
    assert weights.tolist() == [0.5] * 20 + [3.0, 3.0, 5.0, 5.0]


def test_titles_are_used_only_if_held_out_rows_gain() -> None:
    random = np.random.default_rng(0)
    taxonomy = Taxonomy.from_edges([("top", f"n{number}") for number in range(40)])
    names = [f"word{number}" for number in range(40)]

    def weight(title_words: list[str]) -> float:
        labels = [f"n{random.integers(40)}" for _ in range(2_000)]
        texts = [f"{names[int(label[1:])]}{random.integers(40)} thing{random.integers(9)}" for label in labels]
        classifier = HiNetClassifier(taxonomy, titles=False, text=WORDS, n_jobs=1, epochs=1).fit(texts, labels)
        codec, features = classifier.fitted_.codec, classifier.fitted_.features
        titles = TitleRows(title_words, np.array([taxonomy.position(f"n{number}") for number in range(40)]))
        rows = features.rows(texts, 1, sparse=True)
        title_rows = features.rows(titles.texts, 1, sparse=True)
        return learned_weight(rows, codec.encode(labels), title_rows, titles, 0).weight

    every = [" ".join(f"{name}{number}" for number in range(40)) for name in names]
    assert weight(every) > 0
    assert weight([every[(number + 1) % 40] for number in range(40)]) == 0


def test_synonyms_and_definitions_of_labels_are_rows_too() -> None:
    nodes = [f"n{number}" for number in range(4)]
    columns = {
        "title": dict.fromkeys(nodes[:2], "the title"),
        "synonyms": {"n0": r"first|second\|half", "n2": "n2|third", "n3": "the title"},
        "definition": {"n0": "what it is", "n1": "the title"},
    }
    taxonomy = Taxonomy.from_edges([("top", node) for node in nodes], attributes=columns)
    classifier = HiNetClassifier(taxonomy, titles=False, n_jobs=1, epochs=1).fit(["a b", "a c"], ["n0", "n1"])
    codec, chosen = classifier.fitted_.codec, taxonomy.positions(nodes)
    described, titles = TitleRows.choices(codec, chosen)
    assert titles.texts == ["the title"] * 2
    assert described.texts == ["the title", "first", "second|half", "what it is", "the title", "third", "the title"]
    assert [taxonomy.ids[node] for node in described.nodes.tolist()] == ["n0"] * 4 + ["n1", "n2", "n3"]
    plain = replace(taxonomy, attributes={"title": taxonomy.attributes["title"]})
    classifier = HiNetClassifier(plain, titles=False, n_jobs=1, epochs=1).fit(["a b", "a c"], ["n0", "n1"])
    (alone,) = TitleRows.choices(classifier.fitted_.codec, chosen)
    assert alone.texts == titles.texts


def test_the_most_helpful_texts_are_used() -> None:
    random = np.random.default_rng(0)
    taxonomy = Taxonomy.from_edges([("top", f"n{number}") for number in range(40)])
    labels = [f"n{random.integers(40)}" for _ in range(2_000)]
    texts = [f"word{label[1:]}x{random.integers(40)} thing{random.integers(9)}" for label in labels]
    classifier = HiNetClassifier(taxonomy, titles=False, text=WORDS, n_jobs=1, epochs=1).fit(texts, labels)
    nodes = taxonomy.positions([f"n{number}" for number in range(40)])
    helpful = [" ".join(f"word{number}x{other}" for other in range(40)) for number in range(40)]
    rows, traces = classifier.features_of(texts), classifier.fitted_.codec.encode(labels)
    choices = [TitleRows([*helpful[1:], helpful[0]], nodes), TitleRows(helpful, nodes)]
    title_rows = [classifier.features_of(choice.texts) for choice in choices]
    chosen = best_titles(rows, traces, choices, title_rows, 0)
    assert chosen is not None
    assert chosen.texts == helpful
    assert chosen.weight > 0


@pytest.mark.parametrize("helpful", [True, False])
def test_each_text_is_hashed_once_when_titles_are_tried(helpful: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    random, count = np.random.default_rng(0), 1_200
    nodes = [f"n{number}" for number in range(20)]
    words = [" ".join(f"word{number}x{other}" for other in range(30)) for number in range(20)]
    titles = dict(zip(nodes, words if helpful else [*words[1:], words[0]], strict=True))
    taxonomy = Taxonomy.from_edges([("top", node) for node in nodes], attributes={"title": titles})
    labels = [f"n{random.integers(20)}" for _ in range(count)]
    texts = [f"word{label[1:]}x{random.integers(30)} thing{random.integers(9)}" for label in labels]
    hashed: list[int] = []
    hash_block = HashedBlock.of

    def count_rows(block: TextBlock, settings: TextSettings) -> HashedBlock:
        hashed.append(len(block.offsets) - 1)
        return hash_block(block, settings)

    monkeypatch.setattr(HashedBlock, "of", count_rows)
    classifier = HiNetClassifier(taxonomy, text=WORDS, n_jobs=1, epochs=1, effort="quick").fit(texts, labels)
    features = classifier.fitted_.features
    assert isinstance(features, TextInput)
    assert features.features.texts == count + (len(titles) if helpful else 0)
    assert count <= sum(hashed) <= 3 * count + 2 * len(titles)  # and twice to learn trust: as they are, made foreign


def test_a_frozen_encoder_uses_the_threads_of_n_jobs(
    taxonomy: Taxonomy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from hinet.encoders import Encoder
    from hinet.encoders.torch_runtime import TorchNetwork

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    folder = make_encoder(tmp_path / "encoder")
    network = TorchNetwork.load(folder, folder, "cpu")
    encoder = Encoder(network, folder, "tiny")
    assert encoder.width == 16  # found by encoding a text, before threads are counted
    seen: list[int] = []
    embeddings = network.parts.transformer.get_input_embeddings()
    embeddings.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    classifier = HiNetClassifier(taxonomy, encoder=encoder, titles=False, n_jobs=2, epochs=1, effort="quick")
    classifier.fit(*texts_of(20, 0, KNOWN))
    assert {*seen} == {2}
    seen.clear()
    classifier.set_params(n_jobs=3).predict(["loaf of bread"])
    assert {*seen} == {3}
    assert torch.get_num_threads() == before
