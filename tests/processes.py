"""Start processes with a time limit, so that no test hangs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

LONGEST = 400.0  # seconds, enough for a busy machine that compiles everything

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
