"""Batch prediction with Ray Data: rows are read in tasks, answered by a pool of workers, and keep their order.

A portion is a few blocks of a file, as one machine would read them, with the number of the file and its own: the order
key. A worker loads the model once. Ray restarts a worker that dies and gives its portion to it again, or to another;
as nothing of a portion is visible before all of it is, none is lost and none is there twice.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hinet.choices import TableFormat
from hinet.classifier.answers import PredictionOptions
from hinet.classifier.loaded import LoadedModel, load_model
from hinet.classifier.prediction_table import NO_ROWS, PredictionNotes, PredictionOutput
from hinet.cluster.session import Cluster, connected
from hinet.compiled import compile_from_now_on
from hinet.data.tables import (
    LabelledBlock,
    RowErrors,
    RowQuery,
    TableOptions,
    labelled_blocks,
    new_table,
    output_format,
)
from hinet.data.tables.blocks import FailFast, Unit
from hinet.data.tables.writing import LABEL_SEP, CellKind, parquet_schema, to_arrow
from hinet.errors import HiNetError
from hinet.files.atomic import new_folder

BLOCKS = 4  # of a portion
BLOCK_BYTES = 1 << 16  # portions are larger, so that each of them is a block of Ray's own and goes to any worker
READING = 0  # processors that Ray keeps free for a reader: it waits most of the time, and workers may have them all
READERS = 4  # files that are read at a time


@dataclass(frozen=True)
class PredictionJob:
    """What to predict: the same values as for one machine."""

    model: Path
    files: tuple[str, ...]
    query: RowQuery
    tables: TableOptions
    options: PredictionOptions
    prefix: str = ""
    skips: bool = False  # whether invalid rows are skipped, and output rows have their line
    hint: str = ""  # what an error of a row ends with
    blocks: int = BLOCKS  # of a portion
    encoder: str | None = None  # where the encoder of the model is, if it moved since training


class BadRow(NamedTuple):
    """A row that was skipped."""

    path: str
    number: int
    reason: str
    row: str
    unit: Unit


class Answers(NamedTuple):
    """The output of a portion, or how many rows a worker has written of it."""

    rows: int
    notes: PredictionNotes
    columns: list[dict[str, Any]]
    bad: list[BadRow]


class _Collected:
    """Keeps invalid rows; those of a portion go with it."""

    fail_fast = False

    def __init__(self) -> None:
        self.count = 0
        self.rows: list[BadRow] = []

    def add(self, path: str, number: int, reason: str, row: str, unit: Unit = "line") -> None:
        """Keep an invalid row."""
        self.count += 1
        self.rows.append(BadRow(path, number, reason, row, unit))

    def taken(self) -> list[BadRow]:
        """Return the rows since the last call."""
        rows, self.rows = self.rows, []
        return rows


@dataclass(frozen=True)
class Sink:
    """Where answers go, and as what."""

    out: str
    format: TableFormat | None = None  # by default that of the name, or of the rows
    is_folder: bool = False  # of Parquet files, which workers write
    label_sep: str = LABEL_SEP
    escape_formulas: bool = False  # in CSV and TSV


def predict_rows(
    job: PredictionJob,
    cluster: Cluster,
    sink: Sink,
    row_errors: RowErrors,
    advanced: Callable[[int], None],
    loaded: LoadedModel | None = None,
) -> PredictionNotes:
    """Write the answers to all rows in their order, and return what to report; ``advanced`` takes the rows done.

    ``loaded`` is the model of the job, if it is loaded already.

    Raises
    ------
    HiNetError
        If the rows, the model or the cluster cannot be used. What was written until then is removed.
    """
    first = _first_block(job)
    kinds = _output(job, loaded or load_model(job.model, 1, encoder=job.encoder), first).kinds()
    paths = tuple(os.path.abspath(path) for path in job.files)  # noqa: PTH100 workers have folders of their own
    encoder = os.path.abspath(job.encoder) if job.encoder and Path(job.encoder).is_dir() else job.encoder  # noqa: PTH100
    job = replace(job, model=job.model.absolute(), files=paths, encoder=encoder)
    with ExitStack() as stack:
        table = folder = None
        if sink.is_folder:
            folder = stack.enter_context(new_folder(sink.out))
        else:
            format = output_format(sink.out, sink.format, first.rows.format)
            table = stack.enter_context(
                new_table(sink.out, format, kinds, sink.label_sep, escape_formulas=sink.escape_formulas)
            )
        answers = stack.enter_context(_portions(job, cluster, _Like.of(first, kinds), folder))
        rows, notes = 0, PredictionNotes()
        for portion in answers:
            for bad in portion.bad:
                row_errors.add(*bad)
            for columns in portion.columns:
                assert table is not None
                table.write(columns)
            rows, notes = rows + portion.rows, notes + portion.notes
            advanced(portion.rows)
        if not rows:
            raise HiNetError(NO_ROWS)
    return notes


def _first_block(job: PredictionJob) -> LabelledBlock:
    """Return the first rows, which say what columns there are, before anything is started."""
    errors: RowErrors = _Collected() if job.skips else FailFast(job.hint)
    blocks = labelled_blocks(job.files, job.query, job.tables, errors)
    first = next((block for block in blocks if len(block)), None)
    if first is None:
        raise HiNetError(NO_ROWS)
    return first


def _output(job: PredictionJob, loaded: LoadedModel, like: LabelledBlock) -> PredictionOutput:
    return PredictionOutput(loaded, loaded.table(job.options), job.query, job.prefix, job.skips, like)


class _Like(NamedTuple):
    """What all output is like: the columns of a block without rows, and the types of those that are kept."""

    block: LabelledBlock
    schema: pa.Schema

    @classmethod
    def of(cls, first: LabelledBlock, kinds: Mapping[str, CellKind]) -> _Like:
        """Return what a block says of all."""
        cells = {name: first.rows.column(name) if kind == "any" else [] for name, kind in kinds.items()}
        table = None if first.table is None else first.table.slice(0, 0)
        return cls(LabelledBlock(first.rows.take([]), [], [], table), parquet_schema(cells, kinds))


@contextmanager
def _portions(job: PredictionJob, cluster: Cluster, like: _Like, folder: Path | None) -> Iterator[Iterator[Answers]]:
    """Yield the answers of all portions in the order of the rows; with a ``folder`` workers write them there."""
    with connected(cluster), _small_blocks():
        import ray.data

        files = [{"file": number, "path": path} for number, path in enumerate(job.files)]
        read = ray.data.from_items(files, override_num_blocks=len(files)).map_batches(
            _read,
            batch_size=1,
            fn_args=[job],
            num_cpus=READING,
            compute=ray.data.TaskPoolStrategy(min(READERS, len(files))),
        )
        answered = read.map_batches(
            _Worker, batch_size=1, batch_format="pyarrow", fn_constructor_args=[job, cluster.threads, like, folder],
            compute=ray.data.ActorPoolStrategy(size=cluster.workers), num_cpus=cluster.threads,
        )  # fmt: skip
        yield _in_order(answered, len(files))


@contextmanager
def _small_blocks() -> Iterator[None]:
    """Set Ray Data to keep portions apart and in their order, without bars of its own."""
    from ray.data import DataContext

    context = DataContext.get_current()
    changed = {
        "target_max_block_size": BLOCK_BYTES,
        "target_min_block_size": 1,
        "enable_progress_bars": False,
        "print_on_execution_start": False,
    }
    before = {name: getattr(context, name) for name in changed}
    ordered = context.execution_options.preserve_order
    try:
        for name, value in changed.items():
            setattr(context, name, value)
        context.execution_options.preserve_order = True
        yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        context.execution_options.preserve_order = ordered


def _in_order(answered: Any, files: int) -> Iterator[Answers]:
    """Yield answers, and check that each portion of each file is there once."""
    from ray.exceptions import RayError

    file, portion = 0, 0
    try:
        for batch in answered.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1):
            for row in batch.to_pylist():
                assert (row["file"], row["portion"]) == (file, portion), "portions are in order, none missing"
                file, portion = (file + 1, 0) if row["is_last"] else (file, portion + 1)
                yield pickle.loads(row["payload"])
    except RayError as error:
        raise _cause_of(error) from None
    assert file == files, "all files are read to their end"


def _cause_of(error: BaseException) -> BaseException:
    """Return what a user can do something about: what a task raised, or that workers died; else the error itself."""
    from ray.exceptions import RayError, RayTaskError

    cause: BaseException | None = error
    last = error
    while cause is not None:
        if isinstance(cause, HiNetError | MemoryError | OSError) and not isinstance(cause, RayError):
            return cause
        last, inner = cause, cause.cause if isinstance(cause, RayTaskError) else None
        cause = inner if isinstance(inner, BaseException) and inner is not cause else cause.__cause__
    if not isinstance(last, RayError):
        return error  # no user can cause it: all that Ray tells helps to find out why
    reason = str(last).strip().partition("\n")[0]
    return HiNetError(f"the workers failed: {reason}; give fewer `workers`")


def _read(batch: dict[str, Any], job: PredictionJob) -> Iterator[dict[str, Any]]:
    """Yield the portions of a file, each with the rows that are invalid."""
    file, path = int(batch["file"][0]), str(batch["path"][0])
    bad = _Collected()
    errors: RowErrors = bad if job.skips else FailFast(job.hint)
    try:
        blocks = labelled_blocks([path], job.query, job.tables, errors)
        number = 0
        portion = list(islice(blocks, job.blocks))
        while True:
            after = list(islice(blocks, job.blocks))
            payload = pickle.dumps((portion, bad.taken()), pickle.HIGHEST_PROTOCOL)
            yield {"file": [file], "portion": [number], "is_last": [not after], "payload": [payload]}
            if not after:
                return
            number, portion = number + 1, after
    except HiNetError as error:
        raise HiNetError(str(error)) from None  # errors with more arguments cannot be sent


class _Worker:
    """Answers portions; Ray makes one in each worker, and calls it with one portion at a time."""

    def __init__(self, job: PredictionJob, threads: int, like: _Like, folder: Path | None) -> None:
        compile_from_now_on()  # so that no answer depends on how many rows came before
        self._output = _output(job, load_model(job.model, threads, encoder=job.encoder), like.block)
        self._kinds, self._schema = self._output.kinds(), like.schema
        self._folder = folder

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the order key and the answers of a portion."""
        (row,) = batch.to_pylist()
        blocks, bad = pickle.loads(row["payload"])
        self._output.notes = PredictionNotes()
        try:
            parts = (part for block in blocks if len(block) for part in block.parts(self._output.rows_at_a_time))
            columns = [to_arrow(self._output.columns(part), self._kinds) for part in parts]
            if self._folder is not None:
                self._write(f"part-{row['file']:05d}-{row['portion']:07d}.parquet", columns)
        except HiNetError as error:
            raise HiNetError(str(error)) from None
        answers = Answers(sum(map(len, blocks)), self._output.notes, [] if self._folder is not None else columns, bad)
        keys = {name: [row[name]] for name in ("file", "portion", "is_last")}
        return pa.table({**keys, "payload": pa.array([pickle.dumps(answers, 5)], pa.large_binary())})

    def _write(self, name: str, columns: list[dict[str, Any]]) -> None:
        """Write a file of the folder, all at once; a portion without rows leaves none."""
        if columns:
            assert self._folder is not None
            with new_table(str(self._folder / name), "parquet", self._kinds, schema=self._schema) as table:
                for part in columns:
                    table.write(part)
