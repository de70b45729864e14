"""Word and character n-grams by scikit-learn, for peers without their own features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from peers.data import PeerData

WORDS, SINGLE_WORDS, CHARACTERS = (1, 2), (1, 1), (3, 5)
MIN_DF = 2


class NGrams:
    """TF-IDF of words, word pairs and character n-grams within words, like hinet's features for short texts."""

    modules = ("scipy.sparse", "sklearn.feature_extraction.text", "sklearn.preprocessing")

    def __init__(self, data: PeerData) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        least = 1 if data.single_words else MIN_DF
        shared = {"sublinear_tf": True, "min_df": least, "dtype": np.float32}
        words = SINGLE_WORDS if data.single_words else WORDS
        self._parts = [TfidfVectorizer(ngram_range=words, token_pattern=r"\b\w+\b", **shared)]
        if not data.single_words:
            self._parts.append(TfidfVectorizer(analyzer="char_wb", ngram_range=CHARACTERS, **shared))

    def fit_transform(self, texts: Sequence[str]) -> Any:
        """Return the rows of training texts, as CSR with unit length."""
        return _stacked([part.fit_transform(texts) for part in self._parts])

    def transform(self, texts: Sequence[str]) -> Any:
        """Return the rows of other texts."""
        return _stacked([part.transform(texts) for part in self._parts])


def _stacked(parts: list[Any]) -> Any:
    import scipy.sparse as sp
    from sklearn.preprocessing import normalize

    return normalize(sp.hstack(parts, format="csr"), copy=False)
