"""Byte streams in and out: plain or compressed, standard input and output, with errors that name the file."""

from __future__ import annotations

import gzip
import io
import lzma
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from hinet.errors import FileError

STANDARD = "-"  # the name of standard input and output
BUFFER_BYTES = 1 << 16
COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_ZSTD = b"\x28\xb5\x2f\xfd"


@contextmanager
def open_bytes(path: str | Path) -> Iterator[io.BufferedReader]:
    """Yield the bytes of a file, decompressed if its first bytes are those of gzip, xz or Zstandard.

    Raises
    ------
    FileError
        If the file cannot be opened, or turns out to be damaged while it is read.
    """
    try:
        with _raw(path) as raw, _decompress(raw) as stream:
            yield stream
    except IsADirectoryError:
        raise FileError(path, "is a folder; name a file in it") from None
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise FileError(path, f"the compressed data is damaged or cut short: {error}") from None
    except OSError as error:
        if error.errno is None:  # raised by Arrow for Zstandard data
            raise FileError(path, f"the compressed data is damaged or cut short: {error}") from None
        raise FileError(path, f"cannot be read: {error.strerror}") from None


@contextmanager
def _raw(path: str | Path) -> Iterator[io.BufferedReader]:
    if str(path) == STANDARD:
        yield standard_input()
        return
    try:
        stream = Path(path).open("rb", buffering=BUFFER_BYTES)  # noqa: SIM115 closed below
    except ValueError as error:  # a NUL inside the path itself
        raise FileError(repr(str(path)), f"cannot be read: {error}") from None
    with stream:
        yield cast(io.BufferedReader, stream)


@contextmanager
def _decompress(raw: io.BufferedReader) -> Iterator[io.BufferedReader]:
    start = raw.peek(len(_XZ))
    inner: Any = None
    if start.startswith(_GZIP):
        inner = gzip.open(raw)  # noqa: SIM115 closed below, as are the others
    elif start.startswith(_XZ):
        inner = lzma.open(raw)  # noqa: SIM115
    elif start.startswith(_ZSTD):
        import pyarrow as pa

        inner = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    if inner is None:
        yield raw
    else:
        with inner:
            yield io.BufferedReader(inner, BUFFER_BYTES)


def standard_input() -> io.BufferedReader:
    """Return the stream of standard input; raise FileError if it is closed."""
    if sys.stdin is None:
        raise FileError(STANDARD, "standard input is closed; read from a file")
    return cast(io.BufferedReader, sys.stdin.buffer)


def standard_output() -> IO[bytes]:
    """Return the stream of standard output; raise FileError if it is closed."""
    if sys.stdout is None:
        raise FileError(STANDARD, "standard output is closed; write to a file")
    return sys.stdout.buffer


class PeekedStream(NamedTuple):
    """A stream and its first bytes."""

    head: bytes
    is_all: bool  # whether the head is the whole stream
    stream: io.BufferedReader  # includes the head


def peek_stream(
    stream: io.BufferedReader, size: int = BUFFER_BYTES, on_read: Callable[[], None] | None = None
) -> PeekedStream:
    """Read the first bytes of a stream ahead; unlike ``peek``, wait for ``size`` bytes from a slow pipe.

    ``on_read`` is called before each further read, and may raise to stop.
    """
    head = stream.read(size)
    raw = _PrefixedStream(head, stream, on_read)
    return PeekedStream(head, len(head) < size, io.BufferedReader(raw, BUFFER_BYTES))


class _PrefixedStream(io.RawIOBase):
    """Some bytes followed by those of a stream."""

    def __init__(self, head: bytes, rest: io.BufferedReader, on_read: Callable[[], None] | None) -> None:
        self._head, self._rest, self._on_read = memoryview(head), rest, on_read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._on_read is not None:
            self._on_read()
        if not len(self._head):
            return self._rest.readinto1(buffer)
        count = min(len(buffer), len(self._head))
        buffer[:count], self._head = self._head[:count], self._head[count:]
        return count


def seekable_file(path: str | Path, stream: io.BufferedReader, start: bytes) -> IO[bytes]:
    """Return a seekable file: the file itself if it has these first bytes, or a temporary copy of the stream."""
    if str(path) != STANDARD:
        file = Path(path).open("rb")  # noqa: SIM115 closed by the caller
        if file.read(len(start)) == start:
            return file
        file.close()
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(stream, copy)
    copy.seek(0)
    return cast(IO[bytes], copy)


def strip_compression(path: str | Path) -> str:
    """Return the name of a file without the suffix of its compression.

    >>> strip_compression("rows.csv.gz")
    'rows.csv'
    """
    name = str(path)
    suffix = next((suffix for suffix in COMPRESSION_SUFFIXES if name.lower().endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


@contextmanager
def compressed_writer(path: str | Path, stream: IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a stream that compresses into ``stream`` as the suffix of ``path`` says, or the stream itself."""
    name = str(path).lower()
    packed: Any
    if name.endswith(".gz"):
        packed = gzip.GzipFile(fileobj=stream, mode="wb", filename="", mtime=0)  # reproducible bytes
    elif name.endswith(".xz"):
        packed = lzma.LZMAFile(stream, "wb")  # noqa: SIM115 closed below
    elif name.endswith(".zst"):
        import pyarrow as pa

        packed = pa.CompressedOutputStream(pa.PythonFile(_UncloseableStream(stream), mode="w"), "zstd")
    else:
        yield stream
        return
    with packed:
        yield packed


class _UncloseableStream(io.RawIOBase):
    """A stream that stays open when Arrow closes it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return self._stream.write(data)
