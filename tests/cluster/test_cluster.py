from __future__ import annotations

import csv
import os
import pickle
import socket
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from hinet import HiNetClassifier, HiNetError
from hinet.classifier.answers import PredictionOptions
from hinet.classifier.estimator import fit_by, training_of
from hinet.cli import main
from hinet.cluster import Cluster, PredictionJob, Sink, fit_on_cluster, predict_rows
from hinet.cluster.prediction import _cause_of
from hinet.cluster.session import _environment
from hinet.cluster.training import _Reporter, _Reports, _Task, _work
from hinet.data.tables import Columns, FailFast, RowQuery, TableOptions
from hinet.data.tables.blocks import MAX_ROWS
from hinet.engine.training.checkpoints import Checkpoints
from hinet.engine.training.plan import PlanInput
from hinet.progress import Progress, SilentProgress
from tests.cluster.conftest import WORKERS, one_killed
from tests.processes import wait_until

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra 'cluster'"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]

ROWS = 24_000
THINGS = ("bread", "milk", "car", "train", "rye", "oat", "toy", "skimmed", "brown", "fast")


def paths(count: int, seed: int = 0) -> tuple[list[str], list[tuple[str, ...]]]:
    """Return texts of a few words whose first word is their label, below one of two top nodes."""
    random = np.random.default_rng(seed)
    words = random.integers(len(THINGS), size=(count, 4))
    texts = [" ".join(THINGS[word] for word in row) for row in words.tolist()]
    return texts, [("top" + str(row[0] % 2), THINGS[row[0]]) for row in words.tolist()]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cluster") / "model"
    HiNetClassifier(n_jobs=1, epochs=2).fit(*paths(300)).save(folder)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two tables with different numbers of rows, one of which has rows without text."""
    folder = tmp_path_factory.mktemp("rows")
    texts = paths(ROWS, 1)[0]
    parts = {"first.csv": texts[: ROWS // 4 * 3], "second.csv": ["", *texts[ROWS // 4 * 3 :], " "]}
    for name, part in parts.items():
        with (folder / name).open("w", newline="") as stream:
            csv.writer(stream).writerows([("id", "text"), *enumerate(part)])
    return [str(folder / name) for name in parts]


def run(*arguments: Any) -> int:
    """Run the program in this process and return its exit code."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def alone(model: Path, files: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of one machine."""
    out = tmp_path_factory.mktemp("alone") / "out.parquet"
    assert run("predict", model, *files, "--keep", "id", "--levels", "--out", out, "--quiet") == 0
    return out


def test_a_file_of_a_cluster_is_that_of_one_machine(
    cluster: Cluster, model: Path, files: list[str], alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.parquet"
    options = ["--keep", "id", "--levels", "--out", out, "--cluster", "local", "--workers", 2, "--quiet"]
    assert run("predict", model, *files, *options) == 0
    assert out.read_bytes() == alone.read_bytes()


@pytest.mark.slow
def test_fewer_portions_than_workers_bring_no_word_of_ray(
    cluster: Cluster, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few.csv").write_text("text\nrye bread\n")
    options = ["--out", tmp_path / "out.csv", "--cluster", "local", "--workers", WORKERS, "--quiet"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run("predict", model, tmp_path / "few.csv", *options) == 0
    assert [str(each.message) for each in caught if f"{os.sep}ray{os.sep}" in each.filename] == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_killed_worker_loses_and_repeats_no_row(
    cluster: Cluster, model: Path, files: list[str], alone: Path, tmp_path: Path
) -> None:
    query = RowQuery(Columns(), labels=False, keep=("id",), allow_blank=True)
    job = PredictionJob(model, tuple(files), query, TableOptions(), PredictionOptions(levels=True), portion=1)
    out = tmp_path / "folder"
    portions = sum(-(-rows // MAX_ROWS) for rows in (ROWS // 4 * 3, ROWS // 4 + 2))

    def is_in_the_middle() -> bool:
        return 0 < len([*tmp_path.glob(".folder.*/part-*")]) < portions - 1

    with one_killed("MapWorker", is_in_the_middle) as killed:
        notes = predict_rows(job, cluster, Sink(str(out), is_folder=True), FailFast(), lambda rows: None)
    assert killed
    assert (notes.blank, notes.unknown) == (2, 0)
    assert len([*out.iterdir()]) == portions
    assert pq.read_table(out).equals(pq.read_table(alone))
    assert [*tmp_path.iterdir()] == [out]


def test_an_invalid_row_is_named_and_nothing_is_left(
    cluster: Cluster, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "rye"}\n' * 9_000 + '{"text": ["rye"]}\n')
    out = tmp_path / "out"
    assert run("predict", model, rows, "--out", out, "--cluster", "local", "--workers", 1, "--quiet") == 2
    assert f"{rows}:9001: the text is a list or an object" in capfd.readouterr().err
    assert [*tmp_path.iterdir()] == [rows]


@pytest.fixture(scope="module")
def trained() -> HiNetClassifier:
    """Return the model of one machine."""
    return HiNetClassifier(n_jobs=1, epochs=3).fit(*paths(2_000), valid=paths(200, 2))


class Heard:
    """A queue of reports that keeps them."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def qsize(self) -> int:
        return len(self.reports)

    def put(self, report: Any) -> None:
        self.reports.append(report)


class OneAfterTheOther:
    """Two workers with whole jobs, one after the other in this process."""

    fingerprint = ""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch, self.heard = monkeypatch, Heard()
        monkeypatch.setattr("ray.get", lambda data: data)

    def run(self, data: PlanInput, checkpoints: Checkpoints, progress: Progress, *, watch: bool) -> None:
        for rank in range(2):
            self._patch.setattr("hinet.cluster.training.TorchGroup", lambda: SimpleNamespace(rank=rank, size=2))  # noqa: B023 called at once
            _work({"task": _Task(pickle.dumps(data), checkpoints, "jobs", watch, self.heard)})


def test_workers_with_whole_experts_train_the_same_model(
    trained: HiNetClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = HiNetClassifier(n_jobs=1, epochs=3)
    valid = paths(200, 2)
    fit_by(together, training_of(together, *paths(2_000), valid=valid, runner=OneAfterTheOther(monkeypatch)))
    np.testing.assert_array_equal(together.predict_proba(valid[0]), trained.predict_proba(valid[0]))


def right(classifier: HiNetClassifier, rows: tuple[list[str], list[tuple[str, ...]]]) -> float:
    """Return the share of rows whose label is predicted."""
    predicted = map(tuple, classifier.predict(rows[0]))
    return float(np.mean([found == label for found, label in zip(predicted, rows[1], strict=True)]))


@pytest.mark.slow
def test_workers_that_share_rows_learn_as_well_though_one_is_killed(
    cluster: Cluster, trained: HiNetClassifier, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    together = HiNetClassifier(n_jobs=1, epochs=3, checkpoint=folder)

    def is_time() -> bool:
        return folder.is_dir() and any(folder.glob("*.safetensors"))

    with one_killed("RayTrainWorker", is_time) as killed:
        fit_on_cluster(together, cluster, *paths(2_000), valid=paths(200, 2), split="rows")
    assert killed
    unseen = paths(2_000, 3)
    assert right(together, unseen) > right(trained, unseen) - 0.03


def test_a_worker_that_fails_tells_why_and_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deep-1.safetensors").write_bytes(b"damaged")
    together = HiNetClassifier(n_jobs=1, epochs=3, checkpoint=tmp_path)
    runner = OneAfterTheOther(monkeypatch)
    with pytest.raises(HiNetError, match="the checkpoint is damaged") as raised:
        fit_by(together, training_of(together, *paths(100), runner=runner))
    assert type(raised.value) is HiNetError  # which can be sent
    assert runner.heard.reports[-1] == ("failed", (str(raised.value),))


def test_workers_that_start_anew_after_a_failure_have_nobody_to_report_to(cluster: Cluster) -> None:
    with _Reports.shown(SilentProgress()) as reports:
        reporter = _Reporter(reports.queue)
        assert reporter.is_heard()
        reporter.failed("rows.csv: is damaged")
        wait_until(lambda: not reporter.is_heard())
    assert reports.error == "rows.csv: is damaged"


def test_workers_that_died_are_an_error_with_a_remedy() -> None:
    from ray.exceptions import OutOfMemoryError, RayTaskError

    def in_a_task(cause: Exception) -> BaseException:
        return _cause_of(RayTaskError("f", "Traceback", cause, "worker", 1, "127.0.0.1"))

    died = _cause_of(OutOfMemoryError("Task was killed.\nMore of it."))
    assert str(died) == "the workers failed: Task was killed.; give fewer `workers`"
    assert type(died) is HiNetError
    for error in (HiNetError("a row"), MemoryError("too large"), OSError("disk full")):
        assert in_a_task(error) is error
    assert isinstance(in_a_task(KeyError("a bug")), RayTaskError)


def test_a_local_session_leaves_no_variable_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OURS", "given")
    with _environment({"OURS": "usual", "THEIRS": "lo"}):
        assert (os.environ["OURS"], os.environ["THEIRS"]) == ("given", "lo")
    assert os.environ["OURS"] == "given"
    assert "THEIRS" not in os.environ


def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cluster", "local", "--workers", 9_999], "9,999 workers need 9,999 processors"),
        (["--cluster", "nowhere", "--workers", 1], "the HOST:PORT of a cluster; got 'nowhere'"),
        (["--cluster", f"127.0.0.1:{closed_port()}", "--workers", 1], "no cluster answers at 127.0.0.1"),
        (["--cluster", "127.0.0.1:1"], "needs --workers"),
        (["--workers", 2], "add --cluster local"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(
    options: list[Any], message: str, model: Path, files: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    for command in (
        ["predict", model, files[0]],
        ["train", files[0], "--label", "id", "--out", model.parent / "other"],
    ):
        assert run(*command, *options) == 2
        error = capfd.readouterr().err
        assert error.startswith("error: ")
        assert message in error
        assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threads", 2, "--workers", 1], "each worker trains in one thread"),
        (["--fine-tune", "--encoder", "x"], "leave one of them out"),
    ],
)
def test_training_options_that_a_cluster_has_not(
    options: list[Any], message: str, files: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("train", files[0], "--out", tmp_path / "model", "--cluster", "local", *options) == 2
    assert message in capfd.readouterr().err


def test_a_split_is_of_a_cluster(files: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("train", files[0], "--out", tmp_path / "model", "--split", "auto") == 2
    assert "--split needs a cluster; add --cluster local" in capfd.readouterr().err


def test_standard_input_is_not_for_a_cluster(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("predict", model, "--cluster", "local") == 2
    assert "--cluster reads files" in capfd.readouterr().err
