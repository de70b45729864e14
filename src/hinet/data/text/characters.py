"""Unicode characters: which of them form words, and which are ignored or written as another one.

A word is a run of letters, digits, ``_`` and marks, so vowel signs do not split the words of Hindi. In Chinese,
Japanese, Korean, Thai and other scripts whose words are short and not separated by blanks, every character is a word,
together with the marks after it. So pairs of words are pairs of characters, as in Lucene's analysis of these scripts.
Emoji are words, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hinet.data.text.ngram_kernels import BLANK, LETTER, MARK, OTHER, PICTURE, SINGLE, Bytes

_CODES, _ASCII_CODES = 0x110000, 0x80
_ASSIGNED_CODES = 0x33480  # later ones are not assigned, private or ignored
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf"  # Thai, Lao, Burmese, Khmer, Tai
    "\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaadf"  # Balinese, Javanese, more Burmese, Tai Viet
    "\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u303c\u3041-\u312f\u31a0-\u31ff"  # radicals, kana, Bopomofo
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Chinese characters
    "\uac00-\ud7a3"  # Korean syllables: blanks separate phrases of short words
)
_PICTURES = "\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_IGNORED = (
    "\u00ad\u034f\u061c\u180b-\u180e\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufeff"  # soft hyphens, joiners, directions
    "\ufe00-\ufe0f\U0001f3fb-\U0001f3ff"  # variants and skin tones of emoji
    "\u0610-\u061a\u0640\u064b-\u0652\u0670\u06d6-\u06ed"  # Arabic vowel points, and tatweel, which stretches a word
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"  # Hebrew points
)
_TAGS = slice(0xE0000, 0xE1000)  # further ignored characters
_ZERO_WIDTH_SPACE = "\u200b"  # separates words in some Thai and Khmer texts
_FINAL_SIGMA, _SIGMA = "\u03c2", "\u03c3"
_GREEK = "[\u0370-\u03ff\u1f00-\u1fff]"  # capitals have no accents
_ASCII_WORD = re.compile(r"\w+")  # spares ASCII texts the tables


@cache
def character_classes(ascii_only: bool) -> Bytes:
    """Return the class of every code point, or every ASCII one."""
    characters = _characters(_ASCII_CODES if ascii_only else _ASSIGNED_CODES)
    classes = np.zeros(_ASCII_CODES if ascii_only else _CODES, np.uint8)
    for pattern, kind in (
        (r"\w+", LETTER),
        (r"\s+", BLANK),
        (rf"(?:(?=[^\W\d])[{_UNSPACED}])+", SINGLE),
        (rf"(?:(?=\W)[{_PICTURES}])+", PICTURE),
    ):
        for run in re.finditer(pattern, characters):
            classes[run.start() : run.end()] = kind
    for code in np.flatnonzero(classes[: len(characters)] == OTHER).tolist():
        if unicodedata.category(characters[code])[0] == "M":
            classes[code] = MARK
    return classes


def _characters(count: int) -> str:
    """Return the first ``count`` characters of Unicode."""
    return np.arange(count, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@cache
def replacements() -> NDArray[np.uint32]:
    """Return the code point that stands for each in features, 0 for a character that is ignored."""
    characters = _characters(_ASSIGNED_CODES)
    table = np.arange(_CODES, dtype=np.uint32)
    for run in re.finditer(f"[{_IGNORED}]+", characters):
        table[run.start() : run.end()] = 0
    for digit in re.findall(r"\d", characters):
        table[ord(digit)] = ord("0") + unicodedata.decimal(digit)
    for letter in filter(str.isalpha, re.findall(_GREEK, characters)):
        table[ord(letter)] = ord(unicodedata.normalize("NFD", letter)[0])
    table[_TAGS] = 0
    table[ord(_ZERO_WIDTH_SPACE)] = ord(" ")
    table[ord(_FINAL_SIGMA)] = ord(_SIGMA)
    return table


def word_pattern(text: str, whole_runs: bool = False) -> re.Pattern[str]:
    """Return the pattern of the words of a text; in a normalised text, they are the ones that kernels find.

    With ``whole_runs``, scripts without blanks are not split, and emoji are not words.

    >>> text = "rye bread, 東京"
    >>> word_pattern(text).findall(text)
    ['rye', 'bread', '東', '京']
    """
    return _ASCII_WORD if text.isascii() else _any_word(whole_runs)


@cache
def _any_word(whole_runs: bool) -> re.Pattern[str]:
    letters, marks, singles = (_ranges(kinds) for kinds in ((LETTER,), (MARK,), (SINGLE, PICTURE)))
    if whole_runs:
        return re.compile(f"[{letters}{marks}{_ranges((SINGLE,))}]+")
    return re.compile(f"[{singles}][{marks}]*|[{letters}{marks}]+")


def _ranges(kinds: Sequence[int]) -> str:
    """Return the characters of some classes as the inside of a set in a regular expression."""
    codes = np.flatnonzero(np.isin(character_classes(ascii_only=False), kinds))
    ends = np.flatnonzero(np.diff(codes, append=-1) != 1)
    starts = np.concatenate(([0], ends[:-1] + 1))
    return "".join(f"{chr(codes[start])}-{chr(codes[end])}" for start, end in zip(starts, ends, strict=True))


def join_words(words: Sequence[str]) -> str:
    """Return words as the name of an n-gram: separated by a space, except between words of one character.

    >>> join_words(["rye", "bread"]), join_words(["東", "京"]), join_words(["nec", "社"])
    ('rye bread', '東京', 'nec 社')
    """
    name = "".join(words[:1])
    for word, following in pairwise(words):
        name += following if _is_single(word) and _is_single(following) else f" {following}"
    return name


def _is_single(word: str) -> bool:
    return not word.isascii() and bool(character_classes(ascii_only=False)[ord(word[0])] >= SINGLE)
