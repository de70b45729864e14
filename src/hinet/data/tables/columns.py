"""Columns of a table: which ones are inputs and labels, and how labels are parsed and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hinet.data.tables.arff import LABEL_SEP, input_columns
from hinet.data.tables.blocks import TableOptions, format_of
from hinet.errors import HiNetError, LabelError, quoted
from hinet.files import check_plain
from hinet.files.streams import STANDARD, decoding_error, open_bytes, peek_stream, read_text
from hinet.taxonomy import PATH_MARK, Taxonomy, as_id, split_path
from hinet.taxonomy.arff import hierarchy_draft, parse_header
from hinet.taxonomy.draft import empty_step_message, path_error

NON_TEXT = ("number", "category", "vector")  # kinds of input columns other than text
CACHE_SIZE = 1 << 20  # distinct labels whose check is cached

Check = Callable[[Any], str]  # returns why a label is invalid, or an empty string


@dataclass(frozen=True)
class Columns:
    """The input and label columns of a table, and the format of the labels.

    Several text columns are joined by a space; a table with other input columns may have none. Several label columns
    are the steps of a path from the top down. ``label_sep`` separates several labels in a cell, ``path_sep`` the steps
    of a path.
    """

    text: tuple[str, ...] = ("text",)
    label: tuple[str, ...] = ("label",)
    label_sep: str | None = None
    path_sep: str | None = None
    number: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    vector: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (*self.inputs, *self.label, self.label_sep or "", self.path_sep or ""):
            if decoding_error(name, "utf-8"):
                raise HiNetError(f"{quoted(name)} is not valid text; type it in UTF-8, and set `encoding` of the file")

    @property
    def is_mixed(self) -> bool:
        """Whether there are input columns other than text."""
        return bool(self.number or self.category or self.vector)

    @property
    def inputs(self) -> tuple[str, ...]:
        """All input columns."""
        return (*self.text, *self.number, *self.category, *self.vector)

    def to_dict(self) -> dict[str, Any]:
        """Return the columns as a dict for JSON."""
        return {name: value for name, value in asdict(self).items() if name not in NON_TEXT or value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Columns:
        """Return the columns from the result of :meth:`to_dict`."""
        check_plain(data, cls, "the note of columns")
        may_be_empty = {*NON_TEXT, *(["text"] if any(data.get(name) for name in NON_TEXT) else [])}
        if not all(value or value is None or name in may_be_empty for name, value in data.items()):
            raise HiNetError("the note of columns has an empty column or separator")
        values: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in data.items()}
        return cls(**values)

    def parse_labels(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the label of every row from the label columns."""
        if len(columns) == 1 and self.label_sep is None and self.path_sep is None:  # the common case
            return [cell if type(cell) is str else self.parse_label((cell,)) for cell in columns[0]]
        return [self.parse_label(row) for row in zip(*columns, strict=True)]

    def parse_label(self, cells: Sequence[Any]) -> Any:
        """Return the label in the cells of a row: a string, a path as a tuple, or several as a set; empty for none.

        The result is None for an object or a nested list, which cannot be a label.
        """
        if len(cells) > 1:
            if any(isinstance(cell, list | tuple | dict) for cell in cells):
                return None
            steps = [as_id(cell).strip() for cell in cells]
            while steps and not steps[-1]:
                steps.pop()
            return tuple(steps)
        (cell,) = cells
        if isinstance(cell, dict):
            return None
        if isinstance(cell, list | tuple) or self.label_sep is not None:
            parts = cell if isinstance(cell, list | tuple) else as_id(cell).split(self.label_sep)
            if any(isinstance(part, list | tuple | dict) for part in parts):
                return None
            labels = (self._parse_one(as_id(part).strip()) for part in parts)
            return frozenset(label for label in labels if label)
        return self._parse_one(as_id(cell))

    def _parse_one(self, text: str) -> Any:
        if self.path_sep is None:
            return text
        steps = split_path(text, self.path_sep)
        return steps if any(steps) else ()


def iter_labels(label: Any) -> Iterable[Any]:
    """Return the labels of a row one by one: a set holds several."""
    return label if isinstance(label, frozenset) else (label,)


def accept_any(label: Any) -> str:
    """Accept every label."""
    return ""


def label_error(label: Any) -> str:
    """Return why a label is invalid in any taxonomy, or an empty string."""
    if label is None:
        return "the label is an object or a nested list; set `label` to a column of labels"
    if not label or (isinstance(label, str) and label.isspace()):
        return "the row has no label; label it or leave it out"
    for path in iter_labels(label):
        if isinstance(path, tuple) and not all(path):
            return empty_step_message(" > ".join(path))
    return ""


def check_whole_path(label: Any) -> str:
    """Return why a label would be invalid if labels turn out to be paths, or an empty string.

    A label that starts with the mark, such as ``>50K``, passes: it is a path only if others are.
    """
    for item in iter_labels(label):
        if not item.lstrip().startswith(PATH_MARK) and (reason := path_error(item)):
            return f"{reason}, or set `path_sep` to none if labels are not paths"
    return ""


def taxonomy_check(taxonomy: Taxonomy | None) -> Check:
    """Return a check that labels, and the steps of paths, are ids of a taxonomy; without one, all are valid."""
    if taxonomy is None:
        return accept_any

    @lru_cache(CACHE_SIZE)
    def check(label: Any) -> str:
        reasons = (
            _unknown_path(taxonomy, item) if isinstance(item, tuple) else _unknown(taxonomy, item)
            for item in iter_labels(label)
        )
        return next(filter(None, reasons), "")

    return check


def _unknown(taxonomy: Taxonomy, label: str) -> str:
    try:
        taxonomy.position(label)
    except LabelError as error:
        return f"label {error}"
    return ""


def _unknown_path(taxonomy: Taxonomy, path: tuple[str, ...]) -> str:
    for step in path:
        if reason := _unknown(taxonomy, step):
            return f"{reason}, a step of the path {quoted(PATH_MARK.join(path))}"
    for above, below in pairwise(path):
        if above not in taxonomy.parents(below):
            return f"{quoted(below)} is not below {quoted(above)} in the taxonomy; name every step from the top down"
    return ""


class DeclaredColumns(NamedTuple):
    """The columns of a file by kind, and the hierarchy of its labels, if it has one."""

    columns: Columns
    taxonomy: Taxonomy | None


def declared_columns(
    path: str, options: TableOptions, labels: Sequence[str] = (), leave_out: Iterable[str] = ()
) -> DeclaredColumns | None:
    """Return what the header of an ARFF file declares; None for other files, and for pipes, which are read only once.

    ``labels`` are the label columns, by default the hierarchical attribute. They and the columns in ``leave_out`` are
    not inputs.
    """
    if path == STANDARD or not Path(path).is_file():
        return None
    with open_bytes(path) as raw:
        head = peek_stream(raw).head
    if format_of(path, head, options, (), explicit=False) != "arff":
        return None
    header = parse_header(path, read_text(path, options.encoding))
    unused = {*labels, *leave_out}
    inputs: dict[str, Any] = {
        kind: tuple(name for name in names if name not in unused) for kind, names in input_columns(header).items()
    }
    columns = replace(Columns(text=()), **inputs)
    hierarchy = header.hierarchy
    if hierarchy is None or (labels and tuple(labels) != (hierarchy.name,)):
        return DeclaredColumns(replace(columns, label=tuple(labels) or columns.label), None)
    taxonomy = Taxonomy.from_draft(hierarchy_draft(path, hierarchy), source=path)
    return DeclaredColumns(replace(columns, label=(hierarchy.name,), label_sep=LABEL_SEP), taxonomy)
