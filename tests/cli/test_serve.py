"""``hinet serve`` and ``hinet feedback`` as the real program: a correction that is served, exported and learned."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest

from hinet.cli import main
from tests.cli.conftest import HINET, run_hinet
from tests.cli.test_help import EXAMPLES
from tests.processes import started
from tests.serving.process import free_port, wait_until_ready

TEXT = "goat holes slice"


class Service:
    """Client of a service at a port."""

    def __init__(self, process: Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def __call__(self, path: str, body: Any = None, **headers: str) -> Any:
        """Return the answer to a request."""
        data, kind = None if body is None else json.dumps(body).encode(), {"content-type": "application/json"}
        asked = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, kind | headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[Service]:
    """Yield a client of a service that is ready, in a folder."""
    port = free_port()
    with started([HINET, "serve", *arguments, "--port", str(port)], stderr=PIPE, cwd=folder) as process:
        try:
            wait_until_ready(process)
            yield Service(process, port)
        finally:
            process.terminate()


def test_a_correction_is_kept_exported_and_learned(shop: Path) -> None:
    assert run_hinet("evaluate", "model", "test.csv", "--keep", cwd=shop).returncode == 0
    with serving(shop, *EXAMPLES["serve"].replace("--port 8000", "").split()[1:]) as ask:
        answered = ask("/v1/classify", {"text": TEXT})
        assert answered["results"][0]["labels"][0]["node"] != "milk"
        for number in range(30):
            ask("/v1/feedback", {"text": f"{TEXT} {number}", "verdict": "correct", "nodes": ["milk"]})
        assert ask("/v1/models/model")["evaluation"]["rows"] == 80
        assert ask("/v1/review")["items"][0]["text"] == TEXT
    shown = run_hinet(*EXAMPLES["feedback show"].split(), cwd=shop)
    assert shown.stdout == "model  correct  30\n"
    exported = run_hinet(*EXAMPLES["feedback export"].split(), cwd=shop)
    assert (exported.returncode, exported.stderr) == (0, "30 rows\n")
    assert (shop / "rows.csv").read_text().splitlines()[:2] == ["title,category", f"{TEXT} 0,milk"]
    listed = run_hinet(*EXAMPLES["feedback list"].split(), cwd=shop)
    assert len(listed.stdout.splitlines()) == 30
    deleted = run_hinet(*EXAMPLES["feedback delete"].split(), cwd=shop)
    assert (deleted.returncode, deleted.stderr) == (0, "2 rows deleted\n")
    updated = run_hinet("update", "model", "--rows", "rows.csv", cwd=shop)
    assert updated.returncode == 0, updated.stderr
    with serving(shop, "again=model") as ask:
        learned = ask("/v1/classify", {"text": TEXT})
        assert learned["results"][0]["labels"][0]["node"] == "milk"
        assert learned["version"] != answered["version"]
        assert ask("/v1/models/again")["evaluation"] is None  # the evaluation was of another model
    trained = run_hinet(
        "train", "products.csv", "rows.csv", "--text", "title", "--label", "category", "--out", "new", cwd=shop
    )
    assert trained.returncode == 0, trained.stderr


def test_a_token_is_required_with_a_token_file(shop: Path) -> None:
    (shop / "tokens").write_text(f"# tokens\n{hashlib.sha256(b'secret').hexdigest()}  -\n")
    with serving(shop, "model", "--token-file", "tokens") as ask:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask("/v1/models")
        if (status := Path(f"/proc/{ask.process.pid}/status")).exists():  # a client that goes does not end the service
            ignored = int(status.read_text().split("SigIgn:")[1].split()[0], 16)
            assert ignored & 1 << signal.SIGPIPE - 1
        assert ask("/v1/models", authorization="Bearer secret")["models"][0]["name"] == "model"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["serve", "none"], "no such folder"),
        (["serve", "categories.csv"], "it is a file"),
        (["serve", "a b=model"], "'a b' cannot name a model"),
        (["serve", "model", "model"], "two models are called 'model'"),
        (["serve", "model", "--review"], "give --feedback too"),
        (["serve", "model", "--feedback", "products.csv"], "cannot be opened as a feedback file"),
        (["serve", "model", "--token-file", "products.csv"], "products.csv:1: expected a SHA-256 digest"),
        (["serve", "model", "--token-file", "none"], "the tokens cannot be read"),
        (["serve", "model", "--port", "0"], "--port"),
        (["serve", "model", "--allowed-host", "https://a.example"], "--allowed-host must be a host name"),
        (["feedback", "show", "none.db"], "no such file"),
        (["feedback", "export", "test.csv"], "cannot be opened"),
    ],
)
def test_invalid_options_are_reported(
    trained: Path,
    arguments: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(trained)
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert told in capsys.readouterr().err
    assert not (trained / "none.db").exists()


def test_a_port_in_use_is_reported(trained: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_hinet("serve", "model", "--port", str(taken.getsockname()[1]), cwd=trained)
    assert done.returncode == 2
    assert "give another --port" in done.stderr
    assert "Traceback" not in done.stderr
