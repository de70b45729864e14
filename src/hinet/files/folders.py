"""Folders that can be written to; folders that are all or nothing, filled under a temporary name and then renamed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hinet.errors import FileError

TRIAL = ".trial."  # how the names of files start that are there for a moment, to see whether one can be written


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


def check_writable(folder: Path) -> None:
    """Raise FileError if nothing can be written to a folder, or where it is to be made; tells by writing.

    Permissions tell too little: a disk may be full or read-only, and an administrator may do anything elsewhere.
    """
    absolute = Path(os.path.abspath(folder))  # noqa: PTH100 a link keeps its name
    above = next(path for path in (absolute, *absolute.parents) if path.exists() or not path.name)
    if above != absolute and not above.is_dir():
        raise FileError(folder, f"cannot be written: {above} is no folder that may be written to")
    trial = above / f"{TRIAL}{secrets.token_hex(8)}"
    try:
        trial.touch(exist_ok=False)
        trial.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(folder, f"cannot be written: {above} takes no new files ({error.strerror})") from None
