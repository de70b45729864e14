"""The program in processes forked from one that has imported it, because imports take most of a short run.

Each run is a process with its own arguments, streams, folder and environment, and ends as the program does. The
examples in test_help.py, test_compare.py and test_demo.py, the tests of streams and signals, and test_first_call.py
start new interpreters, and would notice a missing import.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from typing import IO

from tests.processes import LONGEST

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "hinet.cli", "hinet.classifier", "hinet.classifier.inputs", "hinet.classifier.saved_model", "hinet.data.tables",
    "hinet.engine.training.fit", "hinet.engine.compiling", "hinet.evaluation", "hinet.machine_code", "pyarrow.csv",
    "pyarrow.parquet", "rich.console", "rich.progress", "rich.table",
)  # fmt: skip
MAX_MESSAGE = 1 << 18  # bytes
CAN_FORK = hasattr(os, "fork") and hasattr(socket, "SOCK_SEQPACKET") and sys.platform == "linux"


@dataclass(frozen=True)
class Program:
    """Runs the program in forks of the process at the other end of a socket."""

    connection: socket.socket

    def run(
        self, arguments: Sequence[str], cwd: Path, environment: Mapping[str, str], given: bytes | None
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the program to its end."""
        message = json.dumps({"arguments": [*arguments], "cwd": str(cwd), "environment": dict(environment)})
        with TemporaryFile() as out, TemporaryFile() as error, _stream(given) as stream:
            socket.send_fds(self.connection, [message.encode()], [stream.fileno(), out.fileno(), error.fileno()])
            stream.close()
            code = int(self.connection.recv(MAX_MESSAGE))
            return subprocess.CompletedProcess(["hinet", *arguments], code, _content(out), _content(error))


@contextmanager
def started_program() -> Iterator[Program]:
    """Start the process, and end it after the block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(LONGEST)  # so that no run hangs
    command = [sys.executable, "-c", "from tests.cli.program import main; main()", str(theirs.fileno())]
    with subprocess.Popen(command, cwd=ROOT, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL) as process:
        theirs.close()
        try:
            yield Program(ours)
        finally:
            ours.close()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()


def _stream(given: bytes | None) -> IO[bytes]:
    """Return the standard input of a process: a pipe with bytes, or an empty file."""
    if given is None:
        return Path(os.devnull).open("rb")
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as stream:
            stream.write(given)

    Thread(target=write, daemon=True).start()
    return os.fdopen(reading, "rb")


def _content(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()


def serve(connection: socket.socket) -> bool:
    """Fork for every message, and answer with the exit code; return True in a fork, which then runs the program."""
    while True:
        message, streams, _, _ = socket.recv_fds(connection, MAX_MESSAGE, 3)
        if not message:
            return False
        child = os.fork()
        if not child:
            connection.close()
            become(json.loads(message), streams)
            return True
        for stream in streams:
            os.close(stream)
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def become(asked: dict[str, object], streams: Sequence[int]) -> None:
    """Take over arguments, streams, folder and environment."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(str(asked["cwd"]))
    os.environ.clear()
    os.environ.update(asked["environment"])  # type: ignore[call-overload]
    sys.argv = ["hinet", *asked["arguments"]]  # type: ignore[misc]


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        sys.path.pop(0)  # this folder, where the program does not look
        for name in IMPORTED:
            importlib.import_module(name)
        # Texts are judged by words alone, as in tests/conftest.py; new interpreters use installed vectors.
        vars(sys.modules["hinet.classifier.inputs"]).update(is_installed=lambda: False)
        if not serve(connection):
            return
    from hinet.cli import main

    main()
