"""What a service is started with; the defaults of ``hinet serve``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hinet.errors import FileError

DIGEST = re.compile(r"[0-9a-f]{64}")
REMEDY = "make one with: openssl rand -hex 32 | tee token | tr -d '\\n' | sha256sum"


@dataclass(frozen=True)
class Settings:
    """Models by name, and the limits of requests."""

    models: Mapping[str, Path]
    host: str = "127.0.0.1"
    port: int = 8000
    tokens: frozenset[bytes] = frozenset()  # SHA-256 digests of bearer tokens; without any, all may ask
    feedback: Path | None = None  # file that feedback is kept in
    review: int = 0  # rows that the review queue keeps; 0 for no queue
    allowed_hosts: tuple[str, ...] = ()  # names in Host headers, in addition to addresses and localhost
    max_body: int = 1 << 20  # bytes
    max_file: int = 1 << 30  # bytes of a table
    max_texts: int = 1_000  # per request
    max_length: int = 100_000  # characters of a text
    max_requests: int = 256  # at work at once
    max_files: int = 8  # tables that arrive or are answered at once
    max_connections: int = 1_024
    seconds: float = 30.0  # that a request may take
    body_seconds: float = 10.0  # that a body may take to arrive, and that one of a table may pause
    min_upload_rate: int = 10_000  # bytes of a table per second, after body_seconds
    min_check_rate: int = 1 << 20  # bytes of a table per second that its check may take, in addition to seconds
    header_seconds: float = 10.0  # that the head of a request may take
    grace: float = 30.0  # seconds that running requests have to finish when the service ends
    poll: float = 1.0  # seconds between looks at the model folders
    threads: int | None = None
    encoders: tuple[str, ...] = ()  # where encoders of models are, if they moved since training
    log_requests: bool = False
    log_texts: bool = False
    page: Path = Path(__file__).parent / "page"

    def check_seconds(self, size: int) -> float:
        """Return the time that the check of a table with ``size`` bytes may take."""
        return self.seconds + size / self.min_check_rate


def read_tokens(path: Path) -> frozenset[bytes]:
    """Return the digests of a file with the SHA-256 digest of a token on each line; ``#`` starts a comment.

    Raises
    ------
    FileError
        If the file cannot be read, has another line, or no digest.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(path, f"the tokens cannot be read: {error}") from None
    digests = set()
    for number, line in enumerate(lines, 1):
        digest = line.partition("#")[0].strip().removesuffix("-").strip().lower()  # sha256sum has a dash at the end
        if digest and not DIGEST.fullmatch(digest):
            raise FileError(path, f"is no SHA-256 digest, of 64 hexadecimal digits; {REMEDY}", number)
        digests |= {bytes.fromhex(digest)} if digest else set()
    if not digests:
        raise FileError(path, f"has no digest of a token; {REMEDY}")
    return frozenset(digests)
