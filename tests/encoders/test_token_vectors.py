"""Static token vectors: splitting texts into tokens, and reading files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hinet.encoders.token_vectors import TokenVectors
from hinet.encoders.vector_files import read_vectors
from hinet.errors import FileError, HiNetError

PIECES = {"[UNK]": 0, "rye": 1, "bread": 2, "br": 3, "##ead": 4, "##s": 5, "un": 6, "##known": 7, "ähre": 8}


def unit_vectors(count: int) -> np.ndarray:
    return np.eye(count, dtype=np.float32)


def counts(vectors: TokenVectors, text: str) -> list[int]:
    """Number of occurrences of each token in a text, by unit vectors."""
    return np.rint(vectors.sums([text])[0]).astype(int).tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model2vec folder whose tokens have unit vectors."""
    folder = tmp_path / "vectors"
    folder.mkdir()
    save_file({"embeddings": unit_vectors(len(PIECES))}, folder / "model.safetensors")
    tokenizer = {
        "model": {"type": "WordPiece", "vocab": PIECES, "continuing_subword_prefix": "##"},
        "added_tokens": [{"id": 0, "content": "[UNK]", "special": True}],
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_words_are_split_into_the_longest_pieces(folder: Path) -> None:
    vectors = read_vectors(folder)
    assert len(vectors) == len(PIECES) - 1
    assert counts(vectors, "Rye BREAD, bread")[1:3] == [1, 2]
    assert counts(vectors, "breads unknown")[2:8] == [1, 0, 0, 1, 1, 1]
    assert counts(vectors, "ÄHRE")[8] == 1
    assert counts(vectors, "qqq !") == [0] * len(PIECES)


def test_pieces_that_continue_a_word_do_not_start_one(folder: Path) -> None:
    assert counts(read_vectors(folder), "ead known s") == [0] * len(PIECES)


def test_pairs_of_words_come_before_words() -> None:
    vectors = TokenVectors.of(["coffee", "shop", "coffee shop"], unit_vectors(3))
    assert counts(vectors, "coffee shop coffee, shop shop coffee") == [1, 1, 2]
    tokens, parts = vectors.by_token("coffee shop, more coffee")
    assert tokens == ["coffee shop", "more", "coffee"]
    assert np.rint(parts).argmax(1).tolist() == [2, 0, 0]
    assert np.allclose(parts.sum(0), vectors.sums(["coffee shop, more coffee"])[0], atol=1e-5)


def test_sums_do_not_depend_on_threads_or_blocks() -> None:
    random = np.random.default_rng(0)
    words = [f"w{number}" for number in range(300)]
    vectors = TokenVectors.of(words, random.standard_normal((300, 8)).astype(np.float32))
    texts = [" ".join(random.choice(words, random.integers(0, 9))) for _ in range(4_000)]
    together = vectors.sums(texts, 2)
    assert np.array_equal(together, vectors.sums(texts, 1))
    assert np.array_equal(together[:50], np.concatenate([vectors.sums([text]) for text in texts[:50]]))


def test_sums_are_those_of_the_vectors_in_8_bits() -> None:
    random = np.random.default_rng(1)
    table = random.standard_normal((50, 16)).astype(np.float32)
    vectors = TokenVectors.of([f"w{number}" for number in range(50)], table)
    wanted = table[3] + table[7]
    assert np.abs(vectors.sums(["w3 w7"])[0] - wanted).max() < 0.05


def test_arrays_round_trip(folder: Path) -> None:
    vectors = read_vectors(folder)
    restored = TokenVectors.from_arrays(vectors.to_arrays())
    assert np.array_equal(restored.sums(["rye breads"]), vectors.sums(["rye breads"]))


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("hashes", np.array([5, 5, 6, 7, 8, 9, 10, 11], np.uint64)),
        ("vectors", np.zeros((3, 2), np.int8)),
        ("vectors", np.zeros((8, 9), np.float32)),
        ("scale", np.full(8, np.nan, np.float32)),
        ("pairs", np.array([7], np.uint8)),
    ],
)
def test_forged_arrays_are_rejected(folder: Path, name: str, array: np.ndarray) -> None:
    with pytest.raises(HiNetError, match=name):
        TokenVectors.from_arrays({**read_vectors(folder).to_arrays(), name: array})


@pytest.mark.parametrize("suffix", [".vec", ".txt", ".vec.gz"])
def test_text_files_of_vectors(tmp_path: Path, suffix: str) -> None:
    lines = ("2 3\n" if suffix.startswith(".vec") else "") + "rye 1 0 0.5\nbread 0 1 -0.5\n"
    path = tmp_path / f"words{suffix}"
    path.write_bytes(gzip.compress(lines.encode()) if suffix.endswith(".gz") else lines.encode())
    vectors = read_vectors(path)
    assert (len(vectors), vectors.width) == (2, 3)
    rye, bread = vectors.sums(["rye", "bread"])
    assert np.sign(rye).tolist() == [1, -1, 1]
    assert np.sign(bread).tolist() == [-1, 1, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rye 1 2\nbread 1\n", "line 2: expected a word and 2 numbers, got 2 fields"),
        ("rye 1 x\n", "line 1: could not convert string to float: 'x'"),
        ("rye 1 nan\n", "line 1: a number is not finite"),
        ("", "is empty"),
    ],
)
def test_bad_lines_are_named(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "words.vec"
    path.write_text(text)
    with pytest.raises(FileError, match=message):
        read_vectors(path)


def test_other_sources_are_rejected(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(FileError, match="does not exist; give a model2vec folder"):
        read_vectors(tmp_path / "nowhere")
    (tmp_path / "words.bin").write_bytes(b"x")
    with pytest.raises(FileError, match=r"expected \.vec or \.txt"):
        read_vectors(tmp_path / "words.bin")
    (folder / "model.safetensors").write_bytes(b"12")
    with pytest.raises(FileError, match="cannot be read"):
        read_vectors(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FileError, match=r"has no tokenizer\.json"):
        read_vectors(folder)


def test_a_deeply_nested_or_huge_tokenizer_is_rejected(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text('{"model":' * 100_000)
    with pytest.raises(FileError, match=r"tokenizer\.json: cannot be read as vectors: it is nested too deeply"):
        read_vectors(folder)
    with path.open("r+b") as stream:
        stream.truncate(1 << 32)  # a sparse file
    with pytest.raises(FileError, match=r"tokenizer\.json: is longer than 268,435,456 bytes"):
        read_vectors(folder)


def test_a_tokenizer_that_marks_where_words_start(folder: Path) -> None:
    described = {"model": {"type": "Unigram", "vocab": [["▁rye", -1.0], ["▁bread", -2.0], ["s", -3.0]]}}
    (folder / "tokenizer.json").write_text(json.dumps(described))
    save_file({"embeddings": unit_vectors(3)}, folder / "model.safetensors")
    assert counts(read_vectors(folder), "rye breads s") == [1, 1, 1]
