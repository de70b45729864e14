"""Finished epochs on disk, so that a run that was broken off goes on where it stood."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hinet.engine.tasks import Arrays, Task
from hinet.errors import FileError
from hinet.files import read_arrays, write_arrays

BEST = "best."


class Best(NamedTuple):
    """The best epoch of a task by its validation rows, and its state then."""

    score: float
    epoch: int
    state: Arrays


@dataclass(frozen=True)
class Checkpoints:
    """A folder with a file for each task: its state after the last finished epoch.

    ``fingerprint`` is of the settings and the data; files of another run are refused.
    """

    folder: Path
    fingerprint: str

    def keep(self, task: Task, epochs_done: int, best: Best | None = None) -> None:
        """Write the state of a task, and its best; a reader sees the state before it or this one, never a part."""
        self.folder.mkdir(parents=True, exist_ok=True)
        told = {"epochs_done": str(epochs_done), "fingerprint": self.fingerprint}
        arrays = task.state()
        if best is not None:
            told |= {"best_score": repr(best.score), "best_epoch": str(best.epoch)}
            arrays = {**arrays, **{BEST + name: array for name, array in best.state.items()}}
        write_arrays(self._file(task), arrays, told)

    def resume(self, task: Task) -> tuple[int, Best | None]:
        """Restore the state of a task if there is one; return how many of its epochs are done, and its best."""
        path = self._file(task)
        if not path.exists():
            return 0, None
        arrays, told = read_arrays(path)
        if told.get("fingerprint") != self.fingerprint:
            raise FileError(path, "the checkpoint is of other rows or settings; remove the folder to start anew")
        task.restore(arrays)
        best = None
        if "best_epoch" in told:
            state = {name.removeprefix(BEST): array for name, array in arrays.items() if name.startswith(BEST)}
            best = Best(float(told["best_score"]), int(told["best_epoch"]), state)
        return int(told["epochs_done"]), best

    def _file(self, task: Task) -> Path:
        return self.folder / f"{task.name.replace(' ', '-')}.safetensors"


def fingerprint_of(parts: list[Any]) -> str:
    """Return a short text that changes with any of the parts: arrays, or values with a faithful text."""
    sums = [zlib.crc32(_bytes(part)) for part in parts]
    return "-".join(f"{number:08x}" for number in sums)


def _bytes(part: Any) -> bytes | memoryview:
    if isinstance(part, np.ndarray):
        array: NDArray[Any] = np.ascontiguousarray(part)
        return array.view(np.uint8).data if array.size else b""
    return repr(part).encode()
