"""Vectors of tokens from a model2vec folder, a text file of word vectors, or a name on the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data.vectors.token_vectors import MAX_WIDTH, TokenVectors
from hinet.errors import FileError, HiNetError
from hinet.extras import require
from hinet.files import map_arrays, read_bounded
from hinet.hub import hub_folder

MAX_TOKENS = 200_000  # of a text file, whose words are in the order of their frequency
SIF = 1e-4  # how much rarer than this a word must be to count in full
ZIPF_SHIFT = 2.7  # of Zipf's law, by which the rank of a word tells its frequency
WORD_STARTS = ("▁", "Ġ")  # marks of pieces that start a word; others go on with one
CONTINUES = "##"  # the mark of pieces that go on with a word; others start one
TEXT_SUFFIXES = (".vec", ".txt")
MAX_TOKENIZER_BYTES = 1 << 28  # usual ones have a few megabytes
_TENSORS, _TOKENIZER = "model.safetensors", "tokenizer.json"
_ACCEPTED = "give a model2vec folder, a .vec or .txt file, or a name on the Hugging Face hub such as owner/model"
_HUB_FILES = [_TENSORS, _TOKENIZER, "config.json"]


def read_vectors(source: str | Path | TokenVectors) -> TokenVectors:
    """Return the vectors of a source.

    Parameters
    ----------
    source : str, Path or TokenVectors
        A folder in the format of model2vec (``model.safetensors`` and ``tokenizer.json``), such as
        ``hinet vectors distill`` writes; a file of words and numbers as word2vec, GloVe and fastText write it (``.vec``
        or ``.txt``, or either with ``.gz``), of which the first 200,000 words are read; or the name of a model on the
        Hugging Face hub, which needs a network.

    Raises
    ------
    HiNetError
        If there is no such source, or it cannot be used; names the file, and the line where there is one.
    """
    if isinstance(source, TokenVectors):
        return source
    path = Path(source)
    if path.is_dir():
        return _from_folder(path)
    if path.is_file():
        if not {*path.suffixes} & {*TEXT_SUFFIXES}:
            raise FileError(path, "is no file of vectors; expected .vec or .txt, also with .gz, or a model2vec folder")
        return _from_text(path)
    if isinstance(source, str) and source.count("/") == 1 and not source.startswith((".", "/")):
        require("huggingface_hub", f"the name {source!r}, of which there is no folder here,")
        return _from_folder(_from_hub(source))
    raise FileError(path, f"does not exist; {_ACCEPTED}")


def _from_hub(name: str) -> Path:
    try:
        return hub_folder([name], _HUB_FILES, lambda folder: (folder / _TENSORS).is_file())
    except HiNetError as error:
        raise HiNetError(f"{name!r} is not a folder, and {error}; {_ACCEPTED}") from None


def _from_folder(folder: Path) -> TokenVectors:
    for name in (_TENSORS, _TOKENIZER):
        if not (folder / name).is_file():
            raise FileError(folder, f"has no {name}; expected a folder in the format of model2vec")
    with _naming(folder / _TENSORS), (folder / _TENSORS).open("rb") as stream:
        arrays, _ = map_arrays(folder / _TENSORS, stream)
        vectors = _vectors(arrays)
    with _naming(folder / _TOKENIZER):
        tokens, ids, within = _tokens(read_bounded(folder / _TOKENIZER, MAX_TOKENIZER_BYTES))
    if len(ids) and ids.max() >= len(vectors):
        raise FileError(folder, f"has {len(vectors):,} vectors and a token numbered {ids.max():,}; copy it again")
    with _naming(folder):
        return TokenVectors.of(tokens, vectors[ids], within)


def _vectors(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return the vectors of a folder by the number of the token, weighted."""
    name = next((name for name in ("embeddings", "embedding.weight") if name in arrays), None)
    if name is None or arrays[name].ndim != 2 or not 0 < arrays[name].shape[1] <= MAX_WIDTH:
        raise HiNetError(f"holds no array 'embeddings' of two axes, at most {MAX_WIDTH:,} columns wide")
    vectors = arrays[name].astype(np.float32)
    if "mapping" in arrays:  # of tokens to fewer vectors
        vectors = vectors[arrays["mapping"].astype(np.int64)]
    if "weights" in arrays:
        vectors *= arrays["weights"].astype(np.float32)[:, None]
    if not np.isfinite(vectors).all():
        raise HiNetError("holds vectors with values that are not finite")
    return vectors


def _tokens(content: bytes) -> tuple[list[str], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the tokens of a tokenizer, their numbers, and which of them go on with a word."""
    described = json.loads(content)
    vocabulary = described["model"]["vocab"]
    numbered = (
        vocabulary.items() if isinstance(vocabulary, dict) else ((token, i) for i, (token, _) in enumerate(vocabulary))
    )
    special = {token["content"] for token in described.get("added_tokens", ()) if token.get("special")}
    spelled = [(str(token), int(number)) for token, number in numbered if token not in special]
    marked = any(token.startswith(WORD_STARTS) for token, _ in spelled)
    as_bytes = _byte_letters() if any(token.startswith("Ġ") for token, _ in spelled) else None
    tokens, within = [], []
    for token, _ in spelled:
        starts = token.startswith(WORD_STARTS) if marked else not token.startswith(CONTINUES)
        text = token[1:] if marked and starts else token.removeprefix(CONTINUES)
        if as_bytes is not None:
            text = bytes(as_bytes.get(letter, 63) for letter in text).decode(errors="ignore")
        tokens.append(text)
        within.append(not starts)
    return tokens, np.array([number for _, number in spelled], np.int64), np.array(within, bool)


def _byte_letters() -> dict[str, int]:
    """Return the byte that each letter stands for in a vocabulary of bytes: printable ones are themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{chr(byte): byte for byte in plain}, **{chr(256 + at): byte for at, byte in enumerate(others)}}


def _from_text(path: Path) -> TokenVectors:
    """Return the vectors of a text file: a line for each word, the most frequent first."""
    import gzip

    opened = gzip.open if path.suffix == ".gz" else open
    words: list[str] = []
    rows: list[NDArray[np.float32]] = []
    width = 0
    with _naming(path), opened(path, "rb") as stream:
        for number, line in enumerate(stream, 1):
            fields = line.decode(errors="replace").rstrip().split(" ")
            if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                continue  # how many words and columns there are
            width = width or len(fields) - 1
            if not 0 < width <= MAX_WIDTH or len(fields) <= width:
                raise HiNetError(
                    f"line {number}: expected a word and {max(width, 1)} numbers, got {len(fields)} fields"
                )
            rows.append(_numbers(fields[-width:], number))
            words.append(" ".join(fields[:-width]))
            if len(words) == MAX_TOKENS:
                break
    if not words:
        raise FileError(path, "is empty; expected a line for each word")
    vectors = np.stack(rows)
    return TokenVectors.of(words, (vectors - vectors.mean(0)) * _rank_weights(len(words))[:, None])


def _numbers(fields: Sequence[str], number: int) -> NDArray[np.float32]:
    try:
        values = np.array(fields, np.float32)
    except ValueError:
        bad = next(field for field in fields if not _is_number(field))
        raise HiNetError(f"line {number}: {bad!r} is no number") from None
    if not np.isfinite(values).all():
        raise HiNetError(f"line {number}: a number is not finite")
    return values


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _rank_weights(count: int) -> NDArray[np.float32]:
    """Return the weight of each word by its rank: frequent ones tell little."""
    share = 1 / (np.arange(count) + ZIPF_SHIFT)
    share /= share.sum()
    return (SIF / (SIF + share)).astype(np.float32)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name a file in errors about its contents."""
    try:
        yield
    except FileError:
        raise
    except HiNetError as error:
        raise FileError(path, str(error)) from None
    except RecursionError:
        raise FileError(path, "cannot be read as vectors: it is nested too deeply; copy it again") from None
    except (OSError, EOFError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise FileError(path, f"cannot be read as vectors: {error!r}; copy it again") from None
