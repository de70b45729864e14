"""Start processes with a time limit, so that no test hangs."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Timer
from typing import Any

LONGEST = 400.0  # seconds, enough for a busy machine that compiles everything
PAUSE = 0.01  # seconds between two looks at a condition, for the process that is waited for

Command = Sequence[str | Path]


def run(command: Command, seconds: float = LONGEST, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command for at most ``seconds``; return its exit code and output, by default as text."""
    streams = {} if "stdout" in options else {"capture_output": True}
    return subprocess.run(command, check=False, timeout=seconds, **{"text": True, **streams, **options})


@contextmanager
def started(command: Command, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Yield a running command, which is killed if the block takes too long."""
    with subprocess.Popen(command, **{"text": True, **options}) as process:
        timer = Timer(LONGEST, process.kill)
        timer.start()
        try:
            yield process
            process.wait(timeout=LONGEST)
        finally:
            timer.cancel()
            if process.poll() is None:
                process.kill()


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Poll a condition until it is true; raise AssertionError after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not true within {seconds:g} seconds"
        Event().wait(PAUSE)


def killed_before(step: int, action: Callable[[], object]) -> bool:
    """Run an action in a fork that is killed before its ``step``-th flush, rename or removal of a file.

    A file that it was about to flush stays half written. Return False if the action ended before.
    """
    child = os.fork()
    if not child:
        code = 1
        try:
            signal.alarm(int(LONGEST))
            _kill_before(step)
            action()
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code != 0


def _kill_before(step: int) -> None:
    steps = itertools.count(1)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(file: Any, *arguments: Any, **options: Any) -> Any:
            if next(steps) == step:
                if isinstance(file, int):
                    os.ftruncate(file, os.fstat(file).st_size // 2)
                os.kill(os.getpid(), signal.SIGKILL)
            return function(file, *arguments, **options)

        return call

    for name in ("fsync", "replace", "rename", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
