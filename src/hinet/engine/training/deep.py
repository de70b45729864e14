"""Training of deep experts: row-wise Adagrad, an epoch at a time, towards sibling groups or towards all labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import DeepExpert, Floats
from hinet.engine.model.groups import LabelSpans
from hinet.engine.model.targets import Targets
from hinet.engine.settings import Dropout
from hinet.engine.training.deep_kernels import train_deep, train_flat
from hinet.engine.training.jobs import Arrays, Job, RowChunk, TrainingSet
from hinet.engine.training.set_kernels import train_deep_sets
from hinet.engine.training.sharing import Averaged

MASK_LENGTH = 1 << 16  # dropout factors made for an epoch
ROW_FACTORS = 4_093  # made for an epoch; a prime, so that they do not go with other factors
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


class Objective(NamedTuple):
    """Rows, and what trains a deep expert on a chunk of them and returns their summed cost."""

    rows: SparseMatrix
    outputs: float  # about how many output rows an epoch touches
    train: Callable[[RowChunk, DropoutMasks, DeepExpert, DeepAccumulators], float]

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
    """Trains a deep expert, the rate falling linearly to zero."""

    def __init__(
        self, name: str, objective: Objective, expert: DeepExpert, plan: DeepPlan, seeds: tuple[int, ...]
    ) -> None:
        self.name, self.expert, self.epochs = name, expert, plan.epochs
        self._objective, self._plan, self._seeds = objective, plan, seeds
        self._accumulators = DeepAccumulators(
            np.full(len(expert.embedding), plan.accumulator, np.float32),
            np.full(len(expert.bias), plan.accumulator, np.float32),
            np.full(len(expert.inner_bias), plan.accumulator, np.float32),
        )

    def work(self) -> float:
        """Return about how much there is to do."""
        rows = self._objective.rows
        values = len(rows.indices) * (1 - self._plan.dropout.features) + rows.dense.size
        return 3.0 * self.epochs * self.expert.width * (values + self._objective.outputs)

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Go over all rows once, in an order that the seeds and the epoch decide."""
        random = np.random.default_rng([*self._seeds, epoch])
        order = random.permutation(self._objective.rows.row_count)
        masks = DropoutMasks(
            _factors(random, MASK_LENGTH, self._plan.dropout.features),
            _factors(random, MASK_LENGTH + self.expert.width, self._plan.dropout.units),
            self._row_factors(random),
        )
        train, expert, accumulators = self._objective.train, self.expert, self._accumulators
        return self.train_rows(
            order, self._plan.rate, epoch, advance, lambda chunk: train(chunk, masks, expert, accumulators)
        )

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
        if not self._objective.rows.dense.shape[1]:
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
