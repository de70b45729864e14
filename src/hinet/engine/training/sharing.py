"""Jobs distributed over workers: whole jobs, or one job with its rows split and its weights averaged.

Between two exchanges each worker trains on its own rows, starting from the same weights. Then every row of weights
moves by the steps of all workers, each weighted by the square root of its part in the sum of squared gradients. A
feature that only one worker has seen moves as far as it did there, and one that all have seen moves further than the
mean, as more rows were seen. The sums of squared gradients add up. Only rows that some worker touched are exchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hinet.choices import SplitBy

Floats = NDArray[np.float32]

EXCHANGES = 4  # exchanges per epoch
MAX_IMBALANCE = 1.15  # if the slowest worker takes longer than this times the mean, the longest job is shared


class Group(Protocol):
    """Workers that train in parallel."""

    rank: int  # number of this worker
    size: int  # number of workers

    def add(self, array: Floats) -> None:
        """Replace an array by its sum over all workers, which is bit for bit the same for each of them."""


class Averaged(NamedTuple):
    """Arrays of weights, and the sum of squared gradients of each row; None if there is none."""

    weights: tuple[NDArray[np.float32], ...]
    accumulator: NDArray[np.float32] | None


class SharedRows:
    """One worker's part of a job whose rows are shared."""

    def __init__(self, group: Group, parts: Sequence[Averaged], exchanges: int = EXCHANGES) -> None:
        self._group, self._parts, self._exchanges = group, parts, exchanges
        self._before: list[Averaged] = []
        self.volume = 0  # bytes that this worker has exchanged

    def start(self) -> None:
        """Copy the weights, which are the same for all workers."""
        self._before = [
            Averaged(tuple(array.copy() for array in part.weights), _copy(part.accumulator)) for part in self._parts
        ]

    def own(self, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the rows of this worker in an epoch, with one piece per exchange."""
        own = np.ascontiguousarray(order[self._group.rank :: self._group.size])  # kernels need contiguous arrays
        return np.array_split(own, self._exchanges)

    def exchange(self) -> None:
        """Move the weights of all workers by the steps of all of them."""
        for part, before in zip(self._parts, self._before, strict=True):
            if part.accumulator is None or before.accumulator is None:
                for array, old in zip(part.weights, before.weights, strict=True):
                    step = (array - old) / np.float32(self._group.size)
                    self._add(step)
                    old += step
                    array[...] = old
            else:
                self._exchange_rows(part.weights, part.accumulator, before.weights, before.accumulator)

    def _exchange_rows(
        self, weights: tuple[Floats, ...], accumulator: Floats, before: tuple[Floats, ...], base: Floats
    ) -> None:
        grown = accumulator - base
        whole = grown.copy()
        self._add(whole)
        rows = np.flatnonzero(whole > 0)
        share = np.sqrt(grown[rows] / whole[rows])
        for array, old in zip(weights, before, strict=True):
            step = np.ascontiguousarray((array[rows] - old[rows]) * share.reshape(-1, *[1] * (array.ndim - 1)))
            self._add(step)
            old[rows] += step
            array[...] = old  # other rows may have moved by so little that no accumulator has grown
        base[rows] += whole[rows]
        accumulator[rows] = base[rows]

    def mean_cost(self, cost: float, rows: int) -> float:
        """Return the mean cost over all workers, given the summed cost of this worker's rows."""
        sums = np.array([cost, rows], np.float32)
        self._group.add(sums)
        return float(sums[0] / max(sums[1], 1))

    def _add(self, array: Floats) -> None:
        if array.size:
            self._group.add(array)
            self.volume += array.nbytes


class Assignment(NamedTuple):
    """Jobs that all workers share, and the worker of each other job."""

    shared: list[int]
    owner: dict[int, int]

    @classmethod
    def of(cls, work: Sequence[float], can_share: Sequence[bool], workers: int, split: SplitBy) -> Assignment:
        """Return the assignment of jobs, given the work of each.

        Whole jobs give the same result as on one machine, so ``auto`` shares as few as keep all workers busy; ``jobs``
        shares none, and ``rows`` all that can be shared.

        >>> Assignment.of([4, 2, 2], [True, True, False], 2, "auto")
        Assignment(shared=[], owner={0: 0, 1: 1, 2: 1})
        >>> Assignment.of([8, 2, 2], [True, True, False], 2, "auto")
        Assignment(shared=[0], owner={1: 0, 2: 1})
        """
        candidates = sorted((job for job, can in enumerate(can_share) if can), key=lambda job: -work[job])
        shared: list[int] = list(candidates) if split == "rows" and workers > 1 else []
        mean = sum(work) / workers
        while True:
            owner, load = _owners([job for job in range(len(work)) if job not in shared], work, workers)
            longest = sum(work[job] for job in shared) / workers + max(load)
            rest = [job for job in candidates if job not in shared]
            if split != "auto" or workers == 1 or longest <= MAX_IMBALANCE * mean or not rest:
                return cls(sorted(shared), owner)
            shared.append(rest[0])


def _owners(jobs: list[int], work: Sequence[float], workers: int) -> tuple[dict[int, int], list[float]]:
    """Return a worker for each job, assigning the longest job to the least loaded worker, and all loads."""
    load, owner = [0.0] * workers, {}
    for job in sorted(jobs, key=lambda job: -work[job]):
        owner[job] = load.index(min(load))
        load[owner[job]] += work[job]
    return dict(sorted(owner.items())), load


def _copy(array: NDArray[Any] | None) -> NDArray[Any] | None:
    return None if array is None else array.copy()
