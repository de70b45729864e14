"""Texts as CSR rows of weighted n-grams, computed on all cores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from hinet.compiled import compile_from_now_on
from hinet.data.text.hashing_kernels import Ints32, Ints64
from hinet.data.text.settings import TextSettings
from hinet.data.text.text_input import TextBlock, as_arrow, in_blocks, normalise
from hinet.data.text.vocabulary import (
    BoundedCounts,
    Counts,
    HashedBlock,
    Names,
    Vocabulary,
    arrow_chunks,
    bucket_lookup,
    fit_lookups,
    hash_and_count,
    name_features,
    parallel_map,
    resolve_auto,
    resolve_min_df,
    vocabulary_lookup,
)
from hinet.data.text.weighing_kernels import Floats, weigh_rows
from hinet.errors import HiNetError
from hinet.files import narrowest
from hinet.files.schema import ArraySpec, Schema, check_arrays, floats, offsets
from hinet.parameters import resolve_threads
from hinet.ragged import Ints, offsets_of

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
        """Return the same texts with others after them; only the others are hashed."""
        blocks, counts = hash_and_count(as_arrow(texts), self.settings, resolve_threads(threads))
        return replace(self, blocks=(*self.blocks, *blocks), counts=self.counts + counts)

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
