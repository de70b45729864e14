"""Streams of rows: read in chunks, counted in one pass, with a random sample of the rows in memory."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.classifier.columns import ColumnKinds, texts_of
from hinet.classifier.inputs import Kind, check_container, count_of, kind_of, text_column
from hinet.classifier.labels import labels_of_row, rows_of
from hinet.classifier.recognition import recognise
from hinet.data.frames import as_table, is_frame
from hinet.data.matrices import check_weights
from hinet.data.text.text_input import as_arrow
from hinet.data.text.vocabulary import BoundedCounts, Counts, TextSettings, resolve_auto
from hinet.errors import HiNetError, InputTypeError, LabelError, counted
from hinet.progress import SECONDS_BETWEEN_LINES, Progress

SAMPLE_ROWS = (
    100_000  # maximum rows of a stream in memory: held-out rows, and rows that columns and titles are judged by
)
SAMPLE_BYTES = 64_000_000  # approximate maximum size of the sample
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

Inputs: TypeAlias = pa.ChunkedArray | pa.Table
Weights: TypeAlias = NDArray[np.float64]
Source: TypeAlias = Iterable[tuple[Any, ...]] | Callable[[], Iterable[tuple[Any, ...]]]


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a stream; ``first`` is the number of the first one."""

    first: int
    inputs: Inputs
    labels: list[Any]
    weights: Weights | None = None

    def take(self, rows: NDArray[np.int64]) -> tuple[Inputs, list[Any], Weights | None]:
        """Return the inputs, labels and weights of the chosen rows."""
        if len(rows) == len(self.labels):
            return self.inputs, self.labels, self.weights
        weights = None if self.weights is None else self.weights[rows]
        return self.inputs.take(pa.array(rows, pa.int64())), [self.labels[row] for row in rows.tolist()], weights


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
                yield Chunk(first, inputs, labels, weights)
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
            self.kinds = recognise(table).warn() if self._columns is None else ColumnKinds.of(self._columns)
        return table.select([name for name in self.kinds.names if name in table.column_names])

    def texts(self, inputs: Inputs) -> pa.ChunkedArray | None:
        """Return the texts of rows, if they have any."""
        if isinstance(inputs, pa.ChunkedArray):
            return inputs
        assert self.kinds is not None
        return texts_of(inputs, self.kinds) if self.kinds.text else None


@dataclass(frozen=True)
class SampledRows:
    """Rows of a stream in memory, in their order, with the keys that they were drawn by and their numbers."""

    keys: NDArray[np.uint64]
    numbers: NDArray[np.int64]
    inputs: Inputs
    labels: list[Any]
    weights: Weights | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.int64]) -> SampledRows:
        """Return the chosen rows."""
        weights = None if self.weights is None else self.weights[rows]
        labels = [self.labels[row] for row in rows.tolist()]
        return SampledRows(self.keys[rows], self.numbers[rows], self.inputs.take(pa.array(rows)), labels, weights)

    def smallest(self, count: int) -> SampledRows:
        """Return the ``count`` rows with the smallest keys."""
        return self.take(np.sort(np.argsort(self.keys, kind="stable")[:count]))

    @classmethod
    def joined(cls, parts: list[SampledRows]) -> SampledRows:
        """Return several parts as one."""
        inputs: Any = [part.inputs for part in parts]
        if isinstance(inputs[0], pa.ChunkedArray):
            joined = pa.chunked_array([chunk for part in inputs for chunk in part.chunks], pa.large_string())
        else:
            joined = pa.concat_tables(inputs, promote_options="default")
        weights = [part.weights for part in parts if part.weights is not None]
        return cls(
            np.concatenate([part.keys for part in parts]), np.concatenate([part.numbers for part in parts]), joined,
            [label for part in parts for label in part.labels], np.concatenate(weights) if weights else None,
        )  # fmt: skip


@dataclass
class RowSample:
    """A random sample of the rows of a stream, drawn by keys that depend only on the seed and the row number."""

    seed: int
    max_rows: int = SAMPLE_ROWS
    max_bytes: int = SAMPLE_BYTES
    _parts: list[SampledRows] = field(default_factory=list)
    _max_key: int = (1 << 64) - 1
    _count: int = 0

    def add(self, chunk: Chunk) -> None:
        """Draw from more rows."""
        numbers = np.arange(chunk.first, chunk.first + len(chunk.labels))
        keys = _keys(numbers, self.seed)
        chosen = np.flatnonzero(keys <= np.uint64(self._max_key))
        if not len(chosen):
            return
        self._parts.append(SampledRows(keys[chosen], numbers[chosen], *chunk.take(chosen)))
        self._count += len(chosen)
        size = sum(part.inputs.nbytes for part in self._parts)
        if self._count > 2 * self.max_rows or size > 2 * self.max_bytes:
            self._keep(max(min(self.max_rows, int(self.max_bytes * self._count / max(size, 1))), 1))

    def _keep(self, count: int) -> None:
        kept = SampledRows.joined(self._parts).smallest(count)
        self._parts, self._count, self._max_key = [kept], len(kept), int(kept.keys.max())

    def rows(self) -> SampledRows:
        """Return the sample, at most ``max_rows`` rows."""
        if self._count > self.max_rows:
            self._keep(self.max_rows)
        return SampledRows.joined(self._parts)


@dataclass(frozen=True)
class StreamSummary:
    """Result of reading a stream once."""

    row_count: int
    labels: dict[Any, list[int]]  # label -> [first row that has it, number of rows that have it]
    has_sets: bool  # whether a row has several labels
    sample: SampledRows
    counts: Counts | None  # rows per n-gram; None without texts
    text: TextSettings | None  # "auto" of char_ngrams is resolved
    mean_weight: float | None  # mean of positive weights; None without weights
    digest: str


def read_stream(
    reader: ChunkReader, text: TextSettings | None, threads: int | None, seed: int, progress: Progress
) -> StreamSummary:
    """Read a stream once."""
    digest, sample = hashlib.blake2b(digest_size=20), RowSample(seed)
    labels: dict[Any, list[int]] = {}
    rows, weighted, weight, has_sets, has_weights = 0, 0, 0.0, False, False
    watch = Watch(progress, "read {:,} rows")

    def texts() -> Iterator[pa.ChunkedArray]:
        nonlocal rows, weighted, weight, has_sets, has_weights
        for chunk in reader.chunks():
            has_sets |= _count_labels(chunk, labels)
            _update(digest, chunk)
            sample.add(chunk)
            rows += len(chunk.labels)
            if chunk.weights is not None:
                has_weights = True
                weight, weighted = weight + float(chunk.weights.sum()), weighted + int(np.count_nonzero(chunk.weights))
            watch.advanced(len(chunk.labels))
            chunk_texts = reader.texts(chunk.inputs)
            if chunk_texts is not None:
                yield chunk_texts

    arrays, resolved = resolve_auto(texts(), text or TextSettings())
    counts = BoundedCounts(resolved, threads)
    for array in arrays:
        counts.add(array)
    if not rows:
        raise HiNetError("there are no rows in the stream; give some")
    if has_weights and not weighted:
        raise HiNetError("all sample weights are zero; give at least one row a positive weight")
    total = counts.total()
    return StreamSummary(
        rows, labels, has_sets, sample.rows(), total if total.texts else None, resolved,
        weight / weighted if has_weights else None, digest.hexdigest(),
    )  # fmt: skip


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
    for row, own in enumerate(chunk.labels, chunk.first):
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


def _keys(numbers: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """Return 64 pseudo-random bits per row number."""
    key = (numbers.astype(np.uint64) + np.uint64(seed % (1 << 32) << 32) + np.uint64(1)) * _MIX[0]
    key = (key ^ (key >> np.uint64(30))) * _MIX[1]
    key = (key ^ (key >> np.uint64(27))) * _MIX[2]
    return key ^ (key >> np.uint64(31))
