"""The vocabulary: counts of n-grams, selection of features, their weights and names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hinet.data.text.hashing_kernels import Bytes, Grams, Hashes, Ints32, Ints64
from hinet.data.text.settings import TextSettings
from hinet.data.text.spelling_kernels import spell
from hinet.data.text.text_input import TextBlock
from hinet.data.text.weighing_kernels import Floats, Lookup, count_runs, merge_counts, row_buckets
from hinet.ragged import Bools, freeze, offsets_of

HASH_BITS = 64


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


def empty_row_counts() -> RowCounts:
    """Return the counts of no rows."""
    return RowCounts(np.empty(0, np.uint64), np.empty(0, np.int32))


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
        most_rows = np.argsort(-rows, kind="stable")[: settings.max_features]
        kept = np.zeros(len(rows), np.bool_)
        kept[most_rows] = True
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
    bits = len(hashes).bit_length() + 1  # at least twice as many runs as features: most runs have at most one feature
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
