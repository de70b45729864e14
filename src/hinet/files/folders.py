"""Folders written atomically, under a temporary name that is then renamed, and a check that a folder is writable."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hinet.errors import FileError

PROBE_PREFIX = ".trial."  # of files that exist for a moment, to check that a folder is writable


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes ``path`` when the block ends and is removed if it raises.

    Raises
    ------
    FileError
        If ``path`` exists and is not an empty folder, or if it cannot be written.
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


def check_writable(folder: Path) -> None:
    """Raise FileError if files cannot be created in a folder, or in the parent where it is to be made.

    It tries to create one: permissions do not tell whether a disk is full or read-only.
    """
    absolute = Path(os.path.abspath(folder))  # noqa: PTH100 a link keeps its name
    parent = next(path for path in (absolute, *absolute.parents) if path.exists() or not path.name)
    if parent != absolute and not parent.is_dir():
        raise FileError(folder, f"cannot be written: {parent} is not a writable folder")
    probe = parent / f"{PROBE_PREFIX}{secrets.token_hex(8)}"
    try:
        probe.touch(exist_ok=False)
        probe.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(folder, f"cannot be written: {parent} takes no new files ({error.strerror})") from None
