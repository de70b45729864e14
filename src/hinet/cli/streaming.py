"""Training from files that are read in constant memory, asked for or because all rows would not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hinet import HiNetClassifier, Taxonomy
from hinet.classifier.row_source import MAX_HELD_OUT
from hinet.classifier.stream_reading import Chunk, RowSample
from hinet.cli.finishing import calibrate
from hinet.cli.options import RunOptions
from hinet.cli.table_options import ColumnOptions, RowOptions
from hinet.cli.training_options import TrainingOptions, ValidationOptions
from hinet.cli.training_rows import training_query, validation_query
from hinet.data.tables import Columns, LabelledTables, RowErrors, labelled_blocks
from hinet.data.tables.blocks import Skipped
from hinet.data.tables.formats import estimate_rows
from hinet.data.text.settings import TextSettings
from hinet.data.text.vocabulary import hash_and_count, resolve_auto
from hinet.engine.settings import MAX_WIDTH, plan_memory
from hinet.errors import HiNetError, counted
from hinet.memory import GB, total_memory
from hinet.taxonomy import PATH_MARK

LEAST_SHARE = 1 / 200  # of memory: smaller files always fit
FIRST_ROWS = 8_192  # whose n-grams stand for those of all rows
BYTES_OF_ROW = 300  # of a row in memory, beside its text and n-grams
BYTES_OF_NGRAM = 40  # of an n-gram of a row, while rows become features
GROWTH = 0.6  # of the number of features with the rows, as a power


@dataclass(frozen=True)
class Stream:
    """The rows of a run that are read from files as they are needed, and validation rows."""

    source: LabelledTables
    valid: LabelledTables | None
    may_be_paths: bool
    seed: int
    run: RunOptions

    @property
    def columns(self) -> Columns:
        """The columns of the rows."""
        return self.source.query.columns

    def fit(self, classifier: HiNetClassifier, risk: float | None) -> tuple[HiNetError | None, Columns]:
        """Train and calibrate; return why the risk cannot be guaranteed, if so, and the columns as the labels are."""
        classifier.fit_stream(self.source, valid=None if self.valid is None else self._validation_rows(self.valid))
        columns = self.columns
        if self.may_be_paths and classifier.fitted_.codec.style is not None:
            columns = replace(columns, path_sep=PATH_MARK)
        held = classifier.metrics_.get("validation", {}).get("rows", 0)
        return (calibrate(classifier, held, risk) if held else None), columns

    def _validation_rows(self, tables: LabelledTables) -> tuple[Any, list[Any]]:
        """Return validation rows, chosen at random if there are very many."""
        sample, count = RowSample(self.seed, MAX_HELD_OUT, MAX_HELD_OUT * 100_000), 0
        for inputs, labels in tables:
            rows = inputs if isinstance(inputs, pa.Table) else pa.chunked_array([inputs])
            sample.add(Chunk(count, rows, labels))
            count += len(labels)
        if not count:
            raise HiNetError("there are no validation rows; check --where and the rejects")
        chosen = sample.rows()
        note = "" if len(chosen) == count else f", of which {len(chosen):,} are chosen at random"
        self.run.message(f"{counted(count, 'validation row')}{note}")
        return chosen.inputs, chosen.labels


def stream_of(
    data: list[str],
    validation: ValidationOptions,
    rows: RowOptions,
    column_options: ColumnOptions,
    hierarchy: Taxonomy | None,
    defaults: Columns | None,
    training: TrainingOptions,
    run: RunOptions,
    output: str,
) -> Stream | None:
    """Return the rows as a stream if that is asked for, or if all of them would not fit in memory."""
    if training.stream is False or (training.stream is None and (training.fine_tune or "-" in data)):
        return None
    query, may_be_paths = training_query(validation, rows, column_options, hierarchy, defaults)
    rejected: list[Any] = []  # validation rows, which are read before the others

    @contextmanager
    def row_errors() -> Iterator[RowErrors]:
        with rows.row_errors(output) as found:
            for reject in rejected:
                found.add(*reject)
            yield found

    source = LabelledTables(data, query, rows.options, row_errors)
    if training.stream is None:
        reason = _too_large(data, source, training.memory_limit)
        if not reason:
            return None
        run.message(f"{reason}: training streams from disk, as with --stream; --no-stream reads all rows")
    valid = None
    if validation.files or validation.conditions:
        valid = LabelledTables(
            validation.files or data,
            validation_query(query, validation, rows),
            rows.options,
            (lambda: nullcontext(Skipped(rejected))) if rows.skips_errors else lambda: rows.row_errors(output),
        )
    return Stream(source, valid, may_be_paths, run.seed, run)


def _too_large(data: list[str], source: LabelledTables, memory_limit: float | None) -> str:
    """Return why all rows would not fit in memory, or an empty text if they should."""
    memory = total_memory() if memory_limit is None else int(memory_limit * GB)
    if (
        not all(Path(path).is_file() for path in data)
        or sum(Path(p).stat().st_size for p in data) < LEAST_SHARE * memory
    ):
        return ""
    count = estimate_rows(data)
    texts = pa.chunked_array([*islice(_first_texts(source), 4)], pa.large_string()).slice(0, FIRST_ROWS)
    if not len(texts):
        return ""
    _, settings = resolve_auto(iter([texts]), TextSettings())
    hashed, counts = hash_and_count(texts, settings, 1)
    ngrams = sum(len(part.words.hashes) + len(part.chars.hashes) for part in hashed) / len(texts)
    repeated = int(np.sum(counts.words.rows > 1) + np.sum(counts.chars.rows > 1))
    features = int(repeated * max(count / len(texts), 1) ** GROWTH)
    model = plan_memory(features=features, outputs=0, width=MAX_WIDTH).total
    needed = int(count * (BYTES_OF_ROW + 2 * texts.nbytes / len(texts) + BYTES_OF_NGRAM * ngrams)) + model
    if needed <= memory:
        return ""
    return f"about {count:,} rows would take {needed / GB:.0f} GB, and there are {memory / GB:.1f} GB"


def _first_texts(source: LabelledTables) -> Iterator[pa.Array]:
    """Yield the texts of the first rows; rows that are invalid raise or are rejected later."""
    for block in labelled_blocks(source.paths, source.query, source.options, Skipped()):
        yield pa.array(block.texts, pa.large_string())
