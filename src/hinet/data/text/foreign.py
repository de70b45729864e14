"""Texts made foreign: other words in the place of some of their own, as strangers to the training texts write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

_WORD = re.compile(r"\w+")


def made_foreign(texts: Sequence[str], seed: int) -> list[str]:
    """Return each text with a random number of its words replaced, from none to all, the rarest first.

    People who do not know the training texts say the same without their technical terms, in everyday words. So a
    replacement tells nothing about the text. It is, with equal chance, a word of these texts, or a new word: the first
    half of one of these words and the second half of another, so that a model knows only fragments of it. Words are
    drawn with equal chance by how often they occur, or all alike.

    >>> made_foreign(["rye bread", "white bread", "red wine"], seed=2)
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
