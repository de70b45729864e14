"""Training from a stream: one pass counts, one writes rows as features to disk, then experts train from there."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.classifier.fitted import Fitted
from hinet.classifier.fitting import engine_settings, is_dense, validation_rows, vector_kind
from hinet.classifier.held_out import HeldOut
from hinet.classifier.inputs import FrameInput, TextInput
from hinet.classifier.label_reading import codec_of_sets, read_labels
from hinet.classifier.label_rows import labels_of_row
from hinet.classifier.labels import LabelCodec
from hinet.classifier.parameters import seed_of
from hinet.classifier.predicted_sets import SetRule, ancestors_given, form_from
from hinet.classifier.stream_reading import ChunkReader, FirstPass, Inputs, Source, Watch, first_pass
from hinet.classifier.titles import TitleRows, best_titles, chosen_titles
from hinet.classifier.trust_fitting import with_learned_trust
from hinet.data import Traces
from hinet.data.matrices import MixedRows
from hinet.data.rows import holdout_mask
from hinet.data.spill import NAMES, Spill, SpillWriter, block_count, check_room, remove_spill
from hinet.data.text import TextFeatures
from hinet.data.text.streaming import NamingFeatures, features_from, named, without
from hinet.data.text.text_input import as_arrow
from hinet.data.text.vocabulary import Counts, hash_and_count
from hinet.encoders.meaning import Meaning, vector_source
from hinet.engine import Search, fit
from hinet.engine.model.groups import Groups
from hinet.engine.settings import RowShape, plan_memory, settings_for
from hinet.engine.training.rows import sample_values
from hinet.errors import HiNetError, LabelError, counted
from hinet.files import read_arrays, write_arrays
from hinet.memory import GB, total_memory
from hinet.parameters import resolve_threads
from hinet.progress import Progress
from hinet.taxonomy import Taxonomy

MOST_HELD = 20_000  # rows that are held out
HELD_SHARE = 0.01  # of the rows, where experts do not train on the same rows, unless told otherwise
MOST_FEATURES = 1_000_000
SHARE_OF_MEMORY = 0.5  # for features, where memory is short
LEAST_FEATURES = 10_000
LOOKED_AT = 2_000  # rows that tell how much room rows take


class Streamed(NamedTuple):
    """The result of training from a stream."""

    fitted: Fitted
    held_out: HeldOut | None
    columns: tuple[str, ...]  # of a frame


@dataclass(frozen=True)
class _Rows:
    """Rows that are held in memory as they are."""

    inputs: Inputs
    labels: list[Any]
    numbers: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> _Rows:
        return _Rows(self.inputs.take(pa.array(rows)), [self.labels[row] for row in rows.tolist()], self.numbers[rows])


class StreamTraining:
    """Trains a model by the parameters of a classifier; ``taxonomy`` is None if it is to be inferred."""

    def __init__(self, parameters: Mapping[str, Any], taxonomy: Taxonomy | None, progress: Progress) -> None:
        self._parameters, self._taxonomy, self._progress = parameters, taxonomy, progress
        self._seed, self._threads = seed_of(parameters["random_state"]), parameters["n_jobs"]

    def fit(self, source: Source, valid: tuple[Any, Any] | None) -> Streamed:
        """Train on all rows of a source; ``valid`` has validation rows and their labels."""
        reader = ChunkReader(source, self._parameters["columns"])
        self._reader = reader
        first = first_pass(reader, self._parameters["text"], self._threads, self._seed, self._progress)
        every = self._read_labels(first, [*first.labels])
        held, sample = self._held_out(first, every, valid is not None)
        codec, counts = self._codec(first, held, every)
        valid_rows, valid_labels = (held.inputs, held.labels) if valid is None else valid
        truth = codec.truth(valid_labels) if len(valid_labels) else None  # raises before rows are read once more
        trained = counted(first.rows - len(held.labels), "training row")
        self._progress.message(f"{trained} with {counted(len(counts), 'label')}, from a stream")
        titles, weights_of_titles = self._titles(first, held, sample, codec, counts)
        if titles is not None:
            self._progress.message(titles.note)
        features = self._features(first, held, sample, codec, titles)
        fingerprint = self._fingerprint(first, features, codec, len(held.labels), (titles, weights_of_titles))
        with self._folder() as folder:
            spill = Spill.opened(folder, fingerprint)
            if spill is None:
                spill = self._spill(
                    folder, fingerprint, first, held, sample, codec, features, (titles, weights_of_titles)
                )
            else:
                self._progress.message(f"the rows are on disk already, in {folder}")
            if codec.sets is not None:
                codec = replace(codec, sets=form_from(*spill.notes["ancestors"]))
            features = _with_names(features, folder)
            held_out = None if truth is None else HeldOut(features.rows_with_unknown(valid_rows, self._threads), truth)
            fitted = self._train(spill, features, codec, held_out, titles, sample, first)
            remove_spill(folder)
        if codec.sets is None:
            traces = codec.encode(sample.labels)
            fitted, held_out = with_learned_trust(fitted, sample.inputs, traces, held_out, valid_rows, self._seed)
        names = () if reader.kinds is None else reader.kinds.names
        return Streamed(fitted, held_out, tuple(names))

    def _held_out(self, first: FirstPass, codec: LabelCodec, has_valid: bool) -> tuple[_Rows, _Rows]:
        """Return the rows to hold out, and the others of the sample, of which there are always some."""
        key, number, inputs, labels = first.sample.chosen()
        share = self._parameters["validation_fraction"]
        most = len(number) - 1 if len(number) == first.rows else len(number) // 2
        if has_valid:
            size = 0
        elif share is not None:
            size = min(int(holdout_mask(first.rows, share, 0).sum()) if first.rows < 2 * MOST_HELD else
                       round(share * first.rows), MOST_HELD, most)  # fmt: skip
            if size < round(share * first.rows):
                self._progress.message(
                    f"{counted(size, 'row is/rows are')} held out, which is enough; the others are trained on"
                )
        else:
            size = min(self._size_of_unasked(first, codec, inputs), most)
            if size:
                self._progress.message(f"{counted(size, 'row is/rows are')} held out, to weight the experts")
        order = np.argsort(key, kind="stable")
        rows = _Rows(inputs, labels, number)
        return rows.take(np.sort(order[:size])), rows.take(np.sort(order[size:]))

    def _size_of_unasked(self, first: FirstPass, codec: LabelCodec, inputs: Inputs) -> int:
        """Return how many rows are held out unasked: some if the wide expert cannot train on all rows."""
        some, settings = self._reader.texts(inputs.slice(0, LOOKED_AT)), engine_settings(self._parameters)
        labels = int(codec.layers.ends.sum())
        flat = not self._has_sets(first) and settings.wants_flat(labels, first.rows, codec.layers)
        if first.counts is None or some is None or not settings.wants_wide(flat=flat):
            return 0
        assert first.text is not None
        hashed, _ = hash_and_count(some, first.text, 1)
        values = sum(len(part.words.hashes) + len(part.chars.hashes) for part in hashed) / max(len(some), 1)
        if values * first.rows <= sample_values(self._parameters["memory_limit"]):
            return 0
        return min(MOST_HELD, int(HELD_SHARE * first.rows))

    def _has_sets(self, first: FirstPass) -> bool:
        """Return whether rows may have several labels."""
        several = self._parameters["multilabel"]
        return first.several if several == "auto" else bool(several)

    def _read_labels(self, first: FirstPass, labels: list[Any], like: LabelCodec | None = None) -> LabelCodec:
        """Return the codec of different labels, written ``like`` others."""
        try:
            return read_labels(labels, self._taxonomy, self._parameters["path_sep"], like)[0]
        except LabelError as error:
            raise _renumbered(error, [*first.labels.values()]) from None

    def _codec(self, first: FirstPass, held: _Rows, codec: LabelCodec) -> tuple[LabelCodec, dict[Any, int]]:
        """Return the codec of all labels that are trained on, given that of all, and how many rows each has."""
        left = {label: count for label, (_, count) in first.labels.items()}
        for own in held.labels:
            for label in labels_of_row(own):
                left[label] -= 1
        known = [label for label, count in left.items() if count]
        if len(known) < len(first.labels):  # held-out rows do not make labels known, as new rows would not
            codec = self._read_labels(first, known, codec)
        codec.check_class_weight(self._parameters["class_weight"])
        if self._has_sets(first):
            if self._parameters["decoding"] != "map":
                raise HiNetError(f"`decoding={self._parameters['decoding']!r}` answers with one label; leave it out")
            codec = codec_of_sets(codec, "any")
        return codec, {label: left[label] for label in known}

    def _nodes(self, codec: LabelCodec, counts: dict[Any, int]) -> NDArray[np.int64]:
        """Return the node of every label."""
        traces = codec.encode([{label} if codec.sets is not None else label for label in counts])
        nodes: NDArray[np.int64] = traces.end_nodes[traces.row_offsets[:-1]].astype(np.int64)
        return nodes

    def _titles(
        self, first: FirstPass, held: _Rows, sample: _Rows, codec: LabelCodec, counts: dict[Any, int]
    ) -> tuple[TitleRows | None, NDArray[np.float64]]:
        """Return the titles of labels that are rows as well, if any, and their weights."""
        nodes = self._nodes(codec, counts)
        self._class_counts = np.bincount(nodes, [*counts.values()], len(codec.taxonomy)).astype(np.float64)
        with_rows = np.unique(nodes)

        def learned(choices: list[TitleRows]) -> tuple[TitleRows, float]:
            ngrams = self._ngrams(first, held, None, codec)
            rows = ngrams.transform(sample.inputs, self._threads)
            title_rows = [ngrams.transform(choice.texts, self._threads) for choice in choices]
            return best_titles(rows, codec.encode(sample.labels), choices, title_rows, self._seed)

        wanted, kind = self._parameters["titles"], self._reader.kind
        titles, weight = chosen_titles(wanted, kind, codec, with_rows, first.rows, learned)
        return titles, np.zeros(0) if titles is None else titles.weights_beside(with_rows, first.rows, weight)

    def _ngrams(self, first: FirstPass, held: _Rows, titles: TitleRows | None, codec: LabelCodec) -> TextFeatures:
        """Return the n-grams that are features, without names."""
        assert first.counts is not None
        assert first.text is not None
        counts = first.counts
        if len(held.labels):
            counts = without(counts, self._counted(self._reader.texts(held.inputs), first))
        if titles is not None:
            counts = counts + self._counted(as_arrow(titles.texts), first)
        return features_from(counts, first.text, self._most_features(first, codec))

    def _counted(self, texts: Any, first: FirstPass) -> Counts:
        assert first.text is not None
        return hash_and_count(texts, first.text, resolve_threads(self._threads))[1]

    def _most_features(self, first: FirstPass, codec: LabelCodec) -> int:
        """Return how many features there may be at most, by the memory that each takes."""
        settings = engine_settings(self._parameters)
        members = settings.members_for(first.rows)
        labels = int(codec.layers.ends.sum())
        width = settings.width_for(members, labels) * members
        limit = (total_memory() if settings.memory_limit is None else settings.memory_limit * GB) * SHARE_OF_MEMORY
        outputs = plan_memory(features=0, outputs=Groups.of(codec.layers).rows, width=width).total
        each = plan_memory(features=1, outputs=0, width=width).total
        return int(min(MOST_FEATURES, max((limit - outputs) / each, LEAST_FEATURES)))

    def _features(
        self, first: FirstPass, held: _Rows, sample: _Rows, codec: LabelCodec, titles: TitleRows | None
    ) -> TextInput | FrameInput:
        """Return how rows become features; names of n-grams are found when they do."""
        source = vector_source(self._parameters["vectors"], self._parameters["encoder"])
        text, kinds = None, self._reader.kinds
        if first.counts is not None:
            ngrams = self._ngrams(first, held, titles, codec)
            if ngrams.settings.max_features is not None:
                self._progress.message(f"the {ngrams.count:,} most frequent n-grams are features")
            meaning = None
            if source is not None:
                meaning = Meaning.fit(source, self._reader.texts(sample.inputs), self._threads, self._progress)[0]
            given = self._parameters["text"]
            names = (given is None or given.keep_names) and ngrams.settings.hash_bits is None
            text = TextInput(NamingFeatures.of(ngrams) if names else ngrams, meaning)
        elif source is not None:
            raise HiNetError("`vectors` and `encoder` read texts, and the rows have no column of text; leave both out")
        if kinds is None:
            assert text is not None
            return text
        frame = FrameInput.beside(text, sample.inputs, kinds, several=codec.sets is not None)
        if codec.sets is not None and is_dense(frame):
            raise HiNetError(
                "a stream of rows with several labels needs a column of text; add one, or read all rows into memory"
            )
        return frame

    def _fingerprint(
        self,
        first: FirstPass,
        features: TextInput | FrameInput,
        codec: LabelCodec,
        held: int,
        titles: tuple[TitleRows | None, NDArray[np.float64]],
    ) -> str:
        """Return what the rows on disk are recognised by."""
        digest = hashlib.blake2b(first.digest.encode(), digest_size=20)
        keys = ("class_weight", "multilabel", "path_sep", "columns")
        digest.update(repr([self._parameters[key] for key in keys]).encode())
        digest.update(repr([self._seed, held, features.count, features.describe()]).encode())
        layers, (rows, weights) = codec.layers, titles
        texts = (layers.taxonomy.ids, () if rows is None else rows.texts)
        digest.update(repr(texts).encode(errors="surrogatepass"))
        numbering = (layers.node, layers.ends, layers.option_offsets, layers.option_neuron)
        nodes = () if rows is None else (rows.nodes,)
        for array in (*features.to_arrays().values(), *numbering, *nodes, weights):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        """Yield the folder for the rows: that of checkpoints, or one that is removed."""
        if self._parameters["checkpoint"] is not None:
            folder = Path(self._parameters["checkpoint"])
            try:
                yield folder
            except HiNetError:  # to go on would end alike
                remove_spill(folder)
                if folder.is_dir() and not any(folder.iterdir()):
                    folder.rmdir()
                raise
            return
        with tempfile.TemporaryDirectory(prefix="hinet-") as temporary:
            yield Path(temporary)

    def _spill(
        self,
        folder: Path,
        fingerprint: str,
        first: FirstPass,
        held: _Rows,
        sample: _Rows,
        codec: LabelCodec,
        features: TextInput | FrameInput,
        titles: tuple[TitleRows | None, NDArray[np.float64]],
    ) -> Spill:
        """Write all rows but those held out to disk, as features."""
        some = features.rows(sample.inputs.slice(0, LOOKED_AT), self._threads)
        values = (some.sparse.nnz if isinstance(some, MixedRows) else some.nnz) / some.shape[0]
        dense = some.dense.shape[1] if isinstance(some, MixedRows) else 0
        needed = int(first.rows * (8 * values + 4 * dense + 40))
        check_room(folder, needed)
        self._progress.message(f"writing the rows to {folder}, about {needed / GB:.2f} GB; they are removed at the end")
        blocks = block_count(first.rows, first.rows * (values + dense / 2))
        writer = SpillWriter(folder, blocks, self._seed, features.count, fingerprint, dense)
        out = {*held.numbers.tolist()}
        weighs = self._parameters["class_weight"] is not None or titles[0] is not None
        ancestors, watch, rows = (False, True), Watch(self._progress, f"{{:,}} of {first.rows:,} rows are on disk"), 0
        for chunk in self._reader.chunks():
            inputs, labels = chunk.inputs, chunk.labels
            rows += len(labels)
            kept = [row for row in range(len(labels)) if chunk.first + row not in out]
            if len(kept) < len(labels):
                inputs, labels = inputs.take(pa.array(kept, pa.int64())), [labels[row] for row in kept]
            if kept:
                traces = codec.encode(labels)
                if codec.sets is not None:
                    found = ancestors_given(traces)
                    ancestors = ancestors[0] or found[0], ancestors[1] and found[1]
                writer.add(
                    features.rows(inputs, self._threads), traces, self._weights(codec, traces) if weighs else None
                )
            watch.advanced(len(chunk.labels))
        if rows != first.rows:
            raise HiNetError(
                f"the stream had {first.rows:,} rows when it was first read, now {rows:,}; do not change it"
            )
        if titles[0] is not None:
            traces = Traces.of_nodes(codec.layers, titles[0].nodes)
            writer.add(features.rows(as_arrow(titles[0].texts), self._threads), traces, titles[1])
        text = features if isinstance(features, TextInput) else features.text
        if text is not None and isinstance(text.features, NamingFeatures):
            write_arrays(folder / NAMES, text.features.names_found())
        return writer.finish({"ancestors": list(ancestors)})

    def _weights(self, codec: LabelCodec, traces: Traces) -> NDArray[np.float64]:
        class_weight = self._parameters["class_weight"]
        if class_weight is None:
            return np.ones(len(traces))
        return codec.weights_of(class_weight, traces, self._class_counts)

    def _train(
        self,
        spill: Spill,
        features: TextInput | FrameInput,
        codec: LabelCodec,
        held_out: HeldOut | None,
        titles: TitleRows | None,
        sample: _Rows,
        first: FirstPass,
    ) -> Fitted:
        rows = spill.row_count
        shape = RowShape(rows, spill.value_count / max(rows, 1), streamed=True)
        settings = engine_settings(self._parameters)
        settings = settings_for(
            settings, shape, dense=is_dense(features), several=codec.sets is not None, vectors=vector_kind(features)
        )
        model = fit(
            spill, codec.layers, settings,
            valid=None if held_out is None else validation_rows(codec, held_out), progress=self._progress,
            checkpoint=self._parameters["checkpoint"], checkpoint_every=self._parameters["checkpoint_every"],
            watch=bool(self._parameters["verbose"]),
            titles=None if titles is None else titles.columns_of(features.rows(titles.texts, self._threads)),
        )  # fmt: skip
        predictor = Search(model, settings.threads)
        told = {"rows": rows, "labels": int(np.count_nonzero(self._class_counts)), "blake2b": first.digest}
        fitted = Fitted(features, codec, predictor, predictor.history, told)
        fitted = fitted if titles is None else fitted.trained_on_titles(len(titles))
        if codec.sets is not None:
            fitted = replace(fitted, set_rule=SetRule())
        if not self._parameters["keep_examples"]:
            return fitted
        return fitted.keeping(features.rows(sample.inputs, self._threads), codec.encode(sample.labels), settings.seed)


def _with_names(features: TextInput | FrameInput, folder: Path) -> TextInput | FrameInput:
    """Return features with the names of n-grams that were found, if they are to have names."""
    text = features if isinstance(features, TextInput) else features.text
    if text is None or not isinstance(text.features, NamingFeatures):
        return features
    text = replace(text, features=named(text.features, read_arrays(folder / NAMES)[0]))
    return text if isinstance(features, TextInput) else replace(features, text=text)


def _renumbered(error: LabelError, places: list[list[int]]) -> LabelError:
    """Return an error that names a label by its place among all labels, by the row that has it instead."""
    return LabelError(re.sub(r"^row (\d+)", lambda found: f"row {places[int(found[1])][0]}", str(error), count=1))
