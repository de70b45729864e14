"""The jobs of a training run, side by side: progress, patience, checkpoints, and an end when it is broken off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np

from hinet.engine.settings import EngineSettings
from hinet.engine.training.checkpoints import Best, Checkpoints, Done, check_finite
from hinet.engine.training.jobs import Job
from hinet.errors import HiNetError
from hinet.progress import EpochRecord, Progress


class _StoppedError(Exception):
    """Raised in a job that is to stop, because the run was broken off."""


class Trainer:
    """Runs jobs in a pool of threads: progress, patience, checkpoints, and an end when the run is broken off."""

    def __init__(
        self,
        jobs: list[Job],
        rows: int,
        settings: EngineSettings,
        progress: Progress,
        checkpoints: Checkpoints | None,
        valid_cost: Callable[[Job], float | None],
        valid_accuracy: Callable[[Job], float | None] | None,
    ) -> None:
        self._jobs, self._rows, self._settings, self._progress = jobs, rows, settings, progress
        self._checkpoints, self._valid_cost, self._valid_accuracy = checkpoints, valid_cost, valid_accuracy
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.history: list[EpochRecord] = []

    def run(self) -> None:
        """Run all jobs to their end."""
        self._progress.started(sum(job.epochs for job in self._jobs), self._rows)
        try:
            done = [self._taken_up(job) for job in self._jobs]  # all of them, before one writes into the folder
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
        if self._checkpoints is not None:
            self._checkpoints.started(job)
        patience, kept = self._settings.patience, len(done.records)
        for epoch in range(len(done.records), job.epochs):
            if done.best is not None and patience is not None and epoch - done.best.epoch > patience:
                break
            record, best = self._epoch_of(job, epoch, done.best)
            done = Done((*done.records, record), best)
            if self._checkpoints is not None and self._checkpoints.is_due(job):
                self._checkpoints.keep(job, done)
                kept = len(done.records)
            with self._lock:
                self.history.append(record)
                self._progress.epoch_done(record)
        last = self._checkpoints
        if last is not None and last.to_the_end and not last.read_only and kept < len(done.records):
            last.keep(job, done)
        if done.best is not None:
            job.restore(done.best.state)
        check_finite(job.name, job.state())

    def _epoch_of(self, job: Job, epoch: int, best: Best | None) -> tuple[EpochRecord, Best | None]:
        """Train for an epoch; return its record, and the best so far."""
        start = time.perf_counter()
        cost = job.run_epoch(epoch, self._advance)
        if not np.isfinite(cost):
            raise HiNetError(f"the cost of {job.name} is no longer finite; scale the features to length 1")
        if self._settings.patience is not None and (valid := self._valid_cost(job)) is not None:
            best = _better(best, -valid, epoch, job)
        score = None if self._valid_accuracy is None else self._valid_accuracy(job)
        seconds, rate = time.perf_counter() - start, 1 - (epoch + 1) / job.epochs
        return EpochRecord(epoch + 1, job.epochs, cost, score, seconds, rate, job.name), best

    def _taken_up(self, job: Job) -> Done:
        """Return what an earlier run has done of a job, which is then where that left it."""
        if self._checkpoints is None:
            return Done()
        done = self._checkpoints.resume(job)
        if done.records:
            self.history += done.records
            self._progress.message(f"{job.name} goes on after epoch {len(done.records)} of {job.epochs}")
            self._progress.advanced(len(done.records) * self._rows)
        return done

    def _advance(self, rows: int) -> None:
        with self._lock:
            if self._stop.is_set():
                raise _StoppedError
            self._progress.advanced(rows)


def _better(best: Best | None, score: float, epoch: int, job: Job) -> Best:
    """Return the best so far, or this epoch if it is better."""
    if best is not None and score <= best.score:
        return best
    return Best(score, epoch, {name: array.copy() for name, array in job.state().items()})
