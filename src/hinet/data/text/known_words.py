"""Known words of a text, and texts in which words are replaced as by people who do not know the training texts.

A word is known if it is a feature. If the shortest word n-grams have several words, such an n-gram counts as a word.
If only characters are features, words are split at spaces, and a word is known if any of its character n-grams is a
feature. With hashed features, a word may seem known because another one has the same number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data.text.features import TextFeatures
from hinet.data.text.hashing_kernels import Hashes
from hinet.data.text.text_input import as_arrow, in_blocks, normalise
from hinet.data.text.vocabulary import extract_ngrams
from hinet.ragged import Bools

_WORD = re.compile(r"\w+")


def known_shares(features: TextFeatures, texts: Any) -> NDArray[np.float64]:
    """Return the share of known words of each text, (n,); NaN for a text without words.

    >>> from hinet.data.text import TextSettings
    >>> features = TextFeatures.fit(["rye bread", "white bread"], TextSettings(char_ngrams=None))
    >>> known_shares(features, ["dark bread", "Bread", ""]).tolist()
    [0.5, 1.0, nan]
    """
    size = _term_size(features)
    if size is None:
        return _split_shares(features, as_arrow(texts).to_pylist())
    shares = [np.zeros(0)]
    for block in in_blocks(as_arrow(texts), 1):
        grams = extract_ngrams(normalise(block), False, (size, size))
        rows = len(grams.offsets) - 1
        row = np.repeat(np.arange(rows), np.diff(grams.offsets))
        known_words = np.bincount(row, grams.times * _are_features(features, grams.hashes), rows)
        with np.errstate(invalid="ignore"):
            shares.append(known_words / np.bincount(row, grams.times, rows))
    return np.concatenate(shares)


def unknown_words(features: TextFeatures, text: str) -> tuple[str, ...]:
    """Return the distinct unknown words of a text, in their order.

    >>> from hinet.data.text import TextSettings
    >>> features = TextFeatures.fit(["rye bread", "white bread"], TextSettings(char_ngrams=None))
    >>> unknown_words(features, "Dark bread, dark ale")
    ('dark', 'ale')
    """
    size = _term_size(features)
    block = normalise(as_arrow([text]).chunk(0))
    plain = block.text.tobytes().decode()
    if size is None:
        terms = plain.split()
    else:
        words = _WORD.findall(plain)
        terms = [" ".join(words[start : start + size]) for start in range(len(words) - size + 1)]
    distinct = list(dict.fromkeys(terms))
    shares = known_shares(features, distinct).tolist()
    return tuple(term for term, share in zip(distinct, shares, strict=True) if share == 0)


def _term_size(features: TextFeatures) -> int | None:
    """Return the shortest length of word n-grams, or None if words are not features."""
    sizes = features.settings.word_ngrams
    return None if sizes is None or not len(features.words) else sizes[0]


def _are_features(features: TextFeatures, hashes: Hashes) -> Bools:
    """Return which word n-grams are features."""
    lookup = features.words.lookup
    if not len(lookup.runs):
        return np.asarray(lookup.idf[(hashes >> lookup.shift).astype(np.int64)] > 0)
    index = np.minimum(np.searchsorted(lookup.hashes, hashes), len(lookup.hashes) - 1)
    return np.asarray(lookup.hashes[index] == hashes)


def _split_shares(features: TextFeatures, texts: list[str]) -> NDArray[np.float64]:
    """Return the share of the space-separated words of each text that have a feature."""
    words = [text.split() for text in texts]
    row = np.repeat(np.arange(len(texts)), [len(split) for split in words])
    has_feature = np.diff(features.transform([word for split in words for word in split]).indptr) > 0
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(row, has_feature, len(texts)) / np.bincount(row, minlength=len(texts)))


def replace_words(texts: Sequence[str], seed: int) -> list[str]:
    """Return each text with a random number of its words replaced, from none to all, the rarest first.

    This imitates texts of people who do not know the training texts, and use everyday words instead of technical terms.
    A replacement carries no information about the text. It is, with equal probability, a word of these texts, or a new
    word: the first half of one word and the second half of another, so that a model knows only fragments of it. Words
    are drawn with equal probability by their frequency, or uniformly.

    >>> replace_words(["rye bread", "white bread", "red wine"], seed=2)
    ['ryead bread', 'breead breed', 'red bread']
    """
    rng = np.random.default_rng(seed)
    words = [[word.lower() for word in _WORD.findall(text)] for text in texts]
    frequency = Counter(word for own in words for word in {*own})
    pools: list[list[str]] = [[word for own in words for word in own], sorted(frequency)]

    def draw() -> str:
        pool = pools[int(rng.integers(2))]
        return pool[int(rng.integers(len(pool)))]

    def replacement() -> str:
        first = draw()
        if rng.integers(2):
            return first
        second = draw()
        return first[: (len(first) + 1) // 2] + second[len(second) // 2 :]

    def rewritten(text: str, own: list[str]) -> str:
        rarest_first = np.lexsort((rng.random(len(own)), np.array([frequency[word] for word in own])))
        replaced = {*rarest_first[: int(rng.integers(len(own) + 1))].tolist()}
        numbers = iter(range(len(own)))
        return _WORD.sub(lambda word: replacement() if next(numbers) in replaced else word[0], text)

    return [rewritten(text, own) for text, own in zip(texts, words, strict=True)]
