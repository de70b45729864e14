"""How numba compiles kernels, and where it keeps them: the only module that imports numba."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from numba import njit
from numba.core import caching, codegen, compiler, compiler_machinery, event, typed_passes
from numba.extending import register_jitable

from hinet.compiled import INLINED, folder_for

# Sums may be taken in any order, products fused and roots approximated; NaN and infinity keep their meaning.
# A loop that sums up fractions must store nothing: where stores might overlap, the place of arrays in memory decides,
# as it runs, whether it takes several values at once, and so in which order it adds.
FAST = frozenset({"reassoc", "contract", "arcp", "nsz", "afn"})


def dispatcher_of(function: Callable[..., Any]) -> Any:
    """Return a dispatcher that compiles a kernel, or loads it, and keeps it where that is possible."""
    while INLINED:
        _make_known(INLINED.pop())
    dispatcher: Any = njit(function, nogil=True, fastmath=set(FAST))
    with contextlib.suppress(RuntimeError):  # no folder can be written to
        dispatcher._cache = _KernelCache(function)
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
    """Tells numba which folder to keep a kernel in; its name stands for the state of all sources."""

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        self._function, self._folder = function, folder

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return Path(self._folder).name

    def get_disambiguator(self) -> str:
        return str(self._function.__code__.co_firstlineno)

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

    def save_overload(self, signature: Any, compiled: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk, or a folder that may only be read
            super().save_overload(signature, compiled)


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
