"""The plan of the fused model: its data in the form kernels read, the experts to be, how they become one model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data import Traces
from hinet.data.matrices import SparseMatrix
from hinet.engine.model.column_kernels import mean_sizes
from hinet.engine.model.experts import PROTOTYPES, DeepExpert, Experts, Floats, Mix, Prototypes, WideExpert
from hinet.engine.model.fused import FusedModel, with_merged
from hinet.engine.model.groups import Groups, LabelSpans
from hinet.engine.model.targets import Targets
from hinet.engine.search.search import Search
from hinet.engine.settings import LONG_ROW, MAX_FLAT_LABELS, EngineSettings, plan_memory
from hinet.engine.training.checkpoints import fingerprint_of
from hinet.engine.training.cooccurrence import prototypes, rank_features
from hinet.engine.training.deep import DeepJob, DeepPlan, LabelSets, LabelTargets, Objective, parts_of
from hinet.engine.training.jobs import Job, TrainingSet
from hinet.engine.training.mixing import MixCost, learned_mix, scaled_mix, usual_mix
from hinet.engine.training.rows import HeldRows, OfRows, StreamedRows, checked_rows, training_rows
from hinet.engine.training.taxonomy_transfer import activate
from hinet.engine.training.title_units import MOST_UNITS, TitleColumns, title_units
from hinet.engine.training.whitening import read_directly, whitening
from hinet.engine.training.wide import WidePlan, WideTraining, wide_training
from hinet.engine.training.wide_kernels import prune_weights
from hinet.errors import HiNetError
from hinet.memory import GB, total_memory
from hinet.metrics import accuracy
from hinet.progress import EpochRecord
from hinet.taxonomy import STOP, Layers

PLAIN_SHARE = 1 / 3  # of the member that leaves dense columns out
FLAT_SEEDS = 1 << 10  # the seeds of flat experts, apart from those of deep ones
ACCUMULATOR_OF_LEARNED = 2.0  # smaller lets new rows overwrite old ones, larger keeps them from being learned
SMOOTHING = 0.5  # rows added to every option before shares are taken
TEMPERATURES = (20.0, 40.0)  # lengths of prototypes that are tried
MOST_WATCHED = 2_000  # validation rows whose accuracy is recorded after every epoch
START_OF_PROTOTYPES = 0.2  # their weight in the mix, before it is learned
LEAST_REHEARSED, MOST_REHEARSED = 500, 20_000  # rows
LEAST_GAIN, LEAST_GAIN_OF_ALL = 0.002, 1.0  # in the cost of a validation row, and of all, for prototypes to be worth it


@dataclass(frozen=True)
class ValidationRows:
    """Rows that are not trained on: the mix is learned from them, and patience looks at them."""

    rows: Any  # CSR
    traces: Traces


class Blend(NamedTuple):
    """How experts are mixed, and the length of prototypes, zero without them."""

    mix: Floats
    temperature: float


class PlanInput(NamedTuple):
    """What a plan is made of."""

    rows: Any
    traces: Traces | Layers
    settings: EngineSettings
    sample_weight: NDArray[np.floating[Any]] | None
    valid: ValidationRows | None
    titles: TitleColumns | None = None

    def plan(self, start: FusedModel | None = None) -> TrainingPlan:
        """Return the plan, which may go on from a model."""
        rows = training_rows(self.rows, self.traces, self.settings, self.sample_weight)
        return TrainingPlan(rows, self.settings, self.valid, start, self.titles)


class TrainingPlan:
    """The data in the form kernels read, the experts to be, and how they become a model."""

    def __init__(
        self,
        rows: HeldRows,
        settings: EngineSettings,
        valid: ValidationRows | None,
        start: FusedModel | None,
        titles: TitleColumns | None = None,
    ) -> None:
        self.layers, columns = rows.targets.layers, rows.columns
        if settings.two_layers and not self.layers.multilabel:
            raise HiNetError("`two_layers` is for rows with several labels; leave it out")
        self.settings, self.start = settings, start
        self.valid, self.watched = None, None
        if valid is not None:
            self.valid = checked_rows(valid.rows, valid.traces, self.layers, "validation ")
            if valid.rows.shape[1] != columns:
                raise HiNetError(f"validation rows have {valid.rows.shape[1]:,} features and training rows {columns:,}")
            seen = np.linspace(0, len(valid.traces) - 1, min(len(valid.traces), MOST_WATCHED)).astype(np.int64)
            self.watched = ValidationRows(valid.rows[seen], valid.traces.take(seen))
        if start is not None:
            self._check_start(start, columns)
        self.groups = Groups.of(self.layers)
        self.labels = int(self.layers.ends.sum())
        dense = rows.matrix.dense.shape[1] > 0  # beside which leaving features out, or merging them, costs accuracy
        self.members = (
            1 if start is not None else settings.members_for(rows.row_count, rows.matrix.mean_features, dense=dense)
        )
        self.plain = int(self.members > 1 and dense)
        self.width = settings.width_for(self.members, self.labels) if start is None else start.experts.deep.width
        self.flat_width = (
            settings.flat_width_for(self.labels, several=self.layers.multilabel)
            if start is None
            else start.experts.flat.width
        )
        deep = plan_memory(features=columns, outputs=self.groups.rows, width=self.width * self.members)
        deep.check(settings.memory_limit)  # before anything else takes room for every feature
        self.counts = rows.option_counts()
        self.prior = self._prior(rows)
        redundant = start is None and rows.has_features_to_spare()
        self.plain_dropout = settings.dropout_for(redundant=redundant)
        self.dropout = settings.dropout_for(redundant=redundant, dense=dense)
        merges = redundant and not dense
        self.merged = rows.merged_columns() if merges else None if start is None else start.merged
        self.features = columns
        if self.merged is not None:
            self.features = len(start.experts.deep.embedding) if start else int(self.merged.max()) + 1
            rows = rows.with_merged(self.merged, self.features)
            if self.valid is not None:
                self.valid = with_merged(self.valid[0], self.merged, self.features), self.valid[1]
        self.titles = titles if start is None and not self.layers.multilabel else None
        self.whitening = None
        if settings.whiten and dense and start is None and not self.layers.multilabel:
            arrays = rows.targets.arrays
            self.whitening = whitening(rows.matrix.dense, arrays.entry_target[arrays.row_offsets[:-1]])
            rows = rows.with_whitened(self.whitening)
        self.spans = LabelSpans.of(self.layers)
        taken = self.counts[self.layers.option_neuron == STOP]
        labels = int(np.count_nonzero(taken)) if self.layers.multilabel else self.labels
        self.has_flat = (
            settings.wants_flat(labels, rows.row_count, self.layers, float(taken.sum()))
            if start is None
            else start.mix.flat > 0
        )
        self._take_up(rows)
        while isinstance(rows, StreamedRows) and rows.can_be_smaller() and not self._fits():
            rows = rows.smaller()
            self._take_up(rows)

    def _take_up(self, rows: HeldRows) -> None:
        """Plan with these rows in memory."""
        self.rows, self.targets = rows, rows.targets
        adjustment = self._adjustment(self.counts)
        self.train = TrainingSet.of(rows.matrix, self.targets.arrays, self.groups, adjustment)
        self.wide = self._wide_training(rows.matrix)
        self.memory = plan_memory(
            features=self.features,
            outputs=self.groups.rows,
            width=self.width * self.members + (0 if self.titles is None else MOST_UNITS),
            wide_weights=self.wide.weights if self.wide else 0,
            wide_scratch=self.wide.scratch if self.wide else 0,
            labels=self.labels if self.has_flat else 0,
            flat_width=self.flat_width * self.members,
            titles=0 if self.titles is None else self.titles.memory(self.layers),
        )

    def _fits(self) -> bool:
        """Return whether the plan and the rows in memory fit."""
        limit = self.settings.memory_limit
        needed = self.memory.total + sum(array.nbytes for array in self.train.rows)
        return needed <= (total_memory() if limit is None else limit * GB)

    def told_of_sample(self) -> str:
        """Return what to say of rows that are not in memory."""
        if not isinstance(self.rows, StreamedRows):
            return ""
        held = self.train.rows.row_count
        wide = "" if self.wide is None or self.rows.is_whole else f", the wide expert on {held:,} of them"
        epochs = self._deep_epochs()
        times = "once" if epochs == 1 else f"{epochs} times"
        return f"; deep experts train on all {self.rows.row_count:,} rows {times}{wide}"

    def _deep_epochs(self) -> int:
        streamed = isinstance(self.rows, StreamedRows)
        return self.settings.epochs_of_deep(self.rows.row_count, self.train.rows.mean_features, streamed=streamed)

    def rows_of_epoch(self) -> int:
        """Return about how many rows an epoch goes over."""
        if not isinstance(self.rows, StreamedRows):
            return self.rows.row_count
        return self.rows.row_count // parts_of(tuple(block.rows for block in self.rows.spill.blocks))

    def _initial_accumulator(self, usual: float) -> float:
        """Return what sums of squared gradients start from: more if the weights have learned already."""
        return usual if self.start is None else max(usual, ACCUMULATOR_OF_LEARNED)

    def _check_start(self, start: FusedModel, columns: int) -> None:
        if not start.layers.same_as(self.layers):
            raise HiNetError("the model to go on from has other layers than the rows; transfer it to them first")
        if start.features != columns:
            raise HiNetError(f"the model to go on from has {start.features:,} features, the rows {columns:,}")

    def _adjustment(self, counts: NDArray[np.float64]) -> Floats:
        """Return the shift of the training logits: the log share of each option, none for options without rows."""
        if self.layers.multilabel:
            return np.zeros(self.groups.rows, np.float32)
        group, option = self.groups.row_groups(), self.groups.row_options()
        smooth = counts[option] + SMOOTHING
        share = np.log(smooth / np.bincount(group, smooth, len(self.layers.node))[group])
        return np.where(counts[option] > 0, self.settings.adjustment * share, 0).astype(np.float32)

    def _prior(self, rows: HeldRows) -> Floats:
        """Return what biases start from: for sets of labels, the log odds of each option in the rows of its group."""
        if not self.layers.multilabel:
            return np.zeros(self.groups.rows, np.float32)
        yes = self.counts[self.groups.row_options()]
        no = rows.group_counts()[self.groups.row_groups()] - yes
        return np.log((yes + SMOOTHING) / (no + SMOOTHING)).astype(np.float32)

    def _wide_training(self, matrix: SparseMatrix) -> WideTraining | None:
        settings = self.settings
        before = None if self.start is None else self.start.experts.wide
        if not settings.wants_wide(flat=self.has_flat) or (self.start is not None and not self.start.mix.wide):
            return None
        known = rank_features(matrix, self.features, settings.wide_buckets) if before is None else before.feature_rank
        plan = WidePlan(
            known,
            int(known.max(initial=-1)) + 1,
            settings.epochs_of_wide(self.train.rows.row_count),
            settings.wide_rate_for(self.train.rows.mean_features),
            self._initial_accumulator(settings.wide_accumulator),
            settings.seed,
            settings.thread_count,
            self.prior,
        )
        renamed = matrix._replace(indices=known[matrix.indices])
        return wide_training(self.train._replace(rows=renamed), self.targets, plan, before)

    def fingerprint(self) -> str:
        """Return what a checkpoint is recognised by."""
        parts = [
            self.settings.shaping(),
            self.dropout,
            self.plain_dropout,
            self.features,
            *self.groups,
            *self.rows.fingerprint(),
        ]
        if self.valid is not None and self.settings.patience is not None:
            parts += [*self.valid[0], *self.valid[1].arrays]
        return fingerprint_of(parts)

    def jobs(self) -> list[Job]:
        """Return the work to do, the longest first."""
        before = None if self.start is None else self.start.experts.deep

        def objective(rows: SparseMatrix, targets: Targets) -> Objective:
            data = TrainingSet.of(rows, targets.arrays, self.groups, self.train.adjustment)
            return Objective.of_groups(data, multilabel=self.layers.multilabel)

        self._deep = self._jobs_of("deep", objective, self.prior, self.width, 0, before)
        self._flat = self._flat_jobs()
        jobs: list[Job] = [*self._deep, *self._flat, *(self.wide.jobs() if self.wide else ())]
        return sorted(jobs, key=lambda job: -job.work())

    def _flat_jobs(self) -> list[DeepJob]:
        if not self.has_flat:
            return []
        settings, labels = self.settings, len(self.spans.neuron)
        stops = self.layers.option_offsets[self.spans.neuron + 1] - 1  # the option that ends at each label
        counts, several = self.counts[stops], self.layers.multilabel
        adjustment = _adjustment_of_labels(counts, settings.adjustment)

        def objective(rows: SparseMatrix, targets: Targets) -> Objective:
            if several:
                return Objective.of_label_sets(rows, LabelSets.of(targets, self.spans, counts > 0))
            return Objective.of_labels(rows, LabelTargets.of(targets, self.spans, settings.flat_upper), adjustment)

        before = None if self.start is None else activate(self.start.experts.flat, np.flatnonzero(counts))
        prior = np.zeros(labels, np.float32)
        if several:
            rest = self.rows.group_counts()[0] - counts  # of all rows
            prior = np.log((counts + SMOOTHING) / (rest + SMOOTHING)).astype(np.float32)
        return self._jobs_of("flat", objective, prior, self.flat_width, FLAT_SEEDS, before)

    def _jobs_of(
        self,
        name: str,
        objective: OfRows,
        prior: Floats,
        width: int,
        first_seed: int,
        before: DeepExpert | None,
    ) -> list[DeepJob]:
        """Return a job for each member of a deep expert; the last one leaves dense columns out, if one is plain."""
        settings, jobs, plain = self.settings, [], False
        plan = DeepPlan(
            self._deep_epochs(), settings.deep_rate, self._initial_accumulator(settings.deep_accumulator), self.dropout
        )
        for member in range(self.members):
            seeds = settings.seed, first_seed + member
            random = np.random.default_rng([*seeds, 1 << 20])
            start = DeepExpert.start_two_layers if settings.two_layers else DeepExpert.start
            expert = start(self.features, prior, width, random) if before is None else before.in_floats()
            if member == self.members - self.plain:
                expert.embedding[self.features - self.train.rows.dense.shape[1] :] = 0
                plain, plan = True, replace(plan, dropout=self.plain_dropout)
            jobs.append(
                DeepJob(f"{name} {member + 1}", self.rows.objectives(objective, plain=plain), expert, plan, seeds)
            )
        return jobs

    def wants_rehearsal(self) -> bool:
        """Return whether to find the mix by a training with rows held out: of few rows, with few of each label."""
        if self.start is not None or self.valid is not None or self.settings.is_quick or self.layers.multilabel:
            return False
        held = not isinstance(self.rows, StreamedRows) and LEAST_REHEARSED <= self.rows.row_count <= MOST_REHEARSED
        return held and self.wide is not None and not self.has_flat

    def valid_cost(self, job: Job) -> float | None:
        """Return the cost of the validation rows by the job's expert alone; of the wide expert, nothing."""
        if self.valid is None or not isinstance(job, DeepJob):
            return None
        rows, targets = self.valid
        return learned_mix(MixCost(rows, targets, self.groups, self._alone(job)))[1]

    def valid_accuracy(self, job: Job) -> float | None:
        """Return the accuracy of some validation rows by the job's expert alone; of the wide expert, nothing."""
        if self.watched is None or not isinstance(job, DeepJob):
            return None
        model = FusedModel(self.layers, self._alone(job), merged=self.merged)
        answers = Search(model, 1).traces(self.watched.rows)
        return accuracy(self.watched.traces, answers.traces)

    def _alone(self, job: DeepJob) -> Experts:
        """Return the expert of a job as if there were no others."""
        deep = job in self._deep
        experts = self._experts([job.expert], []) if deep else self._experts([], [job.expert])
        return experts._replace(mix=np.array(Mix(deep=deep, flat=not deep), np.float32))

    def _joined(self, members: list[DeepExpert], outputs: int, untrained: DeepExpert | None = None) -> DeepExpert:
        """Return the members of a deep expert as one, whose logits are added to those of one that is not trained.

        The plain member counts a third, however many others there are.
        """
        if not members:
            return DeepExpert.none(self.features, outputs)
        if self.whitening is not None:
            members = [read_directly(member, self.whitening) for member in members]
        shares = np.full(len(members), 1 / len(members), np.float32)
        if self.plain and len(members) > 1:
            shares[:-1], shares[-1] = (1 - PLAIN_SHARE) / (len(members) - 1), PLAIN_SHARE
        if untrained is not None:
            members, shares = [*members, untrained], np.append(shares, np.float32(1))
        return DeepExpert.joined(members, shares).quantised()

    def _experts(
        self, deep: list[DeepExpert], flat: list[DeepExpert], title_member: DeepExpert | None = None
    ) -> Experts:
        outputs, labels = self.groups.rows, len(self.spans.neuron)
        return Experts(
            self._joined(deep, outputs, title_member),
            WideExpert.none(self.features, len(self.layers.node), outputs),
            self._joined(flat, labels),
            Prototypes.none(self.features),
            self.spans,
            usual_mix(
                wide=self.wide is not None,
                flat=bool(flat),
                long=self.train.rows.mean_features > LONG_ROW,
                vectors=self.whitening is not None,
                several=self.layers.multilabel,
            ),
        )

    def mixed(self, history: list[EpochRecord], rehearsed: Blend | None = None) -> FusedModel:
        """Return the model of the trained experts, mixed as the validation rows have it, or as was rehearsed."""
        experts = self.trained()
        if self.start is not None:  # what other rows taught it stays, prototypes and mix included
            experts = experts._replace(prototypes=self.start.experts.prototypes, mix=self.start.experts.mix)
        elif self.valid is not None and len(self.valid[1]):
            experts = self._blended(experts, self.blend(experts))
        elif rehearsed is not None:
            experts = self._blended(experts, rehearsed)
        return FusedModel(self.layers, experts, tuple(history), merged=self.merged)

    def trained(self) -> Experts:
        """Return the trained experts, in the usual mix."""
        deep, flat = ([job.expert for job in jobs] for jobs in (self._deep, self._flat))
        experts = self._experts(deep, flat, self._title_member())
        if self.wide is None:
            return experts
        wide = self.wide.expert()
        return experts._replace(wide=self._pruned(wide) if self.start is None else wide)

    def _title_member(self) -> DeepExpert | None:
        """Return the units that compare rows with titles, if there are titles."""
        if self.titles is None:
            return None
        dense = self.train.rows.dense
        usual = float(np.sqrt(np.einsum("ij,ij->", dense, dense, dtype=np.float64) / max(len(dense), 1)))
        return title_units(self.titles, self.layers, self.features, usual)

    def _pruned(self, wide: WideExpert) -> WideExpert:
        """Drop weights that hardly count, going by the mean of each feature where it is not zero."""
        usual = mean_sizes(self.train.rows, wide.feature_rank)
        feature, offsets, weights, before = prune_weights(
            wide.feature, wide.weight_offsets, wide.weights, usual, self.settings.wide_prune
        )
        return wide._replace(
            entry_offsets=before[wide.entry_offsets], feature=feature, weight_offsets=offsets, weights=weights
        )

    def blend(self, experts: Experts) -> Blend:
        """Return how the validation rows mix experts, with prototypes where these help."""
        best, least = self._with_mix(experts)
        chosen = 0.0
        gain = max(LEAST_GAIN, LEAST_GAIN_OF_ALL / max(len(self._valid_rows()[1]), 1))
        few = 0 < len(self.spans.neuron) <= MAX_FLAT_LABELS and not self.layers.multilabel  # all labels are scored
        for temperature in TEMPERATURES if few else ():
            known = prototypes(self.train.rows, self.features, self.targets, self.spans, temperature)
            start = np.array(Mix(*experts.mix)._replace(prototypes=START_OF_PROTOTYPES), np.float32)
            tried, cost = self._with_mix(experts._replace(prototypes=known, mix=start))
            if tried.mix[PROTOTYPES] and cost < least - gain:
                best, least, chosen = tried, cost, temperature
        if self.layers.multilabel:
            return Blend(best.mix, chosen)
        return Blend(scaled_mix(MixCost(*self._valid_rows(), self.groups, best)), chosen)

    def _blended(self, experts: Experts, blend: Blend) -> Experts:
        """Return experts in a mix, with its prototypes."""
        if not blend.temperature:
            return experts._replace(mix=blend.mix)
        known = prototypes(self.train.rows, self.features, self.targets, self.spans, blend.temperature)
        return experts._replace(prototypes=known, mix=blend.mix)

    def _with_mix(self, experts: Experts) -> tuple[Experts, float]:
        """Return experts with the mix of least cost on validation rows of known labels, and that cost."""
        counts = None if self.layers.multilabel else self.counts
        mix, cost = learned_mix(MixCost(*self._valid_rows(), self.groups, experts, counts))
        return experts._replace(mix=mix), cost

    def _valid_rows(self) -> tuple[SparseMatrix, Targets]:
        assert self.valid is not None
        return self.valid


def _adjustment_of_labels(counts: NDArray[np.float64], strength: float) -> Floats:
    """Return the shift of the training logits of labels with so many rows, none for labels without rows."""
    share = np.log((counts + SMOOTHING) / (counts + SMOOTHING).sum())
    return np.where(counts > 0, strength * (share - share.max()), 0).astype(np.float32)
