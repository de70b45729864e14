"""Known words of a text, and texts in which words are replaced."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hinet.data.text import TextFeatures, TextSettings, known_shares, unknown_words
from hinet.data.text.text_input import replace_words

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


TEXTS = [f"common common rare{number}" for number in range(200)]


def test_any_number_of_words_is_replaced_rare_ones_first() -> None:
    foreign = replace_words(TEXTS, seed=0)
    changed = np.array(
        [[a != b for a, b in zip(x.split(), y.split(), strict=True)] for x, y in zip(TEXTS, foreign, strict=True)]
    )
    assert changed[:, 2].mean() > 1.5 * changed[:, :2].mean() > 0.3  # the rare word; a common one may be drawn again
    assert 0.15 < (~changed.any(1)).mean() < 0.45
    assert foreign == replace_words(TEXTS, seed=0) != replace_words(TEXTS, seed=1)


def test_some_replacements_are_words_of_the_texts_and_others_are_new() -> None:
    words = {word for text in TEXTS for word in text.split()}
    written = [word for text in replace_words(TEXTS, seed=0) for word in text.split()]
    new = [word for word in written if word not in words]
    assert 40 < len(new) < 200
    assert all(word.startswith(("com", "rar")) for word in new)


def test_characters_outside_words_stay() -> None:
    assert replace_words(["", " , ", "İx!"], seed=0)[:2] == ["", " , "]


@pytest.mark.parametrize(
    ("settings", "unknown"),
    [
        (TextSettings(char_ngrams=None), [0.0, 0.4, 1.0, 1.0]),  # 2 of 3 words and 2 pairs
        (TextSettings(word_ngrams=(1, 1), char_ngrams=None), [0.0, 1 / 3, 1.0, 1.0]),
        (TextSettings(word_ngrams=(1, 1), char_ngrams=None, hash_bits=20), [0.0, 1 / 3, 1.0, 1.0]),
        (TextSettings(word_ngrams=None, char_ngrams=(3, 3)), [0.0, 4 / 12, 1.0, 1.0]),
    ],
)
def test_transform_returns_the_share_of_unknown_ngrams(settings: TextSettings, unknown: list[float]) -> None:
    features = TextFeatures.fit(["rye bread", "rye bread"], settings)
    rows, found = features.transform_with_unknown(["Rye bread", "rye bread dark", "zzz", "!"])
    np.testing.assert_allclose(found, unknown, rtol=1e-6)
    np.testing.assert_array_equal(
        rows.toarray(), features.transform(["Rye bread", "rye bread dark", "zzz", "!"]).toarray()
    )
