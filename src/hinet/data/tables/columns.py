"""Texts, numbers, categories, vectors and labels from the cells of a table; rows without them are row errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast

import pyarrow as pa

from hinet.data.frames import is_categories, is_number
from hinet.data.tables.blocks import ColumnSelection, RowBlock
from hinet.data.tables.cells import as_text, category_cells, number_cells, vector_cells
from hinet.data.tables.formats import TableOptions
from hinet.data.tables.reading import read_blocks
from hinet.data.tables.row_errors import RowErrors
from hinet.data.tables.vector_files import VectorFile, vector_files
from hinet.data.text.text_input import MAX_TEXT_BYTES, too_long_message
from hinet.errors import HiNetError, LabelError, quoted
from hinet.files import check_plain
from hinet.files.text import decoding_error
from hinet.taxonomy import PATH_MARK, Taxonomy, as_id, split_path
from hinet.taxonomy.path_text import empty_step_message, path_error

_FURTHER = ("number", "category", "vector")  # kinds of columns beside text
CACHE_SIZE = 1 << 20  # distinct labels whose check is cached

Conditions = Mapping[str, tuple[str, ...]]
Check = Callable[[Any], str]  # returns why a label is invalid, or an empty string


def _is_list(cell: Any) -> bool:
    return isinstance(cell, (list, tuple))


def iter_labels(label: Any) -> Iterable[Any]:
    """Return the labels of a row one by one: a set holds several."""
    return label if isinstance(label, frozenset) else (label,)


def _accept_any(label: Any) -> str:
    return ""


@dataclass(frozen=True)
class Columns:
    """The columns of texts and labels of a table, and of whatever else tells the label; and the format of labels.

    Several text columns are joined by a space; there may be none beside other columns. Several label columns are the
    steps of a path from the top down. ``label_sep`` separates several labels in a cell, ``path_sep`` the steps of a
    path.
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
        """Whether rows are more than a text."""
        return bool(self.number or self.category or self.vector)

    @property
    def inputs(self) -> tuple[str, ...]:
        """All columns that tell the label."""
        return (*self.text, *self.number, *self.category, *self.vector)

    def to_dict(self) -> dict[str, Any]:
        """Return the columns as a dict for JSON."""
        return {name: value for name, value in asdict(self).items() if name not in _FURTHER or value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Columns:
        """Return the columns from the result of :meth:`to_dict`."""
        check_plain(data, cls, "the note of columns")
        may_be_empty = {*_FURTHER, *(["text"] if any(data.get(name) for name in _FURTHER) else [])}
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
            labels = (self._parse_one(as_id(part).strip()) for part in parts)
            return frozenset(label for label in labels if label)
        return self._parse_one(as_id(cell))

    def _parse_one(self, text: str) -> Any:
        if self.path_sep is None:
            return text
        steps = split_path(text, self.path_sep)
        return steps if any(steps) else ()


@dataclass(frozen=True)
class RowQuery:
    """Which rows to read, and which of their columns."""

    columns: Columns
    labels: bool = True  # whether rows need a label
    where: Conditions = field(default_factory=dict)  # only rows whose columns have one of these values
    exclude: Conditions = field(default_factory=dict)  # no rows whose columns have one of these values
    keep: tuple[str, ...] = ()  # further columns to read
    keep_all: bool = False
    explicit: bool = True  # whether the user named the columns of this file
    allow_blank: bool = False  # whether rows may have a blank text
    check: Check = _accept_any
    widths: Mapping[str, int] = field(default_factory=dict)  # of columns of vectors, where they are known

    @property
    def selection(self) -> ColumnSelection:
        """The columns to read."""
        return self.selection_beside(())

    def selection_beside(self, beside: Iterable[str]) -> ColumnSelection:
        """Return the columns to read from a table that has some columns of vectors in files beside it."""
        labels, columns = self.columns.label if self.labels else (), self.columns
        names = dict.fromkeys([*columns.text, *columns.number, *columns.category, *labels, *self.where, *self.exclude])
        in_files = {*beside}
        vectors = [name for name in columns.vector if name not in in_files]  # as they are, which may be Arrow arrays
        keep = tuple(dict.fromkeys([*self.keep, *vectors]))
        explicit = self.explicit or bool(keep) or columns.is_mixed or len(names) > len(columns.text)
        parameters = {
            **dict.fromkeys(self.keep, "keep"),
            **{name: kind for kind in _FURTHER for name in getattr(columns, kind)},
            **dict.fromkeys(self.exclude, "valid_where"),
            **dict.fromkeys(self.where, "where"),
            **dict.fromkeys(labels, "label"),
            **dict.fromkeys(self.columns.text, "text"),
        }
        return ColumnSelection(tuple(names), keep, self.keep_all, explicit, parameters)


@dataclass(frozen=True)
class LabelledBlock:
    """Rows with their texts, and their labels if the query needs them."""

    rows: RowBlock
    texts: list[str]
    labels: list[Any]
    table: pa.Table | None = None  # of the texts, numbers, categories and vectors, if rows are more than a text

    @property
    def inputs(self) -> list[str] | pa.Table:
        """What tells the labels: texts, or a table."""
        return self.texts if self.table is None else self.table

    def __len__(self) -> int:
        return len(self.texts)

    def parts(self, size: int) -> Iterator[LabelledBlock]:
        """Yield the rows in blocks of at most ``size`` rows."""
        if len(self) <= size:
            yield self
            return
        for start in range(0, len(self), size):
            rows = range(start, min(start + size, len(self)))
            table = None if self.table is None else self.table.slice(start, len(rows))
            texts, labels = self.texts[start : rows.stop], self.labels[start : rows.stop]
            yield LabelledBlock(self.rows.take(rows), texts, labels, table)


def labelled_blocks(
    paths: Sequence[str], query: RowQuery, options: TableOptions, row_errors: RowErrors
) -> Iterator[LabelledBlock]:
    """Yield the rows that a query selects; rows without text, or with an invalid label, go to ``row_errors``.

    A column of vectors may be in a file beside the table; see :mod:`hinet.data.tables.vector_files`.
    """
    widths = dict(query.widths)
    for path in paths:
        files = vector_files(path, query.columns.vector)
        errors_before, rows = row_errors.count, 0
        for block in read_blocks([path], query.selection_beside(files), options, row_errors):
            rows = block.positions[-1] + 1 if block.positions else rows
            yield _parse_block(block, query, files, widths, row_errors)
        for file in files.values():
            file.check_end(rows, rows + row_errors.count - errors_before)


def _parse_block(
    block: RowBlock, query: RowQuery, files: Mapping[str, VectorFile], widths: dict[str, int], row_errors: RowErrors
) -> LabelledBlock:
    block, columns = _filter_rows(block, query), query.columns
    texts = _texts(block, columns.text)
    labels = columns.parse_labels([block.values(name) for name in columns.label]) if query.labels else []
    reasons = {label: _bad_label(label) or query.check(label) for label in {*labels}}
    reasons_by_row = (
        {row: reason for row, label in enumerate(labels) if (reason := reasons[label])} if any(reasons.values()) else {}
    )
    allow_blank = query.allow_blank or columns.is_mixed
    table = _table(block, columns, files, widths, reasons_by_row) if columns.is_mixed else None
    reasons_by_row |= {row: reason for row, text in enumerate(texts) if (reason := _bad_text(text, allow_blank))}
    if not reasons_by_row:
        return LabelledBlock(block, cast(list[str], texts), labels, table)
    for row, reason in sorted(reasons_by_row.items()):
        row_errors.add(block.path, block.numbers[row], reason, block.to_json(row), block.unit)
    valid_rows = [row for row in range(len(texts)) if row not in reasons_by_row]
    kept_labels = [labels[row] for row in valid_rows] if query.labels else []
    kept_table = None if table is None else table.take(pa.array(valid_rows, pa.int64()))
    return LabelledBlock(block.take(valid_rows), [str(texts[row]) for row in valid_rows], kept_labels, kept_table)


def _table(
    block: RowBlock, columns: Columns, files: Mapping[str, VectorFile], widths: dict[str, int], errors: dict[int, str]
) -> pa.Table:
    """Return the columns of rows that tell the label; rows that have no such values are told in ``errors``."""
    texts = ([as_text(cell) or "" for cell in block.values(name)] for name in columns.text)
    arrays = [pa.array(column, pa.large_string()) for column in texts]
    arrays += [number_cells(name, _cells_or(block, name, is_number), errors) for name in columns.number]
    arrays += [category_cells(name, _cells_or(block, name, is_categories), errors) for name in columns.category]
    for name in columns.vector:
        cells = files[name].take(block.positions) if name in files else block.column(name)
        arrays.append(vector_cells(name, cells, widths, errors))
    return pa.table(arrays, list(columns.inputs))


def _cells_or(block: RowBlock, name: str, has_kind: Callable[[pa.DataType], bool]) -> Any:
    """Return a column as an Arrow array if it has such a type, else as Python values."""
    column = block.column(name)
    return column if isinstance(column, pa.Array) and has_kind(column.type) else block.values(name)


def table_of(block: RowBlock, columns: Columns, widths: Mapping[str, int]) -> pa.Table:
    """Return the columns of rows that tell the label, or raise HiNetError for the first cell that is invalid."""
    errors = {row: reason for row, text in enumerate(_texts(block, columns.text)) if (reason := _bad_text(text, True))}
    table = _table(block, columns, {}, dict(widths), errors)
    for _, reason in sorted(errors.items()):
        raise HiNetError(reason)
    return table


def _bad_text(text: str | None, may_be_blank: bool) -> str:
    if text is None:
        return "the text is a list or an object; set `text` to a column of text"
    if 4 * len(text) > MAX_TEXT_BYTES and (size := len(text.encode(errors="replace"))) > MAX_TEXT_BYTES:
        return too_long_message(size)
    return "" if may_be_blank or not is_blank(text) else "the text is empty; leave the row out"


def is_blank(text: str) -> bool:
    """Return whether a text is empty or only spaces.

    >>> is_blank(" "), is_blank("rye")
    (True, False)
    """
    return not text or text.isspace()


def _filter_rows(block: RowBlock, query: RowQuery) -> RowBlock:
    if not query.where and not query.exclude:
        return block
    conditions, exclusions = query.where.items(), query.exclude.items()
    values_of = {column: block.values(column) for column in (*query.where, *query.exclude)}

    def has(row: int, column: str, values: tuple[str, ...]) -> bool:
        return (as_text(values_of[column][row]) or "").strip() in values

    rows = [
        row
        for row in range(len(block))
        if all(has(row, *condition) for condition in conditions)
        and not (exclusions and all(has(row, *condition) for condition in exclusions))
    ]
    return block.take(rows)


def _texts(block: RowBlock, columns: Sequence[str]) -> list[str | None]:
    """Return the text of every row, or None where a cell is not text."""
    if not columns:
        return [""] * len(block)
    parts = [[cell if isinstance(cell, str) else as_text(cell) for cell in block.values(name)] for name in columns]
    if len(parts) == 1:
        return parts[0]
    rows = zip(*parts, strict=True)
    return [None if None in cells else " ".join(cell for cell in cells if cell) for cells in rows]


def _bad_label(label: Any) -> str:
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
        return _accept_any

    @lru_cache(CACHE_SIZE)
    def check(label: Any) -> str:
        for item in iter_labels(label):
            reason = _unknown_path(taxonomy, item) if isinstance(item, tuple) else _unknown(taxonomy, item)
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
