"""Texts from any container, converted to normalised UTF-8 in blocks of rows; errors name the row."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from hinet.data.frames import decoded, is_text
from hinet.data.text.characters import character_classes, replacements
from hinet.data.text.ngram_kernels import Bytes, Ints64, replace_characters
from hinet.errors import HiNetError, quoted
from hinet.ragged import offsets_of

# Blocks are large enough to be worth a thread, and small enough for their n-grams to be sorted in the cache.
MAX_BLOCK_BYTES = 4_000_000
MIN_BLOCK_BYTES = 50_000
BLOCKS_PER_THREAD = 4
MAX_TEXT_BYTES = 10_000_000  # the n-grams of a text take about 150 times its size

_REMEDY = "leave the row out, or give an empty text"


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
        lengths = np.diff(_offsets(chunk)) if len(chunk) else np.zeros(0, np.int64)
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


def in_blocks(texts: pa.ChunkedArray, threads: int) -> list[pa.LargeStringArray]:
    """Split texts into blocks of whole rows, enough to keep all threads busy."""
    total = sum(_byte_range(chunk)[1] for chunk in texts.chunks)
    block_bytes = min(max(total // (BLOCKS_PER_THREAD * threads), MIN_BLOCK_BYTES), MAX_BLOCK_BYTES)
    return [block for chunk in texts.chunks if len(chunk) for block in _blocks_of(chunk, block_bytes)]


def _blocks_of(chunk: pa.LargeStringArray, block_bytes: int) -> Iterator[pa.LargeStringArray]:
    offsets = _offsets(chunk)
    marks = np.arange(offsets[0] + block_bytes, offsets[-1], block_bytes)
    cuts = np.unique(np.concatenate(([0], np.searchsorted(offsets, marks, side="right") - 1, [len(chunk)])))
    for start, stop in pairwise(cuts.tolist()):
        yield chunk.slice(start, stop - start)


def _offsets(array: pa.LargeStringArray) -> Ints64:
    buffer = array.buffers()[1]
    return np.frombuffer(buffer, np.int64)[array.offset : array.offset + len(array) + 1]


def _byte_range(array: pa.LargeStringArray) -> tuple[int, int]:
    """Return the first byte of an array's texts in its buffer, and their number."""
    if not len(array):
        return 0, 0
    offsets = _offsets(array)
    return int(offsets[0]), int(offsets[-1] - offsets[0])


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
    start, size = _byte_range(array)
    if not size:
        return np.empty(0, np.uint8), np.zeros(len(array) + 1, np.int64)
    return np.frombuffer(array.buffers()[2], np.uint8)[start : start + size], _offsets(array) - start
