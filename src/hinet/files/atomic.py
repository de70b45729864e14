"""Writes that are all or nothing: to a temporary name in the same folder, then renamed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hinet.errors import FileError


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8; an old file stays whole until the new one is complete."""
    target = Path(path)
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:40]}.", dir=target.parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
