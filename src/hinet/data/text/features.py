"""Texts as CSR rows of weighted n-grams, which are hashed and counted on all cores, and selected by their counts.

A word is known if it is a feature. If the shortest word n-grams have several words, such an n-gram counts as a word.
If only characters are features, words are split at spaces, and a word is known if any of its character n-grams is a
feature. With hashed features, a word may seem known because another one has the same number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from hinet.compiled import compile_from_now_on
from hinet.data.text.ngram_kernels import (
    Bytes,
    Floats,
    Grams,
    Hashes,
    Ints32,
    Ints64,
    Lookup,
    hash_rows,
    locate,
    merge_counts,
    spell,
    weigh_rows,
)
from hinet.data.text.text_input import (
    TextBlock,
    arrow_chunks,
    as_arrow,
    in_blocks,
    join_words,
    normalise,
    parallel_map,
    word_pattern,
)
from hinet.errors import HiNetError, did_you_mean
from hinet.files import narrowest
from hinet.files.schema import ArraySpec, check_arrays, floats, offsets
from hinet.parameters import FLAG, INVALID, NONE, Rule, one_of, real, resolve_threads, rules_of, validate_fields, whole
from hinet.ragged import Bools, Ints, freeze, offsets_of

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
HASH_BITS = 64
MAX_COUNTED = 1 << 24  # n-grams that a stream counts at a time, 12 bytes each
MIN_IDF, MAX_IDF = 1.0, 100.0  # the weight of a feature in all texts; more than any number of texts can give

# Row offsets, feature numbers and weights of a block, and the share of unknown n-grams of each row.
_Part: TypeAlias = tuple[Ints64, Ints32, Floats, Floats]


def _read_sizes(value: Any) -> Any:
    if isinstance(value, tuple | list) and len(value) == 2:
        shortest, longest = (whole(1, MAX_NGRAM).read(size) for size in value)
        if INVALID not in (shortest, longest) and shortest <= longest:
            return shortest, longest
    return INVALID


_SIZES = Rule(f"the shortest and longest length, such as (1, 2), at most {MAX_NGRAM},", _read_sizes)


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

    word_ngrams: Annotated[Sizes | None, _SIZES | NONE] = (1, 2)
    char_ngrams: Annotated[Sizes | Literal["auto"] | None, _SIZES | one_of("auto") | NONE] = "auto"
    char_weight: Annotated[float, real(above=0).with_remedy("for no character n-grams give char_ngrams=None")] = 1.25
    min_df: Annotated[int | Literal["auto"], (whole(1) | one_of("auto")).with_remedy("1 keeps every feature")] = "auto"
    max_features: Annotated[int | None, (whole(1) | NONE).with_remedy("None sets no limit")] = None
    hash_bits: Annotated[
        int | None, (whole(1, MAX_HASH_BITS) | NONE).with_remedy("None keeps a vocabulary; 20 is common")
    ] = None
    sublinear: Annotated[bool, FLAG] = True
    keep_names: Annotated[bool, FLAG] = True

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


RULES = rules_of(TextSettings)


@dataclass(frozen=True, eq=False)
class RowCounts:
    """The number of rows with each n-gram, by ascending hash; with ``hash_bits``, by the highest bits of the hash."""

    hashes: Hashes
    rows: Ints32

    @classmethod
    def of(cls, grams: Grams, hash_bits: int | None) -> RowCounts:
        """Count the rows of some n-grams."""
        hashes = grams.hashes
        if hash_bits is not None:
            hashes = hashes >> np.uint64(HASH_BITS - hash_bits)  # ascending within each row
            row = np.repeat(np.arange(len(grams.offsets) - 1), np.diff(grams.offsets))
            hashes = hashes[np.append(True, (np.diff(hashes) != 0) | (np.diff(row) != 0))[: len(hashes)]]
        distinct, rows = np.unique(hashes, return_counts=True)
        return cls(distinct, rows.astype(np.int32))

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


def _fit_lookup(counts: RowCounts, kept: Bools, texts: int, hash_bits: int | None) -> Lookup:
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
        words, chars = (RowCounts.of(grams, settings.hash_bits) for grams in (hashed.words, hashed.chars))
        return hashed, Counts(len(block), words, chars)

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
    """Return the lookups of the words and characters that ``min_df`` and ``max_features`` keep.

    Raises
    ------
    HiNetError
        If no feature is left.
    """
    if not counts.texts:
        raise HiNetError("there are no training texts; give at least one")
    if not len(counts):
        raise HiNetError(f"none of the {counts.texts:,} training texts has a word; is it the right column?")
    assert settings.min_df != "auto"
    rows = np.concatenate((counts.words.rows, counts.chars.rows))
    kept = rows >= settings.min_df
    if settings.max_features is not None and kept.sum() > settings.max_features:
        # A stable sort keeps the order of equals: words before characters, each by hash.
        frequent = np.argsort(-rows, kind="stable")[: settings.max_features]
        kept = np.zeros(len(rows), np.bool_)
        kept[frequent] = True
    if not kept.any():
        raise HiNetError(
            f"no feature is in at least {settings.min_df} of the {counts.texts:,} training texts; lower `min_df`, 1 "
            "keeps every feature"
        )
    words, bits = len(counts.words), settings.hash_bits
    return (
        _fit_lookup(counts.words, kept[:words], counts.texts, bits if settings.word_ngrams else None),
        _fit_lookup(counts.chars, kept[words:], counts.texts, bits if settings.char_ngrams else None),
    )


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """A fitted text vectoriser: the n-grams that are features, and their weights.

    A row holds the tf-idf of its words, scaled to length 1, and of its character n-grams, scaled to ``char_weight``;
    then the row is scaled to length 1. Texts are normalised (NFKC) and in lower case. Other n-grams are ignored.

    Features are numbered words first, then characters, each by the hash of the n-gram; so numbers depend neither on
    threads nor on chunks nor on the order of texts. Two n-grams with the same 64-bit hash count as one: among five
    million n-grams, the chance is one in a million.

    A fit takes 12 bytes per distinct n-gram of the texts, and with ``keep_names`` the normalised text;
    ``fit_transform`` also 16 bytes per n-gram of each row, and the rows. A fitted vocabulary takes 20 to 28 bytes
    per feature, and its names.

    Examples
    --------
    >>> features, rows = TextFeatures.fit_transform(
    ...     ["red apple", "green apple", "red"], TextSettings(char_ngrams=None, min_df=2)
    ... )
    >>> sorted(features.names(range(features.count)))
    ['apple', 'red']
    >>> rows.shape
    (3, 2)
    """

    settings: TextSettings  # "auto" is resolved
    texts: int  # number of training texts
    words: Vocabulary
    chars: Vocabulary

    def _vocabularies(self) -> tuple[tuple[str, Vocabulary], ...]:
        return ("words", self.words), ("chars", self.chars)

    @property
    def count(self) -> int:
        """The number of features."""
        return len(self.words) + len(self.chars)

    @classmethod
    def fit(cls, texts: Any, settings: TextSettings | None = None, threads: int | None = None) -> TextFeatures:
        """Fit the features to training texts."""
        return cls.fit_chunks([texts], settings, threads)

    @classmethod
    def fit_chunks(
        cls, chunks: Iterable[Any], settings: TextSettings | None = None, threads: int | None = None
    ) -> TextFeatures:
        """Fit the features to texts in chunks, with the same result as from all at once."""
        compile_from_now_on()
        threads = resolve_threads(threads)
        arrays, settings = resolve_auto(arrow_chunks(chunks), settings or TextSettings())
        counts = BoundedCounts(settings, threads, max_ngrams=math.inf)
        blocks: list[TextBlock] = []
        for array in arrays:
            hashed = counts.add(array)
            if settings.has_names:
                blocks += [part.block for part in hashed]
        return cls.from_counts(
            counts.total(), settings, blocks, lambda number: HashedBlock.of(blocks[number], settings), threads
        )

    @classmethod
    def fit_transform(
        cls, texts: Any, settings: TextSettings | None = None, threads: int | None = None
    ) -> tuple[TextFeatures, Any]:
        """Fit the features to training texts and return them with the rows, as `fit` and `transform` do."""
        return HashedTexts.of(texts, settings, threads).fit_transform(threads)

    @classmethod
    def from_counts(
        cls,
        counts: Counts,
        settings: TextSettings,
        blocks: Sequence[TextBlock] = (),
        hashed: Callable[[int], HashedBlock] | None = None,
        threads: int = 1,
    ) -> TextFeatures:
        """Return the features that settings select by counts.

        With ``hashed``, which returns the n-grams of a block by its number, they have names, which are looked up in
        ``blocks``.
        """
        settings = resolve_min_df(counts, settings)
        lookups = fit_lookups(counts, settings)
        if not settings.has_names or hashed is None:
            return cls(settings, counts.texts, *(Vocabulary(lookup, None) for lookup in lookups))
        starts = np.cumsum([0, *(len(block.text) for block in blocks)])
        located = [np.empty(len(lookup.idf), np.int64) for lookup in lookups]

        def locate_block(number: int) -> None:
            # Threads may write the same element: any occurrence of an n-gram has the same name.
            part = hashed(number)
            for grams, lookup, places in zip((part.words, part.chars), lookups, located, strict=True):
                locate(grams, lookup, starts[number], places)

        parallel_map(locate_block, range(len(blocks)), threads)
        words, chars = (
            Vocabulary(lookup, spell_names(blocks, places, chars, lookup.hashes))
            for lookup, places, chars in zip(lookups, located, (False, True), strict=True)
        )
        return cls(settings, counts.texts, words, chars)

    def transform(self, texts: Any, threads: int | None = None) -> Any:
        """Return the rows of texts as a CSR array of float32, with ascending feature numbers in each row.

        Feature numbers and row offsets are int32, unless the rows have more than 2**31 entries in total.
        """
        return self.transform_with_unknown(texts, threads)[0]

    def transform_with_unknown(self, texts: Any, threads: int | None = None) -> tuple[Any, Floats]:
        """Return the rows of texts, and the share of each text's word n-grams that are not features, (n,).

        It is 1 for a text without words. Without features of words, it is the share of the character n-grams.
        """
        threads = resolve_threads(threads)

        def work(block: pa.LargeStringArray) -> _Part:
            return self._weigh(HashedBlock.of(normalise(block), self.settings))

        return self._concat(parallel_map(work, in_blocks(as_arrow(texts), threads), threads))

    def _weigh(self, hashed: HashedBlock) -> _Part:
        words, chars, settings = self.words.lookup, self.chars.lookup, self.settings
        part: _Part = weigh_rows(hashed.words, words, hashed.chars, chars, settings.char_weight, settings.sublinear)
        return part

    def _concat(self, parts: Sequence[_Part]) -> tuple[Any, Floats]:
        lengths = [np.diff(part[0]) for part in parts]
        offsets: Ints = offsets_of(np.concatenate([np.empty(0, np.int64), *lengths]))
        indices = np.concatenate([np.empty(0, np.int32), *(part[1] for part in parts)])
        values, unknown = (np.concatenate([np.empty(0, np.float32), *(part[i] for part in parts)]) for i in (2, 3))
        if len(indices) <= np.iinfo(np.int32).max:
            offsets = offsets.astype(np.int32)  # else SciPy converts the feature numbers to int64
        rows = sp.csr_array((values, indices, offsets), shape=(len(offsets) - 1, self.count))
        rows.has_canonical_format = True  # saves SciPy a slow check
        return rows, unknown

    def names(self, features: ArrayLike) -> list[str]:
        """Return the n-grams of features by number; those of characters are in brackets, as ``[ app]``."""
        if self.words.names is None or self.chars.names is None:
            raise HiNetError("the features have no names; fit with `keep_names=True` and without `hash_bits`")
        numbers = np.asarray(features, np.int64).ravel()
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.count:
            raise HiNetError(f"expected features from 0 to {self.count - 1:,}, got {numbers.min()} to {numbers.max()}")
        words = len(self.words)
        return [
            self.words.names[number] if number < words else f"[{self.chars.names[number - words]}]"
            for number in numbers.tolist()
        ]

    def describe(self) -> dict[str, Any]:
        """Return the state that is not in `to_arrays`, as a dict for JSON."""
        return {"settings": self.settings.to_dict(), "texts": self.texts}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that `from_arrays` needs, by name."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, vocabulary in self._vocabularies():
            arrays[f"{kind}.hashes"] = vocabulary.lookup.hashes
            arrays[f"{kind}.idf"] = vocabulary.lookup.idf
            if vocabulary.names is not None:
                arrays[f"{kind}.names"] = vocabulary.names.text
                arrays[f"{kind}.name_offsets"] = narrowest(vocabulary.names.offsets)
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], described: Mapping[str, Any]) -> TextFeatures:
        """Return the features from the results of `to_arrays` and `describe`."""
        settings = TextSettings.from_dict(described["settings"])
        for name in ("char_ngrams", "min_df"):
            if getattr(settings, name) == "auto":
                raise HiNetError(
                    f"{name} is 'auto' in the settings of saved text features, expected the value it was resolved to"
                )
        words, chars = (_vocabulary_from(arrays, kind, settings) for kind in ("words", "chars"))
        return cls(settings, described["texts"], words, chars)


@dataclass(frozen=True, eq=False)
class HashedTexts:
    """Texts with their n-grams hashed and counted, from which features are fitted without hashing them again.

    >>> texts = HashedTexts.of(["red apple", "green apple", "red"], TextSettings(char_ngrams=None, min_df=2))
    >>> texts.fit_transform()[0].count
    2
    >>> texts.followed_by(["green"]).fit_transform()[0].count
    3
    """

    settings: TextSettings  # "auto" is resolved
    blocks: tuple[HashedBlock, ...]
    counts: Counts

    @classmethod
    def of(cls, texts: Any, settings: TextSettings | None = None, threads: int | None = None) -> HashedTexts:
        """Hash the n-grams of texts; these texts alone resolve "auto"."""
        compile_from_now_on()
        (array,), settings = resolve_auto(arrow_chunks([texts]), settings or TextSettings())
        blocks, counts = hash_and_count(array, settings, resolve_threads(threads))
        return cls(settings, tuple(blocks), counts)

    def followed_by(self, texts: Any, threads: int | None = None) -> HashedTexts:
        """Return the same texts with others after them; only the others are hashed.

        ``min_df="auto"`` depends on the number of the first texts.
        """
        blocks, counts = hash_and_count(as_arrow(texts), self.settings, resolve_threads(threads))
        settings = self.settings
        if settings.min_df == "auto" and self.counts.texts <= MAX_TEXTS_FOR_ALL:
            settings = replace(settings, min_df=1)
        return replace(self, settings=settings, blocks=(*self.blocks, *blocks), counts=self.counts + counts)

    def fit_transform(self, threads: int | None = None) -> tuple[TextFeatures, Any]:
        """Fit the features to the texts and return them with the rows."""
        threads = resolve_threads(threads)
        blocks = [part.block for part in self.blocks]
        features = TextFeatures.from_counts(self.counts, self.settings, blocks, self.blocks.__getitem__, threads)
        return features, features._concat(parallel_map(features._weigh, self.blocks, threads))[0]


def _vocabulary_from(arrays: Mapping[str, NDArray[Any]], kind: str, settings: TextSettings) -> Vocabulary:
    """Return a vocabulary from its arrays; a hashed one has unused features and no hashes."""
    bits = settings.hash_bits if f"{kind}.idf" in arrays and arrays[f"{kind}.idf"].size else None
    hashed = bits is not None
    schema: dict[str, ArraySpec] = {
        f"{kind}.hashes": ArraySpec(("hashes" if hashed else "features",), "u", rising=True),
        f"{kind}.idf": floats("features", low=0 if hashed else MIN_IDF, high=MAX_IDF),
    }
    if settings.has_names:
        schema[f"{kind}.name_offsets"] = offsets("features", "bytes")
        schema[f"{kind}.names"] = ArraySpec(("bytes",), "u", 0, 255)
    check_arrays(arrays, schema, {} if bits is None else {"hashes": 0, "features": 1 << bits})
    # These are copies: a mapped file may change, and kernels check no bounds.
    hashes, idf = np.array(arrays[f"{kind}.hashes"], np.uint64), np.array(arrays[f"{kind}.idf"], np.float32)
    if hashed and ((idf > 0) & (idf < MIN_IDF)).any():
        raise HiNetError(f"the array '{kind}.idf' has numbers between 0 and {MIN_IDF:g}; features weigh more, or 0")
    lookup = bucket_lookup(idf) if hashed else vocabulary_lookup(hashes, idf)
    if not settings.has_names:
        return Vocabulary(lookup, None)
    names = Names(np.array(arrays[f"{kind}.names"], np.uint8), np.array(arrays[f"{kind}.name_offsets"], np.int64))
    if not names.are_text():
        raise HiNetError(f"the array '{kind}.names' holds bytes that are not UTF-8")
    return Vocabulary(lookup, names)


def known_shares(features: TextFeatures, texts: Any) -> NDArray[np.float64]:
    """Return the share of known words of each text, (n,); NaN for a text without words.

    >>> features = TextFeatures.fit(["rye bread", "white bread"], TextSettings(char_ngrams=None))
    >>> known_shares(features, ["dark bread", "Bread", ""]).tolist()
    [0.5, 1.0, nan]
    """
    size = _term_size(features)
    if size is None:
        return _split_shares(features, as_arrow(texts).to_pylist())
    shares = [np.zeros(0)]
    for block in in_blocks(as_arrow(texts), 1):
        grams = extract_ngrams(normalise(block), False, (size, size))
        rows = len(grams.offsets) - 1
        row = np.repeat(np.arange(rows), np.diff(grams.offsets))
        known_words = np.bincount(row, grams.times * _are_features(features, grams.hashes), rows)
        with np.errstate(invalid="ignore"):
            shares.append(known_words / np.bincount(row, grams.times, rows))
    return np.concatenate(shares)


def unknown_words(features: TextFeatures, text: str) -> tuple[str, ...]:
    """Return the distinct unknown words of a text, in their order.

    >>> features = TextFeatures.fit(["rye bread", "white bread"], TextSettings(char_ngrams=None))
    >>> unknown_words(features, "Dark bread, dark ale")
    ('dark', 'ale')
    """
    size = _term_size(features)
    block = normalise(as_arrow([text]).chunk(0))
    plain = block.text.tobytes().decode()
    if size is None:
        terms = plain.split()
    else:
        words = word_pattern(plain).findall(plain)
        terms = [join_words(words[start : start + size]) for start in range(len(words) - size + 1)]
    distinct = list(dict.fromkeys(terms))
    shares = known_shares(features, distinct).tolist()
    return tuple(term for term, share in zip(distinct, shares, strict=True) if share == 0)


def _term_size(features: TextFeatures) -> int | None:
    """Return the shortest length of word n-grams, or None if words are not features."""
    sizes = features.settings.word_ngrams
    return None if sizes is None or not len(features.words) else sizes[0]


def _are_features(features: TextFeatures, hashes: Hashes) -> Bools:
    """Return which word n-grams are features."""
    lookup = features.words.lookup
    if not len(lookup.runs):
        return np.asarray(lookup.idf[(hashes >> lookup.shift).astype(np.int64)] > 0)
    index = np.minimum(np.searchsorted(lookup.hashes, hashes), len(lookup.hashes) - 1)
    return np.asarray(lookup.hashes[index] == hashes)


def _split_shares(features: TextFeatures, texts: list[str]) -> NDArray[np.float64]:
    """Return the share of the space-separated words of each text that have a feature."""
    words = [text.split() for text in texts]
    row = np.repeat(np.arange(len(texts)), [len(split) for split in words])
    has_feature = np.diff(features.transform([word for split in words for word in split]).indptr) > 0
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(row, has_feature, len(texts)) / np.bincount(row, minlength=len(texts)))
