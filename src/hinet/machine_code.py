"""Compilation of kernels by numba, through its public interface.

Tested versions of numba also use :mod:`hinet.numba_internals`, which halves the time to compile and names cached files
by the content of a kernel. Other versions compile with ``numba.njit(cache=True)``: slower the first time, same results
up to rounding.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from threading import Lock
from typing import Any

import numba
from numba import njit
from numba.core import event
from numba.extending import register_jitable

from hinet.compiled import INLINED

TESTED_VERSIONS = ("0.68",)  # releases of numba with known internals
# Sums may be reordered, products fused and roots approximated; NaN and infinity keep their meaning.
# A loop that sums fractions must not store anything: if stores might overlap, the addresses of arrays decide at run
# time whether the loop is vectorised, and so the order of the sum.
FAST = frozenset({"reassoc", "contract", "arcp", "nsz", "afn"})
SAVING = Lock()  # held while files are written, so that a worker does not end before


def is_tested(version: str = numba.__version__) -> bool:
    """Return whether the internals of this version of numba are known.

    >>> is_tested("0.68.1"), is_tested("1.0.0")
    (True, False)
    """
    return ".".join(version.split(".")[:2]) in TESTED_VERSIONS


def dispatcher_of(function: Callable[..., Any]) -> Any:
    """Return a dispatcher that compiles a kernel, or loads it from the cache if there is a folder for it.

    With an untested numba the cache is numba's own: it does not notice edits to functions of other modules.
    """
    options: dict[str, Any] = {"nogil": True, "fastmath": set(FAST)}
    inlined_options: dict[str, Any] = {"fastmath": set(FAST), "forceinline": True}
    if is_tested():
        from hinet.numba_internals import INLINED_OPTIONS, KernelCache

        _register_inlined(inlined_options | INLINED_OPTIONS)
        dispatcher: Any = njit(function, **options)
        with contextlib.suppress(RuntimeError):  # no folder is writable
            dispatcher._cache = KernelCache(function)
            dispatcher._cache.mark_as_used()
        return dispatcher
    _register_inlined(inlined_options)
    try:
        return njit(function, cache=True, **options)
    except RuntimeError:  # no folder is writable
        return njit(function, **options)


def _register_inlined(options: dict[str, Any]) -> None:
    """Let numba compile calls of the functions that kernels inline."""
    while INLINED:
        register_jitable(**options)(INLINED.pop())


class _FirstCompilation(event.Listener):
    """Logs the first compilation of a kernel in a process, to explain the wait."""

    def __init__(self) -> None:
        self.logged = False

    def on_start(self, event: Any) -> None:
        """Log the first compilation."""
        if not self.logged and event.data["dispatcher"].py_func.__module__.startswith("hinet."):
            self.logged = True
            sys.stderr.write("hinet: compiling for this machine; this is kept and happens once\n")
            sys.stderr.flush()

    def on_end(self, event: Any) -> None:
        """No-op."""


event.register("numba:compile", _FirstCompilation())
