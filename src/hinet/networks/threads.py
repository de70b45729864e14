"""How many threads torch computes with, and that a forked process has but one.

A process that is forked has a copy of OpenMP's pool without its threads: the first operation that asks the pool would
wait for ever. With one thread no operation asks it, as in the workers of torch's own data loader.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hinet.parameters import resolve_threads

_forked = False


def _after_fork() -> None:
    global _forked
    _forked = True
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):  # not on Windows, which forks nothing
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Let torch use so many threads for a while, in a forked process one; None leaves it as it is."""
    before = torch.get_num_threads()
    if threads is not None and not _forked:
        torch.set_num_threads(min(resolve_threads(threads), os.cpu_count() or 1))
    try:
        yield
    finally:
        if threads is not None and not _forked:
            torch.set_num_threads(before)
