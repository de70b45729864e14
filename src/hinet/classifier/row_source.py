"""Training rows in chunks of (X, y, weight): rows in memory are one chunk, a stream has many.

A stream is counted in one pass, with a random sample of its rows in memory.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.classifier.columns import ColumnKinds, recognise, texts_of
from hinet.classifier.inputs import (
    Kind,
    TextInput,
    TrainingTexts,
    check_container,
    count_of,
    kind_of,
    take_rows,
    text_column,
)
from hinet.classifier.labels import (
    LabelCodec,
    Truth,
    checked_labels,
    codec_of_sets,
    has_sets,
    labels_of_row,
    read_labels,
    read_with_classes,
    rows_of,
)
from hinet.classifier.parameters import engine_settings, seed_of, torch_parameter
from hinet.classifier.predicted_sets import ancestors_given, form_from
from hinet.classifier.titles import TitleRows
from hinet.data import Traces
from hinet.data.datasets import holdout_mask
from hinet.data.frames import as_table, is_frame
from hinet.data.matrices import check_weights, validate_weights
from hinet.data.text import TextFeatures
from hinet.data.text.features import NamingFeatures, features_from, without
from hinet.data.text.text_input import as_arrow
from hinet.data.text.vocabulary import BoundedCounts, Counts, TextSettings, hash_and_count, resolve_auto
from hinet.encoders.meaning import EncoderVectors, Meaning
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine.model.groups import Groups
from hinet.engine.settings import plan_memory
from hinet.engine.training.rows import sample_values
from hinet.errors import HiNetError, InputTypeError, LabelError, counted
from hinet.memory import GB, total_memory
from hinet.parameters import resolve_threads
from hinet.progress import SECONDS_BETWEEN_LINES, Progress
from hinet.taxonomy import Taxonomy

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
            self.kinds = recognise(table).warn() if self._columns is None else ColumnKinds.of(self._columns)
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


@dataclass(frozen=True)
class StreamSummary:
    """Result of reading a stream once."""

    row_count: int
    labels: dict[Any, list[int]]  # label -> [first row that has it, number of rows that have it]
    has_sets: bool  # whether a row has several labels
    sample: Chunk
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


NO_VALID_ROWS = "valid: expected rows and their labels, got none; leave valid out, or give some"
MAX_ROWS_IN_MEMORY = 20_000  # a stream with at most this many rows, and little text, trains as rows in memory do
TEXT_SHARE = 1 / 200  # share of memory; the features of less text always fit
MAX_HELD_OUT = 20_000
HELD_OUT_SHARE = 0.01  # share of the rows held out by default, if the wide expert cannot train on all rows
MAX_FEATURES = 1_000_000
MIN_FEATURES = 10_000
FEATURE_SHARE = 0.5  # share of memory for features
SIZED_ROWS = 2_000  # rows that the size of all rows is estimated from

Parameters: TypeAlias = Mapping[str, Any]
Pair: TypeAlias = tuple[Any, Any]


@dataclass(frozen=True)
class StreamInfo:
    """A stream that was read once."""

    reader: ChunkReader
    summary: StreamSummary
    held_out: frozenset[int]  # numbers of rows that are not trained on
    class_counts: NDArray[np.float64]  # (nodes,) training rows of each label

    @property
    def row_count(self) -> int:
        """Number of training rows."""
        return self.summary.row_count - len(self.held_out)


@dataclass(frozen=True)
class LabelledRows:
    """Training rows with their labels, and validation rows; of a large stream a random sample."""

    rows: Any
    kind: Kind
    codec: LabelCodec
    traces: Traces
    weights: NDArray[np.float64] | None = None
    valid: tuple[Any, Truth] | None = None
    texts: TrainingTexts | CountedTexts | None = None
    kinds: ColumnKinds | None = None  # columns of a frame; None recognises them
    column_names: tuple[str, ...] = ()  # names of the columns of a matrix
    stream: StreamInfo | None = None  # None if all rows are here
    titles: TitleRows | None = None  # texts of the taxonomy that are the last rows

    @property
    def row_count(self) -> int:
        """Number of training rows, those of the stream that are not here included."""
        return len(self.traces) if self.stream is None else self.stream.row_count

    @property
    def nodes_with_rows(self) -> NDArray[np.int64]:
        """Nodes that are labels of training rows."""
        if self.stream is None:
            return np.unique(self.traces.end_nodes)
        return np.flatnonzero(self.stream.class_counts)

    @property
    def has_mainly_titles(self) -> bool:
        """Whether more than half of the rows are texts of the taxonomy."""
        return self.titles is not None and 2 * len(self.titles) > len(self.traces)

    def with_titles(self, titles: TitleRows | None) -> LabelledRows:
        """Return the rows with titles appended."""
        if titles is None:
            return self
        weights = titles.weights_after(self.weights, self.traces)
        return replace(self, rows=titles.after(self.rows), traces=titles.traces_after(self.traces), weights=weights)


@dataclass(frozen=True)
class RowsInMemory:
    """Checked input with its labels and weights: one chunk."""

    X: Any
    kind: Kind
    y: Any
    sample_weight: Any = None
    valid: Pair | None = None  # checked rows and labels
    classes: Any = None  # all labels, if the rows do not have them all
    kinds: ColumnKinds | None = None
    column_names: tuple[str, ...] = ()

    def read(
        self, parameters: Parameters, taxonomy: Taxonomy | None, progress: Progress, *, several: bool | None = None
    ) -> LabelledRows:
        """Return the rows with their labels; ``several`` says if rows have sets of labels, None decides by ``y``."""
        y, path_sep = checked_labels(self.y, count_of(self.X)), parameters["path_sep"]
        known = None if self.classes is None else read_with_classes(y, self.classes, taxonomy, path_sep)
        if several is None:
            several = wants_sets(parameters, has_several=has_sets(y))

        def read(labels: Any, like: LabelCodec | None = None) -> tuple[LabelCodec, Traces]:
            codec, traces = known, None
            if codec is None:
                codec, traces = read_labels(labels, taxonomy, path_sep, like)
            if several:
                codec = codec_of_sets(codec, "any")
                traces = codec.encode(labels)
                return replace(codec, sets=form_from(*ancestors_given(traces))), traces
            return codec, codec.encode(labels) if traces is None else traces

        codec, traces = read(y)
        codec.check_class_weight(parameters["class_weight"])
        X, weight, valid = self.X, self.sample_weight, self.valid
        if valid is not None:
            valid = valid[0], checked_labels(valid[1], count_of(valid[0]))
            if not len(valid[1]):
                raise HiNetError(NO_VALID_ROWS)
        elif parameters["validation_fraction"] is not None:
            chosen = holdout_mask(len(traces), parameters["validation_fraction"], seed_of(parameters["random_state"]))
            held_out, kept = np.flatnonzero(chosen), np.flatnonzero(~chosen)
            valid, X = (take_rows(X, held_out), take_rows(y, held_out)), take_rows(X, kept)
            codec, traces = read(take_rows(y, kept), codec)  # held-out rows do not make labels known
            if weight is not None:
                weight = validate_weights(weight, len(chosen))[~chosen]
        return LabelledRows(
            X, self.kind, codec, traces, row_weights(parameters, weight, codec, traces),
            None if valid is None else (valid[0], codec.truth(valid[1])),
            TrainingTexts(X, parameters["text"], parameters["n_jobs"]) if self.kind == "text" else None,
            self.kinds, self.column_names,
        )  # fmt: skip


def row_weights(
    parameters: Parameters, sample_weight: Any, codec: LabelCodec, traces: Traces
) -> NDArray[np.float64] | None:
    """Return the weight of every row, the product of its own weight and that of its labels; None if all are 1."""
    weights = None if sample_weight is None else validate_weights(sample_weight, len(traces))
    if parameters["class_weight"] is None:
        return weights
    by_class = codec.weights_of(parameters["class_weight"], traces)
    return validate_weights(by_class if weights is None else weights * by_class, len(traces))


def wants_sets(parameters: Parameters, *, has_several: bool) -> bool:
    """Return whether labels are sets; raise HiNetError if other parameters do not allow that."""
    several = has_several if parameters["multilabel"] == "auto" else bool(parameters["multilabel"])
    if several and parameters["decoding"] != "map":
        raise HiNetError(
            f"`decoding={parameters['decoding']!r}` answers with one label, and rows have several; leave it out, or "
            "set `multilabel=False`"
        )
    if several and (torch := torch_parameter(parameters)):
        raise HiNetError(f"{torch} is for one label per row; leave it out, or set `multilabel=False`")
    return several


@dataclass(frozen=True)
class RowStream:
    """Rows that are read in chunks, more than once; small streams train as rows in memory do."""

    source: Source
    valid: Pair | None = None

    def read(self, parameters: Parameters, taxonomy: Taxonomy | None, progress: Progress) -> LabelledRows:
        """Read the stream once; return all rows with their labels if they are few, else a sample of them."""
        if torch := torch_parameter(parameters):
            raise HiNetError(f"a stream trains with the fused engine; leave {torch} out")
        if self.valid is not None and not len(self.valid[1]):
            raise HiNetError(NO_VALID_ROWS)
        if parameters["patience"] is not None and self.valid is None and parameters["validation_fraction"] is None:
            raise HiNetError("`patience` needs validation rows; give `valid` or `validation_fraction`, or leave it out")
        reader = ChunkReader(self.source, parameters["columns"])
        seed, threads = seed_of(parameters["random_state"]), parameters["n_jobs"]
        summary = read_stream(reader, parameters["text"], threads, seed, progress)
        all_labels = _StreamLabels(parameters, taxonomy, summary, reader)
        if all_labels.fits_in_memory():
            assert reader.kind is not None
            sample = summary.sample
            chunk = RowsInMemory(
                sample.inputs, reader.kind, sample.labels, sample.weights, self.valid, kinds=reader.kinds
            )
            labelled = chunk.read(parameters, taxonomy, progress, several=all_labels.several)
        else:
            labelled = all_labels.label(self.valid, progress)
        rows, labels = counted(labelled.row_count, "training row"), counted(len(labelled.nodes_with_rows), "label")
        progress.message(f"{rows} with {labels}, from a stream")
        return labelled


@dataclass(frozen=True)
class TaxonomyTexts:
    """Titles, synonyms and definitions of a taxonomy as rows of its nodes, perhaps after the first rows of a user."""

    classes: Any = None  # labels in the form of predictions; None and leaves that are not named: ids of leaves
    rows: RowsInMemory | None = None  # rows in memory, with their own classes and validation rows
    valid: Pair | None = None  # checked rows and labels

    def read(self, parameters: Parameters, taxonomy: Taxonomy | None, progress: Progress) -> LabelledRows:
        """Return the texts with the labels of their nodes; raise HiNetError if no label has a text."""
        _check_taxonomy_alone(parameters, taxonomy)
        assert taxonomy is not None
        several = wants_sets(parameters, has_several=False)
        if self.rows is None:
            codec = self._codec(taxonomy, parameters["path_sep"])
            codec = codec_of_sets(codec, "deepest") if several else codec
            codec.check_class_weight(parameters["class_weight"])
            titles = TitleRows.of_taxonomy(codec)
            traces = titles.traces(codec.layers)
            weights = row_weights(parameters, None, codec, traces)
            labelled = LabelledRows(as_arrow(titles.texts), "text", codec, traces, weights, self._truth(codec))
        else:
            labelled = self.rows.read(parameters, taxonomy, progress, several=several)
            titles = TitleRows.of_taxonomy(labelled.codec)
            labelled = labelled.with_titles(titles)
        texts = TrainingTexts(labelled.rows, parameters["text"], parameters["n_jobs"])
        return replace(labelled, texts=texts, titles=titles)

    def _codec(self, taxonomy: Taxonomy, path_sep: str | None) -> LabelCodec:
        leaves = [taxonomy.ids[node] for node in np.flatnonzero(taxonomy.leaves & (taxonomy.depth >= 0)).tolist()]
        if self.classes is None:
            return read_labels(leaves, taxonomy, None)[0]
        try:
            return read_labels(self.classes, taxonomy, path_sep)[0]
        except LabelError as error:
            raise LabelError(f"classes: {error}") from None

    def _truth(self, codec: LabelCodec) -> tuple[Any, Truth] | None:
        if self.valid is None:
            return None
        labels = checked_labels(self.valid[1], count_of(self.valid[0]))
        if not len(labels):
            raise HiNetError(NO_VALID_ROWS)
        return self.valid[0], codec.truth(labels)


def _check_taxonomy_alone(parameters: Parameters, taxonomy: Taxonomy | None) -> None:
    """Raise HiNetError for parameters that the texts of a taxonomy cannot satisfy."""
    if taxonomy is None:
        raise HiNetError("training without rows needs a taxonomy with titles; give `taxonomy`, or train on rows")
    if parameters["titles"] is False:
        raise HiNetError("`titles=False`, but without rows there are only titles to train on; leave it out")
    if parameters["columns"] is not None:
        raise HiNetError("`columns` names columns of rows, and there are no rows, only texts; leave it out")
    if parameters["validation_fraction"] is not None:
        raise HiNetError("`validation_fraction` holds out rows, and there are no rows; give `valid`, or leave it out")


RowSource: TypeAlias = RowsInMemory | RowStream | TaxonomyTexts


@dataclass(frozen=True)
class _StreamLabels:
    """Labels of a stream that was read once, and the choice of its held-out rows."""

    parameters: Parameters
    taxonomy: Taxonomy | None
    summary: StreamSummary
    reader: ChunkReader

    @property
    def several(self) -> bool:
        return wants_sets(self.parameters, has_several=self.summary.has_sets)

    @property
    def memory(self) -> float:
        limit = self.parameters["memory_limit"]
        return float(total_memory() if limit is None else limit * GB)

    def fits_in_memory(self) -> bool:
        """Return whether all rows are in the sample and their features would be the same as in memory."""
        summary = self.summary
        if not len(summary.sample) == summary.row_count <= MAX_ROWS_IN_MEMORY:
            return False
        if summary.sample.inputs.nbytes > TEXT_SHARE * self.memory:
            return False
        if summary.counts is None or summary.text is None:
            return True
        max_features = self.max_features(self.read_codec([*summary.labels]))
        return features_from(summary.counts, summary.text, max_features).settings.max_features is None

    def label(self, valid: Pair | None, progress: Progress) -> LabelledRows:
        """Return a sample of the rows with labels, and what is known of all rows."""
        codec = self.read_codec([*self.summary.labels])
        held_out, sample = self.hold_out(codec, valid is not None, progress)
        codec, counts = self.without_held_out(codec, held_out)
        valid = (held_out.inputs, held_out.labels) if valid is None and len(held_out) else valid
        held = None if valid is None else (valid[0], codec.truth(valid[1]))
        nodes = codec.encode([{label} if codec.sets is not None else label for label in counts])
        ends = nodes.end_nodes[nodes.row_offsets[:-1]]
        class_counts = np.bincount(ends, [*counts.values()], len(codec.taxonomy)).astype(np.float64)
        assert self.reader.kind is not None
        return LabelledRows(
            sample.inputs, self.reader.kind, codec, codec.encode(sample.labels), None,
            held, self.texts(codec, held_out, sample), self.reader.kinds,
            stream=StreamInfo(self.reader, self.summary, frozenset(held_out.numbers.tolist()), class_counts),
        )  # fmt: skip

    def read_codec(self, labels: list[Any], like: LabelCodec | None = None) -> LabelCodec:
        """Return the codec of distinct labels, written ``like`` others; errors name the first row of a label."""
        try:
            return read_labels(labels, self.taxonomy, self.parameters["path_sep"], like)[0]
        except LabelError as error:
            rows = [first for first, _ in self.summary.labels.values()]
            message = re.sub(r"^row (\d+)", lambda match: f"row {rows[int(match[1])]}", str(error), count=1)
            raise LabelError(message) from None

    def hold_out(self, codec: LabelCodec, has_valid: bool, progress: Progress) -> tuple[Chunk, Chunk]:
        """Return the rows to hold out, and the others of the sample, of which there is at least one."""
        sample, rows, share = self.summary.sample, self.summary.row_count, self.parameters["validation_fraction"]
        most = len(sample) - 1 if len(sample) == rows else len(sample) // 2
        if has_valid:
            size = 0
        elif share is not None:
            wanted = int(holdout_mask(rows, share, 0).sum()) if rows < 2 * MAX_HELD_OUT else round(share * rows)
            size = min(wanted, MAX_HELD_OUT, most)
            if size < round(share * rows):
                message = f"{counted(size, 'row is/rows are')} held out, which is enough; the others are trained on"
                progress.message(message)
        else:
            size = min(self.default_holdout(codec), most)
            if size:
                progress.message(f"{counted(size, 'row is/rows are')} held out, to weight the experts")
        keys = sampling_keys(sample.numbers, seed_of(self.parameters["random_state"]))
        order = np.argsort(keys, kind="stable")
        return sample.take(np.sort(order[:size])), sample.take(np.sort(order[size:]))

    def default_holdout(self, codec: LabelCodec) -> int:
        """Return how many rows to hold out by default: some if the wide expert cannot train on all rows."""
        summary, settings = self.summary, engine_settings(self.parameters)
        texts = self.reader.texts(summary.sample.inputs.slice(0, SIZED_ROWS))
        labels = int(codec.layers.ends.sum())
        flat = not self.several and settings.wants_flat(labels, summary.row_count, codec.layers)
        if texts is None or summary.text is None or not settings.wants_wide(flat=flat):
            return 0
        hashed, _ = hash_and_count(texts, summary.text, 1)
        values = sum(len(part.words.hashes) + len(part.chars.hashes) for part in hashed) / max(len(texts), 1)
        if values * summary.row_count <= sample_values(settings.memory_limit):
            return 0
        return min(MAX_HELD_OUT, int(HELD_OUT_SHARE * summary.row_count))

    def without_held_out(self, codec: LabelCodec, held_out: Chunk) -> tuple[LabelCodec, dict[Any, int]]:
        """Return the codec of the labels that are trained on, and the number of training rows of each."""
        counts = {label: count for label, (_, count) in self.summary.labels.items()}
        for labels in held_out.labels:
            for label in labels_of_row(labels):
                counts[label] -= 1
        counts = {label: count for label, count in counts.items() if count}
        if len(counts) < len(self.summary.labels):  # held-out rows do not make labels known
            codec = self.read_codec([*counts], codec)
        codec.check_class_weight(self.parameters["class_weight"])
        return (codec_of_sets(codec, "any") if self.several else codec), counts

    def texts(self, codec: LabelCodec, held_out: Chunk, sample: Chunk) -> CountedTexts | None:
        """Return the n-grams of the training texts, if there are any."""
        counts, text = self.summary.counts, self.summary.text
        if counts is None or text is None:
            return None
        threads, given = self.parameters["n_jobs"], self.parameters["text"]
        if len(held_out):
            held_texts = self.reader.texts(held_out.inputs)
            assert held_texts is not None
            counts = without(counts, hash_and_count(held_texts, text, resolve_threads(threads))[1])
        keep_names = given is None or given.keep_names
        return CountedTexts(
            counts, text, self.max_features(codec), keep_names, self.reader.texts(sample.inputs), threads
        )

    def max_features(self, codec: LabelCodec) -> int:
        """Return the maximum number of features that memory has room for."""
        settings = engine_settings(self.parameters)
        members = settings.members_for(self.summary.row_count)
        width = settings.width_for(members, int(codec.layers.ends.sum())) * members
        outputs = plan_memory(features=0, outputs=Groups.of(codec.layers).rows, width=width).total
        each = plan_memory(features=1, outputs=0, width=width).total
        return int(min(MAX_FEATURES, max((FEATURE_SHARE * self.memory - outputs) / each, MIN_FEATURES)))


@dataclass(frozen=True)
class CountedTexts:
    """N-grams of the texts of a stream, which were counted when it was read, and the texts of a sample."""

    counts: Counts
    settings: TextSettings  # without "auto" of char_ngrams
    max_features: int
    keep_names: bool
    sample: Any
    threads: int | None

    @property
    def ngrams(self) -> tuple[TextFeatures, Any]:
        """The n-grams that are features, and the rows of the sample."""
        features = features_from(self.counts, self.settings, self.max_features)
        return features, features.transform(self.sample, self.threads)

    def fit(
        self, source: TokenVectors | EncoderVectors | None, titles: TitleRows | None, progress: Progress
    ) -> TextInput:
        """Return the features of the texts and of titles; names of n-grams are found when texts become rows."""
        counts = self.counts
        if titles is not None:
            counts += hash_and_count(as_arrow(titles.texts), self.settings, resolve_threads(self.threads))[1]
        ngrams = features_from(counts, self.settings, self.max_features)
        if ngrams.settings.max_features is not None:
            progress.message(f"the {ngrams.count:,} most frequent n-grams are features")
        meaning = None if source is None else Meaning.fit(source, self.sample, self.threads, progress)[0]
        has_names = self.keep_names and ngrams.settings.hash_bits is None
        return TextInput(NamingFeatures.of(ngrams) if has_names else ngrams, meaning)
