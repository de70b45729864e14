from __future__ import annotations

import threading

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hinet import Layers, Taxonomy, Traces
from hinet.engine import EngineSettings
from hinet.engine.training.checkpoints import Assignment, Averaged, SharedRows
from hinet.engine.training.plan import PlanInput


class Threads:
    """Workers that are threads of this process."""

    def __init__(self, rank: int, arrays: list[NDArray[np.float32] | None], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._arrays, self._barrier = rank, len(arrays), arrays, barrier

    def add(self, array: NDArray[np.float32]) -> None:
        self._arrays[self.rank] = array.copy()
        self._barrier.wait(60)
        whole = np.sum([each for each in self._arrays if each is not None], axis=0, dtype=np.float32)
        self._barrier.wait(60)
        array[...] = whole


def in_threads(count: int, work: object) -> list[object]:
    arrays, barrier, results = [None] * count, threading.Barrier(count), [None] * count

    def run(rank: int) -> None:
        results[rank] = work(Threads(rank, arrays, barrier))  # type: ignore[operator]

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results  # type: ignore[return-value]


def test_a_row_that_one_worker_touched_moves_as_there_and_no_other_moves() -> None:
    def work(group: Threads) -> NDArray[np.float32]:
        weights, sums = np.zeros((3, 2), np.float32), np.ones(3, np.float32)
        shared = SharedRows(group, [Averaged((weights,), sums)])
        shared.start()
        weights[group.rank] = 4.0
        weights[2] += 0
        sums[group.rank] += 1
        shared.exchange()
        assert sums.tolist() == [2, 2, 1]
        return weights

    for weights in in_threads(2, work):
        np.testing.assert_array_equal(weights, [[4, 4], [4, 4], [0, 0]])


@pytest.mark.parametrize("multilabel", [False, True], ids=["one label", "sets"])
def test_workers_end_an_epoch_with_the_same_weights(multilabel: bool) -> None:
    taxonomy = Taxonomy.from_paths([("a", "x"), ("a", "y"), ("b", "z")], steps="ids")
    layers = Layers.of(taxonomy, multilabel=multilabel)
    random = np.random.default_rng(0)
    label = random.integers(3, size=60)
    dense = np.eye(3, 12, dtype=np.float32)[label] + (random.random((60, 12)) < 0.2)
    labels = [("xyz"[number],) for number in label]
    traces = Traces.encode_sets(layers, labels)

    def work(group: Threads) -> list[dict[str, NDArray[np.float32]]]:
        rows = sp.csr_array(dense.astype(np.float32))
        plan = PlanInput(rows, traces, EngineSettings(threads=1), None, None).plan()
        states = []
        for job in plan.jobs():
            if job.averaged():
                job.shared = SharedRows(group, job.averaged())
                assert np.isfinite(job.run_epoch(0, lambda rows: None))
                states.append({name: array.copy() for name, array in job.state().items()})
        return states

    first, second = in_threads(2, work)
    assert len(first) >= 2  # type: ignore[arg-type]
    for mine, other in zip(first, second, strict=True):  # type: ignore[call-overload]
        for name, array in mine.items():
            np.testing.assert_array_equal(array, other[name], err_msg=name)


@given(st.lists(st.tuples(st.floats(0.1, 100), st.booleans()), min_size=1, max_size=12), st.integers(1, 5))
def test_every_job_has_one_owner_or_all(jobs: list[tuple[float, bool]], workers: int) -> None:
    work, can_share = [job[0] for job in jobs], [job[1] for job in jobs]
    for split in ("auto", "jobs", "rows"):
        shared, owner = Assignment.of(work, can_share, workers, split)  # type: ignore[arg-type]
        assert sorted([*shared, *owner]) == [*range(len(jobs))]
        assert all(can_share[job] for job in shared)
        assert all(0 <= worker < workers for worker in owner.values())
        if split == "jobs" or workers == 1:
            assert shared == []
