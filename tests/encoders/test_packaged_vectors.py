"""Vectors of the package wordllama: splitting words as its tokenizer does, references in models, and ``"auto"``."""

from __future__ import annotations

import json
import random
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hinet
from hinet import HiNetClassifier
from hinet.classifier import inputs
from hinet.classifier.inputs import COMPARED_COLUMNS, default_vectors
from hinet.cli import main
from hinet.encoders import token_vectors as packaged
from hinet.encoders.meaning import vector_source
from hinet.encoders.token_vectors import MAX_MERGED, NEVER, TokenVectors
from hinet.encoders.vector_files import read_vectors
from hinet.errors import FileError, HiNetError
from hinet.files import read_arrays
from hinet.progress import Progress
from tests.classifier.test_forged import sign
from tests.processes import run

TEXTS = ["rye bread", "white bread", "whole milk", "skimmed milk", "toy car", "toy train"] * 6
LABELS = ["bread", "bread", "milk", "milk", "toy", "toy"] * 6
MANY, MANY_LABELS = TEXTS * 3, LABELS * 3
REMEDY = r"install it with: pip install 'hinet\[meaning\]'"
FIRST_TOKEN = 259  # smaller ids are bytes and special tokens
START = "▁"


class Messages(Progress):
    """Keeps all messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def message(self, text: str) -> None:
        self.texts.append(text)


def small(**parameters: Any) -> HiNetClassifier:
    return HiNetClassifier(**{"epochs": 2, "n_jobs": 1, **parameters})


@pytest.fixture(autouse=True, scope="module")
def installed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(inputs, "is_installed", lambda: packaged.is_installed())
        yield


@pytest.fixture(scope="module")
def folder() -> Path:
    found = packaged._package_folder()
    assert found is not None
    return found


@pytest.fixture(scope="module")
def vectors() -> TokenVectors:
    return read_vectors("wordllama")


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged, "_package_folder", lambda: None)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packaged") / "model"
    small(vectors="wordllama").fit(TEXTS, LABELS).save(path)
    return path


def varied_words(vocabulary: dict[str, int]) -> list[str]:
    """Words of the vocabulary, glued together and of random letters, in lower case."""
    generator = random.Random(0)
    known = [token[1:] for token in vocabulary if token.startswith(START)]
    glued = ["".join(generator.sample(known, count)) for count in (1, 2, 3) for _ in range(1_500)]
    letters = "aeiounrstlbdß_éñüдж漢字ا😀0159"
    strange = ["".join(generator.choices(letters, k=generator.randint(1, 20))) for _ in range(1_500)]
    fixed = ["", "a", "1234567890", "x" * 40, "donaudampfschifffahrt", "2026", "e_mail", "ﬁsh", "İstanbul"]
    words = (unicodedata.normalize("NFKC", word).lower() for word in [*glued, *strange, *fixed])
    return [word for word in words if all(letter.isalnum() or letter == "_" for letter in word)]


def test_words_are_split_as_by_the_tokenizer(folder: Path, vectors: TokenVectors) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = json.loads((folder / packaged.TOKENIZER).read_text())["model"]["vocab"]
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / packaged.TOKENIZER))
    weights = read_arrays(folder / packaged.WEIGHTS)[0]["embedding.weight"].astype(np.float32)
    whole: dict[str, int] = {}
    for token, number in sorted(vocabulary.items(), key=lambda item: (item[0] != item[0].lower(), item[1])):
        if token.startswith(START):
            whole.setdefault(unicodedata.normalize("NFKC", token[1:]).lower(), number)
    words = varied_words(vocabulary)
    assert len(words) > 4_000
    sums = vectors.sums(words, 1)
    for word, total in zip(words, sums, strict=True):
        ids = [whole[word]] if word in whole else tokenizer.encode(word, add_special_tokens=False).ids
        used = weights[[number for number in ids if number >= FIRST_TOKEN and number != vocabulary[START]]]
        rounding = np.abs(used).max(1, initial=0).sum() / 127  # error of 8 bits
        np.testing.assert_allclose(total, used.sum(0), atol=rounding + 1e-4, err_msg=word)


def test_names_are_found_in_lower_case(folder: Path, vectors: TokenVectors) -> None:
    vocabulary = json.loads((folder / packaged.TOKENIZER).read_text())["model"]["vocab"]
    weights = read_arrays(folder / packaged.WEIGHTS)[0]["embedding.weight"].astype(np.float32)
    assert "▁germany" not in vocabulary
    for text in ("germany", "Germany", "GERMANY"):
        np.testing.assert_allclose(vectors.sums([text])[0], weights[vocabulary["▁Germany"]], atol=0.2)


def merged_by_hand(word: str, order: dict[str, int]) -> list[str]:
    """Pieces of a word by byte-pair encoding, as the textbook has it."""
    pieces = [START, *word]
    while True:
        ranks = [order.get(first + second, NEVER) for first, second in pairwise(pieces)]
        if not ranks or min(ranks) == NEVER:
            return pieces
        best = ranks.index(min(ranks))
        pieces[best : best + 2] = [pieces[best] + pieces[best + 1]]


PIECES = st.text("abc", min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.tuples(PIECES, st.booleans()), min_size=1, max_size=30, unique=True),
    words=st.lists(st.text("abcd", max_size=12), min_size=1, max_size=6),
)
def test_pieces_are_merged_in_order(tokens: list[tuple[str, bool]], words: list[str]) -> None:
    texts, within = [text for text, _ in tokens], np.array([within for _, within in tokens])
    names = [text if inside else START + text for text, inside in tokens]
    order = np.arange(len(tokens), dtype=np.int32)
    vectors = TokenVectors.of_merged_pieces(texts, np.eye(len(tokens), dtype=np.float32), within, order)
    counts = np.rint(vectors.sums(words, 1)).astype(int)
    for word, found in zip(words, counts.tolist(), strict=True):
        whole = START + word in names  # a word that is a token is not split
        pieces = [START + word] if whole else merged_by_hand(word, {name: rank for rank, name in enumerate(names)})
        assert found == [pieces.count(name) for name in names], word


def test_arrays_round_trip() -> None:
    order = np.array([1, 0, NEVER], np.int32)
    within = np.array([False, True, False])
    vectors = TokenVectors.of_merged_pieces(["ab", "b", "cd"], np.eye(3, dtype=np.float32), within, order)
    arrays = vectors.to_arrays()
    again = TokenVectors.from_arrays(arrays)
    texts = ["ab", "abb", "cd", "cdb", ""]
    assert np.array_equal(again.sums(texts), vectors.sums(texts))
    with pytest.raises(HiNetError, match="'merges' holds -1"):
        TokenVectors.from_arrays(arrays | {"merges": np.array([0, -1, 2])})


def test_the_work_for_a_long_word_is_bounded(vectors: TokenVectors) -> None:
    word = "qzxj" * 250_000  # would take hours if the steps grew with the square of its length
    (total,) = vectors.sums([word], 1)
    (start,), (rest,) = vectors.sums([word[:MAX_MERGED]], 1), vectors.sums([word[: 2 * MAX_MERGED]], 1)
    chunks = len(word) / MAX_MERGED
    np.testing.assert_allclose(total, start + (chunks - 1) * (rest - start), rtol=0.01, atol=0.01 * np.abs(total).max())


def test_the_package_is_not_imported() -> None:
    code = (
        "import sys; from hinet.encoders import read_vectors; read_vectors('wordllama').sums(['a dentist']);"
        "print({'wordllama', 'tokenizers', 'numba', 'torch', 'huggingface_hub'} & {*sys.modules})"
    )
    done = run([sys.executable, "-c", code])
    assert done.stdout == "set()\n", done.stderr


def test_other_words_are_understood() -> None:
    classifier = small(vectors="wordllama", epochs=None).fit(TEXTS, LABELS)
    assert classifier.predict(["sourdough loaf", "yoghurt", "doll"]).tolist() == ["bread", "milk", "toy"]


def test_a_model_refers_to_the_package(model: Path, vectors: TokenVectors) -> None:
    manifest = json.loads((model / "manifest.json").read_text())
    assert manifest["files"]["features"]["bytes"] < 100_000
    loaded = hinet.load(model)
    assert loaded.vectors == "wordllama"
    texts = ["loaf", "yoghurt", ""]
    expected = small(vectors=vectors).fit(TEXTS, LABELS).predict_proba(texts)
    np.testing.assert_allclose(loaded.predict_proba(texts), expected, atol=0.01)
    loaded.partial_fit(TEXTS[:6], LABELS[:6])
    assert loaded.fit(TEXTS, LABELS).vectors == "wordllama"


def test_inspect_names_the_package(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", str(model)])
    line = f"  vectors     package wordllama, fingerprint {packaged.FINGERPRINT}; not in the model\n"
    assert line in capsys.readouterr().out


@pytest.mark.usefixtures("not_installed")
def test_a_missing_package_is_named_with_the_remedy(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileError, match=rf"^wordllama: the model uses the vectors of this package.*; {REMEDY}$"):
        hinet.load(model)
    with pytest.raises(FileError, match=rf"^wordllama: the package is not installed; {REMEDY}$"):
        small(vectors="wordllama").fit(TEXTS, LABELS)
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(model), "rye bread"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: wordllama: the model uses the vectors of this package")


def test_changed_files_of_the_package_are_rejected(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in packaged.DIGESTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(folder / name, tmp_path / name)
    content = bytearray((tmp_path / packaged.WEIGHTS).read_bytes())
    content[-1] ^= 1
    (tmp_path / packaged.WEIGHTS).write_bytes(content)
    monkeypatch.setattr(packaged, "_package_folder", lambda: tmp_path)
    with pytest.raises(FileError, match="is not the file of wordllama that this version of hinet knows"):
        read_vectors("wordllama")
    messages = Messages()
    assert default_vectors(MANY, messages, few=True) is None
    assert "is not the file of wordllama" in messages.texts[0]
    (tmp_path / packaged.WEIGHTS).unlink()
    with pytest.raises(FileError, match="cannot be read"):
        read_vectors("wordllama")


def _drop_vectors(meaning: dict[str, Any]) -> None:
    del meaning["vectors"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meaning: meaning["vectors"].update(package="numpy"), "vectors of 'numpy'"),
        (lambda meaning: meaning["vectors"].update(package="../wordllama"), "vectors of '../wordllama'"),
        (lambda meaning: meaning["vectors"].update(fingerprint="0"), "with the fingerprint '0'"),
        (lambda meaning: meaning["vectors"].update(fingerprint=7), "fingerprint"),
        (lambda meaning: meaning.update(encoder={"source": ".", "fingerprint": "", "width": 256}), "both"),
        (_drop_vectors, "no 'hashes'"),
    ],
)
def test_forged_references_are_rejected(
    model: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    forged = Path(shutil.copytree(model, tmp_path / "model"))
    manifest = json.loads((forged / "manifest.json").read_text())
    change(manifest["features"]["meaning"])
    sign(forged, manifest)
    with pytest.raises(FileError, match=message):
        hinet.load(forged)


def test_auto_uses_the_package(vectors: TokenVectors) -> None:
    messages = Messages()
    assert default_vectors(MANY, messages, few=True) == (vectors, False)
    names = [f"{text} zq{number}x vw{number}k" for number, text in enumerate(MANY)]
    assert default_vectors(names, messages, few=True) == (vectors, True)
    many = default_vectors(MANY, messages, few=False)
    assert many is not None
    assert many.private
    assert many.vectors.width == COMPARED_COLUMNS
    compared = "texts are also compared by static vectors of wordllama"
    assert messages.texts == ["all experts read static vectors of wordllama", compared, compared]
    assert vector_source("auto", None) is None
    assert small(vectors="auto").fit(MANY, MANY_LABELS).fitted_.features.meaning.source is vectors


@pytest.mark.usefixtures("not_installed")
def test_auto_without_the_package_is_the_same_as_no_vectors() -> None:
    messages = Messages()
    assert default_vectors(MANY, messages, few=True) is None
    assert messages.texts == []
    automatic, without = (small(vectors=given).fit(MANY, MANY_LABELS) for given in ("auto", None))
    assert np.array_equal(automatic.predict_proba(TEXTS), without.predict_proba(TEXTS))


def test_auto_uses_no_vectors_for_rows_without_text() -> None:
    import pandas as pd

    rows = np.tile(np.eye(6), (6, 1))
    assert small(vectors="auto").fit(rows, LABELS).score(rows, LABELS) == 1
    frame = pd.DataFrame({"size": rows[:, 0], "colour": ["red", "green", "blue"] * 12})
    fitted = small(vectors="auto").fit(frame, LABELS).fitted_
    assert fitted.features.meaning is None


def test_the_command_line_accepts_auto(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"{text},{label}" for text, label in zip(MANY, MANY_LABELS, strict=True)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]))
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "train",
                str(tmp_path / "rows.csv"),
                "--vectors",
                "auto",
                "--epochs",
                "2",
                "--out",
                str(tmp_path / "model"),
            ]
        )
    assert not ended.value.code
    assert "static vectors of wordllama" in capsys.readouterr().err
    assert hinet.load(tmp_path / "model").vectors == "wordllama"  # few rows: all experts read them
