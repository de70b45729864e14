"""Words that a model knows, against a set of the names of its features."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet.data.text import TextFeatures, TextSettings, known_shares, unknown_words

TRAINING = ["Rye bread, rye rolls", "white BREAD rolls", "Straße und rolls", "straße bread"]
some_texts = st.lists(
    st.lists(st.sampled_from(["rye", "Bread", "rolls", "STRASSE", "straße", "und", "x", "éé", ",", " "])).map(" ".join),
    max_size=6,
)


@given(texts=some_texts, min_df=st.integers(1, 2))
def test_a_word_is_known_if_it_is_a_feature(texts: list[str], min_df: int) -> None:
    features = TextFeatures.fit(TRAINING, TextSettings(char_ngrams=None, min_df=min_df))
    known = set(features.names(range(features.count)))
    words = [re.findall(r"\w+", text.lower()) for text in texts]
    expected = [np.mean([word in known for word in found]) if found else np.nan for found in words]
    np.testing.assert_allclose(known_shares(features, texts), expected)
    for text, found in zip(texts, words, strict=True):
        assert unknown_words(features, text) == tuple(dict.fromkeys(word for word in found if word not in known))


def test_words_that_are_features_by_hash_by_pairs_or_by_characters() -> None:
    hashed = TextFeatures.fit(TRAINING, TextSettings(char_ngrams=None, hash_bits=20, min_df=2))
    assert known_shares(hashed, ["rolls bread", "rye crumbs"]).tolist() == [1, 0]  # rye is in one row alone
    pairs = TextFeatures.fit(TRAINING, TextSettings(word_ngrams=(2, 3), char_ngrams=None, min_df=1))
    assert unknown_words(pairs, "Rye bread, bread rolls, rolls bread") == ("bread bread", "rolls rolls", "rolls bread")
    assert known_shares(pairs, ["rye", "rye bread"]).tolist() == pytest.approx([np.nan, 1], nan_ok=True)
    characters = TextFeatures.fit(TRAINING, TextSettings(word_ngrams=None, char_ngrams=(3, 3), min_df=2))
    assert unknown_words(characters, "breads, Xyz rolls xyz") == ("xyz",)
    shares = known_shares(characters, ["breads", "xyz bread", " "])
    np.testing.assert_allclose(shares, [1, 0.5, np.nan])
    assert unknown_words(characters, "") == unknown_words(hashed, "") == ()
    assert len(known_shares(characters, [])) == len(known_shares(hashed, [])) == 0
