"""Settings of text features, and the steps of a fit: hash and count n-grams in parallel, select features, name them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from hinet.data.text.ngram_kernels import (
    Bytes,
    Floats,
    Grams,
    Hashes,
    Ints32,
    Ints64,
    Lookup,
    count_runs,
    hash_rows,
    locate,
    merge_counts,
    row_buckets,
    spell,
)
from hinet.data.text.text_input import TextBlock, as_arrow, in_blocks, normalise
from hinet.errors import HiNetError, did_you_mean
from hinet.parameters import FLAG, INVALID, NONE, Rule, Rules, one_of, real, resolve_threads, validate_fields, whole
from hinet.ragged import Bools, freeze, offsets_of

Sizes: TypeAlias = tuple[int, int]

MAX_NGRAM = 16
MAX_HASH_BITS = 26  # 256 MB of weights per kind of n-gram

# char_ngrams="auto" turns on character n-grams for a few texts, and for texts that are short on average. For many long
# texts there would be too many features, and training would take too long.
AUTO_CHAR_NGRAMS: Sizes = (3, 5)
FEW_TEXTS, FEW_WORDS = 50_000, 3_000_000  # maximum texts, and words in all of them, that count as few
SHORT_TEXT_WORDS = 8  # texts with fewer words on average are short
SAMPLE_TEXTS = 100_000  # number of first texts whose words are counted
# min_df="auto" keeps every n-gram of at most MAX_TEXTS_FOR_ALL texts, and else those in AUTO_MIN_DF texts.
MAX_TEXTS_FOR_ALL = 3_000
AUTO_MIN_DF = 2
Item = TypeVar("Item")
Result = TypeVar("Result")
HASH_BITS = 64
MAX_COUNTED = 1 << 24  # n-grams that a stream counts at a time, 12 bytes each


def _read_sizes(value: Any) -> Any:
    if isinstance(value, tuple | list) and len(value) == 2:
        shortest, longest = (whole(1, MAX_NGRAM).read(size) for size in value)
        if INVALID not in (shortest, longest) and shortest <= longest:
            return shortest, longest
    return INVALID


_SIZES = Rule(f"the shortest and longest length, such as (1, 2), at most {MAX_NGRAM},", _read_sizes)
RULES: Rules = {
    "word_ngrams": _SIZES | NONE,
    "char_ngrams": _SIZES | one_of("auto") | NONE,
    "char_weight": real(above=0).with_remedy("for no character n-grams give char_ngrams=None"),
    "min_df": (whole(1) | one_of("auto")).with_remedy("1 keeps every feature"),
    "max_features": (whole(1) | NONE).with_remedy("None sets no limit"),
    "hash_bits": (whole(1, MAX_HASH_BITS) | NONE).with_remedy("None keeps a vocabulary; 20 is common"),
    "sublinear": FLAG,
    "keep_names": FLAG,
}


@dataclass(frozen=True)
class TextSettings:
    """Which n-grams of a text are features, and how they are weighted.

    Parameters
    ----------
    word_ngrams
        Shortest and longest word n-gram; ``None`` for none. A word consists of letters, digits and ``_``; in
        Chinese, Japanese, Korean, Thai and similar scripts, every character is a word.
    char_ngrams
        Shortest and longest character n-gram within space-separated words, padded with a space on both sides; ``None``
        for none. ``"auto"`` is 3 to 5 for at most 50,000 texts of at most 3,000,000 words together, and if the first
        100,000 texts of a fit have fewer than 8 words on average; else none.
    char_weight
        Length of the character n-gram part of a row before the row is scaled to length 1; the words have length 1.
    min_df
        Minimum number of rows that contain a feature. ``"auto"`` is 1 for at most 3,000 texts, and for texts that share
        no n-gram; else 2.
    max_features
        Maximum number of features. Those in the most rows are kept; among equals, words before characters, then lower
        hashes.
    hash_bits
        Instead of a vocabulary, use ``2**hash_bits`` hashed features for words and as many for characters. They may
        collide and have no names, and those in fewer than ``min_df`` rows have weight 0.
    sublinear
        Use ``1 + log(count)`` of a feature in a row instead of ``count``.
    keep_names
        Keep the n-grams as text, to explain predictions.

    Examples
    --------
    >>> TextSettings(word_ngrams=(1, 3)).char_ngrams
    'auto'
    """

    word_ngrams: Sizes | None = (1, 2)
    char_ngrams: Sizes | Literal["auto"] | None = "auto"
    char_weight: float = 1.25
    min_df: int | Literal["auto"] = "auto"
    max_features: int | None = None
    hash_bits: int | None = None
    sublinear: bool = True
    keep_names: bool = True

    def __post_init__(self) -> None:
        validate_fields(self, RULES)
        if self.word_ngrams is None and self.char_ngrams is None:
            raise HiNetError("word_ngrams and char_ngrams are both None; without n-grams a text has no features")
        if self.hash_bits is not None and self.max_features is not None:
            raise HiNetError("max_features and hash_bits are both given; hash_bits alone sets the number of features")

    @property
    def has_names(self) -> bool:
        """Whether features get names: hashed ones have none."""
        return self.keep_names and self.hash_bits is None

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dict for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TextSettings:
        """Return the settings from the result of :meth:`to_dict`."""
        names = [field.name for field in fields(cls)]
        for name in data:
            if name not in names:
                raise HiNetError(f"unknown text setting {name!r}{did_you_mean(name, names)}")
        return cls(**data)


@dataclass(frozen=True, eq=False)
class RowCounts:
    """The number of rows with each n-gram, by ascending hash; with ``hash_bits``, by the highest bits of the hash."""

    hashes: Hashes
    rows: Ints32

    @classmethod
    def of(cls, grams: Grams, hash_bits: int | None) -> RowCounts:
        """Count the rows of some n-grams."""
        if hash_bits is None:
            hashes = np.sort(grams.hashes)
        else:
            hashes = np.sort(row_buckets(grams.offsets, grams.hashes, np.uint64(HASH_BITS - hash_bits)))
        return cls(*count_runs(hashes))

    def __len__(self) -> int:
        return len(self.hashes)

    def __add__(self, other: RowCounts) -> RowCounts:
        return RowCounts(*merge_counts(self.hashes, self.rows, other.hashes, other.rows))

    def above(self, rows: int) -> RowCounts:
        """Return the n-grams in more than ``rows`` rows."""
        kept = self.rows > rows
        return RowCounts(self.hashes[kept], self.rows[kept])


@dataclass(frozen=True, eq=False)
class Names:
    """The n-grams of features, concatenated as UTF-8."""

    text: Bytes
    offsets: Ints64  # (features + 1,)

    def __post_init__(self) -> None:
        freeze(self.text, self.offsets)

    def __getitem__(self, feature: int) -> str:
        return self.text[self.offsets[feature] : self.offsets[feature + 1]].tobytes().decode()

    def are_text(self) -> bool:
        """Return whether every name is valid UTF-8."""
        starts = self.offsets[self.offsets < len(self.text)]
        if (self.text[starts] & 0xC0 == 0x80).any():  # a byte within a character
            return False
        try:
            self.text.tobytes().decode()
        except UnicodeDecodeError:
            return False
        return True


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The features of one kind, words or characters: their lookup table, and their names if kept."""

    lookup: Lookup
    names: Names | None

    def __len__(self) -> int:
        return len(self.lookup.idf)


def select_features(words: RowCounts, chars: RowCounts, settings: TextSettings) -> tuple[Bools, Bools]:
    """Return masks of the word and character n-grams that ``min_df`` and ``max_features`` keep."""
    assert settings.min_df != "auto"
    rows = np.concatenate((words.rows, chars.rows))
    kept = rows >= settings.min_df
    if settings.max_features is not None and kept.sum() > settings.max_features:
        # A stable sort keeps the order of equals: words before characters, each by hash.
        frequent = np.argsort(-rows, kind="stable")[: settings.max_features]
        kept = np.zeros(len(rows), np.bool_)
        kept[frequent] = True
    return kept[: len(words)], kept[len(words) :]


def fit_lookup(counts: RowCounts, kept: Bools, texts: int, hash_bits: int | None) -> Lookup:
    """Return the lookup of the kept n-grams, with their inverse document frequencies."""
    rows = counts.rows[kept].astype(np.float64)
    idf = (np.log((1 + texts) / (1 + rows)) + 1).astype(np.float32)  # smoothed: as if one more text had every feature
    if hash_bits is None:
        return vocabulary_lookup(counts.hashes[kept], idf)
    buckets = np.zeros(1 << hash_bits, np.float32)
    buckets[counts.hashes[kept].astype(np.int64)] = idf
    return bucket_lookup(buckets)


def vocabulary_lookup(hashes: Hashes, idf: Floats) -> Lookup:
    """Return the lookup of features with ascending hashes."""
    bits = len(hashes).bit_length() + 1  # twice as many runs as features, so that most have at most one feature
    shift = np.uint64(HASH_BITS - bits)
    counts = np.bincount((hashes >> shift).astype(np.int64), minlength=1 << bits)
    return Lookup(hashes, offsets_of(counts).astype(np.int32), shift, idf)


def bucket_lookup(idf: Floats) -> Lookup:
    """Return the lookup of ``2**bits`` features, numbered by the highest bits of the hash."""
    bits = (len(idf) - 1).bit_length()
    return Lookup(np.empty(0, np.uint64), np.empty(0, np.int32), np.uint64(HASH_BITS - bits), idf)


def spell_names(blocks: Sequence[TextBlock], starts_at: Ints64, chars: bool, hashes: Hashes) -> Names:
    """Return the names of features that start at these offsets of the concatenated text of all blocks."""
    text = np.concatenate([block.text for block in blocks])
    starts = np.cumsum([0, *(len(block.text) for block in blocks)])
    row_ends = np.concatenate([block.offsets[1:] + start for block, start in zip(blocks, starts, strict=False)])
    stops = row_ends[np.searchsorted(row_ends, starts_at, side="right")]
    classes = max((block.classes for block in blocks), key=len)
    return Names(*spell(text, starts_at, stops, classes, chars, hashes))


def parallel_map(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Return ``work(item)`` for every item, computed in threads; a single item starts no thread."""
    if threads == 1 or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(work, items))


@dataclass(frozen=True, eq=False)
class HashedBlock:
    """A block of rows with its n-grams of words and of characters."""

    block: TextBlock
    words: Grams
    chars: Grams

    @classmethod
    def of(cls, block: TextBlock, settings: TextSettings) -> HashedBlock:
        """Hash the n-grams of a block; "auto" must be resolved."""
        assert settings.char_ngrams != "auto"
        return cls(
            block, extract_ngrams(block, False, settings.word_ngrams), extract_ngrams(block, True, settings.char_ngrams)
        )


def extract_ngrams(block: TextBlock, chars: bool, sizes: Sizes | None) -> Grams:
    """Return the word or character n-grams of a block; none if ``sizes`` is None."""
    if sizes is None:
        nothing = np.empty(0, np.int32)
        return Grams(np.zeros(len(block.offsets), np.int64), np.empty(0, np.uint64), nothing, nothing)
    return Grams(*hash_rows(block.text, block.offsets, block.classes, chars, *sizes))


def arrow_chunks(chunks: Iterable[Any]) -> Iterator[pa.ChunkedArray]:
    """Yield chunks of texts as Arrow arrays; errors number the rows across chunks."""
    row = 0
    for chunk in chunks:
        array = as_arrow(chunk, row)
        row += len(array)
        yield array


def resolve_auto(
    arrays: Iterator[pa.ChunkedArray], settings: TextSettings
) -> tuple[Iterable[pa.ChunkedArray], TextSettings]:
    """Return the same arrays, and the settings with ``char_ngrams`` resolved by the first texts."""
    if settings.char_ngrams != "auto":
        return arrays, settings
    first: list[pa.ChunkedArray] = []
    texts, words = 0, 0
    while texts < SAMPLE_TEXTS and (array := next(arrays, None)) is not None:
        first.append(array)
        sample = array.slice(0, SAMPLE_TEXTS - texts)
        texts += len(sample)
        for block in in_blocks(sample, 1):
            words += int(extract_ngrams(normalise(block), False, (1, 1)).times.sum())
    few = texts <= FEW_TEXTS and words <= FEW_WORDS
    pays = few or words < SHORT_TEXT_WORDS * texts or settings.word_ngrams is None
    return chain(first, arrays), replace(settings, char_ngrams=AUTO_CHAR_NGRAMS if pays else None)


@dataclass(frozen=True, eq=False)
class Counts:
    """The number of texts, and the number of them that contain each word and character n-gram."""

    texts: int
    words: RowCounts
    chars: RowCounts

    @classmethod
    def of(cls, hashed: HashedBlock, settings: TextSettings) -> Counts:
        """Count a block of rows."""
        texts = len(hashed.block.offsets) - 1
        return cls(texts, *(RowCounts.of(grams, settings.hash_bits) for grams in (hashed.words, hashed.chars)))

    @classmethod
    def total(cls, counts: Sequence[Counts], threads: int) -> Counts:
        """Return the sum of counts; neighbours are added first, so that summands have similar sizes."""
        if not counts:
            nothing = RowCounts(np.empty(0, np.uint64), np.empty(0, np.int32))
            return cls(0, nothing, nothing)
        while len(counts) > 1:
            pairs = [counts[start : start + 2] for start in range(0, len(counts), 2)]
            counts = parallel_map(lambda pair: pair[0] + pair[1] if len(pair) == 2 else pair[0], pairs, threads)
        return counts[0]

    def __len__(self) -> int:
        return len(self.words) + len(self.chars)

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.texts + other.texts, self.words + other.words, self.chars + other.chars)


def hash_and_count(array: pa.ChunkedArray, settings: TextSettings, threads: int) -> tuple[list[HashedBlock], Counts]:
    """Hash the n-grams of an array block by block, and count the rows of each."""

    def work(block: pa.LargeStringArray) -> tuple[HashedBlock, Counts]:
        hashed = HashedBlock.of(normalise(block), settings)
        return hashed, Counts.of(hashed, settings)

    done = parallel_map(work, in_blocks(array, threads), threads)
    return [hashed for hashed, _ in done], Counts.total([counts for _, counts in done], threads)


class BoundedCounts:
    """Counts the texts of each n-gram, exactly unless there are more than ``max_ngrams`` different ones.

    If there are, those in the fewest texts are dropped until half as many are left. A dropped n-gram that occurs again
    is counted from 0, so its count may be too low, by at most ``max_error``.
    """

    def __init__(self, settings: TextSettings, threads: int | None, max_ngrams: float = MAX_COUNTED) -> None:
        self._settings, self._threads, self._max_ngrams = settings, resolve_threads(threads), max_ngrams
        self._counts: list[Counts] = []
        self.max_error = 0

    def add(self, texts: pa.ChunkedArray) -> list[HashedBlock]:
        """Count the n-grams of more texts, and return their blocks."""
        blocks, counts = hash_and_count(texts, self._settings, self._threads)
        self._counts.append(counts)
        # Only counts of similar sizes are added, so that none is copied for every chunk.
        while len(self._counts) > 1 and len(self._counts[-2]) <= 2 * len(self._counts[-1]):
            self._counts[-2:] = [self._counts[-2] + self._counts[-1]]
        if sum(map(len, self._counts)) > self._max_ngrams:
            self._counts = [self._pruned(self.total())]
        return blocks

    def total(self) -> Counts:
        """Return all counts."""
        return Counts.total(self._counts, self._threads)

    def _pruned(self, total: Counts) -> Counts:
        if len(total) <= 3 * self._max_ngrams // 4:  # parts of the counts had the same n-grams
            return total
        rows = np.concatenate((total.words.rows, total.chars.rows))
        excess = len(rows) - int(self._max_ngrams // 2)
        dropped = int(np.partition(rows, excess)[excess])
        self.max_error += dropped
        return Counts(total.texts, total.words.above(dropped), total.chars.above(dropped))


def resolve_min_df(counts: Counts, settings: TextSettings) -> TextSettings:
    """Return the settings with ``min_df`` resolved by the number of texts, and by whether they share an n-gram."""
    if settings.min_df != "auto":
        return settings
    max_rows = max(int(part.rows.max(initial=0)) for part in (counts.words, counts.chars))
    keeps_all = counts.texts <= MAX_TEXTS_FOR_ALL or max_rows < AUTO_MIN_DF
    return replace(settings, min_df=1 if keeps_all else AUTO_MIN_DF)


def fit_lookups(counts: Counts, settings: TextSettings) -> tuple[Lookup, Lookup]:
    """Return the lookups of words and of characters, or raise HiNetError if no feature is left."""
    if not counts.texts:
        raise HiNetError("there are no training texts; give at least one")
    if not len(counts):
        raise HiNetError(f"none of the {counts.texts:,} training texts has a word; is it the right column?")
    word_kept, char_kept = select_features(counts.words, counts.chars, settings)
    if not (word_kept.any() or char_kept.any()):
        raise HiNetError(
            f"no feature is in at least {settings.min_df} of the {counts.texts:,} training texts; lower `min_df`, 1 "
            "keeps every feature"
        )
    return (
        fit_lookup(counts.words, word_kept, counts.texts, settings.hash_bits if settings.word_ngrams else None),
        fit_lookup(counts.chars, char_kept, counts.texts, settings.hash_bits if settings.char_ngrams else None),
    )


def name_features(
    words: Lookup, chars: Lookup, blocks: Sequence[TextBlock], hashed: Callable[[int], HashedBlock], threads: int
) -> tuple[Vocabulary, Vocabulary]:
    """Return the features with their names; ``hashed`` returns the n-grams of a block by number."""
    starts = np.cumsum([0, *(len(block.text) for block in blocks)])
    word_offsets, char_offsets = np.empty(len(words.idf), np.int64), np.empty(len(chars.idf), np.int64)

    def locate_block(number: int) -> None:
        # Threads may write the same element: any occurrence of an n-gram has the same name.
        grams = hashed(number)
        locate(grams.words, words, starts[number], word_offsets)
        locate(grams.chars, chars, starts[number], char_offsets)

    parallel_map(locate_block, range(len(blocks)), threads)
    return (
        Vocabulary(words, spell_names(blocks, word_offsets, False, words.hashes)),
        Vocabulary(chars, spell_names(blocks, char_offsets, True, chars.hashes)),
    )
