"""All rows of a training run in memory: texts as Arrow arrays, labels unparsed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from hinet.cli.table_options import ColumnOptions, RowOptions, conditions
from hinet.cli.training_options import ValidationOptions
from hinet.data.rows import holdout_mask
from hinet.data.tables import Columns, RowErrors, RowQuery, labelled_blocks, taxonomy_check
from hinet.data.tables.columns import check_whole_path, iter_labels
from hinet.errors import HiNetError
from hinet.ragged import Ints
from hinet.taxonomy import PATH_MARK, Taxonomy, has_paths, split_path
from hinet.taxonomy.paths import path_error

SEPARATORS = (";", "|", ",")
LEAST_SEVERAL = 0.2  # share of cells with several paths that is no accident


@dataclass(frozen=True)
class LabelledInputs:
    """Texts, or the rows of a table, and their labels."""

    inputs: pa.ChunkedArray | pa.Table
    labels: list[Any]
    path_sep: str | None = None  # of labels that are paths as text

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def distinct_labels(self) -> set[Any]:
        """The distinct labels; paths are compared by their steps."""
        labels = {label for row_labels in self.labels for label in iter_labels(row_labels)}
        return labels if self.path_sep is None else {split_path(label, self.path_sep) for label in labels}

    def take(self, rows: Ints) -> LabelledInputs:
        """Return the selected rows."""
        labels = [self.labels[row] for row in rows.tolist()]
        return LabelledInputs(self.inputs.take(pa.array(rows)), labels, self.path_sep)


@dataclass(frozen=True)
class TrainingData:
    """Training rows, validation rows, and their columns."""

    train: LabelledInputs
    valid: LabelledInputs | None
    columns: Columns

    def with_holdout(self, share: float, seed: int) -> TrainingData:
        """Return the data with a random share of the training rows for validation."""
        mask = holdout_mask(len(self.train), share, seed)
        return replace(self, train=self.train.take(np.flatnonzero(~mask)), valid=self.train.take(np.flatnonzero(mask)))

    def count_untrained_labels(self) -> int:
        """Return how many labels occur only in validation rows."""
        return 0 if self.valid is None else len(self.valid.distinct_labels - self.train.distinct_labels)

    def count_repeated_texts(self) -> int:
        """Return how many validation rows have the text of a training row, and its numbers and categories."""
        import pyarrow.compute as pc

        if self.valid is None:
            return 0
        if isinstance(self.train.inputs, pa.Table):
            known = {*self._comparable(self.train)}
            return sum(row in known for row in self._comparable(self.valid))
        return int(pc.sum(pc.is_in(self.valid.inputs, value_set=self.train.inputs)).as_py() or 0)

    def _comparable(self, rows: LabelledInputs) -> Iterator[tuple[Any, ...]]:
        names = [*self.columns.text, *self.columns.number, *self.columns.category]
        return zip(*(rows.inputs.column(name).to_pylist() for name in names), strict=True)


def read_training_rows(
    data: list[str],
    validation: ValidationOptions,
    rows: RowOptions,
    column_options: ColumnOptions,
    hierarchy: Taxonomy | None,
    *,
    output: str,
    seed: int,
    defaults: Columns | None = None,
) -> TrainingData:
    """Read all rows; rows whose label is not in the hierarchy are invalid. ``defaults`` are the columns not named."""
    valid_where = conditions(validation.conditions)
    if valid_where and "-" in data:
        raise HiNetError("--valid-where reads the rows twice, which is impossible with standard input; give a file")
    query, may_be_paths = training_query(validation, rows, column_options, hierarchy, defaults)
    columns = query.columns
    valid = None
    with rows.row_errors(output) as row_errors:
        train = _read_labelled(data, query, rows, row_errors)
        if validation.files or valid_where:
            valid = _read_labelled(
                validation.files or data, validation_query(query, validation, rows), rows, row_errors
            )
    for part in (train, valid):
        if part is not None and not len(part):
            raise HiNetError("there are no training or validation rows; check --where and the rejects")
    if may_be_paths and has_paths(item for label in train.labels for item in iter_labels(label)):
        _check_paths(train, valid)
        columns = replace(columns, path_sep=PATH_MARK)
        train = replace(train, path_sep=PATH_MARK)  # as text, so that the classifier predicts it as written
        valid = None if valid is None else replace(valid, path_sep=PATH_MARK)
    read = TrainingData(train, valid, columns)
    return read if validation.valid_share is None else read.with_holdout(validation.valid_share, seed)


def label_separator(labels: Sequence[Any]) -> tuple[str, str] | None:
    """Return what seems to separate several paths in many cells of labels, and such a cell; None if nothing does.

    There is a path on each side of it. It may also stand within a step, as in ``Home > Kitchen, Bath > Taps``: so a
    step after it must also start a cell.
    """
    cells = Counter(label for label in labels if isinstance(label, str))
    tops = {split_path(cell)[0] for cell in cells}
    for separator in SEPARATORS:
        several = []
        for cell in cells:
            if separator in cell:
                paths = [split_path(part) for part in cell.split(separator)]
                starts = any(path[0] in tops for path in paths[1:])
                several += [cell] if starts and all(len(path) > 1 and all(path) for path in paths) else []
        if sum(cells[cell] for cell in several) > LEAST_SEVERAL * cells.total():
            return separator, several[0]
    return None


def training_query(
    validation: ValidationOptions,
    rows: RowOptions,
    column_options: ColumnOptions,
    hierarchy: Taxonomy | None,
    defaults: Columns | None,
) -> tuple[RowQuery, bool]:
    """Return which rows to train on, and whether their labels may turn out to be paths as text."""
    usual = Columns(text=()) if column_options.are_mixed and not column_options.text else Columns()
    columns = column_options.with_defaults(defaults or usual)
    may_be_paths = (
        hierarchy is None and column_options.path_sep is None and columns.path_sep is None and len(columns.label) == 1
    )
    check = check_whole_path if may_be_paths else taxonomy_check(hierarchy)
    query = RowQuery(columns, where=rows.where, exclude=conditions(validation.conditions), check=check)
    return query, may_be_paths


def validation_query(query: RowQuery, validation: ValidationOptions, rows: RowOptions) -> RowQuery:
    """Return which rows of the data, or of files for it, are for validation."""
    return replace(query, where={**rows.where, **conditions(validation.conditions)}, exclude={})


def read_rows(
    data: list[str], columns: Columns, rows: RowOptions, hierarchy: Taxonomy | None, output: str
) -> LabelledInputs:
    """Read all labelled rows of files."""
    with rows.row_errors(output) as row_errors:
        return _read_labelled(
            data, RowQuery(columns, where=rows.where, check=taxonomy_check(hierarchy)), rows, row_errors
        )


def _read_labelled(paths: list[str], query: RowQuery, rows: RowOptions, row_errors: RowErrors) -> LabelledInputs:
    labels: list[Any] = []

    def inputs() -> Iterator[pa.Array | pa.Table]:
        for block in labelled_blocks(paths, query, rows.options, row_errors):
            labels.extend(block.labels)
            yield block.table if block.table is not None else pa.array(block.texts, pa.large_string())

    parts = list(inputs())
    joined = (
        pa.concat_tables(parts, promote_options="default")
        if query.columns.is_mixed and parts
        else pa.chunked_array(parts, pa.large_string())
    )
    interned: dict[Any, Any] = {}  # equal labels are then the same object, which saves memory
    return LabelledInputs(joined, [interned.setdefault(label, label) for label in labels])


def _check_paths(*parts: LabelledInputs | None) -> None:
    """Raise HiNetError for a label that is not a valid path."""
    labels = (label for rows in parts if rows is not None for label in rows.labels)
    for item in dict.fromkeys(item for label in labels for item in iter_labels(label)):
        if reason := path_error(item):
            raise HiNetError(f"{reason}, or set `path_sep` to none if labels are not paths")
