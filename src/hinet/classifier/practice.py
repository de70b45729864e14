"""Calibration without rows: on texts made of titles, with words left out and other words added.

Titles themselves are training rows, which a model answers with far more confidence than texts of users.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hinet.classifier.calibration import calibrate_fitted, held_out_rows
from hinet.classifier.fitted import Fitted
from hinet.classifier.labels import Truth
from hinet.classifier.titles import TitleRows
from hinet.data.text.characters import join_words, word_pattern
from hinet.evaluation.risk import CERTAINTY

MAX_TITLES = 1_000  # maximum number of titles that texts are made of
MIN_TEXTS = 400  # few titles are used several times
KEPT_SHARE = 0.5  # probability to keep a word
MAX_ADDED = 2  # maximum number of words that are added to a text


def calibrated_on_titles(fitted: Fitted, titles: TitleRows, seed: int) -> Fitted:
    """Return a classifier with probabilities scaled by its answers to texts made of titles, if that improves them."""
    nodes, first = np.unique(titles.nodes, return_index=True)
    is_label = np.isin(nodes, fitted.codec.label_nodes)
    nodes, first = nodes[is_label], first[is_label]  # the first text of a node is its title, if it has one
    chosen = np.random.default_rng(seed).permutation(len(nodes))[:MAX_TITLES]
    chosen = np.tile(chosen, -(-MIN_TEXTS // len(chosen)))
    texts = practice_texts([titles.texts[row] for row in first[chosen].tolist()], seed)
    truth = Truth(fitted.codec.taxonomy, np.arange(len(chosen) + 1), nodes[chosen], np.ones(len(chosen), bool))
    held = held_out_rows(fitted, texts, truth, seed)
    return calibrate_fitted(
        fitted, held.rows, held.truth, None, CERTAINTY, temperature=1.0, seed=seed, foreign=held.foreign
    )[0]


def practice_texts(titles: Sequence[str], seed: int) -> list[str]:
    """Return each title with about half of its words, and up to two other words.

    An added word is, with equal probability, a word of any title, or a new word: the first half of one word and the
    second half of another.

    >>> practice_texts(["rye bread", "white bread", "red wine"], seed=2)
    ['rye bread whiite', 'bread rye', 'red']
    """
    rng = np.random.default_rng(seed)
    split = [word_pattern(title).findall(title.lower()) for title in titles]
    pool = [word for words in split for word in words] or [""]

    def draw() -> str:
        word: str = pool[int(rng.integers(len(pool)))]
        return word

    def added() -> str:
        word = draw()
        if rng.integers(2):
            return word
        other = draw()
        return word[: (len(word) + 1) // 2] + other[len(other) // 2 :]

    texts = []
    for words in split:
        kept = rng.random(len(words)) < KEPT_SHARE
        if len(words) and not kept.any():
            kept[rng.integers(len(words))] = True
        text = [word for word, is_kept in zip(words, kept.tolist(), strict=True) if is_kept]
        for _ in range(int(rng.integers(MAX_ADDED + 1))):
            text.insert(int(rng.integers(len(text) + 1)), added())
        texts.append(join_words(text))
    return texts
