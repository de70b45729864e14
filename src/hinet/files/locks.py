"""A lock on a folder, so that several processes and threads write to it one at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: writers are not separated there
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"  # the locked file; it exists while somebody writes

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
_HOLDER = threading.local()  # its `folders`: process id and folder of each lock that the thread holds


@contextmanager
def locked(folder: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Create a folder if necessary and hold its lock, waiting for other holders; a killed process releases it.

    ``waiting`` is called once before the wait, if there is one. A thread that holds the lock may take it again. Where
    the file system has no locks, nobody waits.
    """
    held: set[tuple[int, Path]] = _HOLDER.__dict__.setdefault("folders", set())
    key = os.getpid(), folder.resolve()  # a forked process inherits the set, but not the lock
    if key in held:
        yield
        return
    path = folder / LOCK
    file = _locked_file(path, waiting)
    held.add(key)
    try:
        yield
    finally:
        held.discard(key)
        with suppress(OSError):  # where an open file cannot be removed, it stays
            path.unlink()
        if fcntl is not None:
            with suppress(OSError):  # a forked process would keep the lock if the file were only closed
                fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _locked_file(path: Path, waiting: Callable[[], None] | None) -> int:
    """Return the locked file at the path, and not one that its last owner removed in the meantime."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, _FLAGS, 0o666)
        except FileNotFoundError:  # another writer removed the folder that it had created
            continue
        if _must_wait(file):
            if waiting is not None:
                waiting()
                waiting = None
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(file, path):
            return file
        os.close(file)


def _must_wait(file: int) -> bool:
    """Lock a file if nobody else holds it; return whether somebody does."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # the file system has no locks
            return False
    return False


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
