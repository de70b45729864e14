"""The lock of a folder: one writer at a time, which may take it again; a killed one leaves nothing behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import pytest

from hinet.files import LOCK, locked
from tests.processes import LONGEST, started

HOLD = """
import sys
from pathlib import Path
from hinet.files import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_holder_may_take_the_lock_again_and_others_wait(tmp_path: Path) -> None:
    waits, order = threading.Event(), []

    def other() -> None:
        with locked(tmp_path, waiting=waits.set):
            order.append("other")

    with locked(tmp_path):
        thread = threading.Thread(target=other)
        with locked(tmp_path):
            thread.start()
            assert waits.wait(LONGEST)
        assert (tmp_path / LOCK).exists()
        order.append("first")
    thread.join(LONGEST)
    assert order == ["first", "other"]
    assert not (tmp_path / LOCK).exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such locks")
def test_a_killed_holder_releases_the_lock(tmp_path: Path) -> None:
    with started([sys.executable, "-c", HOLD, str(tmp_path)], stdin=PIPE, stdout=PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(LONGEST)
        assert (tmp_path / LOCK).exists()
        waits = []
        with locked(tmp_path, waiting=lambda: waits.append(1)):
            assert not waits
