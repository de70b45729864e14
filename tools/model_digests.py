"""Print a digest of models trained on several kinds of data, to show that a change keeps trained models bit for bit.

    HINET_DATA=folder python tools/model_digests.py [--small] [case ...]

A digest covers the arrays of the model, its predictions and their probabilities. ``--small`` trains on few rows.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import lzma
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hinet import HiNetClassifier, Taxonomy, load_icd10cm

DATA = Path(os.environ.get("HINET_DATA", "data"))
SMALL = 1_500  # training rows
ASKED = 500  # rows to predict

Rows = tuple[list[str], list[Any]]


def digest(classifier: HiNetClassifier, texts: Sequence[str]) -> str:
    """Return a digest of the arrays of a classifier and of its answers."""
    arrays, total = classifier.fitted_.predictor.model.to_arrays(), hashlib.blake2b(digest_size=8)
    for name in sorted(arrays):
        total.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    labels = classifier.predict_labels(texts, k=2)
    total.update(repr([str(sorted(map(str, answer)) if isinstance(answer, set | frozenset) else answer)
                       for answer in classifier.predict(texts)]).encode())  # fmt: skip
    total.update(repr([[(each.label, round(each.probability, 9)) for each in row] for row in labels]).encode())
    return total.hexdigest()


def naics(part: str = "train") -> Rows:
    """Return the index entries of NAICS with their codes."""
    with (DATA / "naics2022_index/naics2022_index.tsv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row["split"] == part]
    return [row["text"] for row in rows], [row["code"] for row in rows]


def naics_taxonomy() -> Taxonomy:
    """Return the codes of NAICS with their titles."""
    return Taxonomy.from_file(DATA / "naics2022_index/hierarchy.tsv")


def wordnet(part: str = "train") -> Rows:
    """Return glosses of nouns with their sets of labels."""
    text = lzma.decompress((DATA / f"wordnet_nouns/{part}.tsv.xz").read_bytes()).decode()
    rows = list(csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row["text"] for row in rows], [set(row["labels"].split()) for row in rows]


def wordnet_taxonomy() -> Taxonomy:
    """Return the DAG of nouns."""
    edges: list[tuple[str | None, str]] = []
    with (DATA / "wordnet_nouns/hierarchy.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            edges += [(parent, row["node"]) for parent in row["parents"].split()] or [(None, row["node"])]
    return Taxonomy.from_edges(edges)


def trained(taxonomy: Taxonomy, rows: Rows, few: int | None, **parameters: Any) -> str:
    """Return the digest of a classifier trained on rows, or on an even part of ``few`` of them."""
    texts, labels = rows
    chosen = np.linspace(0, len(texts) - 1, min(few or len(texts), len(texts))).astype(int).tolist()
    classifier = HiNetClassifier(taxonomy, **parameters)
    classifier.fit([texts[row] for row in chosen], [labels[row] for row in chosen])
    return digest(classifier, texts[:ASKED])


def streamed(taxonomy: Taxonomy, rows: Rows, few: int | None) -> str:
    """Return the digest of a classifier trained on a stream."""
    texts, labels = rows[0][:few], rows[1][:few]
    chunks = [(texts[first : first + 1_000], labels[first : first + 1_000]) for first in range(0, len(texts), 1_000)]
    return digest(HiNetClassifier(taxonomy, validation_fraction=0.1).fit_stream(chunks), texts[:ASKED])


def updated(taxonomy: Taxonomy, rows: Rows) -> str:
    """Return the digest of a classifier that is trained on half of some rows, then on the others."""
    texts, labels = rows[0][:SMALL], rows[1][:SMALL]
    classifier = HiNetClassifier(taxonomy, validation_fraction=0.1).fit(texts[::2], labels[::2])
    return digest(classifier.partial_fit(texts[1::2], labels[1::2]), texts[:ASKED])


def icd(few: int | None) -> str:
    """Return the digest of ICD-10-CM's own set."""
    data = load_icd10cm()
    return trained(data.taxonomy, (list(data.train.texts), list(data.train.labels)), few)


CASES: dict[str, Callable[[int | None], str]] = {
    "icd": icd,
    "naics": lambda few: trained(naics_taxonomy(), naics(), few),
    "naics, validation rows": lambda few: trained(naics_taxonomy(), naics(), few, validation_fraction=0.1),
    "naics, stream": lambda few: streamed(naics_taxonomy(), naics(), few),
    "naics, update": lambda few: updated(naics_taxonomy(), naics()),
    "dag": lambda few: trained(wordnet_taxonomy(), wordnet(), few or 8_000, multilabel=False),
    "sets": lambda few: trained(wordnet_taxonomy(), wordnet(), few or 8_000, validation_fraction=0.1),
}


def main() -> None:
    """Print the digest of each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("cases", nargs="*", default=list(CASES))
    given = parser.parse_args()
    for name in given.cases:
        print(f"{name:24} {CASES[name](SMALL if given.small else None)}", flush=True)


if __name__ == "__main__":
    main()
