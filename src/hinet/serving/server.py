"""The process that serves: uvicorn, with limits on the heads of requests and an orderly end."""

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

LONGEST_HEAD = 1 << 16  # bytes
LONG_HEAD = ProblemError(431, "too-large", f"the head of the request has more than {LONGEST_HEAD:,} bytes")
NO_HTTP = ProblemError(400, "invalid-request", "this is no HTTP request, or its address is too long")
SLOW_HEAD = ProblemError(408, "slow-request", "the head of the request did not arrive in time")
IDLE_SECONDS = 75  # that a connection may wait for its next request


def serve(settings: Settings, *, quiet: bool = False) -> None:
    """Serve until the process is told to end; running requests are finished first. A quiet service logs only problems.

    Raises
    ------
    HiNetError
        If a model cannot be loaded, or the address is in use.
    """
    _log_to_stderr(logging.WARNING if quiet else logging.INFO)
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a client that has gone ends its request, not the service
    failures: list[HiNetError] = []

    def fail(error: HiNetError) -> None:
        failures.append(error)
        server.should_exit = True

    config = uvicorn.Config(
        create_app(settings, fail), settings.host, settings.port, loop="uvloop", http=_protocol(settings), ws="none",
        lifespan="on", access_log=False, log_config=None, proxy_headers=False, server_header=False, date_header=True,
        limit_concurrency=settings.max_connections, timeout_keep_alive=IDLE_SECONDS, backlog=2_048,
        timeout_graceful_shutdown=int(settings.grace),
    )  # fmt: skip
    server = _Server(config)
    try:
        server.run()
    except SystemExit:  # uvicorn's way to say that it could not start; the log has why
        raise HiNetError(f"the service cannot listen at {settings.host}:{settings.port}; give another `port`") from None
    if failures:
        raise failures[0]


class _Server(uvicorn.Server):
    """Ends with exit code 0 when it was told to end."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def _protocol(settings: Settings) -> type[HttpToolsProtocol]:
    class Protocol(HttpToolsProtocol):
        """Closes connections whose heads are too long, or take too long."""

        _timer: asyncio.TimerHandle | None = None
        _head = 0  # bytes of the head so far

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._timer is not None:
                self._head += len(data)
                if self._head > LONGEST_HEAD:
                    self._end(LONG_HEAD)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            if self._timer is None:
                self._wait()

        def on_headers_complete(self) -> None:
            self._stop()
            if not self.url.startswith(b"/"):
                self._use_host_of_target()
            super().on_headers_complete()

        def _use_host_of_target(self) -> None:
            """Let the host of a target such as ``http://host/path`` count instead of Host, as RFC 9112 requires."""
            target = httptools.parse_url(self.url)
            if target.host:
                host = b"[%b]" % target.host if b":" in target.host else target.host
                self.headers[:] = [(name, host if name == b"host" else value) for name, value in self.headers]

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def send_400_response(self, msg: str) -> None:
            self._end(NO_HTTP)

        def _wait(self) -> None:
            self._head = 0
            self._timer = self.loop.call_later(settings.header_seconds, self._end, SLOW_HEAD)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _end(self, problem: ProblemError) -> None:
            self._stop()
            if not self.transport.is_closing():
                body = problem.body()
                head = (
                    f"HTTP/1.1 {problem.status} {TITLES[problem.kind]}\r\ncontent-type: {CONTENT_TYPE}\r\n"
                    f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                )
                self.transport.write(head.encode() + body)
                self.transport.close()

    return Protocol


def _log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    for name in ("hinet.serving", "uvicorn"):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.handlers = [handler]
        logger.propagate = False
