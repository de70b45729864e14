"""Texts and labels out of the cells of a table; rows without them go to the faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

from hinet.data.tables.blocks import RowBlock, Wanted
from hinet.data.tables.faults import Faults
from hinet.data.tables.formats import TableOptions
from hinet.data.tables.reading import read_blocks
from hinet.errors import HiNetError, LabelError, quoted
from hinet.files import check_plain
from hinet.files.text import decoding_error
from hinet.taxonomy import PATH_MARK, Taxonomy, as_id, split_path
from hinet.taxonomy.path_text import empty_step_message, path_error

MOST_CHECKED = 1 << 20  # distinct labels whose check is remembered

Conditions = Mapping[str, tuple[str, ...]]
Check = Callable[[Any], str]  # why a label cannot be used, or nothing


def _is_list(cell: Any) -> bool:
    return isinstance(cell, (list, tuple))


def each_of(label: Any) -> Iterable[Any]:
    """Return the labels of a row one by one: a set stands for several."""
    return label if isinstance(label, frozenset) else (label,)


def _anything(label: Any) -> str:
    return ""


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold what, and how labels are written in them.

    Several columns of text are joined by a blank. Several columns of labels are the steps of a path from the top down.
    ``label_sep`` stands between several labels in a cell, ``path_sep`` between the steps of a path.
    """

    text: tuple[str, ...] = ("text",)
    label: tuple[str, ...] = ("label",)
    label_sep: str | None = None
    path_sep: str | None = None

    def __post_init__(self) -> None:
        for name in (*self.text, *self.label, self.label_sep or "", self.path_sep or ""):
            if decoding_error(name, "utf-8"):
                raise HiNetError(f"{quoted(name)} is no text; type it in UTF-8, and name the file's --encoding")

    def described(self) -> dict[str, Any]:
        """Return the columns as plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_described(cls, described: Mapping[str, Any]) -> Columns:
        """Return the columns that ``described`` gave."""
        check_plain(described, cls, "the note of columns")
        if not all(value or value is None for value in described.values()):
            raise HiNetError("the note of columns names no column, or a separator without a character")
        told: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in described.items()}
        return cls(**told)

    def labels_of(self, columns: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the label of every row in the columns of labels."""
        if len(columns) == 1 and self.label_sep is None and self.path_sep is None:  # as most tables have it
            return [cell if type(cell) is str else self.label_of((cell,)) for cell in columns[0]]
        return [self.label_of(row) for row in zip(*columns, strict=True)]

    def label_of(self, cells: Sequence[Any]) -> Any:
        """Return the label in the cells of a row: text, a path as a tuple, or several as a set; empty for none.

        None stands for what no label can be, an object or a list within a list.
        """
        if any(isinstance(cell, dict) for cell in cells) or (len(cells) > 1 and any(map(_is_list, cells))):
            return None
        if len(cells) > 1:
            steps = [as_id(cell).strip() for cell in cells]
            while steps and not steps[-1]:
                steps.pop()
            return tuple(steps)
        (cell,) = cells
        if _is_list(cell) or self.label_sep is not None:
            parts = cell if _is_list(cell) else as_id(cell).split(self.label_sep)
            if any(isinstance(part, (list, tuple, dict)) for part in parts):
                return None
            found = (self._one(as_id(part).strip()) for part in parts)
            return frozenset(label for label in found if label)
        return self._one(as_id(cell))

    def _one(self, text: str) -> Any:
        if self.path_sep is None:
            return text
        steps = split_path(text, self.path_sep)
        return steps if any(steps) else ()


@dataclass(frozen=True)
class RowQuery:
    """Which rows are wanted, and what of them."""

    columns: Columns
    labels: bool = True  # whether rows need a label
    where: Conditions = field(default_factory=dict)  # rows whose columns have one of these values
    unless: Conditions = field(default_factory=dict)  # but not those whose columns have one of these
    keep: tuple[str, ...] = ()  # columns that are carried along
    keep_all: bool = False
    named: bool = True  # whether a person named the columns of this file
    blank_texts: bool = False  # whether rows without a text are wanted too
    check: Check = _anything

    @property
    def wanted(self) -> Wanted:
        """The columns to read."""
        labels = self.columns.label if self.labels else ()
        names = dict.fromkeys([*self.columns.text, *labels, *self.where, *self.unless])
        named = self.named or bool(self.keep) or len(names) > len(self.columns.text)
        options = {
            **dict.fromkeys(self.keep, "--keep"),
            **dict.fromkeys(self.unless, "--valid-where"),
            **dict.fromkeys(self.where, "--where"),
            **dict.fromkeys(labels, "--label"),
            **dict.fromkeys(self.columns.text, "--text"),
        }
        return Wanted(tuple(names), self.keep, self.keep_all, named, options)


@dataclass(frozen=True)
class LabelledBlock:
    """Rows with their texts, and their labels if these were asked for."""

    rows: RowBlock
    texts: list[str]
    labels: list[Any]

    def __len__(self) -> int:
        return len(self.texts)

    def parts(self, most: int) -> Iterator[LabelledBlock]:
        """Yield the rows in blocks of at most so many."""
        if len(self) <= most:
            yield self
            return
        for start in range(0, len(self), most):
            rows = range(start, min(start + most, len(self)))
            yield LabelledBlock(self.rows.take(rows), [*self.texts[start : rows.stop]], self.labels[start : rows.stop])


def labelled_blocks(
    paths: Sequence[str], query: RowQuery, options: TableOptions, faults: Faults
) -> Iterator[LabelledBlock]:
    """Yield the rows of files that a query asks for; those without text, or with a bad label, go to ``faults``."""
    for block in read_blocks(paths, query.wanted, options, faults):
        yield _labelled(block, query, faults)


def _labelled(block: RowBlock, query: RowQuery, faults: Faults) -> LabelledBlock:
    block = _chosen(block, query)
    texts = _texts(block, query.columns.text)
    labels = query.columns.labels_of([block.cells[name] for name in query.columns.label]) if query.labels else []
    reasons = {label: _bad_label(label) or query.check(label) for label in {*labels}}
    bad = (
        {row: reason for row, label in enumerate(labels) if (reason := reasons[label])} if any(reasons.values()) else {}
    )
    bad |= {row: reason for row, text in enumerate(texts) if (reason := _bad_text(text, query.blank_texts))}
    if not bad:
        return LabelledBlock(block, cast(list[str], texts), labels)
    for row, reason in sorted(bad.items()):
        faults.found(block.path, block.places[row], reason, block.described(row), block.unit)
    good = [row for row in range(len(texts)) if row not in bad]
    kept_labels = [labels[row] for row in good] if query.labels else []
    return LabelledBlock(block.take(good), [str(texts[row]) for row in good], kept_labels)


def _bad_text(text: str | None, may_be_blank: bool) -> str:
    if text is None:
        return "the text is a list or an object; name a column of text (--text)"
    return "" if may_be_blank or not is_blank(text) else "the text is empty; leave the row out"


def is_blank(text: str) -> bool:
    """Return whether a text has nothing to classify.

    >>> is_blank(" "), is_blank("rye")
    (True, False)
    """
    return not text or text.isspace()


def _chosen(block: RowBlock, query: RowQuery) -> RowBlock:
    if not query.where and not query.unless:
        return block
    wanted, unwanted = query.where.items(), query.unless.items()

    def has(row: int, column: str, values: tuple[str, ...]) -> bool:
        return (as_text(block.cells[column][row]) or "").strip() in values

    rows = [
        row
        for row in range(len(block))
        if all(has(row, *each) for each in wanted) and not (unwanted and all(has(row, *each) for each in unwanted))
    ]
    return block.take(rows)


def _texts(block: RowBlock, columns: Sequence[str]) -> list[str | None]:
    """Return the text of every row, None where it is something else."""
    parts = [[cell if isinstance(cell, str) else as_text(cell) for cell in block.cells[name]] for name in columns]
    if len(parts) == 1:
        return parts[0]
    rows = zip(*parts, strict=True)
    return [None if None in cells else " ".join(cell for cell in cells if cell) for cells in rows]


def as_text(cell: Any) -> str | None:
    """Return a cell as text, nothing as an empty one; None for a list or an object.

    >>> as_text(7.0), as_text(True), as_text(None), as_text(["a"])
    ('7', 'true', '', None)
    """
    if isinstance(cell, bool):
        return str(cell).lower()
    return None if isinstance(cell, (list, dict)) else as_id(cell)


def _bad_label(label: Any) -> str:
    """Return why something is no label at all, or nothing."""
    if label is None:
        return "the label is an object or lists within a list; name a column of labels (--label)"
    if not label or (isinstance(label, str) and label.isspace()):
        return "the row has no label; label it or leave it out"
    for path in each_of(label):
        if isinstance(path, tuple) and not all(path):
            return empty_step_message(" > ".join(path))
    return ""


def whole_paths(label: Any) -> str:
    """Tell why a label, which may turn out to be a path, would be none; or nothing.

    What starts with the mark, such as ``>50K``, is let pass: it is a path only if others are.
    """
    for one in each_of(label):
        if not one.lstrip().startswith(PATH_MARK) and (reason := path_error(one)):
            return f"{reason}, or take labels as they are with --path-sep none"
    return ""


def checked_against(taxonomy: Taxonomy | None) -> Check:
    """Return what tells why a label is not in a taxonomy whose ids labels and steps are; without one, all may be."""
    if taxonomy is None:
        return _anything

    @lru_cache(MOST_CHECKED)
    def check(label: Any) -> str:
        for one in each_of(label):
            reason = _unknown_path(taxonomy, one) if isinstance(one, tuple) else _unknown(taxonomy, one)
            if reason:
                return reason
        return ""

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
