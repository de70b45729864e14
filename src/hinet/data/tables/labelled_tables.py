"""Files of labelled rows that are read again and again, in constant memory: what a stream trains on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from hinet.data.tables.columns import Columns, RowQuery, labelled_blocks
from hinet.data.tables.formats import TableOptions
from hinet.data.tables.row_errors import FailFast, RowErrors, Unit
from hinet.errors import HiNetError
from hinet.files.streams import STANDARD


class Skipped:
    """Leaves invalid rows out; with ``kept``, they are put there, to be told of later."""

    fail_fast = False

    def __init__(self, kept: list[tuple[str, int, str, str, Unit]] | None = None) -> None:
        self.count, self._kept = 0, kept

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Count the row."""
        self.count += 1
        if self._kept is not None:
            self._kept.append((path, number, reason, row, unit))


@dataclass
class LabelledTables:
    """The rows of files as pairs of texts, or tables, and labels; a source for ``HiNetClassifier.fit_stream``.

    Files are CSV, TSV, JSON lines, Parquet or ARFF, plain or compressed. The first time they are read, the first
    invalid row raises FileError, or ``row_errors`` yields what receives it; later, invalid rows are left out.

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
