"""Training of the fused model: the jobs of all experts run in parallel, then the experts are mixed."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import seen_features, without_unseen
from hinet.data.spill import Spill
from hinet.engine.model.fused import FusedModel
from hinet.engine.settings import EngineSettings
from hinet.engine.training.checkpoints import CHECKPOINT_EVERY, Best, Checkpoints, Done
from hinet.engine.training.mixing import Blend
from hinet.engine.training.neighbours import TextVectors
from hinet.engine.training.plan import PlanInput, TrainingPlan
from hinet.engine.training.rows import Job, TitleColumns, ValidationRows, check_finite
from hinet.errors import HiNetError
from hinet.parameters import PATH, instance
from hinet.progress import EpochRecord, Progress, SilentProgress
from hinet.taxonomy import Layers

HOLDOUT_SHARE = 10  # one row in this number is held out to decide the mix
WORKER_CHECKPOINT_SECONDS = 5.0  # minimum seconds between checkpoints of workers in a temporary folder


class Runner(Protocol):
    """Trains experts in several processes."""

    @property
    def fingerprint(self) -> str:
        """Text that changes with what the result depends on besides settings and data; may be empty."""

    def run(self, data: PlanInput, checkpoints: Checkpoints, progress: Progress, *, watch: bool) -> None:
        """Train all jobs and write their last states as checkpoints; ``watch`` is as in :func:`fit`."""


def fit(
    rows: Any,
    traces: Traces | Layers,
    settings: EngineSettings | None = None,
    *,
    valid: ValidationRows | None = None,
    sample_weight: NDArray[np.floating[Any]] | None = None,
    start: FusedModel | None = None,
    titles: TitleColumns | None = None,
    vectors: TextVectors | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 0.0,
    watch: bool = False,
    runner: Runner | None = None,
) -> FusedModel:
    """Train a model on CSR ``rows`` with the labels of ``traces``.

    Rows that do not fit in memory are a :class:`hinet.data.spill.Spill`, which holds their labels too; ``traces`` are
    then their layers. Deep experts train on one block after the other, the wide expert on a sample. The sample depends
    on the ``memory_limit`` of the settings, by default the memory of the machine; set it for the same result on every
    machine. Otherwise the result depends on the settings and the data alone, not on the number of threads.

    With ``checkpoint``, a folder, an interrupted run resumes from its finished epochs, with the same result. With
    ``start``, a model over the same layers, training continues from it. With ``watch``, every epoch records the
    accuracy of its expert alone on validation rows. With a ``runner``, other processes train the experts. With
    ``titles``, the dense columns of titles of labels, rows with one label are also compared with these. With
    ``vectors``, rows with one label in a tree are compared with the most similar training rows and titles, too.

    Raises
    ------
    HiNetError
        If rows and labels do not fit, a value is not finite, or training would take more than the memory limit.
    """
    settings, progress = settings or EngineSettings(), progress or SilentProgress()
    data = PlanInput(rows, traces, settings, sample_weight, valid, titles, vectors)
    _check(data, start, checkpoint, runner)
    every = CHECKPOINT_EVERY.validate("checkpoint_every", checkpoint_every)
    plan = data.plan(start)
    progress.message(f"{plan.memory}{plan.sample_note()}")
    plan.memory.check(settings.memory_limit)
    history = _train(data, plan, progress, checkpoint, every, watch or settings.patience is not None, runner)
    if not plan.needs_holdout():
        return plan.model(history)
    if runner is None:
        progress.message("training once more with some rows held out, to learn the weight of each expert")
    return plan.model(history, _mix_from_holdout(data, plan))


def _check(data: PlanInput, start: FusedModel | None, checkpoint: str | Path | None, runner: Runner | None) -> None:
    instance(EngineSettings, "EngineSettings").validate("settings", data.settings)
    if not isinstance(data.rows, Spill):
        instance(Traces, "Traces").validate("traces", data.traces)
    if data.settings.patience is not None and data.valid is None:
        raise HiNetError("`patience` requires validation rows; give some, or leave it out")
    if start is not None and checkpoint is not None:
        raise HiNetError("`start` cannot be combined with `checkpoint`")
    if start is not None and runner is not None:
        raise HiNetError("`start` cannot be combined with `runner`")


def _train(
    data: PlanInput,
    plan: TrainingPlan,
    progress: Progress,
    checkpoint: str | Path | None,
    every: float,
    watch: bool,
    runner: Runner | None,
) -> list[EpochRecord]:
    """Run all jobs of a plan, here or by a runner; return the records of their epochs."""
    with ExitStack() as stack:
        if runner is not None and checkpoint is None:
            checkpoint = stack.enter_context(TemporaryDirectory(prefix="hinet-"))
            every = max(every, WORKER_CHECKPOINT_SECONDS)
        checkpoints = None
        if checkpoint is not None:
            fingerprint = plan.fingerprint() + ("" if runner is None else runner.fingerprint)
            checkpoints = Checkpoints(PATH.validate("checkpoint", checkpoint), fingerprint, every)
        if runner is not None and checkpoints is not None:
            runner.run(data, checkpoints, progress, watch=watch)
            progress = SilentProgress()  # the jobs below only restore the states that the workers left
        jobs = plan.jobs()
        if runner is not None and checkpoints is not None:
            checkpoints.check(jobs)
        rows = plan.context.rows.row_count // plan.context.rows.epochs_per_pass
        trainer = Trainer(plan, jobs, rows, progress, checkpoints, watch)
        trainer.run()
        return trainer.history


def _mix_from_holdout(data: PlanInput, plan: TrainingPlan) -> Blend:
    """Return the mix that held-out rows choose after a second training of the same experts without them."""
    assert isinstance(data.traces, Traces)
    titles = 0 if data.titles is None else len(data.titles.nodes)  # titles are the last rows, and stay
    order = np.random.default_rng(data.settings.seed).permutation(data.rows.shape[0] - titles)
    held_out = np.sort(order[: len(order) // HOLDOUT_SHARE])
    rest = np.setdiff1d(np.arange(data.rows.shape[0]), held_out)
    rows, held_rows, later = data.rows[rest], data.rows[held_out], None
    if data.vectors is not None and data.settings.neighbours:  # these count more for texts with unknown words
        later = without_unseen(held_rows, seen_features(rows), data.vectors.words)
        if not data.vectors.private:
            held_rows = later
    held = data._replace(
        settings=replace(data.settings, flat=plan.context.has_flat, margin=plan.context.has_margin),
        rows=rows,
        traces=data.traces.take(rest),
        sample_weight=None if data.sample_weight is None else data.sample_weight[rest],
        valid=ValidationRows(held_rows, data.traces.take(held_out), later),
    ).plan()
    Trainer(held, held.jobs(), len(rest), SilentProgress()).run()
    return held.blend()


class _StoppedError(Exception):
    """Raised in a job that must stop because the run was interrupted."""


class Trainer:
    """Runs jobs in a thread pool, with progress, patience, checkpoints and interruption."""

    def __init__(
        self,
        plan: TrainingPlan,
        jobs: list[Job],
        rows: int,
        progress: Progress,
        checkpoints: Checkpoints | None = None,
        watch: bool = False,
    ) -> None:
        self._plan, self._jobs, self._rows, self._progress = plan, jobs, rows, progress
        self._checkpoints, self._watch, self._settings = checkpoints, watch, plan.context.settings
        self._stop, self._lock = threading.Event(), threading.Lock()
        self.history: list[EpochRecord] = []

    def run(self) -> None:
        """Run all jobs."""
        self._progress.started(sum(job.epochs for job in self._jobs), self._rows)
        try:
            done = [self._resume(job) for job in self._jobs]  # before any job writes into the folder
            with ThreadPoolExecutor(self._settings.thread_count) as pool:
                futures = [pool.submit(self._run_job, *each) for each in zip(self._jobs, done, strict=True)]
                try:
                    for future in as_completed(futures):
                        future.result()
                except BaseException:
                    self._stop.set()
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise
        finally:
            self._progress.finished()

    def _run_job(self, job: Job, done: Done) -> None:
        checkpoints, patience, saved = self._checkpoints, self._settings.patience, len(done.records)
        if checkpoints is not None:
            checkpoints.started(job)
        for epoch in range(len(done.records), job.epochs):
            if done.best is not None and patience is not None and epoch - done.best.epoch > patience:
                break
            record, best = self._run_epoch(job, epoch, done.best)
            done = Done((*done.records, record), best)
            if checkpoints is not None and checkpoints.is_due(job):
                checkpoints.write(job, done)
                saved = len(done.records)
            with self._lock:
                self.history.append(record)
                self._progress.epoch_done(record)
        if (
            checkpoints is not None
            and checkpoints.keep_last
            and not checkpoints.read_only
            and saved < len(done.records)
        ):
            checkpoints.write(job, done)
        if done.best is not None:
            job.restore(done.best.state)
        check_finite(job.name, job.state())

    def _run_epoch(self, job: Job, epoch: int, best: Best | None) -> tuple[EpochRecord, Best | None]:
        """Train for one epoch; return its record and the best epoch so far."""
        start = time.perf_counter()
        cost = job.run_epoch(epoch, self._advance)
        if not np.isfinite(cost):
            raise HiNetError(f"the cost of {job.name} is no longer finite; scale the features to length 1")
        if self._settings.patience is not None and (valid := self._plan.valid_cost(job)) is not None:
            best = _better(best, -valid, epoch, job)
        score = self._plan.valid_accuracy(job) if self._watch else None
        seconds, rate = time.perf_counter() - start, 1 - (epoch + 1) / job.epochs
        return EpochRecord(epoch + 1, job.epochs, cost, score, seconds, rate, job.name), best

    def _resume(self, job: Job) -> Done:
        """Restore a job from its checkpoint, if there is one; return its finished epochs."""
        if self._checkpoints is None:
            return Done()
        done = self._checkpoints.resume(job)
        if done.records:
            self.history += done.records
            self._progress.message(f"{job.name} resumes after epoch {len(done.records)} of {job.epochs}")
            self._progress.advanced(len(done.records) * self._rows)
        return done

    def _advance(self, rows: int) -> None:
        with self._lock:
            if self._stop.is_set():
                raise _StoppedError
            self._progress.advanced(rows)


def _better(best: Best | None, score: float, epoch: int, job: Job) -> Best:
    """Return the best epoch so far, or this one if it is better."""
    if best is not None and score <= best.score:
        return best
    return Best(score, epoch, {name: array.copy() for name, array in job.state().items()})
