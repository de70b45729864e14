"""Data of a comparison, from a table of texts or a folder of LSHTC files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hinet.data import LabelledRows, Traces, split_by_hash
from hinet.data.lshtc import read_lshtc
from hinet.data.tables import Columns, FailFast, RowQuery, TableOptions, labelled_blocks, taxonomy_check
from hinet.data.tfidf import tfidf_counts, tfidf_texts
from hinet.errors import HiNetError
from hinet.evaluation.comparison import ComparisonData
from hinet.taxonomy import Layers, Taxonomy, as_id, path_id, split_path

TEST_SHARE = 0.2  # of the rows, if test rows are not given

LabelSets = Sequence[tuple[str, ...]]


def lshtc_comparison(folder: str | Path, test: str | None = None) -> ComparisonData:
    """Read a folder of LSHTC files; ``test`` names the file of test rows."""
    data = read_lshtc(folder, test)
    train_rows, test_rows = tfidf_counts(data.train.features, data.test.features)
    name = f"{Path(folder).resolve().name} {test or ''}".strip()
    return _comparison(name, data.taxonomy, train_rows, data.train.labels, test_rows, data.test.labels)


def table_comparison(
    file: str | Path,
    columns: Columns,
    *,
    split: str | None = None,
    hierarchy: str | Path | None = None,
    test: str | Path | None = None,
) -> ComparisonData:
    """Read a table of texts; test rows are those of ``test``, of the split column, or a fifth by hash.

    The labels are those of the first label column. The column ``split`` has ``train`` for training rows. Without a
    ``hierarchy``, labels are paths of names such as ``A > B > C``.
    """
    taxonomy = None if hierarchy is None else Taxonomy.from_file(hierarchy)
    parts = _parts(file, columns, split, test, taxonomy)
    for name, part in parts.items():
        if not len(part):
            raise HiNetError(f"{file}: there are no {name} rows; set `split` or `test`")
    train_rows, test_rows = tfidf_texts(parts["train"].texts, parts["test"].texts)
    train, test_labels = (
        [_split_labels(cell, columns.label_sep) for cell in parts[name].labels] for name in ("train", "test")
    )
    if taxonomy is None:
        paths = [_steps(label) for row in (*train, *test_labels) for label in row]
        taxonomy = Taxonomy.from_paths(paths).under_virtual_root()
        train, test_labels = _as_path_ids(train), _as_path_ids(test_labels)
    return _comparison(Path(file).stem, taxonomy, train_rows, train, test_rows, test_labels)


def _parts(
    file: str | Path, columns: Columns, split: str | None, test: str | Path | None, taxonomy: Taxonomy | None
) -> dict[str, LabelledRows]:
    if split is not None and test is not None:
        raise HiNetError("`split` and `test` both define the test rows; give one")
    rows, splits = _rows(file, columns, split, taxonomy)
    if split is not None:
        is_train = np.array([cell == "train" for cell in splits], bool)
        return {"train": rows.take(np.flatnonzero(is_train)), "test": rows.take(np.flatnonzero(~is_train))}
    if test is not None:
        return {"train": rows, "test": _rows(test, columns, split, taxonomy)[0]}
    return split_by_hash(rows, {"test": TEST_SHARE}, rest="train")


def _rows(
    path: str | Path, columns: Columns, split: str | None, taxonomy: Taxonomy | None
) -> tuple[LabelledRows, list[str]]:
    """Return the texts and labels of a table, unparsed, and the cells of the split column."""
    query = RowQuery(columns, keep=() if split is None else (split,), check=taxonomy_check(taxonomy))
    texts: list[str] = []
    labels: list[str] = []
    splits: list[str] = []
    for block in labelled_blocks([str(path)], query, TableOptions(), FailFast()):
        texts += block.texts
        labels += map(as_id, block.rows.cells[columns.label[0]])
        splits += map(as_id, block.rows.values(split) if split is not None else ())
    return LabelledRows(tuple(texts), tuple(labels)), splits


def _split_labels(cell: str, separator: str | None) -> tuple[str, ...]:
    return (cell,) if separator is None else tuple(part.strip() for part in cell.split(separator) if part.strip())


def _as_path_ids(labels: LabelSets) -> list[tuple[str, ...]]:
    return [tuple(path_id(_steps(label)) for label in row) for row in labels]


def _steps(label: str) -> tuple[str, ...]:
    return tuple(step for step in split_path(label) if step)


def _comparison(
    name: str, taxonomy: Taxonomy, train_rows: Any, train: LabelSets, test_rows: Any, test: LabelSets
) -> ComparisonData:
    """Encode the labels; traces may end at the nodes that are labels."""
    for part, labels in (("training", train), ("test", test)):
        empty = next((row for row, row_labels in enumerate(labels) if not row_labels), None)
        if empty is not None:
            raise HiNetError(f"{part} row {empty} has no label; leave it out")
    used = {label for row in (*train, *test) for label in row}
    layers = Layers.of(taxonomy, ends=sorted(used & {*taxonomy}))
    return ComparisonData(
        name, layers, train_rows, Traces.encode_sets(layers, train), test_rows, Traces.encode_sets(layers, test)
    )
