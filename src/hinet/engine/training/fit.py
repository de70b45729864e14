"""Training of the fused model: every expert on its own cost, side by side, then mixed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.spill import Spill
from hinet.engine.model.fused import FusedModel
from hinet.engine.settings import EngineSettings
from hinet.engine.training.checkpoints import CHECKPOINT_EVERY, Checkpoints
from hinet.engine.training.plan import Blend, PlanInput, ValidationRows
from hinet.engine.training.title_units import TitleColumns
from hinet.engine.training.trainer import Trainer
from hinet.errors import HiNetError
from hinet.parameters import PATH, instance
from hinet.progress import Progress, SilentProgress
from hinet.taxonomy import Layers

HELD = 10  # one row in so many is held out of a rehearsal
SECONDS_OF_WORKERS = 5.0  # between two checkpoints, of which a caller knows nothing


class Runner(Protocol):
    """Trains experts elsewhere, in several processes."""

    @property
    def mark(self) -> str:
        """What the result depends on besides settings and data; empty if on nothing."""

    def run(self, data: PlanInput, checkpoints: Checkpoints, progress: Progress, *, watch: bool) -> None:
        """Train all jobs, and leave their last states among the checkpoints; ``watch`` is as in :func:`fit`."""


def fit(
    rows: Any,
    traces: Traces | Layers,
    settings: EngineSettings | None = None,
    *,
    valid: ValidationRows | None = None,
    sample_weight: NDArray[np.floating[Any]] | None = None,
    start: FusedModel | None = None,
    titles: TitleColumns | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 0.0,
    watch: bool = False,
    runner: Runner | None = None,
) -> FusedModel:
    """Train a model on CSR ``rows`` towards the labels of ``traces``.

    Rows that do not fit in memory are a :class:`hinet.data.spill.Spill`, which has their labels, with the layers of
    these instead of traces. Deep experts then train on one block of them after the other, the wide one on a sample.

    The result depends on the settings and the data alone, not on the number of threads. That of a spill depends on
    memory as well, which decides how large the sample is: ``memory_limit`` of the settings, or else the memory of the
    machine. Set it for the same result on every machine.

    With ``checkpoint``, a folder, finished epochs are kept there, every so many seconds, and a run that was broken off
    goes on from them to the same result. With ``start``, a model over the same layers, training goes on from it: its
    experts learn from these rows, its shape stays. With ``watch``, every epoch records the accuracy of its expert alone
    on validation rows. With a ``runner``, other processes train the experts. With ``titles``, the dense columns of
    titles of labels, rows with one label each are also compared with these, unless training goes on from a model.

    Raises
    ------
    HiNetError
        If rows and labels do not fit, a value is not finite, or training would take more than the memory limit.
    """
    settings, progress = settings or EngineSettings(), progress or SilentProgress()
    instance(EngineSettings, "EngineSettings").validate("settings", settings)
    if not isinstance(rows, Spill):
        instance(Traces, "Traces").validate("traces", traces)
    if settings.patience is not None and valid is None:
        raise HiNetError("patience looks at validation rows; give some, or leave it out")
    if start is not None and checkpoint is not None:
        raise HiNetError("training that goes on from a model keeps no checkpoint; leave one of the two out")
    if start is not None and runner is not None:
        raise HiNetError("training that goes on from a model runs in one process; leave one of the two out")
    data = PlanInput(rows, traces, settings, sample_weight, valid, titles)
    plan = data.plan(start)
    progress.message(f"{plan.memory}{plan.told_of_sample()}")
    plan.memory.check(settings.memory_limit)
    seen = plan.valid_accuracy if watch or settings.patience is not None else None
    every = CHECKPOINT_EVERY.validate("checkpoint_every", checkpoint_every)
    with ExitStack() as stack:
        if runner is not None and checkpoint is None:
            checkpoint = stack.enter_context(TemporaryDirectory(prefix="hinet-"))
            every = max(every, SECONDS_OF_WORKERS)
        kept = None
        if checkpoint is not None:
            fingerprint = plan.fingerprint() + ("" if runner is None else runner.mark)
            kept = Checkpoints(PATH.validate("checkpoint", checkpoint), fingerprint, every)
        if runner is not None and kept is not None:
            runner.run(data, kept, progress, watch=seen is not None)
            progress = SilentProgress()  # what is left to do is to take up what others have done
        jobs = plan.jobs()
        if runner is not None and kept is not None:
            kept.check(jobs)
        trainer = Trainer(jobs, plan.rows_of_epoch(), settings, progress, kept, plan.valid_cost, seen)
        trainer.run()
    if not plan.wants_rehearsal():
        return plan.mixed(trainer.history)
    progress.message("training once more with some rows held out, to learn how much each expert counts")
    return plan.mixed(trainer.history, _rehearsed(data))


def _rehearsed(data: PlanInput) -> Blend:
    """Return the mix that validation rows would choose, had some of the rows been held out for them."""
    assert isinstance(data.traces, Traces)
    titles = 0 if data.titles is None else len(data.titles.nodes)  # the last rows; each would be compared with itself
    order = np.random.default_rng(data.settings.seed).permutation(data.rows.shape[0] - titles)
    held = np.sort(order[: len(order) // HELD])
    rest = np.setdiff1d(np.arange(data.rows.shape[0]), held)
    weight = None if data.sample_weight is None else data.sample_weight[rest]
    valid = ValidationRows(data.rows[held], data.traces.take(held))
    plan = PlanInput(data.rows[rest], data.traces.take(rest), data.settings, weight, valid, data.titles).plan()
    trainer = Trainer(plan.jobs(), plan.rows_of_epoch(), data.settings, SilentProgress(), None, plan.valid_cost, None)
    trainer.run()
    return plan.blend(plan.trained())
