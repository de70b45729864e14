"""The tools for agents, called by the official client over standard streams and streamable HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from hinet import extras
from hinet.cli import main
from hinet.serving.settings import Settings
from tests.cli.conftest import HINET
from tests.cli.test_help import EXAMPLES
from tests.processes import LONGEST, run, started
from tests.serving.conftest import Service, serving
from tests.serving.process import Running, running

pytest.importorskip("mcp")
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolRequestParams

from hinet.serving.agents import Agents

TOKEN = "secret"
SECONDS = 60.0
READING = ["classify", "explain", "search_taxonomy", "browse_taxonomy", "list_models"]


@pytest.fixture(scope="module")
def address(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    tokens = [hashlib.sha256(TOKEN.encode()).hexdigest()]
    store = tmp_path_factory.mktemp("agents") / "feedback.db"
    with running({"shop": shop}, mcp=True, tokens=tokens, feedback=store, max_texts=5, max_body=20_000) as service:
        yield service


def over_http(service: Running, token: str | None = TOKEN, mode: str = "auto") -> Any:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    @asynccontextmanager
    async def connect() -> Any:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=SECONDS) as http,
            Client(
                streamable_http_client(f"http://127.0.0.1:{service.port}/mcp", http_client=http),
                read_timeout_seconds=SECONDS, mode=mode,
            ) as client,
        ):  # fmt: skip
            yield client

    return connect()


def over_standard_streams(*arguments: str | Path, mode: str = "auto") -> Any:
    command = StdioServerParameters(command=str(HINET), args=["mcp", *map(str, arguments)], env=dict(os.environ))
    return Client(command, read_timeout_seconds=LONGEST, mode=mode)


def within_time(work: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of a coroutine, which is cancelled if it takes too long."""

    async def bounded() -> Any:
        async with asyncio.timeout(LONGEST):
            return await work()

    return asyncio.run(bounded())


def problem(result: Any) -> dict[str, Any]:
    assert result.is_error
    return json.loads(result.content[0].text)  # type: ignore[no-any-return]


async def use_every_tool(client: Client) -> int:
    """Call every tool, and return the id of the stored feedback."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert [*tools] == [*READING, "feedback"]
    assert [name for name, tool in tools.items() if tool.annotations.read_only_hint] == READING
    assert tools["classify"].input_schema["properties"]["top"]["maximum"] == 100
    classified = await client.call_tool("classify", {"texts": ["dark bread", "fresh milk bottle"], "top": 2})
    answer = classified.structured_content
    assert json.loads(classified.content[0].text) == answer
    assert [result["labels"][0]["node"] for result in answer["results"]] == ["rye", "milk"]
    assert len(answer["results"][0]["traces"]) == 2
    explained = await client.call_tool("explain", {"text": "dark bread", "words": 1})
    assert explained.structured_content["steps"][0]["reasons"]
    found = await client.call_tool("search_taxonomy", {"q": "telly"})
    assert found.structured_content["matches"][0]["node"] == "tv"
    browsed = await client.call_tool("browse_taxonomy", {"node": "bread"})
    assert [node["node"] for node in browsed.structured_content["children"]] == ["rye", "white"]
    models = await client.call_tool("list_models")
    assert models.structured_content["models"][0]["labels"] == 6
    kept = await client.call_tool("feedback", {"text": "dark bread", "verdict": "correct", "nodes": ["white"]})
    return int(kept.structured_content["id"])


async def break_every_limit(client: Client) -> None:
    """Call tools with arguments that the service refuses."""
    refused = problem(await client.call_tool("classify", {"texts": ["bread"] * 6}))
    assert (refused["status"], refused["errors"][0]["field"]) == (413, "texts")
    misspelt = problem(await client.call_tool("classify", {"txt": "bread"}))
    assert "did you mean 'text'?" in misspelt["detail"]
    assert problem(await client.call_tool("feedback", {"text": "rye", "verdict": "correct", "nodes": ["x"]}))["errors"]
    assert "the service has classify, explain" in problem(await client.call_tool("buy"))["detail"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_uses_every_tool_over_http(address: Running, mode: str) -> None:
    async def work() -> int:
        async with over_http(address, mode=mode) as client:
            await break_every_limit(client)
            return await use_every_tool(client)

    assert within_time(work) >= 1


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_an_agent_uses_every_tool_over_standard_streams(shop: Path, tmp_path: Path, mode: str) -> None:
    async def work() -> int:
        example = EXAMPLES["mcp"].replace("model", str(shop)).replace("feedback.db", str(tmp_path / "feedback.db"))
        options = [*example.split()[1:], "--max-texts", "5", "--max-body", "20000"]
        async with over_standard_streams(*options, mode=mode) as client:
            await break_every_limit(client)
            long = problem(await client.call_tool("classify", {"text": "bread " * 5_000}))
            assert (long["status"], long["detail"]) == (413, "the body has more than 20,000 bytes")
            return await use_every_tool(client)

    assert within_time(work) == 1


def test_the_tools_answer_as_the_endpoints_do(address: Running) -> None:
    asked = {"text": "dark bread", "top": 3, "siblings": 2, "unknown_words": True}

    async def work() -> Any:
        async with over_http(address) as client:
            return (await client.call_tool("classify", asked)).structured_content

    request = httpx2.post(
        f"http://127.0.0.1:{address.port}/v1/classify", json=asked, headers={"Authorization": f"Bearer {TOKEN}"},
        timeout=SECONDS,
    )  # fmt: skip
    answered, expected = within_time(work), request.json()
    assert answered["results"] == expected["results"]


@pytest.mark.parametrize("token", [None, "other"])
def test_http_needs_the_token(address: Running, token: str | None) -> None:
    async def work() -> None:
        async with over_http(address, token) as client:
            await client.list_tools()

    with pytest.raises((MCPError, httpx2.HTTPStatusError, ExceptionGroup)):
        within_time(work)
    refused = httpx2.post(f"http://127.0.0.1:{address.port}/mcp", json={}, timeout=SECONDS)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_http_has_the_limits_of_the_service(address: Running) -> None:
    url, headers = f"http://127.0.0.1:{address.port}/mcp", {"Authorization": f"Bearer {TOKEN}"}
    long = httpx2.post(url, content=b" " * 20_001, headers=headers, timeout=SECONDS)
    assert (long.status_code, long.json()["type"]) == (413, "urn:hinet:problem:too-large")
    for method in ("GET", "DELETE"):
        refused = httpx2.request(method, url, headers=headers, timeout=SECONDS)
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


@pytest.fixture(scope="module")
def plain(shop: Path) -> Iterator[Service]:
    """A service without feedback, and without an endpoint for agents."""
    yield from serving(Settings({"shop": shop}, seconds=0.2, max_requests=1))


def call(service: Service, name: str, *, times: int = 1) -> list[dict[str, Any]]:
    """Return the problems of simultaneous calls of a tool in this process."""

    async def work() -> list[Any]:
        async with Client(Agents(service.service).server, read_timeout_seconds=SECONDS) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == READING
            return await asyncio.gather(*(client.call_tool(name) for _ in range(times)))

    return [problem(result) for result in within_time(work)]


def test_feedback_is_a_tool_only_if_it_is_stored(plain: Service) -> None:
    assert call(plain, "feedback")[0]["type"] == "urn:hinet:problem:not-found"


def test_a_call_has_the_time_limit_of_a_request(plain: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain.service, "list_models", asyncio.Event().wait)
    problems = call(plain, "list_models", times=2)
    assert sorted(each["type"] for each in problems) == ["urn:hinet:problem:busy", "urn:hinet:problem:too-slow"]


def test_a_failure_does_not_repeat_the_text(
    plain: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError(" ".join(["the", "text", "of", "a", "user"]))

    monkeypatch.setattr(plain.service, "list_models", fail)
    monkeypatch.setattr("hinet.serving.gate.log.propagate", True)
    (failed,) = call(plain, "list_models")
    assert (failed["status"], failed["detail"]) == (500, "see the log of the service")
    assert "tool list_models failed: ValueError\n" in caplog.text
    assert "the text of a user" not in caplog.text


def test_arguments_that_are_not_json_are_refused_and_an_unknown_name_is_not_logged(
    plain: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hinet.serving.gate.log.propagate", True)
    agents = Agents(plain.service)
    for name, status in (("classify", 422), ("buy\nERROR forged", 404)):
        result = within_time(
            lambda name=name: agents._call(None, CallToolRequestParams(name=name, arguments={"top": 1 << 70}))
        )
        assert problem(result)["status"] == status
    assert not caplog.records


def test_a_service_offers_tools_only_if_asked_to(plain: Service) -> None:
    assert plain.client.post("/mcp", json={}).status_code == 405  # only the page is there


def test_standard_output_has_messages_alone_and_the_end_of_input_ends_the_process(shop: Path) -> None:
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": client}
    done = run([HINET, "mcp", shop], input=json.dumps(request) + "\n")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["result"]["serverInfo"]["name"] == "hinet"
    assert " ready: shop" in done.stderr


def test_a_signal_ends_the_process(shop: Path) -> None:
    with started([HINET, "mcp", shop], stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        request = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        assert process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONGEST) == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["none"], "no such folder"),
        (["shop", "--token-file", "tokens"], "--token-file are for --http"),
        (["shop", "--port", "80"], "--token-file are for --http"),
    ],
)
def test_invalid_options_are_reported(
    model: Path, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(model.parent)
    (model.parent / "tokens").write_text("0" * 64)
    with pytest.raises(SystemExit, match="2"):
        main(["mcp", *arguments])
    assert told in capsys.readouterr().err


def test_a_model_that_cannot_be_loaded_ends_the_process(model: Path) -> None:
    next(model.glob("model-*")).write_bytes(b"")
    done = run([HINET, "mcp", model], stdin=PIPE)
    assert done.returncode == 2
    assert "error: no model can be served: shop: " in done.stderr
    assert "Traceback" not in done.stderr


def test_the_package_to_install_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda package: None if package == "mcp" else package)
    with pytest.raises(SystemExit, match="2"):
        main(["mcp", "model"])
    assert capsys.readouterr().err == "error: hinet mcp needs mcp; install it with: pip install 'hinet[mcp]'\n"
