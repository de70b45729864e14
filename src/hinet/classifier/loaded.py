"""A saved model of texts for answering: without what only training needs, with the columns it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hinet.classifier.bundle import load_fitted
from hinet.classifier.explaining import Explanation, explained
from hinet.classifier.fitted import Fitted
from hinet.classifier.tabular import PredictionOptions, PredictionTable
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
        form = self.fitted.form
        return None if form.inferred else form.taxonomy

    @property
    def risk_bound(self) -> RiskBound | None:
        """The threshold that the model was calibrated for, and its risk, if there is one."""
        promise = (self.manifest["calibration"] or {}).get("promise")
        return None if promise is None else RiskBound(**promise)

    @property
    def style(self) -> TextStyle:
        """How a label that is a path is written as one text."""
        named = self.columns.path_sep
        return TextStyle(PATH_MARK) if named in (None, PATH_MARK) else TextStyle(named, named)

    def rows_of(self, texts: list[str]) -> Any:
        """Return texts as the model reads them."""
        return self.fitted.rows(texts)

    def table(self, asked: PredictionOptions) -> PredictionTable:
        """Return what turns texts into columns of answers."""
        return PredictionTable(self.fitted, asked, self.style)

    def explained(self, text: str, label: str | None = None, *, most: int) -> Explanation:
        """Tell what pushed a text down its best trace, or down that of a label, written as in the training rows.

        Raises
        ------
        HiNetError
            If the model has no such label.
        """
        row = self.rows_of([text])
        traces = self.fitted.predictor.traces(row).traces if label is None else self._traces_of(label)
        return explained(self.fitted, row, traces, most, text)

    def _traces_of(self, label: str) -> Traces:
        form = self.fitted.form
        written = self.columns.parse_label([label])
        try:
            if not form.predictable(form.truth([written])).all():
                raise HiNetError(
                    f"the model has no label {label!r}: no training row ended there; name one that it predicts"
                )
            return form.encode([written])
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
