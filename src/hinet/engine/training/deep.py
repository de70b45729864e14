"""Training of deep experts: row-wise Adagrad, an epoch at a time, towards sibling groups or towards all labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import DeepExpert, Floats
from hinet.engine.model.groups import LabelSpans
from hinet.engine.model.targets import Goals
from hinet.engine.settings import Dropout
from hinet.engine.training.deep_kernels import train_deep, train_flat
from hinet.engine.training.jobs import Arrays, Stretch, TrainingRows, falling, over_stretches

DROPS = 1 << 16  # dropout factors made for an epoch


@dataclass(frozen=True)
class DeepPlan:
    """How deep experts train."""

    epochs: int
    rate: float
    slot: float  # what the sums of squared gradients start from
    dropout: Dropout


class Drops(NamedTuple):
    """Dropout factors of an epoch, 0 or what makes up for the dropped ones; rows take stretches of them."""

    features: Floats
    units: Floats


class DeepSlots(NamedTuple):
    """Sums of squared gradients, one for each row of weights."""

    embedding: Floats
    weight: Floats


class Lesson(Protocol):
    """Rows with what a deep expert is to say of them."""

    rows: SparseMatrix

    def outputs(self) -> float:
        """Return about how many output rows an epoch touches."""

    def train(self, stretch: Stretch, drops: Drops, expert: DeepExpert, slots: DeepSlots) -> float:
        """Train on a stretch of rows, by dropout factors from ``drops``, and return their summed cost."""


class GroupLesson:
    """Each row has goals in the sibling groups of the taxonomy."""

    def __init__(self, data: TrainingRows) -> None:
        self.rows, self._data = data.rows, data
        self._mine = np.ones(len(data.groups.first_row) - 1, bool)

    def outputs(self) -> float:
        """Return about how many output rows an epoch touches."""
        goals, groups = self._data.goals, self._data.groups
        return 5.0 * self.rows.row_count * float(np.diff(groups.first_row)[goals.step_group].mean())

    def train(self, stretch: Stretch, drops: Drops, expert: DeepExpert, slots: DeepSlots) -> float:
        """Train on a stretch of rows, by dropout factors from ``drops``, and return their summed cost."""
        return float(train_deep(self._data, self._mine, stretch, drops, expert, slots))


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
    def of(cls, goals: Goals, spans: LabelSpans, upper: float) -> LabelTargets:
        """Return the targets of the goals of a tree, labels in the order of the spans."""
        arrays = goals.arrays
        label = spans.labels_at(arrays.end_neurons())  # of each goal
        share = arrays.entry_share.astype(np.float32)
        nodes = spans.upper_nodes(goals.layers)
        return cls(arrays.row_offsets, label[arrays.entry_goal], share, np.float32(upper), *nodes)


class LabelLesson:
    """Each row has some of all the labels, as if they were one large group."""

    def __init__(self, rows: SparseMatrix, targets: LabelTargets, adjustment: Floats) -> None:
        self.rows, self._targets, self._adjustment = rows, targets, adjustment

    def outputs(self) -> float:
        """Return about how many output rows an epoch touches."""
        return float(self.rows.row_count * len(self._adjustment))

    def train(self, stretch: Stretch, drops: Drops, expert: DeepExpert, slots: DeepSlots) -> float:
        """Train on a stretch of rows, by dropout factors from ``drops``, and return their summed cost."""
        return float(train_flat(self.rows, self._targets, self._adjustment, stretch, drops, expert, slots))


class DeepTask:
    """Trains a deep expert, the rate falling linearly to zero."""

    def __init__(self, name: str, lesson: Lesson, expert: DeepExpert, plan: DeepPlan, seeds: tuple[int, ...]) -> None:
        self.name, self.expert, self.epochs = name, expert, plan.epochs
        self._lesson, self._plan, self._seeds = lesson, plan, seeds
        self._slots = DeepSlots(
            np.full(len(expert.embedding), plan.slot, np.float32),
            np.full(len(expert.bias), plan.slot, np.float32),
        )

    def work(self) -> float:
        """Return about how much there is to do."""
        values = len(self._lesson.rows.indices) * (1 - self._plan.dropout.features)
        return 3.0 * self.epochs * self.expert.width * (values + self._lesson.outputs())

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Go over all rows once, in an order that the seeds and the epoch decide."""
        random = np.random.default_rng([*self._seeds, epoch])
        order = random.permutation(self._lesson.rows.row_count)
        drops = Drops(
            _factors(random, DROPS, self._plan.dropout.features),
            _factors(random, DROPS + self.expert.width, self._plan.dropout.units),
        )
        rates = falling(self._plan.rate, epoch, self.epochs)

        def train(stretch: Stretch) -> float:
            return self._lesson.train(stretch, drops, self.expert, self._slots)

        return over_stretches(order, rates, advance, train)

    def state(self) -> Arrays:
        """Return weights and slots."""
        slots = {f"slots.{name}": array for name, array in self._slots._asdict().items()}
        return {**self.expert._asdict(), **slots}

    def fault_of(self, state: Mapping[str, NDArray[Any]]) -> str | None:
        """Find no fault: there are no whole numbers in a state."""
        return None

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up weights and slots."""
        for name, array in self.state().items():
            array[...] = state[name]


def _factors(random: np.random.Generator, count: int, dropout: float) -> Floats:
    kept = 1 - dropout
    return ((random.random(count, np.float32) < kept) / kept).astype(np.float32)
