"""Static token vectors, summed over the tokens of texts, and those of wordllama, which the extra ``meaning`` installs.

Vectors are quantised to 8 bits and looked up by the hash of their token. A word is looked up with the next one as a
pair, then by itself, then in pieces. Pieces that start a word and pieces that continue one have different hashes.
Without an order of merges, the first piece is the longest at the start of the word, the next is the longest at the
start of the rest, and so on. With one, pieces are those of byte-pair encoding: neighbours are merged, starting with
characters, as long as a merged pair is a token; the first token in order goes first.

Only two files of the package are read: the vectors, and the vocabulary of their tokenizer. The package is not imported.
Models that use these vectors store their digest instead of a copy.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import inlined, kernel
from hinet.data.matrices import quantise_rows
from hinet.data.text.features import vocabulary_lookup
from hinet.data.text.ngram_kernels import LETTER, SEED, SINGLE, character, finished, joined, longest_row, stepped
from hinet.data.text.text_input import as_arrow, in_blocks, normalise, parallel_map, word_pattern
from hinet.errors import FileError, HiNetError, quoted
from hinet.files import map_arrays
from hinet.files.schema import ArraySpec, Schema, bytes_of, check_arrays, floats
from hinet.parameters import resolve_threads

MAX_WIDTH = 4_096
MAX_SCALE = 1e6  # largest scale in a file, so that sums stay finite
WITHIN = np.uint64(0x5851F42D4C957F2D)  # initial hash of pieces that continue a word
MAX_PIECE = 32  # characters
MAX_MERGED = 128  # characters of a word that are merged at a time, as the steps grow with their square
NEVER = np.int32(2**31 - 1)  # order of a pair that is not merged
BYTE_LEVEL = "Ġ"  # mark of the start of a word in a vocabulary of bytes
WORD_STARTS = ("▁", BYTE_LEVEL)  # prefixes of pieces that start a word; other pieces continue one
CONTINUES = "##"  # prefix of pieces that continue a word; other pieces start one
_SCHEMA: Schema = {
    "hashes": ArraySpec(("tokens",), "u", rising=True),
    "vectors": bytes_of("tokens", "width"),
    "scale": floats("tokens", low=0, high=MAX_SCALE),
    "pairs": ArraySpec((1,), "iu", 0, 1),
    "merges": ArraySpec(("tokens",), "iu", 0, int(NEVER), optional=True),
}
PACKAGED = "wordllama"  # package of static vectors
WEIGHTS = "weights/l2_supercat_256.safetensors"
TOKENIZER = "tokenizers/l2_supercat_tokenizer_config.json"
DIGESTS = {
    WEIGHTS: "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    TOKENIZER: "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
}  # SHA-256 of the files
FINGERPRINT = hashlib.sha256("".join(DIGESTS.values()).encode()).hexdigest()[:32]
REMEDY = "install it with: pip install 'hinet[meaning]'"


class TokenTable(NamedTuple):
    """Vectors by the hash of their token; hashes that start with the bits b are at ``runs[b]:runs[b + 1]``."""

    hashes: Any  # (tokens,) ascending
    runs: Any
    shift: Any
    vectors: Any  # (tokens, width) in 8 bits
    scale: Any  # (tokens,)
    has_pairs: Any
    merges: Any  # (tokens,) order in which pairs of pieces are merged to tokens; (0,) if pieces are the longest ones


@inlined
def find_token(value: Any, table: Any) -> Any:
    """Return the token of a hash, or -1."""
    bits = np.int64(value >> table.shift)
    for token in range(table.runs[bits], table.runs[bits + 1]):
        if table.hashes[token] == value:
            return token
    return np.int64(-1)


@inlined
def pair_hash(first: Any, second: Any) -> Any:
    """Return the hash of a pair of words, from their hashes."""
    return finished(stepped(stepped(SEED, first), second))


@inlined
def read_words(text: Any, start: Any, stop: Any, classes: Any, codes: Any, begins: Any, words: Any) -> Any:
    """Write the characters of the words of a row, and the start and hash of each word; return the number of words."""
    count, length, inside = 0, 0, False
    state = SEED
    position = start
    while position < stop:
        code, width = np.int64(text[position]), 1
        if code >= 0x80:
            code, width = character(text, position)
        if LETTER <= classes[code] <= SINGLE:
            if not inside:
                inside = True
                state = SEED
                begins[count] = length
            state = joined(state, np.uint64(code))
            codes[length] = np.uint64(code)
            length += 1
        elif inside:
            inside = False
            words[count] = finished(state)
            count += 1
        position += width
    if inside:
        words[count] = finished(state)
        count += 1
    begins[count] = length
    return count


@inlined
def add_vector(token: Any, table: Any, sums: Any, row: Any) -> None:
    """Add the vector of a token to the sum of a row."""
    scale = table.scale[token]
    for column in range(sums.shape[1]):
        sums[row, column] += scale * np.float32(table.vectors[token, column])


@inlined
def add_pieces(codes: Any, begin: Any, end: Any, table: Any, sums: Any, row: Any) -> None:
    """Add the vectors of the pieces of a word; skip characters that start no known piece."""
    first = begin
    while first < end:
        state = SEED if first == begin else WITHIN
        longest, after = np.int64(-1), first + 1
        for last in range(first, min(end, first + MAX_PIECE)):
            state = joined(state, codes[last])
            token = find_token(finished(state), table)
            if token >= 0:
                longest, after = token, last + 1
        if longest >= 0:
            add_vector(longest, table, sums, row)
        first = after


@inlined
def find_piece(codes: Any, first: Any, last: Any, starts: Any, table: Any) -> Any:
    """Return the token of characters that start or continue a word, or -1."""
    if first == last or last - first > MAX_PIECE:
        return np.int64(-1)
    state = SEED if starts else WITHIN
    for index in range(first, last):
        state = joined(state, codes[index])
    return find_token(finished(state), table)


@inlined
def merge_order(codes: Any, first: Any, last: Any, starts: Any, table: Any) -> Any:
    """Return the order in which pieces are merged to this one."""
    token = find_piece(codes, first, last, starts, table)
    return NEVER if token < 0 else table.merges[token]


@inlined
def merge_pieces(codes: Any, start: Any, stop: Any, starts: Any, table: Any, cuts: Any, orders: Any) -> Any:
    """Write where the pieces of characters begin, and their end; return the number of pieces.

    If the characters start a word, the first piece is the mark of its start, which is empty until it is merged.
    """
    count = 0
    if starts:
        cuts[0] = start
        count = 1
    for index in range(start, stop):
        cuts[count] = index
        count += 1
    cuts[count] = stop
    for piece in range(count - 1):
        orders[piece] = merge_order(codes, cuts[piece], cuts[piece + 2], starts and piece == 0, table)
    while True:
        best = 0
        for piece in range(1, count - 1):
            if orders[piece] < orders[best]:
                best = piece
        if count < 2 or orders[best] == NEVER:
            return count
        count -= 1
        for piece in range(best + 1, count):
            cuts[piece] = cuts[piece + 1]
            orders[piece] = orders[piece + 1]
        cuts[count] = stop
        for piece in range(max(best - 1, 0), min(best + 1, count - 1)):
            orders[piece] = merge_order(codes, cuts[piece], cuts[piece + 2], starts and piece == 0, table)


@inlined
def add_merged_pieces(
    codes: Any, begin: Any, end: Any, table: Any, cuts: Any, orders: Any, sums: Any, row: Any
) -> None:
    """Add the vectors of the pieces of a word that its characters are merged to; skip pieces without a vector."""
    for start in range(begin, end, MAX_MERGED):
        count = merge_pieces(codes, start, min(end, start + MAX_MERGED), start == begin, table, cuts, orders)
        for piece in range(count):
            token = find_piece(codes, cuts[piece], cuts[piece + 1], start == begin and piece == 0, table)
            if token >= 0:
                add_vector(token, table, sums, row)


def _steps_of_sums(text: Any, offsets: Any, classes: Any, table: Any) -> Any:
    return (40 if len(table.merges) == 0 else 80) * len(text) + len(text) * table.vectors.shape[1] // 4


@kernel(steps=_steps_of_sums)
def token_sums(text: Any, offsets: Any, classes: Any, table: Any) -> Any:
    """Return the sum of the token vectors of each row, (n, width)."""
    rows = len(offsets) - 1
    size = longest_row(offsets) + 1
    codes, begins, words = np.empty(size, np.uint64), np.empty(size + 1, np.int64), np.empty(size, np.uint64)
    sums = np.zeros((rows, table.vectors.shape[1]), np.float32)
    cuts, orders = np.empty(MAX_MERGED + 2, np.int64), np.empty(MAX_MERGED + 2, np.int32)
    for row in range(rows):
        count = read_words(text, offsets[row], offsets[row + 1], classes, codes, begins, words)
        word = 0
        while word < count:
            token = np.int64(-1)
            if table.has_pairs and word + 1 < count:
                token = find_token(pair_hash(words[word], words[word + 1]), table)
                if token >= 0:
                    word += 1
            if token < 0:
                token = find_token(words[word], table)
            if token >= 0:
                add_vector(token, table, sums, row)
            elif len(table.merges) == 0:
                add_pieces(codes, begins[word], begins[word + 1], table, sums, row)
            else:
                add_merged_pieces(codes, begins[word], begins[word + 1], table, cuts, orders, sums, row)
            word += 1
    return sums


@kernel
def token_hashes(text: Any, offsets: Any, classes: Any, within: Any) -> Any:
    """Return the hash of each row as a token (a word, a pair, or a piece that continues a word), and its words."""
    rows = len(offsets) - 1
    size = longest_row(offsets) + 1
    codes, begins, words = np.empty(size, np.uint64), np.empty(size + 1, np.int64), np.empty(size, np.uint64)
    hashes, counts = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
    for row in range(rows):
        count = read_words(text, offsets[row], offsets[row + 1], classes, codes, begins, words)
        counts[row] = count
        if within[row] and count == 1:
            state = WITHIN
            for index in range(begins[0], begins[1]):
                state = joined(state, codes[index])
            hashes[row] = finished(state)
        elif count == 1:
            hashes[row] = words[0]
        elif count == 2 and not within[row]:
            hashes[row] = pair_hash(words[0], words[1])
    return hashes, counts


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
        hashes, counts = (
            _hash_tokens(tokens, within) if len(tokens) else (np.zeros(0, np.uint64), np.zeros(0, np.int64))
        )
        usable = np.flatnonzero(hashes)
        distinct, first = np.unique(hashes[usable], return_index=True)
        chosen = usable[first]
        if not len(chosen):
            raise HiNetError("none of the tokens is a word or a piece of a word")
        levels, scale = quantise_rows(np.ascontiguousarray(vectors[chosen], np.float32))
        return cls._of(distinct, levels, scale, bool((counts[chosen] == 2).any()))

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
        plain = normalise(as_arrow([text]).chunk(0)).text.tobytes().decode()
        words = word_pattern(plain, whole_runs=True).findall(plain)
        tokens: list[str] = []
        while len(words) > len(tokens):
            both = " ".join(words[len(tokens) : len(tokens) + 2])
            has_pair = self.table.has_pairs and both != words[len(tokens)]
            if has_pair and np.isin(_hash_tokens([both], np.zeros(1, bool))[0], self.table.hashes)[0]:
                words[len(tokens) : len(tokens) + 2] = [both]
            tokens.append(words[len(tokens)])
        return tokens, self.sums(tokens, 1) if tokens else np.zeros((0, self.width), np.float32)

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


def _hash_tokens(tokens: Sequence[str], within: NDArray[np.bool_]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hash and the number of words of each token; ``within`` marks those that continue a word."""
    part = normalise(as_arrow(list(tokens)).chunk(0))
    hashes, counts = token_hashes(part.text, part.offsets, part.classes, within)
    return hashes, counts


def _hashes_of_pieces(pieces: Sequence[str], within: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return the hash of each piece as ``token_hashes`` does, without numba, which takes long to load."""
    codes = np.array(pieces).view(np.uint32).reshape(len(pieces), -1)  # (pieces, longest), padded with 0
    states = np.where(within, WITHIN, SEED)
    with np.errstate(over="ignore"):
        for column in codes.T:
            states = np.where(column > 0, joined(states, column.astype(np.uint64)), states)
        return np.array([finished(state) for state in states], np.uint64)


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


def is_installed() -> bool:
    """Return whether the package of static vectors is installed."""
    return _package_folder() is not None


def packaged_vectors() -> TokenVectors:
    """Return the vectors of the installed package.

    Raises
    ------
    FileError
        If the package is not installed, or its files are not those that this version of hinet knows.
    """
    folder = _package_folder()
    if folder is None:
        raise FileError(PACKAGED, f"the package is not installed; {REMEDY}")
    return _read_package(folder)


def referenced_vectors(package: str, fingerprint: str, width: int | None = None) -> TokenVectors:
    """Return the vectors that a saved model refers to, or their first columns.

    Raises
    ------
    HiNetError
        If they are unknown, not installed, or have fewer columns.
    """
    if package != PACKAGED or fingerprint != FINGERPRINT:
        raise HiNetError(
            f"the model uses vectors of {quoted(package)} with the fingerprint {quoted(fingerprint)}, and this version "
            f"of hinet knows those of {PACKAGED} with {FINGERPRINT}"
        )
    if not is_installed():
        raise FileError(PACKAGED, f"the model uses the vectors of this package, which is not installed; {REMEDY}")
    vectors = packaged_vectors()
    return vectors if width is None else vectors.first_columns(width)


def _package_folder() -> Path | None:
    from importlib.metadata import PackageNotFoundError, distribution  # slow to import

    try:
        folder = Path(str(distribution(PACKAGED).locate_file(PACKAGED)))
    except PackageNotFoundError:
        return None
    return folder if folder.is_dir() else None


@cache
def _read_package(folder: Path) -> TokenVectors:
    """Return the vectors in the folder of the package.

    Tokens are case-sensitive, and texts are in lower case. So words are split into tokens in lower case, and a token
    with capital letters, such as a name, is used for the word that equals it in lower case and is not a token itself.
    """
    with _checked(folder, WEIGHTS) as weights, _checked(folder, TOKENIZER) as tokenizer:
        vectors = map_arrays(folder / WEIGHTS, weights)[0]["embedding.weight"]
        tokens, ids, within = read_tokens(tokenizer.read())
    pieces = np.array([unicodedata.normalize("NFKC", token).lower() for token in tokens])
    is_lower = pieces == np.array(tokens)
    used = np.concatenate([np.flatnonzero(is_lower), np.flatnonzero(~is_lower & ~within)])
    used = used[pieces[used] != ""]  # a mark of the start of a word
    merges = np.where(is_lower, ids, NEVER).astype(np.int32)  # tokens are numbered in the order of their merges
    read = TokenVectors.of_merged_pieces(pieces[used].tolist(), vectors[ids[used]], within[used], merges[used])
    return replace(read, package=PACKAGED)


@contextmanager
def _checked(folder: Path, name: str) -> Iterator[IO[bytes]]:
    """Open a file of the package whose digest is right."""
    path = folder / name
    try:
        stream = path.open("rb")
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}; {REMEDY}") from None
    with stream:
        if hashlib.file_digest(stream, "sha256").hexdigest() != DIGESTS[name]:
            raise FileError(path, f"is not the file of {PACKAGED} that this version of hinet knows; {REMEDY}")
        stream.seek(0)
        yield stream
