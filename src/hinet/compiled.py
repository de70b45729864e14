"""Kernels: functions in a subset of Python that are compiled for this machine, or interpreted for small inputs.

A kernel is compiled by :mod:`hinet.machine_code` when it is first needed, and cached on disk. Loading numba and
compiling takes seconds, so a process that answers a few rows interprets their kernels as Python. Answers agree to about
six digits, not bit for bit; so training is never interpreted.

Kernels do not start threads. Work on many rows is split into blocks that a thread pool runs in parallel, so kernels may
be called from any number of threads at once. A compiled kernel releases the interpreter's lock.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, overload

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

SECONDS_PER_STEP = 4e-7  # time of an interpreted loop iteration
BUDGET_IF_CACHED = 0.5  # seconds of interpretation per process, about the time to load numba and cached kernels
BUDGET_IF_NOT_CACHED = 4.0  # the same if kernels would have to be compiled
FOLDER = "hinet-kernels"
PACKAGE = __name__.partition(".")[0]

INLINED: list[Callable[..., Any]] = []  # functions that are not registered with numba yet


def inlined(function: Function) -> Function:
    """Let kernels call a function, which is inlined into them; in Python it is unchanged.

    Without inlining, the linker would choose between several compiled versions of a function, which may round
    differently.
    """
    INLINED.append(function)
    return function


class Kernel:
    """A function that is compiled by numba, or interpreted if ``steps`` estimates few loop iterations.

    Without ``steps`` it is always compiled.
    """

    __name__: str

    def __init__(self, function: Callable[..., Any], steps: Callable[..., float] | None) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.steps = function, steps
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:  # noqa: D102 as the function
        if _process.listener is not None:
            _process.listener(self, arguments)
            return self.interpreted(*arguments)
        if self._compiled is not None:
            return self._compiled(*arguments)
        if self.steps is not None and _process.can_interpret(self, arguments):
            start = time.perf_counter()
            try:
                return self.interpreted(*arguments)
            finally:
                _process.spent += time.perf_counter() - start
        return self.compiled(*arguments)

    def interpreted(self, *arguments: Any) -> Any:
        """Return the result of the function interpreted as Python."""
        with np.errstate(all="ignore"):  # integers overflow silently, as in machine code
            return self.py_func(*arguments)

    @property
    def compiled(self) -> Any:
        """Numba dispatcher, which compiles for the types of a call or loads a cached version."""
        if _process.claim is not None:
            _process.claim(self.__name__)
        with _process.lock:
            if self._compiled is None:
                from hinet.machine_code import dispatcher_of

                compile_from_now_on()
                self._compiled = dispatcher_of(self.py_func)
            return self._compiled

    def is_cached(self) -> bool:
        """Return whether an earlier process cached a compiled version, for any argument types."""
        return any(_has(folder, self.py_func) for folder in _folders(self.py_func))


@overload
def kernel(function: Callable[..., Any]) -> Kernel: ...
@overload
def kernel(*, steps: Callable[..., float]) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(function: Callable[..., Any] | None = None, *, steps: Callable[..., float] | None = None) -> Any:
    """Make a function a :class:`Kernel`; ``steps`` takes the same arguments and allows interpretation."""
    return functools.partial(Kernel, steps=steps) if function is None else Kernel(function, steps)


class _Process:
    """State that the kernels of this process share."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.spent = 0.0  # seconds of interpretation
        self.interprets = True
        self.listener: Callable[[Kernel, tuple[Any, ...]], None] | None = None
        self.claim: Callable[[str], None] | None = None

    def can_interpret(self, called: Kernel, arguments: tuple[Any, ...]) -> bool:
        """Return whether interpreting a call is faster than loading numba and the kernel."""
        if not self.interprets or called.steps is None:
            return False
        seconds = self.spent + SECONDS_PER_STEP * called.steps(*arguments)
        return seconds < BUDGET_IF_CACHED or (seconds < BUDGET_IF_NOT_CACHED and not called.is_cached())


_process = _Process()


def compile_from_now_on() -> None:
    """Stop interpreting kernels in this process, so that trained models do not depend on timing."""
    _process.interprets = False


@contextmanager
def interpreting(listener: Callable[[Kernel, tuple[Any, ...]], None]) -> Iterator[None]:
    """Interpret all kernels of this process and call ``listener`` for each call."""
    _process.listener = listener
    try:
        yield
    finally:
        _process.listener = None


def claimed_by(claim: Callable[[str], None]) -> None:
    """Call ``claim(name)`` before compiling a kernel; it may wait for other processes."""
    _process.claim = claim


def folder_for(function: Callable[..., Any]) -> Path | None:
    """Return the cache folder of a compiled function, or None if no folder is writable.

    It is next to the source or, if that is read-only, in the user's cache folder; ``NUMBA_CACHE_DIR`` overrides both. A
    folder that contains the function is used even if it is read-only, as in a container image.
    """
    for folder in _folders(function):
        if _has(folder, function) or _can_be_written(folder):
            return folder
    return None


def _has(folder: Path, function: Callable[..., Any]) -> bool:
    return any(folder.glob(f"*.{function.__name__}-{digest_of(function)}.*.nbi"))


def _folders(function: Callable[..., Any]) -> list[Path]:
    """Return the possible cache folders of a compiled function."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return [Path(given) / FOLDER]
    return [Path(function.__code__.co_filename).parent / "__pycache__" / FOLDER, user_cache() / FOLDER]


def user_cache() -> Path:
    """Return the cache folder of the user."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    home = os.environ.get("XDG_CACHE_HOME", "")
    return Path(home) if home.startswith("/") else Path.home() / ".cache"


def _can_be_written(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def functions_of(function: Callable[..., Any]) -> list[FunctionType]:
    """Return a function and all functions of the package that it calls, directly or indirectly.

    >>> [each.__name__ for each in functions_of(folder_for)]
    ['folder_for', '_can_be_written', '_has', '_folders', 'user_cache']
    """
    functions: dict[FunctionType, None] = {}
    waiting: list[Any] = [function]
    while waiting:
        each = waiting.pop()
        if each not in functions:
            functions[each] = None
            waiting += [value for value in _globals_of(each).values() if _is_ours(value)]
    return list(functions)


@functools.cache
def digest_of(function: Callable[..., Any]) -> str:
    """Return a digest of everything that decides the machine code of a function.

    This is the bytecode and the constants of all functions that it calls, and the modules that compile them. The fields
    of records that it is called with are part of numba's index instead.
    """
    digest = hashlib.blake2b(digest_size=6)
    for name in ("machine_code.py", "numba_internals.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    for each in functions_of(function):
        digest.update(_content(each))
    return digest.hexdigest()


@functools.cache
def _content(function: FunctionType) -> bytes:
    named = {name: _description(value) for name, value in _globals_of(function).items()}
    code = function.__code__
    if function.__doc__ is not None:
        code = code.replace(co_consts=(None, *code.co_consts[1:]))  # without the docstring
    parts = function.__name__, _description(code), _description(function.__defaults__), named
    return repr(parts).encode()


@functools.cache
def _globals_of(function: FunctionType) -> dict[str, Any]:
    """Return the global values that the code of a function names."""
    codes, names = [function.__code__], dict[str, None]()
    while codes:
        code = codes.pop()
        names |= dict.fromkeys(code.co_names)
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {name: function.__globals__[name] for name in names if name in function.__globals__}


def _is_ours(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__module__.partition(".")[0] == PACKAGE


def _description(value: Any) -> Any:
    """Return a constant as a value with the same ``repr`` in every process."""
    match value:
        case CodeType():
            constants = [_description(constant) for constant in value.co_consts]
            names = value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars
            return value.co_code, constants, names, value.co_argcount
        case type():
            return value.__module__, value.__qualname__, getattr(value, "_fields", None)
        case tuple():
            return [_description(item) for item in value]
        case frozenset():
            return sorted(repr(_description(item)) for item in value)
        case np.ndarray():
            return value.dtype.str, value.shape, value.tobytes()
        case np.generic():
            return value.dtype.str, value.tobytes()
        case ModuleType() | FunctionType() | BuiltinFunctionType():
            return value.__name__
        case None | bool() | int() | float() | complex() | str() | bytes():
            return value
        case _:
            return type(value).__qualname__  # numba cannot use it: only its name matters
