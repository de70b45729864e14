"""Writes that are all or nothing: to a temporary name in the same folder, then renamed."""

from __future__ import annotations

import gzip
import lzma
import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hinet.errors import FileError


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8, compressed if the name ends in ``.gz`` or ``.xz``; ``-`` is standard output.

    An old file stays whole until the new one is complete, and keeps its permissions; a link is followed. What is no
    file, such as a pipe, is written to as it is.
    """
    if str(path) == "-":
        sys.stdout.write(text)
        return
    write_bytes(path, _compressed(path, text.encode()))


def write_bytes(path: str | Path, data: bytes | Iterable[Any]) -> None:
    """Write ``data``, bytes or parts of them, as it is, all or nothing, as :func:`write_text` does."""
    parts: Iterable[Any] = [data] if isinstance(data, bytes) else data
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                stream.writelines(parts)
        else:
            _replace(target, parts)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}") from None
    except ValueError as error:  # a NUL inside the path itself
        raise FileError(repr(str(path)), f"cannot be written: {error}") from None


def _compressed(path: str | Path, data: bytes) -> bytes:
    if str(path).lower().endswith(".gz"):
        return gzip.compress(data, mtime=0)  # the same text always gives the same file
    return lzma.compress(data) if str(path).lower().endswith(".xz") else data


def _replace(target: Path, parts: Iterable[Any]) -> None:
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as stream:
            stream.writelines(parts)
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            temporary.chmod(target.stat().st_mode & 0o7777)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
