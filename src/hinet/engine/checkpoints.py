"""Finished epochs on disk, so that a run that was broken off goes on where it stood."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hinet.engine.tasks import Arrays, Task
from hinet.errors import FileError
from hinet.files import write_bytes


@dataclass(frozen=True)
class Checkpoints:
    """A folder with a file for each task: its state after the last finished epoch.

    ``fingerprint`` is of the settings and the data; files of another run are refused.
    """

    folder: Path
    fingerprint: str

    def keep(self, task: Task, epochs_done: int) -> None:
        """Write the state of a task; a reader sees the state before it or this one, never a part."""
        self.folder.mkdir(parents=True, exist_ok=True)
        told = {"epochs_done": str(epochs_done), "fingerprint": self.fingerprint}
        state = {name: np.ascontiguousarray(array) for name, array in task.state().items()}
        write_bytes(self._file(task), save(state, told))

    def resume(self, task: Task) -> int:
        """Restore the state of a task if there is one, and return how many of its epochs are done."""
        path = self._file(task)
        if not path.exists():
            return 0
        try:
            with safe_open(path, framework="numpy") as file:
                told = file.metadata()
                if told.get("fingerprint") != self.fingerprint:
                    raise FileError(
                        path, "the checkpoint is of other rows or settings; remove the folder to start anew"
                    )
                arrays: Arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a mapping
        except SafetensorError as error:
            raise FileError(path, f"the checkpoint cannot be read ({error}); remove it to start anew") from None
        task.restore(arrays)
        return int(told["epochs_done"])

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
