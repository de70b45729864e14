"""``Training``: rows and parameters to a fitted model, one method per step, and the use of validation rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.classifier.calibration import HeldOut, calibrated_on_titles, with_learned_trust
from hinet.classifier.columns import texts_of, training_columns
from hinet.classifier.fitted import Examples, Fitted, bytes_to_keep, rows_to_predict
from hinet.classifier.inputs import (
    Features,
    FrameInput,
    MatrixInput,
    TextInput,
    TrainingTexts,
    default_vectors,
    private_columns,
    text_of,
)
from hinet.classifier.labels import LabelCodec
from hinet.classifier.parameters import engine_for, engine_settings, seed_of, torch_parameter
from hinet.classifier.predicted_sets import SetRule
from hinet.classifier.rows import LabelledRows, RowsInMemory, TaxonomyTexts, TitleRows, best_titles, choose_titles
from hinet.classifier.stream import CountedTexts, RowStream, StreamWriter
from hinet.data import Traces
from hinet.data.matrices import MixedRows, is_sparse, unit_rows
from hinet.data.spill import Spill, remove_spill
from hinet.data.text.text_input import as_arrow
from hinet.encoders.meaning import EncoderVectors, TunedInput, is_auto, vector_source
from hinet.encoders.token_vectors import TokenVectors
from hinet.engine import EngineSettings, Search, ValidationRows, fit
from hinet.engine.compiling import compile_for_training
from hinet.engine.search.predictor import Engine, Predictor
from hinet.engine.settings import FEW_ROWS, RowShape, VectorKind, settings_for
from hinet.engine.training.neighbours import TextVectors
from hinet.engine.training.rows import TitleColumns
from hinet.errors import HiNetError, counted
from hinet.extras import is_installed, require
from hinet.metrics import hierarchical_f1, set_report
from hinet.progress import Progress, SilentProgress
from hinet.taxonomy import Taxonomy

if TYPE_CHECKING:
    from hinet.engine.training.fit import Runner

Value = TypeVar("Value")
RowSource: TypeAlias = RowsInMemory | RowStream | TaxonomyTexts


class FeatureCache(Protocol):
    """Keeps results that depend on training rows, so that several trainings share them."""

    def __call__(self, name: str, rows: Any, decided_by: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        """Return the result for the same name, rows and deciding values, or make it."""


def no_cache(name: str, rows: Any, decided_by: tuple[Any, ...], make: Callable[[], Value]) -> Value:
    """Return a new result."""
    return make()


@dataclass(frozen=True)
class PreparedRows:
    """Training and validation rows as an engine reads them."""

    features: Features
    codec: LabelCodec
    rows: Any  # a matrix, or a Spill, which has labels and weights as well
    traces: Traces
    weights: NDArray[np.float64] | None
    held_out: HeldOut | None
    valid: ValidationRows | None
    titles: TitleColumns | None
    vectors: TextVectors | None  # vectors to compare rows with
    title_texts: tuple[str, ...]  # texts of the titles among these

    @property
    def shape(self) -> RowShape:
        """Number of rows and their mean number of sparse features."""
        if isinstance(self.rows, Spill):
            return RowShape(self.rows.row_count, self.rows.value_count / max(self.rows.row_count, 1), streamed=True)
        return RowShape.of(self.rows)


Trained: TypeAlias = tuple[Fitted, HeldOut | None, dict[str, float] | None]
"""A trained model, its validation rows, and its metrics on these."""


@dataclass(frozen=True)
class Training:
    """The training of a classifier, by its validated parameters.

    Attributes
    ----------
    parameters : mapping
        The parameters of :class:`HiNetClassifier`.
    taxonomy : Taxonomy, optional
        The given taxonomy; None infers one from the labels.
    source : RowSource
        The rows, in memory or as a stream, or the texts of the taxonomy.
    runner : Runner, optional
        Trains the experts in other processes.
    cache : FeatureCache
        Shares titles and features with other trainings on the same rows.
    progress : Progress
        Receives messages and epochs.
    """

    parameters: Mapping[str, Any]
    taxonomy: Taxonomy | None
    source: RowSource
    runner: Runner | None = None
    cache: FeatureCache = no_cache
    progress: Progress = field(default_factory=SilentProgress)

    def run(self) -> Trained:
        """Train a model.

        Raises
        ------
        HiNetError
            If rows or labels are invalid, an optional package is missing, or memory is too small.
        """
        labelled = self.read_labels()
        if self.engine == "torch" and self.parameters["encoder"] is not None:
            return self.fine_tune(labelled)
        titles = self.choose_titles(labelled)
        features, rows = self.fit_features(labelled, titles)
        with self.encode_rows(labelled, titles, features, rows) as prepared:
            settings = self.plan(prepared)
            predictor = self.fit_experts(prepared, settings)
            fitted = self.assemble(labelled, titles, prepared, predictor)
        valid_inputs = None if labelled.valid is None else labelled.valid[0]
        fitted, held_out = with_learned_trust(
            fitted, labelled.rows, labelled.traces, prepared.held_out, valid_inputs, self.seed
        )
        texts = labelled.titles
        if held_out is None and texts is not None and 2 * len(texts) > len(labelled.traces):
            fitted = calibrated_on_titles(fitted, texts, self.seed)
        return self.learn_thresholds(fitted, held_out)

    @cached_property
    def engine(self) -> Engine:
        """The engine that trains."""
        return engine_for(self.parameters)

    @property
    def seed(self) -> int:
        """The random seed."""
        return seed_of(self.parameters["random_state"])

    @property
    def threads(self) -> int | None:
        """The parameter ``n_jobs``."""
        threads: int | None = self.parameters["n_jobs"]
        return threads

    def read_labels(self) -> LabelledRows:
        """Return the training rows with their labels, and the validation rows; compile kernels that training needs."""
        if isinstance(self.source, RowStream) and torch_parameter(self.parameters) is None:
            self._prepare_engine()  # reading takes long: fail before, and compile meanwhile
        labelled = self.source.read(self.parameters, self.taxonomy, self.progress)
        self._prepare_engine()
        return labelled

    def _prepare_engine(self) -> None:
        """Raise HiNetError if an optional package is missing, and start to compile kernels."""
        if self.parameters["encoder"] is not None and not is_installed("sentence_transformers"):
            require("onnxruntime", "`encoder`")
        if self.engine == "fused":
            compile_for_training()

    def choose_titles(self, labelled: LabelledRows) -> TitleRows | None:
        """Return the titles of labels to train on in addition to the rows, if any."""
        if labelled.titles is not None:
            self.progress.message(f"{counted(len(labelled.titles), 'text')} of the taxonomy to train on")
            return None
        texts, traces = labelled.texts, labelled.traces

        def learn(choices: list[TitleRows]) -> TitleRows | None:
            assert texts is not None
            features, rows = texts.ngrams
            title_rows = [features.transform(choice.texts, self.threads) for choice in choices]
            return best_titles(rows, traces, choices, title_rows, self.seed)

        def choose() -> TitleRows | None:
            with_rows, rows = labelled.nodes_with_rows, labelled.row_count
            return choose_titles(self.parameters["titles"], labelled.kind, labelled.codec, with_rows, rows, learn)

        if labelled.kind != "text" or self.parameters["titles"] is not None:
            titles = choose()
        else:
            titles = self.cache("titles", labelled.rows, (self.parameters["text"], self.seed), choose)
        if titles is not None:
            self.progress.message(titles.note)
        return titles

    def fit_features(self, labelled: LabelledRows, titles: TitleRows | None) -> tuple[Features, Any]:
        """Return the features of rows and titles, and the matrix of both; None for the matrix of a stream."""
        parameters = self.parameters
        vectors, encoder, several = parameters["vectors"], parameters["encoder"], labelled.codec.sets is not None
        if labelled.kind not in ("text", "frame"):
            if not (vectors is None or is_auto(vectors)) or encoder is not None:
                raise HiNetError("`vectors` and `encoder` read texts, but the rows are numbers; leave both out")
            scaled = labelled.kind == "dense" and parameters["network"] is None
            features = MatrixInput.fit(labelled.rows, labelled.column_names, scaled=scaled)
            return features, features.rows(labelled.rows, self.threads, sparse=self.engine == "fused")
        if labelled.stream is not None:
            return self._stream_features(labelled, titles), None

        def fit() -> tuple[Features, Any]:
            if isinstance(labelled.texts, TrainingTexts):
                more = None if titles is None else titles.texts
                source, private = self._vector_source(labelled, inputs)
                return labelled.texts.fit(source, self.progress, more, private=private)
            kinds = labelled.kinds or training_columns(labelled.rows, parameters["columns"])
            texts = texts_of(labelled.rows, kinds) if kinds.text else None
            source, private = self._vector_source(labelled, texts)
            training = None if texts is None else TrainingTexts(texts, parameters["text"], self.threads)
            return FrameInput.fit(
                labelled.rows, kinds, training, source, self.progress, several=several, private=private
            )

        inputs = labelled.rows if titles is None else titles.after(labelled.rows)
        has_neighbours = bool(parameters["neighbours"])
        decided_by = (parameters["text"], _identity(vectors), _identity(encoder), several, has_neighbours)
        fitted, rows = self.cache("features", inputs, decided_by, fit)
        return fitted, rows.tocsr() if self.engine == "torch" else rows

    def _vector_source(self, labelled: LabelledRows, texts: Any) -> tuple[TokenVectors | EncoderVectors | None, bool]:
        """Return the source of the vectors of texts, and whether these are only compared with those of known texts.

        ``"auto"`` stands for none where texts are not compared, and for streams that do not fit in memory.
        """
        vectors, encoder = self.parameters["vectors"], self.parameters["encoder"]
        if encoder is None and is_auto(vectors):
            compares = labelled.codec.sets is None and self.engine == "fused" and bool(self.parameters["neighbours"])
            if texts is None or not compares or labelled.stream is not None:
                return None, False
            few, alone = labelled.row_count < FEW_ROWS, labelled.titles is not None
            return default_vectors(texts, self.progress, few=few, alone=alone) or (None, False)
        source = vector_source(vectors, encoder)
        if isinstance(source, TokenVectors):
            origin = "" if source.package is None else f" of {source.package}"
            self.progress.message(f"all experts read static vectors{origin}, {len(source):,} tokens")
        return source, False

    def _stream_features(self, labelled: LabelledRows, titles: TitleRows | None) -> TextInput | FrameInput:
        source, _ = self._vector_source(labelled, labelled.texts)
        text = None
        if isinstance(labelled.texts, CountedTexts):
            text = labelled.texts.fit(source, titles, self.progress)
        if labelled.kinds is None:
            assert text is not None
            return text
        several = labelled.codec.sets is not None
        frame = FrameInput.with_columns(text, labelled.rows, labelled.kinds, source, several=several)
        if several and is_dense(frame):
            raise HiNetError(
                "a stream of rows with several labels needs a column of text; add one, or read all rows into memory"
            )
        return frame

    @contextmanager
    def encode_rows(
        self, labelled: LabelledRows, titles: TitleRows | None, features: Features, rows: Any
    ) -> Iterator[PreparedRows]:
        """Yield the rows for the engine: in memory, or those of a stream on disk, removed when training ends."""
        if labelled.stream is None:
            yield self._prepared(labelled, titles, features, rows)
            return
        assert isinstance(features, TextInput | FrameInput)
        writer = StreamWriter(self.parameters, labelled, labelled.stream, titles, features, self.progress)
        with writer.folder() as folder:
            spill, features, codec = writer.write(folder)
            yield self._prepared(replace(labelled, codec=codec), titles, features, spill)
            remove_spill(folder)

    def _prepared(
        self, labelled: LabelledRows, titles: TitleRows | None, features: Features, rows: Any
    ) -> PreparedRows:
        codec, held_out, columns = labelled.codec, self._held_out(labelled, features), None
        valid = validation_rows(codec, held_out)
        if isinstance(rows, Spill):
            if titles is not None:
                columns = titles.columns_of(features.rows(titles.texts, self.threads))
        else:
            labelled = labelled.with_titles(titles)
            read = rows.without_last(private).features() if (private := private_columns(features)) else rows
            if titles is not None:
                columns = titles.columns_of(read)
            elif labelled.titles is not None and isinstance(read, MixedRows):  # else the mix is learned on titles, too
                columns = labelled.titles.columns_of(read)
            if codec.sets is not None and is_dense(features) and isinstance(rows, MixedRows):
                rows = rows.tocsr()  # all columns get dropout then
                valid = valid and replace(valid, rows=valid.rows.tocsr())
        compared = self._text_vectors(codec, features, titles)
        traces, weights = labelled.traces, labelled.weights
        return PreparedRows(features, codec, rows, traces, weights, held_out, valid, columns, *compared)

    def _text_vectors(
        self, codec: LabelCodec, features: Features, titles: TitleRows | None
    ) -> tuple[TextVectors | None, tuple[str, ...]]:
        """Return the vectors that neighbours compare rows with, if rows have any, and the texts of titles."""
        text = text_of(features)
        if text is None or text.meaning is None or codec.sets is not None or self.engine == "torch":
            return None, ()
        known = TitleRows.of(codec, codec.label_nodes, described=True)
        parts = [text.meaning.columns(texts, self.threads) for texts in known.in_context(codec.taxonomy)]
        columns = sum((unit_rows(part) for part in parts), np.zeros((len(known), text.meaning.width), np.float32))
        found = TitleColumns(columns, known.nodes) if len(known) else None
        title_rows = 0 if titles is None else len(titles)
        words = len(text.features.words) or text.features.count
        vectors = TextVectors(text.meaning.width, found, title_rows, words, text.meaning.private)
        return vectors, tuple(known.texts)

    def _held_out(self, labelled: LabelledRows, features: Features) -> HeldOut | None:
        if labelled.valid is None:
            return None
        inputs, truth = labelled.valid
        return HeldOut(rows_to_predict(features, self.engine, inputs, self.threads), truth)

    def plan(self, prepared: PreparedRows, shape: RowShape | None = None) -> EngineSettings:
        """Return the settings of the engine, with the defaults for these rows, or for more of them."""
        settings = engine_settings(self.parameters)
        if self.engine == "torch":
            return settings
        dense, several = is_dense(prepared.features), prepared.codec.sets is not None
        vectors = vector_kind(prepared.features)
        return settings_for(settings, shape or prepared.shape, dense=dense, several=several, vectors=vectors)

    def fit_experts(self, prepared: PreparedRows, settings: EngineSettings) -> Predictor:
        """Train the experts and mix them, or train a network."""
        parameters = self.parameters
        options: dict[str, Any] = {
            "valid": prepared.valid, "sample_weight": prepared.weights, "progress": self.progress
        }  # fmt: skip
        if self.engine == "torch":
            from hinet.networks.predictor import NetworkPredictor

            options |= {"network": parameters["network"], "device": parameters["device"]}
            return NetworkPredictor.trained(prepared.rows, prepared.traces, settings, **options)
        options |= {name: parameters[name] for name in ("checkpoint", "checkpoint_every")}
        options |= {
            "titles": prepared.titles,
            "vectors": prepared.vectors,
            "watch": bool(parameters["verbose"]),
            "runner": self.runner,
        }
        traces = prepared.codec.layers if isinstance(prepared.rows, Spill) else prepared.traces
        return Search(fit(prepared.rows, traces, settings, **options), settings.threads)

    def assemble(
        self, labelled: LabelledRows, titles: TitleRows | None, prepared: PreparedRows, predictor: Predictor
    ) -> Fitted:
        """Return the trained model with its features and labels, and with some training rows kept."""
        rows, traces = prepared.rows, prepared.traces
        if labelled.stream is not None:
            labels, digest = len(labelled.nodes_with_rows), labelled.stream.summary.digest
            fingerprint = {"rows": rows.row_count, "labels": labels, "blake2b": digest}
            if self.parameters["keep_examples"]:
                rows = prepared.features.rows(labelled.rows, self.threads, sparse=self.engine == "fused")
        else:
            fingerprint = EncodedRows(rows, traces).fingerprint()
        fitted = Fitted(prepared.features, prepared.codec, predictor, predictor.history, fingerprint)
        fitted = fitted.trained_on_titles(titles or labelled.titles)
        if prepared.codec.sets is not None:
            fitted = replace(fitted, set_rule=SetRule())
        if self.parameters["keep_examples"] and labelled.stream is None and isinstance(predictor, Search):
            title_rows = 0 if labelled.titles is None else len(labelled.titles)
            fitted = fitted.naming_neighbours(labelled.rows, prepared.title_texts, title_rows)
        return fitted.keeping(rows, traces, self.seed) if self.parameters["keep_examples"] else fitted

    def learn_thresholds(self, fitted: Fitted, held_out: HeldOut | None) -> Trained:
        """Return the model with what validation rows teach it after training, and its metrics on them."""
        if held_out is None:
            return fitted, None, None
        fitted, metrics = with_validation_rows(fitted, held_out, self.parameters)
        return fitted, held_out, metrics

    def fine_tune(self, labelled: LabelledRows) -> Trained:
        """Train an encoder together with the head."""
        check_tunable(self.parameters, labelled.kind)
        titles = self.choose_titles(labelled)
        rows = labelled.with_titles(titles)
        fitted = self._fit_encoder(rows).trained_on_titles(titles or labelled.titles)
        held_out = None if rows.valid is None else HeldOut(fitted.rows(rows.valid[0]), rows.valid[1])
        return self.learn_thresholds(fitted, held_out)

    def _fit_encoder(self, labelled: LabelledRows) -> Fitted:
        """Return a classifier whose encoder is fine-tuned on texts."""
        from hinet.networks.fine_tuning import TokenExamples, TuningSettings, fine_tune
        from hinet.networks.predictor import NetworkPredictor

        features, settings = TunedInput.of(self.parameters["encoder"]), engine_settings(self.parameters)
        codec, traces, encoder = labelled.codec, labelled.traces, features.encoder
        if settings.dropout is not None:
            encoder.set_dropout(settings.dropout)
        epochs = settings.deep_epochs or TuningSettings().epochs
        tuning = TuningSettings(epochs, patience=settings.patience, seed=settings.seed)
        rows, valid = encoder.tokens(labelled.rows), labelled.valid
        held = validation_rows(codec, None if valid is None else HeldOut(encoder.tokens(valid[0]), valid[1]))
        options = {name: self.parameters[name] for name in ("device", "checkpoint", "checkpoint_every")}
        network, history = fine_tune(
            encoder,
            TokenExamples(rows, traces, labelled.weights),
            tuning,
            prior_strength=settings.prior_strength,
            valid=None if held is None else TokenExamples(held.rows, held.traces),
            threads=settings.threads,
            progress=self.progress,
            **options,
        )
        predictor = NetworkPredictor(network.eval(), settings.threads, history)
        fitted = Fitted(features, codec, predictor, history, EncodedRows(rows.ids, traces).fingerprint())
        if not self.parameters["keep_examples"]:
            return fitted
        return _keeping(fitted, features.count, labelled.rows, traces, settings.seed)


def _identity(source: Any) -> Any:
    """Return a key for vectors or an encoder: the path or name, or the identity of a loaded object."""
    return source if isinstance(source, str | Path) else id(source)


@dataclass(frozen=True)
class EncodedRows:
    """Rows as the engine reads them, with their labels and weights."""

    rows: Any
    traces: Traces
    sample_weight: NDArray[np.float64] | None = None
    texts: Sequence[str] | None = None  # texts of the rows, which the model may remember

    def fingerprint(self) -> dict[str, Any]:
        """Return a summary and a digest that identify the training data."""
        digest = hashlib.blake2b(digest_size=20)
        rows = self.rows
        parts = [rows.dense] if isinstance(rows, MixedRows) else [] if is_sparse(rows) else [rows]
        csr = rows.sparse if isinstance(rows, MixedRows) else rows
        parts += [csr.indptr, csr.indices, csr.data] if is_sparse(csr) else []
        for array in (*parts, self.traces.row_offsets, self.traces.offsets, self.traces.neurons):
            digest.update(np.ascontiguousarray(array).view(np.uint8).data)
        labels = len(np.unique(self.traces.end_nodes))
        return {"rows": len(self.traces), "labels": labels, "blake2b": digest.hexdigest()}


def validation_rows(codec: LabelCodec, held_out: HeldOut | None) -> ValidationRows | None:
    """Return the held-out rows whose labels can be predicted, if there are any; the others cannot compare experts."""
    if held_out is None:
        return None
    predictable = np.flatnonzero(codec.predictable(held_out.truth))
    if not len(predictable):
        return None
    return ValidationRows(held_out.rows[predictable], codec.traces_of(held_out.truth.take(predictable)))


def is_dense(features: Features) -> bool:
    """Return whether all columns are numbers, and none is text."""
    return features.kind == "dense" or (isinstance(features, FrameInput) and features.text is None)


def vector_kind(features: Features) -> VectorKind | None:
    """Return the source of the vectors of texts, if there are any."""
    meaning = features.meaning if isinstance(features, TextInput) else None
    if meaning is None or meaning.private:
        return None
    return "static" if isinstance(meaning.source, TokenVectors) else "encoder"


def with_validation_rows(
    fitted: Fitted, held_out: HeldOut, parameters: Mapping[str, Any]
) -> tuple[Fitted, dict[str, float]]:
    """Return the classifier with some validation rows kept and the thresholds of sets learned, and its metrics."""
    if parameters["keep_examples"]:
        kept = Examples.of_truth(held_out.rows, held_out.truth)
        fitted = replace(fitted, held_out=None).holding(kept, seed_of(parameters["random_state"]))
    if fitted.codec.sets is not None:
        fitted = fitted.with_thresholds(held_out.rows, held_out.truth, parameters)
    return fitted, validation_metrics(fitted, held_out, parameters["decoding"])


def validation_metrics(fitted: Fitted, held_out: HeldOut, decoding: Decoding) -> dict[str, float]:
    """Return accuracy and hierarchical F1 on validation rows; for sets of labels, also the metrics of sets."""
    truth, true = held_out.truth, held_out.truth.whole_ids()
    taxonomy = fitted.codec.taxonomy_with(true)
    predicted = fitted.predictor.decode(held_out.rows, decoding).nodes
    pairs = [(ids, taxonomy.ids[node]) for ids, node in zip(true, predicted.tolist(), strict=True) if ids]
    f1 = hierarchical_f1(*map(list, zip(*pairs, strict=True)), taxonomy=taxonomy) if pairs else 0.0
    metrics = {"rows": len(truth), "accuracy": float(truth.are_right(predicted).mean()), "hierarchical_f1": f1}
    if fitted.codec.sets is not None:
        sets = fitted.label_sets(held_out.rows)
        names = [taxonomy.ids[node] for node in sets.nodes.tolist()]
        answers = [names[start:end] for start, end in pairwise(sets.offsets.tolist())]
        report = set_report(true, answers, taxonomy=taxonomy)
        metrics |= {
            "micro_f1": report.set_f1,
            "hierarchical_set_f1": report.hierarchical_set_f1,
            "exact_match": report.exact_match,
        }
    return metrics


def check_tunable(parameters: Mapping[str, Any], kind: str) -> None:
    """Raise HiNetError if an encoder cannot be fine-tuned with these parameters on such rows."""
    if kind != "text":
        raise HiNetError("`encoder` reads texts, and the rows are numbers; leave it out")
    for name in ("network", "vectors", "text"):
        if parameters[name] is not None and not is_auto(parameters[name]):
            raise HiNetError(f"`{name}` and a fine-tuned `encoder` cannot be combined; leave one of them out")


def _keeping(fitted: Fitted, width: int, texts: Any, traces: Traces, seed: int) -> Fitted:
    """Return the classifier with some rows kept as examples; only these are embedded."""
    unread = Examples.of(np.broadcast_to(np.float32(0), (len(traces), width)), traces)
    chosen = unread.choice(bytes_to_keep(fitted.predictor.nbytes), seed)
    rows = fitted.rows(as_arrow(texts).take(pa.array(chosen)))
    return replace(fitted, examples=replace(unread.take(chosen), rows=rows).rounded())
