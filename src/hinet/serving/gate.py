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
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from hinet.errors import HiNetError, quoted
from hinet.serving.problems import CONTENT_TYPE, ProblemError
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


@dataclass(frozen=True)
class Hosts:
    """Allowed hosts: addresses, ``localhost``, and the names in the settings; ports are ignored."""

    names: frozenset[str]
    domains: tuple[str, ...]  # each has a leading dot; all names below them are allowed
    any_name: bool

    @classmethod
    def of(cls, settings: Settings) -> Hosts:
        """Return the hosts that settings allow.

        Raises
        ------
        HiNetError
            If an allowed host is not a name.
        """
        names, domains = {"localhost", settings.host.lower()}, []
        for given in settings.allowed_hosts:
            allowed = _ALLOWED.fullmatch(given.lower())
            if allowed is not None and allowed["below"]:
                domains.append(f".{allowed['name']}")
            elif allowed is not None:
                names.add(allowed["name"])
            elif given != ANY:
                raise HiNetError(
                    "`allowed_host` must be a host name without scheme and port, such as hinet.example.com, "
                    f"*.example.com or *; got {quoted(given)}"
                )
        guarded = bool(settings.tokens) and not settings.allowed_hosts  # pages of other sites have no token
        return cls(frozenset(names), tuple(domains), guarded or ANY in settings.allowed_hosts)

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
        if isinstance(host, str) and not (self.any_name or host in self.names or host.endswith(self.domains)):
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
        self.requests = Counter("hinet_requests", "Requests answered.", ["endpoint", "status"], registry=registry)
        self.seconds = Histogram(
            "hinet_request_seconds", "Time from the head of a request to the end of its answer.", ["endpoint"],
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self.running = Gauge("hinet_running_requests", "Requests in progress.", registry=registry)
        self.texts = Counter("hinet_texts", "Texts and rows classified.", ["model"], registry=registry)
        self.batches = Histogram(
            "hinet_batch_requests", "Requests that were answered by one search.", buckets=SIZES, registry=registry
        )
        self.loads = Counter("hinet_model_loads", "Models loaded or refused.", ["model", "outcome"], registry=registry)
        self.drift = Gauge(
            "hinet_text_distance", "Distance of the texts of the last days from those of the first days.",
            ["model", "signal"], registry=registry,
        )  # fmt: skip
        self.differs = Gauge(
            "hinet_texts_differ", "1 if the texts of the last days differ from the first days.", ["model"],
            registry=registry,
        )  # fmt: skip
        self.means = Gauge(
            "hinet_text_mean", "Mean known-word share, similarity and confidence of the texts of the last counted day.",
            ["model", "signal"], registry=registry,
        )  # fmt: skip
        self._verdicts: dict[str, tuple[str, bool]] = {}  # keys are models; version, and whether texts differ
        self.feedback = Counter("hinet_feedback", "Feedback kept.", ["model", "verdict"], registry=registry)

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

    def answered(self, endpoint: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(endpoint, str(status)).inc()
        self.seconds.labels(endpoint).observe(seconds)

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
    """An ASGI application around another one."""

    def __init__(
        self, app: App, settings: Settings, metrics: Metrics, direct: Mapping[tuple[str, str], Handler]
    ) -> None:
        self._app, self._settings, self._metrics, self._direct = app, settings, metrics, direct
        self._hosts = Hosts.of(settings)
        self._requests, self._files = ConcurrencyLimit(settings.max_requests), ConcurrencyLimit(settings.max_files)
        metrics.running.set_function(lambda: self._requests.running + self._files.running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, response = time.perf_counter(), _Response(send, self._settings.seconds)
        try:
            await self._pass(scope, receive, response)
        except ProblemError as problem:
            await response.problem(problem)
        except TimeoutError:
            message = f"it took more than {self._settings.seconds:g} seconds"
            await response.problem(ProblemError(503, "too-slow", message, headers={"Retry-After": "5"}))
        except asyncio.CancelledError:  # uvicorn cancels requests that outlast the grace period
            await response.problem(SHUTTING_DOWN)
        except Exception as error:
            log_failure(f"{scope['method']} {_endpoint(scope)}", error, with_text=self._settings.log_texts)
            await response.problem(INTERNAL_ERROR)
        seconds = time.perf_counter() - start
        endpoint = _endpoint(scope)
        self._metrics.answered(endpoint, response.status, seconds)
        if self._settings.log_requests:
            self._log_request(scope, endpoint, response.status, seconds)

    async def _pass(self, scope: Scope, receive: Receive, response: _Response) -> None:
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
                handler = self._direct.get((scope["method"], path))
                if handler is None:
                    await self._app(scope, receive, response)
                else:
                    check_json(headers.get(b"content-type"))
                    await response.json(await handler(scope[BODY]))

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

    def _log_request(self, scope: Scope, endpoint: str, status: int, seconds: float) -> None:
        body = scope.get(BODY, b"")[:MAX_LOGGED].decode(errors="replace")
        texts = f" {body!r}" if self._settings.log_texts else ""  # escaped, so that no text looks like another line
        log.info("%s %s %d %.1f ms%s", scope["method"], endpoint, status, 1e3 * seconds, texts)


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


class _Response:
    """Sends a response with the common headers, and keeps its status."""

    def __init__(self, send: Send, seconds: float) -> None:
        self._send, self._seconds = send, seconds
        self.status = 499  # the client left before the response
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
        async with asyncio.timeout(self._seconds):  # a table stays on disk until the client has read the answer
            await self._send(message)

    async def json(self, body: bytes) -> None:
        """Send a JSON body."""
        await self._send_body(200, body, ((b"content-type", b"application/json"),))

    async def problem(self, problem: ProblemError) -> None:
        """Send a problem, unless a response has begun, which then stays incomplete."""
        if self._started:
            return
        headers = [(name.lower().encode(), value.encode()) for name, value in problem.headers.items()]
        if problem.kind in ("slow-request", "too-large", "invalid-body"):
            headers.append((b"connection", b"close"))  # the rest of the body is not read
        await self._send_body(problem.status, problem.body(), ((b"content-type", CONTENT_TYPE.encode()), *headers))

    async def _send_body(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> None:
        self._started, self.status = True, status
        length = (b"content-length", str(len(body)).encode())
        start = {"type": "http.response.start", "status": status, "headers": [*headers, length, NO_STORE, *HEADERS]}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})


def check_json(content_type: bytes | None) -> None:
    """Raise ProblemError unless the content type is JSON."""
    kind = (content_type or b"").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise ProblemError(415, "unsupported-type", "send the body as Content-Type: application/json")


def log_failure(request: str, error: Exception, *, with_text: bool) -> None:
    """Log the traceback of a failure; its message, which may repeat the text of a user, only ``with_text``."""
    lines = "".join(traceback.format_list(traceback.extract_tb(error.__traceback__)))
    reason = type(error).__name__ + (f" {str(error)!r}" if with_text else "")
    log.error("%s failed: %s\n%s", request, reason, lines)


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
    return path if path in (*ALWAYS, FILE, "/v1/classify") else "other"
