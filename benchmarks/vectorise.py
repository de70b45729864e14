"""Compare texts to TF-IDF rows with scikit-learn, on ICD-10-CM and, if available, on Wikipedia's lead paragraphs.

python benchmarks/vectorise.py    (HINET_DATA is the folder with wikitaxa/train.tsv.xz)
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from measure import DATA, Case, Stopwatch, answer_if_asked, run_alone, save
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer, TfidfVectorizer

from hinet import load_icd10cm
from hinet.data.text import TextFeatures, TextSettings

PARAGRAPHS = DATA / "wikitaxa" / "train.tsv.xz"
REPEATS = 3  # the fastest counts, because other work on the machine only adds time
HASH_BITS = 20

Texts = Sequence[str]
Run = Callable[[Texts], tuple[Any, Callable[[Texts], Any]]]  # fits, and returns the rows and a transformer


def icd() -> Texts:
    return load_icd10cm().train.texts


def paragraphs() -> Texts:
    with lzma.open(PARAGRAPHS, "rt", encoding="utf-8", newline="\n") as lines:
        next(lines)
        return [line.rstrip("\n").split("\t")[2] for line in lines]


def ours(settings: TextSettings) -> Run:
    def run(texts: Texts) -> tuple[Any, Callable[[Texts], Any]]:
        features, rows = TextFeatures.fit_transform(texts, settings)
        return rows, features.transform

    run(["compile everything first", "compile everything first", "é"])
    return run


def tfidf(*options: dict[str, Any]) -> Run:
    def run(texts: Texts) -> tuple[Any, Callable[[Texts], Any]]:
        parts = [TfidfVectorizer(sublinear_tf=True, min_df=2, dtype=np.float32, **each) for each in options]
        rows = sp.hstack([part.fit_transform(texts) for part in parts], format="csr")
        return rows, lambda more: sp.hstack([part.transform(more) for part in parts], format="csr")

    return run


def hashing(**options: Any) -> Run:
    def run(texts: Texts) -> tuple[Any, Callable[[Texts], Any]]:
        counts = HashingVectorizer(
            n_features=1 << HASH_BITS, alternate_sign=False, norm=None, dtype=np.float32, **options
        )
        weights = TfidfTransformer(sublinear_tf=True)
        return weights.fit_transform(counts.transform(texts)), lambda more: weights.transform(counts.transform(more))

    return run


WORDS = {"ngram_range": (1, 2), "token_pattern": r"(?u)\b\w+\b"}
CHARS = {"ngram_range": (3, 5), "analyzer": "char_wb"}
VECTORISERS: dict[str, dict[str, Callable[[], Run]]] = {
    "words": {
        "ours": lambda: ours(TextSettings(char_ngrams=None)),
        "TfidfVectorizer": lambda: tfidf(WORDS),
        "ours, hashed": lambda: ours(TextSettings(char_ngrams=None, hash_bits=HASH_BITS)),
        "HashingVectorizer": lambda: hashing(**WORDS),
    },
    "words and characters": {
        "ours": lambda: ours(TextSettings(char_ngrams=(3, 5))),
        "TfidfVectorizer": lambda: tfidf(WORDS, CHARS),
    },
}
AGAINST = {"ours": "TfidfVectorizer", "ours, hashed": "HashingVectorizer"}


def measured(texts: Texts, run: Run) -> dict[str, Any]:
    fits, transforms = [], []
    for _ in range(REPEATS):
        watch = Stopwatch()
        rows, transform = run(texts)
        fits.append(watch.seconds)
        watch = Stopwatch()
        transform(texts)
        transforms.append(watch.seconds)
    return {
        "texts": rows.shape[0],
        "features": rows.shape[1],
        "entries": rows.nnz,
        "fit_transform_seconds": min(fits),
        "transform_seconds": min(transforms),
    }


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for data, load, kinds in (
        ("ICD-10-CM", icd, ("words", "words and characters")),
        ("Wikipedia", paragraphs, ("words",) if PARAGRAPHS.exists() else ()),
    ):
        for kind in kinds:
            for name, make in VECTORISERS[kind].items():
                found[f"{data}, {kind}: {name}"] = lambda load=load, make=make: measured(load(), make())  # type: ignore[misc]
    return found


def main() -> None:
    answer_if_asked(cases())
    results = {case: run_alone(__file__, case) for case in cases()}
    for case, row in results.items():
        where, _, name = case.rpartition(": ")
        if name in AGAINST:
            theirs = results[f"{where}: {AGAINST[name]}"]
            for step in ("fit_transform", "transform"):
                row[f"{step}_times_faster"] = round(theirs[f"{step}_seconds"] / row[f"{step}_seconds"], 1)
        print(f"{case:50} " + "  ".join(f"{label} {value:,}" for label, value in row.items()))
    save("vectorise", results)


if __name__ == "__main__":
    main()
