"""A lock on a folder, so that several processes and threads write to it one at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: writers are not separated there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"  # the locked file; it exists while somebody writes

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder if necessary and hold its lock, waiting for other holders; a killed process releases it.

    Where the file system has no locks, nobody waits.
    """
    path = folder / LOCK
    file = _locked_file(path)
    try:
        yield
    finally:
        with suppress(OSError):  # where an open file cannot be removed, it stays
            path.unlink()
        if fcntl is not None:
            with suppress(OSError):  # a forked process would keep the lock if the file were only closed
                fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _locked_file(path: Path) -> int:
    """Return the locked file at the path, and not one that its last owner removed in the meantime."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, _FLAGS, 0o666)
        except FileNotFoundError:  # another writer removed the folder that it had created
            continue
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(file, path):
            return file
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
