"""Measure texts in many scripts: accuracy on names from CLDR next to LinearSVC on n-grams of words and characters.

    python benchmarks/scripts.py [method ...]

A row is the name of a place, a city, a currency, a language, a script or a unit, from Babel's CLDR data. Its label is
the kind, and below it the part of the world, or the quantity of a unit: ``place > Africa``, ``unit > length``. Half of
the rows are for training; figures are means over seeds, which shuffle the rows. ``fr, typed`` are the names of a
language in which the test rows, but not the training rows, have lost their accents, as people type them. ``LinearSVC,
short`` has character n-grams of 1 to 5 characters instead of 3 to 5. Results: ``benchmarks/results/scripts.json``.
"""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from babel import Locale
from babel.core import get_global
from measure import Case, Stopwatch, run_cases
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.pipeline import make_pipeline, make_union
from sklearn.svm import LinearSVC

from hinet import HiNetClassifier

LANGUAGES = ("zh", "ja", "ko", "th", "km", "my", "hi", "ta", "ar", "he", "ru", "el", "fr", "it", "pl", "vi")
ACCENTED = ("fr", "it", "pl", "vi", "el")
WORLD = {
    "Africa": "Africa", "America": "America", "Asia": "Asia", "Europe": "Europe", "Australia": "Pacific",
    "Pacific": "Pacific",
}  # fmt: skip
MIN_ROWS = 6  # labels with fewer names are left out
SEEDS = (0, 1, 2)

Rows = tuple[list[str], list[str]]  # texts and labels


def part_of_world(territory: str) -> str | None:
    """Return the part of the world of a territory, or None if its time zones are in several."""
    parts = {WORLD.get(zone.partition("/")[0]) for zone in get_global("territory_zones").get(territory, [])}
    return parts.pop() if len(parts) == 1 else None


def names(language: str) -> list[tuple[str, str]]:
    """Return names in a language with their labels; a name of two things has the label of the first."""
    locale = Locale.parse(language)
    rows = [(name, f"place > {part_of_world(code)}") for code, name in locale.territories.items()]
    rows += [
        (zone_names["city"], f"city > {WORLD.get(zone.partition('/')[0])}")
        for zone, zone_names in locale._data["time_zones"].items()
        if "city" in zone_names
    ]
    rows += [(name, f"currency > {part_of_world(code[:2])}") for code, name in locale.currencies.items()]
    rows += [(name, "language") for name in locale.languages.values()]
    rows += [(name, "script") for name in locale.scripts.values()]
    rows += [
        (unit_names["long"], f"unit > {unit.partition('-')[0]}")
        for unit, unit_names in locale._data["unit_display_names"].items()
        if unit_names.get("long")
    ]
    labels = {name: label for name, label in reversed(rows) if not label.endswith("None")}
    counts = Counter(labels.values())
    return sorted((name, label) for name, label in labels.items() if counts[label] >= MIN_ROWS)


def split(language: str, seed: int) -> tuple[Rows, Rows]:
    """Return training and test rows of a language."""
    rows = names(language)
    random.Random(seed).shuffle(rows)
    half = len(rows) // 2
    train, test = (([name for name, _ in part], [label for _, label in part]) for part in (rows[:half], rows[half:]))
    return train, test


def typed(text: str) -> str:
    """Return a text without accents."""
    decomposed = unicodedata.normalize("NFD", text.replace("\u0142", "l").replace("\u0111", "d"))
    return "".join(char for char in decomposed if unicodedata.category(char) != "Mn")


def svm(shortest: int, seed: int) -> Any:
    """Return LinearSVC on n-grams of words and characters."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(shortest, 5), sublinear_tf=True)
    return make_pipeline(make_union(words, characters), LinearSVC(random_state=seed))


METHODS: dict[str, Callable[[int], Any]] = {
    "hinet": lambda seed: HiNetClassifier(vectors=None, random_state=seed),
    "LinearSVC": partial(svm, 3),
    "LinearSVC, short": partial(svm, 1),
}


def measured(method: str) -> dict[str, Any]:
    """Return the accuracy of a method for each language."""
    found: dict[str, list[float]] = {}
    watch = Stopwatch()
    for language in LANGUAGES:
        for seed in SEEDS:
            (texts, labels), (test_texts, truth) = split(language, seed)
            model = METHODS[method](seed).fit(texts, labels)
            asked = {language: test_texts}
            if language in ACCENTED:
                asked[f"{language}, typed"] = [typed(text) for text in test_texts]
            for name, questions in asked.items():
                right = np.array(list(model.predict(questions))) == np.array(truth)
                found.setdefault(name, []).append(float(right.mean()))
    accuracy = {name: round(float(np.mean(values)), 4) for name, values in found.items()}
    return {"accuracy": accuracy, "processor_seconds": watch.processor_seconds}


CASES: dict[str, Case] = {method: partial(measured, method) for method in METHODS}

if __name__ == "__main__":
    run_cases(str(Path(__file__)), "scripts", CASES)
