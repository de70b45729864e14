"""Training of the deep and the flat expert by row-wise Adagrad.

Titles of labels are hidden units that compare the vector of a text with those of titles. A text with only unknown words
is then still closer to some options than to others. These units are linear and read dense columns only. They are a
member of the deep expert that is not trained, except when a model is trained further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from hinet.data.matrices import SparseMatrix, unit_rows
from hinet.engine.model.experts import DeepExpert, Floats
from hinet.engine.model.groups import Groups, LabelSpans, Targets
from hinet.engine.model.transfer import INACTIVE_BIAS, NEW_OPTION_BIAS
from hinet.engine.settings import SET_DEEP_WIDTH, Dropout, EngineSettings, MemoryPlan, plan_memory
from hinet.engine.training.checkpoints import Averaged
from hinet.engine.training.deep_kernels import train_deep, train_flat
from hinet.engine.training.rows import (
    SMOOTHING,
    Arrays,
    ExpertTraining,
    Job,
    RowChunk,
    TitleColumns,
    TrainingRows,
    TrainingSet,
    read_directly,
)
from hinet.ragged import offsets_of, positions
from hinet.taxonomy import STOP, Layers

MASK_LENGTH = 1 << 16  # dropout factors per epoch
ROW_FACTORS = 4_093  # row factors per epoch; a prime, so that they are independent of other factors
PLAIN_SHARE = 1 / 3  # weight of the member that ignores dense columns
COSINE_WEIGHT = 5.0  # logit of a cosine of 1 with titles; see docs/log.md
MAX_UNITS = 64  # units of titles
FAINT_ROWS = 0.1  # share of rows whose sparse features are scaled down, like those of texts with unknown words


@dataclass(frozen=True)
class DeepPlan:
    """Epochs, learning rate and dropout of deep experts."""

    epochs: int
    rate: float
    accumulator: float  # initial sums of squared gradients
    dropout: Dropout


class DropoutMasks(NamedTuple):
    """Dropout factors of an epoch; each row uses runs of them."""

    features: Floats
    units: Floats
    rows: Floats  # factors of all sparse features of a row


class DeepAccumulators(NamedTuple):
    """Sums of squared gradients, one per row of weights."""

    embedding: Floats
    weight: Floats
    inner: Floats = np.zeros(0, np.float32)  # empty without a second layer


Train: TypeAlias = Callable[[RowChunk, DropoutMasks, DeepExpert, DeepAccumulators], float]  # returns the summed cost
Objective: TypeAlias = Callable[[SparseMatrix, Targets], Train]


class LabelTargets(NamedTuple):
    """The labels of each row: those of row ``i`` are ``offsets[i]:offsets[i + 1]``, each with its share.

    With one label per row, all labels are one group. The nodes at or above label ``j`` are
    ``upper_offsets[j]:upper_offsets[j + 1]``, from the lowest up, each given as the span of labels below it. In the
    cost of a row each of them counts ``upper`` times as much as the label. With sets, each label is a yes or no.
    """

    offsets: NDArray[np.int64]
    label: NDArray[np.int64]
    share: Floats
    several: bool  # whether rows have sets of labels
    known: NDArray[np.bool_]  # (labels,) whether the label is trained; in sets, those of training rows
    adjustment: Floats  # (labels,) logit adjustment of training
    upper: np.float32 = np.float32(0)
    upper_offsets: NDArray[np.int64] = np.zeros(0, np.int64)
    upper_first: NDArray[np.int64] = np.zeros(0, np.int64)
    upper_last: NDArray[np.int64] = np.zeros(0, np.int64)

    @classmethod
    def of(
        cls, targets: Targets, spans: LabelSpans, counts: NDArray[np.float64], settings: EngineSettings
    ) -> LabelTargets:
        """Return the labels of targets, in the order of the spans, given the number of rows of each label."""
        if targets.layers.multilabel:
            return cls._of_sets(targets, spans, counts)
        arrays = targets.arrays
        log_share = np.log((counts + SMOOTHING) / (counts + SMOOTHING).sum())
        return cls(
            arrays.row_offsets.copy(),
            spans.labels_at(arrays.end_neurons())[arrays.entry_target],
            arrays.entry_share.copy(),
            False,
            np.ones(len(counts), bool),
            np.where(counts > 0, settings.adjustment * (log_share - log_share.max()), 0).astype(np.float32),
            np.float32(settings.flat_upper),
            *spans.upper_nodes(targets.layers),
        )

    @classmethod
    def _of_sets(cls, targets: Targets, spans: LabelSpans, counts: NDArray[np.float64]) -> LabelTargets:
        arrays, layers = targets.arrays, targets.layers
        row, step = arrays.entry_steps()  # a row has one target, its set
        choices = np.diff(arrays.choice_offsets)[step]
        choice = positions(arrays.choice_offsets[step], choices)
        group = np.repeat(arrays.step_group[step], choices)
        stops = layers.option_neuron[layers.option_offsets[group] + arrays.choice_option[choice]] == STOP
        labels = np.bincount(np.repeat(row, choices)[stops], minlength=len(targets))  # (n,) number of labels
        shares, unadjusted = np.repeat(arrays.entry_share, labels), np.zeros(len(counts), np.float32)
        return cls(offsets_of(labels), spans.labels_at(group[stops]), shares, True, counts > 0, unadjusted)


class DeepJob(Job):
    """Trains one member of a deep expert with a rate that decays linearly to zero.

    Blocks of rows are loaded in another order each time; an epoch is then a part of one pass over all blocks.
    """

    def __init__(
        self,
        name: str,
        rows: TrainingRows,
        objective: Objective,
        outputs: float,
        expert: DeepExpert,
        plan: DeepPlan,
        seeds: tuple[int, ...],
    ) -> None:
        self._rows, self._objective, self._outputs = rows, objective, outputs
        self._in_memory = objective(rows.matrix, rows.targets) if rows.spill is None else None
        self.name, self.expert, self.epochs = name, expert, plan.epochs * rows.epochs_per_pass
        self._plan, self._seeds = plan, seeds
        self._accumulators = DeepAccumulators(
            np.full(len(expert.embedding), plan.accumulator, np.float32),
            np.full(len(expert.bias), plan.accumulator, np.float32),
            np.full(len(expert.inner_bias), plan.accumulator, np.float32),
        )

    def work(self) -> float:
        """Return an estimate of the work, given the output rows that each row touches."""
        rows = self._rows
        values = rows.value_count * (1 - self._plan.dropout.features)
        outputs = rows.row_count * (rows.matrix.dense.shape[1] + self._outputs)
        return float(3.0 * self._plan.epochs * self.expert.width * (values + outputs))

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train on the rows of an epoch, in an order that depends on the seeds and the epoch."""
        random = np.random.default_rng([*self._seeds, epoch])
        blocks = self._blocks_of(epoch)
        orders = [random.permutation(self._rows.sizes[number]) for number in blocks]
        masks = DropoutMasks(
            _factors(random, MASK_LENGTH, self._plan.dropout.features),
            _factors(random, MASK_LENGTH + self.expert.width, self._plan.dropout.units),
            self._row_factors(random),
        )
        expert, accumulators = self.expert, self._accumulators
        cost, done, total = 0.0, 0, sum(map(len, orders))
        for number, order in zip(blocks, orders, strict=True):
            train = self._in_memory or self._objective(*self._rows.load(number))

            def step(chunk: RowChunk, train: Train = train) -> float:
                return train(chunk, masks, expert, accumulators)

            cost += self.train_rows(order, self._plan.rate, epoch, advance, step, done, total)
            done += len(order)
        return cost

    def _blocks_of(self, epoch: int) -> list[int]:
        """Return the blocks of an epoch: the next part of all blocks in the order of this pass."""
        turn, part = divmod(epoch, self._rows.epochs_per_pass)
        order = np.random.default_rng([*self._seeds, 1 << 21, turn]).permutation(len(self._rows.sizes))
        chosen: list[int] = np.array_split(order, self._rows.epochs_per_pass)[part].tolist()
        return chosen

    def averaged(self) -> list[Averaged]:
        """Return embeddings, outputs and inner units, each with its sums of squared gradients."""
        expert, sums = self.expert, self._accumulators
        return [
            Averaged((expert.embedding,), sums.embedding),
            Averaged((expert.weight, expert.bias), sums.weight),
            Averaged((expert.inner, expert.inner_bias), sums.inner),
            Averaged((expert.embedding_bias,), None),
        ]

    def _row_factors(self, random: np.random.Generator) -> Floats:
        """Return factors of the sparse part of rows, below 1 for some rows if there are dense columns."""
        if not self._rows.matrix.dense.shape[1]:
            return np.ones(1, np.float32)
        faint = random.random(ROW_FACTORS) < FAINT_ROWS
        return np.where(faint, random.random(ROW_FACTORS), 1).astype(np.float32)

    def state(self) -> Arrays:
        """Return weights and accumulators."""
        accumulators = {f"slots.{name}": array for name, array in self._accumulators._asdict().items()}
        return {**self.expert._asdict(), **accumulators}


def _factors(random: np.random.Generator, count: int, dropout: float) -> Floats:
    kept = 1 - dropout
    return ((random.random(count, np.float32) < kept) / kept).astype(np.float32)


class DeepTraining(ExpertTraining):
    """The training of the deep expert: members from different random weights, which are averaged.

    With titles, the units of :func:`title_units` are added as a member that is not trained.
    """

    kernels = (train_deep,)
    name: ClassVar[str] = "deep"
    first_seed: ClassVar[int] = 0

    @cached_property
    def width(self) -> int:
        """Hidden units per member."""
        context = self.context
        if context.start is not None:
            return context.start.experts.deep.width
        width = context.settings.width_for(context.members, int(context.layers.ends.sum()))
        is_minor = context.layers.multilabel and context.has_flat and context.has_margin
        return min(width, SET_DEEP_WIDTH) if is_minor and context.settings.width is None else width

    def memory(self) -> MemoryPlan:
        """Return the memory of all members, and of the units of titles."""
        context, titles = self.context, self.context.titles
        return plan_memory(
            features=context.features,
            outputs=context.groups.rows,
            width=self.width * context.members + (0 if titles is None else MAX_UNITS),
            titles=0 if titles is None else titles.memory(context.layers),
        )

    def objective(self, rows: SparseMatrix, targets: Targets) -> Train:
        """Return the function that trains on a chunk of rows."""
        groups, adjustment = self.context.groups, self.context.data.adjustment
        return partial(train_deep, TrainingSet.of(rows, targets.arrays, groups, adjustment))

    @property
    def outputs_per_row(self) -> float:
        """About the number of output rows that a row touches."""
        data = self.context.data
        return 5.0 * float(np.diff(data.groups.first_row)[data.targets.step_group].mean())

    def prior(self) -> Floats:
        """Return the initial biases."""
        return self.context.prior

    def start(self) -> DeepExpert | None:
        """Return the expert that is trained further, if there is one."""
        return None if self.context.start is None else self.context.start.experts.deep.in_floats()

    def jobs(self) -> list[Job]:
        """Return a job for each member."""
        return list(self._members)

    @cached_property
    def _members(self) -> list[DeepJob]:
        context, settings, jobs = self.context, self.context.settings, []
        accumulator = context.initial_accumulator(settings.deep_accumulator)
        plan = DeepPlan(context.deep_epochs, settings.deep_rate, accumulator, context.dropout)
        create = partial(DeepExpert.start, two_layers=settings.two_layers)
        for member in range(context.members):
            seeds = settings.seed, self.first_seed + member
            random = np.random.default_rng([*seeds, 1 << 20])
            expert = self.start() or create(context.features, self.prior(), self.width, random)
            plain = context.has_plain_member and member == context.members - 1
            if plain:
                expert.embedding[context.features - context.data.rows.dense.shape[1] :] = 0
                plan = replace(plan, dropout=context.plain_dropout)
            rows = context.rows.without_dense() if plain else context.rows
            name = f"{self.name} {member + 1}"
            jobs.append(DeepJob(name, rows, self.objective, self.outputs_per_row, expert, plan, seeds))
        return jobs

    def trained(self) -> DeepExpert:
        """Return the members as one expert."""
        context, members = self.context, [job.expert for job in self._members]
        if context.titles is None:
            return self._joined(members)
        dense = context.data.rows.dense
        usual = float(np.sqrt(np.einsum("ij,ij->", dense, dense, dtype=np.float64) / max(len(dense), 1)))
        return self._joined(members, title_units(context.titles, context.layers, context.features, usual))

    def alone(self, job: Job) -> DeepExpert | None:
        """Return the expert of one member."""
        return self._joined([job.expert]) if isinstance(job, DeepJob) and job in self._members else None

    def _joined(self, members: list[DeepExpert], untrained: DeepExpert | None = None) -> DeepExpert:
        """Return members as one expert, with the logits of an untrained one added.

        The member that ignores dense columns has a weight of a third, however many others there are.
        """
        whitening = self.context.rows.whitening
        if whitening is not None:
            members = [read_directly(member, whitening) for member in members]
        shares = np.full(len(members), 1 / len(members), np.float32)
        if self.context.has_plain_member and len(members) > 1:
            shares[:-1], shares[-1] = (1 - PLAIN_SHARE) / (len(members) - 1), PLAIN_SHARE
        if untrained is not None:
            members, shares = [*members, untrained], np.append(shares, np.float32(1))
        return DeepExpert.joined(members, shares).quantised()


class FlatTraining(DeepTraining):
    """The training of the flat expert."""

    kernels = (train_flat,)
    name = "flat"
    first_seed = 1 << 10  # apart from the seeds of deep experts

    @cached_property
    def width(self) -> int:
        """Hidden units per member."""
        context = self.context
        if context.start is not None:
            return context.start.experts.flat.width
        return context.settings.flat_width_for(int(context.layers.ends.sum()), several=context.layers.multilabel)

    def memory(self) -> MemoryPlan:
        """Return the memory of all members."""
        weights = (self.context.features + int(self.context.layers.ends.sum())) * self.width * self.context.members
        return MemoryPlan(4 * weights, 0, 0, weights)

    @cached_property
    def counts(self) -> NDArray[np.float64]:
        """(labels,) Rows of each label."""
        stops = self.context.layers.option_offsets[self.context.spans.neuron + 1] - 1  # the last option of a group
        counts: NDArray[np.float64] = self.context.counts[stops]
        return counts

    def objective(self, rows: SparseMatrix, targets: Targets) -> Train:
        """Return the function that trains on a chunk of rows."""
        labels = LabelTargets.of(targets, self.context.spans, self.counts, self.context.settings)
        return partial(train_flat, rows, labels)

    @property
    def outputs_per_row(self) -> float:
        """Number of labels."""
        return float(len(self.counts))

    def prior(self) -> Floats:
        """Return the initial biases: with several labels per row, the log odds of each label."""
        if not self.context.layers.multilabel:
            return np.zeros(len(self.counts), np.float32)
        rest = self.context.sums.groups[0] - self.counts
        prior: Floats = np.log((self.counts + SMOOTHING) / (rest + SMOOTHING)).astype(np.float32)
        return prior

    def start(self) -> DeepExpert | None:
        """Return the expert that is trained further, with inactive labels that have rows now activated."""
        start = self.context.start
        return None if start is None else _activated(start.experts.flat, np.flatnonzero(self.counts))

    def trained(self) -> DeepExpert:
        """Return the members as one expert."""
        return self._joined([job.expert for job in self._members])


def _activated(flat: DeepExpert, labels: NDArray[np.int64]) -> DeepExpert:
    """Return a copy in which those of the labels that were inactive start as the mean of the others, less likely."""
    flat = flat.in_floats()
    inactive = flat.bias <= INACTIVE_BIAS
    activated = labels[inactive[labels]]
    if len(activated) and not inactive.all():
        flat.weight[activated] = flat.weight[~inactive].mean(0)
        flat.bias[activated] = flat.bias[~inactive].mean() + NEW_OPTION_BIAS
    return flat


def title_units(titles: TitleColumns, layers: Layers, features: int, usual_length: float) -> DeepExpert | None:
    """Return an untrained member of the deep expert, or None if titles do not distinguish options.

    The logit of an option is a multiple of the cosine between a row of the usual length and the titles below the
    option, minus the mean of its group, in the directions in which options differ most. Dense columns are the last
    features.
    """
    if not usual_length > 0 or not titles.memory(layers):
        return None
    groups = Groups.of(layers)
    with threadpool_limits(1):  # another order of sums would change the model
        vectors = _centred_in_groups(_option_vectors(titles, layers, groups), groups)
        spread, directions = np.linalg.eigh((vectors.T @ vectors).astype(np.float64))
        kept = directions[:, ::-1][:, :MAX_UNITS][:, spread[::-1][:MAX_UNITS] > 1e-6].astype(np.float32)  # (d, units)
        weight = np.float32(COSINE_WEIGHT / usual_length) * (vectors @ kept)
    units = kept.shape[1]
    if not units:
        return None
    embedding = np.zeros((features, units), np.float32)
    embedding[features - len(kept) :] = kept
    outputs = np.zeros(len(weight), np.float32)
    return DeepExpert.of(embedding, np.zeros(units, np.float32), weight, outputs, np.ones(units, np.float32))


def _option_vectors(titles: TitleColumns, layers: Layers, groups: Groups) -> Floats:
    """Return the mean direction of the titles of all labels below each option with siblings."""
    of_node = np.zeros((len(layers.taxonomy), titles.columns.shape[1]), np.float32)
    np.add.at(of_node, titles.nodes, unit_rows(titles.columns))
    below = unit_rows(of_node)[layers.node] * layers.ends[:, None]  # (neurons, d) at first only of each label
    child = groups.option_neuron[groups.row_options()]
    vectors = np.empty((len(child), below.shape[1]), np.float32)
    stops = child == STOP
    vectors[stops] = below[groups.row_groups()[stops]]
    for above in range(layers.height - 1, -1, -1):
        start, end = layers.option_offsets[layers.layer_offsets[above : above + 2]].tolist()
        target = layers.option_neuron[start:end]
        real = target != STOP
        np.add.at(below, layers.option_parent[start:end][real], below[target[real]])
    vectors[~stops] = below[child[~stops]]
    return unit_rows(vectors)


def _centred_in_groups(vectors: Floats, groups: Groups) -> Floats:
    """Return the difference of each option from the mean of its group, zero for options without titles."""
    titled = np.asarray(vectors.any(1))
    starts = np.unique(groups.first_row[:-1][np.diff(groups.first_row) > 0])
    sizes = np.diff(np.append(starts, len(vectors)))
    means = np.add.reduceat(vectors, starts, axis=0)  # options without titles are zero
    means /= np.maximum(np.add.reduceat(titled, starts, dtype=np.int64), 1)[:, None]
    centred: Floats = (vectors - np.repeat(means, sizes, axis=0)) * titled[:, None]
    return centred
