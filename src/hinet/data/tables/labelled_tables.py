"""Rows of tables with their inputs and labels; rows with an invalid input or label are row errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa

from hinet.data.frames import is_categories, is_number
from hinet.data.tables.arff import LABEL_SEP, input_columns
from hinet.data.tables.blocks import ColumnSelection, FailFast, RowBlock, RowErrors, Skipped, TableOptions, format_of
from hinet.data.tables.cells import VectorFile, as_text, category_cells, number_cells, vector_cells, vector_files
from hinet.data.tables.reading import read_blocks
from hinet.data.text.text_input import MAX_TEXT_BYTES, too_long_message
from hinet.errors import HiNetError, LabelError, quoted
from hinet.files import check_plain
from hinet.files.streams import STANDARD, decoding_error, open_bytes, peek_stream, read_text
from hinet.taxonomy import PATH_MARK, Taxonomy, as_id, split_path
from hinet.taxonomy.arff import hierarchy_draft, parse_header
from hinet.taxonomy.draft import empty_step_message, path_error

Conditions = Mapping[str, tuple[str, ...]]
Check = Callable[[Any], str]  # returns why a label is invalid, or an empty string
NON_TEXT = ("number", "category", "vector")  # kinds of input columns other than text
CACHE_SIZE = 1 << 20  # distinct labels whose check is cached
_BLANK = re.compile(r"[\s\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]*")


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
        for item in iter_labels(label):
            path = item if isinstance(item, tuple) else (item,)
            for step in path:
                try:
                    taxonomy.position(step)
                except LabelError as error:
                    place = f", a step of the path {quoted(PATH_MARK.join(path))}" if isinstance(item, tuple) else ""
                    return f"label {error}{place}"
            for above, below in pairwise(path):
                if above not in taxonomy.parents(below):
                    problem = f"{quoted(below)} is not below {quoted(above)} in the taxonomy"
                    return f"{problem}; name every step from the top down"
        return ""

    return check


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
    check: Check = accept_any
    widths: Mapping[str, int] = field(default_factory=dict)  # known widths of vector columns

    def selection(self, in_files: Iterable[str] = ()) -> ColumnSelection:
        """Return the columns to read from a table; vector columns ``in_files`` of their own are not among them."""
        columns, labels = self.columns, self.columns.label if self.labels else ()
        names = dict.fromkeys([*columns.text, *columns.number, *columns.category, *labels, *self.where, *self.exclude])
        others = {*in_files}
        vectors = [name for name in columns.vector if name not in others]  # kept unchanged, often as Arrow arrays
        keep = tuple(dict.fromkeys([*self.keep, *vectors]))
        explicit = self.explicit or bool(keep) or columns.is_mixed or len(names) > len(columns.text)
        parameters = {
            **dict.fromkeys(self.keep, "keep"),
            **{name: kind for kind in NON_TEXT for name in getattr(columns, kind)},
            **dict.fromkeys(self.exclude, "valid_where"),
            **dict.fromkeys(self.where, "where"),
            **dict.fromkeys(labels, "label"),
            **dict.fromkeys(columns.text, "text"),
        }
        return ColumnSelection(tuple(names), keep, self.keep_all, explicit, parameters)


@dataclass(frozen=True)
class LabelledBlock:
    """Rows with their texts, and their labels if the query needs them."""

    rows: RowBlock
    texts: list[str]
    labels: list[Any]
    table: pa.Table | None = None  # all input columns, if some are not text

    @property
    def inputs(self) -> list[str] | pa.Table:
        """The inputs of a model: texts, or a table."""
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


@dataclass
class LabelledTables:
    """The rows of files as pairs of inputs (texts or tables) and labels; a source for ``HiNetClassifier.fit_stream``.

    Files are CSV, TSV, JSON lines, Parquet or ARFF, plain or compressed, and are read several times. The first time,
    invalid rows go to the object that ``row_errors`` yields; by default, the first one raises FileError. Later, they
    are left out.

    Examples
    --------
    >>> shards = LabelledTables(["1.parquet", "2.parquet"], RowQuery(Columns(("title",), ("category",))))
    >>> HiNetClassifier().fit_stream(shards)  # doctest: +SKIP
    """

    paths: Sequence[str]
    query: RowQuery = field(default_factory=lambda: RowQuery(Columns()))
    options: TableOptions = field(default_factory=TableOptions)
    row_errors: Callable[[], AbstractContextManager[RowErrors]] = lambda: nullcontext(FailFast())
    _was_read: bool = False

    def __post_init__(self) -> None:
        if STANDARD in self.paths:
            raise HiNetError("a stream is read twice, which is impossible with standard input; give files")

    def __iter__(self) -> Iterator[tuple[pa.Array | pa.Table, list[Any]]]:
        with nullcontext(Skipped()) if self._was_read else self.row_errors() as row_errors:
            for block in labelled_blocks(self.paths, self.query, self.options, row_errors):
                if len(block):
                    inputs = block.table if block.table is not None else pa.array(block.texts, pa.large_string())
                    yield inputs, block.labels
        self._was_read = True


def labelled_blocks(
    paths: Sequence[str], query: RowQuery, options: TableOptions, row_errors: RowErrors
) -> Iterator[LabelledBlock]:
    """Yield the rows that a query selects; rows with an invalid input or label go to ``row_errors``.

    A vector column may be in a file of its own next to the table; see :func:`hinet.data.tables.cells.vector_files`.
    """
    widths = dict(query.widths)
    for path in paths:
        files = vector_files(path, query.columns.vector)
        errors_before, rows = row_errors.count, 0
        for block in read_blocks([path], query.selection(files), options, row_errors):
            rows = block.positions[-1] + 1 if block.positions else rows
            yield _parse_block(block, query, files, widths, row_errors)
        for file in files.values():
            file.check_length(rows, rows + row_errors.count - errors_before)


def input_table(block: RowBlock, columns: Columns, widths: Mapping[str, int]) -> pa.Table:
    """Return the input columns of rows, or raise HiNetError for the first invalid cell."""
    errors = _text_errors(_texts(block, columns.text), allow_blank=True)
    table = _table(block, columns, {}, dict(widths), errors)
    if errors:
        raise HiNetError(errors[min(errors)])
    return table


def is_blank(text: str) -> bool:
    r"""Return whether a text is empty, or only spaces and invisible characters such as zero-width spaces.

    >>> is_blank(" "), is_blank("\u200b"), is_blank("rye")
    (True, True, False)
    """
    return _BLANK.fullmatch(text) is not None


def _parse_block(
    block: RowBlock, query: RowQuery, files: Mapping[str, VectorFile], widths: dict[str, int], row_errors: RowErrors
) -> LabelledBlock:
    block, columns = _filter_rows(block, query), query.columns
    texts = _texts(block, columns.text)
    labels = columns.parse_labels([block.values(name) for name in columns.label]) if query.labels else []
    reasons = {label: label_error(label) or query.check(label) for label in {*labels}}
    errors: dict[int, str] = {}
    if any(reasons.values()):
        errors = {row: reason for row, label in enumerate(labels) if (reason := reasons[label])}
    table = _table(block, columns, files, widths, errors) if columns.is_mixed else None
    errors |= _text_errors(texts, query.allow_blank or columns.is_mixed)
    if not errors:
        return LabelledBlock(block, cast(list[str], texts), labels, table)
    for row, reason in sorted(errors.items()):
        row_errors.add(block.path, block.numbers[row], reason, block.to_json(row), block.unit)
    valid_rows = [row for row in range(len(texts)) if row not in errors]
    kept_labels = [labels[row] for row in valid_rows] if query.labels else []
    kept_table = None if table is None else table.take(pa.array(valid_rows, pa.int64()))
    return LabelledBlock(block.take(valid_rows), [str(texts[row]) for row in valid_rows], kept_labels, kept_table)


def _filter_rows(block: RowBlock, query: RowQuery) -> RowBlock:
    if not query.where and not query.exclude:
        return block
    columns = {
        name: [(as_text(cell) or "").strip() for cell in block.values(name)] for name in (*query.where, *query.exclude)
    }

    def meets(row: int, conditions: Conditions) -> bool:
        return all(columns[name][row] in values for name, values in conditions.items())

    rows = range(len(block))
    return block.take(
        [row for row in rows if meets(row, query.where) and not (query.exclude and meets(row, query.exclude))]
    )


def _texts(block: RowBlock, columns: Sequence[str]) -> list[str | None]:
    """Return the text of every row, or None where a cell is not text."""
    if not columns:
        return [""] * len(block)
    parts = [[cell if isinstance(cell, str) else as_text(cell) for cell in block.values(name)] for name in columns]
    if len(parts) == 1:
        return parts[0]
    rows = zip(*parts, strict=True)
    return [None if None in cells else " ".join(cell for cell in cells if cell) for cells in rows]


def _text_errors(texts: Sequence[str | None], allow_blank: bool) -> dict[int, str]:
    return {row: reason for row, text in enumerate(texts) if (reason := _text_error(text, allow_blank))}


def _text_error(text: str | None, allow_blank: bool) -> str:
    if text is None:
        return "the text is a list or an object; set `text` to a column of text"
    if 4 * len(text) > MAX_TEXT_BYTES and (size := len(text.encode(errors="replace"))) > MAX_TEXT_BYTES:
        return too_long_message(size)
    return "" if allow_blank or not is_blank(text) else "the text is empty; leave the row out"


def _table(
    block: RowBlock, columns: Columns, files: Mapping[str, VectorFile], widths: dict[str, int], errors: dict[int, str]
) -> pa.Table:
    """Return the input columns of rows; the reasons why rows are invalid go into ``errors``."""
    texts = ([as_text(cell) or "" for cell in block.values(name)] for name in columns.text)
    arrays = [pa.array(column, pa.large_string()) for column in texts]
    arrays += [number_cells(name, _array_or_cells(block, name, is_number), errors) for name in columns.number]
    arrays += [category_cells(name, _array_or_cells(block, name, is_categories), errors) for name in columns.category]
    for name in columns.vector:
        cells = files[name].take(block.positions) if name in files else block.column(name)
        arrays.append(vector_cells(name, cells, widths, errors))
    return pa.table(arrays, list(columns.inputs))


def _array_or_cells(block: RowBlock, name: str, has_kind: Callable[[pa.DataType], bool]) -> Any:
    """Return a column as an Arrow array if it has the required type, else as Python values."""
    column = block.column(name)
    return column if isinstance(column, pa.Array) and has_kind(column.type) else block.values(name)
