"""Training of a deep expert: row-wise Adagrad on the groups of each row, an epoch at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.engine.experts import DeepExpert, Floats
from hinet.engine.tasks import Arrays, TrainingRows, over_chunks
from hinet.engine.training_kernels import train_deep

DROPS = 1 << 16  # dropout factors made for an epoch


class _DeepSlots(NamedTuple):
    """Sums of squared gradients, one for each row of weights."""

    embedding: Floats
    weight: Floats


@dataclass
class DeepTask:
    """Trains a deep expert by row-wise Adagrad, the rate falling linearly to zero."""

    name: str
    data: TrainingRows
    expert: DeepExpert
    epochs: int
    rate: float
    slot: float
    dropout: float
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        self._slots = _DeepSlots(
            np.full(len(self.expert.embedding), self.slot, np.float32),
            np.full(len(self.expert.bias), self.slot, np.float32),
        )
        self._mine = np.ones(len(self.data.groups.first_row) - 1, bool)

    def work(self) -> float:
        """Return about how much there is to do."""
        rows, goals, groups = self.data[:3]
        options = np.diff(groups.first_row)[goals.step_group[: 10 * len(goals.step_offsets)]].sum()
        outputs = options / max(min(len(goals.step_group), 10 * len(goals.step_offsets)), 1) * 5
        return float(3.0 * self.epochs * self.expert.width * (len(rows.indices) + outputs * self.data.row_count))

    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Go over all rows once, in an order that the seeds and the epoch decide."""
        rows, goals, groups, most, adjustment = self.data
        random = np.random.default_rng([*self.seeds, epoch])
        order = random.permutation(self.data.row_count)
        kept = 1 - self.dropout
        drops = ((random.random(DROPS + self.expert.width, np.float32) < kept) / kept).astype(np.float32)
        rates = tuple(self.rate * (1 - done / self.epochs) for done in (epoch, epoch + 1))

        def train(chunk: NDArray[np.int64], first: int) -> float:
            return float(
                train_deep(
                    rows, chunk, first, len(order), goals, groups, most, self._mine, adjustment,
                    self.expert, self._slots, drops, rates,
                )
            )  # fmt: skip

        return over_chunks(order, advance, train)

    def state(self) -> Arrays:
        """Return weights and slots."""
        slots = {f"slots.{name}": array for name, array in self._slots._asdict().items()}
        return {**self.expert._asdict(), **slots}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up weights and slots."""
        for name, array in self.state().items():
            array[...] = state[name]
