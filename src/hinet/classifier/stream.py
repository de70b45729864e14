"""Training rows in chunks of (X, y, weight), which do not fit in memory.

A stream is read twice: to count it, with a random sample of its rows in memory, and to write its rows to disk as
features.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.chunks import Chunk, ChunkReader, Source, StreamSummary, Watch, read_stream, sampling_keys
from hinet.classifier.inputs import (
    FrameInput,
    TextInput,
    text_of,
    with_text,
)
from hinet.classifier.labels import LabelCodec, codec_of_sets, labels_of_row, read_labels
from hinet.classifier.parameters import engine_settings, seed_of, torch_parameter
from hinet.classifier.predicted_sets import ancestors_given, form_from
from hinet.classifier.rows import (
    NO_VALID_ROWS,
    LabelledRows,
    Pair,
    Parameters,
    RowsInMemory,
    TitleRows,
    wants_sets,
)
from hinet.data import Traces
from hinet.data.datasets import holdout_mask
from hinet.data.matrices import MixedRows
from hinet.data.spill import NAMES, Spill, SpillWriter, block_count, check_disk_space, remove_spill
from hinet.data.text import TextFeatures
from hinet.data.text.features import Counts, TextSettings, hash_and_count
from hinet.data.text.streamed_features import NamingFeatures, features_from, named, without
from hinet.data.text.text_input import as_arrow
from hinet.encoders.meaning import EncoderVectors, Meaning
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine.model.groups import Groups
from hinet.engine.settings import plan_memory
from hinet.engine.training.rows import sample_values
from hinet.errors import HiNetError, LabelError, counted
from hinet.files import read_arrays, write_arrays
from hinet.parameters import GB, resolve_threads, total_memory
from hinet.progress import Progress
from hinet.taxonomy import Taxonomy

MAX_ROWS_IN_MEMORY = 20_000  # a stream with at most this many rows, and little text, trains as rows in memory do
TEXT_SHARE = 1 / 200  # share of memory; the features of less text always fit
MAX_HELD_OUT = 20_000
HELD_OUT_SHARE = 0.01  # share of the rows held out by default, if the wide expert cannot train on all rows
MAX_FEATURES = 1_000_000
MIN_FEATURES = 10_000
FEATURE_SHARE = 0.5  # share of memory for features
SIZED_ROWS = 2_000  # rows that the size of all rows is estimated from


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
        if summary.counts is None:
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
        if texts is None or not settings.wants_wide(flat=flat):
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
        if counts is None:
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


@dataclass(frozen=True)
class StreamWriter:
    """Writes the training rows of a stream, and titles of labels, to disk as features."""

    parameters: Parameters
    labelled: LabelledRows
    stream: StreamInfo
    titles: TitleRows | None
    features: TextInput | FrameInput
    progress: Progress

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """Yield the folder for rows on disk: that of checkpoints, or a temporary one."""
        if self.parameters["checkpoint"] is None:
            with tempfile.TemporaryDirectory(prefix="hinet-") as temporary:
                yield Path(temporary)
            return
        folder = Path(self.parameters["checkpoint"])
        try:
            yield folder
        except HiNetError:  # resuming would fail in the same way
            remove_spill(folder)
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
            raise

    def write(self, folder: Path) -> tuple[Spill, TextInput | FrameInput, LabelCodec]:
        """Return the rows on disk, perhaps of an earlier run; features have names and sets a form that they show."""
        spill = Spill.open(folder, self._fingerprint())
        if spill is None:
            spill = self._written(folder)
        else:
            self.progress.message(f"the rows are on disk already, in {folder}")
        codec, features, text = self.labelled.codec, self.features, text_of(self.features)
        if codec.sets is not None:
            codec = replace(codec, sets=form_from(*spill.notes["ancestors"]))
        if text is not None and isinstance(text.features, NamingFeatures):
            features = with_text(features, replace(text, features=named(text.features, read_arrays(folder / NAMES)[0])))
        return spill, features, codec

    def _written(self, folder: Path) -> Spill:
        writer, threads, titles = self._writer(folder), self.parameters["n_jobs"], self.titles
        codec, ancestors = self.labelled.codec, (False, True)
        for inputs, traces, weights in self._training_chunks():
            if codec.sets is not None:
                some, whole = ancestors_given(traces)
                ancestors = ancestors[0] or some, ancestors[1] and whole
            writer.add(self.features.rows(inputs, threads), traces, weights)
        if titles is not None:
            traces = Traces.of_nodes(codec.layers, titles.nodes)
            weights = titles.weights_with(self.labelled.nodes_with_rows, self.labelled.row_count)
            writer.add(self.features.rows(as_arrow(titles.texts), threads), traces, weights)
        text = text_of(self.features)
        if text is not None and isinstance(text.features, NamingFeatures):
            write_arrays(folder / NAMES, text.features.names_found())
        return writer.finish({"ancestors": list(ancestors)})

    @property
    def _seed(self) -> int:
        return seed_of(self.parameters["random_state"])

    def _writer(self, folder: Path) -> SpillWriter:
        some = self.features.rows(self.labelled.rows.slice(0, SIZED_ROWS), self.parameters["n_jobs"])
        rows = self.stream.summary.row_count
        values = (some.sparse.nnz if isinstance(some, MixedRows) else some.nnz) / some.shape[0]
        dense = some.dense.shape[1] if isinstance(some, MixedRows) else 0
        size = int(rows * (8 * values + 4 * dense + 40))
        check_disk_space(folder, size)
        self.progress.message(f"writing the rows to {folder}, about {size / GB:.2f} GB; they are removed at the end")
        blocks = block_count(rows, rows * (values + dense / 2))
        return SpillWriter(folder, blocks, self._seed, self.features.count, self._fingerprint(), dense)

    def _training_chunks(self) -> Iterator[tuple[Any, Traces, NDArray[np.float64] | None]]:
        """Yield inputs, labels and weights of the training rows; weights of None are all 1."""
        stream, summary, codec = self.stream, self.stream.summary, self.labelled.codec
        class_weight, rows = self.parameters["class_weight"], 0
        has_weights = self.titles is not None or class_weight is not None or summary.mean_weight is not None
        watch = Watch(self.progress, f"{{:,}} of {summary.row_count:,} rows are on disk")
        for chunk in stream.reader.chunks():
            rows += len(chunk)
            kept = [row for row, number in enumerate(chunk.numbers.tolist()) if number not in stream.held_out]
            if kept:
                trained = chunk.take(np.array(kept, np.int64))
                traces, weights = codec.encode(trained.labels), trained.weights
                if has_weights:
                    weights = np.ones(len(traces)) if weights is None else weights / (summary.mean_weight or 1.0)
                    if class_weight is not None:
                        weights = weights * codec.weights_of(class_weight, traces, stream.class_counts)
                yield trained.inputs, traces, weights
            watch.advanced(len(chunk))
        if rows != summary.row_count:
            raise HiNetError(
                f"the stream had {summary.row_count:,} rows when it was first read, now {rows:,}; do not change it"
            )

    def _fingerprint(self) -> str:
        """Return a digest that identifies rows on disk."""
        features, layers, titles = self.features, self.labelled.codec.layers, self.titles
        values = [self.parameters[name] for name in ("class_weight", "multilabel", "path_sep", "columns")]
        values += [self._seed, len(self.stream.held_out), features.count, features.describe(), layers.taxonomy.ids]
        values += [
            self.stream.summary.digest,
            None if titles is None else (titles.texts, titles.nodes.tolist(), titles.weight),
        ]
        digest = hashlib.blake2b(repr(values).encode(errors="surrogatepass"), digest_size=20)
        arrays = [*features.to_arrays().values(), layers.node, layers.ends, layers.option_offsets, layers.option_neuron]
        for array in arrays:
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()
