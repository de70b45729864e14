"""How numba compiles kernels, and where it keeps them: the only module that imports numba."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

from numba import njit, types
from numba.core import caching, codegen, compiler, compiler_machinery, event, typed_passes
from numba.extending import register_jitable

from hinet.compiled import INLINED, digest_of, folder_for

# Sums may be taken in any order, products fused and roots approximated; NaN and infinity keep their meaning.
# A loop that sums up fractions must store nothing: where stores might overlap, the place of arrays in memory decides,
# as it runs, whether it takes several values at once, and so in which order it adds.
FAST = frozenset({"reassoc", "contract", "arcp", "nsz", "afn"})
DAY = 86_400.0  # seconds
MAX_DAYS_UNUSED = 30
SAVING = Lock()  # held while files are written; a worker does not end before


def dispatcher_of(function: Callable[..., Any]) -> Any:
    """Return a dispatcher that compiles a kernel, or loads it, and keeps it where that is possible."""
    while INLINED:
        _make_known(INLINED.pop())
    dispatcher: Any = njit(function, nogil=True, fastmath=set(FAST))
    with contextlib.suppress(RuntimeError):  # no folder can be written to
        dispatcher._cache = _KernelCache(function)
        dispatcher._cache.mark_as_used()
    return dispatcher


def _make_known(function: Callable[..., Any]) -> None:
    """Let numba compile calls of a function."""
    register_jitable(
        fastmath=set(FAST), forceinline=True, no_cfunc_wrapper=True, pipeline_class=_InlinedCompiler
    )(function)  # fmt: skip


class _InlinedCode(codegen.JITCodeLibrary):
    """The code of an inlined function: linked into that of its callers, and never made machine code by itself.

    That takes half of the time to compile. It is still optimised by itself first, so that the loops in it come out the
    same in all callers, however large they are.
    """

    def _finalize_final_module(self) -> None:
        self._finalized = True

    @property
    def codegen(self) -> Any:
        return SimpleNamespace(set_env=lambda name, environment: None)  # what is not loaded has no globals to set


@compiler_machinery.register_pass(mutates_CFG=False, analysis_only=False)
class _IntoInlinedCode(compiler_machinery.LoweringPass):
    _name = "hinet_into_inlined_code"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        state.library = _InlinedCode(state.targetctx.codegen(), state.func_id.func_qualname)
        return True


class _InlinedCompiler(compiler.CompilerBase):
    def define_pipelines(self) -> list[Any]:
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_IntoInlinedCode, typed_passes.AnnotateTypes)
        passes.finalize()
        return [passes]


class _Locator(caching._CacheLocator):
    """Tells numba the folder and the file names of a kernel, which have its digest."""

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        self._digest, self._folder = digest_of(function), folder

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return self._digest

    def get_disambiguator(self) -> str:
        return self._digest

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder is there."""

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator | None:
        folder = folder_for(function)
        return None if folder is None else cls(function, str(folder))


class _KernelCacheImpl(caching.CompileResultCacheImpl):
    _locator_classes: Any = (_Locator,)


class _KernelCache(caching.FunctionCache):
    _impl_class = _KernelCacheImpl

    def load_overload(self, signature: Any, context: Any) -> Any:
        try:
            return super().load_overload(signature, context)
        except (AttributeError, ImportError):  # a record that the kernel was compiled for is gone from its module
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        with SAVING, contextlib.suppress(OSError):  # a full disk, or a folder that may only be read
            super().save_overload(signature, compiled)
            remove_unused(Path(self.cache_path))

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        """Add the names of fields: code knows the fields of a record by their positions."""
        return *super()._index_key(signature, codegen), *map(_fields, signature)

    def mark_as_used(self) -> None:
        """Set the time of the last use, to the day."""
        index = Path(self.cache_path, f"{self._impl.filename_base}.nbi")
        with contextlib.suppress(OSError):
            if time.time() - index.stat().st_mtime > DAY:
                os.utime(index)


def _fields(kind: Any) -> Any:
    """Return the names of the fields of a record, and those of the records in it."""
    within = getattr(kind, "types", None) or [kind.dtype] if isinstance(kind, types.BaseTuple) else ()  # type: ignore[attr-defined]
    return getattr(kind, "fields", ()), *map(_fields, within)


def remove_unused(folder: Path) -> None:
    """Remove the files of kernels that no process has used for a month, such as those of an earlier version."""
    oldest = time.time() - MAX_DAYS_UNUSED * DAY
    for index in folder.glob("*.nbi"):
        with contextlib.suppress(OSError):
            if index.stat().st_mtime < oldest:
                for file in folder.glob(f"{index.stem}.*"):
                    file.unlink(missing_ok=True)


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


event.register("numba:compile", _FirstCompilation())
