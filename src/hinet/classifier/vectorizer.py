"""``TextVectorizer``: n-grams of texts as a scikit-learn transformer, for pipelines with other estimators."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from hinet.classifier.inputs import TextInput, check_container, text_column
from hinet.data.text import TextFeatures, TextSettings
from hinet.errors import HiNetError
from hinet.parameters import THREADS

Sizes = tuple[int, int]


@dataclass(kw_only=True, eq=False, repr=False)
class TextVectorizer(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Converts texts to CSR rows of weighted n-grams, as :class:`HiNetClassifier` does.

    Parameters
    ----------
    word_ngrams : pair of int or None, default=(1, 2)
        Shortest and longest word n-gram; None for none.
    char_ngrams : pair of int, "auto" or None, default="auto"
        Shortest and longest character n-gram within words; None for none. ``"auto"`` is 3 to 5 for short texts, else
        none.
    char_weight : float, default=1.25
        Length of the character n-gram part of a row, where the words have length 1.
    min_df : int or "auto", default="auto"
        Minimum number of rows that contain a feature. ``"auto"`` is 1 for at most 3,000 texts, else 2.
    max_features : int, default=None
        Maximum number of features; those in the most rows are kept. None sets no limit.
    hash_bits : int, default=None
        Use ``2**hash_bits`` hashed features each for words and characters, instead of a vocabulary.
    sublinear : bool, default=True
        Whether a feature that occurs ``count`` times in a row has weight ``1 + log(count)``.
    keep_names : bool, default=True
        Whether features have names.
    n_jobs : int, default=None
        Threads. None and -1 mean one per core.

    Attributes
    ----------
    features_ : TextFeatures
        The fitted n-grams.

    Examples
    --------
    >>> vectorizer = TextVectorizer(char_ngrams=None, min_df=2)
    >>> vectorizer.fit_transform(["red apple", "green apple", "red"]).shape
    (3, 2)
    >>> sorted(vectorizer.get_feature_names_out())
    ['apple', 'red']
    """

    word_ngrams: Sizes | None = TextSettings.word_ngrams
    char_ngrams: Sizes | Literal["auto"] | None = TextSettings.char_ngrams
    char_weight: float = TextSettings.char_weight
    min_df: int | Literal["auto"] = TextSettings.min_df
    max_features: int | None = TextSettings.max_features
    hash_bits: int | None = TextSettings.hash_bits
    sublinear: bool = TextSettings.sublinear
    keep_names: bool = TextSettings.keep_names
    n_jobs: int | None = None

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the n-grams of texts: a list, an array, a column, or a frame with one column."""
        self.features_ = TextFeatures.fit(_texts(X), self._settings(), self._threads())
        return self

    def fit_transform(self, X: Any, y: Any = None) -> Any:
        """Learn the n-grams of texts and return their rows."""
        self.features_, rows = TextFeatures.fit_transform(_texts(X), self._settings(), self._threads())
        return rows

    def transform(self, X: Any) -> Any:
        """Return the rows of texts as a CSR array."""
        check_is_fitted(self)
        return self.features_.transform(_texts(X), self._threads())

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Return the n-grams of all features, those of characters in brackets; numbers if names are not kept."""
        check_is_fitted(self)
        return np.array(TextInput(self.features_).names(np.arange(self.features_.count)), object)

    def _settings(self) -> TextSettings:
        return TextSettings(**{field.name: getattr(self, field.name) for field in fields(TextSettings)})

    def _threads(self) -> int | None:
        threads: int | None = THREADS.validate("n_jobs", self.n_jobs)
        return threads

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether it was fitted."""
        return hasattr(self, "features_")

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: rows are texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags


def _texts(X: Any) -> Any:
    check_container(X)
    texts = text_column(X)
    if len(getattr(texts, "shape", (0,))) > 1:
        raise HiNetError(f"expected one column of text, got {texts.shape[1]}; name one, as in ColumnTransformer")
    return texts
