"""Bytes and text in and out: plain or compressed, standard input and output, decoded; errors name the file."""

from __future__ import annotations

import codecs
import gzip
import io
import lzma
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from hinet import parameters
from hinet.errors import FileError, HiNetError

STANDARD = "-"  # the name of standard input and output
BUFFER_BYTES = 1 << 16
COMPRESSION_SUFFIXES = (".gz", ".xz", ".zst")

_GZIP = b"\x1f\x8b"
_XZ = b"\xfd7zXZ\x00"
_ZSTD = b"\x28\xb5\x2f\xfd"
ENCODING_REMEDY = "set `encoding`, such as to latin-1"
MAX_LINE = 1_000_000  # characters; a longer line means a binary file or lost line endings
CHUNK_BYTES = 1 << 20  # bytes per read
_NOT_FOR_FILES = ("undefined", "idna", "punycode", "unicode-escape", "raw-unicode-escape")
_OLD_EXCEL = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


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
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # none in errors of gzip and of Arrow
            raise FileError(path, f"cannot be read: {error.strerror}") from None
        raise FileError(path, f"the compressed data is damaged or cut short: {error}") from None


def _raw(path: str | Path) -> AbstractContextManager[io.BufferedReader]:
    if str(path) == STANDARD:
        return nullcontext(standard_input())
    try:
        return cast(io.BufferedReader, Path(path).open("rb", buffering=BUFFER_BYTES))
    except ValueError as error:  # a NUL inside the path itself
        raise FileError(repr(str(path)), f"cannot be read: {error}") from None


def _decompress(raw: io.BufferedReader) -> AbstractContextManager[io.BufferedReader]:
    start = raw.peek(len(_XZ))
    inner: Any
    if start.startswith(_GZIP):
        inner = gzip.open(raw)  # noqa: SIM115 closed by the caller, as are the others
    elif start.startswith(_XZ):
        inner = lzma.open(raw)  # noqa: SIM115
    elif start.startswith(_ZSTD):
        import pyarrow as pa

        inner = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    else:
        return nullcontext(raw)
    return io.BufferedReader(inner, BUFFER_BYTES)


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


def read_text(path: str | Path, encoding: str = "utf-8", memory_per_byte: int = 4) -> str:
    """Return the whole text of a plain or compressed file, without its byte order mark; ``-`` is standard input.

    ``memory_per_byte`` is the memory needed to process one byte of the text.

    Raises
    ------
    FileError
        If the file cannot be opened, is empty or damaged, is not text in ``encoding``, or does not fit into memory
        once decompressed; names the line.
    """
    check_encoding(encoding)
    with open_bytes(path) as stream:
        return decode_text(path, read_to_end(path, stream, memory_per_byte), encoding)


def read_to_end(path: str | Path, stream: IO[bytes], memory_per_byte: int = 4) -> bytes:
    """Return all bytes of a stream, or raise FileError if there is not enough memory to process them."""
    limit = parameters.total_memory() // memory_per_byte
    return _read_up_to(path, stream, limit, "more than there is memory for")


def read_bounded(path: str | Path, limit: int) -> bytes:
    """Return the bytes of a plain file, or raise FileError if there are more than ``limit``; may raise OSError."""
    with Path(path).open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        return _read_up_to(path, stream, limit, "more than such a file has", size)


def _read_up_to(path: str | Path, stream: IO[bytes], limit: int, reason: str, known_size: int = 0) -> bytes:
    data = bytearray()
    while max(len(data), known_size) <= limit:
        if not (chunk := stream.read(CHUNK_BYTES)):
            return bytes(data)
        data += chunk
    raise FileError(path, f"is longer than {limit:,} bytes, {reason}; is it the right file?")


def decode_text(path: str | Path, data: bytes, encoding: str = "utf-8") -> str:
    """Decode and check the bytes of a file, as :func:`read_text` does."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise FileError(path, "the file is empty", line=1)
    if is_utf8(encoding):
        check_not_binary(path, data)
    try:
        text = data.decode(encoding)
    except UnicodeError as error:
        start = getattr(error, "start", 0)
        raise FileError(path, _bad_byte(data[start], encoding), line=_line_at(data, start)) from None
    if "\0" in text:
        raise FileError(
            path,
            "NUL character; the file is not text in this encoding",
            text[: text.index("\0")].count("\n") + 1,
        )
    return text


def split_lines(path: str | Path, text: str) -> list[str]:
    """Return the lines with their endings; raise FileError for a line that is too long."""
    # newline="" splits at \n, \r and \r\n only; str.splitlines would also split at rarer characters.
    lines = io.StringIO(text, newline="").readlines()
    if max(map(len, lines), default=0) > MAX_LINE:
        number, line = next((n, line) for n, line in enumerate(lines, start=1) if len(line) > MAX_LINE)
        raise FileError(
            path,
            f"the line has {len(line):,} characters, more than {MAX_LINE:,}; "
            "check the line endings and the format of the file",
            line=number,
        )
    return lines


def check_encoding(encoding: str) -> None:
    """Raise HiNetError unless it is a known text encoding."""
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)  # refuses codecs from bytes to bytes
        valid = codecs.lookup(encoding).name not in _NOT_FOR_FILES
    except (LookupError, ValueError):
        valid = False
    if not valid:
        raise HiNetError(f"unknown encoding {encoding!r}; set `encoding` to 'utf-8', 'latin-1' or 'utf-16'")


def decoding_error(text: str, encoding: str) -> str:
    """Return why text that was decoded with ``surrogateescape`` is invalid, or an empty string."""
    lone = next((character for character in text if "\ud800" <= character <= "\udfff"), None)
    if lone is None:
        return ""
    if "\udc80" <= lone <= "\udcff":
        return _bad_byte(ord(lone) - 0xDC00, encoding)
    return "half of a surrogate pair; write the whole character"


def _bad_byte(byte: int, encoding: str) -> str:
    return f"byte 0x{byte:02x} is not {encoding} text; save the file as UTF-8 or {ENCODING_REMEDY}"


def is_utf8(encoding: str) -> bool:
    """Return whether the name of an encoding means UTF-8."""
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")


def check_not_binary(path: str | Path, data: bytes) -> None:
    """Raise FileError if bytes cannot be UTF-8 text."""
    if data.startswith(_UTF16):
        raise FileError(path, "is UTF-16 text; save it as UTF-8 or set `encoding` to utf-16", line=1)
    if data.startswith(_OLD_EXCEL):
        raise FileError(path, "is an old Excel file (.xls); save it as .xlsx or as CSV")
    nul = data.find(b"\0")
    if nul >= 0:
        raise FileError(
            path,
            "NUL byte: this is a binary file or not UTF-8 text; export it as UTF-8 text",
            line=_line_at(data, nul),
        )


def _line_at(data: bytes, position: int) -> int:
    before = data[:position]
    return before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n") + 1
