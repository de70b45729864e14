"""Where words and parts of words stand in a text as its writer typed it, though a model reads it normalised."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

MEANING = " (meaning)"  # after a word in the name of a feature: what its vector adds

_WORD, _SPLIT = re.compile(r"\w+"), re.compile(r"\S+")

Place = tuple[int, int]


class _Token(NamedTuple):
    normal: str
    start: int
    end: int


class TextPlaces:
    """Finds the features of a text in it.

    >>> places = TextPlaces("Dark Rye, rye bread")
    >>> places.of_feature("rye bread"), places.of_feature("rye"), places.of_feature("[ rye]")
    ([(10, 19)], [(5, 8), (10, 13)], [(5, 8), (10, 13)])
    """

    def __init__(self, text: str) -> None:
        self._words = list(_tokens(_WORD, text))
        self._split = list(_tokens(_SPLIT, text))

    def of_feature(self, name: str) -> list[Place]:
        """Return where an n-gram stands, by the name that it has in an explanation: of characters in brackets."""
        if name.startswith("[") and name.endswith("]"):
            return self._of_characters(name[1:-1])
        return self.of_term(name.removesuffix(MEANING))

    def of_term(self, term: str) -> list[Place]:
        """Return where some normalised words stand one after the other; or a run without spaces, if there are none."""
        wanted = _WORD.findall(term)
        size = len(wanted)
        found = [
            (self._words[start].start, self._words[start + size - 1].end)
            for start in range(len(self._words) - size + 1)
            if size and all(token.normal == word for token, word in zip(self._words[start:], wanted, strict=False))
        ]
        return found or [(token.start, token.end) for token in self._split if token.normal == term]

    def _of_characters(self, gram: str) -> list[Place]:
        """Return where characters stand within words that spaces surround; the whole word if it changed its length."""
        found = []
        for normal, start, end in self._split:
            padded = f" {normal} "
            same_length = len(normal) == end - start
            position = padded.find(gram)
            while position >= 0:
                first, last = max(position - 1, 0), min(position - 1 + len(gram), len(normal))
                found.append((start + first, start + last) if same_length else (start, end))
                position = padded.find(gram, position + 1)
        return sorted({*found})


def _tokens(pattern: re.Pattern[str], text: str) -> Iterator[_Token]:
    for match in pattern.finditer(text):
        yield _Token(unicodedata.normalize("NFKC", match[0]).lower(), *match.span())
