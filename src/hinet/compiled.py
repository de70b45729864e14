"""Kernels: functions compiled for this machine by numba, kept on disk, that run without the interpreter's lock.

No kernel starts threads of its own. Work on many rows is cut into blocks that a pool of ordinary threads runs side by
side, so kernels may be called from any number of threads at once, and one row costs no thread.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from numba import njit
from numba.core import caching, event

Function = TypeVar("Function", bound=Callable[..., Any])

# Sums may be taken in any order, products fused and roots approximated; NaN and infinity keep their meaning.
# A loop that sums up fractions must store nothing: where stores might overlap, the place of arrays in memory decides,
# as it runs, whether it takes several values at once, and so in which order it adds.
FAST = frozenset({"reassoc", "contract", "arcp", "nsz", "afn"})
ROOMS = (
    "compiled.py",
    "data/matrices.py",
    "data/matrix_kernels.py",
    "data/text",
    "engine",
)  # whose sources decide what a kernel is


def kernel(function: Function) -> Function:
    """Compile a function on its first call, or load what an earlier process compiled.

    Machine code is kept beside the source, in the user's cache folder where the source cannot be written to, and
    nowhere if neither can; ``NUMBA_CACHE_DIR`` names another place.
    """
    return _compiled(function, inlined=False)


def inlined_kernel(function: Function) -> Function:
    """Compile a function as :func:`kernel` does, right into the kernels that call it.

    It is for steps that compute with fractions, and those of a tight loop. A step that is called has code of its own
    beside what its callers compiled of it; which of them runs, in a process that compiles and in one that loads, is the
    linker's choice, and they may round differently. To hand over many arrays may also take longer than a step itself.
    """
    return _compiled(function, inlined=True)


def _compiled(function: Function, *, inlined: bool) -> Function:
    compiled = njit(function, nogil=True, fastmath=set(FAST), forceinline=inlined)
    with contextlib.suppress(RuntimeError):  # no folder can be written to
        compiled._cache = _KernelCache(function)  # type: ignore[no-untyped-call]
    return compiled  # type: ignore[no-any-return]


def _digest_of_sources() -> str:
    """Return a short name for the state of all sources that kernels are made of."""
    digest = hashlib.blake2b(digest_size=6)
    for room in ROOMS:
        place = Path(__file__).parent / room
        for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _in_folder_of_its_own(locator: type) -> type:
    """Return numba's locator with a folder for each state of the sources.

    Numba looks at the file of the kernel alone. A kernel is stale as well when one it calls in another file changes,
    and cannot even be read when the types of its arguments have moved, as after an upgrade.
    """

    def get_cache_path(self: Any) -> str:
        return str(Path(locator.get_cache_path(self)) / f"hinet-{_SOURCES}")  # type: ignore[attr-defined]

    return type(locator.__name__, (locator,), {"get_cache_path": get_cache_path})


_SOURCES = _digest_of_sources()


class _KernelCacheImpl(caching.CompileResultCacheImpl):
    _locator_classes: Any = tuple(map(_in_folder_of_its_own, caching.CacheImpl._locator_classes))


class _KernelCache(caching.FunctionCache):
    _impl_class = _KernelCacheImpl


class _FirstCompilation(event.Listener):
    """Says once in a process that kernels are being compiled, so that nobody wonders at the wait."""

    def __init__(self) -> None:
        self.said = False

    def on_start(self, event: Any) -> None:
        """Speak up at the first kernel of ours."""
        if not self.said and event.data["dispatcher"].py_func.__module__.startswith("hinet."):
            self.said = True
            sys.stderr.write("hinet: compiling for this machine; this is kept and happens once\n")
            sys.stderr.flush()

    def on_end(self, event: Any) -> None:
        """Say nothing of the end."""


event.register("numba:compile", _FirstCompilation())  # type: ignore[no-untyped-call]
