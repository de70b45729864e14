"""Texts made foreign, and the share of a text that is unknown."""

from __future__ import annotations

import numpy as np
import pytest

from hinet.data.text import TextFeatures, TextSettings
from hinet.data.text.foreign import made_foreign

TEXTS = [f"common common rare{number}" for number in range(200)]


def test_rare_words_are_replaced_first_and_any_number_of_them() -> None:
    foreign = made_foreign(TEXTS, seed=0)
    changed = np.array(
        [[a != b for a, b in zip(x.split(), y.split(), strict=True)] for x, y in zip(TEXTS, foreign, strict=True)]
    )
    assert changed[:, 2].mean() > 1.5 * changed[:, :2].mean() > 0.3  # the rare word; a common one may be drawn again
    assert 0.15 < (~changed.any(1)).mean() < 0.45
    assert foreign == made_foreign(TEXTS, seed=0) != made_foreign(TEXTS, seed=1)


def test_some_replacements_are_words_of_the_texts_and_others_are_new() -> None:
    words = {word for text in TEXTS for word in text.split()}
    written = [word for text in made_foreign(TEXTS, seed=0) for word in text.split()]
    new = [word for word in written if word not in words]
    assert 40 < len(new) < 200
    assert all(word.startswith(("com", "rar")) for word in new)


def test_what_is_not_a_word_stays() -> None:
    assert made_foreign(["", " , ", "İx!"], seed=0)[:2] == ["", " , "]


@pytest.mark.parametrize(
    ("settings", "unknown"),
    [
        (TextSettings(char_ngrams=None), [0.0, 0.4, 1.0, 1.0]),  # of rye, bread, dark and two pairs, two are unknown
        (TextSettings(word_ngrams=(1, 1), char_ngrams=None), [0.0, 1 / 3, 1.0, 1.0]),
        (TextSettings(word_ngrams=(1, 1), char_ngrams=None, hash_bits=20), [0.0, 1 / 3, 1.0, 1.0]),
        (TextSettings(word_ngrams=None, char_ngrams=(3, 3)), [0.0, 4 / 12, 1.0, 1.0]),
    ],
)
def test_the_share_of_unknown_ngrams_is_found_with_the_rows(settings: TextSettings, unknown: list[float]) -> None:
    features = TextFeatures.fit(["rye bread", "rye bread"], settings)
    rows, found = features.transform_with_unknown(["Rye bread", "rye bread dark", "zzz", "!"])
    np.testing.assert_allclose(found, unknown, rtol=1e-6)
    np.testing.assert_array_equal(
        rows.toarray(), features.transform(["Rye bread", "rye bread dark", "zzz", "!"]).toarray()
    )
