"""Data sets of the comparison: raw texts with one label each, the same for every peer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from engine_data import Labels, Texts, _sets, icd_texts, long_texts, naics_texts, wikitaxa_texts, wordnet_texts
from measure import DATA

from hinet import Taxonomy
from hinet.data.datasets import read_lshtc

HELD_OUT = 10  # one in this many training rows chooses settings, if a set has no validation rows


@dataclass(frozen=True)
class Rows:
    """Texts with their right labels."""

    texts: list[str]
    labels: list[tuple[str, ...]]

    def __len__(self) -> int:
        return len(self.texts)

    def single(self) -> tuple[list[str], list[str]]:
        """Return texts and labels for training; a text is repeated for each of its labels."""
        pairs = [(text, label) for text, labels in zip(self.texts, self.labels, strict=True) for label in labels]
        return [text for text, _ in pairs], [label for _, label in pairs]

    def take(self, chosen: Sequence[int]) -> Rows:
        """Return some of the rows."""
        return Rows([self.texts[row] for row in chosen], [self.labels[row] for row in chosen])

    def joined(self, other: Rows) -> Rows:
        """Return these rows followed by others."""
        return Rows(self.texts + other.texts, self.labels + other.labels)


@dataclass(frozen=True)
class PeerData:
    """A data set: settings are chosen on ``valid``; the final model trains on ``train`` and ``valid``."""

    name: str
    taxonomy: Taxonomy
    train: Rows
    valid: Rows
    test: Rows
    single_words: bool = False  # texts are unordered words whose characters mean nothing

    @classmethod
    def of(cls, name: str, texts: Texts) -> PeerData:
        """Return a data set of texts; without validation rows, every tenth training row becomes one."""
        train, test, single = _rows(texts.train), _rows(texts.test), name in SINGLE_WORDS
        if texts.valid[1]:
            return cls(name, texts.taxonomy, train, _rows(texts.valid), test, single)
        held = np.arange(len(train)) % HELD_OUT == 0
        rest, valid = (train.take(np.flatnonzero(chosen).tolist()) for chosen in (~held, held))
        return cls(name, texts.taxonomy, rest, valid, test, single)

    def path(self, label: str) -> tuple[str, ...]:
        """Return the ids from below the root to a label; in a DAG, through the first parent of each node."""
        path = [label]
        while parents := self.taxonomy.parents(path[-1]):
            path.append(parents[0])
        has_root = self.taxonomy.position(path[-1]) == self.taxonomy.root and len(path) > 1
        return tuple(path[::-1][has_root:])


def lshtc_texts(folder: str = "lshtc1_dryrun/task2", test: str = "validation.txt") -> Texts:
    """Return an LSHTC set, by default the dry run, as texts with one word per occurrence of a feature."""
    read = read_lshtc(DATA / folder, test)
    parts = []
    for part in (read.train, read.test):
        counts = part.features.tocsr()
        texts = []
        for row in range(counts.shape[0]):
            entries = slice(counts.indptr[row], counts.indptr[row + 1])
            pairs = zip(counts.indices[entries].tolist(), counts.data[entries].tolist(), strict=True)
            texts.append(" ".join(word for feature, times in pairs for word in [f"w{feature}"] * int(times)))
        parts.append((texts, _sets(part.labels)))
    return Texts(read.taxonomy, *parts)


LOADERS: dict[str, Callable[[], Texts]] = {
    "icd": icd_texts,  # built in; the others are below HINET_DATA
    "naics": naics_texts,
    "lshtc": lshtc_texts,
    "dmoz": partial(lshtc_texts, "lshtc2012_dmoz", "test.txt"),
    "wordnet": wordnet_texts,
    "wikitaxa": wikitaxa_texts,
    "long": long_texts,
}
SINGLE_WORDS = ("lshtc", "dmoz")
TITLES = {
    "icd": "ICD-10-CM",
    "naics": "NAICS",
    "lshtc": "LSHTC",
    "dmoz": "DMOZ",
    "wordnet": "WordNet nouns",
    "wikitaxa": "wikitaxa",
    "long": "long texts",
}


def load(name: str) -> PeerData:
    """Return a data set by name."""
    return PeerData.of(name, LOADERS[name]())


def _rows(part: tuple[Sequence[str], Labels]) -> Rows:
    return Rows(list(part[0]), [tuple(labels) for labels in part[1]])
