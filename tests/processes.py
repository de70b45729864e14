"""Processes that tests start, each of which is ended if it takes too long, so that no test hangs."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

LONGEST = 400.0  # seconds, for a machine that compiles everything and has other work to do

Command = Sequence[str | Path]


def run(command: Command, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, and return its exit code and, unless told otherwise, what it wrote as text."""
    streams = {} if "stdout" in options else {"capture_output": True}
    return subprocess.run(command, check=False, timeout=LONGEST, **{"text": True, **streams, **options})


@contextmanager
def started(command: Command, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Yield a command that runs; it is killed if the block takes too long."""
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
