"""Folders that are all or nothing: filled under a temporary name beside the real one, then renamed."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hinet.errors import FileError


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes ``path`` if the block ends well and is removed with all it holds if not.

    Raises
    ------
    FileError
        If ``path`` exists and is no empty folder, or if it cannot be written.
    """
    target = Path(path).resolve()
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}")
    try:
        if target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise FileError(path, "exists already; name a new folder, or remove the old one first")
        temporary.mkdir()
        yield temporary
        if target.exists():
            target.rmdir()
        temporary.rename(target)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
