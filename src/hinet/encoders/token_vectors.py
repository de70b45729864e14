"""Static token vectors: read from a folder, a file, a package or the hub, and summed over the tokens of texts.

Vectors are quantised to 8 bits and looked up by the hash of their token.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import quantise_rows
from hinet.data.text.features import parallel_map, vocabulary_lookup
from hinet.data.text.ngram_kernels import SEED, finished, joined
from hinet.data.text.text_input import as_arrow, in_blocks, normalise, word_pattern
from hinet.encoders.token_kernels import NEVER, WITHIN, TokenTable, token_hashes, token_sums
from hinet.errors import FileError, HiNetError
from hinet.extras import require
from hinet.files import map_arrays, read_bounded
from hinet.files.schema import ArraySpec, Schema, bytes_of, check_arrays, floats
from hinet.parameters import resolve_threads

MAX_WIDTH = 4_096
MAX_SCALE = 1e6  # largest scale in a file, so that sums stay finite
MAX_TOKENS = 200_000  # words read from a text file, which lists frequent words first
SIF = 1e-4  # frequency at which a word counts half
ZIPF_SHIFT = 2.7  # added to the rank of a word in Zipf's law
BYTE_LEVEL = "Ġ"  # mark of the start of a word in a vocabulary of bytes
WORD_STARTS = ("▁", BYTE_LEVEL)  # prefixes of pieces that start a word; other pieces continue one
CONTINUES = "##"  # prefix of pieces that continue a word; other pieces start one
TEXT_SUFFIXES = (".vec", ".txt")
MAX_TOKENIZER_BYTES = 1 << 28  # typical tokenizers have a few megabytes
_TENSORS, _TOKENIZER = "model.safetensors", "tokenizer.json"
PACKAGED = "wordllama"  # the package of hinet.encoders.packaged_vectors
_ACCEPTED = (
    f"give a model2vec folder, a .vec or .txt file, {PACKAGED!r} for the vectors of the extra 'meaning', or a name on "
    "the Hugging Face hub such as owner/model"
)
_SCHEMA: Schema = {
    "hashes": ArraySpec(("tokens",), "u", rising=True),
    "vectors": bytes_of("tokens", "width"),
    "scale": floats("tokens", low=0, high=MAX_SCALE),
    "pairs": ArraySpec((1,), "iu", 0, 1),
    "merges": ArraySpec(("tokens",), "iu", 0, int(NEVER), optional=True),
}


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """A vector for each token of a vocabulary: words, pairs of words, and pieces of words.

    Texts are read as by :class:`hinet.data.text.TextFeatures`: normalised (NFKC), in lower case, words of letters,
    digits and ``_``. The vector of a text is the sum over its tokens; token weights are part of the vectors. Tokens are
    stored as hashes of eight bytes.
    """

    table: TokenTable
    package: str | None = None  # installed package that contains them, so that models need not

    @classmethod
    def of(cls, tokens: Sequence[str], vectors: NDArray[Any], within: NDArray[np.bool_] | None = None) -> TokenVectors:
        """Return the vectors of tokens; ``within`` marks the tokens that continue a word.

        Tokens that are neither a word, two words, nor a piece of a word are left out. Of tokens with the same hash, the
        first is used.

        >>> vectors = TokenVectors.of(["rye", "bread"], np.eye(2, dtype=np.float32))
        >>> vectors.sums(["Rye bread, more bread"]).round(3).tolist()
        [[1.0, 2.0]]
        """
        if len(tokens) != len(vectors):
            raise HiNetError(f"got {len(tokens):,} tokens and {len(vectors):,} vectors; give one vector per token")
        within = np.zeros(len(tokens), bool) if within is None else within
        hashes, counts = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
        start = 0
        for part in map(normalise, in_blocks(as_arrow(list(tokens)), 1)):
            end = start + len(part.offsets) - 1
            part_hashes, part_counts = token_hashes(part.text, part.offsets, part.classes, within[start:end])
            hashes.append(part_hashes)
            counts.append(part_counts)
            start = end
        all_hashes = np.concatenate(hashes)
        usable = np.flatnonzero(all_hashes)
        distinct, first = np.unique(all_hashes[usable], return_index=True)
        chosen = usable[first]
        if not len(chosen):
            raise HiNetError("none of the tokens is a word or a piece of a word")
        levels, scale = quantise_rows(np.ascontiguousarray(vectors[chosen], np.float32))
        return cls._of(distinct, levels, scale, bool((np.concatenate(counts)[chosen] == 2).any()))

    @classmethod
    def of_merged_pieces(
        cls, pieces: Sequence[str], vectors: NDArray[Any], within: NDArray[np.bool_], merges: NDArray[np.int32]
    ) -> TokenVectors:
        """Return the vectors of words and pieces of words, in lower case, which byte-pair encoding splits words into.

        ``merges`` is the order in which neighbouring pieces are merged. A piece of the order ``NEVER`` is only used for
        a word that equals it. Of pieces with the same hash, the first is used.
        """
        hashes, chosen = np.unique(_hashes_of_pieces(pieces, within), return_index=True)
        levels, scale = quantise_rows(vectors[chosen])
        return cls._of(hashes, levels, scale, False, merges[chosen])

    @classmethod
    def _of(
        cls,
        hashes: NDArray[np.uint64],
        vectors: NDArray[np.int8],
        scale: NDArray[np.float32],
        pairs: bool,
        merges: NDArray[np.int32] | None = None,
    ) -> TokenVectors:
        lookup = vocabulary_lookup(hashes, np.ones(len(hashes), np.float32))
        merges = np.zeros(0, np.int32) if merges is None else merges
        return cls(TokenTable(lookup.hashes, lookup.runs, lookup.shift, vectors, scale, pairs, merges))

    def __len__(self) -> int:
        return len(self.table.hashes)

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.table.vectors.shape[1])

    def first_columns(self, count: int) -> TokenVectors:
        """Return the vectors without their last columns; raise HiNetError if they have fewer than ``count``."""
        if not 0 < count <= self.width:
            raise HiNetError(f"the vectors have {self.width} columns, and {count:,} of them are asked for")
        return replace(self, table=self.table._replace(vectors=np.ascontiguousarray(self.table.vectors[:, :count])))

    def sums(self, texts: Any, threads: int | None = None) -> NDArray[np.float32]:
        """Return the sum of the token vectors of each text, (n, width); zeros for a text without a known token."""
        threads = resolve_threads(threads)

        def sum_block(block: Any) -> NDArray[np.float32]:
            part = normalise(block)
            sums: NDArray[np.float32] = token_sums(part.text, part.offsets, part.classes, self.table)
            return sums

        parts = parallel_map(sum_block, in_blocks(as_arrow(texts), threads), threads)
        return np.concatenate([np.zeros((0, self.width), np.float32), *parts])

    def word_share(self, texts: Any) -> float:
        """Return the share of the words of texts that are tokens as a whole; 0 without words.

        >>> TokenVectors.of(["rye", "bread"], np.eye(2, dtype=np.float32)).word_share(["Rye bread", "pain de seigle"])
        0.4
        """
        counts: Counter[str] = Counter()
        for part in map(normalise, in_blocks(as_arrow(texts), 1)):
            plain = part.text.tobytes()
            for start, end in pairwise(part.offsets.tolist()):
                text = plain[start:end].decode()
                counts.update(word_pattern(text, whole_runs=True).findall(text))
        if not counts:
            return 0.0
        hashes = _hashes_of_pieces([*counts], np.zeros(len(counts), bool))
        return float(np.isin(hashes, self.table.hashes) @ np.array([*counts.values()]) / counts.total())

    def by_token(self, text: str) -> tuple[list[str], NDArray[np.float32]]:
        """Return the words of a text, pairs joined, and what each adds to the sum, (words, width)."""
        (block,) = in_blocks(as_arrow([text]), 1) or [None]
        plain = "" if block is None else normalise(block).text.tobytes().decode()
        words = word_pattern(plain, whole_runs=True).findall(plain)
        tokens: list[str] = []
        while len(words) > len(tokens):
            both = " ".join(words[len(tokens) : len(tokens) + 2])
            if both != words[len(tokens)] and self._has_pair(both):
                words[len(tokens) : len(tokens) + 2] = [both]
            tokens.append(words[len(tokens)])
        return tokens, self.sums(tokens, 1) if tokens else np.zeros((0, self.width), np.float32)

    def _has_pair(self, words: str) -> bool:
        part = normalise(in_blocks(as_arrow([words]), 1)[0])
        hashes, _ = token_hashes(part.text, part.offsets, part.classes, np.zeros(1, bool))
        return bool(self.table.has_pairs) and bool(np.isin(hashes[0], self.table.hashes))

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that :meth:`from_arrays` reads."""
        table = self.table
        pairs = np.array([table.has_pairs], np.uint8)
        arrays = {"hashes": table.hashes, "vectors": table.vectors, "scale": table.scale, "pairs": pairs}
        return arrays | ({"merges": table.merges} if len(table.merges) else {})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> TokenVectors:
        """Return the vectors of :meth:`to_arrays`; raise HiNetError with the name of an invalid array."""
        sizes = check_arrays(arrays, _SCHEMA, {})
        if not 0 < sizes["width"] <= MAX_WIDTH or not sizes["tokens"]:
            raise HiNetError(f"{sizes['tokens']:,} vectors of {sizes['width']:,} columns, expected 1 to {MAX_WIDTH:,}")
        hashes = np.array(arrays["hashes"], np.uint64)
        vectors, scale = np.array(arrays["vectors"], np.int8), np.array(arrays["scale"], np.float32)
        merges = np.array(arrays["merges"], np.int32) if "merges" in arrays else None
        return cls._of(hashes, vectors, scale, bool(arrays["pairs"][0]), merges)


def _hashes_of_pieces(pieces: Sequence[str], within: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return the hash of each piece as ``token_hashes`` does, without numba, which takes long to load."""
    codes = np.array(pieces).view(np.uint32).reshape(len(pieces), -1)  # (pieces, longest), padded with 0
    states = np.where(within, WITHIN, SEED)
    with np.errstate(over="ignore"):
        for column in codes.T:
            states = np.where(column > 0, joined(states, column.astype(np.uint64)), states)
        return np.array([finished(state) for state in states], np.uint64)


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
        from hinet.encoders.packaged_vectors import packaged_vectors

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


def _weighted_vectors(arrays: dict[str, NDArray[Any]]) -> NDArray[np.float32]:
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


def read_tokens(content: bytes) -> tuple[list[str], NDArray[np.int64], NDArray[np.bool_]]:
    """Return the tokens of a tokenizer, their ids, and which of them continue a word."""
    description = json.loads(content)
    vocabulary = description["model"]["vocab"]
    numbered = (
        vocabulary.items() if isinstance(vocabulary, dict) else ((token, i) for i, (token, _) in enumerate(vocabulary))
    )
    special = {token["content"] for token in description.get("added_tokens", ()) if token.get("special")}
    pieces = [(str(token), int(number)) for token, number in numbered if token not in special]
    mark = next((mark for mark in WORD_STARTS if any(piece.startswith(mark) for piece, _ in pieces)), None)
    byte_of = _byte_letters() if mark == BYTE_LEVEL else None
    tokens, within = [], []
    for piece, _ in pieces:
        starts = piece.startswith(mark) if mark else not piece.startswith(CONTINUES)
        text = piece[1:] if mark and starts else piece.removeprefix(CONTINUES)
        if byte_of is not None:
            text = bytes(byte_of.get(letter, 63) for letter in text).decode(errors="ignore")
        tokens.append(text)
        within.append(not starts)
    return tokens, np.array([number for _, number in pieces], np.int64), np.array(within, bool)


def _byte_letters() -> dict[str, int]:
    """Return the byte for each letter of a byte-level vocabulary, in which printable bytes represent themselves."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + number): byte for number, byte in enumerate(others)}


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
            rows.append(_read_numbers(fields[-width:], number))
            words.append(" ".join(fields[:-width]))
            if len(words) == MAX_TOKENS:
                break
    if not words:
        raise FileError(path, "is empty; expected one line per word")
    vectors = np.stack(rows)
    return TokenVectors.of(words, (vectors - vectors.mean(0)) * _rank_weights(len(words))[:, None])


def _read_numbers(fields: Sequence[str], number: int) -> NDArray[np.float32]:
    try:
        values = np.array(fields, np.float32)
    except ValueError as error:
        raise HiNetError(f"line {number}: {error}") from None
    if not np.isfinite(values).all():
        raise HiNetError(f"line {number}: a number is not finite")
    return values


def _rank_weights(count: int) -> NDArray[np.float32]:
    """Return the weight of each word by its rank; frequent words weigh less."""
    share = 1 / (np.arange(count) + ZIPF_SHIFT)
    share /= share.sum()
    return (SIF / (SIF + share)).astype(np.float32)


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
