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
from typing import Any, TypeVar, overload

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

SECONDS_A_STEP = 4e-7  # of a loop that is interpreted
IF_KEPT = 0.5  # seconds of interpreting in one process, as long as numba and kept kernels take to load
IF_NOT_KEPT = 4.0  # and where kernels would have to be compiled
KERNEL_SOURCES = (
    "compiled.py",
    "machine_code.py",
    "data/matrices.py",
    "data/matrix_kernels.py",
    "data/text",
    "engine",
)  # whose sources decide what a kernel is

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
        name = f"{self.py_func.__module__.rpartition('.')[2]}.{self.py_func.__qualname__}-*.nbi"
        return any(any(folder.glob(name)) for folder in _folders(self.py_func))


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
    """Return the folder to keep a compiled function in, or nothing if none can be written to.

    That is beside the source or, where that cannot be written to, in the user's cache folder; ``NUMBA_CACHE_DIR`` names
    another place. A folder that has kernels already is taken even so, as in an image that was built by another user.
    """
    for folder in _folders(function):
        if any(folder.glob("*.nbi")) or _can_be_written(folder):
            return folder
    return None


def _folders(function: Callable[..., Any]) -> list[Path]:
    """Return where a compiled function may be kept: folders for the present state of the sources alone.

    A kernel is stale when any that it calls has changed, in whatever file, and cannot even be read when the types of
    its arguments have moved, as after an upgrade.
    """
    name = f"hinet-{_digest_of_sources()}"
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        return [Path(given) / name]
    return [Path(function.__code__.co_filename).parent / "__pycache__" / name, _user_cache() / "hinet" / name]


def _user_cache() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _can_be_written(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


@functools.cache
def _digest_of_sources() -> str:
    """Return a short name for the state of all sources that kernels are made of."""
    digest = hashlib.blake2b(digest_size=6)
    for name in KERNEL_SOURCES:
        source = Path(__file__).parent / name
        for path in [source] if source.is_file() else sorted(source.rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
