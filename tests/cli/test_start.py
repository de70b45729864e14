"""``hinet start`` as the real program: a project that is begun, labelled and continued, and clear errors."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from hinet.cli import main
from hinet.errors import FileError
from hinet.labelling import folder as folders
from hinet.labelling.folder import ProjectFolder
from tests.cli.conftest import HINET, run_hinet
from tests.cli.test_help import EXAMPLES
from tests.processes import started
from tests.serving.conftest import NODES, rows
from tests.serving.process import free_port, wait_until_ready


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A taxonomy, and rows of which two are the same."""
    (tmp_path / "codes.csv").write_text(NODES)
    texts = dict.fromkeys(text for text, _ in rows(30))
    (tmp_path / "unlabelled.csv").write_text("description\n" + "\n".join([*texts, next(iter(texts))]) + "\n")
    return tmp_path


@contextmanager
def served(folder: Path, *arguments: str) -> Iterator[Any]:
    """Yield a function that sends requests to ``hinet start``."""
    port = free_port()
    with started([HINET, "start", *arguments, "--port", str(port)], stderr=PIPE, cwd=folder) as process:

        def ask(path: str, body: Any = None) -> Any:
            data = None if body is None else json.dumps(body).encode()
            asked = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return json.load(answer)

        try:
            wait_until_ready(process)
            yield ask
        finally:
            process.terminate()


def test_a_project_is_begun_labelled_and_continued(folder: Path) -> None:
    count = len({*(folder / "unlabelled.csv").read_text().splitlines()[1:]})
    with served(folder, *EXAMPLES["start"].split()[1:]) as ask:
        state = ask("/v1/project")
        assert (state["name"], state["rows"], state["model"]["rows"]) == ("project", count, 0)
        (row,) = ask("/v1/project/next", {"annotator": "Ada"})["rows"]
        ask("/v1/project/labels", {"annotator": "Ada", "id": row["id"], "nodes": ["rye"]})
        refused = run_hinet("start", "project", cwd=folder)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert "another 'hinet start' uses this project" in refused.stderr
    (folder / "more.csv").write_text("text\nnew bread\n")
    with served(folder, "project", "--rows", "more.csv") as ask:
        state = ask("/v1/project")
        assert (state["rows"], state["labelled"]) == (count + 1, 1)
        answer = ask("/v1/classify", {"text": row["text"]})["results"][0]
        assert answer["labels"][0]["node"] == "rye"
    predicted = run_hinet("predict", "project/models/current", "more.csv", cwd=folder)
    assert predicted.returncode == 0, predicted.stderr
    assert {path.name for path in (folder / "project").iterdir()} >= {"project.json", "project.db", "taxonomy.csv"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["codes.csv"], "--out is missing; name a new folder"),
        (["codes.csv", "--out", "full"], "exists already and is not a project"),
        (["codes.csv", "--out", "begun"], "is a project already; continue it: hinet start begun"),
        (["full"], "is not a labelling project"),
        (["begun", "--several"], "--several is for a new project"),
        (["damaged"], "is damaged"),
        (["missing.csv", "--out", "new"], "missing.csv"),
        (["codes.csv", "--out", "new", "--rows", "missing.csv"], "missing.csv"),
        (["codes.csv", "--out", "new", "--rows", "unlabelled.csv"], "set --text: 'description' looks like text"),
        (["codes.csv", "--out", "new", "--rows", "blank.csv"], "blank.csv:3: the text is empty"),
        (["codes.csv", "--out", "odd name"], "cannot name a model"),
    ],
)
def test_a_mistake_is_an_error_without_a_traceback(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("")
    (folder / "begun").mkdir()
    (folder / "begun" / "project.json").write_text('{"format": 1}')
    (folder / "damaged").mkdir()
    (folder / "damaged" / "project.json").write_text("{")
    (folder / "blank.csv").write_text('text,other\nrye,1\n"",2\n')
    done = run_hinet("start", *arguments, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "new").exists()


def test_rows_with_errors_are_skipped_if_asked_and_a_project_without_a_model_is_removed(folder: Path) -> None:
    (folder / "blank.jsonl").write_text('{"text": "rye"}\n{"text": ""}\n{"text": "a\\u0000b"}\n')
    (folder / "untitled.csv").write_text("node,parent,title\na,,\nb,a,\nc,a,\n")
    done = run_hinet("start", "untitled.csv", "--rows", "blank.jsonl", "--on-error", "skip", "--out", "p", cwd=folder)
    assert done.returncode == 2
    assert "1 row to label" in done.stderr
    assert "title" in done.stderr.splitlines()[-1]
    assert (folder / "p.rejects.csv").read_text().count("\n") == 3
    assert not (folder / "p").exists()


def test_a_project_that_another_process_took_over_is_not_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, others = folders.create_project, ExitStack()

    def create_and_lose(*arguments: Any) -> tuple[ProjectFolder, int]:
        made, rows = create(*arguments)
        others.enter_context(made.locked())
        return made, rows

    monkeypatch.setattr(folders, "create_project", create_and_lose)
    with others:
        assert start_here(folder, monkeypatch, "--out", "p") == 2
    assert (folder / "p" / "project.db").is_file()


def test_vectors_of_a_new_project_are_found_from_any_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "words.vec").write_text("")
    made: list[str | None] = []

    def note(path: Path, taxonomy: Any, texts: Any, settings: folders.ProjectSettings) -> Any:
        made.append(settings.vectors)
        raise FileError(path, "is enough")

    monkeypatch.setattr(folders, "create_project", note)
    for vectors in ("words.vec", "auto", "someone/model"):
        assert start_here(folder, monkeypatch, "--out", "p", "--vectors", vectors) == 2
    assert made == [str(folder / "words.vec"), "auto", "someone/model"]


def start_here(folder: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int | str | None:
    """Run ``hinet start`` in this process, and return its exit code."""
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as stopped:
        main(["start", "codes.csv", *options])
    return stopped.value.code
