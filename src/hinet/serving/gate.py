"""ASGI middleware for every request: host, token, limits of size, concurrency and time, headers, metrics, log.

With DNS rebinding, a page of another site makes its own host name resolve to this machine and then reads from the
service as if it were that site. Its requests have that name as ``Host``. Addresses and ``localhost`` cannot be rebound.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.responses import Response

from hinet.errors import HiNetError, quoted
from hinet.serving.problems import ProblemError
from hinet.serving.settings import Settings

POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"  # no CDN
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
NO_STORE = (b"cache-control", b"no-store")  # default of responses that set no cache-control
ANY = "*"
_NAME = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_HOST = re.compile(rf"(?:\[(?P<ipv6>[0-9a-f:.]+)\]|(?P<name>{_NAME})\.?)(?::[0-9]{{0,5}})?", re.ASCII)
_ALLOWED = re.compile(rf"(?P<below>\*\.)?(?P<name>{_NAME})\.?", re.ASCII)
BODY = "hinet.body"  # key of the body in the scope of a request
ALWAYS = ("/health", "/ready", "/metrics")  # exempt from the concurrency limit
GUARDED = ("/v1/", "/metrics", "/mcp")  # paths that need a token
CLASSIFY = "/v1/classify"
FILE = "/v1/classify/file"  # its body is a stream
DRAIN_SECONDS, DRAIN_BYTES = 2.0, 1 << 26  # limits of reading a body that is refused
SHUTTING_DOWN = ProblemError(503, "not-ready", "the service is shutting down", headers={"Retry-After": "5"})
INTERNAL_ERROR = ProblemError(500, "internal-error", "see the log of the service")
MAX_LOGGED = 200  # bytes of a body in the log
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Handler = Callable[[bytes], Awaitable[bytes]]
log = logging.getLogger("hinet.serving")


def check_token(header: bytes | None, digests: Iterable[bytes]) -> None:
    """Raise ProblemError unless a header has a bearer token of one of these digests, compared in constant time."""
    scheme, _, token = (header or b"").partition(b" ")
    digest = hashlib.sha256(token.strip()).digest()
    matches = [hmac.compare_digest(digest, known) for known in digests]
    if scheme.lower() != b"bearer" or not any(matches):
        detail = "the token is wrong" if header else "send a token in the header Authorization: Bearer TOKEN"
        raise ProblemError(401, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


class Hosts:
    """Hosts that settings allow: addresses, ``localhost``, and names; ports are ignored.

    Raises
    ------
    HiNetError
        If an allowed host is not a name.
    """

    def __init__(self, settings: Settings) -> None:
        self._names = {"localhost", settings.host.lower()}
        self._domains: tuple[str, ...] = ()  # each has a leading dot; all names below them are allowed
        self._any_name = bool(settings.tokens) and not settings.allowed_hosts  # pages of other sites have no token
        for given in settings.allowed_hosts:
            allowed = _ALLOWED.fullmatch(given.lower())
            if given == ANY:
                self._any_name = True
            elif allowed is None:
                raise HiNetError(
                    "`allowed_host` must be a host name without scheme and port, such as hinet.example.com, "
                    f"*.example.com or *; got {quoted(given)}"
                )
            elif allowed["below"]:
                self._domains += (f".{allowed['name']}",)
            else:
                self._names.add(allowed["name"])

    def check(self, headers: Iterable[tuple[bytes, bytes]], http_version: str) -> None:
        """Raise ProblemError unless a request names exactly one host, and an allowed one."""
        given = [value for name, value in headers if name == b"host"]
        if not given and http_version == "1.0":  # not used by browsers
            return
        if len(given) != 1:
            raise ProblemError(400, "invalid-request", f"expected one Host header, got {len(given)}")
        host = _parse_host(given[0].decode("latin-1"))
        if host is None:
            raise ProblemError(400, "invalid-request", "the Host header is not a host")
        if isinstance(host, str) and not (self._any_name or host in self._names or host.endswith(self._domains)):
            detail = f"the host {quoted(host)} is not allowed; start the service with --allowed-host {host}"
            raise ProblemError(421, "wrong-host", detail)


def _parse_host(value: str) -> IPv4Address | IPv6Address | str | None:
    """Return the address, or the name in lower case, of a Host header; None if the header is invalid."""
    match = _HOST.fullmatch(value.lower())
    if match is None:
        return None
    try:
        return ip_address(match["name"]) if match["ipv6"] is None else IPv6Address(match["ipv6"])
    except ValueError:
        return match["name"]


class Metrics:
    """Prometheus metrics of the service; labels never contain input from clients."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.requests = counter("hinet_requests", "Requests answered.", ["endpoint", "status"])
        message = "Time from the head of a request to the end of its answer."
        self.seconds = histogram("hinet_request_seconds", message, ["endpoint"], buckets=SECONDS)
        self.running = gauge("hinet_running_requests", "Requests in progress.")
        self.texts = counter("hinet_texts", "Texts and rows classified.", ["model"])
        message = "Requests that were answered by one search."
        self.batches = histogram("hinet_batch_requests", message, buckets=SIZES)
        self.loads = counter("hinet_model_loads", "Models loaded or refused.", ["model", "outcome"])
        message = "Distance of the texts of the last days from those of the first days."
        self.drift = gauge("hinet_text_distance", message, ["model", "signal"])
        message = "1 if the texts of the last days differ from the first days."
        self.differs = gauge("hinet_texts_differ", message, ["model"])
        message = "Mean known-word share, similarity and confidence of the texts of the last counted day."
        self.means = gauge("hinet_text_mean", message, ["model", "signal"])
        self.feedback = counter("hinet_feedback", "Feedback kept.", ["model", "verdict"])
        self._verdicts: dict[str, tuple[str, bool]] = {}  # keys are models; version, and whether texts differ

    def set_drift(self, model: str, version: str, texts: Mapping[str, Any] | None) -> bool:
        """Set how the last texts of a version compare with the first ones; return whether they differ, as news.

        What is unknown of this version has no value: an earlier version may have had one.
        """
        days, signals = (texts["days"], texts["signals"]) if texts else ([{}], [])
        distances = {each["signal"]: each["distance"] for each in signals}
        for signal in ("known_words", "similarity", "confidence"):
            _set(self.means, days[-1].get(signal), model, signal)
            _set(self.drift, distances.get(signal), model, signal)
        _set(self.differs, texts["differs"] if texts else None, model)
        before, verdict = self._verdicts.get(model), (version, bool(texts and texts["differs"]))
        self._verdicts[model] = verdict
        return verdict[1] and before != verdict

    def text(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry)


def _set(gauge: Gauge, value: float | None, *labels: str) -> None:
    """Set the value of labels; without one, they have none."""
    if value is None:
        with suppress(KeyError):  # there was none
            gauge.remove(*labels)
    else:
        gauge.labels(*labels).set(value)


class Gate:
    """An ASGI application around another one, which gets all requests but those to classify."""

    def __init__(self, app: App, settings: Settings, metrics: Metrics, classify: Handler) -> None:
        self._app, self._settings, self._metrics, self._classify = app, settings, metrics, classify
        self._hosts = Hosts(settings)
        self._requests, self._files = ConcurrencyLimit(settings.max_requests), ConcurrencyLimit(settings.max_files)
        metrics.running.set_function(lambda: self._requests.running + self._files.running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, response = time.perf_counter(), _Sender(scope, receive, send, self._settings.seconds)
        try:
            await self._pass(scope, receive, response)
        except asyncio.CancelledError:  # uvicorn cancels requests that outlast the grace period
            await response.problem(SHUTTING_DOWN)
        except Exception as error:
            await response.problem(problem_of(error, f"{scope['method']} {_endpoint(scope)}", self._settings))
        seconds, endpoint = time.perf_counter() - start, _endpoint(scope)
        self._metrics.requests.labels(endpoint, str(response.status)).inc()
        self._metrics.seconds.labels(endpoint).observe(seconds)
        if self._settings.log_requests:
            body = scope.get(BODY, b"")[:MAX_LOGGED].decode(errors="replace")
            texts = f" {body!r}" if self._settings.log_texts else ""  # escaped, so that no text looks like another line
            log.info("%s %s %d %.1f ms%s", scope["method"], endpoint, response.status, 1e3 * seconds, texts)

    async def _pass(self, scope: Scope, receive: Receive, response: _Sender) -> None:
        self._hosts.check(scope["headers"], scope["http_version"])
        path: str = scope["path"]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if self._settings.tokens and path.startswith(GUARDED):
            check_token(headers.get(b"authorization"), self._settings.tokens)
        if path in ALWAYS:
            await self._app(scope, receive, response)
            return
        is_file = path == FILE
        if not is_file:
            scope[BODY] = await self._body(headers, receive)
        with self._files if is_file else self._requests:
            async with asyncio.timeout(None if is_file else self._settings.seconds):
                if path == CLASSIFY and scope["method"] == "POST":  # without the overhead of the application
                    check_json(headers.get(b"content-type"))
                    body = await self._classify(scope[BODY])
                    await Response(body, media_type="application/json")(scope, receive, response)
                else:
                    await self._app(scope, receive, response)

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        """Return the whole body, or raise ProblemError if it is too long or too slow."""
        max_size = self._settings.max_body
        if exceeds(headers.get(b"content-length"), max_size):
            await drain(receive)
            raise too_long(max_size)
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self._settings.body_seconds):
                while size <= max_size:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ProblemError(400, "invalid-body", "the body ended early")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if not message.get("more_body") and size <= max_size:
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise slow_body(self._settings.body_seconds) from None
        await drain(receive)
        raise too_long(max_size)


class ConcurrencyLimit:
    """Context manager that at most ``limit`` requests enter at a time."""

    def __init__(self, limit: int) -> None:
        self._limit, self.running = limit, 0

    def __enter__(self) -> None:
        if self.running >= self._limit:
            message = f"too many concurrent requests; the limit is {self._limit}"
            raise ProblemError(429, "busy", message, headers={"Retry-After": "1"})
        self.running += 1

    def __exit__(self, *error: object) -> None:
        self.running -= 1


class _Sender:
    """Sends a response with the common headers, and keeps its status."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, seconds: float) -> None:
        self._scope, self._receive, self._send, self._seconds = scope, receive, send, seconds
        self.status = 499  # the client left before the response
        self._started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started, self.status = True, message["status"]
            names = {name for name, _ in message["headers"]}
            more = HEADERS if b"cache-control" in names else (*HEADERS, NO_STORE)
            message["headers"] = [*message["headers"], *more]
        # a table stays on disk until the client has read the answer
        async with asyncio.timeout(self._seconds if message.get("more_body") else None):
            await self._send(message)

    async def problem(self, problem: ProblemError) -> None:
        """Send a problem, unless a response has begun, which then stays incomplete."""
        if self._started:
            return
        response = problem.response()
        if problem.kind in ("slow-request", "too-large", "invalid-body"):
            response.headers["connection"] = "close"  # the rest of the body is not read
        await response(self._scope, self._receive, self)


def check_json(content_type: bytes | None) -> None:
    """Raise ProblemError unless the content type is JSON."""
    kind = (content_type or b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ProblemError(415, "unsupported-type", "send the body as Content-Type: application/json")


def problem_of(error: Exception, request: str, settings: Settings) -> ProblemError:
    """Return the problem of a request that raised an error.

    The traceback of an unexpected error is logged; its message, which may repeat the text of a user, only by setting.
    """
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, TimeoutError):
        message = f"it took more than {settings.seconds:g} seconds"
        return ProblemError(503, "too-slow", message, headers={"Retry-After": "5"})
    lines = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    reason = type(error).__name__ + (f" {str(error)!r}" if settings.log_texts else "")
    log.error("%s failed: %s\n%s", request, reason, lines)
    return INTERNAL_ERROR


def exceeds(content_length: bytes | None, max_size: int) -> bool:
    """Return whether a Content-Length header announces more than ``max_size`` bytes."""
    return content_length is not None and content_length.isdigit() and int(content_length[:20]) > max_size


async def drain(receive: Receive) -> None:
    """Read the rest of a refused body, if it comes soon: a client that still sends would not see the response."""
    size = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while size < DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def too_long(max_size: int) -> ProblemError:
    """Return the problem of a body that is too long."""
    return ProblemError(413, "too-large", f"the body has more than {max_size:,} bytes")


def slow_body(seconds: float) -> ProblemError:
    """Return the problem of a body that does not arrive in time."""
    return ProblemError(408, "slow-request", f"the body did not arrive within {seconds:g} seconds")


def _endpoint(scope: Scope) -> str:
    """Return the declared path of an endpoint, which contains no input from the client."""
    route = scope.get("route")
    if route is not None:
        return str(getattr(route, "path", "page"))
    path = scope["path"]
    return path if path in (*ALWAYS, FILE, CLASSIFY) else "other"
