"""Memory limit of this process."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from hinet.errors import HiNetError

GB = 1e9
CONTAINER_LIMITS = (  # control groups, version 2 and version 1
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def total_memory() -> int:
    """Return the bytes this process may use: the smallest limit of the machine, the container and the process."""
    limits = [sys.maxsize]
    with suppress(AttributeError, ValueError, OSError):  # not every system reports it
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no such limit, or "max"
            limits.append(int(file.read_text()))
    with suppress(ImportError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [limit] if limit != resource.RLIM_INFINITY else []
    return min(number for number in limits if number > 0)


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Raise HiNetError if ``needed`` bytes exceed the memory of this process."""
    available = total_memory()
    if needed > available:
        raise HiNetError(f"{what}, more than the {available / GB:.2f} GB of memory available; {remedy}")
