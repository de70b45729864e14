"""Rows of a training run: all in memory, or streamed from files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hinet import HiNetClassifier, Taxonomy
from hinet.choices import SplitBy
from hinet.cli.options import RunOptions
from hinet.cli.table_options import NOT_PATHS, ColumnOptions, RowOptions, check_text_column
from hinet.cli.training import TrainingOptions, ValidationOptions, calibrate
from hinet.data.datasets import holdout_mask
from hinet.data.tables import (
    Columns,
    LabelledTables,
    RowErrors,
    RowQuery,
    declared_columns,
    labelled_blocks,
    taxonomy_check,
)
from hinet.data.tables.blocks import Skipped, estimate_rows
from hinet.data.tables.labelled_tables import check_whole_path, iter_labels
from hinet.data.text.features import TextSettings, hash_and_count, resolve_auto
from hinet.engine.settings import MAX_WIDTH, plan_memory
from hinet.errors import HiNetError, counted, quoted
from hinet.parameters import GB, total_memory
from hinet.ragged import Ints
from hinet.taxonomy import PATH_MARK, has_paths, split_path
from hinet.taxonomy.draft import path_error

if TYPE_CHECKING:
    from hinet.cluster import Cluster

SEPARATORS = (";", "|", ",")
MIN_SEVERAL = 0.2  # minimum share of cells with several paths that is not a coincidence
MIN_SHARE = 1 / 200  # share of memory; smaller files always fit
FIRST_ROWS = 8_192  # rows whose n-grams represent those of all rows
ROW_BYTES = 300  # per row in memory, in addition to its text and n-grams
NGRAM_BYTES = 40  # per n-gram of a row, while rows become features
GROWTH = 0.6  # exponent of the growth of features with rows


@dataclass(frozen=True)
class LabelledInputs:
    """Texts, or the rows of a table, and their labels."""

    inputs: pa.ChunkedArray | pa.Table
    labels: list[Any]
    path_sep: str | None = None  # if labels are paths as text

    @property
    def pair(self) -> tuple[Any, list[Any]]:
        """The rows and their labels, as a classifier takes them."""
        return self.inputs, self.labels

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
class TrainingSource:
    """Columns and hierarchy of training rows."""

    columns: Columns
    hierarchy: Taxonomy | None
    path_sep: str | None  # parameter of the classifier

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a classifier that the rows determine."""
        columns = self.columns
        kinds = {kind: getattr(columns, kind) for kind in ("text", "number", "category", "vector")}
        return {
            "taxonomy": self.hierarchy,
            "path_sep": self.path_sep,
            "columns": kinds if columns.is_mixed else None,
            "validation_fraction": None,
        }

    def fit(
        self, classifier: HiNetClassifier, risk: float | None, cluster: Cluster | None = None, split: SplitBy = "auto"
    ) -> HiNetError | None:
        """Train, and calibrate if there are validation rows; return why a risk is not guaranteed, if so."""
        self._train(classifier, cluster, split)
        held_out = classifier.metrics_.get("validation", {}).get("rows", 0)
        return calibrate(classifier, held_out, risk) if held_out else None

    def _train(self, classifier: HiNetClassifier, cluster: Cluster | None, split: SplitBy) -> None:
        raise NotImplementedError

    def trained_columns(self, classifier: HiNetClassifier) -> Columns:
        """Return the columns of the rows as the trained classifier reads them."""
        return self.columns

    def report(self, risk: float | None, run: RunOptions) -> None:
        """Print what is known about the rows before training: the shape of a given hierarchy."""
        self.report_hierarchy(run)

    def report_hierarchy(self, run: RunOptions, labels: Sequence[Any] | None = None) -> None:
        """Print the shape of the hierarchy, as far as it is known; a stream has not read its ``labels`` yet."""
        hierarchy, columns = self.hierarchy, self.columns
        if hierarchy is not None:
            kind = "tree" if hierarchy.is_tree else "DAG"
            nodes, levels = counted(len(hierarchy), "node"), counted(hierarchy.height, "level")
            run.message(f"labels are nodes of a {kind} of {nodes} in {levels}")
        elif labels is not None and len(columns.label) == 1:
            if columns.path_sep is None:
                run.message("labels have no hierarchy; give --taxonomy, or labels that are paths A > B")
            elif columns.label_sep is None and (found := label_separator(labels)) is not None:
                separator, example = found
                run.message(
                    f"warning: labels such as {quoted(example)} look like several paths in a cell, and are read as "
                    f"one; add --label-sep '{separator}' if they are several"
                )


@dataclass(frozen=True)
class TrainingData(TrainingSource):
    """Training rows and validation rows in memory."""

    train: LabelledInputs
    valid: LabelledInputs | None

    def with_holdout(self, share: float, seed: int) -> TrainingData:
        """Return the data with a random share of the training rows for validation."""
        mask = holdout_mask(len(self.train), share, seed)
        return replace(self, train=self.train.take(np.flatnonzero(~mask)), valid=self.train.take(np.flatnonzero(mask)))

    def report(self, risk: float | None, run: RunOptions) -> None:
        """Print the number of rows and labels, the hierarchy, and how validation rows relate to training rows."""
        labels = counted(len(self.train.distinct_labels), "label")
        run.message(f"{counted(len(self.train), 'training row')} with {labels}")
        self.report_hierarchy(run, self.train.labels)
        if self.valid is None:
            return
        run.message(counted(len(self.valid), "validation row"))
        if untrained := len(self.valid.distinct_labels - self.train.distinct_labels):
            only = "only in validation rows, so the model cannot learn"
            run.message(counted(untrained, f"label occurs {only} it/labels occur {only} them"))
        if risk is not None and (repeated := self._count_repeated_texts(self.valid)):
            repeat = counted(repeated, "validation row repeats/validation rows repeat")
            run.message(f"{repeat} a training text: the risk is valid for rows that do so as often")

    def _count_repeated_texts(self, valid: LabelledInputs) -> int:
        """Return the number of validation rows with the text, numbers and categories of a training row."""
        import pyarrow.compute as pc

        if isinstance(self.train.inputs, pa.Table):
            known = {*self._comparable(self.train)}
            return sum(row in known for row in self._comparable(valid))
        return int(pc.sum(pc.is_in(valid.inputs, value_set=self.train.inputs)).as_py() or 0)

    def _comparable(self, rows: LabelledInputs) -> Iterator[tuple[Any, ...]]:
        names = [*self.columns.text, *self.columns.number, *self.columns.category]
        return zip(*(rows.inputs.column(name).to_pylist() for name in names), strict=True)

    def _train(self, classifier: HiNetClassifier, cluster: Cluster | None, split: SplitBy) -> None:
        valid = None if self.valid is None else self.valid.pair
        if cluster is None:
            classifier.fit(*self.train.pair, valid=valid)
        else:
            from hinet.cluster import fit_on_cluster

            fit_on_cluster(classifier, cluster, *self.train.pair, valid=valid, split=split)


@dataclass(frozen=True)
class TrainingStream(TrainingSource):
    """Training rows that are read from files as they are needed, and validation rows."""

    source: LabelledTables
    valid: LabelledTables | None
    may_be_paths: bool
    valid_share: float | None
    run: RunOptions

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a classifier that the options determine, the share of validation rows among them."""
        return super().parameters | {"validation_fraction": self.valid_share}

    def _train(self, classifier: HiNetClassifier, cluster: Cluster | None, split: SplitBy) -> None:
        classifier.fit_stream(self.source, valid=None if self.valid is None else self._validation_rows(self.valid))

    def trained_columns(self, classifier: HiNetClassifier) -> Columns:
        """Return the columns; labels may have turned out to be paths."""
        are_paths = self.may_be_paths and classifier.fitted_.codec.style is not None
        return replace(self.columns, path_sep=PATH_MARK) if are_paths else self.columns

    def _validation_rows(self, tables: LabelledTables) -> tuple[Any, list[Any]]:
        """Return validation rows, chosen at random if there are very many."""
        from hinet.classifier.chunks import Chunk, RowSample
        from hinet.classifier.stream import MAX_HELD_OUT

        sample, count = RowSample(self.run.seed, MAX_HELD_OUT, MAX_HELD_OUT * 100_000), 0
        for inputs, labels in tables:
            numbers = np.arange(count, count + len(labels))
            sample.add(Chunk(numbers, inputs if isinstance(inputs, pa.Table) else pa.chunked_array([inputs]), labels))
            count += len(labels)
        _check_validation(count)
        chosen = sample.rows()
        note = "" if len(chosen) == count else f", of which {len(chosen):,} are chosen at random"
        self.run.message(f"{counted(count, 'validation row')}{note}")
        return chosen.inputs, chosen.labels


@dataclass(frozen=True)
class TaxonomyAlone(TrainingSource):
    """A taxonomy whose texts are trained on, without training rows, and validation rows."""

    hierarchy: Taxonomy
    valid: LabelledInputs | None
    inner_labels: bool  # whether inner nodes are labels too

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a classifier that the options determine: a separator of labels means sets."""
        return super().parameters | ({} if self.columns.label_sep is None else {"multilabel": True})

    def report(self, risk: float | None, run: RunOptions) -> None:
        """Print that there are no rows, the hierarchy, and the number of validation rows."""
        run.message("no training rows: the model learns from titles, synonyms and definitions of the taxonomy")
        self.report_hierarchy(run)
        if self.valid is not None:
            run.message(counted(len(self.valid), "validation row"))

    def _train(self, classifier: HiNetClassifier, cluster: Cluster | None, split: SplitBy) -> None:
        inner = [self.hierarchy.ids[node] for node in np.flatnonzero(self.hierarchy.depth > 0).tolist()]
        valid = None if self.valid is None else self.valid.pair
        classifier.fit_taxonomy(inner if self.inner_labels else None, valid=valid)


@dataclass(frozen=True)
class RowFiles:
    """Files of training rows, and the options to read them."""

    data: list[str]
    rows: RowOptions
    column_options: ColumnOptions
    validation: ValidationOptions
    output: str
    hierarchy: Taxonomy | None = None
    defaults: Columns | None = None  # columns that no option names

    def declared(self, taxonomy: Path | None) -> RowFiles:
        """Return the files with the columns that the first declares, and the given hierarchy or the one it declares."""
        first, options, columns = self.data[0], self.rows.options, self.column_options
        unused = {*self.rows.conditions, *self.validation.conditions}
        declared = declared_columns(first, options, columns.label or (), unused)
        if declared is None and not columns.text and not columns.are_mixed:
            check_text_column(first, options, {*unused, *(columns.label or Columns().label)})
        hierarchy = declared and declared.taxonomy if taxonomy is None else Taxonomy.from_file(taxonomy)
        return replace(self, hierarchy=hierarchy, defaults=declared and declared.columns)

    def without_rows(self, taxonomy: Path, inner_labels: bool) -> TaxonomyAlone:
        """Return a taxonomy to train on instead of rows, and the validation rows."""
        hierarchy, columns, valid = Taxonomy.from_file(taxonomy), self.column_options.with_defaults(Columns()), None
        if self.validation.files:
            valid = read_rows(self.validation.files, columns, self.rows, hierarchy, self.output)
            _check_validation(len(valid))
        return TaxonomyAlone(columns, hierarchy, None, valid, inner_labels)

    @cached_property
    def query(self) -> RowQuery:
        """The selection of training rows and columns; rows whose label is not in the hierarchy are invalid."""
        options = self.column_options
        columns = options.with_defaults(
            self.defaults or (Columns(text=()) if options.are_mixed and not options.text else Columns())
        )
        query = RowQuery(columns, where=self.rows.conditions, exclude=self.validation.conditions)
        may_be_paths = self._may_be_paths(columns)
        return replace(query, check=check_whole_path if may_be_paths else taxonomy_check(self.hierarchy))

    def _may_be_paths(self, columns: Columns) -> bool:
        """Return whether labels may turn out to be paths as text."""
        has_separator = self.column_options.path_sep is not None or columns.path_sep is not None
        return self.hierarchy is None and not has_separator and len(columns.label) == 1

    @property
    def _valid_query(self) -> RowQuery:
        where = {**self.rows.conditions, **self.validation.conditions}
        return replace(self.query, where=where, exclude={})

    @property
    def _valid_files(self) -> list[str]:
        return self.validation.files or (self.data if self.validation.conditions else [])

    @property
    def _path_sep(self) -> str | None:
        return None if self.column_options.path_sep == NOT_PATHS else "auto"

    def read(self, seed: int) -> TrainingData:
        """Return all rows in memory, with a share of them held out if that is an option."""
        if self.validation.conditions and "-" in self.data:
            raise HiNetError("--valid-where reads the rows twice, which is impossible with standard input; give a file")
        columns, path_sep, valid = self.query.columns, self._path_sep, None
        with self.rows.row_errors(self.output) as row_errors:
            train = _read_labelled(self.data, self.query, self.rows, row_errors)
            if self._valid_files:
                valid = _read_labelled(self._valid_files, self._valid_query, self.rows, row_errors)
        for part in (train, valid):
            if part is not None and not len(part):
                raise HiNetError("there are no training or validation rows; check --where and the rejects")
        labels = (item for label in train.labels for item in iter_labels(label))
        if self._may_be_paths(columns) and has_paths(labels):
            _check_paths(train, valid)
            columns, path_sep = replace(columns, path_sep=PATH_MARK), PATH_MARK
            train = replace(train, path_sep=PATH_MARK)  # labels stay text, so that predictions are written alike
            valid = valid and replace(valid, path_sep=PATH_MARK)
        read = TrainingData(columns, self.hierarchy, path_sep, train, valid)
        share = self.validation.valid_share
        return read if share is None else read.with_holdout(share, seed)

    def stream(self, training: TrainingOptions, run: RunOptions) -> TrainingStream | None:
        """Return the rows as a stream with --stream, or if all of them would not fit in memory."""
        if training.stream is False or (training.stream is None and (training.fine_tune or "-" in self.data)):
            return None
        rejected: list[Any] = []  # validation rows, which are read before the others

        @contextmanager
        def row_errors() -> Iterator[RowErrors]:
            with self.rows.row_errors(self.output) as errors:
                for reject in rejected:
                    errors.add(*reject)
                yield errors

        source = LabelledTables(self.data, self.query, self.rows.options, row_errors)
        if training.stream is None:
            reason = _too_large(source, training.memory_limit)
            if not reason:
                return None
            run.message(f"{reason}: training streams from disk, as with --stream; --no-stream reads all rows")
        valid = None
        if self._valid_files:
            skips = self.rows.skips_errors
            valid = LabelledTables(
                self._valid_files, self._valid_query, self.rows.options,
                (lambda: nullcontext(Skipped(rejected))) if skips else lambda: self.rows.row_errors(self.output),
            )  # fmt: skip
        columns, share = self.query.columns, self.validation.valid_share
        paths = self._may_be_paths(columns)
        return TrainingStream(columns, self.hierarchy, self._path_sep, source, valid, paths, share, run)


def _check_validation(count: int) -> None:
    if not count:
        raise HiNetError("there are no validation rows; check --where and the rejects")


def label_separator(labels: Sequence[Any]) -> tuple[str, str] | None:
    """Return the separator that many cells seem to have between several paths, and such a cell; None without one.

    Each side of a separator is a path. As it may also be part of a step, as in ``Home > Kitchen, Bath > Taps``, the
    first step after it must also start a cell.
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
        if sum(cells[cell] for cell in several) > MIN_SEVERAL * cells.total():
            return separator, several[0]
    return None


def read_rows(
    data: list[str], columns: Columns, rows: RowOptions, hierarchy: Taxonomy | None, output: str
) -> LabelledInputs:
    """Read all labelled rows of files."""
    with rows.row_errors(output) as row_errors:
        return _read_labelled(
            data, RowQuery(columns, where=rows.conditions, check=taxonomy_check(hierarchy)), rows, row_errors
        )


def _read_labelled(paths: list[str], query: RowQuery, rows: RowOptions, row_errors: RowErrors) -> LabelledInputs:
    labels: list[Any] = []
    parts: list[pa.Array | pa.Table] = []
    for block in labelled_blocks(paths, query, rows.options, row_errors):
        labels += block.labels
        parts.append(block.table if block.table is not None else pa.array(block.texts, pa.large_string()))
    joined = (
        pa.concat_tables(parts, promote_options="default")
        if query.columns.is_mixed and parts
        else pa.chunked_array(parts, pa.large_string())
    )
    interned: dict[Any, Any] = {}  # so that equal labels are the same object, which saves memory
    return LabelledInputs(joined, [interned.setdefault(label, label) for label in labels])


def _check_paths(*parts: LabelledInputs | None) -> None:
    """Raise HiNetError for a label that is not a valid path."""
    labels = (label for rows in parts if rows is not None for label in rows.labels)
    for item in dict.fromkeys(item for label in labels for item in iter_labels(label)):
        if reason := path_error(item):
            raise HiNetError(f"{reason}, or set `path_sep` to none if labels are not paths")


def _too_large(source: LabelledTables, memory_limit: float | None) -> str:
    """Return why all rows would not fit in memory, or an empty text if they should."""
    data = source.paths
    memory = total_memory() if memory_limit is None else int(memory_limit * GB)
    if not all(Path(path).is_file() for path in data) or sum(Path(p).stat().st_size for p in data) < MIN_SHARE * memory:
        return ""
    count = estimate_rows(data)
    blocks = labelled_blocks(data, source.query, source.options, Skipped())  # invalid rows are reported later
    arrays = [pa.array(block.texts, pa.large_string()) for block in islice(blocks, 4)]
    texts = pa.chunked_array(arrays, pa.large_string()).slice(0, FIRST_ROWS)
    if not len(texts):
        return ""
    _, settings = resolve_auto(iter([texts]), TextSettings())
    hashed, counts = hash_and_count(texts, settings, 1)
    ngrams = sum(len(part.words.hashes) + len(part.chars.hashes) for part in hashed) / len(texts)
    repeated = int(np.sum(counts.words.rows > 1) + np.sum(counts.chars.rows > 1))
    features = int(repeated * max(count / len(texts), 1) ** GROWTH)
    model = plan_memory(features=features, outputs=0, width=MAX_WIDTH).total
    needed = int(count * (ROW_BYTES + 2 * texts.nbytes / len(texts) + NGRAM_BYTES * ngrams)) + model
    if needed <= memory:
        return ""
    return f"about {count:,} rows would take {needed / GB:.0f} GB, and there are {memory / GB:.1f} GB"
