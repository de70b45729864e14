"""Files and folders written atomically, and locks that let one process write to a folder at a time."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from hinet.errors import FileError, HiNetError
from hinet.files.streams import STANDARD, compressed_writer, standard_output

try:
    import fcntl
except ImportError:  # Windows: writers are not locked out
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"  # the locked file, which exists while a process writes
PROBE_PREFIX = ".trial."  # prefix of temporary files that test whether a folder is writable

_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
_HOLDER = threading.local()  # `folders` has the process id and folder of each lock that the thread holds


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8, compressed if the name ends in ``.gz``, ``.xz`` or ``.zst``; ``-`` is standard output.

    An old file stays whole until the new one is complete, and keeps its permissions; links are followed. Pipes and
    devices are written to directly.
    """
    if str(path) == STANDARD:
        standard_output()
        sys.stdout.write(text)
        return
    with new_file(path) as stream, compressed_writer(path, stream) as packed:
        packed.write(text.encode())


def write_bytes(path: str | Path, data: bytes | Iterable[Any]) -> None:
    """Write bytes, or an iterable of bytes, atomically, as :func:`write_text` does."""
    parts: Iterable[Any] = [data] if isinstance(data, bytes) else data
    with new_file(path) as stream:
        stream.writelines(parts)


@contextmanager
def new_file(path: str | Path) -> Iterator[IO[bytes]]:
    """Yield a stream to write a file to; the file appears when the block ends, and not if it raises.

    Raises
    ------
    FileError
        If the file cannot be written, such as on a full disk.
    """
    try:
        target = Path(path).resolve()
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                yield stream
            return
        temporary = _temporary_name(target)
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            if target.exists():
                temporary.chmod(target.stat().st_mode & 0o7777)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(path, f"cannot be written: {error.strerror or error}") from None
    except ValueError as error:
        if isinstance(error, HiNetError) or "\0" not in str(path):
            raise
        raise FileError(repr(str(path)), f"cannot be written: {error}") from None


@contextmanager
def new_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a folder to fill, which becomes ``path`` when the block ends and is removed if it raises.

    With ``replace``, it replaces an old folder, which stays whole until then, and missing parents are created.

    Raises
    ------
    FileError
        If ``path`` exists and is not an empty folder, unless it is replaced, or if it cannot be written.
    """
    target = Path(path).resolve()
    temporary, old = _temporary_name(target), _temporary_name(target)
    try:
        if not replace and target.exists() and not (target.is_dir() and not any(target.iterdir())):
            raise FileError(path, "exists already; name a new folder, or remove the old one first")
        temporary.mkdir(parents=replace)
        yield temporary
        if target.exists() and not replace:
            target.rmdir()  # fails if files appeared in it meanwhile
        elif target.exists():
            target.rename(old)
        temporary.rename(target)
    except OSError as error:
        if old.exists() and not target.exists():
            old.rename(target)
        raise FileError(path, f"cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def check_writable(folder: Path) -> None:
    """Raise FileError if files cannot be created in a folder, or in the parent in which it would be created.

    It creates one, as permissions do not show whether a disk is full or read-only.
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


def _temporary_name(target: Path) -> Path:
    """Return a temporary name in the same folder."""
    return target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}")


@contextmanager
def locked(folder: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Create a folder if necessary and hold its lock, waiting for other holders; a killed process releases it.

    ``waiting`` is called once if there is a wait. A thread that holds the lock may acquire it again. Without support
    for locks in the file system, nobody waits.
    """
    held: set[tuple[int, Path]] = _HOLDER.__dict__.setdefault("folders", set())
    key = os.getpid(), folder.resolve()  # a forked process inherits the set, but not the lock
    if key in held:
        yield
        return
    path = folder / LOCK
    file = _locked_file(path, waiting)
    held.add(key)
    try:
        yield
    finally:
        held.discard(key)
        with suppress(OSError):  # some systems cannot remove an open file
            path.unlink()
        if fcntl is not None:
            with suppress(OSError):  # a forked process would keep the lock if the file were only closed
                fcntl.flock(file, fcntl.LOCK_UN)
        os.close(file)


def _locked_file(path: Path, waiting: Callable[[], None] | None) -> int:
    """Open and lock the file at the path; try again if its last owner removed it in the meantime."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            file = os.open(path, _FLAGS, 0o666)
        except FileNotFoundError:  # another writer removed the folder that it had created
            continue
        if _must_wait(file):
            if waiting is not None:
                waiting()
                waiting = None
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
        if _is_at(file, path):
            return file
        os.close(file)


def _must_wait(file: int) -> bool:
    """Try to lock a file; return whether another process holds the lock."""
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # the file system has no locks
            return False
    return False


def _is_at(file: int, path: Path) -> bool:
    """Return whether an open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
