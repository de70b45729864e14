"""Prediction on a cluster: files with Ray Data, and batches of engines such as Spark.

Rows of files are read in tasks, answered by a pool of workers, and keep their order. A portion is a few blocks of a
file, as one machine would read them, with the number of the file and of the portion as order key. A worker loads the
model once. Ray restarts a worker that dies and repeats its portion. A portion becomes visible only as a whole, so none
is lost or duplicated.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import lru_cache
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from hinet.classifier.answers import PredictionOptions
from hinet.classifier.prediction_table import NO_ROWS, PredictionNotes
from hinet.classifier.prediction_table import PredictionJob as PredictionJob
from hinet.classifier.prediction_table import Sink as Sink
from hinet.classifier.saved_model import LoadedModel, load_model
from hinet.cluster.session import Cluster, connected
from hinet.compiled import compile_from_now_on
from hinet.data.tables import LabelledBlock, RowErrors, labelled_blocks, new_table
from hinet.data.tables.blocks import FailFast, Skipped
from hinet.data.tables.writing import parquet_schema, to_arrow
from hinet.errors import HiNetError
from hinet.files.atomic import new_folder

BLOCK_BYTES = 1 << 16  # portions are larger, so that each is a Ray block of its own and goes to any worker
READER_CPUS = 0  # processors reserved for a reader, which waits most of the time
READERS = 4  # files that are read at a time
SPARK_SCHEMA = "label string, trace array<string>, probability double"  # default columns, for Spark


class Answers(NamedTuple):
    """The output of a portion, or the number of rows of it that a worker has written."""

    rows: int
    notes: PredictionNotes
    columns: list[dict[str, Any]]
    rejected: list[Any]  # invalid rows that were skipped, as arguments of ``RowErrors.add``
    blank_lines: int


def predict_rows(
    job: PredictionJob,
    cluster: Cluster,
    sink: Sink,
    row_errors: RowErrors,
    advanced: Callable[[int], None],
    loaded: LoadedModel | None = None,
) -> PredictionNotes:
    """Write the answers to all rows in their order and return notes for the user; ``advanced`` gets finished rows.

    ``loaded`` is the model of the job, if it is loaded already.

    Raises
    ------
    HiNetError
        If the rows, the model or the cluster cannot be used. What was written until then is removed.
    """
    first = next(job.blocks(Skipped() if job.skips else FailFast(job.hint)))  # before anything is started
    kinds = job.output(loaded or load_model(job.model, 1, encoder=job.encoder), first).kinds()
    paths = tuple(os.path.abspath(path) for path in job.files)  # noqa: PTH100 workers run in other folders
    encoder = os.path.abspath(job.encoder) if job.encoder and Path(job.encoder).is_dir() else job.encoder  # noqa: PTH100
    job = replace(job, model=job.model.absolute(), files=paths, encoder=encoder)
    with ExitStack() as stack:
        table = folder = None
        if sink.is_folder:
            folder = stack.enter_context(new_folder(sink.out))
        else:
            table = stack.enter_context(sink.table(first.rows.format, kinds))
        cells = {name: first.rows.column(name) if kind == "any" else [] for name, kind in kinds.items()}
        like = LabelledBlock(first.rows.take([]), [], [], None if first.table is None else first.table.slice(0, 0))
        answers = stack.enter_context(_portions(job, cluster, like, parquet_schema(cells, kinds), folder))
        rows, notes = 0, PredictionNotes()
        for portion in answers:
            row_errors.blank_lines += portion.blank_lines
            for row in portion.rejected:
                row_errors.add(*row)
            for columns in portion.columns:
                assert table is not None
                table.write(columns)
            rows, notes = rows + portion.rows, notes + portion.notes
            advanced(portion.rows)
        if not rows:
            raise HiNetError(NO_ROWS)
    return notes


@contextmanager
def _portions(
    job: PredictionJob, cluster: Cluster, like: LabelledBlock, schema: pa.Schema, folder: Path | None
) -> Iterator[Iterator[Answers]]:
    """Yield the answers of all portions in the order of the rows; with a ``folder`` workers write them there.

    ``like`` is an empty block with the columns of the rows, and ``schema`` that of the output.
    """
    with connected(cluster), _small_blocks():
        import ray.data

        files = [{"file": number, "path": path} for number, path in enumerate(job.files)]
        readers = ray.data.TaskPoolStrategy(min(READERS, len(files)))
        read = ray.data.from_items(files, override_num_blocks=len(files)).map_batches(
            _read, batch_size=1, fn_args=[job], num_cpus=READER_CPUS, compute=readers
        )
        answered = read.map_batches(
            _Worker, batch_size=1, batch_format="pyarrow",
            fn_constructor_args=[job, cluster.threads, like, schema, folder],
            compute=ray.data.ActorPoolStrategy(size=cluster.workers), num_cpus=cluster.threads,
        )  # fmt: skip
        yield _in_order(answered, len(files))


@contextmanager
def _small_blocks() -> Iterator[None]:
    """Set Ray Data to keep portions apart and in order, without progress bars."""
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
    """Yield answers and check that each portion of each file occurs once."""
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
    """Return the error of a task or that workers died, if a user can do something about it; else the error itself."""
    from ray.exceptions import RayError, RayTaskError

    cause: BaseException | None = error
    last = error
    while cause is not None:
        if isinstance(cause, HiNetError | MemoryError | OSError) and not isinstance(cause, RayError):
            return cause
        last, inner = cause, cause.cause if isinstance(cause, RayTaskError) else None
        cause = inner if isinstance(inner, BaseException) and inner is not cause else cause.__cause__
    if not isinstance(last, RayError):
        return error  # a bug: the full report of Ray helps to find it
    reason = str(last).strip().partition("\n")[0]
    return HiNetError(f"the workers failed: {reason}; give fewer `workers`")


def _read(batch: dict[str, Any], job: PredictionJob) -> Iterator[dict[str, Any]]:
    """Yield the portions of a file, each with its invalid rows."""
    file, path = int(batch["file"][0]), str(batch["path"][0])
    rejected: list[Any] = []
    row_errors: RowErrors = Skipped(rejected) if job.skips else FailFast(job.hint)
    blocks = labelled_blocks([path], job.query, job.tables, row_errors)
    try:
        portion = list(islice(blocks, job.portion))
        for number in count():
            after = list(islice(blocks, job.portion))
            payload = pickle.dumps((portion, rejected, row_errors.blank_lines), pickle.HIGHEST_PROTOCOL)
            rejected.clear()
            row_errors.blank_lines = 0
            yield {"file": [file], "portion": [number], "is_last": [not after], "payload": [payload]}
            if not after:
                return
            portion = after
    except HiNetError as error:
        raise HiNetError(str(error)) from None  # errors with more arguments cannot be sent


class _Worker:
    """Answers portions; Ray creates one per worker process and calls it with one portion at a time."""

    def __init__(
        self, job: PredictionJob, threads: int, like: LabelledBlock, schema: pa.Schema, folder: Path | None
    ) -> None:
        compile_from_now_on()  # so that answers do not depend on the number of rows before
        self._output = job.output(load_model(job.model, threads, encoder=job.encoder), like)
        self._kinds, self._schema, self._folder = self._output.kinds(), schema, folder

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Return the order key and the answers of a portion."""
        (row,) = batch.to_pylist()
        blocks, rejected, blank_lines = pickle.loads(row["payload"])
        self._output.notes = PredictionNotes()
        try:
            parts = (part for block in blocks if len(block) for part in block.parts(self._output.rows_at_a_time))
            columns = [to_arrow(self._output.columns(part), self._kinds) for part in parts]
            if self._folder is not None and columns:  # a portion without rows has no file
                path = self._folder / f"part-{row['file']:05d}-{row['portion']:07d}.parquet"
                with new_table(str(path), "parquet", self._kinds, schema=self._schema) as table:
                    for part in columns:
                        table.write(part)
        except HiNetError as error:
            raise HiNetError(str(error)) from None
        written = [] if self._folder is not None else columns
        answers = Answers(sum(map(len, blocks)), self._output.notes, written, rejected, blank_lines)
        keys = {name: [row[name]] for name in ("file", "portion", "is_last")}
        return pa.table({**keys, "payload": pa.array([pickle.dumps(answers, 5)], pa.large_binary())})


@lru_cache(maxsize=4)
def _loaded(model: str, threads: int, encoder: str | None) -> LoadedModel:
    """Load a model once per process, for any number of batches and partitions."""
    compile_from_now_on()  # so that answers do not depend on the number of rows before
    return load_model(model, threads, encoder=encoder)


def predict_batches(
    model: str | Path,
    batches: Iterable[Any],
    options: PredictionOptions | None = None,
    threads: int = 1,
    encoder: str | Path | None = None,
) -> Iterator[Any]:
    """Yield a pandas DataFrame of predictions for every Series of texts, such as those of pandas UDFs of Spark.

    The columns are those that ``hinet predict`` writes. ``encoder`` is the new place of the encoder of the model, if it
    moved since training.
    """
    import pandas as pd

    table = _loaded(str(model), threads, None if encoder is None else str(encoder)).table(
        options or PredictionOptions()
    )
    for texts in batches:
        filled = ["" if text is None or text != text else text for text in texts.tolist()]
        cells = table.columns(filled)
        yield pd.DataFrame({name: cells[name] for name in table.kinds})
