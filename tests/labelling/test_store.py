"""Rows and labels on disk."""

from __future__ import annotations

import json
import os
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from http.client import HTTPException
from pathlib import Path
from subprocess import PIPE

import pytest

from hinet import Taxonomy
from hinet.errors import FileError
from hinet.labelling.folder import ProjectSettings, create_project
from hinet.labelling.store import LabelStore
from hinet.labelling.training import train
from hinet.serving.store import Store
from tests.labelling.conftest import label
from tests.processes import killed_before, started
from tests.serving.conftest import NODES, rows
from tests.serving.process import LAUNCH, ROOT, Running, free_port, wait_until_ready

MOMENTS, SERVICES = 20, 4


def test_labels_are_read_as_they_were_written(tmp_path: Path) -> None:
    store = LabelStore.open(tmp_path / "project.db")
    assert store.add_texts(["rye", "milk", "rye"]) == ([1, 2, 1], 2)
    assert store.add_texts(["milk", "new"]) == ([2, 3], 1)
    added = [
        store.add(label(0, 1, "rye white", note="é", predicted=("milk", "rye"), probability=0.25)),
        store.add(label(0, 2, reason=None)),
    ]
    store.undo(2, "2026")
    store.close()
    again = LabelStore.open(tmp_path / "project.db")
    assert again.texts() == ["rye", "milk", "new"]
    assert again.labels() == [added[0], added[1]._replace(undone="2026")]
    assert [each.id for each in again.labels()] == [1, 2]
    again.close()


def test_a_database_of_another_kind_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path / "feedback.db").close()
    with pytest.raises(FileError, match="is another database"):
        LabelStore.open(tmp_path / "feedback.db")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_project_is_there_as_a_whole_or_not_at_all(tmp_path: Path, tree: Taxonomy) -> None:
    target, step = tmp_path / "p", 1
    while killed_before(step, lambda: create_project(target, tree, ["rye"], ProjectSettings())):
        assert not target.exists()
        step += 1
    assert (target / "project.json").exists()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_label_that_was_written_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    chance, path, known = random.Random(0), tmp_path / "project.db", set[int]()
    store = LabelStore.open(path)
    store.add_texts(["rye"])
    store.close()
    for _ in range(MOMENTS):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            signal.alarm(60)
            store = LabelStore.open(path)
            while True:
                os.write(write, store.add(label(0, 1, "rye")).id.to_bytes(8, "little"))
        os.close(write)
        for _ in range(chance.randrange(1, 40)):
            known.add(int.from_bytes(os.read(read, 8), "little"))
        for _ in range(chance.randrange(1_000)):  # a moment within the next write
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        while acknowledged := os.read(read, 8):
            known.add(int.from_bytes(acknowledged, "little"))
        os.close(read)
        store = LabelStore.open(path)
        assert store.select("PRAGMA integrity_check") == [("ok",)]
        assert known <= {each.id for each in store.labels()}
        store.close()
    assert len(known) > MOMENTS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_no_acknowledged_label_is_lost_when_the_service_is_killed(tmp_path: Path) -> None:
    chance, texts = random.Random(0), [text for text, _ in rows(200)]
    (tmp_path / "nodes.csv").write_text(NODES)
    taxonomy, settings = Taxonomy.from_file(tmp_path / "nodes.csv"), ProjectSettings(vectors=None)
    made, count = create_project(tmp_path / "p", taxonomy, texts, settings)
    train(made)
    known: dict[int, int] = {}
    with started([*LAUNCH, "--rounds"], stdin=PIPE, stdout=PIPE, stderr=PIPE, cwd=ROOT) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(SERVICES):
            port = free_port()
            values = {"models": {}, "port": port, "project": str(made.path), "poll": 3_600}
            process.stdin.write(json.dumps(values) + "\n")
            process.stdin.flush()
            child = int(process.stdout.readline())
            wait_until_ready(process)
            known |= kill_while_labelling(Running(process, port), child, chance.randrange(1, 15), count)
            store = LabelStore.open(made.database)
            assert store.select("PRAGMA integrity_check") == [("ok",)]
            assert known.items() <= {each.id: each.row for each in store.labels()}.items()
            store.close()
        process.stdin.close()
    assert len(known) > SERVICES


def kill_while_labelling(service: Running, child: int, after: int, count: int) -> dict[int, int]:
    """Send labels from several threads, kill the process after some answers, and return acknowledged labels."""
    kept: dict[int, int] = {}

    def write(thread: int) -> None:
        for number in range(1_000):
            row = 1 + (7 * number + thread) % count
            with suppress(OSError, HTTPException):
                body = {"annotator": f"person {thread}", "id": row, "nodes": ["rye"]}
                status, answer = service.request("POST", "/v1/project/labels", body)
                assert status == 201
                kept[answer["label_id"]] = row
                if len(kept) == after:
                    os.kill(child, signal.SIGKILL)
                continue
            return

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    return kept
