"""Jobs: the training of one expert, or of a part of one, an epoch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import SparseMatrix
from hinet.engine.model.experts import Floats
from hinet.engine.model.groups import Groups
from hinet.engine.model.targets import TargetArrays
from hinet.engine.training.sharing import EXCHANGES, Averaged, Group, SharedRows
from hinet.engine.training.target_kernels import max_sizes

EPOCH_ROWS = 2_000_000  # rows per epoch if they are in blocks, enough for a checkpoint and a line of progress
CHUNK = 4_096  # rows between cancellation checks

Arrays: TypeAlias = dict[str, NDArray[Any]]


class TrainingSet(NamedTuple):
    """Rows with their targets in sibling groups, and the logit adjustment of training."""

    rows: SparseMatrix
    targets: TargetArrays
    groups: Groups
    max_sizes: tuple[int, int, int]  # maximum groups, options and steps of a row
    adjustment: Floats  # (output rows,)

    @classmethod
    def of(cls, rows: SparseMatrix, targets: TargetArrays, groups: Groups, adjustment: Floats) -> TrainingSet:
        """Return the training set of rows and targets."""
        return cls(rows, targets, groups, max_sizes(targets, groups), adjustment)


class RowChunk(NamedTuple):
    """Rows of an epoch in training order; the rate decays linearly over the whole epoch."""

    order: NDArray[np.int64]
    first: int  # number of earlier rows in the epoch
    total: int  # rows of the epoch
    rates: tuple[float, float]  # rates at the start and the end of the epoch


class Objective(NamedTuple):
    """Rows, and the function that trains a deep expert on a chunk of them and returns their summed cost."""

    rows: SparseMatrix
    outputs: float  # about the number of output rows that an epoch touches
    train: Callable[..., float]  # takes a RowChunk, DropoutMasks, a DeepExpert and its accumulators


class BlockObjectives(NamedTuple):
    """Objectives of rows in blocks, which are loaded one at a time."""

    sizes: tuple[int, ...]  # rows of each block
    values: int  # number of values of all rows
    dense: int  # number of dense columns
    outputs: float
    load: Callable[[int], Objective]

    @classmethod
    def of(cls, objective: Objective) -> BlockObjectives:
        """Return an objective in memory as a single block."""
        rows = objective.rows
        return cls((rows.row_count,), len(rows.indices), rows.dense.shape[1], objective.outputs, lambda _: objective)


def parts_of(sizes: tuple[int, ...]) -> int:
    """Return the number of epochs per pass over blocks of these sizes."""
    return min(len(sizes), max(1, round(sum(sizes) / EPOCH_ROWS)))


class Job(ABC):
    """Trains one expert, or a part of one."""

    name: str
    epochs: int
    shared: SharedRows | None = None  # this worker's part if several workers share the rows

    @abstractmethod
    def work(self) -> float:
        """Return an estimate of the work, so that the longest job starts first."""

    @abstractmethod
    def run_epoch(self, epoch: int, advance: Callable[[int], None]) -> float:
        """Train for one epoch and return the mean cost; ``advance`` takes numbers of finished rows and may raise."""

    @abstractmethod
    def state(self) -> Arrays:
        """Return the arrays that an epoch changes."""

    def best_state(self) -> Arrays:
        """Return the part of the state that is kept for the best epoch."""
        return self.state()

    def fault_of(self, state: Mapping[str, NDArray[Any]]) -> str | None:
        """Return an error in the integers of a state whose arrays have the right shapes, if there is one."""
        return None

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Copy a state into the arrays of the job."""
        for name, array in self.state().items():
            array[...] = state[name]

    def averaged(self) -> list[Averaged]:
        """Return the weights to average if workers share the rows; empty if they cannot."""
        return []

    def share(self, group: Group, exchanges: int = EXCHANGES) -> None:
        """Train only this worker's rows from now on, averaging weights ``exchanges`` times per epoch."""
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
        """Train on rows chunk by chunk and return their share of the mean cost of the epoch.

        The rate decays to zero over all epochs. An epoch has ``total`` rows, by default these, and ``before`` of them
        came earlier. Workers that share the rows train on their own ones, with regular exchanges.
        """
        rates = rate * (1 - epoch / self.epochs), rate * (1 - (epoch + 1) / self.epochs)
        shared, pieces = self.shared, [order]
        if shared is not None:
            shared.start()
            pieces = shared.own(order)
        total = sum(map(len, pieces)) if total is None or shared is not None else total
        done, cost = before if shared is None else 0, 0.0
        for piece in pieces:
            for first in range(0, len(piece), CHUNK):
                chunk = RowChunk(piece[first : first + CHUNK], done, total, rates)
                cost += float(train(chunk))
                done += len(chunk.order)
                advance(len(chunk.order))
            if shared is not None:
                shared.exchange()
        return cost / max(total, 1) if shared is None else shared.mean_cost(cost, total)
