"""Training of deep experts: row-wise Adagrad, an epoch at a time, towards sibling groups or towards all labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import DeepExpert, Floats
from hinet.engine.model.groups import LabelSpans
from hinet.engine.model.targets import Targets
from hinet.engine.settings import Dropout
from hinet.engine.training.deep_kernels import train_deep, train_flat
from hinet.engine.training.jobs import Arrays, Job, RowChunk, TrainingSet
from hinet.engine.training.set_kernels import train_deep_sets, train_flat_sets
from hinet.engine.training.sharing import Averaged
from hinet.ragged import offsets_of, positions
from hinet.taxonomy import STOP

MASK_LENGTH = 1 << 16  # dropout factors made for an epoch
ROW_FACTORS = 4_093  # made for an epoch; a prime, so that they do not go with other factors
EPOCH_ROWS = 2_000_000  # of an epoch, where rows are in blocks: enough to be worth a checkpoint and a line
FAINT_ROWS = 0.1  # share of rows whose sparse features count less, as those of texts with unknown words do


@dataclass(frozen=True)
class DeepPlan:
    """How deep experts train."""

    epochs: int
    rate: float
    accumulator: float  # what the sums of squared gradients start from
    dropout: Dropout


class DropoutMasks(NamedTuple):
    """Dropout factors of an epoch, 0 or what makes up for the dropped ones; rows take runs of them."""

    features: Floats
    units: Floats
    rows: Floats  # of all sparse features of a row, which are fainter at times where dense ones stand beside them


class DeepAccumulators(NamedTuple):
    """Sums of squared gradients, one for each row of weights."""

    embedding: Floats
    weight: Floats
    inner: Floats = np.zeros(0, np.float32)  # none without a second layer


TrainChunk: TypeAlias = Callable[[RowChunk, DropoutMasks, DeepExpert, DeepAccumulators], float]


class Objective(NamedTuple):
    """Rows, and what trains a deep expert on a chunk of them and returns their summed cost."""

    rows: SparseMatrix
    outputs: float  # about how many output rows an epoch touches
    train: TrainChunk

    @classmethod
    def of_groups(cls, data: TrainingSet, *, multilabel: bool = False) -> Objective:
        """Return the objective of rows that have targets in the sibling groups of the taxonomy."""
        options = float(np.diff(data.groups.first_row)[data.targets.step_group].mean())
        train = train_deep_sets if multilabel else train_deep
        return cls(data.rows, 5.0 * data.rows.row_count * options, partial(train, data))

    @classmethod
    def of_labels(cls, rows: SparseMatrix, targets: LabelTargets, adjustment: Floats) -> Objective:
        """Return the objective of rows that have some of all the labels, as if they were one large group."""
        train = partial(train_flat, rows, targets, adjustment)
        return cls(rows, float(rows.row_count * len(adjustment)), train)

    @classmethod
    def of_label_sets(cls, rows: SparseMatrix, targets: LabelSets) -> Objective:
        """Return the objective of rows that have sets of labels, each label a yes or no."""
        labels = int(np.count_nonzero(targets.known))
        return cls(rows, float(rows.row_count * labels), partial(train_flat_sets, rows, targets))


class BlockObjectives(NamedTuple):
    """The objectives of rows in blocks, which need not be in memory at once."""

    sizes: tuple[int, ...]  # rows of each block
    values: int  # of all rows
    dense: int  # columns
    outputs: float
    load: Callable[[int], Objective]

    @classmethod
    def of(cls, objective: Objective) -> BlockObjectives:
        """Return an objective in memory as that of one block."""
        rows = objective.rows
        values = len(rows.indices)
        return cls((rows.row_count,), values, rows.dense.shape[1], objective.outputs, lambda _: objective)


class LabelSets(NamedTuple):
    """The labels of each row: those of row ``i`` are ``offsets[i]:offsets[i + 1]``."""

    offsets: NDArray[np.int64]
    label: NDArray[np.int64]
    weight: Floats  # (n,) of the cost of each row
    known: NDArray[np.bool_]  # (labels,) whether any training row has the label

    @classmethod
    def of(cls, targets: Targets, spans: LabelSpans, known: NDArray[np.bool_]) -> LabelSets:
        """Return the labels of sets, in the order of the spans; ``known`` are those that training rows have."""
        arrays, layers = targets.arrays, targets.layers
        row, step = targets.row_steps()
        choices = np.diff(arrays.choice_offsets)[step]
        choice = positions(arrays.choice_offsets[step], choices)
        group = np.repeat(arrays.step_group[step], choices)
        stops = layers.option_neuron[layers.option_offsets[group] + arrays.choice_option[choice]] == STOP
        counts = np.bincount(np.repeat(row, choices)[stops], minlength=len(targets))
        return cls(offsets_of(counts), spans.labels_at(group[stops]), arrays.entry_share, known)


class LabelTargets(NamedTuple):
    """The labels of each row: those of row ``i`` are ``offsets[i]:offsets[i + 1]``, each with its share.

    The upper nodes of label ``j``, at or above it, are ``upper_offsets[j]:upper_offsets[j + 1]``, from the lowest up,
    each as the labels below it; the cost of a row counts each of them ``upper`` times as much as the label itself.
    """

    offsets: NDArray[np.int64]
    label: NDArray[np.int64]
    share: Floats
    upper: np.float32
    upper_offsets: NDArray[np.int64]
    upper_first: NDArray[np.int64]
    upper_last: NDArray[np.int64]

    @classmethod
    def of(cls, targets: Targets, spans: LabelSpans, upper: float) -> LabelTargets:
        """Return the targets of the targets of a tree, labels in the order of the spans."""
        arrays = targets.arrays
        label = spans.labels_at(arrays.end_neurons())  # of each target
        share = arrays.entry_share.astype(np.float32)
        nodes = spans.upper_nodes(targets.layers)
        return cls(arrays.row_offsets, label[arrays.entry_target], share, np.float32(upper), *nodes)


class DeepJob(Job):
    """Trains a deep expert, the rate falling linearly to zero.

    Rows in several blocks are gone over block by block, in another order each time; an epoch is then a part of that.
    """

    def __init__(
        self,
        name: str,
        objective: Objective | BlockObjectives,
        expert: DeepExpert,
        plan: DeepPlan,
        seeds: tuple[int, ...],
    ) -> None:
        self._blocks = BlockObjectives.of(objective) if isinstance(objective, Objective) else objective
        self._parts = parts_of(self._blocks.sizes)
        self.name, self.expert, self.epochs = name, expert, plan.epochs * self._parts
        self._plan, self._seeds = plan, seeds
        self._accumulators = DeepAccumulators(
            np.full(len(expert.embedding), plan.accumulator, np.float32),
            np.full(len(expert.bias), plan.accumulator, np.float32),
            np.full(len(expert.inner_bias), plan.accumulator, np.float32),
        )

    def work(self) -> float:
        """Return about how much there is to do."""
        blocks = self._blocks
        values = blocks.values * (1 - self._plan.dropout.features) + sum(blocks.sizes) * blocks.dense
        return 3.0 * self._plan.epochs * self.expert.width * (values + blocks.outputs)

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Go over the rows of an epoch once, in an order that the seeds and the epoch decide."""
        random = np.random.default_rng([*self._seeds, epoch])
        blocks = self._blocks_of(epoch)
        orders = [random.permutation(self._blocks.sizes[number]) for number in blocks]
        masks = DropoutMasks(
            _factors(random, MASK_LENGTH, self._plan.dropout.features),
            _factors(random, MASK_LENGTH + self.expert.width, self._plan.dropout.units),
            self._row_factors(random),
        )
        expert, accumulators = self.expert, self._accumulators
        cost, done, total = 0.0, 0, sum(map(len, orders))
        for number, order in zip(blocks, orders, strict=True):
            train = self._blocks.load(number).train

            def step(chunk: RowChunk, train: TrainChunk = train) -> float:
                return train(chunk, masks, expert, accumulators)

            cost += self.train_rows(order, self._plan.rate, epoch, advance, step, done, total)
            done += len(order)
        return cost

    def _blocks_of(self, epoch: int) -> list[int]:
        """Return the blocks that an epoch goes over: the next part of all of them, in the order of this time."""
        time, part = divmod(epoch, self._parts)
        order = np.random.default_rng([*self._seeds, 1 << 21, time]).permutation(len(self._blocks.sizes))
        chosen: list[int] = np.array_split(order, self._parts)[part].tolist()
        return chosen

    def averaged(self) -> list[Averaged]:
        """Return embeddings, output rows and inner units, each with the sums of squared gradients of its rows."""
        expert, sums = self.expert, self._accumulators
        return [
            Averaged((expert.embedding,), sums.embedding),
            Averaged((expert.weight, expert.bias), sums.weight),
            Averaged((expert.inner, expert.inner_bias), sums.inner),
            Averaged((expert.embedding_bias,), None),
        ]

    def _row_factors(self, random: np.random.Generator) -> Floats:
        """Return factors of the sparse part of rows, below 1 for some if there are dense columns to go by instead."""
        if not self._blocks.dense:
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


def parts_of(sizes: tuple[int, ...]) -> int:
    """Return in how many epochs rows in blocks of these sizes are gone over once."""
    return min(len(sizes), max(1, round(sum(sizes) / EPOCH_ROWS)))
