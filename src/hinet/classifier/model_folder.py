"""The folder of a saved model: files named by their contents, and a manifest that names them.

A save holds the lock of the folder. It writes new files, then replaces the manifest by one rename, then removes files
that the manifest does not name. So all files of a manifest exist as long as it does. A reader that finds one missing
has read an old manifest, and reads the new one. Files that a reader has opened stay as they are for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from hinet.classifier.manifest import DIGEST_BYTES, MANIFEST, parse_manifest, sealed
from hinet.errors import FileError
from hinet.files import LOCK, PROBE_PREFIX, check_writable, locked, read_bounded, write_bytes

FILES = {"taxonomy": ".tsv", "features": ".safetensors", "model": ".safetensors"}  # with their endings
OURS = re.compile(r"(taxonomy|features|model)-[0-9a-f]{16}\.(tsv|safetensors)")  # files that a manifest names
PASSING = re.compile(
    rf"\.+((manifest|evaluation)\.json|(taxonomy|features|model)-[0-9a-f]{{8}}\.partial\.)[a-z0-9.]*"
    rf"|{re.escape(PROBE_PREFIX)}[0-9a-f]+"
)  # on their way, or there for a moment; whoever makes a trial does not mind that it is gone
EVALUATION = "evaluation.json"  # how the model did on some rows; not part of it
MOMENTARY = re.compile(rf"{re.escape(LOCK)}|\.nfs\w+")  # of others at work, not to touch
MAX_MANIFEST_BYTES = 1 << 28  # a million labels of 200 bytes each take less
MAX_TRIES = 100  # to open a model that is replaced all the time


@contextmanager
def new_model(folder: Path) -> Iterator[Callable[[str, Callable[[Path], None]], dict[str, Any]]]:
    """Hold the lock of a folder for a save, and yield what writes a file of it and returns what a manifest says of it.

    At the end all files are removed that the manifest in place does not name: those of the older model, or, if the
    save failed, those that were written already.

    Raises
    ------
    FileError
        If the folder holds something else, or cannot be written to.
    """
    check_target(folder)
    is_new = not folder.exists()
    try:
        with locked(folder):
            try:
                yield partial(_kept, folder)
            finally:
                _remove_stale(folder)
    except OSError as error:
        raise FileError(folder, f"cannot be written: {error.strerror or error}") from None
    finally:
        if is_new:
            with suppress(OSError):  # only if nothing is in it
                folder.rmdir()


def switch_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Put a manifest in the place of the one before: the files it names are the model from now on."""
    data = json.dumps(sealed(manifest), indent=1, ensure_ascii=False).encode()
    parse_manifest(folder / MANIFEST, data)  # what could not be loaded is not saved either
    write_bytes(folder / MANIFEST, data)


def check_unchanged(folder: Path, digest: str) -> None:
    """Raise FileError unless a folder still holds the model whose manifest has this digest."""
    if not (folder / MANIFEST).is_file() or read_manifest(folder)["blake2b"] != digest:
        raise FileError(folder, "was replaced by another process in the meantime; nothing was saved: run this again")


def check_target(folder: Path) -> None:
    """Raise FileError if a model cannot be saved to a folder, for what is there or because nothing can be written."""
    if folder.exists() and not folder.is_dir():
        raise FileError(folder, "is a file; name a folder to save the model in")
    if folder.is_dir():
        names = [path.name for path in folder.iterdir()]
        known = (OURS, PASSING, MOMENTARY)
        ours = (MANIFEST, EVALUATION)
        others = [name for name in names if name not in ours and not any(kind.fullmatch(name) for kind in known)]
        if others:
            raise FileError(folder, f"holds other files ({others[0]!r}); name a new folder, or one of a saved model")
        if MANIFEST in names:
            read_manifest(folder)
    check_writable(folder)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """Return the manifest of a model folder, of the format this version reads."""
    return parse_manifest(Path(folder) / MANIFEST, _manifest_bytes(Path(folder)))


@dataclass(frozen=True)
class ModelFiles:
    """The manifest of a saved model and its files, open for reading."""

    folder: Path
    manifest: dict[str, Any]
    streams: Mapping[str, IO[bytes]]

    def path(self, name: str) -> Path:
        """Return the path that a file had when it was opened."""
        return self.folder / str(self.manifest["files"][name]["file"])

    def checked(self, name: str) -> IO[bytes]:
        """Return the stream of a file that is whole: of the size and digest that the manifest names."""
        entry, stream = self.manifest["files"][name], self.streams[name]
        size = os.fstat(stream.fileno()).st_size
        if size != entry["bytes"]:
            raise FileError(self.path(name), f"has {size:,} bytes instead of {entry['bytes']:,}; copy the folder again")
        if digest_of(stream) != entry["blake2b"]:
            raise FileError(
                self.path(name), "was changed after the model was saved; copy the folder again or save the model anew"
            )
        return stream


@contextmanager
def open_model(folder: str | Path) -> Iterator[ModelFiles]:
    """Yield the manifest and the files of a saved model, all of one save, whoever saves another meanwhile.

    Raises
    ------
    FileError
        If it is no model folder, or a file of it is missing.
    """
    with ExitStack() as stack:
        yield _open_files(Path(folder), stack)


def _open_files(folder: Path, stack: ExitStack) -> ModelFiles:
    data, manifest = b"", {}
    for tries in range(1, MAX_TRIES + 1):
        latest = _manifest_bytes(folder)
        if latest != data:
            data, manifest = latest, parse_manifest(folder / MANIFEST, latest)
        with ExitStack() as opened:
            try:
                streams = {name: opened.enter_context(_open(folder, name, manifest)) for name in FILES}
            except FileNotFoundError as error:  # the model was replaced, or it is damaged
                if tries == MAX_TRIES:
                    name = next(name for name in FILES if manifest["files"][name]["file"] == Path(error.filename).name)
                    message = f"is missing; the model needs its {name}: copy the whole folder again"
                    raise FileError(error.filename, message) from None
                continue
            stack.enter_context(opened.pop_all())
            return ModelFiles(folder, manifest, streams)
    raise AssertionError


def _open(folder: Path, name: str, manifest: Mapping[str, Any]) -> IO[bytes]:
    file = str(manifest["files"][name]["file"])
    if not OURS.fullmatch(file):
        raise FileError(folder / MANIFEST, f"the file of {name} lies outside of the folder: {file!r}")
    path = folder / file
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # looked at once: it may be gone a moment later
            raise FileError(path, "is no file; copy the whole folder again")
        return path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FileError(path, f"cannot be read: {error.strerror or error}") from None


def _manifest_bytes(folder: Path) -> bytes:
    path = folder / MANIFEST
    if not path.is_file():
        remedy = f"it has no {MANIFEST}, so it is no saved model; name the folder that a model was saved to"
        if not folder.is_dir():
            remedy = "it is a file; name the folder" if folder.exists() else "no such folder"
        raise FileError(folder, f"cannot be loaded: {remedy}")
    try:
        return read_bounded(path, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise FileError(path, f"the manifest cannot be read ({error}); save the model again") from None


def _kept(folder: Path, name: str, write: Callable[[Path], None]) -> dict[str, Any]:
    """Write a file and give it the name of its contents; return what the manifest says of it."""
    temporary = folder / f".{name}-{secrets.token_hex(4)}.partial{FILES[name]}"
    write(temporary)
    with temporary.open("rb") as stream:
        digest = digest_of(stream)
    final = folder / f"{name}-{digest[:16]}{FILES[name]}"
    temporary.replace(final)
    return {"file": final.name, "bytes": final.stat().st_size, "blake2b": digest}


def _remove_stale(folder: Path) -> None:
    """Remove all files of models that the manifest in place does not name; the lock must be held."""
    wanted = set()
    if (folder / MANIFEST).is_file():
        wanted = {entry["file"] for entry in read_manifest(folder)["files"].values()}
    for path in folder.iterdir():
        stale = OURS.fullmatch(path.name) and path.name not in wanted
        if stale or PASSING.fullmatch(path.name):
            with suppress(OSError):  # where a file that a reader has open cannot be removed, the next save does it
                path.unlink()


def digest_of(stream: IO[bytes]) -> str:
    """Return the digest of all bytes of a file."""
    stream.seek(0)
    return hashlib.file_digest(stream, partial(hashlib.blake2b, digest_size=DIGEST_BYTES)).hexdigest()  # type: ignore[arg-type]
