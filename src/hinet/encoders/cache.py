"""A disk cache of embeddings, so that every text is encoded once.

The key of a vector is a digest of the encoder's fingerprint and the text. Vectors are stored in half precision, in
segments that are written at once and never changed: a killed run loses the seconds since its last segment. Every row
has a checksum, and damaged rows are encoded again. Any number of processes may read and write at once.

A cache has at most ``LIMIT`` bytes; beyond that its oldest segments are removed. To clear it, remove the folder or call
``clear``.
"""

from __future__ import annotations

import os
import secrets
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hinet.compiled import user_cache
from hinet.data.matrices import unit_rows
from hinet.encoders.encoder import Ints, Vectors, distinct_texts
from hinet.errors import FileError, HiNetError
from hinet.files import locked, read_arrays, write_arrays
from hinet.progress import Progress, SilentProgress

LIMIT = 4 << 30  # bytes of a cache folder, for all encoders together
SEGMENT_ROWS = 8_192  # maximum rows of a segment
ABANDONED_SECONDS = 3600.0  # age of unfinished files that are removed

_SUFFIX = ".safetensors"


def default_folder() -> Path:
    """Return the default folder of the cache: ``hinet/embeddings`` in the user's cache folder."""
    return user_cache() / "hinet" / "embeddings"


class _Segment(NamedTuple):
    """Rows of one file."""

    keys: NDArray[np.uint64]  # (n, 2)
    vectors: NDArray[np.float16]  # (n, width)
    checksums: NDArray[np.uint32]  # (n,)

    def take(self, rows: Ints) -> _Segment:
        """Return the chosen rows."""
        return _Segment(self.keys[rows], self.vectors[rows], self.checksums[rows])


class VectorSource(Protocol):
    """Turns texts into vectors, batch by batch."""

    @property
    def width(self) -> int:
        """Number of columns of a vector."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the vectors."""

    def batches(
        self, texts: Sequence[str], *, batch: int | None = None, threads: int | None = None
    ) -> Iterator[tuple[Ints, Vectors]]:
        """Yield the positions of some texts and their vectors, until all texts are encoded."""


Source = TypeVar("Source", bound=VectorSource, covariant=True)


class CachedEncoder(Generic[Source]):
    """An encoder that encodes only texts whose vectors are not cached in a folder, by default :func:`default_folder`.

    Vectors are those of the encoder rounded to half precision, cached or not.
    """

    segment_seconds = 3.0  # time between two segments of a run
    max_small_segments = 32  # segments under half the maximum size before they are merged

    def __init__(self, encoder: Source, folder: str | Path | None = None, *, limit: int = LIMIT) -> None:
        self.encoder = encoder
        self.root = default_folder() if folder is None else Path(folder).expanduser()
        self.limit = limit
        self._keys: dict[Path, NDArray[np.uint64]] = {}  # keys of each segment; vectors are read when needed

    @property
    def folder(self) -> Path:
        """Folder with the vectors of this encoder."""
        return self.root / self.encoder.fingerprint

    def encode(
        self, texts: Any, *, progress: Progress | None = None, batch: int | None = None, threads: int | None = None
    ) -> Vectors:
        """Return a vector of length 1 for each text, as ``Encoder.encode`` does."""
        distinct, rows = distinct_texts(texts)
        progress = progress or SilentProgress()
        keys = _keys_of(self.encoder.fingerprint, distinct)
        vectors, present = self._read(keys)
        progress.started(1, len(distinct))
        try:
            progress.advanced(int(present.sum()))
            missing = np.flatnonzero(~present)
            encoded = self.encoder.batches([distinct[row] for row in missing.tolist()], batch=batch, threads=threads)
            self._store(encoded, missing, keys, vectors, progress)
        finally:
            progress.finished()
        return unit_rows(vectors.astype(np.float32))[rows]

    def clear(self) -> None:
        """Remove all vectors of this encoder."""
        for path in self._paths():
            path.unlink(missing_ok=True)
        self._keys = {}

    def _store(
        self, encoded: Iterator[tuple[Ints, Vectors]], missing: Ints, keys: NDArray[np.uint64],
        vectors: NDArray[np.float16], progress: Progress,
    ) -> None:  # fmt: skip
        """Fill in the missing vectors, and write them to segments."""
        pending: list[Ints] = []
        writable, last = True, time.monotonic()

        def flush() -> bool:
            rows = np.concatenate(pending)
            pending.clear()
            try:
                self._write(keys[rows], vectors[rows])
            except (FileError, OSError) as error:  # a full or read-only disk must not end the run
                progress.message(f"embeddings are not cached: {error}")
                return False
            return True

        try:
            for numbers, batch in encoded:
                rows = missing[numbers]
                vectors[rows] = batch
                pending.append(rows)
                progress.advanced(len(rows))
                is_due = sum(map(len, pending)) >= SEGMENT_ROWS or time.monotonic() - last >= self.segment_seconds
                if writable and is_due:
                    writable, last = flush(), time.monotonic()
        finally:
            if writable and pending:
                flush()

    def _paths(self) -> list[Path]:
        """Return the files of segments, oldest first."""
        with suppress(OSError):
            return sorted(path for path in self.folder.iterdir() if path.suffix == _SUFFIX and path.name[0] != ".")
        return []

    def _refresh(self) -> None:
        """Read the keys of new segments, and forget those of removed ones."""
        known, self._keys = self._keys, {}
        for path in self._paths():
            keys = known.get(path)
            if keys is None:
                segment = _read_segment(path, self.encoder.width)
                if segment is None:
                    if os.access(path, os.R_OK):  # damaged: its texts are encoded again
                        with suppress(OSError):
                            path.unlink(missing_ok=True)
                    continue
                keys = segment.keys
            self._keys[path] = keys

    def _read(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.float16], NDArray[np.bool_]]:
        """Return the vectors of keys, and which of them are cached and undamaged."""
        vectors = np.zeros((len(keys), self.encoder.width), np.float16)
        present = np.zeros(len(keys), np.bool_)
        for _ in range(2):  # another process may merge segments meanwhile
            self._refresh()
            for path, known in reversed(self._keys.items()):
                missing = np.flatnonzero(~present)
                positions = _find(known, keys[missing])
                hits = np.flatnonzero(positions >= 0)
                segment = _read_segment(path, self.encoder.width) if len(hits) else None
                if segment is None or len(segment.keys) != len(known):
                    continue
                cached = segment.take(positions[hits])
                intact = _checksums(cached.keys, cached.vectors) == cached.checksums
                vectors[missing[hits[intact]]] = cached.vectors[intact]
                present[missing[hits[intact]]] = True
            if present.all() or all(path.exists() for path in self._keys):
                break
        return vectors, present

    def _write(self, keys: NDArray[np.uint64], vectors: NDArray[np.float16]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_segment(_Segment(keys, vectors, _checksums(keys, vectors)))
        self._tidy()

    def _write_segment(self, segment: _Segment) -> None:
        write_arrays(self.folder / f"{time.time_ns():020d}-{secrets.token_hex(4)}{_SUFFIX}", segment._asdict())

    def _tidy(self) -> None:
        """Merge small segments if there are many, and remove the oldest ones beyond the limit."""
        with suppress(OSError):
            paths = self._paths()
            for path in self.folder.glob(f".*{_SUFFIX}.*"):  # unfinished files of killed processes
                if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                    path.unlink(missing_ok=True)
            row_bytes = 2 * self.encoder.width + 20
            small = [path for path in paths if path.stat().st_size < SEGMENT_ROWS * row_bytes // 2]
            everything = [path for path in self.root.glob(f"*/*{_SUFFIX}") if path.name[0] != "."]
            has_many = len(small) > self.max_small_segments
            if not has_many and sum(path.stat().st_size for path in everything) <= self.limit:
                return
            with locked(self.folder):
                if has_many:
                    self._merge([path for path in small if path.exists()])
            sizes = {path: path.stat().st_size for path in everything if path.exists()}
            for path in sorted(sizes, key=lambda path: path.name):
                if sum(sizes.values()) <= self.limit:
                    break
                path.unlink(missing_ok=True)
                del sizes[path]

    def _merge(self, paths: Sequence[Path]) -> None:
        segments = [segment for path in paths if (segment := _read_segment(path, self.encoder.width)) is not None]
        if segments:
            merged = _Segment(*map(np.concatenate, zip(*segments, strict=True)))
            _, last = np.unique(merged.keys[::-1], axis=0, return_index=True)  # the newest of equal keys
            self._write_segment(merged.take(np.sort(len(merged.keys) - 1 - last)))
        for path in paths:
            path.unlink(missing_ok=True)


def _keys_of(fingerprint: str, texts: Sequence[str]) -> NDArray[np.uint64]:
    """Return 128 bits for each text, as (n, 2)."""
    prefix = fingerprint.encode() + b"\0"
    digests = b"".join(blake2b(prefix + text.encode(), digest_size=16).digest() for text in texts)
    return np.frombuffer(digests, "<u8").astype(np.uint64).reshape(-1, 2)


def _find(known: NDArray[np.uint64], keys: NDArray[np.uint64]) -> Ints:
    """Return the last position of each key in ``known``, or -1."""
    if not len(known) or not len(keys):
        return np.full(len(keys), -1, np.int64)
    order = np.argsort(known[:, 0], kind="stable")
    nearest = order[np.maximum(np.searchsorted(known[order, 0], keys[:, 0], side="right") - 1, 0)]
    return np.where((known[nearest] == keys).all(axis=1), nearest, -1)


def _checksums(keys: NDArray[np.uint64], vectors: NDArray[np.float16]) -> NDArray[np.uint32]:
    joined = np.concatenate([keys.view(np.uint8).reshape(len(keys), -1), vectors.view(np.uint8)], axis=1)
    return np.fromiter((zlib.crc32(row) for row in np.ascontiguousarray(joined)), np.uint32, len(keys))


def _read_segment(path: Path, width: int) -> _Segment | None:
    """Return the rows of a segment, or None if the file is missing or is not a segment of this width."""
    try:
        arrays, _ = read_arrays(path)
        segment = _Segment(arrays["keys"], arrays["vectors"], arrays["checksums"])
    except (HiNetError, OSError, KeyError, ValueError):
        return None
    count = len(segment.keys)
    expected = [((count, 2), np.uint64), ((count, width), np.float16), ((count,), np.uint32)]
    parts: tuple[Any, ...] = segment
    actual = [(part.shape, part.dtype) for part in parts]
    return segment if actual == expected else None
