"""Threads and devices of torch.

A forked process has a copy of the OpenMP pool without its threads, so the first operation that uses the pool would wait
forever. With one thread no operation uses it; the workers of torch's own data loader do the same.
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


if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_after_fork)


@contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Set the number of torch threads within a block; None leaves it unchanged. A forked process always has one."""
    if threads is None or _forked:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(min(resolve_threads(threads), os.cpu_count() or 1))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_network(value: Any) -> bool:
    """Return whether a value is a torch module."""
    return isinstance(value, nn.Module)


def device_name(value: Any) -> str | None:
    """Return the name of a device that torch can compute on here, or None."""
    try:
        return None if torch.empty(0, device=value).is_meta else str(torch.device(value))
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
        return None


def default_device() -> str:
    """Return the GPU if there is one, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"
