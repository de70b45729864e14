"""The work of training one expert: what a runner needs to know of it, and what all experts share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import Floats
from hinet.engine.model.groups import Groups
from hinet.engine.model.targets import TargetArrays
from hinet.engine.training.sharing import EXCHANGES, Averaged, Group, SharedRows
from hinet.engine.training.target_kernels import most_of_a_row

CHUNK = 4_096  # rows between two looks at whether to go on

Arrays = dict[str, NDArray[Any]]


class TrainingSet(NamedTuple):
    """The rows an expert trains on, towards targets in some groups, with its shift of the training logits."""

    rows: SparseMatrix
    targets: TargetArrays
    groups: Groups
    most: tuple[int, int, int]  # groups, options and steps of a row
    adjustment: Floats  # (output rows,)

    @classmethod
    def of(cls, rows: SparseMatrix, targets: TargetArrays, groups: Groups, adjustment: Floats) -> TrainingSet:
        """Return the rows, with the most that one of them needs counted."""
        return cls(rows, targets, groups, most_of_a_row(targets, groups), adjustment)


class RowChunk(NamedTuple):
    """Some of the rows of an epoch, in the order they train in; the rate falls linearly over the whole epoch."""

    order: NDArray[np.int64]
    first: int  # how many rows of the epoch came before
    total: int  # rows of the epoch
    rates: tuple[float, float]  # where the epoch begins and ends


class Job(ABC):
    """Trains one expert, or a part of one."""

    name: str
    epochs: int
    shared: SharedRows | None = None  # this worker's part, where several workers share the rows

    @abstractmethod
    def work(self) -> float:
        """Return about how much there is to do, to start the longest first."""

    @abstractmethod
    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Go over all rows once and return their mean cost; ``advance`` takes the rows done and may raise to stop."""

    @abstractmethod
    def state(self) -> Arrays:
        """Return the arrays that an epoch changes."""

    def best_state(self) -> Arrays:
        """Return the part of the state that is kept of the best epoch."""
        return self.state()

    def fault_of(self, state: Mapping[str, NDArray[Any]]) -> str | None:
        """Return what is wrong with the whole numbers of a state whose arrays have the right shapes, if anything."""
        return None

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up a state."""
        for name, array in self.state().items():
            array[...] = state[name]

    def averaged(self) -> list[Averaged]:
        """Return the weights to average where workers share the rows; none if they cannot."""
        return []

    def share(self, group: Group, exchanges: int = EXCHANGES) -> None:
        """Train from now on only this worker's rows, and so often an epoch average the weights with the others."""
        self.shared = SharedRows(group, self.averaged(), exchanges)

    def train_rows(
        self,
        order: NDArray[np.int64],
        rate: float,
        epoch: int,
        advance: Callable[[int], None],
        train: Callable[[RowChunk], float],
        before: int = 0,
        total: int | None = None,
    ) -> float:
        """Train on rows a chunk at a time and return their share of the mean cost of the epoch.

        The rate falls to zero over all epochs. An epoch has ``total`` rows, ``before`` of them before these; by default
        these are all.
        """
        rates = rate * (1 - epoch / self.epochs), rate * (1 - (epoch + 1) / self.epochs)
        if self.shared is not None:
            return self._train_shared(self.shared, order, rates, advance, train)
        total = len(order) if total is None else total
        cost = 0.0
        for first in range(0, len(order), CHUNK):
            chunk = RowChunk(order[first : first + CHUNK], before + first, total, rates)
            cost += float(train(chunk))
            advance(len(chunk.order))
        return cost / max(total, 1)

    def _train_shared(
        self,
        shared: SharedRows,
        order: NDArray[np.int64],
        rates: tuple[float, float],
        advance: Callable[[int], None],
        train: Callable[[RowChunk], float],
    ) -> float:
        """Train on this worker's rows, with an exchange after each piece of them; return the mean cost of all rows."""
        shared.start()
        pieces = shared.own(order)
        total, done, cost = sum(map(len, pieces)), 0, 0.0
        for piece in pieces:
            for first in range(0, len(piece), CHUNK):
                chunk = RowChunk(piece[first : first + CHUNK], done, total, rates)
                cost += float(train(chunk))
                done += len(chunk.order)
                advance(len(chunk.order))
            shared.exchange()
        return shared.mean_cost(cost, total)
