"""Settings of a service; their defaults are those of ``hinet serve``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hinet.errors import FileError

DIGEST = re.compile(r"[0-9a-f]{64}")
REMEDY = "create one with: openssl rand -hex 32 | tee token | tr -d '\\n' | sha256sum"


@dataclass(frozen=True)
class Settings:
    """Models by name, and the limits of requests."""

    models: Mapping[str, Path]
    host: str = "127.0.0.1"
    port: int = 8000
    tokens: frozenset[bytes] = frozenset()  # SHA-256 digests of bearer tokens; empty if no token is needed
    feedback: Path | None = None  # SQLite file of feedback
    project: Path | None = None  # folder of a labelling project, whose model is served with the others
    review: int = 0  # maximum rows in the review queue; 0 disables it
    allowed_hosts: tuple[str, ...] = ()  # names in Host headers, in addition to addresses and localhost
    max_body: int = 1 << 20  # bytes
    max_file: int = 1 << 30  # bytes per table
    max_texts: int = 1_000  # per request
    max_length: int = 100_000  # characters per text
    max_requests: int = 256  # concurrent requests
    max_files: int = 8  # concurrent requests with tables
    max_connections: int = 1_024
    seconds: float = 30.0  # time limit of a request
    body_seconds: float = 10.0  # time limit for a body to arrive, or for a pause within a table
    min_upload_rate: int = 10_000  # bytes per second of a table, after body_seconds
    min_check_rate: int = 1 << 20  # bytes per second; extends the time limit for the check of a table
    header_seconds: float = 10.0  # time limit for the headers of a request
    grace: float = 30.0  # seconds that running requests have to finish when the service stops
    lock_seconds: float = 5.0  # time that feedback waits for other processes that write the file
    poll: float = 1.0  # seconds between checks of the model folders
    threads: int | None = None
    encoders: tuple[str, ...] = ()  # folders or names of encoders that moved since training
    mcp: bool = False  # whether /mcp offers tools to agents
    log_requests: bool = False
    log_texts: bool = False

    def check_seconds(self, size: int) -> float:
        """Return the time limit for the check of a table with ``size`` bytes."""
        return self.seconds + size / self.min_check_rate


def read_tokens(path: Path) -> frozenset[bytes]:
    """Return the SHA-256 digests of tokens in a file, one per line; ``#`` starts a comment.

    Raises
    ------
    FileError
        If the file cannot be read, has an invalid line, or no digest.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(path, f"the tokens cannot be read: {error}") from None
    digests = set()
    for number, line in enumerate(lines, 1):
        digest = line.partition("#")[0].strip().removesuffix("-").strip().lower()  # sha256sum adds a dash
        if digest and not DIGEST.fullmatch(digest):
            raise FileError(path, f"expected a SHA-256 digest of 64 hexadecimal digits; {REMEDY}", number)
        digests |= {bytes.fromhex(digest)} if digest else set()
    if not digests:
        raise FileError(path, f"has no digest of a token; {REMEDY}")
    return frozenset(digests)
