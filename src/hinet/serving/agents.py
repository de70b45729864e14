"""The service as tools for agents (Model Context Protocol), over standard input and output or at ``/mcp``.

A tool takes the body of an endpoint as its arguments and returns the answer of the endpoint; a problem is an error that
the agent can read.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import mcp_types as types
import orjson
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from hinet import __version__
from hinet.serving import schemas
from hinet.serving.gate import BODY, ConcurrencyLimit, Message, Receive, Scope, Send, problem_of, too_long
from hinet.serving.problems import ProblemError
from hinet.serving.service import Service, parse
from hinet.serving.settings import Settings

INSTRUCTIONS = (
    "Classifies texts and table rows into a large hierarchy. list_models says what is served. classify answers with "
    "calibrated probabilities: an answer of low probability needs a person, or a look at explain and search_taxonomy."
)


class ModelsRequest(schemas.RequestBody):
    """The served models."""


class Tool(NamedTuple):
    """A tool: the schema of its arguments, and the function of the service that answers."""

    name: str
    description: str
    arguments: type[BaseModel]
    answer: Callable[[Service, Any], Awaitable[Any]]
    only_reads: bool = True


async def _list_models(service: Service, asked: ModelsRequest) -> Any:
    return await service.list_models()


TOOLS = (
    Tool(
        "classify", "Classify texts or table rows: the best paths down the taxonomy, with calibrated probabilities.",
        schemas.ClassifyRequest, Service.classify,
    ),
    Tool(
        "explain", "Explain the classification of one text or row: the words for and against each step, and the most "
        "similar known texts.",
        schemas.ExplainRequest, Service.explain,
    ),
    Tool(
        "search_taxonomy", "Find nodes of the taxonomy by id, title or synonym.", schemas.SearchQuery, Service.search,
    ),
    Tool(
        "browse_taxonomy", "Show a node of the taxonomy with its ancestors and a page of its children.",
        schemas.NodeQuery, Service.taxonomy,
    ),
    Tool("list_models", "List the served models and the limits of requests.", ModelsRequest, _list_models),
    Tool(
        "feedback", "Store the correct label of a text or row for later training. Call it only for labels that a person"
        " confirmed.",
        schemas.FeedbackRequest, Service.feedback, only_reads=False,
    ),
)  # fmt: skip


class Agents:
    """A service as a server of the Model Context Protocol."""

    def __init__(self, service: Service) -> None:
        self._service, self._settings = service, service.settings
        self._tools = {tool.name: tool for tool in TOOLS if tool.name != "feedback" or service.store is not None}
        self._limit = ConcurrencyLimit(service.settings.max_requests)
        self.server: Server[Any] = Server(
            "hinet", version=__version__, instructions=INSTRUCTIONS, on_list_tools=self._list, on_call_tool=self._call
        )

    async def _list(self, context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_description(tool) for tool in self._tools.values()])

    async def _call(self, context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Call a tool within the limits of the service."""
        tool = self._tools.get(params.name)
        if tool is None:
            there_are = f"there is no such tool; the service has {', '.join(self._tools)}"
            return _failed(ProblemError(404, "not-found", there_are))
        try:
            answer = await self._answer(tool, params.arguments or {})
        except Exception as error:
            return _failed(problem_of(error, f"tool {tool.name}", self._settings))
        return types.CallToolResult(content=_text(answer), structured_content=orjson.loads(answer))

    async def _answer(self, tool: Tool, arguments: Mapping[str, Any]) -> bytes:
        try:
            body = orjson.dumps(arguments)
        except TypeError:  # such as an integer of more than 64 bits, or nesting that is too deep
            raise ProblemError(422, "invalid-request", "the arguments cannot be written as JSON") from None
        if len(body) > self._settings.max_body:
            raise too_long(self._settings.max_body)
        with self._limit:
            async with asyncio.timeout(self._settings.seconds):
                return orjson.dumps(await tool.answer(self._service, parse(tool.arguments, body)))


def _description(tool: Tool) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=tool.only_reads, destructive_hint=False, open_world_hint=False)
    schema = tool.arguments.model_json_schema()
    return types.Tool(name=tool.name, description=tool.description, input_schema=schema, annotations=hints)


def _text(content: bytes) -> list[types.ContentBlock]:
    return [types.TextContent(text=content.decode())]


def _failed(problem: ProblemError) -> types.CallToolResult:
    return types.CallToolResult(content=_text(problem.body()), is_error=True)


class AgentEndpoint:
    """The endpoint ``/mcp``: every request is complete in itself, so there are no sessions."""

    def __init__(self, service: Service) -> None:
        self._manager = StreamableHTTPSessionManager(
            Agents(service).server, json_response=True, stateless=True, max_request_body_size=service.settings.max_body
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Accept requests as long as the block runs."""
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, whose host, token and body the gate has checked."""
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"Allow": "POST"})
        body: list[Message] = [{"type": "http.request", "body": scope[BODY], "more_body": False}]

        async def receive_again() -> Message:
            return body.pop() if body else await receive()

        await self._manager.handle_request(scope, receive_again, send)


async def serve_standard_streams(settings: Settings) -> None:
    """Answer requests on standard input until it ends or the process is terminated.

    Raises
    ------
    HiNetError
        If no model can be loaded.
    """
    service = Service(settings)
    try:
        await service.load()
    except BaseException:
        service.close()
        raise

    def stop() -> None:
        service.close()
        os._exit(0)  # a thread that reads standard input cannot be interrupted

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    watching = asyncio.create_task(service.watch())
    server = Agents(service).server
    try:
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())
    finally:
        watching.cancel()
        await asyncio.to_thread(service.close)
