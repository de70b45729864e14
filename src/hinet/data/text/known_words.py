"""Known and unknown words of texts.

A word is known if it is a feature. If the shortest word n-grams have several words, such an n-gram counts as a word.
If only characters are features, words are split at spaces, and a word is known if any of its character n-grams is a
feature. With hashed features, a word may seem known because another one has the same number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data.text.features import TextFeatures, extract_ngrams
from hinet.data.text.ngram_kernels import Hashes
from hinet.data.text.text_input import as_arrow, in_blocks, join_words, normalise, word_pattern
from hinet.ragged import Bools


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
        words = word_pattern(plain).findall(plain)
        terms = [join_words(words[start : start + size]) for start in range(len(words) - size + 1)]
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
