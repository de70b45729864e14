"""Features of texts that come in chunks and are not kept: counted in bounded memory, named when texts come again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.data.text.features import TextFeatures
from hinet.data.text.settings import TextSettings
from hinet.data.text.text_input import as_arrow, in_blocks, normalise
from hinet.data.text.vocabulary import (
    Counts,
    HashedBlock,
    Names,
    RowCounts,
    Vocabulary,
    fit_lookups,
    hash_and_count,
    parallel_map,
    resolve_min_df,
    spell_names,
)
from hinet.data.text.weighing_kernels import locate
from hinet.parameters import resolve_threads
from hinet.ragged import gather, offsets_of

MOST_COUNTED = 1 << 24  # n-grams that are counted at a time, 12 bytes each; then those in the fewest texts are dropped


class BoundedCounts:
    """Counts the texts of each n-gram, exactly as long as there are not nearly ``most`` different ones.

    If there are, those in the fewest texts are dropped until half as many are left. One that comes again is
    counted anew, so its count may be too low by what the dropped ones had, ``lost`` at most.
    """

    def __init__(self, settings: TextSettings, threads: int | None, most: int = MOST_COUNTED) -> None:
        self._settings, self._threads, self._most = settings, resolve_threads(threads), most
        self._counts: list[Counts] = []
        self.lost = 0

    def add(self, texts: pa.ChunkedArray) -> None:
        """Count the n-grams of more texts."""
        _, more = hash_and_count(texts, self._settings, self._threads)
        self._counts.append(more)
        # Only counts of similar sizes are added, so that none is copied for every chunk.
        while len(self._counts) > 1 and len(self._counts[-2]) <= 2 * len(self._counts[-1]):
            self._counts[-2:] = [self._counts[-2] + self._counts[-1]]
        if sum(map(len, self._counts)) > self._most:
            self._prune()

    def total(self) -> Counts:
        """Return all counts."""
        return Counts.total(self._counts, 1)

    def _prune(self) -> None:
        total = self.total()
        if len(total) > 3 * self._most // 4:  # else parts of the counts had the same n-grams
            rows = np.concatenate((total.words.rows, total.chars.rows))
            least = int(np.partition(rows, len(rows) - self._most // 2)[len(rows) - self._most // 2])
            self.lost += least
            total = Counts(total.texts, _above(total.words, least), _above(total.chars, least))
        self._counts = [total]


def without(counts: Counts, less: Counts) -> Counts:
    """Return counts of texts without those of some of these texts."""
    return Counts(counts.texts - less.texts, _minus(counts.words, less.words), _minus(counts.chars, less.chars))


def features_from(counts: Counts, settings: TextSettings, most: int) -> TextFeatures:
    """Return features by their counts as :meth:`TextFeatures.fit` does, without names yet, at most ``most``."""
    chosen = resolve_min_df(counts, replace(settings, keep_names=False))
    if chosen.hash_bits is None:
        assert chosen.min_df != "auto"
        found = int((counts.words.rows >= chosen.min_df).sum() + (counts.chars.rows >= chosen.min_df).sum())
        if found > min(most, chosen.max_features or found):
            chosen = replace(chosen, max_features=min(most, chosen.max_features or most))
    words, chars = fit_lookups(counts, chosen)
    return TextFeatures(chosen, counts.texts, Vocabulary(words, None), Vocabulary(chars, None))


@dataclass(frozen=True, eq=False)
class NamingFeatures(TextFeatures):
    """Features without names that find them in the texts that they transform."""

    _found: dict[str, list[tuple[NDArray[np.int64], Names]]] = field(default_factory=lambda: {"words": [], "chars": []})
    _seen: dict[str, NDArray[np.bool_]] = field(default_factory=dict)

    @classmethod
    def of(cls, features: TextFeatures) -> NamingFeatures:
        """Return the same features, to be named."""
        seen = {"words": np.zeros(len(features.words), bool), "chars": np.zeros(len(features.chars), bool)}
        return cls(features.settings, features.texts, features.words, features.chars, _seen=seen)

    def transform_with_unknown(self, texts: Any, threads: int | None = None) -> tuple[Any, NDArray[np.float32]]:
        """Return the rows of texts with their shares of unknown n-grams, and look for names of features in them."""
        threads = resolve_threads(threads)

        def work(block: pa.LargeStringArray) -> tuple[Any, HashedBlock]:
            hashed = HashedBlock.of(normalise(block), self.settings)
            return self._weigh(hashed), hashed

        done = parallel_map(work, in_blocks(as_arrow(texts), threads), threads)
        for _, hashed in done:
            self._look(hashed)
        return self._concat([part for part, _ in done])

    def _look(self, hashed: HashedBlock) -> None:
        for kind, vocabulary in (("words", self.words), ("chars", self.chars)):
            seen = self._seen[kind]
            if seen.all():
                continue
            starts = np.full(len(vocabulary), -1, np.int64)
            locate(getattr(hashed, kind), vocabulary.lookup, 0, starts)
            new = np.flatnonzero((starts >= 0) & ~seen)
            if len(new):
                names = spell_names([hashed.block], starts[new], kind == "chars", vocabulary.lookup.hashes[new])
                self._found[kind].append((new, names))
                seen[new] = True

    def names_found(self) -> dict[str, NDArray[Any]]:
        """Return the names of all features as arrays; features that no text had are called nothing."""
        arrays: dict[str, NDArray[Any]] = {}
        for kind, vocabulary in (("words", self.words), ("chars", self.chars)):
            parts = self._found[kind]
            number = np.concatenate([np.zeros(0, np.int64), *(new for new, _ in parts)])
            text = np.concatenate([np.zeros(0, np.uint8), *(names.text for _, names in parts)])
            lengths = np.concatenate([np.zeros(0, np.int64), *(np.diff(names.offsets) for _, names in parts)])
            at = np.full(len(vocabulary), len(number), np.int64)  # after the last one: an empty name
            at[number] = np.arange(len(number))
            flat, sizes = gather(text, np.append(offsets_of(lengths), len(text)), at)
            arrays[f"{kind}.names"], arrays[f"{kind}.name_offsets"] = flat, offsets_of(sizes)
        return arrays


def named(features: TextFeatures, arrays: Mapping[str, NDArray[Any]]) -> TextFeatures:
    """Return features with the names that were found."""
    words, chars = (
        Vocabulary(
            vocabulary.lookup, Names(np.array(arrays[f"{kind}.names"]), np.array(arrays[f"{kind}.name_offsets"]))
        )
        for kind, vocabulary in (("words", features.words), ("chars", features.chars))
    )
    return TextFeatures(replace(features.settings, keep_names=True), features.texts, words, chars)


def _above(counts: RowCounts, least: int) -> RowCounts:
    kept = counts.rows > least
    return RowCounts(counts.hashes[kept], counts.rows[kept])


def _minus(counts: RowCounts, less: RowCounts) -> RowCounts:
    if not len(counts) or not len(less):
        return counts
    at = np.minimum(np.searchsorted(counts.hashes, less.hashes), len(counts) - 1)
    known = counts.hashes[at] == less.hashes
    rows = counts.rows.copy()
    rows[at[known]] -= less.rows[known]
    return RowCounts(counts.hashes[rows > 0], rows[rows > 0])
