"""A saved model of texts or of rows of a table for prediction, with the columns it was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hinet.classifier.answers import PredictionOptions
from hinet.classifier.bundle import load_fitted
from hinet.classifier.explanation import Explanation, explain_row
from hinet.classifier.fitted import Fitted
from hinet.classifier.inputs import FrameInput
from hinet.classifier.labels import TextStyle
from hinet.classifier.prediction_table import PredictionTable
from hinet.data import Traces
from hinet.data.tables import Columns, RowBlock
from hinet.data.tables.labelled_tables import input_table
from hinet.encoders.meaning import EncoderPlace
from hinet.errors import FileError, HiNetError, LabelError
from hinet.evaluation.risk import RiskBound
from hinet.files.delimited import missing_column_message
from hinet.taxonomy import PATH_MARK, Taxonomy

COLUMNS = "columns"  # note in the manifest with the columns of the training rows


@dataclass(frozen=True)
class LoadedModel:
    """A model of texts, or of rows of a table, and its manifest."""

    fitted: Fitted
    manifest: Mapping[str, Any]

    @property
    def columns(self) -> Columns:
        """The columns of the training rows, or the default ones if they are unknown."""
        noted, features = saved_columns(self.manifest), self.fitted.features
        if isinstance(features, FrameInput) and noted is None:
            kinds = features.columns
            return Columns(kinds.text, number=kinds.number, category=kinds.category, vector=kinds.vector)
        return noted or Columns()

    def checked_columns(self, columns: Columns) -> Columns:
        """Return the columns; raise HiNetError unless each kind has as many as in training."""
        features = self.fitted.features
        if not isinstance(features, FrameInput):
            if columns.is_mixed:
                raise HiNetError("the model reads only texts; leave `number`, `category` and `vector` out")
            return columns
        for kind, names in features.columns.to_dict().items():
            given = getattr(columns, kind)
            if len(given) != len(names):
                trained = ", ".join(names) or "none"
                raise HiNetError(
                    f"the model was trained on {len(names)} columns of `{kind}` ({trained}), got {len(given)}; name as "
                    "many"
                )
        return columns

    def named_as_trained(self, inputs: Any) -> Any:
        """Return a table with the column names of training; texts unchanged."""
        features = self.fitted.features
        return inputs.rename_columns(list(features.columns.names)) if isinstance(features, FrameInput) else inputs

    def widths(self, columns: Columns) -> dict[str, int]:
        """Return the length of the vectors of each column."""
        vectors = self.fitted.features.vectors if isinstance(self.fitted.features, FrameInput) else ()
        return {name: vector.width for name, vector in zip(columns.vector, vectors, strict=True)}

    @property
    def given_taxonomy(self) -> Taxonomy | None:
        """The taxonomy that labels must be in; None if it was inferred from the labels."""
        codec = self.fitted.codec
        return None if codec.inferred else codec.taxonomy

    @property
    def risk_bound(self) -> RiskBound | None:
        """The calibrated threshold and its risk, if there is one."""
        risk_bound = (self.manifest["calibration"] or {}).get("promise")
        return None if risk_bound is None else RiskBound(**risk_bound)

    @property
    def style(self) -> TextStyle:
        """Text form of labels that are paths."""
        separator = self.columns.path_sep
        return TextStyle(PATH_MARK) if separator in (None, PATH_MARK) else TextStyle(separator, separator)

    def table(self, options: PredictionOptions) -> PredictionTable:
        """Return the converter of rows to columns of answers."""
        return PredictionTable(self.fitted, options, self.style)

    def explain(self, text: str, label: str | None = None, *, most: int) -> Explanation:
        """Explain the best trace of a text, or that of a label, which is written as in the training rows.

        If the model reads the rows of a table, the text is a row as a JSON object.

        Raises
        ------
        HiNetError
            If the model has no such label.
        """
        inputs = self._row(text) if isinstance(self.fitted.features, FrameInput) else [text]
        return explain_row(self.fitted, inputs, None if label is None else self._traces_of(label), most)

    def _row(self, text: str) -> Any:
        """Return a table of one row, given as a JSON object."""
        columns = self.columns
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            names = ", ".join(columns.inputs)
            raise HiNetError(f"the model reads the columns {names}; give a row as JSON, such as {_example(columns)}")
        block = RowBlock("row", "jsonl", [1], {name: [value] for name, value in row.items()}, positions=[0])
        for name in columns.inputs:
            if name not in row:
                raise HiNetError(missing_column_message(name, list(row)) + "; null stands for a missing value")
        return self.named_as_trained(input_table(block, columns, self.widths(columns)))

    def _traces_of(self, label: str) -> Traces:
        codec = self.fitted.codec
        written = self.columns.parse_label([label])
        try:
            if not codec.predictable(codec.truth([written])).all():
                raise HiNetError(
                    f"the model has no label {label!r}: no training row ended there; name one that it predicts"
                )
            return codec.encode([written])
        except LabelError as error:
            raise HiNetError(str(error).removeprefix("row 0: ")) from None


def _example(columns: Columns) -> str:
    """Return an example row as JSON."""
    values = {"text": "…", "number": 12.5, "category": "…", "vector": None}
    return json.dumps(
        {name: value for kind, value in values.items() for name in getattr(columns, kind)}, ensure_ascii=False
    )


def saved_columns(manifest: Mapping[str, Any]) -> Columns | None:
    """Return the columns noted in a manifest."""
    noted = manifest.get("notes", {}).get(COLUMNS)
    return None if noted is None else Columns.from_dict(noted)


def meaning_entry(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the entry of the vectors of texts in a manifest, if there is one."""
    features = manifest["features"]
    text = features["text"] if features["kind"] == "frame" else features
    entry: Mapping[str, Any] | None = (text or {}).get("meaning")
    return entry


def load_model(
    path: str | Path, threads: int | None, *, mapped: bool = True, encoder: EncoderPlace | None = None
) -> LoadedModel:
    """Load a model of texts or tables from a folder; ``encoder`` is the current place of its encoder.

    Unless ``mapped``, the whole model is read into memory, and its files may change.
    """
    fitted, manifest = load_fitted(path, mapped=mapped, encoder=encoder)
    if fitted.features.kind not in ("text", "frame"):
        raise FileError(path, "the model reads rows of numbers, which tables of text cannot give; use it from Python")
    return LoadedModel(fitted.with_threads(threads), manifest)
