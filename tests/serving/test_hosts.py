"""Allowed Host headers, so that web pages of other sites cannot reach the service by DNS rebinding."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from hinet.errors import HiNetError
from hinet.serving.app import create_app
from hinet.serving.gate import Hosts
from hinet.serving.problems import ProblemError
from hinet.serving.settings import Settings
from tests.serving.conftest import Service, serving

TOKENS = frozenset([hashlib.sha256(b"secret").digest()])
OURS = (
    "localhost",
    "LOCALHOST:8000",
    "localhost.",
    "localhost.:80",
    "127.0.0.1",
    "127.0.0.1:9000",
    "[::1]:8000",
    "[::1]",
    "192.168.1.7:8000",
    "[2001:db8::7]",
    "localhost:",
)
FOREIGN = (
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "evil.localhost.example",
    "127.0.0.1.evil.example",
    "xlocalhost",
    "2130706433",
    "0x7f.1",
    "hinet",
)
INVALID = (
    "",
    ":8000",
    "a b",
    "a,b",
    "a@localhost",
    "localhost/..",
    "localhost:8000:1",
    "localhost:x",
    "[::1",
    "::1",
    "[::1]x",
    "[g::1]",
    "localhost..",
    ".",
    "localhost?x",
    "loc\x00alhost",
    "l\xf6calhost",
    "http://localhost",
    "localhost:999999",
)


def status(host: str | None, version: str = "1.1", bound: str = "127.0.0.1", **settings: Any) -> int:
    """Return the status of a request with a Host header, as far as it depends on the header."""
    headers = [(b"accept", b"*/*"), *([] if host is None else [(b"host", host.encode("latin-1"))])]
    try:
        Hosts(Settings({}, bound, **settings)).check(headers, version)
    except ProblemError as problem:
        return problem.status
    return 200


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0", "::", "::1", "192.168.1.7", "localhost"])
def test_addresses_and_localhost_are_answered_and_other_names_are_not(bound: str) -> None:
    assert {host: status(host, bound=bound) for host in OURS} == dict.fromkeys(OURS, 200)
    assert {host: status(host, bound=bound) for host in FOREIGN} == dict.fromkeys(FOREIGN, 421)
    assert {host: status(host, bound=bound) for host in INVALID} == dict.fromkeys(INVALID, 400)


def test_names_are_allowed_as_they_are_given() -> None:
    given = ("hinet.example", "*.Shop.example", "my_service.")
    allowed = {
        "hinet.example",
        "HINET.example.:443",
        "a.shop.example",
        "a.b.shop.example",
        "my_service:8000",
        "localhost",
    }
    assert {host: status(host, allowed_hosts=given) for host in allowed} == dict.fromkeys(allowed, 200)
    refused = {"shop.example", "evilshop.example", "hinet.example.evil.example", "a.hinet.example"}
    assert {host: status(host, allowed_hosts=given) for host in refused} == dict.fromkeys(refused, 421)
    assert status("anything.example", allowed_hosts=("*",)) == 200
    assert status("a b", allowed_hosts=("*",)) == 400
    assert status("box.lan:8000", bound="Box.lan") == 200


def test_a_token_guards_a_service_of_any_name_unless_names_are_given() -> None:
    assert status("anything.example", tokens=TOKENS) == 200
    assert status("anything.example", tokens=TOKENS, allowed_hosts=("hinet.example",)) == 421


def test_exactly_one_host_is_required() -> None:
    assert status(None) == 400
    assert status(None, "1.0") == 200  # before Host was required
    assert status("evil.example", "1.0") == 421
    hosts = Hosts(Settings({}))
    for twice in ((b"localhost", b"localhost"), (b"localhost", b"evil.example")):
        with pytest.raises(ProblemError) as problem:
            hosts.check([(b"host", host) for host in twice], "1.1")
        assert problem.value.status == 400


@pytest.mark.parametrize("given", ["https://a.example", "a.example:80", "a b", "", "*.", "a.*.example", "**", "a/b"])
def test_invalid_names_cannot_be_allowed(given: str) -> None:
    with pytest.raises(HiNetError, match="`allowed_host`"):
        create_app(Settings({}, allowed_hosts=(given,)))


def test_no_endpoint_answers_a_foreign_host(service: Service) -> None:
    for path in ("/", "/v1/models", "/v1/review", "/health", "/ready", "/metrics", "/openapi.json", "/none"):
        problem = service.problem(421, path, headers={"host": "evil.example"})
        assert "--allowed-host evil.example" in problem["detail"]
    body = {"text": "dark bread", "verdict": "accept", "nodes": ["rye"]}
    for path in ("/v1/classify", "/v1/feedback", "/v1/classify/file"):
        service.problem(421, path, body, headers={"host": "evil.example"})


def test_a_name_is_allowed_by_settings(shop: Path) -> None:
    for service in serving(Settings({"shop": shop}, allowed_hosts=("hinet.example",))):
        assert service.client.get("/v1/models", headers={"host": "hinet.example"}).status_code == 200
