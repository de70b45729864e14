"""Kernels: functions in a subset of Python that are compiled for this machine, or interpreted where little is to do.

A kernel is compiled by numba when it is first needed, and kept on disk; :mod:`hinet.machine_code` knows how. To load
numba and compile takes seconds, so a process that answers a few rows has their kernels interpreted as they stand.
Answers agree to about six digits, not to the last bit; so what trains is never interpreted.

No kernel starts threads of its own. Work on many rows is cut into blocks that a pool of ordinary threads runs side by
side, so kernels may be called from any number of threads at once, and one row costs no thread. A compiled kernel runs
without the interpreter's lock.
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

SECONDS_A_STEP = 4e-7  # of a loop that is interpreted
IF_KEPT = 0.5  # seconds of interpreting in one process, as long as numba and kept kernels take to load
IF_NOT_KEPT = 4.0  # and where kernels would have to be compiled
FOLDER = "hinet-kernels"
PACKAGE = __name__.partition(".")[0]

INLINED: list[Callable[..., Any]] = []  # functions that numba does not know of yet


def inlined(function: Function) -> Function:
    """Let kernels call a function, whose code goes right into theirs; for Python it is what it was.

    A function with code of its own beside what its callers compiled of it may round differently from them, and which
    code runs, in a process that compiles and in one that loads, would be the linker's choice.
    """
    INLINED.append(function)
    return function


class Kernel:
    """A function that Python calls and numba compiles; ``steps`` guesses how often its loops turn for some arguments.

    Without ``steps`` it is always compiled.
    """

    __name__: str

    def __init__(self, function: Callable[..., Any], steps: Callable[..., float] | None) -> None:
        functools.update_wrapper(self, function)
        self.py_func, self.steps = function, steps
        self._compiled: Any = None

    def __call__(self, *arguments: Any) -> Any:  # noqa: D102 what the function says
        if _process.listener is not None:
            _process.listener(self, arguments)
            return self.interpreted(*arguments)
        if self._compiled is not None:
            return self._compiled(*arguments)
        if self.steps is not None and _process.has_time_for(self, arguments):
            start = time.perf_counter()
            try:
                return self.interpreted(*arguments)
            finally:
                _process.spent += time.perf_counter() - start
        return self.compiled(*arguments)

    def interpreted(self, *arguments: Any) -> Any:
        """Return what the function gives when Python interprets it."""
        with np.errstate(all="ignore"):  # whole numbers wrap around, as they do in machine code
            return self.py_func(*arguments)

    @property
    def compiled(self) -> Any:
        """Numba's dispatcher, which compiles for the arguments of a call, or loads what an earlier process compiled."""
        if _process.claim is not None:
            _process.claim(self.__name__)
        with _process.lock:
            if self._compiled is None:
                from hinet.machine_code import dispatcher_of

                compile_from_now_on()
                self._compiled = dispatcher_of(self.py_func)
            return self._compiled

    def is_kept(self) -> bool:
        """Return whether an earlier process left a compiled version, for whatever arguments."""
        return any(_has(folder, self.py_func) for folder in _folders(self.py_func))


@overload
def kernel(function: Callable[..., Any]) -> Kernel: ...
@overload
def kernel(*, steps: Callable[..., float]) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(function: Callable[..., Any] | None = None, *, steps: Callable[..., float] | None = None) -> Any:
    """Make a function a :class:`Kernel`; ``steps`` takes the same arguments, and allows it to be interpreted."""
    return functools.partial(Kernel, steps=steps) if function is None else Kernel(function, steps)


class _Process:
    """What the kernels of this process share."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.spent = 0.0  # seconds of interpreting
        self.interprets = True
        self.listener: Callable[[Kernel, tuple[Any, ...]], None] | None = None
        self.claim: Callable[[str], None] | None = None

    def has_time_for(self, asked: Kernel, arguments: tuple[Any, ...]) -> bool:
        """Return whether a call is interpreted sooner than numba and the kernel would be there."""
        if not self.interprets or asked.steps is None:
            return False
        seconds = self.spent + SECONDS_A_STEP * asked.steps(*arguments)
        return seconds < IF_KEPT or (seconds < IF_NOT_KEPT and not asked.is_kept())


_process = _Process()


def compile_from_now_on() -> None:
    """Interpret no kernel in this process any more: what is trained must not depend on the time something took."""
    _process.interprets = False


@contextmanager
def interpreting(listener: Callable[[Kernel, tuple[Any, ...]], None]) -> Iterator[None]:
    """Interpret all kernels of this process, however long it takes, and tell of each call."""
    _process.listener = listener
    try:
        yield
    finally:
        _process.listener = None


def claimed_by(claim: Callable[[str], None]) -> None:
    """Have the name of every kernel told before it is compiled here, by a call that may wait for other processes."""
    _process.claim = claim


def folder_for(function: Callable[..., Any]) -> Path | None:
    """Return the folder to keep a compiled function in, or None if there is no folder that can be written to.

    It is next to the source or, where that cannot be written to, in the user's cache folder; ``NUMBA_CACHE_DIR`` names
    another place. A folder that has the function is used even if it is read-only, as in an image.
    """
    for folder in _folders(function):
        if _has(folder, function) or _can_be_written(folder):
            return folder
    return None


def _has(folder: Path, function: Callable[..., Any]) -> bool:
    return any(folder.glob(f"*.{function.__name__}-{digest_of(function)}.*.nbi"))


def _folders(function: Callable[..., Any]) -> list[Path]:
    """Return the folders that a compiled function may be kept in."""
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
    """Return a function and all functions of the package that it calls, directly or not.

    >>> [each.__name__ for each in functions_of(folder_for)]
    ['folder_for', '_can_be_written', '_has', '_folders', 'user_cache']
    """
    found: dict[FunctionType, None] = {}
    waiting: list[Any] = [function]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found[each] = None
            waiting += [value for value in _globals_of(each).values() if _is_ours(value)]
    return list(found)


@functools.cache
def digest_of(function: Callable[..., Any]) -> str:
    """Return a short name for what decides the machine code of a function.

    That is the bytecode and the constants of all functions it is made of, and how they are compiled. An edit elsewhere
    changes nothing. The fields of records that it is called with are not known here, and are part of numba's index.
    """
    digest = hashlib.blake2b(_way_of_compiling(), digest_size=6)
    for each in functions_of(function):
        digest.update(_content(each))
    return digest.hexdigest()


@functools.cache
def _content(function: FunctionType) -> bytes:
    named = {name: _description(value) for name, value in _globals_of(function).items()}
    parts = function.__name__, _description(function.__code__), _description(function.__defaults__), named
    return repr(parts).encode()


@functools.cache
def _way_of_compiling() -> bytes:
    return Path(__file__).with_name("machine_code.py").read_bytes()


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
    """Return what code makes of a constant, as a value with the same ``repr`` in every process."""
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
            return type(value).__qualname__  # numba cannot use it: it only has the name of an attribute
