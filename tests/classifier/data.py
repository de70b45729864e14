"""Small data that classifiers learn at once: texts of words that name their label, and a taxonomy of foods."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hinet import HiNetClassifier, Taxonomy

WORDS = {"bread": "rye wheat loaf crust", "milk": "whole skimmed cow cream", "toy": "car train doll puzzle"}
EDGES = [("all", "food"), ("food", "bread"), ("food", "milk"), ("all", "toy")]
PATHS = {"bread": ("food", "bread"), "milk": ("food", "milk"), "toy": ("toy",)}


def taxonomy() -> Taxonomy:
    return Taxonomy.from_edges(EDGES)


def texts(rows: int = 60, seed: int = 0) -> tuple[list[str], list[str]]:
    """Return texts and labels; a text has two words of its label and one of any."""
    random = np.random.default_rng(seed)
    every = " ".join(WORDS.values()).split()
    labels = random.choice(list(WORDS), rows).tolist()
    found = [" ".join([*random.choice(WORDS[label].split(), 2), random.choice(every)]) for label in labels]
    return found, labels


def numbers(rows: int = 90, seed: int = 0) -> tuple[NDArray[np.float64], list[str]]:
    """Return dense rows around a point for each label."""
    random = np.random.default_rng(seed)
    labels = random.choice(list(WORDS), rows).tolist()
    places = {label: random.normal(size=4) * 4 for label in WORDS}
    return np.stack([places[label] + random.normal(size=4) for label in labels]), labels


def small(**settings: object) -> HiNetClassifier:
    """Return a classifier that trains in a moment."""
    usual: dict[str, object] = {"width": 16, "members": 1, "epochs": 8, "n_jobs": 1}
    return HiNetClassifier(**{**usual, **settings})  # type: ignore[arg-type]
