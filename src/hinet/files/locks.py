"""One writer at a time: a lock on a folder that several processes and threads write to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # a system without these locks: there writers are not kept apart
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"  # the file that is locked; it is there as long as somebody writes

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make a folder if need be and hold its lock, waiting for whoever holds it; a process that dies lets go of it.

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
            with suppress(OSError):  # by closing alone, a process that was forked meanwhile would keep the lock
                fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _locked_file(path: Path) -> int:
    """Return the open and locked file that has the path, and not one that its last owner removed meanwhile."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, _FLAGS, 0o666)
        except FileNotFoundError:  # another writer removed the folder that it had made
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
