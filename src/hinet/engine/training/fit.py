"""Training of the fused model: every expert on its own cost, side by side, then mixed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix, check_count, is_sparse, validate_weights
from hinet.engine.model.column_kernels import mean_sizes
from hinet.engine.model.experts import DeepExpert, Experts, Floats, Prototypes, WideExpert
from hinet.engine.model.fused import FusedModel, with_merged
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.targets import Goals
from hinet.engine.search.search import Search
from hinet.engine.settings import MOST_FLAT_LABELS, EngineSettings, plan_memory
from hinet.engine.training.checkpoints import CHECKPOINT_EVERY, Checkpoints, fingerprint_of
from hinet.engine.training.cooccurrence import has_features_to_spare, known_as, merged_columns, prototypes
from hinet.engine.training.deep import DeepPlan, DeepTask, GroupLesson, LabelLesson, LabelTargets, Lesson
from hinet.engine.training.jobs import Task, TrainingRows
from hinet.engine.training.mixing import learned_mix, usual_mix
from hinet.engine.training.taxonomy_transfer import awake
from hinet.engine.training.trainer import Runner
from hinet.engine.training.wide import WidePlan, WideTraining, wide_training
from hinet.engine.training.wide_kernels import prune_slots
from hinet.errors import HiNetError
from hinet.metrics import accuracy
from hinet.parameters import PATH, instance
from hinet.progress import EpochRecord, Progress, SilentProgress

FLAT_SEEDS = 1 << 10  # the seeds of flat experts, apart from those of deep ones
SLOT_OF_LEARNED = 2.0  # smaller lets new rows overwrite old ones, larger keeps them from being learned
SMOOTHING = 0.5  # rows added to every option before shares are taken
TEMPERATURES = (20.0, 40.0)  # lengths of prototypes that are tried
MOST_WATCHED = 2_000  # validation rows whose accuracy is told after every epoch
LEAST_GAIN = 0.002  # in the cost of validation rows, for prototypes to be worth their while


@dataclass(frozen=True)
class ValidationRows:
    """Rows that are not trained on: the mix is learned from them, and patience looks at them."""

    rows: Any  # CSR
    traces: Traces


def fit(
    rows: Any,
    traces: Traces,
    settings: EngineSettings | None = None,
    *,
    valid: ValidationRows | None = None,
    sample_weight: NDArray[np.floating[Any]] | None = None,
    start: FusedModel | None = None,
    progress: Progress | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 0.0,
    watch: bool = False,
) -> FusedModel:
    """Train a model on CSR ``rows`` towards the labels of ``traces``.

    The result depends on the settings and the data alone, not on the number of threads. With ``checkpoint``, a folder,
    finished epochs are kept there, every so many seconds, and a run that was broken off goes on from them to the same
    result. With ``start``, a model over the same layers, training goes on from it: its experts learn from these rows,
    its shape stays. With ``watch``, every epoch records the accuracy of its expert alone on validation rows.

    Raises
    ------
    HiNetError
        If rows and labels do not fit, a value is not finite, or training would take more than the memory limit.
    """
    settings, progress = settings or EngineSettings(), progress or SilentProgress()
    instance(EngineSettings, "EngineSettings").validate("settings", settings)
    instance(Traces, "Traces").validate("traces", traces)
    if settings.patience is not None and valid is None:
        raise HiNetError("patience looks at validation rows; give some, or leave it out")
    if start is not None and checkpoint is not None:
        raise HiNetError("training that goes on from a model keeps no checkpoint; leave one of the two out")
    plan = _Plan(rows, traces, settings, sample_weight, valid, start)
    progress.message(str(plan.memory))
    plan.memory.check(settings.memory_limit)
    kept = None
    if checkpoint is not None:
        every = CHECKPOINT_EVERY.validate("checkpoint_every", checkpoint_every)
        kept = Checkpoints(PATH.validate("checkpoint", checkpoint), plan.fingerprint(), every)
    seen = plan.valid_accuracy if watch or settings.patience is not None else None
    runner = Runner(plan.tasks(), plan.train.row_count, settings, progress, kept, plan.valid_cost, seen)
    runner.run()
    return plan.mixed(runner.history)


class _Plan:
    """The data in the form kernels read, the experts to be, and how they become a model."""

    def __init__(
        self,
        rows: Any,
        traces: Traces,
        settings: EngineSettings,
        sample_weight: NDArray[np.floating[Any]] | None,
        valid: ValidationRows | None,
        start: FusedModel | None,
    ) -> None:
        self.settings, self.start = settings, start
        self.layers = traces.layers
        columns = int(rows.shape[1]) if getattr(rows, "ndim", 0) == 2 else 0
        matrix, self.goals = _checked(rows, traces, self.layers)
        if sample_weight is not None:
            self.goals = self.goals.weighted(validate_weights(sample_weight, len(traces)))
        self.valid, self.watched = None, None
        if valid is not None:
            self.valid = _checked(valid.rows, valid.traces, self.layers, "validation ")
            if valid.rows.shape[1] != columns:
                raise HiNetError(f"validation rows have {valid.rows.shape[1]:,} features and training rows {columns:,}")
            seen = np.linspace(0, len(valid.traces) - 1, min(len(valid.traces), MOST_WATCHED)).astype(np.int64)
            self.watched = ValidationRows(valid.rows[seen], valid.traces.take(seen))
        if start is not None:
            self._check_start(start, columns)
        self.groups = Groups.of(self.layers)
        labels = int(self.layers.ends.sum())
        self.members = 1 if start is not None else settings.members_for(matrix.row_count)
        self.width = settings.width_for(self.members, labels) if start is None else start.experts.deep.width
        self.flat_width = settings.flat_width_for(labels) if start is None else start.experts.flat.width
        deep = plan_memory(features=columns, outputs=self.groups.rows, width=self.width * self.members)
        deep.check(settings.memory_limit)  # before anything else takes room for every feature
        counts = self.goals.option_counts()
        to_spare = start is None and has_features_to_spare(matrix, columns)
        self.dropout = settings.dropout_for(to_spare=to_spare)
        self.merged = merged_columns(matrix, columns) if to_spare else None if start is None else start.merged
        self.features = columns
        if self.merged is not None:
            self.features = len(start.experts.deep.embedding) if start else int(self.merged.max()) + 1
            matrix = with_merged(matrix, self.merged, self.features)
            if self.valid is not None:
                self.valid = with_merged(self.valid[0], self.merged, self.features), self.valid[1]
        self.train = TrainingRows.of(matrix, self.goals.arrays, self.groups, self._adjustment(counts))
        self.wide = self._wide_training(matrix)
        self.spans = LabelSpans.of(self.layers) if self.layers.taxonomy.is_tree else LabelSpans.none(self.layers)
        self.has_flat = (
            settings.wants_flat(labels, self.train.row_count, self.layers.taxonomy.is_tree)
            if start is None
            else start.mix.flat > 0
        )
        self.memory = plan_memory(
            features=self.features,
            outputs=self.groups.rows,
            width=self.width * self.members,
            wide_weights=self.wide.weights if self.wide else 0,
            wide_scratch=self.wide.scratch if self.wide else 0,
            labels=labels if self.has_flat else 0,
            flat_width=self.flat_width * self.members,
        )

    def _slot(self, usual: float) -> float:
        """Return what sums of squared gradients start from: more if the weights have learned already."""
        return usual if self.start is None else max(usual, SLOT_OF_LEARNED)

    def _check_start(self, start: FusedModel, columns: int) -> None:
        if not start.layers.same_as(self.layers):
            raise HiNetError("the model to go on from has other layers than the rows; carry it over to them first")
        if start.features != columns:
            raise HiNetError(f"the model to go on from has {start.features:,} features, the rows {columns:,}")

    def _adjustment(self, counts: NDArray[np.float64]) -> Floats:
        """Return the shift of the training logits: the log share of each option, none for options without rows."""
        group, option = self.groups.row_groups(), self.groups.row_options()
        smooth = counts[option] + SMOOTHING
        share = np.log(smooth / np.bincount(group, smooth, len(self.layers.node))[group])
        return np.where(counts[option] > 0, self.settings.adjustment * share, 0).astype(np.float32)

    def _wide_training(self, matrix: SparseMatrix) -> WideTraining | None:
        settings = self.settings
        before = None if self.start is None else self.start.experts.wide
        if not settings.wide or (self.start is not None and not self.start.mix.wide):
            return None
        known = known_as(matrix, self.features, settings.wide_buckets) if before is None else before.known_as
        plan = WidePlan(
            known,
            int(known.max(initial=-1)) + 1,
            settings.epochs_of_wide(self.train.row_count),
            settings.wide_rate,
            self._slot(settings.wide_slot),
            settings.seed,
            settings.thread_count,
        )
        renamed = matrix._replace(indices=known[matrix.indices])
        return wide_training(self.train._replace(rows=renamed), self.goals, plan, before)

    def fingerprint(self) -> str:
        """Return what a checkpoint is recognised by."""
        parts = [
            self.settings.shaping(),
            self.dropout,
            self.features,
            *self.groups,
            *self.train.rows,
            *self.goals.arrays,
        ]
        if self.valid is not None and self.settings.patience is not None:
            parts += [*self.valid[0], *self.valid[1].arrays]
        return fingerprint_of(parts)

    def tasks(self) -> list[Task]:
        """Return the work to do, the longest first."""
        self._deep, self._flat = self._deep_tasks(), self._flat_tasks()
        tasks: list[Task] = [*self._deep, *self._flat, *(self.wide.tasks() if self.wide else ())]
        return sorted(tasks, key=lambda task: -task.work())

    def _deep_tasks(self) -> list[DeepTask]:
        lesson, width = GroupLesson(self.train), self.width
        outputs = self.groups.rows
        before = None if self.start is None else self.start.experts.deep
        return [self._deep_task(f"deep {at + 1}", lesson, outputs, width, at, before) for at in range(self.members)]

    def _flat_tasks(self) -> list[DeepTask]:
        if not self.has_flat:
            return []
        settings, labels = self.settings, len(self.spans.neuron)
        targets = LabelTargets.of(self.goals, self.spans, settings.flat_upper)
        adjustment = _adjustment_of_labels(
            np.bincount(targets.label, targets.share, labels).astype(float), settings.adjustment
        )
        lesson = LabelLesson(self.train.rows, targets, adjustment)
        width, members = self.flat_width, range(self.members)
        before = None if self.start is None else awake(self.start.experts.flat, np.unique(targets.label))
        return [self._deep_task(f"flat {at + 1}", lesson, labels, width, FLAT_SEEDS + at, before) for at in members]

    def _deep_task(
        self, name: str, lesson: Lesson, outputs: int, width: int, number: int, before: DeepExpert | None
    ) -> DeepTask:
        settings = self.settings
        epochs = settings.epochs_of_deep(self.train.row_count)
        plan = DeepPlan(epochs, settings.deep_rate, self._slot(settings.deep_slot), self.dropout)
        random = np.random.default_rng([settings.seed, number, 1 << 20])
        expert = DeepExpert.start(self.features, outputs, width, random) if before is None else before.in_floats()
        return DeepTask(name, lesson, expert, plan, (settings.seed, number))

    def valid_cost(self, task: Task) -> float | None:
        """Return the cost of the validation rows by the task's expert alone; of the wide expert, nothing."""
        if self.valid is None or not isinstance(task, DeepTask):
            return None
        rows, goals = self.valid
        return learned_mix(rows, goals, self.groups, self._alone(task))[1]

    def valid_accuracy(self, task: Task) -> float | None:
        """Return the accuracy of some validation rows by the task's expert alone; of the wide expert, nothing."""
        if self.watched is None or not isinstance(task, DeepTask):
            return None
        model = FusedModel(self.layers, self._alone(task), merged=self.merged)
        found = Search(model, 1).traces(self.watched.rows)
        return accuracy(self.watched.traces, found.traces)

    def _alone(self, task: DeepTask) -> Experts:
        """Return the expert of a task as if there were no others."""
        deep = task in self._deep
        experts = self._experts([task.expert], []) if deep else self._experts([], [task.expert])
        return experts._replace(mix=np.array([deep, 0, not deep, 0], np.float32))

    def _experts(self, deep: list[DeepExpert], flat: list[DeepExpert]) -> Experts:
        outputs, labels = self.groups.rows, len(self.spans.neuron)
        return Experts(
            DeepExpert.joined(deep).quantised() if deep else DeepExpert.none(self.features, outputs),
            WideExpert.none(self.features, len(self.layers.node), outputs),
            DeepExpert.joined(flat).quantised() if flat else DeepExpert.none(self.features, labels),
            Prototypes.none(self.features),
            self.spans,
            usual_mix(wide=self.settings.wide, flat=bool(flat)),
        )

    def mixed(self, history: list[EpochRecord]) -> FusedModel:
        """Return the model of the trained experts, mixed as the validation rows have it."""
        experts = self._experts([task.expert for task in self._deep], [task.expert for task in self._flat])
        if self.wide is not None:
            wide = self.wide.expert()
            experts = experts._replace(wide=self._pruned(wide) if self.start is None else wide)
        if self.start is not None:  # what other rows taught it stays, prototypes and mix included
            experts = experts._replace(prototypes=self.start.experts.prototypes, mix=self.start.experts.mix)
        elif self.valid is not None and len(self.valid[1]):
            experts = self._tuned(experts)
        return FusedModel(self.layers, experts, tuple(history), merged=self.merged)

    def _pruned(self, wide: WideExpert) -> WideExpert:
        """Drop weights that hardly count, going by the mean of each feature where it is not zero."""
        usual = mean_sizes(self.train.rows, wide.known_as)
        feature, offsets, weights, before = prune_slots(
            wide.feature, wide.weight_offsets, wide.weights, usual, self.settings.wide_prune
        )
        return wide._replace(
            slot_offsets=before[wide.slot_offsets], feature=feature, weight_offsets=offsets, weights=weights
        )

    def _tuned(self, experts: Experts) -> Experts:
        """Mix the experts by the validation rows, with prototypes where these help."""
        assert self.valid is not None
        rows, goals = self.valid
        mix, least = learned_mix(rows, goals, self.groups, experts)
        best = experts._replace(mix=mix)
        few = 0 < len(self.spans.neuron) <= MOST_FLAT_LABELS  # all labels are scored for every row
        for temperature in TEMPERATURES if few else ():
            known = prototypes(self.train.rows, self.features, self.goals, self.spans, temperature)
            start = np.array([*experts.mix[:3], 0.2], np.float32)
            tried = experts._replace(prototypes=known, mix=start)
            mix, cost = learned_mix(rows, goals, self.groups, tried)
            if mix[3] and cost < least - LEAST_GAIN:
                best, least = tried._replace(mix=mix), cost
        return best


def _adjustment_of_labels(counts: NDArray[np.float64], strength: float) -> Floats:
    """Return the shift of the training logits of labels with so many rows, none for labels without rows."""
    share = np.log((counts + SMOOTHING) / (counts + SMOOTHING).sum())
    return np.where(counts > 0, strength * (share - share.max()), 0).astype(np.float32)


def _checked(rows: Any, traces: Traces, layers: Any, kind: str = "") -> tuple[SparseMatrix, Goals]:
    """Return rows and labels in the form kernels read, or raise HiNetError if they cannot be used."""
    if not is_sparse(rows):
        raise HiNetError(f"the fused engine reads {kind}rows of a CSR matrix, got {type(rows).__name__}")
    matrix = SparseMatrix.of(rows)
    check_count(matrix.row_count, len(traces))
    if not len(traces):
        raise HiNetError(f"there are no {kind}rows")
    if not traces.layers.same_as(layers):
        raise HiNetError(f"the {kind}rows have other layers than the training rows; build both from the same Layers")
    empty = np.flatnonzero(np.diff(traces.row_offsets) == 0)
    if len(empty):
        raise HiNetError(f"{kind}row {int(empty[0])}: no label ({len(empty):,} such rows); leave these rows out")
    return matrix, Goals.of(traces)
