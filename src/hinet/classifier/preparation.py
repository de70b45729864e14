"""Training rows as an engine reads them: features fitted to them, and titles of labels added where they help."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hinet.classifier.columns import ColumnKinds
from hinet.classifier.fitted import features_of, rows_to_predict
from hinet.classifier.fitting import EncodedRows, validation_rows
from hinet.classifier.held_out import HeldOut
from hinet.classifier.inputs import Features, FrameInput, Kind, MatrixInput, TrainingTexts, fit_text
from hinet.classifier.labels import LabelCodec
from hinet.classifier.parameters import seed_of
from hinet.classifier.recognition import recognise
from hinet.classifier.titles import TitleRows, best_titles, chosen_titles
from hinet.data import Traces
from hinet.encoders.meaning import vector_source
from hinet.engine.search.predictor import Engine
from hinet.errors import HiNetError
from hinet.progress import Progress

Value = TypeVar("Value")


class FeatureCache(Protocol):
    """Keeps results that depend on training rows, so that several fits share them."""

    def get(self, name: str, rows: Any, decided_by: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        """Return the result for the same name, rows and deciding values, or make it."""


class NoCache:
    """Makes every result anew."""

    def get(self, name: str, rows: Any, decided_by: tuple[Any, ...], make: Callable[[], Value]) -> Value:
        """Return a new result."""
        return make()


@dataclass(frozen=True)
class LabelledRows:
    """Checked training rows with their labels and weights."""

    rows: Any
    kind: Kind
    codec: LabelCodec
    traces: Traces
    weights: NDArray[np.float64] | None = None

    def with_titles(self, titles: TitleRows, weight: float) -> LabelledRows:
        """Return the rows with titles after them, each of which counts as ``weight`` rows."""
        weights = titles.weights_after(self.weights, self.traces, weight)
        return replace(self, rows=titles.after(self.rows), traces=titles.traces_after(self.traces), weights=weights)


@dataclass(frozen=True)
class PreparedRows:
    """Training rows and validation rows as an engine reads them, and the features that they are made of."""

    features: Features
    training: EncodedRows
    held_out: HeldOut | None
    titles: int  # number of titles after the training rows


@dataclass(frozen=True)
class Preparation:
    """Prepares training rows by the parameters of a classifier."""

    parameters: Mapping[str, Any]
    engine: Engine
    progress: Progress
    cache: FeatureCache

    def prepare(
        self, labelled: LabelledRows, valid: tuple[Any, Any] | None, column_names: tuple[str, ...] = ()
    ) -> PreparedRows:
        """Return training rows, and validation rows if there are any; numeric columns may have names."""
        texts = self._texts(labelled)
        titles, weight = self._titles(labelled, texts)
        if titles is not None:
            self.progress.message(titles.note)
            labelled = labelled.with_titles(titles, weight)
        codec = labelled.codec
        truth = None if valid is None else codec.truth(valid[1])  # raises before features are fitted
        features, rows = self._features(labelled, texts, titles, column_names)
        held_out = None
        if valid is not None and truth is not None:
            held_out = HeldOut(rows_to_predict(features, self.engine, valid[0], self.parameters["n_jobs"]), truth)
        valid_rows = None if held_out is None else validation_rows(codec, held_out)
        title_columns = None if titles is None else titles.columns_of(rows)
        training = EncodedRows(rows, labelled.traces, labelled.weights, valid_rows, title_columns)
        return PreparedRows(features, training, held_out, 0 if titles is None else len(titles))

    def with_titles(self, labelled: LabelledRows) -> LabelledRows:
        """Return rows with the titles of labels after them, if titles are training rows as well."""
        titles, weight = self._titles(labelled, self._texts(labelled))
        if titles is None:
            return labelled
        self.progress.message(titles.note)
        return labelled.with_titles(titles, weight)

    def _texts(self, labelled: LabelledRows) -> TrainingTexts | None:
        if labelled.kind != "text":
            return None
        return TrainingTexts(labelled.rows, self.parameters["text"], self.parameters["n_jobs"])

    def _titles(self, labelled: LabelledRows, texts: TrainingTexts | None) -> tuple[TitleRows | None, float]:
        """Return the titles of labels that are training rows, if any, and the number of rows each counts as."""
        wanted, seed = self.parameters["titles"], seed_of(self.parameters["random_state"])
        codec, traces = labelled.codec, labelled.traces

        def learned(choices: list[TitleRows]) -> tuple[TitleRows, float]:
            assert texts is not None
            features, rows = texts.ngrams
            title_rows = [features.transform(choice.texts, self.parameters["n_jobs"]) for choice in choices]
            return best_titles(rows, traces, choices, title_rows, seed)

        def choose() -> tuple[TitleRows | None, float]:
            return chosen_titles(wanted, labelled.kind, codec, np.unique(traces.end_nodes), len(traces), learned)

        if texts is None or wanted is not None:
            return choose()
        return self.cache.get("titles", labelled.rows, (self.parameters["text"], seed), choose)

    def _features(
        self,
        labelled: LabelledRows,
        texts: TrainingTexts | None,
        titles: TitleRows | None,
        column_names: tuple[str, ...],
    ) -> tuple[Features, Any]:
        """Return features fitted to rows, and the rows that they make of them."""
        parameters, kind, several = self.parameters, labelled.kind, labelled.codec.sets is not None
        vectors, encoder = parameters["vectors"], parameters["encoder"]
        if kind not in ("text", "frame"):
            if vectors is not None or encoder is not None:
                raise HiNetError("`vectors` and `encoder` read texts, but the rows are numbers; leave both out")
            scaled = kind == "dense" and parameters["network"] is None
            features = MatrixInput.fit(labelled.rows, column_names, scaled=scaled)
            return features, features_of(features, self.engine, labelled.rows, parameters["n_jobs"])

        def fit() -> tuple[Features, Any]:
            source = vector_source(vectors, encoder)
            if texts is not None:
                return fit_text(texts, source, self.progress, None if titles is None else titles.texts)
            columns = parameters["columns"]
            kinds = recognise(labelled.rows).warn() if columns is None else ColumnKinds.of(columns)
            threads, settings = parameters["n_jobs"], parameters["text"]
            return FrameInput.fit(labelled.rows, kinds, settings, threads, source, self.progress, several=several)

        decided_by = (parameters["text"], _identity(vectors), _identity(encoder), several)
        fitted, rows = self.cache.get("features", labelled.rows, decided_by, fit)
        return fitted, rows.tocsr() if self.engine == "torch" else rows


def _identity(source: Any) -> Any:
    """Return a key for vectors or an encoder: the path or name, or the identity of a loaded object."""
    return source if isinstance(source, str | Path) else id(source)
