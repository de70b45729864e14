"""Conversion of any form of ``X`` to rows for an engine: texts, CSR matrices, dense arrays, and tables by column.

Dense rows are scaled in blocks, to save memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.classifier.columns import (
    Categories,
    ColumnKinds,
    Lengths,
    Numbers,
    Ranks,
    VectorColumn,
    one_hot,
    restored_vectors,
    texts_of,
    vector_arrays,
)
from hinet.data.frames import as_table, is_frame, is_mixed, one_row_table
from hinet.data.matrices import MixedRows, as_csr, check_rows, is_sparse
from hinet.data.text import HashedTexts, TextFeatures, TextSettings, known_shares
from hinet.data.text.text_input import as_arrow, replace_words
from hinet.encoders.meaning import EncoderVectors, Meaning, TunedInput
from hinet.encoders.token_vectors import TokenVectors, is_installed, packaged_vectors
from hinet.errors import HiNetError, InputTypeError, counted, format_value, quoted
from hinet.files.schema import FINITE, check_arrays, floats
from hinet.progress import Progress

Kind = Literal["text", "sparse", "dense", "frame"]

MAX_SAMPLE_TEXTS = 1_000  # texts whose words represent those of all texts
BLOCK_CELLS = 1 << 20  # cells of dense rows that are processed together
MIN_TEXTS = 100  # fewer texts cannot show a gain
MIN_WORD_SHARE = 0.3  # minimum share of the words of texts that are tokens: the vectors are English
MIN_WORD_SHARE_FOR_ALL = 0.5  # the same for all experts to read them; of names, the vectors know fewer words
SAMPLE_TEXTS = 500
COMPARED_COLUMNS = 128  # columns that are compared with many rows; the vectors were trained so that the first say most
MIN_NONZERO_SHARE = 0.5  # dense columns with fewer nonzero values, such as counts, are not scaled


@dataclass(frozen=True, eq=False)
class TextInput:
    """Rows are texts: features are their n-grams and, with vectors, dense columns of meaning."""

    features: TextFeatures
    meaning: Meaning | None = None
    kind: Kind = "text"

    @property
    def count(self) -> int:
        """Number of features, including dense columns."""
        return self.features.count + (0 if self.meaning is None else self.meaning.width)

    @property
    def private_columns(self) -> int:
        """Number of last columns that are only compared with those of known texts."""
        return self.meaning.width if self.meaning is not None and self.meaning.private else 0

    def rows(self, X: Any, threads: int | None, *, sparse: bool = True) -> Any:
        """Return texts as sparse rows with dense columns, or as one CSR matrix unless ``sparse``."""
        rows = self.rows_with_unknown(X, threads)
        return rows.features() if sparse else rows.tocsr()

    def rows_with_unknown(self, X: Any, threads: int | None) -> MixedRows:
        """Return texts as rows, each with the share of its n-grams that are not features."""
        rows, unknown = self.features.transform_with_unknown(X, threads)
        if self.meaning is None:
            return MixedRows(rows, np.zeros((len(unknown), 0), np.float32), unknown)
        return replace(self.mixed(rows, X, self.meaning.columns(X, threads)), unknown=unknown)

    def foreign_rows(self, X: Any, threads: int | None, seed: int) -> MixedRows:
        """Return rows of texts that were made foreign, with dense columns half way to those of the original texts.

        Vectors know some words that no training text has, so that the meaning of a foreign text is partly known.
        """
        rows = self.rows_with_unknown(replace_words(as_arrow(X).to_pylist(), seed), threads)
        if self.meaning is None:
            return rows
        return replace(rows, dense=(rows.dense + self.meaning.columns(X, threads)) / np.float32(2))

    def mixed(self, rows: Any, X: Any, columns: NDArray[np.float32]) -> MixedRows:
        """Return n-grams with dense columns.

        The n-grams are weighted by the share of known words of a text, unless experts read n-grams alone.
        """
        if self.private_columns:
            return MixedRows(rows, columns)
        known = np.nan_to_num(known_shares(self.features, X)).astype(np.float32)
        values = rows.data * np.repeat(known, np.diff(rows.indptr))
        return MixedRows(sp.csr_array((values, rows.indices, rows.indptr), rows.shape), columns)

    def known_share(self, X: Any) -> float:
        """Return the share of known words in the first texts; 1 if they have no words."""
        shares = known_shares(self.features, as_arrow(text_column(X)).slice(0, MAX_SAMPLE_TEXTS))
        return float(np.mean(shares[~np.isnan(shares)])) if not np.isnan(shares).all() else 1.0

    def names(self, features: NDArray[np.int64]) -> list[str]:
        """Return the n-grams of features, or numbers if names were not kept or a feature is a dense column."""
        if self.features.settings.has_names and (features < self.features.count).all():
            return self.features.names(features)
        return [f"feature {number}" for number in features.tolist()]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        return self.features.to_arrays() | ({} if self.meaning is None else self.meaning.to_arrays())

    def describe(self) -> dict[str, Any]:
        """Return the other values to save, as JSON."""
        meaning = {} if self.meaning is None else {"meaning": self.meaning.describe()}
        return self.features.describe() | meaning


@dataclass(frozen=True, eq=False)
class MatrixInput:
    """Rows are numbers: dense columns are standardized, CSR rows and mostly zero dense columns are not."""

    kind: Kind
    mean: NDArray[np.float32]  # (f,) empty if rows are not scaled
    scale: NDArray[np.float32]  # (f,)
    columns: tuple[str, ...] = ()

    @classmethod
    def fit(cls, X: Any, columns: tuple[str, ...], *, scaled: bool) -> MatrixInput:
        """Return the scaling of training rows."""
        if not scaled:
            zeros = np.zeros(0, np.float32)
            return cls("sparse" if is_sparse(X) else "dense", zeros, zeros, columns)
        count, zeros = max(X.shape[0], 1), np.zeros(X.shape[1])
        mean = sum((block.sum(0, dtype=np.float64) for block in _blocks(X)), zeros) / count
        deviation = np.sqrt(sum((((block - mean) ** 2).sum(0) for block in _blocks(X)), zeros) / count)
        deviation[deviation < 1e-12 * np.maximum(np.abs(mean), 1)] = 1
        filled = sum((np.count_nonzero(block, axis=0) for block in _blocks(X)), zeros) / count
        mean[filled < MIN_NONZERO_SHARE], deviation[filled < MIN_NONZERO_SHARE] = 0, 1
        return cls("dense", mean.astype(np.float32), (1 / deviation).astype(np.float32), columns)

    def rows(self, X: Any, threads: int | None = None, *, sparse: bool = True) -> Any:
        """Return rows for an engine: CSR if ``sparse``."""
        if sparse or self.kind == "sparse":
            return X if is_sparse(X) and not len(self.mean) else self._as_csr(X)
        return self._scaled(X.toarray() if is_sparse(X) else X)

    def _scaled(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        return (X - self.mean) * self.scale if len(self.mean) else X

    def _as_csr(self, X: Any) -> sp.csr_array:
        """Return scaled rows as CSR, without their zeros."""
        return sp.csr_array(sp.vstack([sp.csr_array(self._scaled(block)) for block in _blocks(X)], format="csr"))

    def names(self, features: NDArray[np.int64]) -> list[str]:
        """Return the names of columns, or their numbers."""
        return [self.columns[feature] if self.columns else f"feature {feature}" for feature in features.tolist()]

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        return {"mean": self.mean, "scale": self.scale}

    def describe(self) -> dict[str, Any]:
        """Return the other values to save, as JSON."""
        return {"columns": list(self.columns)}


@dataclass(frozen=True, eq=False)
class FrameInput:
    """Rows of a table with columns of texts, numbers, categories and vectors.

    The sparse features come first: n-grams, categories and marks of missing numbers. Then come the dense ones: numbers,
    ranks of numbers if rows have several labels and no text, vectors, and the meaning of texts.
    """

    columns: ColumnKinds
    text: TextInput | None
    numbers: Numbers
    ranks: Ranks
    categories: Categories
    vectors: tuple[VectorColumn, ...]
    lengths: Lengths
    kind: Kind = "frame"

    @classmethod
    def fit(
        cls,
        table: pa.Table,
        kinds: ColumnKinds,
        texts: TrainingTexts | None,
        source: TokenVectors | EncoderVectors | None = None,
        progress: Progress | None = None,
        *,
        several: bool = False,
        private: bool = False,
    ) -> tuple[FrameInput, Any]:
        """Return the features of training rows, and the rows.

        ``several`` means several labels per row, ``private`` that vectors are only compared with those of known texts.
        """
        text, rows = (None, None) if texts is None else texts.fit(source, progress, private=private)
        frame = cls.with_columns(text, table, kinds, source, several=several)
        return frame, frame._rows(table, rows)

    @classmethod
    def with_columns(
        cls,
        text: TextInput | None,
        table: pa.Table,
        kinds: ColumnKinds,
        source: TokenVectors | EncoderVectors | None,
        *,
        several: bool,
    ) -> FrameInput:
        """Return the features of texts together with those of the other columns of a table."""
        if text is None and source is not None:
            raise HiNetError("`vectors` and `encoder` need texts, and the rows have no text column; leave both out")
        vectors = tuple(VectorColumn.fit(kinds, table, name) for name in kinds.vector)
        numbers, categories = Numbers.fit(kinds, table), Categories.fit(kinds, table)
        lengths, ranks = Lengths.of(kinds), Ranks.none(len(kinds.number))
        if several and not kinds.text:
            lengths, ranks = Lengths(1.0, 1.0), Ranks.fit(numbers.values(table, kinds))
        frame = cls(kinds, text, numbers, ranks, categories, vectors, lengths)
        if not frame.count:
            raise HiNetError("no column has values that distinguish rows; give other columns")
        return frame

    @property
    def meaning(self) -> Meaning | None:
        """Meaning of the texts, if there are vectors."""
        return None if self.text is None else self.text.meaning

    @property
    def count(self) -> int:
        """Number of features, including dense columns."""
        return self._sparse + self._dense

    @property
    def _ngrams(self) -> int:
        return 0 if self.text is None else self.text.features.count

    @property
    def _sparse(self) -> int:
        return self._ngrams + len(self.categories.labels) + len(self.numbers.marked)

    @property
    def _dense(self) -> int:
        meaning = 0 if self.meaning is None else self.meaning.width
        return len(self.numbers.names) + len(self.ranks.knots) + sum(column.width for column in self.vectors) + meaning

    def rows(self, X: Any, threads: int | None, *, sparse: bool = True) -> Any:
        """Return the rows of a table as sparse rows with dense columns, or as one CSR matrix unless ``sparse``."""
        rows = self.rows_with_unknown(X, threads)
        return rows if is_sparse(rows) else rows.features() if sparse else rows.tocsr()

    def rows_with_unknown(self, X: Any, threads: int | None) -> Any:
        """Return the rows of a table, with the share of n-grams that are not features if it has texts."""
        table = as_table(X)
        return self._rows(table, None if self.text is None else self.text.rows_with_unknown(self.texts(table), threads))

    def foreign_rows(self, X: Any, threads: int | None, seed: int) -> Any:
        """Return the rows of a table whose texts were made foreign; other columns stay the same."""
        table = as_table(X)
        text = None if self.text is None else self.text.foreign_rows(self.texts(table), threads, seed)
        return self._rows(table, text)

    def _rows(self, table: pa.Table, text_rows: Any) -> Any:
        values = self.numbers.values(table, self.columns)
        codes = self.categories.codes(table, self.columns)
        sizes = [len(values) for values in self.categories.values]
        sparse: Any = one_hot(codes, sizes, np.isnan(values[:, self.numbers.missing]), self.lengths.category)
        numbers = self.numbers.scaled(values, self.lengths.number)
        dense = [numbers, self.ranks.scores(values), *(column.columns(table, self.columns) for column in self.vectors)]
        unknown = None
        if isinstance(text_rows, MixedRows):
            dense.append(text_rows.dense)
            text_rows, unknown = text_rows.sparse, text_rows.unknown
        if text_rows is not None:
            sparse = sp.csr_array(sp.hstack([text_rows, sparse], format="csr"), dtype=np.float32)
        if unknown is None and not self._dense:
            return sparse
        return MixedRows(sparse, np.concatenate(dense, axis=1), unknown)

    def texts(self, X: Any) -> pa.ChunkedArray:
        """Return the text of every row."""
        return texts_of(as_table(X), self.columns)

    def known_share(self, X: Any) -> float:
        """Return the share of known words in the first texts; 1 if there are no words."""
        return 1.0 if self.text is None else self.text.known_share(self.texts(as_table(X).slice(0, MAX_SAMPLE_TEXTS)))

    def names(self, features: NDArray[np.int64]) -> list[str]:
        """Return the names of features: n-grams, ``column = category``, or columns."""
        marks = [f"{name} is missing" for name in self.numbers.marked]
        vectors = [column.name for column in self.vectors for _ in range(column.width)]
        ranked = [name for name, wanted in zip(self.numbers.names, self.ranks.ranked, strict=True) if wanted]
        others = [*self.categories.labels, *marks, *self.numbers.names, *ranked, *vectors]
        others += ["meaning of the text"] * (self.count - self._ngrams - len(others))
        names = []
        for feature in features.tolist():
            if feature < self._ngrams and self.text is not None:
                names += self.text.names(np.array([feature]))
            else:
                names.append(others[feature - self._ngrams])
        return names

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""
        text = {} if self.text is None else self.text.to_arrays()
        numbers = self.numbers.to_arrays() | self.ranks.to_arrays()
        return text | numbers | vector_arrays(self.vectors) | {"columns.lengths": np.array(self.lengths, np.float64)}

    def describe(self) -> dict[str, Any]:
        """Return the other values to save, as JSON."""
        text = None if self.text is None else self.text.describe()
        return {"columns": self.columns.to_dict(), "categories": self.categories.describe(), "text": text}

    @classmethod
    def restored(cls, described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> FrameInput:
        """Return the input with this description and these arrays; raise HiNetError if they are invalid."""
        kinds = ColumnKinds.of(described["columns"])
        if bool(kinds.text) != (described["text"] is not None):
            raise HiNetError("the columns of text and the features of texts contradict each other")
        text = None if described["text"] is None else _restored_text(described["text"], arrays)
        numbers = Numbers.restored(kinds.number, arrays)
        categories = Categories.restored(kinds.category, described["categories"])
        vectors = restored_vectors(kinds.vector, arrays)
        ranks = Ranks.restored(len(kinds.number), arrays)
        return cls(kinds, text, numbers, ranks, categories, vectors, Lengths.restored(arrays))


Features: TypeAlias = TextInput | TunedInput | MatrixInput | FrameInput


def _blocks(X: Any) -> Iterator[NDArray[np.float32]]:
    """Yield rows as dense blocks."""
    size = max(1, BLOCK_CELLS // max(X.shape[1], 1))
    for start in range(0, max(X.shape[0], 1), size):
        block = X[start : start + size]
        yield block.toarray() if is_sparse(block) else block


SCALING = {name: floats("scaled", low=-FINITE, high=FINITE) for name in ("mean", "scale")}


def restore_features(described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], columns: int | None) -> Features:
    """Return the features with this description and these arrays; ``columns`` is the width of rows of numbers."""
    if "tuned" in described:
        return TunedInput.restored(described["tuned"], arrays)
    if described["kind"] == "text":
        return _restored_text(described, arrays)
    if described["kind"] == "frame":
        return FrameInput.restored(described, arrays)
    scaled = check_arrays(arrays, SCALING, {})["scaled"]
    names = tuple(described["columns"])
    if columns is None or scaled not in (0, columns) or len(names) not in (0, columns):
        raise HiNetError(f"rows of {columns} columns, of which {scaled:,} are scaled and {len(names):,} have names")
    mean, scale = (np.array(arrays[name], np.float32) for name in ("mean", "scale"))
    return MatrixInput(described["kind"], mean, scale, names)


def _restored_text(described: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> TextInput:
    meaning = Meaning.restored(described["meaning"], arrays) if "meaning" in described else None
    return TextInput(TextFeatures.from_arrays(arrays, described), meaning)


def encoder_of(features: Features) -> EncoderVectors | None:
    """Return the frozen encoder of texts, if there is one."""
    text = text_of(features)
    source = None if text is None or text.meaning is None else text.meaning.source
    return source if isinstance(source, EncoderVectors) else None


def with_bundled_encoder(features: Features) -> Features:
    """Return features with the encoder bundled; raise HiNetError if they have no encoder."""
    if isinstance(features, TunedInput):
        return features
    encoder, text = encoder_of(features), text_of(features)
    if encoder is None or text is None or text.meaning is None:
        raise HiNetError("the model has no encoder to bundle; leave `bundle_encoder` out")
    return with_text(features, replace(text, meaning=replace(text.meaning, source=encoder.bundle())))


def with_text(features: Features, text: TextInput) -> TextInput | FrameInput:
    """Return features with another input of their texts."""
    return replace(features, text=text) if isinstance(features, FrameInput) else text


def kind_of(X: Any) -> Kind:
    """Return the kind of rows; a frame with only numbers is dense."""
    if is_sparse(X):
        return "sparse"
    if _is_text(text_column(X)):
        return "text"
    return "frame" if is_frame(X) and is_mixed(X) else "dense"


def text_part(features: Features, X: Any) -> tuple[TextInput, Any] | None:
    """Return the input of the texts among rows, and the texts; None if there are none."""
    text = text_of(features)
    return None if text is None else (text, features.texts(X) if isinstance(features, FrameInput) else X)


def first_text(features: Features, X: Any) -> str | None:
    """Return the text of the first row, or None if rows have no texts."""
    texts = text_part(features, X)
    return None if texts is None else str(next(iter(texts[1])))


def unknown_rows(features: Features, rows: Any) -> NDArray[np.int64]:
    """Return the rows with text that have no feature: no known n-gram, and no other value."""
    if text_of(features) is None or not isinstance(rows, MixedRows | sp.sparray):
        return np.zeros(0, np.int64)
    sparse = rows.sparse if isinstance(rows, MixedRows) else rows
    empty = np.diff(sparse.indptr) == 0
    if isinstance(rows, MixedRows):
        empty &= ~rows.dense.any(axis=1)
    return np.flatnonzero(empty)


def text_of(features: Features) -> TextInput | None:
    """Return the input of the texts among rows, if their n-grams are features."""
    if isinstance(features, FrameInput):
        return features.text
    return features if isinstance(features, TextInput) else None


def private_columns(features: Features) -> int:
    """Return the number of last columns that are only compared with those of known texts."""
    text = text_of(features)
    return 0 if text is None else text.private_columns


def text_column(X: Any) -> Any:
    """Return the only column of a frame, a table or an array; anything else unchanged."""
    shape: tuple[int, ...] = getattr(X, "shape", ())
    if len(shape) != 2 or shape[1] != 1 or is_sparse(X):
        return X
    if hasattr(X, "iloc"):  # pandas
        return X.iloc[:, 0]
    return X.column(0) if hasattr(X, "column") else X[:, 0]  # Arrow; polars and NumPy


def _is_text(X: Any) -> bool:
    """Return whether ``X`` is a column of text, by its type or its first value."""
    if isinstance(X, str):
        return True  # one text; reading it raises an error
    if hasattr(X, "ndim") and X.ndim != 1:
        return False
    if hasattr(X, "dtype") and getattr(X.dtype, "kind", "O") in "biufc":
        return False
    if hasattr(X, "type") and not hasattr(X, "dtype"):  # Arrow
        return "string" in str(X.type)
    if hasattr(X, "columns") or not hasattr(X, "__len__") or not hasattr(X, "__getitem__"):
        return False
    if not len(X):
        return isinstance(X, list)
    first = next((value for value in X if value is not None and value == value), "")
    return isinstance(first, (str, bytes))


@dataclass(frozen=True, eq=False)
class TrainingTexts:
    """Training texts whose n-grams are hashed only once, even if features are fitted several times."""

    texts: Any
    settings: TextSettings | None
    threads: int | None

    @cached_property
    def _hashed(self) -> HashedTexts:
        return HashedTexts.of(self.texts, self.settings, self.threads)

    @cached_property
    def ngrams(self) -> tuple[TextFeatures, Any]:
        """The n-grams of the texts, and their rows."""
        return self._hashed.fit_transform(self.threads)

    def fit(
        self,
        source: TokenVectors | EncoderVectors | None = None,
        progress: Progress | None = None,
        more: Sequence[str] | None = None,
        *,
        private: bool = False,
    ) -> tuple[TextInput, Any]:
        """Return the features of the texts followed by ``more`` texts, and the rows.

        ``private`` means that vectors are only compared with those of known texts.
        """
        texts, (features, rows) = self.texts, self.ngrams
        if more is not None:
            texts = joined_texts(texts, more)
            features, rows = self._hashed.followed_by(more, self.threads).fit_transform(self.threads)
        if source is None:
            return TextInput(features), rows
        meaning, columns = Meaning.fit(source, texts, self.threads, progress, private=private)
        text_input = TextInput(features, meaning)
        return text_input, text_input.mixed(rows, texts, columns)


def joined_texts(texts: Any, more: Sequence[str]) -> pa.ChunkedArray:
    """Return texts followed by more texts."""
    return pa.chunked_array([*as_arrow(texts).chunks, *as_arrow(more).chunks], pa.large_string())


def check_container(X: Any) -> None:
    """Raise HiNetError if ``X`` is not an ordered container that can be read twice."""
    if isinstance(X, str):
        raise HiNetError(f"expected a list of texts, got one text {quoted(X)}; put it into a list")
    if isinstance(X, Iterator | Mapping | Set) or X is None:
        raise HiNetError(
            f"X: expected a list of texts, a CSR matrix or a 2-D array, got {format_value(X)}; put rows into a list"
        )


def other_kind(X: Any, kind: Kind) -> HiNetError:
    """Return the error for rows of another kind than the training rows."""
    if kind == "frame":
        return HiNetError(
            f"the classifier was trained on a frame with named columns, got {type(X).__name__}; give a pandas or "
            "polars frame, or an Arrow table"
        )
    expected, one = ("texts", "a text") if kind == "text" else ("rows of numbers", "a row of numbers")
    for row, value in enumerate(X if isinstance(X, list | tuple) else ()):
        if value is not None and isinstance(value, str | bytes) != (kind == "text"):
            return HiNetError(
                f"row {row}: expected {one}, got {format_value(value)}; the classifier was trained on {expected}"
            )
    return HiNetError(f"the classifier was trained on {expected}, got {type(X).__name__}; give it the same")


def count_of(X: Any) -> int:
    """Return the number of rows in any container."""
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def take_rows(values: Any, rows: NDArray[np.integer[Any]]) -> Any:
    """Return the rows of these numbers, of any container."""
    if hasattr(values, "to_pylist"):  # Arrow
        return values.take(pa.array(rows))
    if hasattr(values, "to_numpy"):
        values = values.to_numpy()
    return values[rows] if hasattr(values, "shape") else [values[row] for row in rows.tolist()]


def one_row(x: Any) -> Any:
    """Return a text, the features of one row, or a mapping of columns to values, as rows."""
    if isinstance(x, str):
        return [x]
    if hasattr(x, "to_dict") and getattr(x, "ndim", 2) == 1:  # a row of a pandas frame
        x = x.to_dict()
    if isinstance(x, Mapping):
        return one_row_table(x)
    if isinstance(x, (list, tuple)) and not any(isinstance(value, str) for value in x):
        x = np.asarray(x)
    return x.reshape(1, -1) if getattr(x, "ndim", 2) == 1 else x


def kind_to_fit(X: Any, columns: Any) -> Kind:
    """Return the kind of training rows: a frame if the parameter ``columns`` names its columns."""
    if columns is None:
        return kind_of(X)
    if not is_frame(X):
        raise HiNetError(
            f"`columns` names columns, and the rows are {type(X).__name__}; give a pandas or polars DataFrame or an "
            "Arrow table, or leave `columns` out"
        )
    return "frame"


def kind_to_predict(X: Any, trained: Kind) -> Kind:
    """Return the kind of rows, or raise HiNetError if it does not go with that of the training rows."""
    check_container(X)
    if trained == "frame":
        if not is_frame(X):
            raise other_kind(X, trained)
        return "frame"
    kind = kind_of(X)
    if kind == "frame" or (kind == "text") != (trained == "text"):
        raise other_kind(X, trained)
    return kind


def checked_input(estimator: Any, X: Any, kind: Kind, *, reset: bool = False) -> Any:
    """Return texts unchanged, a frame as a table, and numbers as a matrix that scikit-learn has checked.

    ``reset`` replaces the attributes ``n_features_in_`` and ``feature_names_in_`` of the estimator.
    """
    check_container(X)
    if reset and kind in ("frame", "text"):
        for name in ("n_features_in_", "feature_names_in_"):
            vars(estimator).pop(name, None)
    if kind == "frame":
        if not is_frame(X):
            raise other_kind(X, kind)
        return as_table(X)
    return text_column(X) if kind == "text" else _checked_matrix(estimator, X, reset)


def _checked_matrix(estimator: Any, X: Any, reset: bool) -> Any:
    from sklearn.utils.validation import validate_data

    if is_sparse(X):
        X = as_csr(X)
    try:
        checked = validate_data(
            estimator, X, reset=reset, accept_sparse="csr", dtype=np.float32, ensure_all_finite=False
        )
    except TypeError as error:
        raise InputTypeError(f"X: {error}") from error
    except ValueError as error:
        if str(error).startswith("could not convert string"):
            raise HiNetError(f"X has text among its columns ({error}); give one column of text, or numbers") from None
        raise HiNetError(f"X: {error}") from error
    if not is_sparse(checked):
        check_rows(checked)
    return checked


class DefaultVectors(NamedTuple):
    """Installed vectors, and whether only neighbours read them."""

    vectors: TokenVectors
    private: bool


def default_vectors(texts: Any, progress: Progress, *, few: bool, alone: bool = False) -> DefaultVectors | None:
    """Return the installed vectors if they suit the texts of training rows, else None; report which.

    All experts read the vectors of ``few`` rows, and those of a taxonomy ``alone``, whose texts have few words.
    """
    if not is_installed():
        return None
    if len(texts) < MIN_TEXTS and not alone:
        progress.message(f"no static vectors: {counted(len(texts), 'text is/texts are')} too few to need them")
        return None
    try:
        vectors = packaged_vectors()
    except HiNetError as error:
        progress.message(f"no static vectors: {error}")
        return None
    share = vectors.word_share(_evenly_spaced(texts))
    if share < MIN_WORD_SHARE:
        progress.message(f"no static vectors: these are for English, and know {share:.0%} of the words")
        return None
    private = not alone and not (few and share >= MIN_WORD_SHARE_FOR_ALL)
    progress.message(
        f"{'texts are also compared by' if private else 'all experts read'} static vectors of {vectors.package}"
    )
    return DefaultVectors(vectors if few else vectors.first_columns(COMPARED_COLUMNS), private)


def _evenly_spaced(texts: Any) -> Any:
    """Return evenly spaced texts."""
    array = as_arrow(texts)
    step = max(1, len(array) // SAMPLE_TEXTS)
    return array.take(list(range(0, len(array), step))[:SAMPLE_TEXTS])
