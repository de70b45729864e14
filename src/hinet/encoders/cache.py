"""Embeddings kept on disk by content, so that a text is encoded once.

The key of a vector is a digest of the encoder's fingerprint and the text. Vectors are in half precision, in segments
that are written whole and never changed: a killed run loses the seconds since its last segment. Every row has a
checksum, and what is damaged is encoded again. Any number of processes may read and write at once.

A cache holds at most ``LIMIT`` bytes, then its oldest segments go. To clear it, remove the folder or call ``clear``.
"""

from __future__ import annotations

import os
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hinet.data.matrices import unit_rows
from hinet.encoders.encoder import Vectors, distinct_texts
from hinet.errors import FileError, HiNetError
from hinet.files import locked, read_arrays, write_arrays
from hinet.progress import Progress, SilentProgress

LIMIT = 4 << 30  # bytes of a cache folder, all encoders together
SECONDS = 3.0  # between two segments of a run
SEGMENT_ROWS = 8_192
MOST_SMALL = 32  # segments of fewer rows than that before they are merged
ABANDONED_SECONDS = 3600.0

_SUFFIX = ".safetensors"


def default_folder() -> Path:
    """Return where embeddings are kept by default: in ``hinet/embeddings`` of the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if home.startswith("/") else Path.home() / ".cache") / "hinet" / "embeddings"


@dataclass(frozen=True)
class _Segment:
    """The keys of a file; its vectors are read when they are needed."""

    path: Path
    keys: NDArray[np.uint64]  # (n, 2)


class VectorSource(Protocol):
    """Turns texts into vectors, batch by batch."""

    @property
    def width(self) -> int:
        """The number of columns of a vector."""

    @property
    def fingerprint(self) -> str:
        """A digest of all that decides the vectors."""

    def batches(
        self, texts: Sequence[str], *, batch: int | None = None, threads: int | None = None
    ) -> Iterator[tuple[NDArray[np.int64], Vectors]]:
        """Yield the numbers of some texts and their vectors, until all are encoded."""


Source = TypeVar("Source", bound=VectorSource, covariant=True)


class CachedEncoder(Generic[Source]):
    """An encoder that encodes only texts whose vectors are not in a folder, by default that of the user.

    Vectors are those of the encoder rounded to half precision, whether they were kept or not.
    """

    def __init__(self, encoder: Source, folder: str | Path | None = None, *, limit: int = LIMIT) -> None:
        self.encoder = encoder
        self.root = default_folder() if folder is None else Path(folder).expanduser()
        self.limit = limit
        self._segments: dict[str, _Segment] = {}

    @property
    def width(self) -> int:
        """The number of columns of a vector."""
        return self.encoder.width

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the encoder."""
        return self.encoder.fingerprint

    @property
    def folder(self) -> Path:
        """Where the vectors of this encoder are."""
        return self.root / self.fingerprint

    def encode(
        self, texts: Any, *, progress: Progress | None = None, batch: int | None = None, threads: int | None = None
    ) -> Vectors:
        """Return a vector of length 1 for each text, in their order, as ``Encoder.encode`` does."""
        distinct, rows = distinct_texts(texts)
        progress = progress or SilentProgress()
        keys = _keys(self.fingerprint, distinct)
        vectors, present = self._read(keys)
        progress.started(1, len(distinct))
        try:
            progress.advanced(int(present.sum()))
            missing = np.flatnonzero(~present)
            self._encode_missing(distinct, keys, vectors, missing, progress, batch, threads)
        finally:
            progress.finished()
        return unit_rows(vectors.astype(np.float32))[rows]

    def clear(self) -> None:
        """Remove all vectors of this encoder."""
        for path in self._paths():
            path.unlink(missing_ok=True)
        self._segments = {}

    def _encode_missing(
        self, texts: list[str], keys: NDArray[np.uint64], vectors: NDArray[np.float16], missing: NDArray[np.int64],
        progress: Progress, batch: int | None, threads: int | None,
    ) -> None:  # fmt: skip
        pending: list[NDArray[np.int64]] = []
        keeps, last = True, time.monotonic()

        def flush() -> bool:
            numbers = np.concatenate(pending)
            pending.clear()
            try:
                self._write(keys[numbers], vectors[numbers])
            except (FileError, OSError) as error:  # a full or read-only disk must not lose the run
                progress.message(f"embeddings are not kept: {error}")
                return False
            return True

        try:
            unknown = [texts[row] for row in missing.tolist()]
            for numbers, encoded in self.encoder.batches(unknown, batch=batch, threads=threads):
                rows = missing[numbers]
                vectors[rows] = encoded
                pending.append(rows)
                progress.advanced(len(rows))
                if keeps and (sum(map(len, pending)) >= SEGMENT_ROWS or time.monotonic() - last >= SECONDS):
                    keeps, last = flush(), time.monotonic()
        finally:
            if keeps and pending:
                flush()

    def _paths(self) -> list[Path]:
        """Return the files of segments, oldest first."""
        with suppress(OSError):
            return sorted(path for path in self.folder.iterdir() if path.suffix == _SUFFIX and path.name[0] != ".")
        return []

    def _refresh(self) -> None:
        """Read the keys of segments that came since the last time, and forget those that went."""
        known, self._segments = self._segments, {}
        for path in self._paths():
            segment = known.get(path.name)
            if segment is None:
                found = _read_segment(path, self.width)
                if found is None:
                    if os.access(path, os.R_OK):  # damaged: its texts are encoded again
                        with suppress(OSError):
                            path.unlink(missing_ok=True)
                    continue
                segment = _Segment(path, found[0])
            self._segments[path.name] = segment

    def _read(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.float16], NDArray[np.bool_]]:
        """Return the vectors of keys, and which of them were found whole."""
        vectors = np.zeros((len(keys), self.width), np.float16)
        present = np.zeros(len(keys), np.bool_)
        for _ in range(2):  # another process may merge segments meanwhile
            self._refresh()
            for segment in reversed(self._segments.values()):
                wanted = np.flatnonzero(~present)
                positions = _find(segment.keys, keys[wanted])
                hits = np.flatnonzero(positions >= 0)
                if not len(hits):
                    continue
                found = _read_segment(segment.path, self.width)
                if found is None or len(found[0]) != len(segment.keys):
                    continue
                rows = positions[hits]
                whole = _checksums(found[0][rows], found[1][rows]) == found[2][rows]
                vectors[wanted[hits[whole]]] = found[1][rows[whole]]
                present[wanted[hits[whole]]] = True
            if present.all() or all(segment.path.exists() for segment in self._segments.values()):
                break
        return vectors, present

    def _write(self, keys: NDArray[np.uint64], vectors: NDArray[np.float16]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, NDArray[Any]] = {"keys": keys, "vectors": vectors, "checksums": _checksums(keys, vectors)}
        write_arrays(self.folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}", arrays)
        self._tidy()

    def _tidy(self) -> None:
        """Merge small segments if there are many, and remove the oldest ones beyond the limit."""
        with suppress(OSError):
            paths = self._paths()
            for path in self.folder.glob(f".*{_SUFFIX}.*"):  # what killed processes left half-written
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink(missing_ok=True)
            row_bytes = 2 * self.width + 20
            small = [path for path in paths if path.stat().st_size < SEGMENT_ROWS * row_bytes // 2]
            everything = [path for path in self.root.glob(f"*/*{_SUFFIX}") if path.name[0] != "."]
            if len(small) <= MOST_SMALL and sum(path.stat().st_size for path in everything) <= self.limit:
                return
            with locked(self.folder):
                if len(small) > MOST_SMALL:
                    self._merge([path for path in small if path.exists()])
            sizes = {path: path.stat().st_size for path in everything if path.exists()}
            for path in sorted(sizes, key=lambda path: path.name):
                if sum(sizes.values()) <= self.limit:
                    break
                path.unlink(missing_ok=True)
                del sizes[path]

    def _merge(self, paths: Sequence[Path]) -> None:
        parts = [part for path in paths if (part := _read_segment(path, self.width)) is not None]
        if parts:
            keys, vectors, checksums = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
            _, last = np.unique(keys[::-1], axis=0, return_index=True)
            kept = np.sort(len(keys) - 1 - last)  # of equal keys the newest
            arrays = {"keys": keys[kept], "vectors": vectors[kept], "checksums": checksums[kept]}
            write_arrays(self.folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}", arrays)
        for path in paths:
            path.unlink(missing_ok=True)


def _keys(fingerprint: str, texts: Sequence[str]) -> NDArray[np.uint64]:
    """Return 128 bits for each text, as (n, 2)."""
    start = blake2b(fingerprint.encode() + b"\0", digest_size=16)
    digests = bytearray()
    for text in texts:
        digest = start.copy()
        digest.update(text.encode())
        digests += digest.digest()
    return np.frombuffer(bytes(digests), "<u8").astype(np.uint64).reshape(-1, 2)


def _find(known: NDArray[np.uint64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the last position of each key among known ones, or -1."""
    if not len(known) or not len(keys):
        return np.full(len(keys), -1, np.int64)
    order = np.argsort(known[:, 0], kind="stable")
    nearest = order[np.maximum(np.searchsorted(known[order, 0], keys[:, 0], side="right") - 1, 0)]
    return np.where((known[nearest] == keys).all(axis=1), nearest, -1)


def _checksums(keys: NDArray[np.uint64], vectors: NDArray[np.float16]) -> NDArray[np.uint32]:
    joined = np.concatenate([keys.view(np.uint8).reshape(len(keys), -1), vectors.view(np.uint8)], axis=1)
    return np.fromiter((zlib.crc32(row) for row in np.ascontiguousarray(joined)), np.uint32, len(keys))


def _read_segment(path: Path, width: int) -> tuple[NDArray[np.uint64], NDArray[np.float16], NDArray[np.uint32]] | None:
    """Return the arrays of a segment, or None if it is missing, truncated or something else."""
    try:
        arrays, _ = read_arrays(path)
        keys, vectors, checksums = arrays["keys"], arrays["vectors"], arrays["checksums"]
    except (HiNetError, OSError, KeyError, ValueError):
        return None
    fits = keys.dtype == np.uint64 and vectors.dtype == np.float16 and checksums.dtype == np.uint32
    if not fits or keys.shape != (len(keys), 2) or vectors.shape != (len(keys), width) or len(checksums) != len(keys):
        return None
    return keys, vectors, checksums
