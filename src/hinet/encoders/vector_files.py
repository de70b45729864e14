"""Token vectors read from a model2vec folder, from a text file as word2vec writes it, or from the hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.encoders.token_vectors import MAX_WIDTH, PACKAGED, TokenVectors, packaged_vectors, read_tokens
from hinet.errors import FileError, HiNetError
from hinet.extras import require
from hinet.files import map_arrays, read_bounded

MAX_TOKENS = 200_000  # words read from a text file, which lists frequent words first
SIF = 1e-4  # frequency at which a word counts half
ZIPF_SHIFT = 2.7  # added to the rank of a word in Zipf's law
TEXT_SUFFIXES = (".vec", ".txt")
MAX_TOKENIZER_BYTES = 1 << 28  # typical tokenizers have a few megabytes
_TENSORS, _TOKENIZER = "model.safetensors", "tokenizer.json"
_ACCEPTED = (
    f"give a model2vec folder, a .vec or .txt file, {PACKAGED!r} for the vectors of the extra 'meaning', or a name on "
    "the Hugging Face hub such as owner/model"
)


def read_vectors(source: str | Path | TokenVectors) -> TokenVectors:
    """Return the token vectors of a source.

    Parameters
    ----------
    source : str, Path or TokenVectors
        A model2vec folder (``model.safetensors`` and ``tokenizer.json``), such as ``hinet vectors distill`` writes; a
        file of words and numbers as word2vec, GloVe and fastText write it (``.vec`` or ``.txt``, optionally with
        ``.gz``), of which the first 200,000 words are read; ``"wordllama"``, the vectors of the extra ``meaning``; or
        the name of a model on the Hugging Face hub, which needs a network.

    Raises
    ------
    HiNetError
        If the source does not exist or is invalid; names the file and, if possible, the line.
    """
    if isinstance(source, TokenVectors):
        return source
    if source == PACKAGED:
        return packaged_vectors()
    path = Path(source)
    if path.is_dir():
        return _read_folder(path)
    if path.is_file():
        if not {*path.suffixes} & {*TEXT_SUFFIXES}:
            raise FileError(path, "is not a vector file; expected .vec or .txt, also with .gz, or a model2vec folder")
        return _read_text_file(path)
    if isinstance(source, str) and source.count("/") == 1 and not source.startswith((".", "/")):
        require("huggingface_hub", f"{source!r}, which is not a folder here,")
        return _read_folder(_download(source))
    raise FileError(path, f"does not exist; {_ACCEPTED}")


def _download(name: str) -> Path:
    from hinet.encoders.sources import hub_folder

    try:
        files = [_TENSORS, _TOKENIZER, "config.json"]
        return hub_folder([name], files, lambda folder: (folder / _TENSORS).is_file())
    except HiNetError as error:
        raise HiNetError(f"{name!r} is not a folder, and {error}; {_ACCEPTED}") from None


def _read_folder(folder: Path) -> TokenVectors:
    for name in (_TENSORS, _TOKENIZER):
        if not (folder / name).is_file():
            raise FileError(folder, f"has no {name}; expected a model2vec folder")
    with _naming(folder / _TENSORS), (folder / _TENSORS).open("rb") as stream:
        vectors = _weighted_vectors(map_arrays(folder / _TENSORS, stream)[0])
    with _naming(folder / _TOKENIZER):
        tokens, ids, within = read_tokens(read_bounded(folder / _TOKENIZER, MAX_TOKENIZER_BYTES))
    if len(ids) and ids.max() >= len(vectors):
        raise FileError(folder, f"has {len(vectors):,} vectors and a token with the id {ids.max():,}; copy it again")
    with _naming(folder):
        return TokenVectors.of(tokens, vectors[ids], within)


def _weighted_vectors(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Return the vectors of a model2vec folder by token id, multiplied by the token weights."""
    name = next((name for name in ("embeddings", "embedding.weight") if name in arrays), None)
    if name is None or arrays[name].ndim != 2 or not 0 < arrays[name].shape[1] <= MAX_WIDTH:
        raise HiNetError(f"has no two-dimensional array 'embeddings' of at most {MAX_WIDTH:,} columns")
    vectors = arrays[name].astype(np.float32)
    if "mapping" in arrays:  # several tokens share a vector
        vectors = vectors[arrays["mapping"].astype(np.int64)]
    if "weights" in arrays:
        vectors *= arrays["weights"].astype(np.float32)[:, None]
    if not np.isfinite(vectors).all():
        raise HiNetError("has vectors with values that are not finite")
    return vectors


def _read_text_file(path: Path) -> TokenVectors:
    """Return the vectors of a text file: one line per word, the most frequent word first."""
    import gzip

    opened = gzip.open if path.suffix == ".gz" else open
    words: list[str] = []
    rows: list[NDArray[np.float32]] = []
    width = 0
    with _naming(path), opened(path, "rb") as stream:
        for number, line in enumerate(stream, 1):
            fields = line.decode(errors="replace").rstrip().split(" ")
            if number == 1 and len(fields) == 2 and all(field.isdigit() for field in fields):
                continue  # a header with the numbers of words and columns
            width = width or len(fields) - 1
            if not 0 < width <= MAX_WIDTH or len(fields) <= width:
                raise HiNetError(
                    f"line {number}: expected a word and {max(width, 1)} numbers, got {len(fields)} fields"
                )
            try:
                rows.append(np.array(fields[-width:], np.float32))
            except ValueError as error:
                raise HiNetError(f"line {number}: {error}") from None
            if not np.isfinite(rows[-1]).all():
                raise HiNetError(f"line {number}: a number is not finite")
            words.append(" ".join(fields[:-width]))
            if len(words) == MAX_TOKENS:
                break
    if not words:
        raise FileError(path, "is empty; expected one line per word")
    vectors = np.stack(rows)
    share = 1 / (np.arange(len(words)) + ZIPF_SHIFT)  # frequent words weigh less
    share /= share.sum()
    return TokenVectors.of(words, (vectors - vectors.mean(0)) * (SIF / (SIF + share)).astype(np.float32)[:, None])


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name a file in errors about its content."""
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
