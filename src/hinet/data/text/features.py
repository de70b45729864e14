"""Texts -> CSR rows of weighted n-grams, on all cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import ArrayLike, NDArray

from hinet.compiled import compile_from_now_on
from hinet.data.text.fitting import (
    Counts,
    HashedBlock,
    arrow_chunks,
    hashed_and_counted,
    learnt_lookups,
    named,
    resolved,
    side_by_side,
)
from hinet.data.text.hashing_kernels import Ints32, Ints64
from hinet.data.text.incoming import TextBlock, as_arrow, in_blocks, normalised
from hinet.data.text.settings import TextSettings
from hinet.data.text.vocabulary import Names, Vocabulary, bucket_lookup, vocabulary_lookup
from hinet.data.text.weighing_kernels import Floats, weigh_rows
from hinet.errors import HiNetError
from hinet.files.schema import ArraySpec, Schema, check_arrays, floats, offsets
from hinet.parameters import thread_count
from hinet.ragged import Ints, offsets_of

LEAST_IDF, MOST_IDF = 1.0, 100.0  # of a feature in all texts, and more than any number of texts can give

_Part: TypeAlias = tuple[Ints64, Ints32, Floats]  # row offsets, feature numbers and weights of a block


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """What was learnt from training texts: which n-grams are features, and what they weigh.

    A row holds the tf-idf of its words, brought to length 1, and of its character n-grams, brought to ``char_weight``;
    then the row is brought to length 1. Texts are normalised (NFKC) and in lower case. What is no feature is ignored.

    Features are numbered words first, then characters, each by the hash of the n-gram; so numbers depend neither on
    threads nor on chunks nor on the order of texts. Two n-grams that share all 64 bits of hash count as one: among five
    million n-grams, one chance in a million.

    A fit holds 12 bytes for each different n-gram of the texts, and with ``keep_names`` the normalised text;
    ``fit_transform`` also 16 bytes for each n-gram of each row, and the rows. A fitted vocabulary takes 20 to 28 bytes
    a feature, and its names.

    Examples
    --------
    >>> features, rows = TextFeatures.fit_transform(["red apple", "green apple", "red"], TextSettings(char_ngrams=None))
    >>> sorted(features.names(range(features.count)))
    ['apple', 'red']
    >>> rows.shape
    (3, 2)
    """

    settings: TextSettings  # with "auto" resolved
    texts: int  # how many it was fitted to
    words: Vocabulary
    chars: Vocabulary

    @property
    def count(self) -> int:
        """The number of features, which is the width of the rows."""
        return len(self.words) + len(self.chars)

    @classmethod
    def fit(cls, texts: Any, settings: TextSettings | None = None, threads: int | None = None) -> TextFeatures:
        """Learn the features of training texts."""
        return cls.fit_chunks([texts], settings, threads)

    @classmethod
    def fit_chunks(
        cls, chunks: Iterable[Any], settings: TextSettings | None = None, threads: int | None = None
    ) -> TextFeatures:
        """Learn the features of texts that come in chunks, exactly as from all at once."""
        compile_from_now_on()
        threads = thread_count(threads)
        arrays, settings = resolved(arrow_chunks(chunks), settings or TextSettings())
        counts: list[Counts] = []
        blocks: list[TextBlock] = []
        for array in arrays:
            hashed, more = hashed_and_counted(array, settings, threads)
            counts.append(more)
            # Only counts of like sizes are added on the way, so that none is copied for every chunk.
            while len(counts) > 1 and len(counts[-2]) <= 2 * len(counts[-1]):
                counts[-2:] = [counts[-2] + counts[-1]]
            if settings.has_names:
                blocks += [each.block for each in hashed]
        total = Counts.total(counts, threads)
        return cls._learnt(total, settings, blocks, lambda number: HashedBlock.of(blocks[number], settings), threads)

    @classmethod
    def fit_transform(
        cls, texts: Any, settings: TextSettings | None = None, threads: int | None = None
    ) -> tuple[TextFeatures, Any]:
        """Learn the features of training texts and return them with the rows, as `fit` and `transform` would."""
        compile_from_now_on()
        threads = thread_count(threads)
        (array,), settings = resolved(arrow_chunks([texts]), settings or TextSettings())
        hashed, counts = hashed_and_counted(array, settings, threads)
        features = cls._learnt(counts, settings, [each.block for each in hashed], hashed.__getitem__, threads)
        return features, features._joined(side_by_side(features._weighed, hashed, threads))

    @classmethod
    def _learnt(
        cls,
        counts: Counts,
        settings: TextSettings,
        blocks: Sequence[TextBlock],
        hashed: Callable[[int], HashedBlock],
        threads: int,
    ) -> TextFeatures:
        words, chars = learnt_lookups(counts, settings)
        if settings.has_names:
            return cls(settings, counts.texts, *named(words, chars, blocks, hashed, threads))
        return cls(settings, counts.texts, Vocabulary(words, None), Vocabulary(chars, None))

    def transform(self, texts: Any, threads: int | None = None) -> Any:
        """Return the rows of texts as a CSR array: float32, with feature numbers that rise within each row.

        Feature numbers and row offsets are int32, unless the rows have more than 2**31 features together.
        """
        threads = thread_count(threads)

        def work(block: pa.LargeStringArray) -> _Part:
            return self._weighed(HashedBlock.of(normalised(block), self.settings))

        return self._joined(side_by_side(work, in_blocks(as_arrow(texts), threads), threads))

    def _weighed(self, hashed: HashedBlock) -> _Part:
        settings = self.settings
        part: _Part = weigh_rows(
            hashed.words, self.words.lookup, hashed.chars, self.chars.lookup, settings.char_weight, settings.sublinear
        )
        return part

    def _joined(self, parts: Sequence[_Part]) -> Any:
        lengths = [np.diff(offsets) for offsets, _, _ in parts]
        offsets: Ints = offsets_of(np.concatenate([np.empty(0, np.int64), *lengths]))
        indices = np.concatenate([np.empty(0, np.int32), *(indices for _, indices, _ in parts)])
        values = np.concatenate([np.empty(0, np.float32), *(values for _, _, values in parts)])
        if len(indices) <= np.iinfo(np.int32).max:
            offsets = offsets.astype(np.int32)  # else SciPy widens the feature numbers to match
        rows = sp.csr_array((values, indices, offsets), shape=(len(offsets) - 1, self.count))
        rows.has_canonical_format = True  # known here, and slow for SciPy to find out
        return rows

    def names(self, features: ArrayLike) -> list[str]:
        """Return the n-grams of features by number; those of characters stand in brackets, as ``[ app]``."""
        if self.words.names is None or self.chars.names is None:
            raise HiNetError("the features have no names; fit with keep_names=True and without hash_bits")
        numbers = np.asarray(features, np.int64).ravel()
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.count:
            raise HiNetError(f"expected features from 0 to {self.count - 1:,}, got {numbers.min()} to {numbers.max()}")
        words = len(self.words)
        return [
            self.words.names[number] if number < words else f"[{self.chars.names[number - words]}]"
            for number in numbers.tolist()
        ]

    def describe(self) -> dict[str, Any]:
        """Return what is not in `to_arrays`, as plain values for JSON."""
        return {"settings": self.settings.described(), "texts": self.texts}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays that `from_arrays` needs, by name."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, vocabulary in (("words", self.words), ("chars", self.chars)):
            arrays[f"{kind}.hashes"] = vocabulary.lookup.hashes
            arrays[f"{kind}.idf"] = vocabulary.lookup.idf
            if vocabulary.names is not None:
                arrays[f"{kind}.names"] = vocabulary.names.text
                arrays[f"{kind}.name_offsets"] = vocabulary.names.offsets
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]], described: Mapping[str, Any]) -> TextFeatures:
        """Return the features that gave these arrays and this description."""
        settings = TextSettings.from_described(described["settings"])
        if settings.char_ngrams == "auto":
            raise HiNetError("char_ngrams is 'auto' in the settings of saved text features, expected what it became")
        words, chars = (_vocabulary_from(arrays, kind, settings) for kind in ("words", "chars"))
        return cls(settings, described["texts"], words, chars)


def _schema(kind: str, hashed: bool, named: bool) -> Schema:
    """Return what the arrays of a vocabulary must be; a hashed one has features that are not used, and no hashes."""
    schema: dict[str, ArraySpec] = {
        f"{kind}.hashes": ArraySpec(("hashes" if hashed else "features",), "u", rising=True),
        f"{kind}.idf": floats("features", low=0 if hashed else LEAST_IDF, high=MOST_IDF),
    }
    if named:
        schema |= {
            f"{kind}.name_offsets": offsets("features", "bytes"),
            f"{kind}.names": ArraySpec(("bytes",), "u", 0, 255),
        }
    return schema


def _vocabulary_from(arrays: Mapping[str, NDArray[Any]], kind: str, settings: TextSettings) -> Vocabulary:
    def part(name: str, dtype: type[np.generic]) -> NDArray[Any]:
        return np.array(arrays[f"{kind}.{name}"], dtype)  # a copy: a mapped file may change, and kernels go by these

    bits = settings.hash_bits if f"{kind}.idf" in arrays and arrays[f"{kind}.idf"].size else None
    hashed = bits is not None
    sizes = {} if bits is None else {"hashes": 0, "features": 1 << bits}
    check_arrays(arrays, _schema(kind, hashed, settings.has_names), sizes)
    hashes, idf = part("hashes", np.uint64), part("idf", np.float32)
    if hashed and ((idf > 0) & (idf < LEAST_IDF)).any():
        raise HiNetError(
            f"the array '{kind}.idf' has numbers between 0 and {LEAST_IDF:g}; features weigh more, or nothing"
        )
    lookup = bucket_lookup(idf) if hashed else vocabulary_lookup(hashes, idf)
    if not settings.has_names:
        return Vocabulary(lookup, None)
    names = Names(part("names", np.uint8), part("name_offsets", np.int64))
    if not names.are_text():
        raise HiNetError(f"the array '{kind}.names' holds bytes that are no text in UTF-8")
    return Vocabulary(lookup, names)
