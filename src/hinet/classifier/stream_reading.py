"""The first pass over a stream: labels and n-grams are counted, and a random part of the rows is kept."""

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
from hinet.classifier.label_rows import labels_of_row, rows_of
from hinet.classifier.recognition import recognise
from hinet.data.frames import as_table, is_frame
from hinet.data.text.settings import TextSettings
from hinet.data.text.streaming import BoundedCounts
from hinet.data.text.text_input import as_arrow
from hinet.data.text.vocabulary import Counts, resolve_auto
from hinet.errors import HiNetError, InputTypeError, LabelError, counted
from hinet.progress import SECONDS_BETWEEN_LINES, Progress

SAMPLE_ROWS = 100_000  # that are kept in memory as they are: held-out rows, and what columns and titles are judged by
SAMPLE_BYTES = 64_000_000  # of them, about
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

Inputs: TypeAlias = pa.ChunkedArray | pa.Table
Source: TypeAlias = Iterable[tuple[Any, Any]] | Callable[[], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True)
class Chunk:
    """Some rows of a stream, and the number of the first one."""

    first: int
    inputs: Inputs
    labels: list[Any]


class ChunkReader:
    """Reads a source of pairs of rows and labels, as often as it is asked to, as chunks in one form."""

    def __init__(self, source: Source, columns: dict[str, Any] | None) -> None:
        if isinstance(source, Iterator):
            raise HiNetError(
                "a stream is read twice, and an iterator only once; give a function that returns a new iterator"
            )
        if isinstance(source, str | bytes) or not (callable(source) or isinstance(source, Iterable)):
            raise InputTypeError(
                f"expected pairs of rows and labels, or a function that returns them, got {type(source).__name__}; "
                "LabelledTables of hinet.data.tables reads files"
            )
        self._source, self._columns = source, columns
        self.kinds: ColumnKinds | None = None  # of a frame, as its first chunk has them
        self.kind: Kind | None = None

    def chunks(self) -> Iterator[Chunk]:
        """Yield all rows."""
        first = 0
        for pair in self._source() if callable(self._source) else self._source:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InputTypeError(f"expected pairs of rows and labels, got {type(pair).__name__}; give (X, y)")
            inputs, (labels, is_table) = self._inputs(pair[0], first), rows_of(pair[1])
            if is_table:
                raise LabelError("labels of a stream are one a row; give paths as tuples, not as columns")
            if len(labels) != count_of(inputs):
                raise HiNetError(
                    f"rows from {first}: {counted(count_of(inputs), 'row')} and {counted(len(labels), 'label')}"
                )
            if len(labels):
                yield Chunk(first, inputs, [tuple(label) if isinstance(label, list) else label for label in labels])
            first += len(labels)

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
            named = self._columns
            self.kinds = recognise(table).warn() if named is None else ColumnKinds.of(named)
        given = {*table.column_names}
        return table.select([name for name in self.kinds.names if name in given])

    def texts(self, inputs: Inputs) -> pa.ChunkedArray | None:
        """Return the texts of rows, if they have any."""
        if isinstance(inputs, pa.ChunkedArray):
            return inputs
        assert self.kinds is not None
        return texts_of(inputs, self.kinds) if self.kinds.text else None


@dataclass
class RowSample:
    """A random choice of the rows of a stream, by keys that depend on the seed and the row number alone."""

    seed: int
    most: int = SAMPLE_ROWS
    most_bytes: int = SAMPLE_BYTES
    _parts: list[tuple[NDArray[np.uint64], NDArray[np.int64], Inputs, list[Any]]] = field(default_factory=list)
    _below: int = (1 << 64) - 1
    _count: int = 0

    def add(self, chunk: Chunk) -> None:
        """Choose among more rows."""
        number = np.arange(chunk.first, chunk.first + len(chunk.labels))
        key = _keys(number, self.seed)
        chosen = np.flatnonzero(key <= np.uint64(self._below))
        if not len(chosen):
            return
        labels = [chunk.labels[row] for row in chosen.tolist()]
        self._parts.append((key[chosen], number[chosen], chunk.inputs.take(pa.array(chosen)), labels))
        self._count += len(chosen)
        if self._count > 2 * self.most or self._nbytes() > 2 * self.most_bytes:
            most = min(self.most, int(self.most_bytes * self._count / max(self._nbytes(), 1)))
            self._keep(max(most, 1))

    def _nbytes(self) -> int:
        return sum(inputs.nbytes for _, _, inputs, _ in self._parts)

    def _keep(self, most: int) -> None:
        key, number, inputs, labels = self.joined()
        order = np.sort(np.argsort(key, kind="stable")[:most])
        self._below = int(key[order].max())
        kept = inputs.take(pa.array(order))
        self._parts = [(key[order], number[order], kept, [labels[row] for row in order.tolist()])]
        self._count = len(order)

    def joined(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], Inputs, list[Any]]:
        """Return the chosen rows in their order: keys, numbers, rows and labels."""
        keys, numbers, inputs, labels = zip(*self._parts, strict=True)
        chunks = [chunk for part in inputs for chunk in getattr(part, "chunks", ())]
        joined = (
            pa.chunked_array(chunks, pa.large_string()) if isinstance(inputs[0], pa.ChunkedArray) else _stacked(inputs)
        )
        return np.concatenate(keys), np.concatenate(numbers), joined, [label for part in labels for label in part]

    def chosen(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], Inputs, list[Any]]:
        """Return at most the wanted number of rows in their order: keys, numbers, rows and labels."""
        if self._count > self.most:
            self._keep(self.most)
        return self.joined()


@dataclass(frozen=True)
class FirstPass:
    """What is known of a stream after it was read once."""

    rows: int
    labels: dict[Any, list[int]]  # every label: the first row that has it, and how many have
    several: bool  # whether a row has several labels
    sample: RowSample
    counts: Counts | None  # of n-grams; None without texts
    text: TextSettings | None  # with "auto" of char_ngrams resolved
    digest: str


def first_pass(
    reader: ChunkReader, text: TextSettings | None, threads: int | None, seed: int, progress: Progress
) -> FirstPass:
    """Read a stream once."""
    digest, sample = hashlib.blake2b(digest_size=20), RowSample(seed)
    labels: dict[Any, list[int]] = {}
    state = {"rows": 0, "several": False}
    watch = Watch(progress, "read {:,} rows")

    def texts() -> Iterator[pa.ChunkedArray]:
        for chunk in reader.chunks():
            state["several"] |= _count_labels(chunk, labels)
            _update(digest, chunk)
            sample.add(chunk)
            state["rows"] += len(chunk.labels)
            watch.advanced(len(chunk.labels))
            found = reader.texts(chunk.inputs)
            if found is not None:
                yield found

    arrays, resolved = resolve_auto(texts(), text or TextSettings())
    counts = BoundedCounts(resolved, threads)
    for array in arrays:
        counts.add(array)
    if not state["rows"]:
        raise HiNetError("there are no rows in the stream; give some")
    total = counts.total()
    return FirstPass(
        state["rows"], labels, bool(state["several"]), sample, total if total.texts else None, resolved,
        digest.hexdigest(),
    )  # fmt: skip


class Watch:
    """Tells every few seconds how far a pass is."""

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
    first = [sorted(map(repr, own)) if isinstance(own, set | frozenset) else own for own in chunk.labels]
    digest.update(repr(first).encode(errors="surrogatepass"))


def _keys(number: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """Return 64 bits that are about as good as random for each row number."""
    key = (number.astype(np.uint64) + np.uint64(seed % (1 << 32) << 32) + np.uint64(1)) * _MIX[0]
    key = (key ^ (key >> np.uint64(30))) * _MIX[1]
    key = (key ^ (key >> np.uint64(27))) * _MIX[2]
    return key ^ (key >> np.uint64(31))


def _stacked(tables: tuple[pa.Table, ...]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="default")
