"""What torch computes with: how many threads, of which a forked process has but one, and on which device.

A process that is forked has a copy of OpenMP's pool without its threads: the first operation that asks the pool would
wait for ever. With one thread no operation asks it, as in the workers of torch's own data loader.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

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


def is_network(value: Any) -> bool:
    """Return whether a value is a network of torch."""
    return isinstance(value, nn.Module)


def device_name(value: Any) -> str | None:
    """Return the name of a device that torch finds here and can compute on, or None."""
    try:
        return None if torch.empty(0, device=value).is_meta else str(torch.device(value))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
        return None
