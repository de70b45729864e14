"""Static vectors from an encoder: a vector for each token, whose sum approximates the encoder's vector of a text.

The folder has the format of model2vec: ``model.safetensors`` with the array ``embeddings``, ``tokenizer.json`` and
``config.json``. With texts, frequent words and pairs of words become tokens of their own. A pair is a token with a
space, which other tools never produce; here a text is read from the left, and a known pair replaces its two words.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.choices import VECTOR_WIDTH
from hinet.data.text.text_input import as_arrow
from hinet.encoders.cache import CachedEncoder
from hinet.encoders.encoder import Encoder, Vectors, distinct_texts
from hinet.errors import FileError, HiNetError, counted
from hinet.files import write_arrays
from hinet.files.atomic import new_folder, write_text
from hinet.parameters import whole
from hinet.progress import Progress, SilentProgress

MIN_TEXTS = 2  # minimum number of texts with a new word or pair
MAX_WORDS = 50_000  # maximum number of new words, and of new pairs
MAX_FITTED_TEXTS = 20_000
RIDGE = 0.03  # penalty on the change of a vector, for rows of length 1
MAP_RIDGE = 1.0  # penalty on the change of the map of all vectors
MAX_STEPS, TOLERANCE = 40, 1e-3  # conjugate gradients
ZIPF_SIF, TEXT_SIF = 1e-4, 1e-3  # a in a / (a + p), by rank in the vocabulary and by counts in texts
FILES = ("config.json", "model.safetensors", "tokenizer.json")

_WORD = re.compile(r"\w+")
_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>")


@dataclass(frozen=True)
class Distilled:
    """Summary of the vectors written to a folder."""

    folder: Path
    tokens: int
    words: int  # new words
    pairs: int
    width: int
    fitted_texts: int


def distill(
    encoder: Encoder | CachedEncoder[Encoder],
    folder: str | Path,
    *,
    texts: Any = None,
    width: int = VECTOR_WIDTH,
    progress: Progress | None = None,
) -> Distilled:
    """Write static vectors of an encoder to a folder; vectors that are already there are replaced.

    Raises
    ------
    FileError
        If the folder contains anything but static vectors, or cannot be written.
    """
    width = whole(1).validate("width", width)
    check_replaceable(folder)
    progress = progress or SilentProgress()
    plain = encoder.encoder if isinstance(encoder, CachedEncoder) else encoder
    vocabulary = Vocabulary.of(plain)
    progress.message(f"encoding {len(vocabulary.known):,} tokens")
    vectors, mean = _token_vectors(plain, vocabulary, progress)
    words: list[str] = []
    pairs: list[str] = []
    if texts is None:
        ranks = _sif(1 / np.arange(2, len(vectors) + 2), ZIPF_SIF)
        vectors = _project(vectors, vectors[vocabulary.known], width) * ranks[:, None]
        fitted = 0
    else:
        distinct, rows = distinct_texts(texts)
        if not distinct:
            raise HiNetError("`texts` is empty; give some texts, or leave it out")
        times = np.bincount(rows, minlength=len(distinct))
        sentences = [_WORD.findall(text) for text in normalised(distinct)]
        words, pairs = _new_tokens(sentences, times, vocabulary)
        progress.message(f"encoding {len(words):,} words and {len(pairs):,} pairs of words")
        added = encoder.encode([*words, *pairs], progress=progress) - mean
        vocabulary = vocabulary.extended(words, pairs)
        vectors = np.vstack([vectors, added])
        vectors, fitted = _fit(encoder, vocabulary, vectors, distinct, sentences, times, width, progress)
    vectors[vocabulary.unknown] = 0
    about = {
        "encoder": plain.fingerprint, "words": len(words), "pairs": len(pairs), "pairs_matched": "greedy",
        "fitted_texts": fitted,
    }  # fmt: skip
    sif = ZIPF_SIF if texts is None else TEXT_SIF
    check_replaceable(folder)
    with new_folder(folder, replace=True) as path:
        write_arrays(path / "model.safetensors", {"embeddings": vectors.astype(np.float16)})
        write_text(path / "tokenizer.json", vocabulary.tokenizer_json())
        write_text(path / "config.json", json.dumps(_config(plain.name, vectors, sif, about), indent=2) + "\n")
    return Distilled(Path(folder), len(vectors), len(words), len(pairs), vectors.shape[1], fitted)


def normalised(texts: Sequence[str]) -> list[str]:
    """Return texts normalised as for hinet's text features: NFKC, in lower case.

    >>> normalised(["Coﬀee SHOP"])
    ['coffee shop']
    """
    import pyarrow.compute as pc  # slow to import

    lowered: list[str] = pc.utf8_lower(pc.utf8_normalize(as_arrow(texts), form="NFKC")).to_pylist()
    return lowered


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer as plain values, extended by new words and pairs of words."""

    tokenizer: dict[str, Any]  # content of tokenizer.json
    size: int
    unknown: NDArray[np.int64]  # special and unused tokens, without a vector
    words: dict[str, int]  # ids of new words and pairs
    first_pair: int = 0
    _pieces: dict[str, list[int]] = field(default_factory=dict)  # known tokens of words

    @classmethod
    def of(cls, encoder: Encoder) -> Vocabulary:
        """Return the vocabulary of an encoder, without the special tokens around a text."""
        values = json.loads(encoder.tokenizer.to_str())
        values |= {"truncation": None, "padding": None, "post_processor": None}
        _separate_words(values.get("pre_tokenizer"))
        ids: dict[str, int] = encoder.tokenizer.get_vocab(with_added_tokens=True)
        if sorted(ids.values()) != list(range(len(ids))):
            raise HiNetError(f"the tokenizer of {encoder.name} has gaps between its ids; choose another encoder")
        special = {token["content"] for token in values["added_tokens"] if token["special"]}
        unknown = [number for token, number in ids.items() if token in special or _UNUSED.fullmatch(token)]
        return cls(values, len(ids), np.array(sorted(unknown), np.int64), {})

    @cached_property
    def known(self) -> NDArray[np.int64]:
        """Tokens with a vector."""
        return np.setdiff1d(np.arange(self.size), self.unknown)

    def pieces(self, words: Iterable[str]) -> dict[str, list[int]]:
        """Return the known tokens of each word, by the tokenizer of the encoder."""
        from tokenizers import Tokenizer

        missing = [word for word in dict.fromkeys(words) if word not in self._pieces]
        if missing:
            tokenizer = Tokenizer.from_str(json.dumps(self.tokenizer))
            unknown = {*self.unknown.tolist()}
            for word, encoded in zip(missing, tokenizer.encode_batch(missing, add_special_tokens=False), strict=True):
                self._pieces[word] = [number for number in encoded.ids if number not in unknown]
        return self._pieces

    def extended(self, words: Sequence[str], pairs: Sequence[str]) -> Vocabulary:
        """Return the vocabulary with new tokens at its end."""
        numbers = {token: self.size + number for number, token in enumerate([*words, *pairs])}
        first_pair = self.size + len(words)
        return replace(self, size=self.size + len(numbers), words=numbers, first_pair=first_pair)

    def ids(self, words: Sequence[str]) -> list[int]:
        """Return the tokens of the words of a text, read from the left; their pieces must be cached."""
        ids: list[int] = []
        position = 0
        while position < len(words):
            word = words[position]
            pair = self.words.get(" ".join(words[position : position + 2]))
            if pair is not None and pair >= self.first_pair:
                ids.append(pair)
                position += 2
                continue
            ids += [self.words[word]] if word in self.words else self._pieces[word]
            position += 1
        return ids

    def counts(self, sentences: Sequence[Sequence[str]]) -> sp.csr_matrix:
        """Return the number of occurrences of each token in each text, (n, size)."""
        self.pieces(word for words in sentences for word in words)
        rows = [self.ids(words) for words in sentences]
        offsets = np.cumsum([0, *map(len, rows)])
        columns = np.fromiter((number for row in rows for number in row), np.int64, int(offsets[-1]))
        counts = sp.csr_matrix((np.ones(len(columns), np.float32), columns, offsets), shape=(len(rows), self.size))
        counts.sum_duplicates()
        return counts

    def tokenizer_json(self) -> str:
        """Return the tokenizer with the new tokens as JSON."""
        values: dict[str, Any] = json.loads(json.dumps(self.tokenizer))
        model, added = values["model"], values["added_tokens"]
        # A token outside of the vocabulary would get another id when the file is read.
        known = model["vocab"]
        present = {*known} if isinstance(known, dict) else {token for token, _ in known}
        outside = {token["content"]: token["id"] for token in added if token["content"] not in present} | self.words
        if isinstance(known, dict):
            known.update(outside)
        else:  # a list of tokens with their scores
            lowest = min(score for _, score in known)
            known += [[token, lowest] for token in sorted(outside, key=lambda token: outside[token])]
        if model["type"] not in ("WordPiece", "WordLevel"):  # others never produce whole words
            flags = {"single_word": True, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
            new = [(token, number) for token, number in self.words.items() if number < self.first_pair]
            added += [{"id": number, "content": token, **flags} for token, number in new]
        return json.dumps(values, ensure_ascii=False)


def _separate_words(step: dict[str, Any] | None) -> None:
    """Make a byte-level tokenizer treat the first word of a text like the others."""
    for part in (step or {}).get("pretokenizers", [step] if step else []):
        if part.get("type") == "ByteLevel":
            part["add_prefix_space"] = True


def _token_vectors(encoder: Encoder, vocabulary: Vocabulary, progress: Progress) -> tuple[Vectors, Vectors]:
    """Return the centred vector of each token by itself, and the mean."""
    before, after = encoder.frame
    ids = [[*before, number, *after] for number in vocabulary.known.tolist()]
    encoded = encoder.encode_ids(ids, progress=progress)
    mean = encoded.mean(axis=0)
    vectors = np.zeros((vocabulary.size, encoded.shape[1]), np.float32)
    vectors[vocabulary.known] = encoded - mean
    return vectors, mean


def _new_tokens(
    sentences: Sequence[Sequence[str]], times: NDArray[np.int64], vocabulary: Vocabulary
) -> tuple[list[str], list[str]]:
    """Return the words of several tokens and the pairs that occur in enough texts."""
    words: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    for sentence, count in zip(sentences, times.tolist(), strict=True):
        for word in {*sentence}:
            words[word] += count
        for pair in {*pairwise(sentence)}:
            pairs[" ".join(pair)] += count
    pieces = vocabulary.pieces(words)
    new = [(word, count) for word, count in words.items() if count >= MIN_TEXTS and len(pieces[word]) != 1]
    joint = [(pair, count) for pair, count in pairs.items() if count >= MIN_TEXTS]
    return _most_frequent(new), _most_frequent(joint)


def _most_frequent(counted: list[tuple[str, int]]) -> list[str]:
    return [token for token, _ in sorted(counted, key=lambda item: (-item[1], item[0]))[:MAX_WORDS]]


def _sif(frequencies: NDArray[Any], a: float) -> NDArray[np.float32]:
    """Return the SIF weights a / (a + p) of tokens."""
    shares = frequencies / max(frequencies.sum(), 1e-12)
    return np.asarray(a / (a + shares), np.float32)


def _project(vectors: Vectors, rows: Vectors, width: int) -> Vectors:
    """Project vectors on the directions in which the rows vary most."""
    if width >= vectors.shape[1]:
        return vectors
    _, directions = np.linalg.eigh(rows.T @ rows)
    return np.asarray(vectors @ directions[:, : -width - 1 : -1].astype(np.float32))


def _fit(
    encoder: Encoder | CachedEncoder[Encoder], vocabulary: Vocabulary, vectors: Vectors, texts: list[str],
    sentences: list[list[str]], times: NDArray[np.int64], width: int, progress: Progress,
) -> tuple[Vectors, int]:  # fmt: skip
    """Return vectors whose sums approximate the encoder's vectors of some texts, and the number of these texts."""
    counts = vocabulary.counts(sentences)
    frequencies = np.asarray(counts.T @ times.astype(np.float64)).ravel()
    vectors = vectors * _sif(frequencies, TEXT_SIF)[:, None]
    sums = counts @ vectors  # (n, encoder width)
    lengths = np.linalg.norm(sums, axis=1)
    usable = np.flatnonzero(lengths > 0)
    rows = usable[np.unique(np.linspace(0, len(usable) - 1, min(len(usable), MAX_FITTED_TEXTS)).astype(np.int64))]
    if not len(rows):
        return _project(vectors, vectors, width), 0
    progress.message(f"encoding {counted(len(rows), 'text')}")
    targets = encoder.encode([texts[row] for row in rows.tolist()], progress=progress)
    targets = targets - targets.mean(axis=0)
    targets /= max(float(np.linalg.norm(targets, axis=1).mean()), 1e-6)
    bags = (sp.diags(1 / lengths[rows]) @ counts[rows]).astype(np.float32).tocsr()
    mapped = vectors @ _map(bags @ vectors, targets)
    used = np.unique(bags.indices)
    bags = bags[:, used].tocsr()
    progress.message(f"fitting {len(used):,} vectors to them")
    mapped[used] += _ridge(bags, targets - bags @ mapped[used])
    fitted = bags @ mapped[used]
    balance = np.sqrt(0.1 * len(fitted) / len(mapped))  # tokens determine the directions too if there are few texts
    return _project(mapped, np.vstack([fitted, balance * mapped]), width), len(rows)


def _map(sums: Vectors, targets: Vectors) -> Vectors:
    """Return the matrix that maps sums to targets, close to a multiple of the identity for few rows."""
    scale = float((sums * targets).sum() / max(float((sums**2).sum()), 1e-12))
    identity = np.eye(sums.shape[1], dtype=np.float32)
    change = np.linalg.solve(sums.T @ sums + MAP_RIDGE * identity, sums.T @ (targets - scale * sums))
    return np.asarray(scale * identity + change, np.float32)


def _ridge(bags: sp.csr_matrix, rest: Vectors) -> Vectors:
    """Return D that minimises |bags D - rest|^2 + RIDGE |D|^2, by conjugate gradients on all columns at once."""
    transposed = bags.T.tocsr()
    residual: Vectors = transposed @ rest
    solution, direction = np.zeros_like(residual), residual.copy()
    square = (residual**2).sum(axis=0)
    target = TOLERANCE**2 * square.sum()
    for _ in range(MAX_STEPS):
        if square.sum() <= target:
            break
        product = transposed @ (bags @ direction) + RIDGE * direction
        step = square / np.maximum((direction * product).sum(axis=0), 1e-20)
        solution += step * direction
        residual -= step * product
        before, square = square, (residual**2).sum(axis=0)
        direction = residual + square / np.maximum(before, 1e-20) * direction
    return solution


def _config(name: str, vectors: Vectors, sif: float, about: dict[str, Any]) -> dict[str, Any]:
    width = vectors.shape[1]
    return {
        "model_type": "model2vec", "architectures": ["StaticModel"], "tokenizer_name": name, "apply_pca": width,
        "sif_coefficient": sif, "hidden_dim": width, "seq_length": 1_000_000, "normalize": True, "pooling": "mean",
        "embedding_dtype": "float16", "hinet": about,
    }  # fmt: skip


def read_config(folder: str | Path) -> dict[str, Any] | None:
    """Return the configuration of a folder of static vectors, or None for any other folder."""
    path = Path(folder)
    if not all((path / name).is_file() for name in FILES):
        return None
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) and config.get("model_type") == "model2vec" else None


def check_replaceable(folder: str | Path) -> None:
    """Raise FileError if a folder contains anything but static vectors."""
    path = Path(folder)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    known = {*FILES, "README.md", "modules.json"}
    if path.is_dir() and read_config(path) is not None and {entry.name for entry in path.iterdir()} <= known:
        return
    raise FileError(folder, "exists and is not a folder of static vectors; name another folder")
