"""A saved model as commands use it: loaded without what only training needs, with the columns it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hinet.errors import FileError

if TYPE_CHECKING:  # imported when a command runs, so that --help stays instant
    from hinet.classifier.fitted import Fitted
    from hinet.classifier.text_paths import TextStyle
    from hinet.data.tables import Columns
    from hinet.evaluation.risk import RiskBound
    from hinet.taxonomy import Taxonomy

COLUMNS = "columns"  # the note in a model of which columns it was trained on


@dataclass(frozen=True)
class LoadedModel:
    """A model of texts, and what its manifest tells."""

    fitted: Fitted
    manifest: dict[str, Any]

    @property
    def columns(self) -> Columns:
        """The columns of the rows it was trained on, or the usual ones if it does not remember."""
        from hinet.data.tables import Columns

        return columns_noted(self.manifest) or Columns()

    @property
    def given_taxonomy(self) -> Taxonomy | None:
        """The taxonomy that labels must be in; none if it was made of the labels themselves."""
        form = self.fitted.form
        return None if form.inferred else form.taxonomy

    @property
    def promise(self) -> RiskBound | None:
        """The threshold that the model was calibrated for, and its risk, if there is one."""
        from hinet.evaluation.risk import RiskBound

        promise = (self.manifest["calibration"] or {}).get("promise")
        return None if promise is None else RiskBound(**promise)

    @property
    def style(self) -> TextStyle:
        """How a label that is a path is written as one text."""
        from hinet.classifier.text_paths import TextStyle
        from hinet.taxonomy import PATH_MARK

        named = self.columns.path_sep
        return TextStyle(PATH_MARK) if named in (None, PATH_MARK) else TextStyle(named, named)

    def rows_of(self, texts: list[str]) -> Any:
        """Return texts as the model reads them."""
        return self.fitted.rows(texts)


def columns_noted(manifest: Mapping[str, Any]) -> Columns | None:
    """Return the columns that were noted when a model was saved."""
    from hinet.data.tables import Columns

    noted = manifest.get("notes", {}).get(COLUMNS)
    return None if noted is None else Columns.from_dict(noted)


def load_model(path: str | Path, threads: int | None) -> LoadedModel:
    """Load a model of texts from a folder."""
    from hinet.classifier.bundle import load_fitted

    fitted, manifest = load_fitted(path)
    if fitted.features.kind != "text":
        raise FileError(path, "the model reads rows of numbers, which tables of text cannot give; use it from Python")
    return LoadedModel(replace(fitted, threads=threads), manifest)
