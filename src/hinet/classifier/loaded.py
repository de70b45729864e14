"""A saved model of texts for prediction, with the columns it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hinet.classifier.bundle import load_fitted
from hinet.classifier.explanation import Explanation, explain_row
from hinet.classifier.fitted import Fitted
from hinet.classifier.prediction_table import PredictionOptions, PredictionTable
from hinet.classifier.text_paths import TextStyle
from hinet.data import Traces
from hinet.data.tables import Columns
from hinet.errors import FileError, HiNetError, LabelError
from hinet.evaluation.risk import RiskBound
from hinet.taxonomy import PATH_MARK, Taxonomy

COLUMNS = "columns"  # the note in the manifest with the columns of the training rows


@dataclass(frozen=True)
class LoadedModel:
    """A text model and its manifest."""

    fitted: Fitted
    manifest: Mapping[str, Any]

    @property
    def columns(self) -> Columns:
        """The columns of the rows it was trained on, or the usual ones if it does not remember."""
        return saved_columns(self.manifest) or Columns()

    @property
    def given_taxonomy(self) -> Taxonomy | None:
        """The taxonomy that labels must be in; None if it was inferred from the labels."""
        codec = self.fitted.codec
        return None if codec.inferred else codec.taxonomy

    @property
    def risk_bound(self) -> RiskBound | None:
        """The threshold that the model was calibrated for, and its risk, if there is one."""
        promise = (self.manifest["calibration"] or {}).get("promise")
        return None if promise is None else RiskBound(**promise)

    @property
    def style(self) -> TextStyle:
        """How a label that is a path is written as one text."""
        separator = self.columns.path_sep
        return TextStyle(PATH_MARK) if separator in (None, PATH_MARK) else TextStyle(separator, separator)

    def table(self, options: PredictionOptions) -> PredictionTable:
        """Return what turns texts into columns of answers."""
        return PredictionTable(self.fitted, options, self.style)

    def explain(self, text: str, label: str | None = None, *, most: int) -> Explanation:
        """Explain the best trace of a text, or that of a label, written as in the training rows.

        Raises
        ------
        HiNetError
            If the model has no such label.
        """
        row = self.fitted.rows([text])
        traces = self.fitted.predictor.traces(row).traces if label is None else self._traces_of(label)
        return explain_row(self.fitted, row, traces, most, text)

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


def saved_columns(manifest: Mapping[str, Any]) -> Columns | None:
    """Return the columns that were noted when a model was saved."""
    noted = manifest.get("notes", {}).get(COLUMNS)
    return None if noted is None else Columns.from_dict(noted)


def load_model(path: str | Path, threads: int | None) -> LoadedModel:
    """Load a model of texts from a folder."""
    fitted, manifest = load_fitted(path)
    if fitted.features.kind != "text":
        raise FileError(path, "the model reads rows of numbers, which tables of text cannot give; use it from Python")
    return LoadedModel(fitted.with_threads(threads), manifest)
