"""Recognition of the kind of every column of a frame from its type and values."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from hinet.classifier.columns import KINDS, ColumnKind, ColumnKinds
from hinet.data.frames import is_list, is_number, is_text
from hinet.errors import HiNetError, quoted

MAX_CATEGORIES = 1_000  # maximum distinct values of a category column
MIN_ROWS_PER_CATEGORY = 3  # minimum mean rows per value of a category column
MAX_CATEGORY_LENGTH = 40  # characters
MAX_CATEGORY_WORDS = 1.5  # maximum mean words per distinct value; longer values are text unless frequent
FREQUENT_CATEGORY_ROWS = 20  # rows per value that make longer values categories if there is another text column
MIN_ID_ROWS = 10  # fewer rows may all differ by chance
MIN_ID_SHARE = 0.95  # minimum share of distinct values, and of codes among them, in an id column
MAX_SAMPLE = 1_000  # maximum distinct values that are examined

_WORD = re.compile(r"[^\W\d_]{2,}")
_CODE = re.compile(r"(?=\S*\d)(?!\S*[^\W\d_]{5})\S+|[0-9a-fA-F-]{8,}")  # a digit, and no run of five letters; or hex
_DECIMAL = re.compile(r"[+-]?\d*[.,]\d+")
_ID_NAME = re.compile(
    r"(?:.*[\W_])?(?:id|uuid|guid|sku|ean|gtin|upc|isbn|asin|key|index)|unnamed: 0|(?-i:.*[a-z]I[dD])", re.IGNORECASE
)

Guess = Literal[ColumnKind, "id", "phrase"]  # a phrase is text, or a category if there is another text


@dataclass(frozen=True)
class Recognised:
    """The columns of a frame by kind, and the ignored columns, which are ids."""

    kinds: ColumnKinds
    ignored: tuple[str, ...]

    def warn(self) -> ColumnKinds:
        """Warn about ignored columns, and return the others by kind."""
        if self.ignored:
            names = ", ".join(map(quoted, self.ignored))
            warnings.warn(
                f"ignored as ids, with a different code in every row: {names}; name the columns to read in `columns` "
                "to choose them yourself",
                stacklevel=2,
            )
        return self.kinds


def recognise(table: pa.Table) -> Recognised:
    """Return the kinds of all columns; values decide whether a text column is text, categories or ids.

    Raises
    ------
    HiNetError
        If a column has values of an unsupported type, or all columns are ids.
    """
    guesses = {name: _guess(name, column) for name, column in zip(table.column_names, table.columns, strict=True)}
    has_text = "text" in guesses.values()
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    ignored = []
    for name, guess in guesses.items():
        if guess == "id":
            ignored.append(name)
        elif guess == "phrase":
            kinds["category" if has_text and _is_frequent(table.column(name)) else "text"].append(name)
        else:
            kinds[guess].append(name)
    if not any(kinds.values()):
        raise HiNetError(
            f"all columns look like ids ({', '.join(map(quoted, ignored))}); name the columns to read in `columns`"
        )
    return Recognised(ColumnKinds.of(kinds), tuple(ignored))


def _guess(name: str, column: pa.ChunkedArray) -> Guess:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_dictionary(kind):
        return "category"
    if is_number(kind):
        return "id" if pa.types.is_integer(kind) and _ID_NAME.fullmatch(name) and _are_distinct(column) else "number"
    if is_list(kind):
        return "vector"
    if is_text(kind):
        return _guess_text(column)
    what = "no value" if pa.types.is_null(kind) else f"values of type {kind}"
    raise HiNetError(
        f"column {quoted(name)} has {what}, expected text, numbers, categories or lists of numbers; convert it, or "
        "name the columns to read in `columns`"
    )


def _guess_text(column: pa.ChunkedArray) -> Guess:
    import pyarrow.compute as pc

    filled = len(column) - column.null_count
    values = pc.unique(column.cast(pa.large_string()).drop_null())
    sample = values.slice(0, MAX_SAMPLE).to_pylist()
    if _are_distinct(column):
        codes = sum(is_code(value) for value in sample)
        return "id" if codes >= MIN_ID_SHARE * len(sample) else "text"
    if not 0 < len(values) <= min(MAX_CATEGORIES, filled // MIN_ROWS_PER_CATEGORY):
        return "text"
    if pc.max(pc.utf8_length(values)).as_py() > MAX_CATEGORY_LENGTH:
        return "text"
    words = sum(len(_WORD.findall(value)) for value in sample)
    return "category" if words <= MAX_CATEGORY_WORDS * len(sample) else "phrase"


def is_code(value: str) -> bool:
    """Return whether a value is a code, such as a product number, and not a word or a decimal number.

    >>> [is_code(value) for value in ("SKU-00017", "9780262033848", "milk", "rye bread 2", "12.50")]
    [True, True, False, False, False]
    """
    text = value.strip()
    return _CODE.fullmatch(text) is not None and _DECIMAL.fullmatch(text) is None


def _are_distinct(column: pa.ChunkedArray) -> bool:
    """Return whether nearly all rows have different values."""
    import pyarrow.compute as pc

    filled = len(column) - column.null_count
    column = column.cast(pa.large_string()) if is_text(column.type) else column
    return bool(filled >= MIN_ID_ROWS and pc.count_distinct(column).as_py() >= MIN_ID_SHARE * filled)


def _is_frequent(column: pa.ChunkedArray) -> bool:
    import pyarrow.compute as pc

    distinct = pc.count_distinct(column.cast(pa.large_string())).as_py()
    return bool(len(column) - column.null_count >= FREQUENT_CATEGORY_ROWS * distinct)
