from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hinet.cluster import Cluster, connected

WORKERS = 2


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Ray on this machine, started once for all tests."""
    chosen = Cluster("local", WORKERS)
    with connected(chosen):
        yield chosen


def workers_of(title: str) -> list[int]:
    """Return the processes of Ray with such a title that this process has started."""
    return [pid for pid in _processes() if _title(pid).startswith(f"ray::{title}") and _is_ours(pid)]


@contextmanager
def one_killed(title: str, is_time: Callable[[], bool]) -> Iterator[list[int]]:
    """Kill one worker with -9 as soon as it is time, and yield what was killed."""
    killed: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            found = workers_of(title)
            if found and is_time():
                os.kill(found[0], signal.SIGKILL)
                killed.append(found[0])
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield killed
    finally:
        over.set()
        thread.join()


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _is_ours(pid: int) -> bool:
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == os.getpid()
