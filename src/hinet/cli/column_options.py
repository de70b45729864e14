"""Options that name the columns of a table; by default those that a model was trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from hinet.cli.options import option, shared_options
from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when a command runs, so that --help is fast
    from hinet.data.tables import Columns

NOT_PATHS = "none"  # instead of a separator: labels are not paths
_PANEL = "Columns"


@dataclass(frozen=True)
class ColumnOptions:
    """The columns that the user named; None means not given."""

    text: tuple[str, ...] | None = None
    label: tuple[str, ...] | None = None
    label_sep: str | None = None
    path_sep: str | None = None

    def with_defaults(self, defaults: Columns) -> Columns:
        """Return the columns named here, and the defaults for the rest."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return replace(defaults, **given | ({"path_sep": None} if self.path_sep == NOT_PATHS else {}))


_Text = Annotated[
    list[str] | None,
    option("--text", "Text column; several are joined (default: 'text', or as in training).", _PANEL),
]


def _text(text: _Text = None) -> ColumnOptions:
    return ColumnOptions(tuple(text) if text else None)


def _columns(
    text: _Text = None,
    label: Annotated[
        list[str] | None,
        option(
            "--label",
            "Label column; several are the levels of a path (default: 'label', or as in training).",
            _PANEL,
        ),
    ] = None,
    label_sep: Annotated[
        str | None, option("--label-sep", "Separator of several labels in a cell (default: one label).", _PANEL)
    ] = None,
    path_sep: Annotated[
        str | None,
        option(
            "--path-sep",
            "Separator of the steps of a label that is a path; 'none' if labels are not paths (default: without "
            "--taxonomy, > if a label has it with text on both sides).",
            _PANEL,
        ),
    ] = None,
) -> ColumnOptions:
    for name, value in (("--label-sep", label_sep), ("--path-sep", path_sep)):
        if value == "":
            raise HiNetError(f"{name} is empty; give the separator")
    return replace(_text(text), label=tuple(label) if label else None, label_sep=label_sep, path_sep=path_sep)


text_options = shared_options(_text, "column_options")
column_options = shared_options(_columns, "column_options")
