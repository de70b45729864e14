"""A saved text model for the commands, loaded without the code for training, with the columns of its training rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet.errors import FileError

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet.classifier.fitted import Fitted
    from hinet.classifier.text_paths import TextStyle
    from hinet.data.tables import Columns
    from hinet.evaluation.risk import RiskBound
    from hinet.taxonomy import Taxonomy

COLUMNS = "columns"  # the note in the manifest with the columns of the training rows


@dataclass(frozen=True)
class LoadedModel:
    """A text model and its manifest."""

    fitted: Fitted
    manifest: dict[str, Any]

    @property
    def columns(self) -> Columns:
        """The columns of the training rows, or the defaults if the model has no note of them."""
        from hinet.data.tables import Columns

        return saved_columns(self.manifest) or Columns()

    @property
    def given_taxonomy(self) -> Taxonomy | None:
        """The taxonomy that labels must be in; None if it was inferred from the labels."""
        form = self.fitted.form
        return None if form.inferred else form.taxonomy

    @property
    def risk_bound(self) -> RiskBound | None:
        """The calibrated threshold and its risk, if there is one."""
        from hinet.evaluation.risk import RiskBound

        bound = (self.manifest["calibration"] or {}).get("promise")
        return None if bound is None else RiskBound(**bound)

    @property
    def style(self) -> TextStyle:
        """How paths are written as text."""
        from hinet.classifier.text_paths import TextStyle
        from hinet.taxonomy import PATH_MARK

        separator = self.columns.path_sep
        return TextStyle(PATH_MARK) if separator in (None, PATH_MARK) else TextStyle(separator, separator)


def saved_columns(manifest: Mapping[str, Any]) -> Columns | None:
    """Return the columns of the training rows from the notes of a saved model."""
    from hinet.data.tables import Columns

    note = manifest.get("notes", {}).get(COLUMNS)
    return None if note is None else Columns.from_dict(note)


def load_model(path: str | Path, threads: int | None) -> LoadedModel:
    """Load a text model from a folder."""
    from hinet.classifier.bundle import load_fitted

    fitted, manifest = load_fitted(path)
    if fitted.features.kind != "text":
        raise FileError(path, "the model takes numeric features, not texts; use it from Python")
    return LoadedModel(replace(fitted, threads=threads), manifest)
