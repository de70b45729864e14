"""The plan of a training run: the data in the form that kernels read, the experts to train, and the model they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import (
    EXPERTS,
    NEIGHBOURS,
    USUAL_NEIGHBOURS,
    Experts,
    Floats,
    Memory,
    Mix,
    usual_mix,
)
from hinet.engine.model.experts.neighbours import with_nearest
from hinet.engine.model.fused import FusedModel, with_merged
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.search.best_first import TraceSearch
from hinet.engine.settings import FEW_ROWS, LONG_ROW, MIN_ROWS_PER_LABEL, EngineSettings, MemoryPlan, plan_memory
from hinet.engine.training.checkpoints import fingerprint_of
from hinet.engine.training.mixing import (
    FEW_ROWS_NEIGHBOURS,
    FEW_ROWS_SCALE,
    Blend,
    MixCost,
    blend,
    blended,
    learned_mix,
)
from hinet.engine.training.neighbours import TextVectors, memory_of
from hinet.engine.training.rows import (
    SMOOTHING,
    ExpertTraining,
    Job,
    RowSums,
    TitleColumns,
    TrainingContext,
    TrainingRows,
    TrainingSet,
    ValidationRows,
    checked_rows,
    training_rows,
    whitening,
)
from hinet.errors import HiNetError
from hinet.metrics import accuracy
from hinet.parameters import GB, total_memory
from hinet.progress import EpochRecord
from hinet.ragged import evenly_spaced
from hinet.taxonomy import STOP, Layers

MEMORY_SHARE = 0.5  # maximum size of vectors that only neighbours read, relative to the embeddings
MAX_MONITORED = 2_000  # validation rows whose accuracy is recorded after every epoch
MIN_HOLDOUT_ROWS, MAX_HOLDOUT_ROWS = 500, 20_000  # numbers of training rows for which a holdout decides the mix
MAX_CHEAP_LABELS = 128  # a second training is cheap for up to this number of labels


class PlanInput(NamedTuple):
    """The arguments of a training run."""

    rows: Any
    traces: Traces | Layers
    settings: EngineSettings
    sample_weight: NDArray[np.floating[Any]] | None
    valid: ValidationRows | None
    titles: TitleColumns | None = None
    vectors: TextVectors | None = None

    def plan(self, start: FusedModel | None = None) -> TrainingPlan:
        """Return the plan, which may train ``start`` further."""
        rows = training_rows(self.rows, self.traces, self.settings, self.sample_weight)
        plan = TrainingPlan.of(_context(rows, self, start))
        while not plan.fits() and (smaller := plan.context.rows.smaller()) is not None:
            groups, adjustment = plan.context.groups, plan.context.data.adjustment
            data = TrainingSet.of(smaller.matrix, smaller.targets.arrays, groups, adjustment)
            has_margin = plan.context.has_margin and smaller.is_whole
            plan = TrainingPlan.of(replace(plan.context, rows=smaller, data=data, has_margin=has_margin))
        return plan


@dataclass(frozen=True, eq=False)
class TrainingPlan:
    """The experts to train, with the memory that they take."""

    context: TrainingContext
    trainings: Mapping[str, ExpertTraining]  # keys are names of experts
    memory: MemoryPlan

    @classmethod
    def of(cls, context: TrainingContext) -> TrainingPlan:
        """Return the plan for a context."""
        planned = [record for record in EXPERTS if context.trains(record.name)]
        trainings = {record.name: resolve_name(record.training)(context) for record in planned}
        return cls(context, trainings, sum((each.memory() for each in trainings.values()), MemoryPlan(0, 0, 0, 0)))

    def fits(self) -> bool:
        """Return whether the plan and the rows in memory fit."""
        limit = self.context.settings.memory_limit
        needed = self.memory.total + sum(array.nbytes for array in self.context.data.rows)
        return needed <= (total_memory() if limit is None else limit * GB)

    def sample_note(self) -> str:
        """Return a note on rows that are not in memory."""
        rows = self.context.rows
        if not self.context.is_streamed:
            return ""
        sample = self.context.data.rows.row_count
        wide = "" if "wide" not in self.trainings or rows.is_whole else f", the wide expert on {sample:,} of them"
        epochs = self.context.deep_epochs
        times = "once" if epochs == 1 else f"{epochs} times"
        return f"; deep experts train on all {rows.row_count:,} rows {times}{wide}"

    def fingerprint(self) -> str:
        """Return a text that identifies the checkpoints of this run."""
        context = self.context
        parts = [
            context.settings.shaping(),
            context.dropout,
            context.plain_dropout,
            context.features,
            *context.groups,
            *context.rows.fingerprint(),
        ]
        if context.valid is not None and context.settings.patience is not None:
            parts += [*context.valid[0], *context.valid[1].arrays]
        return fingerprint_of(parts)

    def jobs(self) -> list[Job]:
        """Return all jobs, the longest first."""
        jobs = [job for training in self.trainings.values() for job in training.jobs()]
        return sorted(jobs, key=lambda job: -job.work())

    def needs_holdout(self) -> bool:
        """Return whether a second training with held-out rows decides the mix: it does if rows or labels are few."""
        context = self.context
        if context.start is not None or context.valid is not None or context.settings.is_quick:
            return False
        if context.layers.multilabel or context.is_streamed or not {"wide", "margin"} & {*self.trainings}:
            return False
        labels, is_long = len(context.spans.neuron), context.data.rows.mean_features > LONG_ROW
        enough = context.row_count >= max(FEW_ROWS, MIN_ROWS_PER_LABEL * labels)
        if context.has_flat and enough and (labels > MAX_CHEAP_LABELS or is_long):
            return False
        return MIN_HOLDOUT_ROWS <= context.row_count <= MAX_HOLDOUT_ROWS  # titles are not held out

    def valid_cost(self, job: Job) -> float | None:
        """Return the cost of the validation rows by the expert of a job alone, if it can be evaluated alone."""
        if self.context.valid is None or (experts := self._alone(job)) is None:
            return None
        rows, targets = self.context.valid
        return learned_mix(MixCost(rows, targets, self.context.groups, experts))[1]

    def valid_accuracy(self, job: Job) -> float | None:
        """Return the accuracy of monitored rows by the expert of a job alone, if it can be evaluated alone."""
        monitored = self.context.monitored
        if monitored is None or (experts := self._alone(job)) is None:
            return None
        model = FusedModel(self.context.layers, experts, merged=self.context.rows.merged)
        rows = SparseMatrix.of(monitored.rows).without_last(
            monitored.rows.shape[1], self.context.memory.private_columns
        )
        best = TraceSearch(model).find(model.read(rows), threads=1)
        return accuracy(monitored.traces, best.traces(model.layers))

    def _alone(self, job: Job) -> Experts | None:
        for name, training in self.trainings.items():
            if (expert := training.alone(job)) is not None:
                return self._experts({name: expert})._replace(mix=np.array(Mix(**{name: 1.0}), np.float32))
        return None

    def _experts(self, trained: Mapping[str, Any]) -> Experts:
        """Return experts in the default mix, with empty ones where none is given."""
        context = self.context
        arrays = {record.name: trained.get(record.name, None) or record.empty(context.sizes) for record in EXPERTS}
        mix = usual_mix(
            wide="wide" in self.trainings,
            flat="flat" in trained,
            margin="margin" in trained,
            long=context.data.rows.mean_features > LONG_ROW,
            vectors=context.rows.whitening is not None,
            several=context.layers.multilabel,
        )
        if len(arrays["neighbours"].label):
            mix[NEIGHBOURS] = USUAL_NEIGHBOURS
            if context.row_count < MIN_HOLDOUT_ROWS:
                mix[NEIGHBOURS] = FEW_ROWS_NEIGHBOURS
                mix *= np.float32(FEW_ROWS_SCALE)
        return Experts(**arrays, spans=context.spans, mix=mix)

    def trained(self) -> Experts:
        """Return the trained experts in the default mix."""
        return self._experts({name: training.trained() for name, training in self.trainings.items()})

    def blend(self) -> Blend:
        """Return the blend of the trained experts that the validation rows choose."""
        return blend(self.context, self.trained(), self.trainings)

    def model(self, history: list[EpochRecord], holdout_blend: Blend | None = None) -> FusedModel:
        """Return the trained model, mixed by the validation rows or as a holdout chose."""
        context, experts = self.context, self.trained()
        if context.start is not None:
            experts = experts._replace(mix=context.start.experts.mix)
        elif context.valid is not None and len(context.valid[1]):
            experts = blended(context, experts, blend(context, experts, self.trainings), self.trainings)
        elif holdout_blend is not None:
            experts = blended(context, experts, holdout_blend, self.trainings)
        return FusedModel(context.layers, experts, tuple(history), merged=context.rows.merged)


def _context(rows: TrainingRows, data: PlanInput, start: FusedModel | None) -> TrainingContext:
    """Return the data in the form that kernels read, and the sizes of the experts."""
    settings, valid, layers, columns = data.settings, data.valid, rows.targets.layers, rows.columns
    _check_layers(settings, start, layers, columns)
    checked, monitored = _checked_validation(valid, layers, columns)
    groups, starts_fresh = Groups.of(layers), start is None
    spans = _spans(data, layers, start)
    compared, private = rows, _private_columns(data, start)
    if private:
        rows = rows.without_last(private)
    has_dense = rows.matrix.dense.shape[1] > 0  # dropping features then costs accuracy
    members = settings.members_for(rows.row_count, rows.matrix.mean_features, dense=has_dense) if starts_fresh else 1
    width = start.experts.deep.width if start else settings.width_for(members, int(layers.ends.sum()))
    # checked before anything else allocates an array with one element per feature
    plan_memory(features=rows.columns, outputs=groups.rows, width=width * members).check(settings.memory_limit)
    sums = rows.sums()
    redundant = starts_fresh and sums.is_redundant
    merged = start.merged if start else _merged_columns(rows, sums)
    if merged is not None:
        rows = rows.with_merged(merged, len(start.experts.deep.embedding) if start else int(merged.max()) + 1)
    features = rows.columns
    memory = start.experts.neighbours if start else None
    if memory is None:
        room = int(MEMORY_SHARE * features * width * members) if private else None
        memory = memory_of(compared, data.vectors, spans.paths, settings.neighbours, room)
    checked, later = _compared_validation(valid, checked, memory, private, compared.columns)
    if merged is not None:
        checked = checked and (with_merged(checked[0], merged, features), checked[1])
        later = later and with_merged(later, merged, features)
    if settings.whiten and has_dense and starts_fresh and not layers.multilabel:
        arrays = rows.targets.arrays
        rows = rows.with_whitened(whitening(rows.matrix.dense, arrays.entry_target[arrays.row_offsets[:-1]]))
    log_shares = _log_shares(layers, groups, sums.options)
    adjustment = np.where(sums.options[groups.row_options()] > 0, np.float32(settings.adjustment) * log_shares, 0)
    titles = data.titles if starts_fresh and not layers.multilabel else None
    has_flat, has_margin = _label_experts(rows, titles, settings, start, sums, spans, features)
    if starts_fresh and layers.multilabel and has_margin:
        members = settings.members or 1
    return TrainingContext(
        settings=settings,
        start=start,
        rows=rows,
        data=TrainingSet.of(rows.matrix, rows.targets.arrays, groups, adjustment),
        groups=groups,
        spans=spans,
        sums=sums,
        prior=_prior(layers, groups, sums),
        log_shares=log_shares,
        titles=titles,
        memory=memory,
        members=members,
        has_flat=has_flat,
        has_margin=has_margin,
        dropout=settings.dropout_for(redundant=redundant, dense=has_dense),
        plain_dropout=settings.dropout_for(redundant=redundant),
        valid=checked,
        valid_unknown=None if valid is None else getattr(valid.rows, "unknown", None),
        later=later,
        monitored=monitored,
    )


def _spans(data: PlanInput, layers: Layers, start: FusedModel | None) -> LabelSpans:
    """Return the labels below each option, and the paths of labels if rows are compared with known texts."""
    spans = LabelSpans.of(layers) if start is None else start.experts.spans
    compares = data.vectors is not None and data.settings.neighbours and not layers.multilabel
    return spans.with_paths(layers) if compares else spans


def _private_columns(data: PlanInput, start: FusedModel | None) -> int:
    """Return the number of last columns of a row that only neighbours read."""
    if start is not None:
        return start.experts.neighbours.private_columns
    return data.vectors.width if data.vectors is not None and data.vectors.private else 0


def _merged_columns(rows: TrainingRows, sums: RowSums) -> NDArray[np.int32] | None:
    """Return the number of each column, the same for equal ones; None if columns stay apart.

    Columns of few rows are equal by chance, and merging them costs accuracy where there are dense columns.
    """
    if sums.columns is None or not sums.is_redundant or rows.matrix.dense.shape[1] or rows.row_count < FEW_ROWS:
        return None
    return sums.columns.merged()


def _label_experts(
    rows: TrainingRows,
    titles: TitleColumns | None,
    settings: EngineSettings,
    start: FusedModel | None,
    sums: RowSums,
    spans: LabelSpans,
    features: int,
) -> tuple[bool, bool]:
    """Return whether a flat expert and a margin expert are trained."""
    if start is not None:
        return start.mix.flat > 0, start.mix.margin > 0
    layers = rows.targets.layers
    has_flat = _wants_flat(settings, layers, sums.options, rows.row_count)
    size = len(spans.neuron), len(rows.matrix.indices), rows.row_count, features
    dense = rows.matrix.dense.shape[1] > 0
    count = 0 if titles is None else len(titles.nodes)
    wanted = settings.wants_margin(*size, layers, flat=has_flat, dense=dense, titles=count)
    return has_flat, rows.is_whole and wanted


def _checked_validation(
    valid: ValidationRows | None, layers: Layers, columns: int
) -> tuple[tuple[SparseMatrix, Any] | None, ValidationRows | None]:
    """Return validation rows in the form that kernels read, and those that are monitored."""
    if valid is None:
        return None, None
    checked = checked_rows(valid.rows, valid.traces, layers, "validation ")
    if valid.rows.shape[1] != columns:
        raise HiNetError(f"validation rows have {valid.rows.shape[1]:,} features and training rows {columns:,}")
    chosen = evenly_spaced(len(valid.traces), MAX_MONITORED)
    return checked, ValidationRows(valid.rows[chosen], valid.traces.take(chosen))


def _compared_validation(
    valid: ValidationRows | None, checked: tuple[SparseMatrix, Any] | None, memory: Memory, private: int, columns: int
) -> tuple[tuple[SparseMatrix, Any] | None, SparseMatrix | None]:
    """Return validation rows with their nearest labels; if only neighbours read vectors, without these, and later rows.

    Later rows have their nearest labels as well, as rows of texts after the training.
    """
    if valid is None or checked is None:
        return checked, None
    if private:
        return (checked[0].without_last(columns, private), checked[1]), _later_rows(valid, memory)
    compared = with_nearest(checked[0], columns, memory, getattr(valid.rows, "unknown", None))
    return (compared, checked[1]), None


def _later_rows(valid: ValidationRows, memory: Memory) -> SparseMatrix:
    """Return validation rows as later texts with their nearest labels, without private columns."""
    rows = valid.rows if valid.later is None else valid.later
    columns = rows.shape[1]
    near = with_nearest(SparseMatrix.of(rows), columns, memory, getattr(rows, "unknown", None))
    return near.without_last(columns, memory.private_columns)


def _check_layers(settings: EngineSettings, start: FusedModel | None, layers: Layers, columns: int) -> None:
    if settings.two_layers and not layers.multilabel:
        raise HiNetError("`two_layers` is for rows with several labels; leave it out")
    if start is None:
        return
    if not start.layers.same_as(layers):
        raise HiNetError("`start` has different layers from those of the rows; transfer it to them first")
    if start.features != columns:
        raise HiNetError(f"`start` has {start.features:,} features, the rows have {columns:,}")


def _wants_flat(settings: EngineSettings, layers: Layers, counts: NDArray[np.float64], rows: int) -> bool:
    """Return whether to train a flat expert; with several labels per row, only labels with rows count."""
    taken = counts[layers.option_neuron == STOP]
    labels = int(np.count_nonzero(taken)) if layers.multilabel else int(layers.ends.sum())
    return settings.wants_flat(labels, rows, layers, float(taken.sum()))


def _log_shares(layers: Layers, groups: Groups, counts: NDArray[np.float64]) -> Floats:
    """Return the log share of each option among the rows of its group; zeros with several labels per row.

    Options without rows have the smallest share of their group.
    """
    shares = np.zeros(groups.rows, np.float32)
    if layers.multilabel:
        return shares
    group, rows = groups.row_groups(), counts[groups.row_options()]
    seen, smooth = rows > 0, rows + SMOOTHING
    shares = np.log(smooth / np.bincount(group, smooth, len(layers.node))[group]).astype(np.float32)
    smallest = np.zeros(len(layers.node), np.float32)
    np.minimum.at(smallest, group[seen], shares[seen])
    return np.where(seen, shares, smallest[group])


def _prior(layers: Layers, groups: Groups, sums: RowSums) -> Floats:
    """Return the initial biases: for sets of labels, the log odds of each option among the rows of its group."""
    if not layers.multilabel:
        return np.zeros(groups.rows, np.float32)
    yes = sums.options[groups.row_options()]
    no = sums.groups[groups.row_groups()] - yes
    return np.log((yes + SMOOTHING) / (no + SMOOTHING)).astype(np.float32)
