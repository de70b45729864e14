"""What every request passes: host, token, limits of size, number and time, security headers, figures, the log."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from hinet.serving.hosts import Hosts
from hinet.serving.metrics import Metrics
from hinet.serving.problems import CONTENT_TYPE, ProblemError
from hinet.serving.security import HEADERS, NO_STORE, check_token
from hinet.serving.settings import Settings

BODY = "hinet.body"  # where a request has its body
ALWAYS = ("/health", "/ready", "/metrics")  # answered however busy the service is
GUARDED = ("/v1/", "/metrics")  # what needs a token
FILE = "/v1/classify/file"  # whose body is a stream
DRAIN_SECONDS, DRAIN_BYTES = 2.0, 1 << 26  # of a body that is refused
INTERNAL_ERROR = ProblemError(500, "internal-error", "the log of the service has more")
LONG_TEXT = 200  # characters of a body in the log

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Handler = Callable[[bytes], Awaitable[bytes]]

log = logging.getLogger("hinet.serving")


class Gate:
    """An ASGI application around another one."""

    def __init__(
        self, app: App, settings: Settings, metrics: Metrics, direct: Mapping[tuple[str, str], Handler]
    ) -> None:
        self._app, self._settings, self._metrics, self._direct = app, settings, metrics, direct
        self._hosts = Hosts.of(settings)
        self._requests, self._files = _Slots(settings.max_requests), _Slots(settings.max_files)
        metrics.running.set_function(lambda: self._requests.taken + self._files.taken)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, answer = time.perf_counter(), _Answer(send, self._settings.seconds)
        try:
            await self._pass(scope, receive, answer)
        except ProblemError as problem:
            await answer.problem(problem)
        except TimeoutError:
            message = f"it took more than {self._settings.seconds:g} seconds"
            await answer.problem(ProblemError(503, "too-slow", message, headers={"Retry-After": "5"}))
        except Exception as error:
            self._log_failure(scope, error)
            await answer.problem(INTERNAL_ERROR)
        seconds = time.perf_counter() - start
        endpoint = _endpoint(scope)
        self._metrics.answered(endpoint, answer.status, seconds)
        if self._settings.log_requests:
            self._log_request(scope, endpoint, answer.status, seconds)

    async def _pass(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        self._hosts.check(scope["headers"], scope["http_version"])
        path: str = scope["path"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._settings.tokens and path.startswith(GUARDED):
            check_token(headers.get(b"authorization"), self._settings.tokens)
        if path in ALWAYS:
            await self._app(scope, receive, answer)
            return
        is_file = path == FILE
        if not is_file:
            scope[BODY] = await self._body(headers, receive)
        with self._files if is_file else self._requests:
            async with asyncio.timeout(None if is_file else self._settings.seconds):
                handler = self._direct.get((scope["method"], path))
                if handler is None:
                    await self._app(scope, receive, answer)
                else:
                    check_json(headers.get(b"content-type"))
                    await answer.json(await handler(scope[BODY]))

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Return the whole body, or raise ProblemError if it is too long or too slow."""
        most = self._settings.max_body
        if is_too_long(headers.get(b"content-length"), most):
            await drain(receive)
            raise too_long(most)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ProblemError(400, "invalid-body", "the body ended early")
                    part = message.get("body", b"")
                    size += len(part)
                    if not message.get("more_body") and size <= most:
                        return part if not parts else b"".join([*parts, part])
                    if size > most:
                        break
                    parts.append(part)
        except TimeoutError:
            raise slow_body(self._settings.body_seconds) from None
        await drain(receive)
        raise too_long(most)

    def _log_request(self, scope: Scope, endpoint: str, status: int, seconds: float) -> None:
        body = scope.get(BODY, b"")[:LONG_TEXT].decode(errors="replace")
        texts = f" {body!r}" if self._settings.log_texts else ""  # escaped, so that no text looks like another line
        log.info("%s %s %d %.1f ms%s", scope["method"], endpoint, status, 1e3 * seconds, texts)

    def _log_failure(self, scope: Scope, error: Exception) -> None:
        """Log where something failed; the message of the error may repeat the text of a user."""
        where = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
        reason = type(error).__name__ + (f" {str(error)!r}" if self._settings.log_texts else "")
        log.error("%s %s failed: %s\n%s", scope["method"], _endpoint(scope), reason, where)


class _Slots:
    """Room for so many requests at once."""

    def __init__(self, count: int) -> None:
        self._count, self.taken = count, 0

    def __enter__(self) -> None:
        if self.taken >= self._count:
            message = f"{self._count} requests of this kind are at work"
            raise ProblemError(429, "busy", message, headers={"Retry-After": "1"})
        self.taken += 1

    def __exit__(self, *error: object) -> None:
        self.taken -= 1


class _Answer:
    """Sends an answer with the headers that all have, and knows its status."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self.status = 499  # nobody waited for an answer
        self._started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started, self.status = True, message["status"]
            names = {name for name, _ in message["headers"]}
            more = HEADERS if b"cache-control" in names else (*HEADERS, NO_STORE)
            message["headers"] = [*message["headers"], *more]
        if not message.get("more_body"):
            await self._send(message)
            return
        async with asyncio.timeout(self._seconds):  # a client that does not read keeps a table on disk
            await self._send(message)

    async def json(self, body: bytes) -> None:
        """Send a JSON body."""
        await self._whole(200, body, ((b"content-type", b"application/json"),))

    async def problem(self, problem: ProblemError) -> None:
        """Send a problem, unless an answer has begun, which then stays incomplete."""
        if self._started:
            return
        headers = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        if problem.kind in ("slow-request", "too-large", "invalid-body"):
            headers.append((b"connection", b"close"))  # what is left of the body is not read
        await self._whole(problem.status, problem.body(), ((b"content-type", CONTENT_TYPE.encode()), *headers))

    async def _whole(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self._started, self.status = True, status
        length = (b"content-length", str(len(body)).encode())
        start = {"type": "http.response.start", "status": status, "headers": [*headers, length, NO_STORE, *HEADERS]}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def check_json(content_type: bytes | None) -> None:
    """Raise ProblemError unless a body is said to be JSON."""
    kind = (content_type or b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ProblemError(415, "unsupported-type", "send the body as Content-Type: application/json")


def is_too_long(given: bytes | None, most: int) -> bool:
    """Return whether a body is said to be longer than ``most`` bytes."""
    return given is not None and given.isdigit() and int(given[:20]) > most


async def drain(receive: Receive) -> None:
    """Read the rest of a body that is refused, if it comes soon: a client that still sends would not see the answer."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def too_long(most: int) -> ProblemError:
    """Return the problem of a body that is too long."""
    return ProblemError(413, "too-large", f"the body has more than {most:,} bytes")


def slow_body(seconds: float) -> ProblemError:
    """Return the problem of a body that does not come."""
    return ProblemError(408, "slow-request", f"the body did not arrive within {seconds:g} seconds")


def _endpoint(scope: Scope) -> str:
    """Return the path that an endpoint was declared with: what the client wrote may be anything."""
    route = scope.get("route")
    if route is not None:
        return str(getattr(route, "path", "page"))
    path = scope["path"]
    return path if path in (*ALWAYS, FILE, "/v1/classify") else "other"
