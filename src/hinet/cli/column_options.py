"""Options that name the columns of a table; by default those that a model was trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from hinet.cli.options import option, shared_options
from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet.data.tables import Columns

NOT_PATHS = "none"  # instead of a separator: labels are not paths
_LABEL = "Label column; several are the levels of a path (default: 'label', or as in training)."
_PATH_SEP = (
    "Separator of the steps of a label that is a path; 'none' if labels are not paths (default: without --taxonomy, > "
    "if a label has it with text on both sides)."
)
_NUMBER = "Column of numbers beside or instead of text; repeatable (default: as in training)."
_CATEGORY = "Column of categories, such as brands; repeatable (default: as in training)."
_VECTOR = (
    "Column of lists of numbers, such as embeddings, or NAME for the file TABLE.NAME.npy beside the table TABLE.csv; "
    "repeatable (default: as in training)."
)
LabelSep = Annotated[str | None, option("Separator of several labels in a cell (default: one label).")]


@dataclass(frozen=True)
class ColumnOptions:
    """The columns that the user named; None means not given."""

    text: Annotated[
        list[str] | None, option("Text column; several are joined (default: 'text', or as in training).")
    ] = None
    number: Annotated[list[str] | None, option(_NUMBER)] = None
    category: Annotated[list[str] | None, option(_CATEGORY)] = None
    vector: Annotated[list[str] | None, option(_VECTOR)] = None
    label: Annotated[list[str] | None, option(_LABEL)] = None
    label_sep: LabelSep = None
    path_sep: Annotated[str | None, option(_PATH_SEP)] = None

    def __post_init__(self) -> None:
        for name, value in (("--label-sep", self.label_sep), ("--path-sep", self.path_sep)):
            if value == "":
                raise HiNetError(f"{name} is empty; give the separator")

    def with_defaults(self, defaults: Columns) -> Columns:
        """Return the columns named here, and the defaults for the rest."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in vars(self).items()
        }
        given = {name: value for name, value in values.items() if value}
        return replace(defaults, **given | ({"path_sep": None} if self.path_sep == NOT_PATHS else {}))

    @property
    def are_mixed(self) -> bool:
        """Whether other columns than text are named."""
        return bool(self.number or self.category or self.vector)


text_options = shared_options(ColumnOptions, "column_options", "Columns", "text")
input_options = shared_options(ColumnOptions, "column_options", "Columns", "text", "number", "category", "vector")
column_options = shared_options(ColumnOptions, "column_options", "Columns")
