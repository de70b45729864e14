"""Finished epochs on disk, so that a run that was broken off goes on where it stood."""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.engine.tasks import Arrays, Task
from hinet.errors import FileError
from hinet.files import read_arrays, write_arrays
from hinet.progress import EpochRecord

BEST = "best."
ENDING = ".safetensors"
LEAST_WRITES = 20  # an interval is at least as long as so many writes take, so that writing costs little


class Best(NamedTuple):
    """The best epoch of a task by its validation rows, and its state then."""

    score: float
    epoch: int
    state: Arrays


class Done(NamedTuple):
    """What is done of a task: its finished epochs, and the best of them where validation rows tell."""

    records: tuple[EpochRecord, ...] = ()
    best: Best | None = None


@dataclass(frozen=True)
class Checkpoints:
    """A folder with a file for each task: its state after a finished epoch, written every so many seconds.

    ``fingerprint`` is of the settings and the data; files of another run are refused.
    """

    folder: Path
    fingerprint: str
    every: float = 0.0  # seconds between two states of a task
    _next: dict[str, float] = field(default_factory=dict)  # when each task is due

    def started(self, task: Task) -> None:
        """Hear that a task starts, or goes on."""
        self._next[task.name] = time.monotonic() + self.every

    def is_due(self, task: Task) -> bool:
        """Return whether it is time to keep the state of a task."""
        return self.every == 0 or time.monotonic() >= self._next[task.name]

    def keep(self, task: Task, done: Done) -> None:
        """Write the state of a task, and its best; a reader sees the state before it or this one, never a part."""
        start = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        records = json.dumps([asdict(record) for record in done.records])
        told = {"records": records, "fingerprint": self.fingerprint}
        arrays = task.state()
        if done.best is not None:
            told |= {"best_score": repr(done.best.score), "best_epoch": str(done.best.epoch)}
            arrays = {**arrays, **{BEST + name: array for name, array in done.best.state.items()}}
        write_arrays(self._file(task), arrays, told)
        end = time.monotonic()
        self._next[task.name] = end + max(self.every, LEAST_WRITES * (end - start))

    def resume(self, task: Task) -> Done:
        """Restore the state of a task if there is one; return what is done of it."""
        path = self._file(task)
        if not path.exists():
            return Done()
        arrays, told = read_arrays(path)
        if told.get("fingerprint") != self.fingerprint:
            raise FileError(path, "the checkpoint is of other rows or settings; remove the folder to start anew")
        task.restore(arrays)
        best = None
        if "best_epoch" in told:
            state = {name.removeprefix(BEST): array for name, array in arrays.items() if name.startswith(BEST)}
            best = Best(float(told["best_score"]), int(told["best_epoch"]), state)
        return Done(tuple(EpochRecord(**record) for record in json.loads(told["records"])), best)

    def _file(self, task: Task) -> Path:
        return self.folder / f"{task.name.replace(' ', '-')}{ENDING}"


def check_folder(folder: Path) -> None:
    """Raise FileError if checkpoints cannot go to a folder, for what is there."""
    if folder.exists() and not folder.is_dir():
        raise FileError(folder, "is a file, where checkpoints are to be kept; rename it")
    others = [path.name for path in folder.iterdir() if not _is_checkpoint(path)] if folder.is_dir() else []
    if others:
        raise FileError(folder, f"holds other files than checkpoints ({others[0]!r}); move them")


def remove_checkpoints(folder: Path) -> None:
    """Remove a folder of checkpoints, and nothing else."""
    if folder.is_dir():
        for path in filter(_is_checkpoint, list(folder.iterdir())):
            path.unlink(missing_ok=True)
        if not any(folder.iterdir()):
            folder.rmdir()


def _is_checkpoint(path: Path) -> bool:
    """Return whether a file is one of ours, or was on its way to become one."""
    return ENDING in path.name


def fingerprint_of(parts: list[Any]) -> str:
    """Return a short text that changes with any of the parts: arrays, or values with a faithful text."""
    sums = [zlib.crc32(_bytes(part)) for part in parts]
    return "-".join(f"{number:08x}" for number in sums)


def _bytes(part: Any) -> bytes | memoryview:
    if isinstance(part, np.ndarray):
        array: NDArray[Any] = np.ascontiguousarray(part)
        return array.view(np.uint8).data if array.size else b""
    return repr(part).encode()
