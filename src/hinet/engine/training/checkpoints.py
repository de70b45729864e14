"""Checkpoints of jobs, and jobs over several workers.

Workers get whole jobs, or one job with its rows split and its weights averaged. Between two exchanges each worker
trains on its own rows, starting from the same weights. Then every row of weights moves by the steps of all workers,
each weighted by the square root of its part in the sum of squared gradients. A feature that only one worker has seen
moves as far as it did there, and one that all have seen moves further than the mean, as more rows were seen. The sums
of squared gradients add up. Only rows that some worker touched are exchanged.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hinet.choices import SplitBy
from hinet.data.spill import is_spill
from hinet.engine.model.experts import EXPERTS, Floats
from hinet.engine.training.rows import Arrays, Job, check_finite, schema_of
from hinet.errors import FileError, HiNetError
from hinet.files import read_arrays, write_arrays
from hinet.files.schema import check_arrays
from hinet.parameters import real
from hinet.progress import EpochRecord

EXCHANGES = 4  # exchanges per epoch
MAX_IMBALANCE = 1.15  # if the slowest worker takes longer than this times the mean, the longest job is shared
CHECKPOINT_EVERY = real(0, infinite=True)  # seconds
BEST = "best."
DIGEST = "blake2b"
ENDING = ".safetensors"
JOB_NAMES = {*(record.name for record in EXPERTS), "encoder"}  # first words of the names of jobs
_FILE = re.compile(rf"([a-z]+)(-\d+)?{re.escape(ENDING)}")
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}")  # name of a file while it is written
MIN_WRITES = 20  # minimum interval between writes, as a multiple of the time a write takes


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

    def __init__(self, group: Group, parts: Sequence[Averaged]) -> None:
        self._group, self._parts = group, parts
        self._before: Sequence[Averaged] = []
        self.volume = 0  # bytes that this worker has exchanged

    def start(self) -> None:
        """Copy the weights, which are the same for all workers."""
        self._before = copy.deepcopy(self._parts)

    def own(self, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the rows of this worker in an epoch, with one piece per exchange."""
        own = np.ascontiguousarray(order[self._group.rank :: self._group.size])  # kernels need contiguous arrays
        return np.array_split(own, EXCHANGES)

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


class Best(NamedTuple):
    """The best epoch of a job by validation cost, and its state."""

    score: float
    epoch: int
    state: Arrays


class Done(NamedTuple):
    """The finished epochs of a job, and the best of them if there are validation rows."""

    records: tuple[EpochRecord, ...] = ()
    best: Best | None = None


@dataclass(frozen=True)
class Checkpoints:
    """A folder with one file per job: its state after a finished epoch, written at most every ``every`` seconds.

    ``fingerprint`` identifies the settings and the data; files of another run are refused.
    """

    folder: Path
    fingerprint: str
    every: float = 0.0
    keep_last: bool = False  # whether to write the last state of a job too, for another process
    read_only: bool = False
    _next: dict[str, float] = field(default_factory=dict)  # time of the next write of each job

    def started(self, job: Job) -> None:
        """Start the clock of a job."""
        self._next[job.name] = time.monotonic() + self.every

    def is_due(self, job: Job) -> bool:
        """Return whether it is time to write the state of a job."""
        if self.read_only:
            return False
        return self.every == 0 or time.monotonic() >= self._next[job.name]

    def write(self, job: Job, done: Done) -> None:
        """Write the state of a job and its best epoch atomically."""
        start = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        records = json.dumps([vars(record) for record in done.records])
        metadata = {"records": records, "fingerprint": self.fingerprint}
        arrays = job.state()
        if done.best is not None:
            metadata |= {"best_score": repr(done.best.score), "best_epoch": str(done.best.epoch)}
            arrays = {**arrays, **{BEST + name: array for name, array in done.best.state.items()}}
        check_finite(job.name, arrays)
        write_arrays(self._file(job), arrays, {**metadata, DIGEST: _digest(arrays, metadata)})
        end = time.monotonic()
        self._next[job.name] = end + max(self.every, MIN_WRITES * (end - start))

    def resume(self, job: Job) -> Done:
        """Restore the state of a job if there is one; return its finished epochs.

        Raises
        ------
        FileError
            If the checkpoint is damaged, forged or from another run; the job is then unchanged.
        """
        path = self._file(job)
        if not path.exists():
            return Done()
        try:
            try:
                arrays, metadata = read_arrays(path)
            except FileError as error:
                raise ValueError(error.message) from None
            if metadata.pop(DIGEST, None) != _digest(arrays, metadata):
                raise ValueError("its digest does not match")
            if metadata["fingerprint"] != self.fingerprint:
                raise FileError(path, "the checkpoint is from other rows or settings; remove the folder to start again")
            done = _done(job, arrays, metadata)
            state = _checked_state(job, arrays)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, FileError):
                raise
            remedy = f"remove it to train {job.name} again, or the folder to start again"
            raise FileError(path, f"the checkpoint is damaged or from another version ({error}); {remedy}") from None
        job.restore(state)
        return done

    def check(self, jobs: Sequence[Job]) -> None:
        """Raise HiNetError if worker processes have not written the states of some jobs."""
        missing = [job.name for job in jobs if not self._file(job).exists()]
        if missing:
            raise HiNetError(
                f"the workers left no state of {', '.join(missing)} in {self.folder}; set `checkpoint` to a folder "
                "that all nodes share"
            )

    def _file(self, job: Job) -> Path:
        return self.folder / f"{job.name.replace(' ', '-')}{ENDING}"


def _digest(arrays: Arrays, metadata: Mapping[str, str]) -> str:
    """Return a digest of the contents of a checkpoint."""
    digest = hashlib.blake2b(json.dumps(metadata, sort_keys=True).encode(), digest_size=20)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
        digest.update(_bytes(array))
    return digest.hexdigest()


def _done(job: Job, arrays: Arrays, metadata: Mapping[str, str]) -> Done:
    """Return the finished epochs in metadata, or raise ValueError if they are impossible."""
    records = tuple(EpochRecord(**record) for record in json.loads(metadata["records"]))
    numbers = [record.epoch for record in records]
    if numbers != list(range(1, len(records) + 1)) or len(records) > job.epochs:
        raise ValueError(f"it has the epochs {numbers} of {job.epochs}")
    if not all(math.isfinite(record.cost) for record in records):
        raise ValueError("a cost is not finite")
    if "best_epoch" not in metadata:
        return Done(records)
    score, epoch = float(metadata["best_score"]), int(metadata["best_epoch"])
    if not (0 <= epoch < len(records) and math.isfinite(score)):
        raise ValueError(f"it has the best epoch {epoch} with score {score}")
    return Done(records, Best(score, epoch, _checked_state(job, arrays, BEST)))


def _checked_state(job: Job, arrays: Arrays, prefix: str = "") -> Arrays:
    """Return the state of a job among arrays, or raise ValueError if it is not valid."""
    own = job.best_state() if prefix == BEST else job.state()
    check_arrays(arrays, {prefix + name: spec for name, spec in schema_of(own).items()}, {})
    state = {name: arrays[prefix + name] for name in own}
    fault = job.fault_of(state)
    if fault is not None:
        raise ValueError(fault)
    return state


def check_folder(folder: Path) -> None:
    """Raise FileError if a folder cannot be used for checkpoints."""
    if folder.exists() and not folder.is_dir():
        raise FileError(folder, "is a file, but checkpoints need a folder; rename it")
    others = [path.name for path in folder.iterdir() if not _is_checkpoint(path)] if folder.is_dir() else []
    if others:
        raise FileError(folder, f"contains other files than checkpoints ({others[0]!r}); move them")


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints in a folder, and the folder if it is empty then."""
    if folder.is_dir():
        for path in filter(_is_checkpoint, list(folder.iterdir())):
            path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def _is_checkpoint(path: Path) -> bool:
    """Return whether a file is a checkpoint or a spill, finished or not."""
    unfinished = _UNFINISHED.fullmatch(path.name)
    match = _FILE.fullmatch(unfinished[1] if unfinished else path.name)
    return (match is not None and match[1] in JOB_NAMES) or is_spill(path.name)


def fingerprint_of(parts: list[Any]) -> str:
    """Return a short text that changes with any of the parts: arrays, or values with a faithful ``repr``."""
    sums = [zlib.crc32(_bytes(part)) for part in parts]
    return "-".join(f"{number:08x}" for number in sums)


def _bytes(part: Any) -> bytes | memoryview:
    if isinstance(part, np.ndarray):
        array: NDArray[Any] = np.ascontiguousarray(part)
        return array.view(np.uint8).data if array.size else b""
    return repr(part).encode()
