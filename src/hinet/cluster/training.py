"""Training of the fused engine by the workers of Ray Train.

Every worker makes the same plan of the same rows and does its part of the jobs: some jobs alone, and a share of the
rows of jobs that all workers share, with weights averaged by all-reduce. Finished epochs are written to the folder of
checkpoints. Workers that Ray restarts resume from there, and the calling process reads the trained experts from there.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.choices import SplitBy
from hinet.classifier.estimator import HiNetClassifier, fit_by, training_of
from hinet.classifier.parameters import engine_for
from hinet.cluster.session import Cluster, connected
from hinet.engine.training.checkpoints import EXCHANGES, Assignment, Checkpoints, SharedRows
from hinet.engine.training.fit import Trainer
from hinet.engine.training.plan import PlanInput
from hinet.engine.training.rows import Job
from hinet.errors import HiNetError
from hinet.extras import require
from hinet.parameters import GB
from hinet.progress import EpochRecord, Progress

MAX_RESTARTS = 3  # restarts of the workers after one of them died
SECONDS_BETWEEN_REPORTS = 1.0


@dataclass(frozen=True)
class RayRunner:
    """Trains the experts of a classifier on a cluster.

    ``split`` is ``jobs`` to give whole experts to workers, with exactly the result of one machine; ``rows`` to share
    the rows of every expert and average its weights; or ``auto`` to share only as much as keeps all workers busy.
    """

    cluster: Cluster
    split: SplitBy = "auto"

    @property
    def fingerprint(self) -> str:
        """Values that the result depends on in addition to settings and data."""
        return "" if self.split == "jobs" else f"-{self.split}-{self.cluster.workers}-{EXCHANGES}"

    def run(self, data: PlanInput, checkpoints: Checkpoints, progress: Progress, *, watch: bool) -> None:
        """Train all jobs and leave their last states among the checkpoints; ``watch`` is that of the engine's fit."""
        require("torch", "training on a cluster")
        data = data._replace(settings=replace(data.settings, threads=1))
        checkpoints = replace(checkpoints, folder=checkpoints.folder.absolute())  # workers run in other folders
        with connected(self.cluster):
            import ray
            from ray.train import FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
            from ray.train.torch import TorchConfig, TorchTrainer

            failure = ""
            with _Reports.shown(progress) as reports, TemporaryDirectory(prefix="hinet-ray-") as folder:
                rows = ray.put(pickle.dumps(data, 5))
                task = _Task(rows, checkpoints, self.split, watch, reports.queue)
                trainer = TorchTrainer(
                    _work,
                    train_loop_config={"task": task},
                    torch_config=TorchConfig(backend="gloo"),
                    scaling_config=ScalingConfig(num_workers=self.cluster.workers),
                    run_config=RunConfig(
                        name="hinet", storage_path=folder, failure_config=FailureConfig(max_failures=MAX_RESTARTS)
                    ),
                )
                try:
                    trainer.fit()
                except TrainingFailedError as error:
                    failure = str(error).strip().rpartition("\n")[2]
            if reports.error:  # the cause of a failure, if a worker could report it
                raise HiNetError(reports.error)
            if failure:
                raise HiNetError(
                    f"the workers ended {MAX_RESTARTS + 1} times ({failure}); finished epochs are kept, and the same "
                    "command resumes from them"
                )


def fit_on_cluster(
    classifier: HiNetClassifier,
    cluster: Cluster,
    X: Any,
    y: Any,
    *,
    sample_weight: Any = None,
    valid: tuple[Any, Any] | None = None,
    split: SplitBy = "auto",
) -> HiNetClassifier:
    """Fit a classifier as its ``fit`` does, with experts trained by the workers of a cluster.

    Raises
    ------
    HiNetError
        If the cluster cannot be used, or the classifier is not one of the fused engine.
    """
    if engine_for(classifier.get_params(deep=False)) == "torch":
        raise HiNetError("`cluster` trains the fused engine; torch networks train under torchrun, see docs/cluster.md")
    if cluster.threads > 1:
        raise HiNetError("a worker trains in one thread; leave `threads` out, and give more `workers`")
    if classifier.warm_start and classifier.__sklearn_is_fitted__():
        raise HiNetError("a cluster trains a new model; set `warm_start=False`, or continue with partial_fit")
    with connected(cluster):
        return fit_by(
            classifier, training_of(classifier, X, y, sample_weight, valid=valid, runner=RayRunner(cluster, split))
        )


class _Task(NamedTuple):
    """The task of a worker."""

    data: Any  # reference to the pickled rows
    checkpoints: Checkpoints
    split: SplitBy
    watch: bool
    reports: Any  # queue


class TorchGroup:
    """The workers of this run, connected by torch."""

    def __init__(self) -> None:
        from torch import distributed

        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def add(self, array: NDArray[np.float32]) -> None:
        """Replace an array by its sum over all workers."""
        import torch

        torch.distributed.all_reduce(torch.from_numpy(array))


def _work(config: dict[str, Any]) -> None:
    """Do the part of a worker in all jobs."""
    import ray

    task: _Task = config["task"]
    group = TorchGroup()
    reporter = _Reporter(task.reports)
    if not reporter.is_heard():
        return  # a worker failed: training again would fail in the same way
    try:
        data: PlanInput = pickle.loads(ray.get(task.data))
        plan = data.plan()
        jobs = plan.jobs()
        assignment = Assignment.of(
            [job.work() for job in jobs], [bool(job.averaged()) for job in jobs], group.size, task.split
        )
        kept = replace(task.checkpoints, keep_last=True)

        def train(jobs: list[Job], checkpoints: Checkpoints) -> None:
            rows = plan.context.data.rows.row_count
            Trainer(plan, jobs, rows, reporter, checkpoints, task.watch).run()

        if group.rank == 0:
            reporter.plan(sum(job.epochs for job in jobs), plan.context.data.rows.row_count, len(assignment.shared))
        for number in assignment.shared:
            jobs[number].shared = SharedRows(group, jobs[number].averaged())
            train([jobs[number]], replace(kept, read_only=group.rank > 0))
            if group.rank == 0:
                shared = jobs[number].shared
                volume = 0 if shared is None else shared.volume
                reporter.message(f"{jobs[number].name}: {volume / GB:.2f} GB exchanged by each worker")
        train([jobs[number] for number, owner in assignment.owner.items() if owner == group.rank], kept)
    except HiNetError as error:
        reporter.failed(str(error))
        if group.size > 1:  # the others may wait for this worker: Ray ends and restarts all of them
            raise HiNetError(str(error)) from None  # errors with more arguments cannot be sent


class _Reporter(Progress):
    """Sends progress from a worker, row counts at most once per second."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self._rows, self._sent = 0, time.monotonic()

    def is_heard(self) -> bool:
        """Return whether reports are still shown; they end when a worker fails."""
        from ray.exceptions import RayActorError

        try:
            self._queue.qsize()
        except RayActorError:
            return False
        return True

    def plan(self, epochs: int, rows: int, shared: int) -> None:
        """Send the number of epochs, rows and shared experts."""
        self._queue.put(("plan", (epochs, rows, shared)))

    def message(self, text: str) -> None:
        """Send a message."""
        self._queue.put(("message", (text,)))

    def advanced(self, rows: int) -> None:
        """Count rows."""
        self._rows += rows
        if time.monotonic() - self._sent >= SECONDS_BETWEEN_REPORTS:
            self._send_rows()

    def epoch_done(self, record: EpochRecord) -> None:
        """Send the record."""
        self._send_rows()
        self._queue.put(("epoch_done", (record,)))

    def failed(self, message: str) -> None:
        """Send an error for the user."""
        self._queue.put(("failed", (message,)))

    def _send_rows(self) -> None:
        self._queue.put(("advanced", (self._rows,)))
        self._rows, self._sent = 0, time.monotonic()


class _Reports:
    """Shows the reports of workers, in a thread of the process that waits for them."""

    def __init__(self, progress: Progress) -> None:
        from ray.util.queue import Queue

        self.queue = Queue(actor_options={"num_cpus": 0})
        self._progress, self.error = progress, ""
        self._epochs: set[tuple[str, int]] = set()  # shared jobs are reported by all workers
        self._is_started = False
        self._thread = threading.Thread(target=self._show, daemon=True)

    @classmethod
    @contextmanager
    def shown(cls, progress: Progress) -> Iterator[_Reports]:
        """Yield reports, and show them until the block ends; ``error`` is then that of a worker, if one failed."""
        from ray.exceptions import RayActorError

        reports = cls(progress)
        reports._thread.start()
        try:
            yield reports
        finally:
            with suppress(RayActorError):  # a worker failed, and no reports are shown any longer
                reports.queue.put(("end", ()))
            reports._thread.join()
            progress.finished()
            reports.queue.shutdown(force=True)

    def _show(self) -> None:
        import ray

        while True:
            what, values = self.queue.get()
            if what == "end":
                return
            if what == "failed":
                self.error = values[0]
                ray.kill(self.queue.actor)  # the workers notice that
                return
            if what == "plan":
                self._start(*values)
            elif what != "epoch_done":
                getattr(self._progress, what)(*values)
            elif (epoch := (values[0].part, values[0].epoch)) not in self._epochs:
                self._epochs.add(epoch)
                self._progress.epoch_done(values[0])

    def _start(self, epochs: int, rows: int, shared: int) -> None:
        if self._is_started:
            self._progress.message("a worker died; the workers resume from the last checkpoints")
            return
        self._is_started = True
        if shared:
            self._progress.message(f"workers share the rows of {shared} experts and average their weights")
        self._progress.started(epochs, rows)
