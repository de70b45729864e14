"""Data sets for measuring the fused engine: CSR rows, labels and layers, made by our own text kernels."""

from __future__ import annotations

import csv
import lzma
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from measure import DATA

from hinet import Layers, Taxonomy, Traces, load_icd10cm
from hinet.data.datasets import read_lshtc, tfidf_counts
from hinet.data.text import TextFeatures
from hinet.engine import ValidationRows

LONG_LABELS, LONG_LEVEL = 20, 5  # long texts: the orders of organisms with the most rows
LONG_WORDS, MIN_WORDS = 150, 50  # joined texts reach LONG_WORDS; texts below MIN_WORDS are left out
LONG_ROWS = {"train": 11_000, "valid": 1_500, "test": 3_000}
HELD_OUT = 10  # LSHTC reports on its validation rows, so every tenth training row is held out instead

Labels = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Part:
    """Feature rows with their labels."""

    rows: Any
    labels: Labels

    def take(self, chosen: Any) -> Part:
        """Return the rows that a mask selects."""
        return Part(self.rows[chosen], [self.labels[row] for row in np.flatnonzero(chosen).tolist()])


@dataclass(frozen=True)
class EngineData:
    """A data set: training rows, test rows, and validation rows if there are any."""

    layers: Layers
    train: Part
    test: Part
    valid: Part | None = None

    def traces(self, part: Part) -> Traces:
        """Return the labels of a part as traces."""
        return Traces.encode_sets(self.layers, part.labels)

    @property
    def validation(self) -> ValidationRows | None:
        """The validation rows in the form that training expects."""
        return None if self.valid is None else ValidationRows(self.valid.rows, self.traces(self.valid))

    def path(self, label: str) -> tuple[str, ...]:
        """Return the path of a label of a tree, without the root; LSHTC's node 1, above nearly all, is a root."""
        taxonomy = self.layers.taxonomy
        path = [label]
        while parents := taxonomy.parents(path[-1]):
            path.append(parents[0])
        return tuple(path[::-1][path[-1] == "1" :])


@dataclass(frozen=True)
class Texts:
    """Raw texts and labels, as a user has them."""

    taxonomy: Taxonomy
    train: tuple[Sequence[str], Labels]
    test: tuple[Sequence[str], Labels]
    valid: tuple[Sequence[str], Labels] = ((), ())

    def vectorised(self) -> tuple[EngineData, TextFeatures]:
        """Convert texts to rows, with the features of the training texts."""
        features, rows = TextFeatures.fit_transform(self.train[0])
        parts = [Part(features.transform(texts), labels) for texts, labels in (self.test, self.valid) if labels]
        return _data(self.taxonomy, Part(rows, self.train[1]), *parts), features


def naics_texts() -> Texts:
    rows = _table(DATA / "naics2022_index" / "naics2022_index.tsv")
    parts = {
        name: ([row["text"] for row in rows if (row["split"] == "train") == (name == "train")],
               [(row["code"],) for row in rows if (row["split"] == "train") == (name == "train")])
        for name in ("train", "test")
    }  # fmt: skip
    return Texts(Taxonomy.from_file(DATA / "naics2022_index" / "hierarchy.tsv"), **parts)


def icd_texts() -> Texts:
    icd = load_icd10cm()
    train, test, valid = (
        (part.texts, [(label,) for label in part.labels]) for part in (icd.train, icd.test, icd.valid)
    )
    return Texts(icd.taxonomy, train, test, valid)


def wikitaxa_texts() -> Texts:
    folder = DATA / "wikitaxa"
    parts = {}
    for name in ("train", "test", "valid"):
        rows = _table(folder / f"{name}.tsv.xz")
        parts[name] = [row["text"] for row in rows], [(row["label"],) for row in rows]
    return Texts(Taxonomy.from_file(folder / "hierarchy.tsv"), **parts)


def long_texts() -> Texts:
    """Return texts of about 190 words with one of 20 labels: joined Wikipedia leads of the same order of organisms."""
    taxa = wikitaxa_texts()
    paths = {
        label: _path(taxa.taxonomy, label)[:LONG_LEVEL] for part in (taxa.train, taxa.test) for (label,) in part[1]
    }
    parts = {name: _long_rows(getattr(taxa, name), paths) for name in LONG_ROWS}
    common = Counter(path for _, path in parts["train"]).most_common(LONG_LABELS)
    kept = {path: path[-1] for path, _ in common}
    chosen = {}
    for name, count in LONG_ROWS.items():
        rows = [(text, (kept[path],)) for text, path in parts[name] if path in kept]
        order = np.sort(np.random.default_rng(0).permutation(len(rows))[:count]).tolist()
        chosen[name] = [rows[row][0] for row in order], [rows[row][1] for row in order]
    return Texts(Taxonomy.from_paths(list(kept), steps="ids"), **chosen)


def _long_rows(
    part: tuple[Sequence[str], Labels], paths: dict[str, tuple[str, ...]]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return texts of the same path joined until they are long, with that path; short texts are left out."""
    found: list[tuple[str, tuple[str, ...]]] = []
    begun: dict[tuple[str, ...], str] = {}
    for text, (label,) in zip(*part, strict=True):
        path = paths.get(label, ())
        if len(path) == LONG_LEVEL and len(text.split()) >= MIN_WORDS:
            begun[path] = " ".join([*([begun[path]] if path in begun else ()), text])
            if len(begun[path].split()) >= LONG_WORDS:
                found.append((begun.pop(path), path))
    return found


def _path(taxonomy: Taxonomy, label: str) -> tuple[str, ...]:
    """Return the path of a label of a tree, without the root."""
    path = [label]
    while parents := taxonomy.parents(path[-1]):
        path.append(parents[0])
    return tuple(path[-2::-1])


def wordnet_texts() -> Texts:
    folder = DATA / "wordnet_nouns"
    parts = {}
    for name in ("train", "test"):
        rows = _table(folder / f"{name}.tsv.xz")
        parts[name] = [row["text"] for row in rows], [tuple(row["labels"].split()) for row in rows]
    return Texts(Taxonomy.from_file(folder / "hierarchy.tsv"), **parts)


def lshtc(test: str = "validation.txt") -> EngineData:
    """Return LSHTC's dry run with ``test`` as test rows; validation rows are the file of that name or held out."""
    folder = DATA / "lshtc1_dryrun" / "task2"
    read = read_lshtc(folder, test)
    train_rows, test_rows = tfidf_counts(read.train.features, read.test.features)
    train, test_part = Part(train_rows, _sets(read.train.labels)), Part(test_rows, _sets(read.test.labels))
    if test == "validation.txt":
        held = np.arange(len(train.labels)) % HELD_OUT == 0
        return _data(read.taxonomy, train.take(~held), test_part, train.take(held))
    validation = read_lshtc(folder, "validation.txt")
    valid_rows = tfidf_counts(validation.train.features, validation.test.features)[1]
    return _data(read.taxonomy, train, test_part, Part(valid_rows, _sets(validation.test.labels)))


def joined(first: Part, second: Part) -> Part:
    """Return the rows of both parts."""
    return Part(sp.vstack([first.rows, second.rows], format="csr"), [*first.labels, *second.labels])


def _data(taxonomy: Taxonomy, train: Part, test: Part, valid: Part | None = None) -> EngineData:
    parts = [train, test] if valid is None else [train, test, valid]
    ends = {label for part in parts for labels in part.labels for label in labels}
    return EngineData(Layers.of(taxonomy, ends=sorted(ends)), train, test, valid)


def _sets(labels: Sequence[Any]) -> Labels:
    return [(label,) if isinstance(label, str) else tuple(label) for label in labels]


def _table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table, read without quoting."""
    with lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as stream:
        lines = (line.decode().rstrip("\r\n") for line in stream)
        return list(csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
