"""The service in its own process, and sockets that send it arbitrary bytes."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, NamedTuple

from tests.processes import started

ROOT = Path(__file__).parents[2]
LAUNCH = [sys.executable, "-m", "tests.serving.launch"]
SECONDS = 60.0  # time limit for an answer on a socket


def free_port() -> int:
    """Return an unused port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def wait_until_ready(process: Popen[str]) -> None:
    """Wait until a service logs to standard error that it is ready."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if " ready: " in line:
            return
    raise AssertionError("".join(lines))


class Running(NamedTuple):
    """A service that is ready."""

    process: Popen[str]
    port: int

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Return the status and body of an answer, on a new connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def raw(self, *parts: bytes) -> bytes:
        """Send bytes, and return the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            for part in parts:
                connection.sendall(part)
            return received(connection)


def received(connection: socket.socket) -> bytes:
    """Return the bytes of an answer, until it is complete or the connection is closed."""
    data = b""
    while True:
        head, ended, body = data.partition(b"\r\n\r\n")
        length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if ended and length and len(body) >= int(length[0].partition(b":")[2]):
            return data
        if ended and b"transfer-encoding: chunked" in head.lower() and body.endswith(b"0\r\n\r\n"):
            return data
        part = connection.recv(1 << 16)
        if not part:
            return data
        data += part


@contextmanager
def running(
    models: dict[str, Path], environment: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Running]:
    """Yield a service that is ready, and terminate it afterwards."""
    port = free_port()
    values = {"models": {name: str(folder) for name, folder in models.items()}, "port": port, **settings}
    with started(
        [*LAUNCH, json.dumps(values, default=str)], stderr=PIPE, cwd=ROOT, env=os.environ | (environment or {})
    ) as process:
        try:
            wait_until_ready(process)
            yield Running(process, port)
        finally:
            process.terminate()
