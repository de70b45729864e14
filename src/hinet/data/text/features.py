"""Texts as CSR rows of weighted n-grams, computed on all cores, also of streams; known words of a text.

A word is known if it is a feature. If the shortest word n-grams have several words, such an n-gram counts as a word.
If only characters are features, words are split at spaces, and a word is known if any of its character n-grams is a
feature. With hashed features, a word may seem known because another one has the same number.

Streamed texts are counted in bounded memory in a first pass, and their n-grams named in a second one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from hinet.compiled import compile_from_now_on
from hinet.data.text.characters import join_words, word_pattern
from hinet.data.text.ngram_kernels import Floats, Hashes, Ints32, Ints64, locate, weigh_rows
from hinet.data.text.text_input import TextBlock, as_arrow, in_blocks, normalise
from hinet.data.text.vocabulary import (
    MAX_TEXTS_FOR_ALL,
    BoundedCounts,
    Counts,
    HashedBlock,
    Names,
    RowCounts,
    TextSettings,
    Vocabulary,
    arrow_chunks,
    bucket_lookup,
    extract_ngrams,
    fit_lookups,
    hash_and_count,
    name_features,
    parallel_map,
    resolve_auto,
    resolve_min_df,
    spell_names,
    vocabulary_lookup,
)
from hinet.errors import HiNetError
from hinet.files import narrowest
from hinet.files.schema import ArraySpec, Schema, check_arrays, floats, offsets
from hinet.parameters import resolve_threads
from hinet.ragged import Bools, Ints, gather, offsets_of

MIN_IDF, MAX_IDF = 1.0, 100.0  # the weight of a feature in all texts; more than any number of texts can give

# Row offsets, feature numbers and weights of a block, and the share of unknown n-grams of each row.
_Part: TypeAlias = tuple[Ints64, Ints32, Floats, Floats]


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
        words, chars = fit_lookups(counts, settings)
        if settings.has_names and hashed is not None:
            return cls(settings, counts.texts, *name_features(words, chars, blocks, hashed, threads))
        return cls(settings, counts.texts, Vocabulary(words, None), Vocabulary(chars, None))

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

    def transform_hashed(self, blocks: Sequence[HashedBlock], threads: int) -> Any:
        """Return the rows of texts that are hashed already, as `transform` does."""
        return self._concat(parallel_map(self._weigh, blocks, threads))[0]

    def _weigh(self, hashed: HashedBlock) -> _Part:
        settings = self.settings
        part: _Part = weigh_rows(
            hashed.words, self.words.lookup, hashed.chars, self.chars.lookup, settings.char_weight, settings.sublinear
        )
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
        return features, features.transform_hashed(self.blocks, threads)


def _schema(kind: str, hashed: bool, has_names: bool) -> Schema:
    """Return the schema of the arrays of a vocabulary; a hashed one has unused features and no hashes."""
    schema: dict[str, ArraySpec] = {
        f"{kind}.hashes": ArraySpec(("hashes" if hashed else "features",), "u", rising=True),
        f"{kind}.idf": floats("features", low=0 if hashed else MIN_IDF, high=MAX_IDF),
    }
    if has_names:
        schema |= {
            f"{kind}.name_offsets": offsets("features", "bytes"),
            f"{kind}.names": ArraySpec(("bytes",), "u", 0, 255),
        }
    return schema


def _vocabulary_from(arrays: Mapping[str, NDArray[Any]], kind: str, settings: TextSettings) -> Vocabulary:
    def part(name: str, dtype: type[np.generic]) -> NDArray[Any]:
        # A copy: a mapped file may change, and kernels check no bounds.
        return np.array(arrays[f"{kind}.{name}"], dtype)

    bits = settings.hash_bits if f"{kind}.idf" in arrays and arrays[f"{kind}.idf"].size else None
    hashed = bits is not None
    sizes = {} if bits is None else {"hashes": 0, "features": 1 << bits}
    check_arrays(arrays, _schema(kind, hashed, settings.has_names), sizes)
    hashes, idf = part("hashes", np.uint64), part("idf", np.float32)
    if hashed and ((idf > 0) & (idf < MIN_IDF)).any():
        raise HiNetError(f"the array '{kind}.idf' has numbers between 0 and {MIN_IDF:g}; features weigh more, or 0")
    lookup = bucket_lookup(idf) if hashed else vocabulary_lookup(hashes, idf)
    if not settings.has_names:
        return Vocabulary(lookup, None)
    names = Names(part("names", np.uint8), part("name_offsets", np.int64))
    if not names.are_text():
        raise HiNetError(f"the array '{kind}.names' holds bytes that are not UTF-8")
    return Vocabulary(lookup, names)


def known_shares(features: TextFeatures, texts: Any) -> NDArray[np.float64]:
    """Return the share of known words of each text, (n,); NaN for a text without words.

    >>> from hinet.data.text import TextSettings
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

    >>> from hinet.data.text import TextSettings
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


def replace_words(texts: Sequence[str], seed: int) -> list[str]:
    """Return each text with a random number of its words replaced, from none to all, the rarest first.

    This imitates texts of people who do not know the training texts, and use everyday words instead of technical terms.
    A replacement carries no information about the text. It is, with equal probability, a word of these texts, or a new
    word: the first half of one word and the second half of another, so that a model knows only fragments of it. Words
    are drawn with equal probability by their frequency, or uniformly.

    >>> replace_words(["rye bread", "white bread", "red wine"], seed=2)
    ['ryead bread', 'breead breed', 'red bread']
    """
    rng = np.random.default_rng(seed)
    words = [[word.lower() for word in word_pattern(text).findall(text)] for text in texts]
    frequency = Counter(word for own in words for word in {*own})
    pools: list[list[str]] = [[word for own in words for word in own], sorted(frequency)]

    def draw() -> str:
        pool = pools[int(rng.integers(2))]
        return pool[int(rng.integers(len(pool)))]

    def replacement() -> str:
        first = draw()
        if rng.integers(2):
            return first
        second = draw()
        return first[: (len(first) + 1) // 2] + second[len(second) // 2 :]

    def rewritten(text: str, own: list[str]) -> str:
        rarest_first = np.lexsort((rng.random(len(own)), np.array([frequency[word] for word in own])))
        replaced = {*rarest_first[: int(rng.integers(len(own) + 1))].tolist()}
        numbers = iter(range(len(own)))
        return word_pattern(text).sub(lambda word: replacement() if next(numbers) in replaced else word[0], text)

    return [rewritten(text, own) for text, own in zip(texts, words, strict=True)]


def without(counts: Counts, part: Counts) -> Counts:
    """Return the counts of texts without those of a part of them."""
    return Counts(counts.texts - part.texts, _minus(counts.words, part.words), _minus(counts.chars, part.chars))


def features_from(counts: Counts, settings: TextSettings, max_features: int) -> TextFeatures:
    """Return features by their counts as :meth:`TextFeatures.fit` does, without names yet."""
    settings = resolve_min_df(counts, replace(settings, keep_names=False))
    if settings.hash_bits is None:
        assert settings.min_df != "auto"
        features = sum(int((part.rows >= settings.min_df).sum()) for part in (counts.words, counts.chars))
        if features > min(max_features, settings.max_features or features):
            settings = replace(settings, max_features=min(max_features, settings.max_features or max_features))
    return TextFeatures.from_counts(counts, settings)


@dataclass(frozen=True, eq=False)
class NamingFeatures(TextFeatures):
    """Features without names that collect them from the texts that they transform."""

    _names: dict[str, list[tuple[NDArray[np.int64], Names]]] = field(default_factory=lambda: {"words": [], "chars": []})
    _is_named: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def of(cls, features: TextFeatures) -> NamingFeatures:
        """Return the same features, to be named."""
        is_named = {"words": np.zeros(len(features.words), bool), "chars": np.zeros(len(features.chars), bool)}
        return cls(features.settings, features.texts, features.words, features.chars, _is_named=is_named)

    def transform_with_unknown(self, texts: Any, threads: int | None = None) -> tuple[Any, NDArray[np.float32]]:
        """Return the rows of texts with their shares of unknown n-grams, and collect names of features."""
        threads = resolve_threads(threads)

        def work(block: pa.LargeStringArray) -> tuple[Any, HashedBlock]:
            hashed = HashedBlock.of(normalise(block), self.settings)
            return self._weigh(hashed), hashed

        done = parallel_map(work, in_blocks(as_arrow(texts), threads), threads)
        for _, hashed in done:
            self._collect_names(hashed)
        return self._concat([part for part, _ in done])

    def _collect_names(self, hashed: HashedBlock) -> None:
        for kind, vocabulary in self._vocabularies():
            is_named = self._is_named[kind]
            if is_named.all():
                continue
            starts = np.full(len(vocabulary), -1, np.int64)
            locate(getattr(hashed, kind), vocabulary.lookup, 0, starts)
            new = np.flatnonzero((starts >= 0) & ~is_named)
            if len(new):
                names = spell_names([hashed.block], starts[new], kind == "chars", vocabulary.lookup.hashes[new])
                self._names[kind].append((new, names))
                is_named[new] = True

    def names_found(self) -> dict[str, NDArray[Any]]:
        """Return the names of all features as arrays; a feature that was in no text has an empty name."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, vocabulary in self._vocabularies():
            parts = self._names[kind]
            features = np.concatenate([np.zeros(0, np.int64), *(new for new, _ in parts)])
            text = np.concatenate([np.zeros(0, np.uint8), *(names.text for _, names in parts)])
            lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(names.offsets) for _, names in parts)])
            index = np.full(len(vocabulary), len(features), np.int64)  # after the last name is an empty one
            index[features] = np.arange(len(features))
            flat, sizes = gather(text, np.append(offsets_of(lengths), len(text)), index)
            arrays[f"{kind}.names"], arrays[f"{kind}.name_offsets"] = flat, offsets_of(sizes)
        return arrays


def named(features: TextFeatures, arrays: Mapping[str, NDArray[Any]]) -> TextFeatures:
    """Return features with the names that :meth:`NamingFeatures.names_found` returned."""
    words, chars = (
        Vocabulary(
            vocabulary.lookup, Names(np.array(arrays[f"{kind}.names"]), np.array(arrays[f"{kind}.name_offsets"]))
        )
        for kind, vocabulary in features._vocabularies()
    )
    return TextFeatures(replace(features.settings, keep_names=True), features.texts, words, chars)


def _minus(counts: RowCounts, part: RowCounts) -> RowCounts:
    if not len(counts) or not len(part):
        return counts
    index = np.minimum(np.searchsorted(counts.hashes, part.hashes), len(counts) - 1)
    known = counts.hashes[index] == part.hashes
    rows = counts.rows.copy()
    rows[index[known]] -= part.rows[known]
    return RowCounts(counts.hashes[rows > 0], rows[rows > 0])
