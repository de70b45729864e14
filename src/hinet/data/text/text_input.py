"""Texts from any container, converted to normalised UTF-8 in blocks of rows; the characters that form words.

A word is a run of letters, digits, ``_`` and marks, so vowel signs do not split the words of Hindi. In Chinese,
Japanese, Korean, Thai and other scripts whose words are short and not separated by blanks, every character is a word,
together with the marks after it. So pairs of words are pairs of characters, as in Lucene's analysis of these scripts.
Emoji are words, too.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.data.frames import decoded, is_text
from hinet.data.text.ngram_kernels import (
    BLANK,
    LETTER,
    MARK,
    OTHER,
    PICTURE,
    SINGLE,
    Bytes,
    Ints64,
    replace_characters,
)
from hinet.errors import HiNetError, quoted
from hinet.ragged import offsets_of

# Blocks are large enough to be worth a thread, and small enough for their n-grams to be sorted in the cache.
MAX_BLOCK_BYTES = 4_000_000
MIN_BLOCK_BYTES = 50_000
BLOCKS_PER_THREAD = 4
MAX_TEXT_BYTES = 10_000_000  # the n-grams of a text take about 150 times its size

Item = TypeVar("Item")
Result = TypeVar("Result")
_REMEDY = "leave the row out, or give an empty text"

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


@dataclass(frozen=True)
class TextBlock:
    """Some rows of text as UTF-8: normalised (NFKC), in lower case, with some characters replaced or left out."""

    text: Bytes
    offsets: Ints64  # (n + 1,)
    classes: Bytes


def as_arrow(texts: Any, first_row: int = 0) -> pa.ChunkedArray:
    """Return the texts of any supported container as an Arrow array of large strings without nulls."""
    if isinstance(texts, str | bytes):
        raise HiNetError(f"expected a list of texts, got one text {quoted(str(texts))}; put it into a list")
    try:
        array = _to_chunked(texts)
    except (pa.ArrowException, UnicodeEncodeError, TypeError, ValueError):
        raise _row_error(texts, first_row) from None
    if not len(array):
        return pa.chunked_array([], pa.large_string())
    if not pa.types.is_large_string(array.type):
        array = decoded(array)
        if not is_text(array.type):
            raise _row_error(texts, first_row, array)
        array = array.cast(pa.large_string())
    if array.null_count:
        raise _row_error(texts, first_row, array)
    _check_lengths(array, first_row)
    return array


def _check_lengths(array: pa.ChunkedArray, first_row: int) -> None:
    """Raise HiNetError for the first text that is too long."""
    row = first_row
    for chunk in array.chunks:
        lengths = np.diff(_offsets(chunk))
        too_long = np.flatnonzero(lengths > MAX_TEXT_BYTES)
        if len(too_long):
            raise HiNetError(f"row {row + too_long[0]}: {too_long_message(int(lengths[too_long[0]]))}")
        row += len(chunk)


def too_long_message(size: int) -> str:
    """Return the message for a text of more than MAX_TEXT_BYTES."""
    return f"the text has {size:,} bytes, more than {MAX_TEXT_BYTES:,}; split it into several rows, or truncate it"


def _to_chunked(texts: Any) -> pa.ChunkedArray:
    if isinstance(texts, pa.ChunkedArray):
        return texts
    if hasattr(texts, "__arrow_c_stream__"):  # polars and pandas Series
        return pa.chunked_array(texts)
    if not (isinstance(texts, list | tuple) or hasattr(texts, "__arrow_c_array__")):
        if not (isinstance(texts, Sequence) or hasattr(texts, "__array__")):
            raise TypeError
        texts = np.asarray(texts)
    if isinstance(texts, list | tuple):
        with suppress(TypeError):  # not all are strings, but Arrow may convert them
            return _from_strings(texts)
    array = pa.array(texts)
    return array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])


def _from_strings(texts: Sequence[str]) -> pa.ChunkedArray:
    """Return strings as an Arrow array, without pandas, which ``pa.array`` imports."""
    joined = "".join(texts)
    data = joined.encode()
    sizes = map(len, texts) if joined.isascii() else (len(text.encode()) for text in texts)
    offsets = offsets_of(np.fromiter(sizes, np.int64, len(texts)))
    return pa.chunked_array([pa.LargeStringArray.from_buffers(len(texts), pa.py_buffer(offsets), pa.py_buffer(data))])


def _row_error(texts: Any, first_row: int, array: pa.ChunkedArray | None = None) -> HiNetError:
    """Return the error for the first row that is not text."""
    kind = type(texts).__name__
    if array is None and hasattr(texts, "__array__"):
        texts = np.asarray(texts)
    if isinstance(texts, list | tuple) or (isinstance(texts, np.ndarray) and texts.ndim == 1):
        for row, text in enumerate(texts, first_row):
            if not isinstance(text, str):
                actual = "None" if text is None else f"{type(text).__name__} {quoted(str(text))[1:-1]}"
                return HiNetError(f"row {row}: expected a text, got {actual}; {_REMEDY}")
            if text.encode(errors="ignore").decode() != text:
                remedy = "read the file with errors='replace'"
                return HiNetError(f"row {row}: the text {quoted(text)} has half of a surrogate pair; {remedy}")
    if array is not None and array.null_count and not pa.types.is_null(array.type):
        import pyarrow.compute as pc

        row = first_row + pc.index(pc.is_null(array), True).as_py()
        return HiNetError(f"row {row}: expected a text, got a null; {_REMEDY}")
    actual = f"an array of type {array.type}" if array is not None else kind
    return HiNetError(
        f"expected a list of texts, or an array or series of strings, got {actual}; fit_chunks takes a stream of lists"
    )


def arrow_chunks(chunks: Iterable[Any]) -> Iterator[pa.ChunkedArray]:
    """Yield chunks of texts as Arrow arrays; errors number the rows across chunks."""
    row = 0
    for chunk in chunks:
        array = as_arrow(chunk, row)
        row += len(array)
        yield array


def in_blocks(texts: pa.ChunkedArray, threads: int) -> list[pa.LargeStringArray]:
    """Split texts into blocks of whole rows, enough to keep all threads busy."""
    total = sum(int(np.diff(_offsets(chunk)[[0, -1]])[0]) for chunk in texts.chunks)
    block_bytes = min(max(total // (BLOCKS_PER_THREAD * threads), MIN_BLOCK_BYTES), MAX_BLOCK_BYTES)
    return [block for chunk in texts.chunks if len(chunk) for block in _blocks_of(chunk, block_bytes)]


def _blocks_of(chunk: pa.LargeStringArray, block_bytes: int) -> Iterator[pa.LargeStringArray]:
    offsets = _offsets(chunk)
    marks = np.arange(offsets[0] + block_bytes, offsets[-1], block_bytes)
    cuts = np.unique(np.concatenate(([0], np.searchsorted(offsets, marks, side="right") - 1, [len(chunk)])))
    for start, stop in pairwise(cuts.tolist()):
        yield chunk.slice(start, stop - start)


def _offsets(array: pa.LargeStringArray) -> Ints64:
    """Return where the texts of an array start and end in its buffer."""
    if not len(array):
        return np.zeros(1, np.int64)
    return np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]


def parallel_map(work: Callable[[Item], Result], items: Sequence[Item], threads: int) -> list[Result]:
    """Return ``work(item)`` for every item, computed in threads; a single item starts no thread."""
    if threads == 1 or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(work, items))


def normalise(block: pa.LargeStringArray) -> TextBlock:
    """Return the rows of a block as features see them."""
    text, offsets = _raw(block)
    ascii_only = not len(text) or int(text.max()) < 0x80
    if ascii_only:
        text = text + ((text >= ord("A")) & (text <= ord("Z"))) * np.uint8(32)
    else:
        import pyarrow.compute as pc  # slow to import

        try:
            text, offsets = _raw(pc.utf8_lower(pc.utf8_normalize(block, form="NFKC")))
        except pa.ArrowInvalid:
            raise HiNetError("a text is not valid UTF-8; decode it with the encoding it was written in") from None
        text, offsets = replace_characters(text.copy(), offsets, replacements())  # kernels need writable arrays
    longest = int(np.diff(offsets).max(initial=0))
    if longest > MAX_TEXT_BYTES:  # some characters become longer
        raise HiNetError(f"normalised, {too_long_message(longest)}")
    return TextBlock(text, offsets, character_classes(ascii_only))


def align(text: str) -> tuple[str, list[tuple[int, int]]]:
    """Return a text as features see it, and for each of its characters the span in the text as it was typed.

    >>> align("No ﬁ")
    ('no fi', [(0, 1), (1, 2), (2, 3), (3, 4), (3, 4)])
    """
    if text.isascii():
        return text.lower(), list(pairwise(range(len(text) + 1)))
    starts = [start for start, character in enumerate(text) if not start or not _joins_previous(character)]
    spans = list(pairwise([*starts, len(text)]))
    block = normalise(as_arrow([text[start:end] for start, end in spans]).chunk(0))
    parts = [block.text[start:end].tobytes().decode() for start, end in pairwise(block.offsets.tolist())]
    return "".join(parts), [span for part, span in zip(parts, spans, strict=True) for _ in part]


def _joins_previous(character: str) -> bool:
    """Return whether normalisation may join a character and the one before it: marks, and parts of Korean syllables."""
    first = unicodedata.normalize("NFKC", character)[0]
    return not character.isascii() and (unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff")


def _raw(array: pa.LargeStringArray) -> tuple[Bytes, Ints64]:
    offsets = _offsets(array)
    if offsets[0] == offsets[-1]:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(array.buffers()[2], np.uint8)[offsets[0] : offsets[-1]], offsets - offsets[0]


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


def replace_words(texts: Sequence[str], seed: int) -> list[str]:
    """Return each text with a random number of its words replaced, from none to all, the rarest first.

    This imitates texts of people who do not know the training texts, and use everyday words instead of technical terms.
    A replacement carries no information about the text. It is, with equal probability, a word of these texts, or a new
    word: the first half of one word and the second half of another, so that a model knows only fragments of it. Words
    are drawn with equal probability by their frequency, or uniformly.

    >>> replace_words(["rye bread", "white bread", "red wine"], seed=2)
    ['ryead bread', 'breead breed', 'red bread']
    """
    rng = np.random.default_rng(seed)
    words = [[word.lower() for word in word_pattern(text).findall(text)] for text in texts]
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
        return word_pattern(text).sub(lambda word: replacement() if next(numbers) in replaced else word[0], text)

    return [rewritten(text, own) for text, own in zip(texts, words, strict=True)]
