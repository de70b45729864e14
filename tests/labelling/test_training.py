"""When the model is trained again, and what it was trained on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from hinet.labelling.folder import ProjectFolder
from hinet.labelling.training import RETRY_SECONDS, Retrainer, TrainedOn
from tests.labelling.test_queue import Clock
from tests.processes import wait_until

FAILS = (sys.executable, "-c", "import sys; sys.exit('the disk is full')")
WORKS = (sys.executable, "-c", "")


def test_a_training_that_failed_is_tried_again_later_and_one_that_worked_only_with_other_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    retrainer = Retrainer(ProjectFolder(tmp_path), clock)
    monkeypatch.setattr("hinet.labelling.training.PROGRAM", FAILS)
    for wait in (RETRY_SECONDS, 2 * RETRY_SECONDS):
        assert retrainer.may_start(1)
        retrainer.start(25, 1)
        assert (retrainer.running is not None, retrainer.may_start(2)) == (True, False)
        wait_until(lambda: not retrainer.finished() and retrainer.running is None)
        assert retrainer.problem == "training failed: the disk is full"
        clock.now += wait - 1
        assert not retrainer.may_start(1)
        clock.now += 2
    monkeypatch.setattr("hinet.labelling.training.PROGRAM", WORKS)
    retrainer.start(25, 1)
    wait_until(retrainer.finished)
    assert retrainer.problem is None
    assert (retrainer.may_start(1), retrainer.may_start(2)) == (False, True)


def test_a_training_that_runs_is_stopped_with_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hinet.labelling.training.PROGRAM", (sys.executable, "-c", "input()"))
    retrainer = Retrainer(ProjectFolder(tmp_path))
    retrainer.start(25, 1)
    running = retrainer.running
    assert running is not None
    retrainer.close()
    assert running.process.returncode is not None
    assert retrainer.running is None


@pytest.mark.parametrize("manifest", [{}, {"notes": {"columns": {}}}])
def test_a_model_that_its_project_did_not_train_knows_no_labels(manifest: dict[str, Any]) -> None:
    assert TrainedOn.of(manifest)[:3] == (0, 0, "")
