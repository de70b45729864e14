"""Measure what a five-minute search gains over the defaults, on rows that it has not seen.

``python benchmarks/tune.py`` runs all cases, each in a fresh process; arguments select some. ``HINET_DATA`` is the
folder with the data sets; HINET_MINUTES and HINET_THREADS set the time and threads of a search. The search space was
chosen on held-out training rows of NAICS and LSHTC only.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from engine_data import Texts, icd_texts, joined, lshtc, naics_texts, wikitaxa_texts, wordnet_texts
from measure import Case, Stopwatch, run_cases

from hinet import HiNetClassifier, Taxonomy
from hinet.classifier.parameters import restored_settings
from hinet.tuning import tune
from hinet.tuning.space import text_of

MINUTES = float(os.environ.get("HINET_MINUTES", "5"))
THREADS = int(os.environ.get("HINET_THREADS", "-1"))
VALID_SHARE = 0.1
PART, SMALL_PART = 30_000, 8_000  # training rows of Wikipedia; test rows are a third of the first
LEVELS = 2  # levels kept of Wikipedia's seven


@dataclass(frozen=True)
class Rows:
    """A data set with one label per row; without validation rows, a share of the training rows is held out."""

    taxonomy: Taxonomy
    train: tuple[Any, Sequence[str]]
    test: tuple[Any, Sequence[str]]
    valid: tuple[Any, Sequence[str]] | None = None


def _of_texts(texts: Texts) -> Rows:
    """Return the rows with one label."""
    parts = []
    for rows, labels in (texts.train, texts.test, texts.valid):
        single = [(row, label[0]) for row, label in zip(rows, labels, strict=True) if len(label) == 1]
        parts.append(([row for row, _ in single], [label for _, label in single]))
    train, test, valid = parts
    return Rows(texts.taxonomy, train, test, valid if valid[1] else None)


def _lshtc() -> Rows:
    data = lshtc()
    assert data.valid is not None
    train = joined(data.train, data.valid)  # validation.txt provides the test rows
    labels = [[label[0] for label in part.labels] for part in (train, data.test)]
    return Rows(data.layers.taxonomy, (train.rows, labels[0]), (data.test.rows, labels[1]))


def _some(part: tuple[Any, Sequence[str]], count: int) -> tuple[Any, Sequence[str]]:
    chosen = np.sort(np.random.default_rng(0).permutation(len(part[1]))[:count]).tolist()
    return [part[0][row] for row in chosen], [part[1][row] for row in chosen]


def _wikipedia(*, top: bool, part: int = PART) -> Rows:
    """Return some rows of Wikipedia, with labels cut to the ``top`` levels if given."""
    rows = _of_texts(wikitaxa_texts())
    train, test = _some(rows.train, part), _some(rows.test, PART // 3)
    if not top:
        return Rows(rows.taxonomy, train, test)
    return Rows(
        rows.taxonomy, *((texts, [_cut(rows.taxonomy, label) for label in labels]) for texts, labels in (train, test))
    )


def _icd(part: int) -> Rows:
    """Return some training rows of ICD-10-CM, of which a share is held out, and its test rows."""
    rows = _of_texts(icd_texts())
    return Rows(rows.taxonomy, _some(rows.train, part), rows.test)


def _cut(taxonomy: Taxonomy, label: str) -> str:
    path = [label]
    while parents := taxonomy.parents(path[-1]):
        path.append(parents[0])
    return path[::-1][min(LEVELS, len(path) - 1)]


def _score(rows: Rows, parameters: dict[str, Any]) -> float:
    """Return the accuracy on test rows, in percent, of a classifier trained on all training rows."""
    fraction = VALID_SHARE if rows.valid is None else None
    classifier = HiNetClassifier(
        rows.taxonomy, n_jobs=THREADS, validation_fraction=fraction, **{"vectors": None, **parameters}
    )
    classifier.fit(*rows.train, valid=rows.valid)
    return round(100 * classifier.score(*rows.test), 2)


def compare(read: Callable[[], Rows]) -> dict[str, Any]:
    """Return the accuracy of the defaults and of the settings found, on held-out training rows and on test rows."""
    rows = read()
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        tuning = tune(
            HiNetClassifier(rows.taxonomy, n_jobs=THREADS, vectors=None),
            *rows.train,
            folder=folder,
            valid=rows.valid,
            valid_share=VALID_SHARE if rows.valid is None else None,
            minutes=MINUTES,
        )
    seconds, best = watch.seconds, tuning.best
    default = _score(rows, {})
    tuned = _score(rows, restored_settings(tuning.settings)) if best.changes else default
    return {
        "settings": text_of(best.changes),
        "default": default,
        "tuned": tuned,
        "gain": round(tuned - default, 2),
        "default_validation": round(100 * best.default_score, 2),
        "tuned_validation": round(100 * best.score, 2),
        "error_of_validation_gain": round(100 * best.error, 2),
        "splits": best.splits,
        "trials": len(tuning.trials),
        "minutes": MINUTES,
        "seconds": seconds,
        "threads": THREADS,
    }


SETS: dict[str, Callable[[], Rows]] = {
    "naics": lambda: _of_texts(naics_texts()),
    "lshtc": _lshtc,
    "icd": lambda: _of_texts(icd_texts()),
    "icd, 10,000 rows": partial(_icd, 10_000),
    "wikitaxa, two levels": partial(_wikipedia, top=True),
    "wikitaxa, 30,000 rows": partial(_wikipedia, top=False),
    "wikitaxa, 8,000 rows": partial(_wikipedia, top=False, part=SMALL_PART),
    "wordnet": lambda: _of_texts(wordnet_texts()),
}
CASES: dict[str, Case] = {name: partial(compare, read) for name, read in SETS.items()}

if __name__ == "__main__":
    run_cases(str(Path(__file__)), "tune", CASES)
