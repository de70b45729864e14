"""Sublinear tf-idf of texts and term counts, as CSR rows of unit length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hinet.errors import HiNetError

WORD_NGRAMS = (1, 2)


def tfidf_texts(train: Sequence[str], *others: Sequence[str]) -> list[Any]:
    """Return tf-idf of words and pairs of words of the training texts and of others, fitted on the training texts."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # slow to import

    vectoriser = TfidfVectorizer(
        ngram_range=WORD_NGRAMS, sublinear_tf=True, dtype=np.float32, token_pattern=r"(?u)\b\w+\b"
    )
    try:
        rows = vectoriser.fit_transform(train)
    except ValueError:  # the only one raised for a list of texts
        raise HiNetError(f"none of the {len(train):,} training texts has a word; is it the right column?") from None
    return [rows.tocsr(), *(vectoriser.transform(texts).tocsr() for texts in others)]


def tfidf_counts(train: Any, *others: Any) -> list[Any]:
    """Return tf-idf of rows of term counts, fitted on the training rows."""
    from sklearn.feature_extraction.text import TfidfTransformer

    weights = TfidfTransformer(sublinear_tf=True)
    return [weights.fit_transform(train).tocsr(), *(weights.transform(rows).tocsr() for rows in others)]
