"""Several save to one folder, others read it: everyone gets one whole model, and nothing is left lying about."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hinet import FileError, HiNetClassifier, load
from hinet.classifier.saved_model import read_description
from hinet.cli import main
from hinet.files import atomic, locked
from tests.classifier.data import small, texts
from tests.processes import LONGEST

TEXTS, LABELS = texts()
NEW, _ = texts(10, seed=1)
SAVES = 10


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models with different labels, features and weights."""
    folders = [tmp_path_factory.mktemp("saved") / name for name in ("first", "second")]
    small().fit(TEXTS, LABELS).save(folders[0])
    small(random_state=5, epochs=2).fit(TEXTS[:40], [f"any {label}" for label in LABELS[:40]]).save(folders[1])
    return folders


@contextmanager
def saving(model: HiNetClassifier, target: Path, times: int) -> Iterator[tuple[BaseProcess, Any]]:
    """Save repeatedly from another process, which must end in time; yield it with an event set at its start."""
    fork = get_context("fork")
    started = fork.Event()

    def save() -> None:
        started.set()
        for _ in range(times):
            model.save(target)

    process = fork.Process(target=save)
    process.start()
    try:
        yield process, started
        process.join(LONGEST)
        assert process.exitcode == 0
    finally:
        process.kill()


def test_who_reads_while_others_save_gets_one_whole_model(models: list[Path], tmp_path: Path) -> None:
    target = tmp_path / "model"
    known = [load(folder) for folder in models]
    answers = [model.predict_proba(NEW) for model in known]
    known[0].save(target)
    deadline = time.monotonic() + LONGEST
    with ExitStack() as stack:
        writers = [stack.enter_context(saving(model, target, SAVES))[0] for model in known * 2]
        while any(writer.is_alive() for writer in writers) and time.monotonic() < deadline:
            found = load(target)
            which = int("any" in found.classes_[0])
            np.testing.assert_array_equal(found.predict_proba(NEW), answers[which])
            manifest, taxonomy = read_description(target)
            assert len(manifest["labels"]["values"]["values"]) == len(taxonomy)
    for model, answer in zip(known, answers, strict=True):  # whichever came last, each can follow
        model.save(target)
        np.testing.assert_array_equal(load(target).predict_proba(NEW), answer)
    assert len(list(target.iterdir())) == 4


def test_a_writer_waits_for_the_lock(models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, model = tmp_path / "model", load(models[0])
    waits = get_context("fork").Event()
    flock = atomic.fcntl.flock

    def flock_or_wait(file: int, operation: int) -> None:
        try:
            flock(file, operation | atomic.fcntl.LOCK_NB)
        except BlockingIOError:  # somebody has it
            waits.set()
            flock(file, operation)

    with ExitStack() as stack, locked(target):
        monkeypatch.setattr(atomic.fcntl, "flock", flock_or_wait)
        process, started = stack.enter_context(saving(model, target, 1))
        assert started.wait(LONGEST)
        assert waits.wait(LONGEST)
        assert process.is_alive()
        assert [path.name for path in target.iterdir()] == [".lock"]
    assert load(target).classes_.tolist() == model.classes_.tolist()


@pytest.mark.parametrize("call", range(4))
def test_a_save_that_fails_leaves_the_old_model_and_nothing_else(
    call: int, models: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (load(folder) for folder in models)
    first.save(tmp_path / "old")
    calls = []

    def fsync(_: int) -> None:
        calls.append(1)
        if len(calls) > call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    for name in ("old", "new"):
        calls.clear()
        with pytest.raises(FileError, match="No space left on device"):
            second.save(tmp_path / name)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert len(list((tmp_path / "old").iterdir())) == 4
    np.testing.assert_array_equal(load(tmp_path / "old").predict_proba(NEW), first.predict_proba(NEW))


def test_a_folder_that_is_not_writable_is_reported_before_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "no_such_rows.csv", "--out", "/proc/hinet_model") == 2  # not even root can write there
    assert "/proc/hinet_model: cannot be written: /proc takes no new files" in capsys.readouterr().err


def test_a_model_can_be_saved_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in zip(TEXTS, LABELS, strict=True)))
    (tmp_path / "here" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert run("train", str(rows), "--out", ".", "-q") == 2
    assert "error: .: holds other files" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path / "here" / "below")
    (tmp_path / "here" / "below.checkpoint").mkdir()
    assert run("train", str(rows), "--out", ".", "-q") == 2
    assert "below.checkpoint: has checkpoints of an interrupted run" in capsys.readouterr().err
    (tmp_path / "here" / "below.checkpoint").rmdir()
    assert run("train", str(rows), "--out", ".", "-q", "--epochs", "1", "--width", "8") == 0
    assert load(".").classes_.tolist() == sorted({*LABELS})
    monkeypatch.chdir(tmp_path / "here")
    assert run("train", str(rows), "--out", "/", "-q") == 2
    assert "error: /: holds other files" in capsys.readouterr().err


def run(*arguments: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return ended.value.code
