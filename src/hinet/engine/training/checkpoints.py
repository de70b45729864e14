"""Finished epochs on disk, so that interrupted runs can resume."""

from __future__ import annotations

import hashlib
import json
import math
import re
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.data.spill import is_spill
from hinet.engine.model.experts import EXPERTS
from hinet.engine.training.jobs import Arrays, Job
from hinet.errors import FileError, HiNetError
from hinet.files import read_arrays, write_arrays
from hinet.files.schema import FINITE, ArraySpec, Schema, check_arrays, floats
from hinet.parameters import real
from hinet.progress import EpochRecord

CHECKPOINT_EVERY = real(0, infinite=True)  # seconds
BEST = "best."
DIGEST = "blake2b"
ENDING = ".safetensors"
JOB_NAMES = {*(record.name for record in EXPERTS), "encoder"}  # first words of the names of jobs
_FILE = re.compile(rf"([a-z]+)(-\d+)?{re.escape(ENDING)}")
_UNFINISHED = re.compile(r"\.(.+)\.[0-9a-f]{16}")  # name of a file while it is written
MIN_WRITES = 20  # minimum interval between writes, as a multiple of the time a write takes


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
    check_arrays(arrays, {prefix + name: spec for name, spec in _schema_of(own).items()}, {})
    state = {name: arrays[prefix + name] for name in own}
    fault = job.fault_of(state)
    if fault is not None:
        raise ValueError(fault)
    return state


def _schema_of(state: Arrays) -> Schema:
    """Return the schema of other states of a job: the same types and shapes, and finite."""
    return {
        name: floats(*array.shape, low=-FINITE, high=FINITE)
        if array.dtype.kind == "f"
        else ArraySpec(array.shape, "iu")
        for name, array in state.items()
    }


def check_finite(name: str, state: Arrays) -> None:
    """Raise HiNetError if the weights of a job are not finite."""
    try:
        check_arrays(state, _schema_of(state), {})
    except HiNetError as error:
        raise HiNetError(f"{name} is no longer finite: {error}; scale the features to length 1") from None


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
