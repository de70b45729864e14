"""The state of a fitted classifier: features, label codec, predictor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from hinet.choices import Decoding
from hinet.classifier.examples import HELD_OUT_SHARE, Examples, bytes_to_keep
from hinet.classifier.inputs import Features, FrameInput, TextInput, text_column, text_part, unknown_rows
from hinet.classifier.labels import LabelCodec, Truth
from hinet.classifier.predicted_sets import (
    Answers,
    SetRule,
    answer_sets,
    formed,
    learned_rule,
    micro_f1_of,
    most_probable,
)
from hinet.classifier.remembered import RememberedTexts
from hinet.data import Traces
from hinet.data.matrices import MixedRows, validate_weights
from hinet.data.text.text_input import as_arrow
from hinet.engine import Search
from hinet.engine.model.fused import Trust
from hinet.engine.search.predictor import Engine, Predictor
from hinet.errors import HiNetError, counted
from hinet.extras import require
from hinet.files import MappedFile
from hinet.progress import EpochRecord

if TYPE_CHECKING:
    from hinet.exporting import Exported

MIN_KNOWN_WORDS = 0.5  # minimum share of known words in further texts without a warning
MAX_DENSE_CELLS = 50_000_000  # maximum cells of dense probabilities: 400 MB; more are returned as CSR
MIN_SPARSE_PROBABILITY = 1e-5  # smaller probabilities are left out of CSR
MAX_BLOCK_CELLS = 5_000_000  # maximum cells of dense probabilities computed at a time
MIN_BLOCK_ROWS = 256  # minimum rows per block, enough for several threads


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained model, with the features of rows and the codec of labels."""

    features: Features
    codec: LabelCodec
    predictor: Predictor  # its number of threads is that of all answers, from text to label
    history: tuple[EpochRecord, ...] = ()
    fingerprint: dict[str, Any] = field(default_factory=dict)  # identifies the training data
    examples: Examples | None = None  # training rows; None if none are kept
    held_out: Examples | None = None  # validation rows
    file: MappedFile | None = None  # mapped file of the weights of a loaded model
    set_rule: SetRule | None = None  # thresholds of sets; None for one label per row
    remembered: RememberedTexts | None = None  # texts of the neighbours; None if none are kept

    def trained_on_titles(self, count: int) -> Fitted:
        """Return the same, with ``count`` titles of labels counted separately from the training rows."""
        if not count:
            return self
        fingerprint = {**self.fingerprint, "rows": self.fingerprint["rows"] - count, "titles": count}
        return replace(self, fingerprint=fingerprint)

    @property
    def has_no_rows(self) -> bool:
        """Whether the model was trained on the texts of its taxonomy alone."""
        return self.fingerprint.get("rows") == 0 and "before" not in self.fingerprint

    def rows(self, X: Any) -> Any:
        """Return checked input as rows to predict; those of texts have the share of their n-grams that are unknown."""
        self.check_file()
        return rows_to_predict(self.features, self.predictor.engine, X, self.predictor.threads)

    def feature_rows(self, X: Any) -> Any:
        """Return checked input in the form of the training rows."""
        self.check_file()
        return features_of(self.features, self.predictor.engine, X, self.predictor.threads)

    def unknown_words_message(self, X: Any) -> str | None:
        """Return a warning if few words of further training texts are features, which stay those of the first fit.

        A model with a memory remembers these texts by their vectors.
        """
        share = self.features.known_share(X) if isinstance(self.features, TextInput | FrameInput) else 1.0
        if share >= MIN_KNOWN_WORDS or self.predictor.can_remember:
            return None
        return (
            f"the model knows {share:.0%} of the words of these texts; new words stay unknown, as the features are "
            "those of the first fit. Fit on all rows to learn them"
        )

    def unknown_rows_message(self, rows: Any) -> str | None:
        """Return a warning if rows to predict have a text but no feature that the model knows."""
        unknown = unknown_rows(self.features, rows)
        if not len(unknown):
            return None
        return (
            f"{counted(len(unknown), 'row has/rows have')} no word that the model knows, the first is row "
            f"{unknown[0]:,}; the prediction does not depend on the text"
        )

    def score(self, rows: Any, truth: Truth, decoding: Decoding, sample_weight: Any = None) -> float:
        """Return the accuracy on rows, or the micro-F1 of predicted sets if rows have several labels."""
        if self.codec.sets is not None:
            if sample_weight is not None:
                raise HiNetError("the score of sets of labels takes no `sample_weight`; leave it out")
            return micro_f1_of(self.label_sets(rows), truth)
        right = truth.are_right(self.predictor.decode(rows, decoding).nodes)
        weights = None if sample_weight is None else validate_weights(sample_weight, len(right))
        return float(np.average(right, weights=weights)) if len(right) else 0.0

    def export_onnx(self, folder: str | Path, rows: Any, truth: Truth | None) -> Exported:
        """Write the scores as an ONNX graph to a folder, compared with the model on rows if there are any."""
        from hinet.exporting import export_onnx

        if self.codec.sets is not None:
            raise HiNetError("models of rows with several labels cannot be exported; train with `multilabel=False`")
        if truth is None:
            return export_onnx(self.predictor.model, folder)
        rows = rows.tocsr() if isinstance(rows, MixedRows) else rows  # a graph reads one matrix
        predictable = np.flatnonzero(self.codec.predictable(truth))
        traces = self.codec.traces_of(truth.take(predictable))
        return export_onnx(self.predictor.model, folder, rows[predictable], traces, self.predictor.threads)

    def check_file(self) -> None:
        """Raise FileError if the file of the weights was truncated."""
        if self.file is not None:
            self.file.check()

    @cached_property
    def classes(self) -> NDArray[Any]:
        """The labels that can be predicted, as the user writes them."""
        return self.codec.decode(self.codec.label_nodes)

    def with_threads(self, threads: int | None) -> Fitted:
        """Return the same with another number of threads; see :func:`hinet.parameters.resolve_threads`."""
        if threads == self.predictor.threads:
            return self
        return replace(self, predictor=self.predictor.with_threads(threads))

    def label_sets(self, rows: Any, *, top: int | None = None, min_probability: float | None = None) -> Answers:
        """Return the predicted sets of labels, by the learned thresholds unless other limits are given."""
        codec = self.codec
        assert codec.sets is not None
        assert self.set_rule is not None
        if top is None and min_probability is None:
            return answer_sets(self.search, rows, self.set_rule, codec.sets)
        likely = most_probable(self.search, rows, top, min_probability or 0.0)
        return likely if top is not None else formed(likely, codec.taxonomy, codec.sets)

    def with_thresholds(self, rows: Any, truth: Truth, parameters: Mapping[str, Any]) -> Fitted:
        """Return the same with thresholds of sets learned on held-out rows, by the parameters of a classifier."""
        by_level = parameters["thresholds_by"] == "level"
        rule = learned_rule(self.search, rows, truth, parameters["objective"], by_level=by_level)
        return replace(self, set_rule=rule)

    def label_probabilities(self, rows: Any) -> Any:
        """Return the probability of every label, (n, labels): an ndarray, or a CSR array if that would be too large."""
        nodes = self.codec.label_nodes
        if rows.shape[0] * len(nodes) > MAX_DENSE_CELLS:
            return sp.csr_array(self.predictor.label_probabilities(rows, MIN_SPARSE_PROBABILITY)[:, nodes])
        probabilities = np.empty((rows.shape[0], len(nodes)))
        size = max(MIN_BLOCK_ROWS, MAX_BLOCK_CELLS // len(nodes))
        for start in range(0, len(probabilities), size):
            part = slice(start, start + size)
            probabilities[part] = self.predictor.label_probabilities(rows[part])[:, nodes].toarray()
        if self.codec.sets is None:  # sums are in single precision, and scikit-learn checks them in double
            probabilities /= probabilities.sum(1, keepdims=True)
        return probabilities

    def node_probabilities(self, rows: Any) -> Any:
        """Return the probability of every node of the taxonomy, (n, nodes), for rows that may have several labels."""
        if rows.shape[0] * len(self.codec.taxonomy) > MAX_DENSE_CELLS:
            return self.search.node_probabilities(rows, MIN_SPARSE_PROBABILITY)
        return self.search.node_probabilities(rows).toarray()

    @property
    def search(self) -> Search:
        """The predictor of rows that may have several labels: only the fused engine has one."""
        assert isinstance(self.predictor, Search)
        return self.predictor

    def naming_neighbours(self, X: Any, titles: Sequence[str], title_rows: int = 0) -> Fitted:
        """Return the same with the texts of its neighbours: those of the training rows ``X``, and titles.

        The last ``title_rows`` training rows are titles, too.
        """
        texts = text_part(self.features, X)
        if not self.predictor.can_remember or texts is None:
            return self
        memory = self.search.model.experts.neighbours
        return replace(self, remembered=RememberedTexts.of(memory, as_arrow(texts[1]).to_pylist(), titles, title_rows))

    def texts_to_remember(self, X: Any) -> list[str] | None:
        """Return the texts of checked input, if the model keeps those of its neighbours."""
        texts = text_part(self.features, X) if self.remembered is not None else None
        return None if texts is None else as_arrow(text_column(texts[1])).to_pylist()

    def remembering(self, rows: Any, traces: Traces, texts: Sequence[str] | None, limit: int | None = None) -> Fitted:
        """Return the same with rows added to its memory; raise HiNetError if it has none.

        The rows are corrections. With ``limit``, they count like training rows, at most that many of each label.
        """
        if not self.predictor.can_remember:
            raise HiNetError(
                "the model has no memory of texts; train it with `vectors` or `encoder`, one label per row and a tree"
            )
        remembered = self.remembered
        numbers = [self.search.model.experts.neighbours.row, np.zeros(0) if remembered is None else remembered.number]
        first = 1 + int(max(number.max(initial=-1) for number in numbers))
        search = self.search.remembering(rows, traces, first, limit)
        if remembered is not None and texts is not None:
            remembered = remembered.with_corrections(search.model.experts.neighbours, first, texts)
        return replace(self, predictor=search, remembered=remembered)

    @property
    def can_correct(self) -> bool:
        """Whether a correction of a text can count for similar texts: rows have no columns but texts."""
        columns = self.features.columns if isinstance(self.features, FrameInput) else None
        return self.predictor.can_remember and (columns is None or set(columns.names) == set(columns.text))

    def has_vectors(self, rows: Any) -> NDArray[np.bool_]:
        """Return whether rows have a vector to be remembered by: their texts have a known word."""
        return np.asarray(self.search.text_vectors(rows).any(1))

    def keeping(self, rows: Any, traces: Traces, seed: int) -> Fitted:
        """Return the same with some of these training rows kept, in addition to those it has."""
        examples = Examples.of(rows, traces)
        if self.examples is not None:
            examples = self.examples.joined(examples)
        return replace(self, examples=examples.chosen(self._bytes_left(self.held_out), seed))

    def holding(self, held_out: Examples, seed: int) -> Fitted:
        """Return the same with some of these validation rows kept, in addition to those it has.

        Training rows are dropped if they no longer fit.
        """
        if self.held_out is not None:
            held_out = self.held_out.joined(held_out)
        kept = held_out.evenly_chosen(int(HELD_OUT_SHARE * self._bytes_left()), seed)
        examples = self.examples
        if examples is not None:
            examples = examples.chosen(self._bytes_left(kept), seed)
        return replace(self, held_out=kept, examples=examples)

    def _bytes_left(self, kept: Examples | None = None) -> int:
        """Return the number of bytes left for kept rows, if ``kept`` rows are kept already."""
        return bytes_to_keep(self.predictor.nbytes) - (0 if kept is None else kept.nbytes)

    def scaled(self, factor: float, slope: float | None = None, offset: float = 0.0) -> Fitted:
        """Return the same with all logits multiplied by ``factor``, and another slope and offset if given."""
        return replace(self, predictor=self.predictor.scaled(factor, slope, offset))

    def with_trust(self, trust: Trust | None) -> Fitted:
        """Return the same with other parameters of the trust in rows with unknown n-grams."""
        return replace(self, predictor=self.predictor.with_trust(trust))


def predictor_class(engine: Engine) -> type[Predictor]:
    """Return the class of the models of an engine; raise HiNetError if a package is missing."""
    if engine == "fused":
        return Search
    require("torch", "a model of the engine 'torch'")
    from hinet.networks.predictor import NetworkPredictor

    return NetworkPredictor


def features_of(features: Features, engine: Engine, X: Any, threads: int | None) -> Any:
    """Return checked input as features; the fused engine reads only CSR rows."""
    return features.rows(X, threads, sparse=engine == "fused")


def rows_to_predict(features: Features, engine: Engine, X: Any, threads: int | None) -> Any:
    """Return checked input as features, for the fused engine with the share of unknown n-grams of each text."""
    if engine == "fused" and isinstance(features, TextInput | FrameInput):
        return features.rows_with_unknown(X, threads)
    return features_of(features, engine, X, threads)
