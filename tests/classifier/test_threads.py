"""Threads: one number for all work, kept with a model; and answers in processes that were forked."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hinet import HiNetClassifier, load
from hinet.cli import main
from tests.classifier.data import numbers, small, texts

SECONDS = 120  # after which a forked process is taken to hang


class Pools:
    """How many threads the largest pool of a package had."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: dict[str, int] = {}
        for name in ("hinet.data.text.text_input", "hinet.engine.search.best_first"):
            monkeypatch.setattr(f"{name}.ThreadPoolExecutor", self._counting(name.split(".")[1]))
        monkeypatch.setattr("hinet.data.text.text_input.MIN_BLOCK_BYTES", 50)  # so that few texts are many blocks
        monkeypatch.setattr("hinet.engine.search.best_first.MIN_BLOCK", 2)

    def _counting(self, room: str) -> Callable[[int], ThreadPoolExecutor]:
        def pool(threads: int) -> ThreadPoolExecutor:
            self.sizes[room] = max(threads, self.sizes.get(room, 0))
            return ThreadPoolExecutor(threads)

        return pool

    def of(self, work: Callable[[], Any]) -> dict[str, int]:
        """Return the sizes of the pools that some work makes."""
        self.sizes = {}
        work()
        return self.sizes


def test_threads_are_kept_with_a_model_and_can_be_set_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = texts(60)
    pools = Pools(monkeypatch)
    trained = small(n_jobs=3)
    assert pools.of(lambda: trained.fit(rows, labels)) == {"data": 3, "engine": 3}
    trained.save(tmp_path / "model")
    known = load(tmp_path / "model")
    assert known.n_jobs == 3
    assert known.get_params()["n_jobs"] == 3
    for classifier in (trained, known):
        assert pools.of(lambda: classifier.predict(rows)) == {"data": 3, "engine": 3}  # noqa: B023
    assert pools.of(lambda: known.set_params(n_jobs=1).predict_proba(rows)) == {}
    monkeypatch.setattr("hinet.parameters.os.cpu_count", lambda: 5)
    for n_jobs, threads in ((-1, 5), (-2, 4), (None, 5), (2, 2)):
        known.n_jobs = n_jobs
        assert pools.of(lambda: known.predict(rows)) == {"data": threads, "engine": threads}
    known.n_jobs = -2
    known.save(tmp_path / "model")
    assert load(tmp_path / "model").n_jobs == -2


def test_the_shell_exports_with_as_many_threads_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows, labels = texts(60)
    small(n_jobs=1).fit(rows, labels).save("model")
    lines = [f"{text},{label}" for text, label in zip(rows, labels, strict=True)]
    Path("rows.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    pools = Pools(monkeypatch)

    def export() -> None:
        with pytest.raises(SystemExit) as done:
            main(["export", "model", "graph", "--data", "rows.csv", "--threads", "3"])
        assert not done.value.code

    assert pools.of(export) == {"data": 3, "engine": 3}
    assert "Accuracy" in capsys.readouterr().out


def test_a_network_answers_with_as_many_threads_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, labels = numbers()
    classifier = small(epochs=2, n_jobs=1, engine="torch").fit(rows, labels)
    before, seen = torch.get_num_threads(), []
    forward = type(classifier.fitted_.predictor.model).option_scores

    def watched(*given: Any) -> Any:
        seen.append(torch.get_num_threads())
        return forward(*given)

    monkeypatch.setattr(type(classifier.fitted_.predictor.model), "option_scores", watched)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    for n_jobs in (1, 2, 1000, -1):
        classifier.set_params(n_jobs=n_jobs).predict(rows)
    assert seen == [1, 2, 2, 2]
    assert torch.get_num_threads() == before


def in_fork(work: Callable[[], Any]) -> Any:
    """Return what some work gives in a forked process; fails if that hangs."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=lambda: there.send(work()))
    process.start()
    there.close()
    try:
        assert here.poll(SECONDS), "the forked process hangs"
        return here.recv()
    finally:
        process.kill()
        process.join()


def data_of(kind: str) -> tuple[Any, list[str]]:
    if kind == "dense":
        rows, labels = numbers(300)
        return np.tile(rows, (1, 100)).astype(np.float32), labels
    rows, labels = texts(300)
    return [f"{text} größer" for text in rows], labels


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # newer Pythons warn if there are threads
@pytest.mark.parametrize("kind", ["dense", "texts"])
def test_forked_processes_answer_and_train(kind: str) -> None:
    rows, labels = data_of(kind)
    engine = "torch" if kind == "dense" else "auto"
    settings: dict[str, Any] = {"n_jobs": 2, "epochs": 1, "width": 256, "engine": engine}
    classifier = HiNetClassifier(**settings).fit(rows, labels)
    right = classifier.predict_proba(rows)  # starts OpenMP threads, which a fork does not copy
    np.testing.assert_allclose(in_fork(lambda: classifier.predict_proba(rows)), right, atol=1e-5)
    assert in_fork(lambda: len(classifier.explain(rows[0]).steps)) > 0
    assert in_fork(lambda: HiNetClassifier(**settings).fit(rows, labels).predict(rows[:2]).tolist()) is not None
    answers = classifier.predict(rows[:2]).tolist()
    assert in_fork(lambda: in_fork(lambda: classifier.predict(rows[:2]).tolist())) == answers
