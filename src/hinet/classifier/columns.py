"""The columns of a frame: recognition of their kinds, and features of texts, numbers, categories and vectors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.data.frames import column_of, decoded, is_list, is_number, is_text
from hinet.data.tables.cells import as_text
from hinet.encoders.meaning import LENGTH, MIN_LENGTH
from hinet.encoders.token_vectors import MAX_WIDTH
from hinet.errors import HiNetError, format_value, quoted
from hinet.files.delimited import first_repeated
from hinet.files.schema import FINITE, ArraySpec, Schema, check_arrays, floats
from hinet.ragged import offsets_of

ColumnKind = Literal["text", "number", "category", "vector"]
KINDS: tuple[ColumnKind, ...] = get_args(ColumnKind)

NUMBER_LENGTH = 2.0  # length of a number one deviation above its mean; the words of a row have length 1
NUMBERS_LENGTH = LENGTH  # maximum length of all numbers of a typical row
MAX_DEVIATIONS = 10.0  # numbers are clipped at this distance from the mean, in deviations
CATEGORIES_LENGTH = 0.7  # length of all categories of a row
MAX_LENGTH = 100.0  # maximum length in a saved model
CONSTANT = 1e-12  # deviations below this share of the mean are rounding errors

LENGTHS: Schema = {"columns.lengths": floats(2, low=0, high=MAX_LENGTH)}
_NUMBERS: Schema = {
    "columns.number_mean": floats("numbers", low=-FINITE, high=FINITE),
    "columns.number_scale": floats("numbers", low=0, high=FINITE),
    "columns.number_missing": ArraySpec(("numbers",), "u", 0, 1),
}
_VECTORS: Schema = {
    "columns.vector_width": ArraySpec(("vectors",), "iu", 1, MAX_WIDTH),
    "columns.vector_scale": floats("vectors", low=0, high=MAX_LENGTH / MIN_LENGTH),
    "columns.vector_mean": floats("widths", low=-2, high=2),  # the vectors have length 1
}

Floats = NDArray[np.float32]


class Lengths(NamedTuple):
    """Lengths of numbers and categories as features; with more columns each is shorter, so that text still counts."""

    number: float
    category: float

    @classmethod
    def of(cls, kinds: ColumnKinds) -> Lengths:
        """Return the lengths for the columns of each kind."""
        numbers, categories = np.sqrt(max(len(kinds.number), 1)), np.sqrt(max(len(kinds.category), 1))
        return cls(min(NUMBER_LENGTH, float(NUMBERS_LENGTH / numbers)), float(CATEGORIES_LENGTH / categories))

    @classmethod
    def restored(cls, arrays: Mapping[str, NDArray[Any]]) -> Lengths:
        """Return the object of saved arrays; raise HiNetError if they are invalid."""
        check_arrays(arrays, LENGTHS, {})
        return cls(*arrays["columns.lengths"].tolist())


@dataclass(frozen=True)
class ColumnKinds:
    """The names of the columns of each kind."""

    text: tuple[str, ...] = ()
    number: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    vector: tuple[str, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return (*self.text, *self.number, *self.category, *self.vector)

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[str]]) -> ColumnKinds:
        """Return the kinds in a mapping; raise HiNetError if a column has two kinds or there are no columns."""
        kinds = cls(**{kind: tuple(names) for kind, names in columns.items()})
        if not kinds.names:
            raise HiNetError("columns names no column; name those to read, or leave `columns` out")
        if (repeated := first_repeated(kinds.names)) is not None:
            raise HiNetError(f"columns names {quoted(repeated)} twice; give it one kind")
        return kinds

    def to_dict(self) -> dict[str, list[str]]:
        """Return the kinds as a dict for JSON."""
        return {kind: list(getattr(self, kind)) for kind in KINDS}


def texts_of(table: pa.Table, kinds: ColumnKinds) -> pa.ChunkedArray:
    """Return the text columns of rows joined by spaces, without empty and missing cells."""
    import pyarrow.compute as pc

    columns = []
    for name in kinds.text:
        column = decoded(column_of(table, name, kinds.names))
        if not (is_text(column.type) or pa.types.is_null(column.type)):
            raise _other_type(name, column, "text", "give the column as text")
        columns.append(pc.fill_null(column.cast(pa.large_string()), ""))
    joined = reduce(_join, columns)
    return joined if isinstance(joined, pa.ChunkedArray) else pa.chunked_array([joined], pa.large_string())


def _join(left: Any, right: Any) -> Any:
    """Return two columns of text joined by a space where neither is empty."""
    import pyarrow.compute as pc

    empty, space = pa.scalar("", pa.large_string()), pa.scalar(" ", pa.large_string())
    # Arrow's option to skip nulls drops rows of nulls
    between = pc.if_else(pc.or_(pc.equal(left, empty), pc.equal(right, empty)), empty, space)
    return pc.binary_join_element_wise(left, between, right, empty)


def _other_type(name: str, column: pa.ChunkedArray, expected: str, remedy: str) -> HiNetError:
    """Return the error for a column of an unexpected type, with its first value."""
    for row, value in enumerate(column):
        if value.is_valid:
            actual = format_value(value.as_py())
            return HiNetError(f"row {row}: column {quoted(name)} has {actual}, expected {expected}; {remedy}")
    return HiNetError(f"column {quoted(name)} is of type {column.type}, expected {expected}; {remedy}")


@dataclass(frozen=True, eq=False)
class Numbers:
    """Standardized columns of numbers; missing ones are 0, and marked if training rows had any.

    A column that is constant in the training rows becomes 0.
    """

    names: tuple[str, ...]
    mean: NDArray[np.float64]  # (c,)
    scale: NDArray[np.float64]  # (c,)
    missing: NDArray[np.bool_]  # (c,) whether training rows had missing values

    @classmethod
    def fit(cls, kinds: ColumnKinds, table: pa.Table) -> Numbers:
        """Return the scaling of the number columns of training rows."""
        names = kinds.number
        mean, deviation, missing = np.zeros(len(names)), np.zeros(len(names)), np.zeros(len(names), np.bool_)
        for number, name in enumerate(names):
            values = _numbers_of(table, name, kinds)
            known = values[~np.isnan(values)]
            missing[number] = len(known) < len(values)
            if len(known):
                mean[number], deviation[number] = known.mean(), known.std()
        varies = deviation > CONSTANT * np.abs(mean)
        scale = np.where(varies, 1 / np.where(varies, deviation, 1), 0)
        return cls(names, mean, np.minimum(scale, FINITE), missing)

    def values(self, table: pa.Table, kinds: ColumnKinds) -> NDArray[np.float64]:
        """Return the numbers of rows, NaN if missing, (n, c)."""
        columns = [_numbers_of(table, name, kinds) for name in self.names]
        return np.stack(columns, 1) if columns else np.zeros((table.num_rows, 0))

    def scaled(self, values: NDArray[np.float64], length: float) -> Floats:
        """Return numbers as features, (n, c)."""
        deviations = np.clip((values - self.mean) * self.scale, -MAX_DEVIATIONS, MAX_DEVIATIONS)
        return (length * np.nan_to_num(deviations)).astype(np.float32)

    @property
    def marked(self) -> list[str]:
        """The columns whose missing values are marked."""
        return [name for name, missing in zip(self.names, self.missing.tolist(), strict=True) if missing]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        parts = (self.mean, self.scale, self.missing.astype(np.uint8))
        return dict(zip(_NUMBERS, parts, strict=True))

    @classmethod
    def restored(cls, names: tuple[str, ...], arrays: Mapping[str, NDArray[Any]]) -> Numbers:
        """Return the object of saved arrays; raise HiNetError if they are invalid."""
        check_arrays(arrays, _NUMBERS, {"numbers": len(names)})
        mean, scale, missing = (np.array(arrays[name]) for name in _NUMBERS)
        return cls(names, mean.astype(np.float64), scale.astype(np.float64), missing.astype(np.bool_))


def _numbers_of(table: pa.Table, name: str, kinds: ColumnKinds) -> NDArray[np.float64]:
    """Return a column of numbers, NaN if missing."""
    column = decoded(column_of(table, name, kinds.names))
    kind = column.type
    if not (is_number(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        remedy = "give the column as numbers, with empty cells for missing ones"
        raise _other_type(name, column, "a number", remedy)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.uint8())
    values = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)
    bad = np.flatnonzero(np.abs(values) > FINITE)  # NaN is missing
    if len(bad):
        row = int(bad[0])
        raise HiNetError(
            f"row {row}: column {quoted(name)} has {values[row]}, expected a finite number; replace it, or leave the "
            "cell empty"
        )
    return values


@dataclass(frozen=True, eq=False)
class Categories:
    """Columns of categories, one sparse feature per value; unknown and missing values have none."""

    names: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]  # values of each column, as text

    @classmethod
    def fit(cls, kinds: ColumnKinds, table: pa.Table) -> Categories:
        """Return the values of the category columns of training rows."""
        values = []
        for name in kinds.category:
            texts, codes = _category_codes(table, name, kinds)
            values.append(tuple(sorted({texts[code] for code in np.unique(codes[codes >= 0]).tolist()} - {""})))
        return cls(kinds.category, tuple(values))

    def codes(self, table: pa.Table, kinds: ColumnKinds) -> NDArray[np.int64]:
        """Return the index of the value in every row and column, -1 for none, (n, c)."""
        every = np.full((table.num_rows, len(self.names)), -1)
        for column, (name, values) in enumerate(zip(self.names, self.values, strict=True)):
            number = {value: code for code, value in enumerate(values)}
            texts, codes = _category_codes(table, name, kinds)
            every[:, column] = np.array([*(number.get(text, -1) for text in texts), -1], np.int64)[codes]
        return every

    @property
    def labels(self) -> list[str]:
        """Names of the features."""
        columns = zip(self.names, self.values, strict=True)
        return [f"{name} = {value}" for name, values in columns for value in values]

    def describe(self) -> dict[str, list[str]]:
        """Return the values of each column, for JSON."""
        return {name: list(values) for name, values in zip(self.names, self.values, strict=True)}

    @classmethod
    def restored(cls, names: tuple[str, ...], described: Mapping[str, Sequence[str]]) -> Categories:
        """Return the described categories; raise HiNetError if they are invalid."""
        if {*described} != {*names}:
            raise HiNetError("the categories belong to other columns")
        for name, values in described.items():
            if len({*values}) < len(values):
                raise HiNetError(f"column {quoted(name)} has a category twice")
        return cls(names, tuple(tuple(described[name]) for name in names))


def _category_codes(table: pa.Table, name: str, kinds: ColumnKinds) -> tuple[list[str], NDArray[np.int64]]:
    """Return the distinct values of a column as text, and the index of the value of every row, -1 for none."""
    column = decoded(column_of(table, name, kinds.names))
    if pa.types.is_nested(column.type):
        raise _other_type(name, column, "a category", "give the column as text")
    if pa.types.is_null(column.type):
        return [], np.full(len(column), -1, np.int64)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
    encoded = column.combine_chunks().dictionary_encode()
    encoded = encoded if isinstance(encoded, pa.Array) else pa.concat_arrays(encoded.chunks)
    values = [as_text(value) if value == value else "" for value in encoded.dictionary.to_pylist()]
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return [value or "" for value in values], codes


def one_hot(codes: NDArray[np.int64], sizes: Sequence[int], marks: NDArray[np.bool_], length: float) -> sp.csr_array:
    """Return the features of categories, given the number of values per column, followed by ``marks``."""
    every = np.concatenate([codes, np.where(marks, 0, -1)], axis=1)  # (n, c + m)
    starts = offsets_of(np.array([*sizes, *[1] * marks.shape[1]], np.int64))
    has = every >= 0
    feature = (every + starts[:-1])[has].astype(np.int32)
    indptr = offsets_of(has.sum(1)).astype(np.int32)
    values = np.full(len(feature), length, np.float32)
    return sp.csr_array((values, feature, indptr), shape=(len(every), int(starts[-1])))


@dataclass(frozen=True, eq=False)
class VectorColumn:
    """A column of vectors: normalized to length 1, centred, and scaled like those of texts; missing vectors are 0."""

    name: str
    mean: Floats  # (width,)
    scale: float

    @classmethod
    def fit(cls, kinds: ColumnKinds, table: pa.Table, name: str) -> VectorColumn:
        """Return the scaling of the vectors of training rows."""
        unit = _unit(_vectors_of(table, name, kinds, None))
        known = unit[unit.any(1)]
        mean = known.mean(0) if len(known) else np.zeros(unit.shape[1], np.float32)
        usual = float(np.sqrt(np.square(known - mean).sum(1).mean())) if len(known) else 1.0
        return cls(name, mean, LENGTH / max(usual, MIN_LENGTH))

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self.mean)

    def columns(self, table: pa.Table, kinds: ColumnKinds) -> Floats:
        """Return the vectors of rows as features, (n, width)."""
        unit = _unit(_vectors_of(table, self.name, kinds, self.width))
        scaled = (unit - self.mean) * np.float32(self.scale)
        scaled[~unit.any(1)] = 0
        return np.asarray(scaled, np.float32)


def _unit(vectors: Floats) -> Floats:
    """Return vectors of length 1, or zeros; squares of large values need double precision."""
    length = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))[:, None]
    return (vectors / np.where(length > 0, length, 1)).astype(np.float32)


def _vectors_of(table: pa.Table, name: str, kinds: ColumnKinds, width: int | None) -> Floats:
    """Return a column of lists of numbers, zeros if missing, (n, width); without ``width``, that of the first list."""
    import pyarrow.compute as pc

    column = column_of(table, name, kinds.names)
    if pa.types.is_null(column.type) and width is not None:
        return np.zeros((len(column), width), np.float32)
    if not is_list(column.type) or not (
        is_number(column.type.value_type) or (pa.types.is_null(column.type.value_type))
    ):
        raise _other_type(name, column, "a list of numbers", "give the column as lists of numbers of one length")
    lists = column.cast(pa.large_list(pa.float64()))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    flat = pc.list_flatten(lists).to_numpy()
    found = np.flatnonzero(lists.is_valid().to_numpy())
    expected = width or (int(lengths[found[0]]) if len(found) else 0)
    if not 0 < expected <= MAX_WIDTH:
        what = f"lists of {expected:,} numbers" if len(found) else "no value"
        raise HiNetError(f"column {quoted(name)} has {what}, expected 1 to {MAX_WIDTH:,}; leave the column out")
    other = found[lengths[found] != expected]
    if len(other):
        whose = "the other rows" if width is None else "training"
        raise HiNetError(
            f"row {other[0]}: column {quoted(name)} has {lengths[other[0]]:,} numbers, expected {expected:,} as in "
            f"{whose}; give the vectors of one encoder, or leave the cell empty"
        )
    bad = np.flatnonzero(~(np.abs(flat) <= FINITE))
    if len(bad):
        row = int(found[bad[0] // expected])
        raise HiNetError(
            f"row {row}: column {quoted(name)} has {flat[bad[0]]} among its numbers, expected finite ones; replace the "
            "vector, or leave the cell empty"
        )
    vectors = np.zeros((len(column), expected), np.float32)
    vectors[found] = flat.reshape(-1, expected)
    return vectors


def vector_arrays(columns: Sequence[VectorColumn]) -> dict[str, NDArray[Any]]:
    """Return the arrays of vector columns to save."""
    parts = (
        np.array([column.width for column in columns], np.int64),
        np.array([column.scale for column in columns], np.float64),
        np.concatenate([np.zeros(0, np.float32), *(column.mean for column in columns)]),
    )
    return dict(zip(_VECTORS, parts, strict=True))


def restored_vectors(names: Sequence[str], arrays: Mapping[str, NDArray[Any]]) -> tuple[VectorColumn, ...]:
    """Return the vector columns of saved arrays; raise HiNetError if they are invalid."""
    sizes = check_arrays(arrays, _VECTORS, {"vectors": len(names)})
    width, scale, mean = (np.array(arrays[name]) for name in _VECTORS)
    ends = offsets_of(width.astype(np.int64))
    if ends[-1] != sizes["widths"]:
        raise HiNetError(f"vectors of {ends[-1]:,} numbers in all, and means of {sizes['widths']:,}")
    means = [mean[start:end].astype(np.float32) for start, end in pairwise(ends.tolist())]
    return tuple(VectorColumn(*column) for column in zip(names, means, scale.tolist(), strict=True))


KNOTS = 65  # quantiles saved per column; ranks between them are interpolated
MIN_RANK = 0.002  # rank of the smallest number, as a share
MIN_DISTINCT = 3  # columns with fewer distinct numbers are not ranked
SCORES = np.array([NormalDist().inv_cdf(share) for share in np.linspace(0, 1, KNOTS).clip(MIN_RANK, 1 - MIN_RANK)])

_RANKS: Schema = {
    "columns.ranked": ArraySpec(("numbers",), "u", 0, 1),
    "columns.knots": floats("ranked", KNOTS, low=-FINITE, high=FINITE),
}


@dataclass(frozen=True, eq=False)
class Ranks:
    """Columns of numbers as normal scores of their ranks among training rows; 0 if missing.

    Ranks distinguish small numbers even if a few numbers are huge.
    """

    ranked: NDArray[np.bool_]  # (c,) whether the column is ranked
    knots: NDArray[np.float64]  # (ranked columns, KNOTS) evenly spaced quantiles, ascending

    @classmethod
    def none(cls, columns: int) -> Ranks:
        """Return the ranks of no column."""
        return cls(np.zeros(columns, np.bool_), np.zeros((0, KNOTS)))

    @classmethod
    def fit(cls, values: NDArray[np.float64]) -> Ranks:
        """Return the ranks of columns, given the numbers of training rows, (n, c), NaN if missing."""
        known = [column[~np.isnan(column)] for column in values.T]
        ranked = np.array([len(np.unique(column)) >= MIN_DISTINCT for column in known], np.bool_)
        shares = np.linspace(0, 1, KNOTS)
        knots = [np.quantile(column, shares) for column, wanted in zip(known, ranked, strict=True) if wanted]
        return cls(ranked, np.array(knots).reshape(-1, KNOTS))

    def scores(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the scores of the ranked columns, given the numbers of all columns.

        Equal numbers have their middle rank: interpolation uses the last of equal knots, so it is done from both sides.
        """
        scores = np.zeros((len(values), len(self.knots)), np.float32)
        for column, (numbers, knots) in enumerate(zip(values.T[self.ranked], self.knots, strict=True)):
            above = np.interp(numbers, knots, SCORES)
            below = -np.interp(-numbers, -knots[::-1], SCORES)  # the scores are symmetric
            scores[:, column] = np.nan_to_num((above + below) / 2)
        return scores

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save; none if no column is ranked."""
        if not len(self.knots):
            return {}
        return dict(zip(_RANKS, (self.ranked.astype(np.uint8), self.knots), strict=True))

    @classmethod
    def restored(cls, columns: int, arrays: Mapping[str, NDArray[Any]]) -> Ranks:
        """Return the object of saved arrays; raise HiNetError if they are invalid."""
        if not any(name in arrays for name in _RANKS):
            return cls.none(columns)
        check_arrays(arrays, _RANKS, {"numbers": columns})
        ranked, knots = (np.array(arrays[name]) for name in _RANKS)
        if int(ranked.sum()) != len(knots):
            raise HiNetError(f"{len(knots):,} columns have knots, and {int(ranked.sum()):,} are ranked")
        if (np.diff(knots) < 0).any():
            raise HiNetError("the knots of a column are not ascending")
        return cls(ranked.astype(np.bool_), knots.astype(np.float64))


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


def training_columns(table: pa.Table, given: Mapping[str, Sequence[str]] | None) -> ColumnKinds:
    """Return the columns of training rows by kind: the given ones, or recognised ones; warn about ignored ids."""
    if given is not None:
        return ColumnKinds.of(given)
    kinds, ignored = recognise(table)
    if ignored:
        names = ", ".join(map(quoted, ignored))
        warnings.warn(
            f"ignored as ids, with a different code in every row: {names}; name the columns to read in `columns` "
            "to choose them yourself",
            stacklevel=2,
        )
    return kinds


class Recognised(NamedTuple):
    """The columns of a frame by kind, and the ignored columns, which are ids."""

    kinds: ColumnKinds
    ignored: tuple[str, ...]


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
