"""Writes that are all or nothing: to a temporary name in the same folder, then renamed."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
import tempfile
from pathlib import Path

from hinet.errors import FileError


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8, compressed if the name ends in ``.gz`` or ``.xz``; ``-`` is standard output.

    An old file stays whole until the new one is complete, and keeps its permissions; a link is followed. What is no
    file, such as a pipe, is written to as it is.
    """
    if str(path) == "-":
        sys.stdout.write(text)
        return
    data = _compressed(path, text.encode())
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}") from None


def _compressed(path: str | Path, data: bytes) -> bytes:
    if str(path).lower().endswith(".gz"):
        return gzip.compress(data, mtime=0)  # the same text always gives the same file
    return lzma.compress(data) if str(path).lower().endswith(".xz") else data


def _replace(target: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask())
        Path(temporary).replace(target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
