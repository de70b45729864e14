"""Text features of streams, which are fitted in two passes: n-grams are counted in one, and named in the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.data.text.features import (
    Counts,
    HashedBlock,
    Names,
    RowCounts,
    TextFeatures,
    TextSettings,
    Vocabulary,
    resolve_min_df,
    spell_names,
)
from hinet.data.text.ngram_kernels import locate
from hinet.data.text.text_input import as_arrow, in_blocks, normalise, parallel_map
from hinet.parameters import resolve_threads
from hinet.ragged import gather, offsets_of


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
