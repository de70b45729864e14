"""All rows of a training run in memory, compactly: texts as Arrow arrays, labels as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from hinet.cli.column_options import ColumnChoice
from hinet.cli.row_options import RowReading, conditions
from hinet.cli.training_options import ValidationChoice
from hinet.data.holdout import holdout_mask
from hinet.data.tables import Columns, RowErrors, RowQuery, labelled_blocks, taxonomy_check
from hinet.data.tables.columns import check_whole_path, iter_labels
from hinet.errors import HiNetError
from hinet.ragged import Ints
from hinet.taxonomy import PATH_MARK, Taxonomy, has_paths, split_path
from hinet.taxonomy.path_text import path_error


@dataclass(frozen=True)
class LabelledTexts:
    """Texts and their labels."""

    texts: pa.ChunkedArray
    labels: list[Any]
    path_sep: str | None = None  # between the steps of labels that are paths as text

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def distinct_labels(self) -> set[Any]:
        """Each label once, however it is written."""
        written = {one for label in self.labels for one in iter_labels(label)}
        return written if self.path_sep is None else {split_path(one, self.path_sep) for one in written}

    def take(self, rows: Ints) -> LabelledTexts:
        """Return the chosen rows."""
        labels = [self.labels[row] for row in rows.tolist()]
        return LabelledTexts(self.texts.take(pa.array(rows)), labels, self.path_sep)


@dataclass(frozen=True)
class TrainingRows:
    """Rows to train on, rows to validate by, and the columns they were found in."""

    train: LabelledTexts
    valid: LabelledTexts | None
    columns: Columns

    def count_untrained_labels(self) -> int:
        """Return how many labels validation rows have and training rows have not."""
        return 0 if self.valid is None else len(self.valid.distinct_labels - self.train.distinct_labels)

    def count_repeated_texts(self) -> int:
        """Return how many validation rows have a text that a training row has too."""
        import pyarrow.compute as pc

        if self.valid is None:
            return 0
        return int(pc.sum(pc.is_in(self.valid.texts, value_set=self.train.texts)).as_py() or 0)


def read_training_rows(
    data: list[str],
    validation: ValidationChoice,
    rows: RowReading,
    named: ColumnChoice,
    hierarchy: Taxonomy | None,
    *,
    beside: str,
    seed: int,
    usual: Columns | None = None,
) -> TrainingRows:
    """Read all rows; labels that the hierarchy does not know go the way of rows that cannot be used.

    Columns that are not named are the ``usual`` ones.
    """
    held = conditions([] if validation.where is None else [validation.where])
    if held and "-" in data:
        raise HiNetError("--valid-where reads the rows twice, which standard input cannot; give a file")
    columns = named.over(usual or Columns())
    guesses = hierarchy is None and named.path_sep is None and columns.path_sep is None and len(columns.label) == 1
    check = check_whole_path if guesses else taxonomy_check(hierarchy)
    query = RowQuery(columns, where=rows.where, exclude=held, check=check)
    valid = None
    with rows.row_errors(beside) as row_errors:
        train = _read(data, query, rows, row_errors)
        if validation.files or held:
            valid = _read(
                validation.files or data, replace(query, where={**rows.where, **held}, exclude={}), rows, row_errors
            )
    for read in (train, valid):
        if read is not None and not len(read):
            raise HiNetError("no rows are left to learn from or validate by; see --where, and the rejects if any")
    if guesses and has_paths(one for label in train.labels for one in iter_labels(label)):
        _check_paths(train, valid)
        columns = replace(columns, path_sep=PATH_MARK)
        train = replace(train, path_sep=PATH_MARK)  # as text, which the classifier writes as it was
        valid = None if valid is None else replace(valid, path_sep=PATH_MARK)
    if validation.share is not None:
        chosen = holdout_mask(len(train), validation.share, seed)
        train, valid = train.take(np.flatnonzero(~chosen)), train.take(np.flatnonzero(chosen))
    return TrainingRows(train, valid, columns)


def read_rows(
    data: list[str], columns: Columns, rows: RowReading, hierarchy: Taxonomy | None, beside: str
) -> LabelledTexts:
    """Read all labelled rows of files."""
    with rows.row_errors(beside) as row_errors:
        return _read(data, RowQuery(columns, where=rows.where, check=taxonomy_check(hierarchy)), rows, row_errors)


def _read(paths: list[str], query: RowQuery, rows: RowReading, row_errors: RowErrors) -> LabelledTexts:
    labels: list[Any] = []

    def chunks() -> Iterator[pa.Array]:
        for block in labelled_blocks(paths, query, rows.options, row_errors):
            labels.extend(block.labels)
            yield pa.array(block.texts, pa.large_string())

    texts = pa.chunked_array(list(chunks()), pa.large_string())
    return LabelledTexts(texts, _shared(labels))


def _shared(labels: list[Any]) -> list[Any]:
    """Return labels with equal ones being one and the same object, which takes the memory of one."""
    known: dict[Any, Any] = {}
    return [known.setdefault(label, label) for label in labels]


def _check_paths(*parts: LabelledTexts | None) -> None:
    """Refuse a label that is no path where others are."""
    labels = (label for rows in parts if rows is not None for label in rows.labels)
    for one in dict.fromkeys(one for label in labels for one in iter_labels(label)):
        if reason := path_error(one):
            raise HiNetError(f"{reason}, or take labels as they are with --path-sep none")
