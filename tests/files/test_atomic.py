"""Atomic writes, and locks on folders."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from subprocess import PIPE

import pytest

from hinet import FileError
from hinet.files import LOCK, atomic, locked
from hinet.files.atomic import new_folder, write_text
from tests.processes import LONGEST, started


def test_an_old_file_stays_whole_until_the_new_one_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.txt"
    write_text(target, "old")

    def fail(_: int) -> None:
        assert target.read_text() == "old"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", fail)
    with pytest.raises(FileError, match="cannot be written: No space left on device"):
        write_text(target, "new")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_path_with_nul_raises(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot be written"):
        write_text(str(tmp_path / "a\0b"), "text")


def test_files_that_appear_in_a_new_folder_meanwhile_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    target.mkdir()
    with pytest.raises(FileError, match="cannot be written"), new_folder(target):
        (target / "mine.txt").write_text("precious")
    assert (target / "mine.txt").read_text() == "precious"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with new_folder(target) as unfinished:
        (unfinished / "file.txt").write_text("new")
        assert not target.exists()
    assert [file.name for file in tmp_path.rglob("*")] == ["folder", "file.txt"]
    with pytest.raises(FileError, match="exists already; name a new folder"), new_folder(target):
        pass
    assert (target / "file.txt").read_text() == "new"


def test_a_failure_leaves_no_folder(tmp_path: Path) -> None:
    def fail(unfinished: Path) -> None:
        (unfinished / "file.txt").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="cannot be written: No space left"), new_folder(tmp_path / "a") as unfinished:
        fail(unfinished)
    assert not list(tmp_path.iterdir())


HOLD = """
import sys
from pathlib import Path
from hinet.files import locked

with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_holder_may_lock_again_and_others_wait(tmp_path: Path) -> None:
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
