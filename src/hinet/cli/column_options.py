"""Options that say which columns of a table hold what; without them, those a model was trained with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from hinet.cli.options import option, takes
from hinet.errors import HiNetError

if TYPE_CHECKING:  # imported when a command runs, so that --help stays instant
    from hinet.data.tables import Columns

NO_PATHS = "none"  # instead of a separator: labels are taken as they are
_PANEL = "Columns"


@dataclass(frozen=True)
class ColumnChoice:
    """The columns a person named; what is None was not."""

    text: tuple[str, ...] | None = None
    label: tuple[str, ...] | None = None
    label_sep: str | None = None
    path_sep: str | None = None

    def over(self, usual: Columns) -> Columns:
        """Return the columns named here, and for the rest the usual ones."""
        named = {name: value for name, value in vars(self).items() if value is not None}
        return replace(usual, **named | ({"path_sep": None} if self.path_sep == NO_PATHS else {}))


def _text(
    text: Annotated[
        list[str] | None,
        option("--text", "Column of the text; several are joined. By default that of training, or 'text'.", _PANEL),
    ] = None,
) -> ColumnChoice:
    return ColumnChoice(tuple(text) if text else None)


def _columns(
    text: Annotated[
        list[str] | None,
        option("--text", "Column of the text; several are joined. By default that of training, or 'text'.", _PANEL),
    ] = None,
    label: Annotated[
        list[str] | None,
        option(
            "--label",
            "Column of the label; several are the steps of a path. By default that of training, or 'label'.",
            _PANEL,
        ),
    ] = None,
    label_sep: Annotated[str | None, option("--label-sep", "Separator of several labels in one cell.", _PANEL)] = None,
    path_sep: Annotated[
        str | None,
        option(
            "--path-sep",
            "Separator of the steps of a label; 'none' takes labels as they are. By default, without --taxonomy, > if "
            "a label has it with text on both sides.",
            _PANEL,
        ),
    ] = None,
) -> ColumnChoice:
    for name, value in (("--label-sep", label_sep), ("--path-sep", path_sep)):
        if value == "":
            raise HiNetError(f"{name} is empty; give the characters that stand between two")
    return replace(_text(text), label=tuple(label) if label else None, label_sep=label_sep, path_sep=path_sep)


names_text = takes(_text, "named")
names_columns = takes(_columns, "named")
