"""Rows of a stream in chunks of (X, y, weight), counted in one pass, with a random sample in memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.classifier.columns import ColumnKinds, texts_of, training_columns
from hinet.classifier.inputs import Kind, check_container, count_of, kind_of, text_column
from hinet.classifier.labels import labels_of_row, rows_of
from hinet.data.frames import as_table, is_frame
from hinet.data.matrices import check_weights
from hinet.data.text.features import BoundedCounts, Counts, TextSettings, resolve_auto
from hinet.data.text.text_input import as_arrow
from hinet.errors import HiNetError, InputTypeError, LabelError, counted
from hinet.progress import SECONDS_BETWEEN_LINES, Progress

# Maximum rows of a stream in memory: held-out rows, and rows that columns and titles are judged by.
SAMPLE_ROWS = 100_000
SAMPLE_BYTES = 64_000_000  # approximate maximum size of the sample
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

Inputs: TypeAlias = pa.ChunkedArray | pa.Table
Weights: TypeAlias = NDArray[np.float64]
Source: TypeAlias = Iterable[tuple[Any, ...]] | Callable[[], Iterable[tuple[Any, ...]]]


@dataclass(frozen=True)
class Chunk:
    """Rows of a stream in memory, in their order, with their numbers in the stream."""

    numbers: NDArray[np.int64]
    inputs: Inputs
    labels: list[Any]
    weights: Weights | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> Chunk:
        """Return the chosen rows."""
        if len(rows) == len(self):
            return self
        weights = None if self.weights is None else self.weights[rows]
        inputs = self.inputs.take(pa.array(rows, pa.int64()))
        return Chunk(self.numbers[rows], inputs, [self.labels[row] for row in rows.tolist()], weights)

    @classmethod
    def joined(cls, parts: list[Chunk]) -> Chunk:
        """Return several chunks as one."""
        inputs: Any = [part.inputs for part in parts]
        if isinstance(inputs[0], pa.ChunkedArray):
            joined = pa.chunked_array([chunk for part in inputs for chunk in part.chunks], pa.large_string())
        else:
            joined = pa.concat_tables(inputs, promote_options="default")
        weights = [part.weights for part in parts if part.weights is not None]
        labels = [label for part in parts for label in part.labels]
        numbers = np.concatenate([part.numbers for part in parts])
        return cls(numbers, joined, labels, np.concatenate(weights) if weights else None)


class ChunkReader:
    """Reads a source of (X, y) or (X, y, sample_weight) any number of times, as chunks in one form."""

    def __init__(self, source: Source, columns: dict[str, Any] | None) -> None:
        if isinstance(source, Iterator):
            raise HiNetError(
                "a stream is read twice, and an iterator only once; give a function that returns a new iterator"
            )
        if isinstance(source, str | bytes) or not (callable(source) or isinstance(source, Iterable)):
            raise InputTypeError(
                "expected chunks (X, y) or (X, y, sample_weight), or a function that returns them, got "
                f"{type(source).__name__}; LabelledTables of hinet.data.tables reads files"
            )
        self._source, self._columns = source, columns
        self.kinds: ColumnKinds | None = None  # columns of a frame, recognised in its first chunk
        self.kind: Kind | None = None
        self._has_weights: bool | None = None

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows."""
        first = 0
        for item in self._source() if callable(self._source) else self._source:
            if not isinstance(item, tuple) or len(item) not in (2, 3):
                given = type(item).__name__
                raise InputTypeError(f"expected chunks (X, y) or (X, y, sample_weight), got {given}")
            inputs, (labels, is_table) = self._inputs(item[0], first), rows_of(item[1])
            if is_table:
                raise LabelError("a stream needs one label per row; give paths as tuples, not as columns")
            if len(labels) != count_of(inputs):
                raise HiNetError(
                    f"rows from {first}: {counted(count_of(inputs), 'row')} and {counted(len(labels), 'label')}"
                )
            weights = self._weights(item[2] if len(item) == 3 else None, len(labels), first)
            if len(labels):
                labels = [tuple(label) if isinstance(label, list) else label for label in labels]
                yield Chunk(np.arange(first, first + len(labels)), inputs, labels, weights)
            first += len(labels)

    def _weights(self, given: Any, rows: int, first: int) -> Weights | None:
        if self._has_weights is None:
            self._has_weights = given is not None
        if self._has_weights != (given is not None):
            raise HiNetError(f"rows from {first}: some chunks have sample weights and some do not; give all or none")
        return None if given is None else check_weights(given, rows, first)

    def _inputs(self, X: Any, first: int) -> Inputs:
        check_container(X)
        if self.kind is None:
            self.kind = "frame" if self._columns is not None else kind_of(X)
        if self.kind == "text":
            return as_arrow(text_column(X), first)
        if self.kind != "frame" or not is_frame(X):
            raise HiNetError(
                f"a stream has texts, or frames with columns of text, numbers, categories or vectors; got "
                f"{type(X).__name__}; give matrices to fit"
            )
        table = as_table(X)
        if self.kinds is None:
            self.kinds = training_columns(table, self._columns)
        return table.select([name for name in self.kinds.names if name in table.column_names])

    def texts(self, inputs: Inputs) -> pa.ChunkedArray | None:
        """Return the texts of rows, if they have any."""
        if isinstance(inputs, pa.ChunkedArray):
            return inputs
        assert self.kinds is not None
        return texts_of(inputs, self.kinds) if self.kinds.text else None


@dataclass
class RowSample:
    """A random sample of the rows of a stream, drawn by keys that depend only on the seed and the row number."""

    seed: int
    max_rows: int = SAMPLE_ROWS
    max_bytes: int = SAMPLE_BYTES
    _parts: list[Chunk] = field(default_factory=list)
    _max_key: int = (1 << 64) - 1
    _count: int = 0

    def add(self, chunk: Chunk) -> None:
        """Draw from more rows."""
        chosen = np.flatnonzero(sampling_keys(chunk.numbers, self.seed) <= np.uint64(self._max_key))
        if not len(chosen):
            return
        self._parts.append(chunk.take(chosen))
        self._count += len(chosen)
        size = sum(part.inputs.nbytes for part in self._parts)
        if self._count > 2 * self.max_rows or size > 2 * self.max_bytes:
            self._keep(max(min(self.max_rows, int(self.max_bytes * self._count / max(size, 1))), 1))

    def _keep(self, count: int) -> None:
        """Keep the rows with the smallest keys."""
        rows = Chunk.joined(self._parts)
        keys = sampling_keys(rows.numbers, self.seed)
        smallest = np.sort(np.argsort(keys, kind="stable")[:count])
        self._parts, self._count, self._max_key = [rows.take(smallest)], len(smallest), int(keys[smallest].max())

    def rows(self) -> Chunk:
        """Return the sample, at most ``max_rows`` rows."""
        if self._count > self.max_rows:
            self._keep(self.max_rows)
        return Chunk.joined(self._parts)


@dataclass
class StreamSummary:
    """Result of reading a stream once."""

    sample_rows: RowSample
    text: TextSettings  # "auto" of char_ngrams is resolved
    row_count: int = 0
    labels: dict[Any, list[int]] = field(default_factory=dict)  # label -> [first row that has it, number of its rows]
    has_sets: bool = False  # whether a row has several labels
    counts: Counts | None = None  # rows per n-gram; None without texts
    total_weight: float | None = None  # None without weights
    weighted: int = 0  # number of rows with a positive weight
    _digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=20))

    def add(self, chunk: Chunk) -> None:
        """Count the rows of a chunk, and draw from them."""
        self.has_sets |= _count_labels(chunk, self.labels)
        _update(self._digest, chunk)
        self.sample_rows.add(chunk)
        self.row_count += len(chunk)
        if chunk.weights is not None:
            self.total_weight = (self.total_weight or 0.0) + float(chunk.weights.sum())
            self.weighted += int(np.count_nonzero(chunk.weights))

    @cached_property
    def sample(self) -> Chunk:
        """Some rows."""
        return self.sample_rows.rows()

    @property
    def mean_weight(self) -> float | None:
        """Mean of positive weights; None without weights."""
        return None if self.total_weight is None else self.total_weight / self.weighted

    @property
    def digest(self) -> str:
        """Digest of all rows, labels and weights."""
        return str(self._digest.hexdigest())


def read_stream(
    reader: ChunkReader, text: TextSettings | None, threads: int | None, seed: int, progress: Progress
) -> StreamSummary:
    """Read a stream once."""
    summary, watch = StreamSummary(RowSample(seed), text or TextSettings()), Watch(progress, "read {:,} rows")

    def texts() -> Iterator[pa.ChunkedArray]:
        for chunk in reader.chunks():
            summary.add(chunk)
            watch.advanced(len(chunk))
            chunk_texts = reader.texts(chunk.inputs)
            if chunk_texts is not None:
                yield chunk_texts

    arrays, summary.text = resolve_auto(texts(), summary.text)
    counts = BoundedCounts(summary.text, threads)
    for array in arrays:
        counts.add(array)
    if not summary.row_count:
        raise HiNetError("there are no rows in the stream; give some")
    if summary.total_weight is not None and not summary.weighted:
        raise HiNetError("all sample weights are zero; give at least one row a positive weight")
    total = counts.total()
    summary.counts = total if total.texts else None
    return summary


class Watch:
    """Reports the number of rows read, every few seconds."""

    def __init__(self, progress: Progress, text: str) -> None:
        self._progress, self._text = progress, text
        self._rows, self._last = 0, time.monotonic()

    def advanced(self, rows: int) -> None:
        """Count more rows."""
        self._rows += rows
        if time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            self._progress.message(self._text.format(self._rows))


def _count_labels(chunk: Chunk, labels: dict[Any, list[int]]) -> bool:
    """Count the labels of a chunk; return whether a row has several."""
    several = False
    for row, own in zip(chunk.numbers.tolist(), chunk.labels, strict=True):
        if isinstance(own, set | frozenset):
            if not own:
                raise LabelError(f"row {row}: no label; leave the row out")
            several |= len(own) > 1
        for label in labels_of_row(own):
            try:
                known = labels.get(label)
            except TypeError:
                raise LabelError(
                    f"row {row}: {type(label).__name__} cannot be a label; give texts or numbers"
                ) from None
            if known is None:
                labels[label] = [row, 1]
            else:
                known[1] += 1
    return several


def _update(digest: Any, chunk: Chunk) -> None:
    """Add a chunk to a digest."""
    table = pa.table([chunk.inputs], ["text"]) if isinstance(chunk.inputs, pa.ChunkedArray) else chunk.inputs
    sink = pa.BufferOutputStream()  # the same bytes for the same rows, however their buffers are laid out
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    digest.update(sink.getvalue())
    labels = [sorted(map(repr, own)) if isinstance(own, set | frozenset) else own for own in chunk.labels]
    digest.update(repr(labels).encode(errors="surrogatepass"))
    if chunk.weights is not None:
        digest.update(chunk.weights.tobytes())


def sampling_keys(numbers: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """Return 64 pseudo-random bits per row number."""
    key = (numbers.astype(np.uint64) + np.uint64(seed % (1 << 32) << 32) + np.uint64(1)) * _MIX[0]
    key = (key ^ (key >> np.uint64(30))) * _MIX[1]
    key = (key ^ (key >> np.uint64(27))) * _MIX[2]
    return key ^ (key >> np.uint64(31))
