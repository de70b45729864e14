"""How much memory there is for this process: the one place that knows."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from hinet.errors import HiNetError

GB = 1e9
CONTAINER_LIMITS = (  # of the control group that a container runs in, in its second and first version
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def total_memory() -> int:
    """Return the bytes this process may use at most: those of the machine, the container, or a limit that was set."""
    known = [sys.maxsize]
    with suppress(AttributeError, ValueError, OSError):  # where the system does not tell
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for file in CONTAINER_LIMITS:
        with suppress(OSError, ValueError):  # no such limit, or "max"
            known.append(int(file.read_text()))
    with suppress(ImportError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        known += [limit] if limit != resource.RLIM_INFINITY else []
    return min(number for number in known if number > 0)


def require_memory(needed: int, what: str, remedy: str) -> None:
    """Raise HiNetError if something takes more bytes than there are."""
    most = total_memory()
    if needed > most:
        raise HiNetError(f"{what}, more than the {most / GB:.2f} GB of memory there is; {remedy}")
