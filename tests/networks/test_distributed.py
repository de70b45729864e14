from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.networks.processes_train import KINDS, trained
from tests.processes import started

HERE = Path(__file__).parents[2]
PROCESSES = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of networks that two processes have trained together."""
    folder = tmp_path_factory.mktemp("together")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        commands = [
            [sys.executable, "-m", "tests.networks.processes_train", str(rank), str(PROCESSES), str(folder)]
            for rank in range(PROCESSES)
        ]
        running = [stack.enter_context(started(command, cwd=HERE, env=environment)) for command in commands]
    assert [process.returncode for process in running] == [0] * PROCESSES
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_several_processes_take_the_same_steps_as_one_on_the_joint_batch(kind: str, folder: Path) -> None:
    alone = trained(kind)
    for rank in range(PROCESSES):
        together = np.load(folder / f"{kind}-{rank}.npz")
        assert {*together.files} == {*alone}
        for name, expected in alone.items():
            np.testing.assert_allclose(together[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)
