"""The client in Python, with the service in its own process and with servers that answer anything."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from hinet import client as client_module
from hinet.client import Client, ServiceError, ServiceUnreachableError
from hinet.errors import FileError, HiNetError
from hinet.serving import schemas
from tests.serving.process import Running, free_port, running

TOKEN = "secret"
SECONDS = 60.0


@pytest.fixture(scope="module")
def service(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    tokens = [hashlib.sha256(TOKEN.encode()).hexdigest()]
    store = tmp_path_factory.mktemp("client") / "feedback.db"
    with running({"shop": shop}, tokens=tokens, feedback=store, max_length=1_000, max_texts=50) as service:
        yield service


@pytest.fixture
def client(service: Running) -> Client:
    return Client(f"http://127.0.0.1:{service.port}/", token=TOKEN, timeout=SECONDS)


def test_texts_are_classified_explained_searched_and_corrected(client: Client) -> None:
    rye, milk = client.classify(["dark bread", "fresh milk bottle"], top=2, unknown_words=True)
    assert [rye["labels"][0]["node"], milk["labels"][0]["node"]] == ["rye", "milk"]
    assert len(rye["traces"]) == 2
    assert client.classify([]) == []
    within = client.classify(["dark bread"], within=("electronics",), min_confidence="calibrated")
    assert within[0]["traces"][0]["steps"][0]["node"] == "electronics"
    explained = client.explain("dark bread", node="white", words=1)
    assert explained["trace"]["node"] == "white"
    assert [match["node"] for match in client.search("bread", limit=2)] == ["bread", "rye"]
    kept = client.feedback("dark bread", ["white"], predicted=["rye"])
    assert (kept["id"], kept["model"]) == (1, "shop")


def test_models_are_described(client: Client) -> None:
    assert client.models()["service"]["feedback"] is True
    assert client.describe() == client.describe("shop")
    assert client.describe()["labels"] == 6


@pytest.mark.parametrize("suffix", ["csv", "tab", "jsonl"])
def test_a_table_is_classified(client: Client, tmp_path: Path, suffix: str) -> None:
    texts = ["dark bread", "cow, fresh"]
    lines = {"csv": ["title", *(f'"{text}"' for text in texts)], "tab": ["title", *texts]}
    json_lines = [f'{{"title": "{text}"}}' for text in texts]
    table = tmp_path / f"rows.{suffix}"
    table.write_text("\n".join(lines.get(suffix, json_lines)) + "\n")
    assert client.classify_table(table, tmp_path / "out", keep=["title"], titles=True, prefix="new_") == 2
    assert "Rye bread" in (tmp_path / "out").read_text()


def test_a_table_that_is_refused_leaves_nothing(client: Client, tmp_path: Path) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("name\ndark bread\n")
    with pytest.raises(ServiceError, match="no column 'title' among 'name'") as caught:
        client.classify_table(table, tmp_path / "out.csv")
    assert (caught.value.status, caught.value.kind) == (422, "invalid-request")
    assert list(tmp_path.iterdir()) == [table]
    with pytest.raises(ServiceError, match="format"):
        client.classify_table(table, tmp_path / "out.csv", format="pdf")
    with pytest.raises(FileError, match=r"none\.csv: cannot be read: No such file"):
        client.classify_table(tmp_path / "none.csv", tmp_path / "out.csv")


def test_threads_share_a_client(client: Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda text: client.classify([text]), ["dark bread", "cow litre"] * 8))
    assert [answer[0]["labels"][0]["node"] for answer in answers] == ["rye", "milk"] * 8


def test_problems_are_errors_that_name_the_field(client: Client, service: Running) -> None:
    with pytest.raises(ServiceError, match="413 The request is too large: texts: 51 are more than 50") as caught:
        client.classify(["bread"] * 51)
    assert caught.value.problem["errors"] == [
        {"field": "texts", "message": "51 are more than 50; send several requests, or a file"}
    ]
    assert caught.value.kind == "too-large"
    with pytest.raises(ServiceError, match="401 A token is required: the token is wrong"):
        Client(client.url, token="other").models()
    with pytest.raises(ServiceError, match="there is no model 'none'"):
        Client(client.url, token=TOKEN, model="none").classify(["bread"])
    with pytest.raises(HiNetError, match="got one str; put it in a list"):
        client.classify("bread")
    with pytest.raises(HiNetError, match="cannot be written as JSON"):
        client.classify(["bread"], min_confidence=float("nan"))


@pytest.mark.parametrize(
    ("url", "token", "message"),
    [
        ("localhost:8000", None, "`url` must be an address"),
        ("http://localhost:x", None, "`url` has an invalid port"),
        ("http://localhost/?q=1", None, "`url` must be an address"),
        ("http://localhost", "a\r\nb", "`token` must be a line"),
    ],
)
def test_invalid_settings_raise(url: str, token: str | None, message: str) -> None:
    with pytest.raises(HiNetError, match=message):
        Client(url, token=token)
    with pytest.raises(HiNetError, match="`retries` must be at least 0; got -1"):
        Client("http://localhost", retries=-1)


@contextmanager
def answering(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a server that gives these answers in turn, and the bodies that it gets."""
    waiting, bodies = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            status, headers, content = waiting.pop(0)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST  # noqa: N815 the name that the base class calls

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", bodies
        finally:
            server.shutdown()
            thread.join(SECONDS)


def problem(status: int) -> bytes:
    return b'{"type": "urn:hinet:problem:not-ready", "title": "T", "status": %d, "detail": "d", "errors": []}' % status


OK = (200, {"Hinet-Rows": "1"}, b'{"results": []}')


@pytest.mark.parametrize(
    ("answers", "waits"),
    [
        ([(503, {"Retry-After": "1"}, problem(503)), (503, {"Retry-After": "99"}, problem(503)), OK], [1.0, 30.0]),
        ([(503, {"Retry-After": "1"}, problem(503))] * 3, [1.0, 1.0]),
        ([(503, {}, problem(503)), OK], []),
        ([(503, {"Retry-After": "soon"}, problem(503)), OK], []),
        ([(429, {"Retry-After": "1"}, problem(429)), OK], []),
    ],
)
def test_only_503_with_retry_after_is_retried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers: list[Any], waits: list[float]
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(client_module.time, "sleep", waited.append)
    (tmp_path / "rows.csv").write_text("title\nbread\n")
    with answering(*answers) as (url, bodies):
        client = Client(url, timeout=SECONDS)
        if answers[len(waits)] is OK:
            assert client.classify_table(tmp_path / "rows.csv", tmp_path / "out") == 1
        else:
            with pytest.raises(ServiceError, match="T: d"):
                client.classify_table(tmp_path / "rows.csv", tmp_path / "out")
    assert waited == waits
    assert bodies == [b"title\nbread\n"] * (len(waits) + 1)


@pytest.mark.parametrize("status", [200, 302, 502])
def test_answers_of_other_servers_raise(status: int, tmp_path: Path) -> None:
    answer = status, {"Location": "http://localhost/"}, b"<h1>Bad gateway</h1>"
    message = "the answer is not from hinet; check the address: '<h1>Bad"
    with answering(answer) as (url, _), pytest.raises(ServiceError, match=message) as caught:
        Client(url, timeout=SECONDS).classify(["bread"])
    assert caught.value.status == status
    (tmp_path / "rows.csv").write_text("title\nbread\n")
    with answering(answer) as (url, _), pytest.raises(ServiceError, match="the answer is not from hinet"):
        Client(url, timeout=SECONDS).classify_table(tmp_path / "rows.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_service_that_does_not_answer_is_named(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServiceUnreachableError, match=f"{url} did not answer: .*refused"):
        Client(url).models()
    (tmp_path / "rows.csv").write_text("title\nbread\n")
    answer = 200, {"Hinet-Rows": "9", "Content-Length": "1000000"}, b"label\n"
    with answering(answer) as (url, _), pytest.raises(ServiceUnreachableError, match="IncompleteRead"):
        Client(url, timeout=SECONDS).classify_table(tmp_path / "rows.csv", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("typed", "schema"),
    [
        (client_module.Label, schemas.Label),
        (client_module.Step, schemas.TraceStep),
        (client_module.Trace, schemas.Trace),
        (client_module.Result, schemas.Result),
        (client_module.Explanation, schemas.ExplainResponse),
        (client_module.Node, schemas.Node),
        (client_module.Match, schemas.Match),
        (client_module.Kept, schemas.FeedbackResponse),
        (client_module.Problem, schemas.Problem),
    ],
)
def test_types_have_the_fields_of_the_service(typed: Any, schema: Any) -> None:
    assert {*typed.__annotations__} == {*schema.model_fields}
