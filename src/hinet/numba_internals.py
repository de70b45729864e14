"""Numba internals that let kernels compile faster and be cached by content; used only for tested versions."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from numba import types
from numba.core import caching, codegen, compiler, compiler_machinery, typed_passes

from hinet.compiled import digest_of, folder_for
from hinet.machine_code import SAVING

DAY = 86_400.0  # seconds
MAX_DAYS_UNUSED = 30


class _InlinedCode(codegen.JITCodeLibrary):
    """The code of an inlined function: linked into its callers, but never compiled to machine code by itself.

    This halves the time to compile. It is still optimised by itself first, so that its loops are the same in all
    callers.
    """

    def _finalize_final_module(self) -> None:
        self._finalized = True

    @property
    def codegen(self) -> Any:
        return SimpleNamespace(set_env=lambda name, environment: None)  # code that is not loaded has no globals to set


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


INLINED_OPTIONS: dict[str, Any] = {"no_cfunc_wrapper": True, "pipeline_class": _InlinedCompiler}


class _Locator(caching._CacheLocator):
    """Gives numba the folder and the file names of a kernel, which contain its digest."""

    def __init__(self, function: Callable[..., Any], folder: str) -> None:
        self._digest, self._folder = digest_of(function), folder

    def get_cache_path(self) -> str:
        return self._folder

    def get_source_stamp(self) -> str:
        return self._digest

    def get_disambiguator(self) -> str:
        return self._digest

    def ensure_cache_path(self) -> None:
        """Do nothing: the folder exists."""

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> _Locator | None:
        folder = folder_for(function)
        return None if folder is None else cls(function, str(folder))


class _KernelCacheImpl(caching.CompileResultCacheImpl):
    _locator_classes: Any = (_Locator,)


class KernelCache(caching.FunctionCache):
    """The cache of one kernel, by the digest of its code."""

    _impl_class = _KernelCacheImpl

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the compiled kernel for a signature, or None."""
        try:
            return super().load_overload(signature, context)
        except (AttributeError, ImportError):  # a record that the kernel was compiled for has left its module
            with contextlib.suppress(OSError):
                self.flush()
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Save a compiled kernel if the folder allows it."""
        # a full disk, a read-only folder, or another version of hinet that writes to the same folder
        with SAVING, contextlib.suppress(OSError, AttributeError, ImportError):
            super().save_overload(signature, compiled)
            remove_unused(Path(self.cache_path))

    def _index_key(self, signature: Any, codegen: Any) -> Any:
        """Add the names of fields, as code refers to the fields of a record by position."""
        return *super()._index_key(signature, codegen), *map(_fields, signature)

    def mark_as_used(self) -> None:
        """Update the time of the last use, once per day."""
        index = Path(self.cache_path, f"{self._impl.filename_base}.nbi")
        with contextlib.suppress(OSError):
            if time.time() - index.stat().st_mtime > DAY:
                os.utime(index)


def _fields(kind: Any) -> Any:
    """Return the names of the fields of a record and of the records in it."""
    within = getattr(kind, "types", None) or [kind.dtype] if isinstance(kind, types.BaseTuple) else ()  # type: ignore[attr-defined]
    return getattr(kind, "fields", ()), *map(_fields, within)


def remove_unused(folder: Path) -> None:
    """Remove the files of kernels that have not been used for a month, such as those of an earlier version."""
    oldest = time.time() - MAX_DAYS_UNUSED * DAY
    for index in folder.glob("*.nbi"):
        with contextlib.suppress(OSError):
            if index.stat().st_mtime < oldest:
                for file in folder.glob(f"{index.stem}.*"):
                    file.unlink(missing_ok=True)
