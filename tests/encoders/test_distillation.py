"""Static vectors: the format of model2vec, words and pairs of texts, and the fit against a dense solution."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from hinet import HiNetError
from hinet.data.matrices import unit_rows
from hinet.encoders import CachedEncoder, Encoder, distill
from hinet.encoders.distillation import RIDGE, Vocabulary, _ridge, normalised
from hinet.encoders.vector_files import read_vectors
from hinet.files import read_arrays

TEXTS = ["Rye bread, sliced", "rye bread with cardamom", "Coffee shop", "the COFFEE shop", "toy train", "cardamom toy"]


def read(folder: Path) -> tuple[Any, dict[str, int], dict[str, Any]]:
    """Return the vectors, the vocabulary and the configuration of a folder."""
    tokenizers = pytest.importorskip("tokenizers")
    vectors = read_arrays(folder / "model.safetensors")[0]["embeddings"]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return vectors, tokenizer.get_vocab(), json.loads((folder / "config.json").read_text())


def test_every_token_but_special_ones_has_a_vector(tiny: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny, threads=1)
    written = distill(encoder, tmp_path / "vectors", width=8)
    vectors, vocabulary, config = read(tmp_path / "vectors")
    assert vectors.shape == (len(vocabulary), 8) == (written.tokens, written.width)
    assert config["model_type"] == "model2vec"
    assert config["normalize"]
    assert config["hinet"]["encoder"] == encoder.fingerprint
    assert str(tmp_path) not in (tmp_path / "vectors" / "config.json").read_text()
    for token, number in vocabulary.items():
        assert vectors[number].any() == (not token.startswith("["))


def test_without_texts_vectors_are_the_centred_encodings_by_rank(tiny: Path, tmp_path: Path) -> None:
    """With all columns, dot products do not depend on the directions that are kept."""
    encoder = Encoder.load(tiny, threads=1)
    distill(encoder, tmp_path / "vectors", width=999)
    vectors, vocabulary, _ = read(tmp_path / "vectors")
    known = sorted(number for token, number in vocabulary.items() if not token.startswith("["))
    before, after = encoder.frame
    encoded = encoder.encode_ids([[*before, number, *after] for number in known])
    share = 1 / np.arange(2, len(vocabulary) + 2)
    weights = 1e-4 / (1e-4 + share / share.sum())
    wanted = (encoded - encoded.mean(axis=0)) * weights[known, None]
    found = vectors[known].astype(np.float32)
    np.testing.assert_allclose(found @ found.T, wanted @ wanted.T, atol=2e-3 * np.abs(wanted @ wanted.T).max())


def test_words_and_pairs_of_texts_become_tokens(tiny: Path, tmp_path: Path) -> None:
    cached = CachedEncoder(Encoder.load(tiny, threads=1), tmp_path / "cache")
    written = distill(cached, tmp_path / "vectors", texts=TEXTS, width=8)
    vectors, vocabulary, config = read(tmp_path / "vectors")
    assert len(vectors) == len(vocabulary)
    assert "cardamom" in vocabulary
    assert {token for token in vocabulary if " " in token} == {"rye bread", "coffee shop"}
    assert "sliced" not in vocabulary  # it occurs in only one text
    assert (written.words, written.pairs) == (config["hinet"]["words"], config["hinet"]["pairs"]) == (1, 2)
    tokens, parts = read_vectors(tmp_path / "vectors").by_token("the coffee shop, coffee")
    assert tokens == ["the", "coffee shop", "coffee"]
    wanted = vectors[[vocabulary[token] for token in tokens]].astype(np.float32)
    np.testing.assert_allclose(parts, wanted, atol=0.01 * np.abs(wanted).max())


def test_static_vectors_of_fitted_texts_are_close_to_the_encoder(tiny: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny, threads=1)
    distill(encoder, tmp_path / "plain", width=16)
    distill(encoder, tmp_path / "fitted", texts=TEXTS, width=16)
    targets = encoder.encode(TEXTS)
    targets -= targets.mean(axis=0)

    def distance(folder: str) -> float:
        """Compare cosines, which do not depend on the directions."""
        rows = unit_rows(read_vectors(tmp_path / folder).sums(TEXTS))
        unit = targets / np.linalg.norm(targets, axis=1, keepdims=True)
        return float(np.abs(rows @ rows.T - unit @ unit.T).mean())

    assert distance("fitted") < 0.5 * distance("plain")


def test_model2vec_loads_the_folder(tiny: Path, tmp_path: Path) -> None:
    model2vec = pytest.importorskip("model2vec")
    distill(Encoder.load(tiny, threads=1), tmp_path / "vectors", texts=TEXTS, width=8)
    model = model2vec.StaticModel.from_pretrained(tmp_path / "vectors")
    vectors, vocabulary, _ = read(tmp_path / "vectors")
    found = model.encode(["cardamom bread"])[0]
    wanted = vectors[vocabulary["cardamom"]].astype(np.float32) + vectors[vocabulary["bread"]].astype(np.float32)
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=2e-3)


@pytest.mark.parametrize("kind", ["WordPiece", "BPE", "Unigram"])
def test_new_tokens_keep_their_ids_in_every_kind_of_tokenizer(kind: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    letters = ["[UNK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    numbers = {token: number for number, token in enumerate(letters)}
    model = {
        "WordPiece": lambda: tokenizers.models.WordPiece(numbers, unk_token="[UNK]"),
        "BPE": lambda: tokenizers.models.BPE(numbers, [], unk_token="[UNK]"),
        "Unigram": lambda: tokenizers.models.Unigram([(token, -5.0) for token in letters], 0, False),
    }[kind]()
    plain = tokenizers.Tokenizer(model)
    plain.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    plain.add_special_tokens(["[END]"])  # outside the vocabulary
    size = plain.get_vocab_size(with_added_tokens=True)
    vocabulary = Vocabulary(json.loads(plain.to_str()), size, np.array([0, size - 1]), {})
    text = vocabulary.extended(["cardamom"], ["coffee shop"]).tokenizer_json()
    found = tokenizers.Tokenizer.from_str(text)
    wanted = {**plain.get_vocab(), "cardamom": size, "coffee shop": size + 1}
    assert found.get_vocab(with_added_tokens=True) == wanted
    assert found.encode("ab cardamom", add_special_tokens=False).tokens[-1] == "cardamom"
    assert "coffee shop" not in found.encode("coffee shop", add_special_tokens=False).tokens


def test_the_ridge_is_that_of_the_normal_equations() -> None:
    random = np.random.default_rng(0)
    bags = sp.random(60, 30, 0.2, random_state=0, format="csr", dtype=np.float32)
    rest = random.normal(size=(60, 4)).astype(np.float32)
    dense = bags.toarray().astype(np.float64)
    wanted = np.linalg.solve(dense.T @ dense + RIDGE * np.eye(30), dense.T @ rest)
    np.testing.assert_allclose(_ridge(bags, rest), wanted, atol=0.02 * np.abs(wanted).max())


def test_texts_are_seen_as_by_the_text_features() -> None:
    assert normalised(["Rye \ufb01ne", "ÀB"]) == ["rye fine", "àb"]


def test_a_folder_of_vectors_is_replaced_and_nothing_else(tiny: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny, threads=1)
    for width in (8, 4):
        distill(encoder, tmp_path / "vectors", width=width)
        assert read(tmp_path / "vectors")[0].shape[1] == width
    assert [path.name for path in tmp_path.iterdir()] == ["vectors"]
    (tmp_path / "vectors" / "notes.txt").write_text("mine")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.tex").write_text("mine")
    for folder in (other, tmp_path / "vectors"):
        with pytest.raises(HiNetError, match="exists and is not a folder of static vectors"):
            distill(encoder, folder, width=8)
    assert (other / "thesis.tex").read_text() == (tmp_path / "vectors" / "notes.txt").read_text() == "mine"


def test_texts_without_any_word_leave_the_vectors_of_the_encoder(tiny: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(tiny, threads=1)
    assert distill(encoder, tmp_path / "vectors", texts=["", "!!!"], width=8).fitted_texts == 0
    assert not read_vectors(tmp_path / "vectors").sums(["!!!"]).any()
    with pytest.raises(HiNetError, match="`texts` is empty"):
        distill(encoder, tmp_path / "nothing", texts=[])
    with pytest.raises(HiNetError, match="width: expected a whole number of at least 1, got 0"):
        distill(encoder, tmp_path / "nothing", width=0)
