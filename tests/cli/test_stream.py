"""``hinet train --stream``: files of every kind, rejects, validation, kills, and when it switches itself on."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from subprocess import PIPE

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hinet import HiNetClassifier, HiNetError, load
from hinet.classifier import stream
from hinet.data.spill import is_spill
from hinet.data.tables.blocks import estimate_rows
from tests.cli.conftest import CATEGORIES, HINET, files_of, products, run_hinet, run_inside, write_products
from tests.processes import started, wait_until

COLUMNS = ["--text", "title", "--label", "category", "--stream"]


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with rows in files of two formats, labels as paths; two rows of one of them are invalid."""
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        rows = products(200, number)
        columns = {
            "title": [text for _, text, _ in rows],
            "category": [f"{CATEGORIES[label][0]} > {label}" for *_, label in rows],
            "size": [float(len(text)) for _, text, _ in rows],
        }
        pq.write_table(pa.table(columns), f"{number}.parquet")
    write_products(tmp_path / "more.csv", 150, 2)
    with (tmp_path / "more.csv").open("a") as stream:
        stream.write("9,,tv\n10,colour screen,\n")
    return tmp_path


def test_shards_train_a_model_with_paths_numbers_and_a_risk(shards: Path) -> None:
    options = ["--number", "size", "--valid-share", "0.2", "--risk", "0.2", "--epochs", "3"]
    done = run_hinet("train", "0.parquet", "1.parquet", *COLUMNS, *options, "--out", "model", cwd=shards)
    assert done.returncode == 0, done.stderr
    for wanted in (
        "320 training rows with 4 labels, from a stream",
        "--min-confidence",
    ):
        assert wanted in done.stderr
    assert sorted(path.name for path in shards.iterdir() if "model" in path.name) == ["model"]
    notes = json.loads((shards / "model" / "manifest.json").read_text())["notes"]
    assert notes["columns"]["path_sep"] == ">" or notes["columns"]["path_sep"].strip() == ">"
    table = pa.table({"title": ["dark bread loaf"], "size": [15.0]})
    assert load(shards / "model").predict(table)[0] == "food > rye"


def test_invalid_rows_are_skipped_and_reported_once(shards: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["train", "more.csv", *COLUMNS, "--epochs", "2", "--out", "model"]
    assert run_inside(*command) == 2
    assert "more.csv:152: the text is empty" in capfd.readouterr().err
    assert not (shards / "model").exists()
    assert run_inside(*command, "--on-error", "skip", "--valid", "more.csv", "--where", "category=tv", "--where",
                      "category=milk", "-q") == 0  # fmt: skip
    rejects = (shards / "model.rejects.csv").read_text().splitlines()
    assert len(rejects) == 3
    assert load(shards / "model").classes_.tolist() == ["milk", "tv"]


def test_what_a_stream_cannot_do_is_refused(shards: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for options, message in (
        (["-"], "a stream is read twice, which is impossible with standard input; give files"),
        (["0.parquet", "--encoder", "e", "--fine-tune"], "--fine-tune reads all rows into memory; leave --stream out"),
    ):
        assert run_inside("train", *options, *COLUMNS, "--out", "model") == 2
        assert message in capfd.readouterr().err


def test_it_switches_itself_on_where_rows_would_not_fit(shards: Path, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["train", "0.parquet", *COLUMNS[:-1], "--epochs", "1", "--out", "model", "--memory-limit", "0.0004"]
    assert run_inside(*command) == 2  # the model does not fit either
    said = capfd.readouterr().err
    assert not (shards / "model.checkpoint").exists()
    assert "about 200 rows would take" in said
    assert "training streams from disk, as with --stream; --no-stream reads all rows" in said
    assert run_inside(*command, "--no-stream") == 2
    assert "stream" not in capfd.readouterr().err.replace("--no-stream", "")


def test_a_killed_run_resumes_to_the_same_bytes(shards: Path) -> None:
    command = ["train", "0.parquet", "1.parquet", *COLUMNS, "--epochs", "20", "--checkpoint-every", "0", "-q"]
    assert run_inside(*command, "--out", "usual") == 0
    checkpoints = shards / "killed.checkpoint"
    with started([HINET, *command, "--out", "killed"], cwd=shards, stderr=PIPE) as process:
        wait_until(lambda: (checkpoints / "deep-1.safetensors").exists() or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.wait()
    if not (shards / "killed").exists():
        assert run_inside(*command, "--out", "killed", "--resume") == 0
    assert files_of(shards / "killed") == files_of(shards / "usual")
    assert not checkpoints.exists()


def test_rows_in_memory_do_not_resume_from_a_stream(shards: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoints = shards / "model.checkpoint"
    checkpoints.mkdir()
    (checkpoints / "rows.json").write_bytes(b"")
    assert run_inside("train", "0.parquet", *COLUMNS[:-1], "--no-stream", "--out", "model", "--resume", "-q") == 2
    said = "has checkpoints of a run with --stream; add --stream to continue it, or remove the folder"
    assert f"model.checkpoint: {said}" in capfd.readouterr().err
    assert [*checkpoints.iterdir()] == [checkpoints / "rows.json"]


@pytest.mark.parametrize("begun", ["--stream", "--no-stream"])
def test_a_stream_resumes_without_its_rows_on_disk_and_not_from_another_run(
    begun: str, shards: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The rows leave the disk when training ends, before the model is saved."""
    monkeypatch.setattr(stream, "MAX_ROWS_IN_MEMORY", 0)
    command = ["train", "0.parquet", *COLUMNS[:-1], "--epochs", "3", "--checkpoint-every", "0", "-q"]

    def fail(*_: object, **__: object) -> None:
        raise HiNetError("no room")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(HiNetClassifier, "save", fail)
        assert run_inside(*command, begun, "--out", "model") == 2
    names = [path.name for path in (shards / "model.checkpoint").iterdir()]
    assert names
    assert not any(map(is_spill, names))
    resumed = run_inside(*command, "--stream", "--out", "model", "--resume")
    if begun == "--no-stream":
        assert resumed == 2
        assert "the checkpoint is from other rows or settings" in capfd.readouterr().err
        return
    assert resumed == 0
    assert run_inside(*command, "--stream", "--out", "usual") == 0
    assert files_of(shards / "model") == files_of(shards / "usual")


def test_rows_are_estimated_without_reading_files(shards: Path) -> None:
    assert estimate_rows(["0.parquet", "1.parquet"]) == 400
    assert abs(estimate_rows(["more.csv"]) - 153) <= 1
