"""Text files: decompressed, decoded, and checked to be text."""

from __future__ import annotations

import codecs
import io
import os
from pathlib import Path
from typing import IO

from hinet import memory
from hinet.errors import FileError, HiNetError
from hinet.files.streams import open_bytes

ENCODING_REMEDY = "set `encoding`, such as to latin-1"
MAX_LINE = 1_000_000  # characters; a longer line means a binary file or lost line endings
CHUNK_BYTES = 1 << 20  # bytes per read

_NOT_FOR_FILES = ("undefined", "idna", "punycode", "unicode-escape", "raw-unicode-escape")
_OLD_EXCEL = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


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
    limit = memory.total_memory() // memory_per_byte
    return _read_up_to(path, stream, limit, "more than there is memory for")


def read_bounded(path: str | Path, limit: int) -> bytes:
    """Return the bytes of a plain file, or raise FileError if there are more than ``limit``; may raise OSError."""
    reason = "more than such a file has"
    with Path(path).open("rb") as stream:
        if os.fstat(stream.fileno()).st_size > limit:
            raise _too_long(path, limit, reason)
        return _read_up_to(path, stream, limit, reason)


def _read_up_to(path: str | Path, stream: IO[bytes], limit: int, reason: str) -> bytes:
    data = bytearray()
    while chunk := stream.read(CHUNK_BYTES):
        data += chunk
        if len(data) > limit:
            raise _too_long(path, limit, reason)
    return bytes(data)


def _too_long(path: str | Path, limit: int, reason: str) -> FileError:
    return FileError(path, f"is longer than {limit:,} bytes, {reason}; is it the right file?")


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
        raise _not_text(path, data, encoding, error) from None
    if "\0" in text:
        raise FileError(
            path,
            "NUL character; the file is not text in this encoding",
            text[: text.index("\0")].count("\n") + 1,
        )
    return text


def _not_text(path: str | Path, data: bytes, encoding: str, error: UnicodeError) -> FileError:
    start = getattr(error, "start", 0)
    message = f"byte 0x{data[start]:02x} is not {encoding} text; save the file as UTF-8 or {ENCODING_REMEDY}"
    return FileError(path, message, line=_line_at(data, start))


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
        return f"byte 0x{ord(lone) - 0xDC00:02x} is not {encoding} text; save the file as UTF-8 or {ENCODING_REMEDY}"
    return "half of a surrogate pair; write the whole character"


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
