"""Malformed requests of every kind: each gets a problem, and valid requests are answered meanwhile."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from tests.serving.process import SECONDS, Running, received, running

POSTS = ("/v1/classify", "/v1/explain", "/v1/feedback")
Parts = tuple[bytes, ...]

DEEP = b"[" * 50_000 + b"]" * 50_000
NO_JSON = (
    b"", b" ", b"{", b"}", b"nul", b"'text'", b'{"text": "a"', b'{"text": "a"}}', b'{"text": "a",}', b"\xff\xfe\xfd",
    b'{"text": "\xc3"}', b'{"text": "\xed\xa0\x80"}', b'{"text": "\\ud800"}', b'{"text": "\x00"}', b'{"text": "\\x00"}',
    DEEP, b'{"a":' * 50_000 + b"1" + b"}" * 50_000, b'{"text": ' + DEEP + b"}", b'{"rows": [{"a": ' + DEEP + b"}]}",
    b"\x1f\x8b\x08\x00", b"PAR1", b"<xml/>", b"text=a",
)  # fmt: skip
WRONG: tuple[object, ...] = (
    None, True, 3, 1e308, "text", [], [1], {}, {"text": None}, {"text": 3}, {"text": ["a"]}, {"text": {"a": 1}},
    {"text": "a", "other": 1}, {"text": "a", "Text": "a"}, {"text": "a", "__class__": {}}, {"text": "a", "model": 3},
    {"text": "a", "model": "../shop"}, {"text": "a", "model": "x" * 5_000}, {"text": "a" * 101}, {"row": []},
)  # fmt: skip
CLASSIFY: tuple[object, ...] = (
    {"texts": "a"}, {"texts": []}, {"texts": [None]}, {"texts": [["a"]]}, {"texts": ["a"] * 1_001}, {"rows": {}},
    {"rows": [1]}, {"rows": [{}]}, {"rows": [{"title": {"a": []}}]}, {"text": "a", "texts": ["a"]},
    {"text": "a", "top": -1}, {"text": "a", "top": 10**30}, {"text": "a", "top": 1.5}, {"text": "a", "top": None},
    {"text": "a", "min_confidence": 0}, {"text": "a", "min_confidence": "sure"}, {"text": "a", "siblings": 10**9},
    {"text": "a", "unknown_words": "yes"},
)  # fmt: skip
FEEDBACK: tuple[object, ...] = (
    {"text": "a", "verdict": "accept", "nodes": ["none"]}, {"text": "a", "verdict": "accept", "nodes": "rye"},
    {"text": "a", "verdict": 1, "nodes": ["rye"]}, {"text": "a", "verdict": "accept", "nodes": ["rye"] * 101},
    {"verdict": "skip", "review": 10**18}, {"verdict": "skip", "review": 999}, {"verdict": "skip", "review": "1"},
    {"text": "a", "row": {"title": "a"}, "verdict": "accept", "nodes": ["rye"]},
)  # fmt: skip
URLS = r"""
    /v1/../../etc/passwd /../../../etc/passwd /%2e%2e/%2e%2e/etc/passwd /..%2f..%2fetc%2fpasswd //etc/passwd
    /v1//classify /./index.htm /js/../../app.py /js/..%5c..%5capp.py /%00 /index.html%00.js /\..\app.py /__init__.py
    /page /.git/config /v1/models/..%2fshop /v1/models/%2e%2e /v1/models/ /v1/models/a/b /v1/taxonomy?node=none
    /v1/taxonomy?node=%00 /v1/taxonomy?offset=-1 /v1/taxonomy?offset=1e9 /v1/taxonomy?limit=0 /v1/taxonomy?limit=501
    /v1/taxonomy?limit=x /v1/taxonomy?limit=99999999999999999999 /v1/taxonomy?limit=1&limit=x /v1/taxonomy?model=none
    /v1/taxonomy?colour=red /v1/taxonomy/search /v1/taxonomy/search?query=a /v1/review?order=none
    /v1/review?limit=1000 /v1/classify /v1/classify/file /%ff%fe
"""
PATHS = (
    *URLS.split(),
    "/" + "a" * 30_000,
    "/v1/taxonomy?x=1&" + "y" * 30_000,
    "/v1/taxonomy/search?q=" + "a" * 201,
)
HEADS = (
    b"GET\r\n\r\n", b"\r\n\r\n\r\nnonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET  /x  HTTP/1.1\r\n\r\n",
    b"BREW /v1/models HTTP/1.1\r\nhost: [::1]\r\n\r\n", b"GET /x HTTP/1.1\r\nbad header\r\n\r\n",
    b"GET /x HTTP/1.1\r\nhost: a\x00b\r\n\r\n", b"GET \xff\xfe HTTP/1.1\r\nhost: [::1]\r\n\r\n",
    b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
    b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ncontent-length: -1\r\n\r\n",
    b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ncontent-length: abc\r\n\r\n",
    b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 99999999999999999999999\r\n\r\n",
    b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 0\r\n\r\n",
    b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /v1/classify/file HTTP/1.1\r\nhost: [::1]\r\ncontent-type: text/html\r\ncontent-length: 1\r\n\r\na",
    b"POST /v1/classify/file?format=exe HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 1\r\n\r\na",
    b"POST /v1/classify/file?text= HTTP/1.1\r\nhost: [::1]\r\ncontent-type: text/csv\r\ncontent-length: 1\r\n\r\na",
    b"PUT /v1/models/shop HTTP/1.1\r\nhost: [::1]\r\ncontent-length: 0\r\n\r\n",
    b"DELETE /v1/review HTTP/1.1\r\nhost: [::1]\r\n\r\n", b"TRACE / HTTP/1.1\r\nhost: [::1]\r\n\r\n",
    b"GET /x HTTP/1.1\r\n" + b"a: b\r\n" * 20_000,
    b"GET /x HTTP/1.1\r\nhost: " + b"a" * 100_000,
)  # fmt: skip
JSON_HEAD = "POST {} HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n"
SLOW = (
    b"GET /health HTTP/1.1\r\nhost:", b"GET", b"", *(JSON_HEAD.format(path, 99).encode() + b"{" for path in POSTS),
    b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
    b"POST /v1/classify/file HTTP/1.1\r\nhost: [::1]\r\ncontent-type: text/csv\r\ncontent-length: 99\r\n\r\ntitle\n",
)  # fmt: skip


def post(path: str, body: bytes) -> bytes:
    """Return a request whose content type is JSON."""
    return JSON_HEAD.format(path, len(body)).encode() + body


def requests() -> Iterator[Parts]:
    """Yield malformed requests."""
    for path in POSTS:
        for body in NO_JSON:
            yield (post(path, body),)
        for value in WRONG:
            yield (post(path, json.dumps(value).encode()),)
    for value in CLASSIFY:
        yield (post("/v1/classify", json.dumps(value).encode()),)
    for value in FEEDBACK:
        yield (post("/v1/feedback", json.dumps(value).encode()),)
    yield (post("/v1/classify", b'{"text": NaN}'),)
    huge = json.dumps({"text": "a" * 2_000_000}).encode()
    yield (post("/v1/classify", huge),)
    chunk = b"%x\r\n%s\r\n" % (len(huge), huge)
    yield (b"POST /v1/classify HTTP/1.1\r\nhost: [::1]\r\ntransfer-encoding: chunked\r\n\r\n", chunk, b"0\r\n\r\n")
    for path in PATHS:
        yield (f"GET {path} HTTP/1.1\r\nhost: [::1]\r\n\r\n".encode(),)
    for head in HEADS:
        yield (head,)


@pytest.fixture(scope="module")
def service(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    store = tmp_path_factory.mktemp("store") / "feedback.db"
    settings = {"feedback": store, "review": 10, "max_length": 100, "body_seconds": 0.5, "header_seconds": 0.5}
    with running({"shop": shop}, **settings) as started:
        yield started


def status(answer: bytes) -> int:
    """Return the status of an answer; its body is a problem unless the request is not HTTP."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b"application/problem+json" in head:
        assert json.loads(body)["status"] == int(head[9:12])
    return int(head[9:12])


def test_malformed_requests_get_problems_and_others_are_answered(service: Running) -> None:
    broken = list(requests())
    stop = Event()

    def ask() -> None:
        """Send requests until stopped, at least one."""
        while True:
            assert service.request("POST", "/v1/classify", {"text": "dark bread"})[0] == 200
            if stop.is_set():
                return

    with ThreadPoolExecutor(len(SLOW) + 5) as pool:
        asking = pool.submit(ask)
        try:
            slow = list(pool.map(lambda parts: wait_on(service, parts), [part for part in SLOW for _ in range(2)]))
            answers = list(pool.map(lambda parts: service.raw(*parts), broken))
        finally:
            stop.set()
        asking.result()  # raises if a request failed
    wrong = [
        (parts[0][:100], answer[:300])
        for parts, answer in zip(broken, answers, strict=True)
        if status(answer) // 100 != 4
    ]
    assert not wrong
    assert [status(answer) for answer in slow] == [408] * len(slow)
    assert service.request("GET", "/ready")[0] == 200


def wait_on(service: Running, part: bytes) -> bytes:
    """Return the answer to a request that is never completed."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=SECONDS) as connection:
        connection.sendall(part)
        return received(connection)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n", 421),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.0\r\n\r\n", 200),
        (b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost:\r\n\r\n", 400),
        (b"GET http://evil.example/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n", 421),  # the target counts
        (b"GET http://localhost/v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n", 200),
        (b"GET http://[::1]:80/v1/models HTTP/1.1\r\nhost: evil.example\r\n\r\n", 200),
        (b"GET http://localhost/v1/models HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nhost: evil.example\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", 421),
    ],
)
def test_foreign_missing_and_repeated_hosts_are_refused(service: Running, head: bytes, expected: int) -> None:
    assert status(service.raw(head)) == expected
