"""The server process: uvicorn, with limits on request headers and a graceful shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hinet.errors import HiNetError
from hinet.serving.app import create_app
from hinet.serving.problems import CONTENT_TYPE, TITLES, ProblemError
from hinet.serving.settings import Settings

MAX_HEAD = 1 << 16  # bytes
LONG_HEAD = ProblemError(431, "too-large", f"the headers of the request have more than {MAX_HEAD:,} bytes")
MALFORMED = ProblemError(400, "invalid-request", "malformed request, or its URL is too long")
SLOW_HEAD = ProblemError(408, "slow-request", "the headers of the request did not arrive in time")
IDLE_SECONDS = 75  # time limit of an idle connection


def serve(settings: Settings, *, quiet: bool = False) -> None:
    """Serve until the process is terminated; running requests are finished first. A quiet service logs only warnings.

    Raises
    ------
    HiNetError
        If a model cannot be loaded, or the address is in use.
    """
    log_to_stderr(quiet=quiet)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that disconnects ends its request, not the service
    failures: list[HiNetError] = []

    def fail(error: HiNetError) -> None:
        failures.append(error)
        server.should_exit = True

    protocol = type("Protocol", (_LimitedProtocol,), {"header_seconds": settings.header_seconds})
    config = uvicorn.Config(
        create_app(settings, fail), settings.host, settings.port, loop="uvloop", http=protocol, ws="none",
        lifespan="on", access_log=False, log_config=None, proxy_headers=False, server_header=False, date_header=True,
        limit_concurrency=settings.max_connections, timeout_keep_alive=IDLE_SECONDS, backlog=2_048,
        timeout_graceful_shutdown=int(settings.grace),
    )  # fmt: skip
    server = _Server(config)
    try:
        server.run()
    except SystemExit:  # raised by uvicorn if it cannot start; the reason is in the log
        raise HiNetError(f"the service cannot listen at {settings.host}:{settings.port}; give another `port`") from None
    if failures:
        raise failures[0]


class _Server(uvicorn.Server):
    """Exits with code 0 after a signal to terminate."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


class _LimitedProtocol(HttpToolsProtocol):
    """Closes connections whose headers are too long, or arrive too slowly."""

    header_seconds = Settings.header_seconds
    _timer: asyncio.TimerHandle | None = None
    _head = 0  # bytes of the headers so far

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._timer is not None:
            self._head += len(data)
            if self._head > MAX_HEAD:
                self._close(LONG_HEAD)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        if not self.url.startswith(b"/"):
            self._use_target_host()
        super().on_headers_complete()

    def _use_target_host(self) -> None:
        """Replace the Host header by the host of a target such as ``http://host/path``, as RFC 9112 requires."""
        target = httptools.parse_url(self.url)
        if target.host:
            host = b"[%b]" % target.host if b":" in target.host else target.host
            self.headers[:] = [(name, host if name == b"host" else value) for name, value in self.headers]

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        self._close(MALFORMED)

    def _start_timer(self) -> None:
        self._head = 0
        self._timer = self.loop.call_later(self.header_seconds, self._close, SLOW_HEAD)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close(self, problem: ProblemError) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            body = problem.body()
            head = (
                f"HTTP/1.1 {problem.status} {TITLES[problem.kind]}\r\ncontent-type: {CONTENT_TYPE}\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
            self.transport.close()


def log_to_stderr(*, quiet: bool) -> None:
    """Log to standard error; if ``quiet``, only warnings."""
    level = logging.WARNING if quiet else logging.INFO
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("hinet.serving", "uvicorn"):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [handler]
        logger.propagate = False
