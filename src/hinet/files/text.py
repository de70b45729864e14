"""Bytes on disk become text that has been checked: decompressed, decoded, free of NUL bytes."""

from __future__ import annotations

import codecs
import io
from pathlib import Path
from typing import IO

from hinet import memory
from hinet.errors import FileError, HiNetError
from hinet.files.streams import open_bytes

NAME_ENCODING = "name its encoding (--encoding, such as latin-1)"
LONGEST_LINE = 1_000_000  # characters; a longer line is a binary file or a lost line ending

CHUNK_BYTES = 1 << 20  # that are read at a time: room is taken for what is there alone

_NOT_OF_FILES = ("undefined", "idna", "punycode", "unicode-escape", "raw-unicode-escape")  # names, source code
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


def read_text(path: str | Path, encoding: str = "utf-8", memory_a_byte: int = 4) -> str:
    """Return the whole text of a plain or compressed file, without its byte order mark; ``-`` is standard input.

    ``memory_a_byte`` is what a byte of the text takes in memory, with the work that is done on it.

    Raises
    ------
    FileError
        If the file cannot be opened, is empty, is damaged, is not text in ``encoding``, or is more than memory can
        hold, however well it is compressed; names the line.
    """
    check_encoding(encoding)
    most = memory.total_memory() // memory_a_byte
    with open_bytes(path) as stream:
        data = _read_most(stream, most)
    if len(data) > most:
        raise FileError(
            path, f"the text is longer than {most:,} bytes, more than there is memory for; is it the right file?"
        )
    return checked_text(path, data, encoding)


def _read_most(stream: IO[bytes], most: int) -> bytes:
    """Return the bytes of a stream; if there are more than so many, a few more, which tell."""
    data = bytearray()
    while len(data) <= most and (chunk := stream.read(CHUNK_BYTES)):
        data += chunk
    return bytes(data)


def checked_text(path: str | Path, data: bytes, encoding: str = "utf-8") -> str:
    """Return the bytes of a file as its text, as :func:`read_text` does."""
    data = data.removeprefix(codecs.BOM_UTF8)
    if not data.strip():
        raise FileError(path, "the file is empty", line=1)
    if is_utf8(encoding):
        refuse_binary(path, data)
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
    message = f"byte 0x{data[start]:02x} is not {encoding} text; save the file as UTF-8 or {NAME_ENCODING}"
    return FileError(path, message, line=_line_at(data, start))


def checked_lines(path: str | Path, text: str) -> list[str]:
    """Return the lines with their endings, refusing lines no person wrote."""
    # newline="" ends lines at \n, \r and \r\n alone; str.splitlines would also cut at rarer characters.
    lines = io.StringIO(text, newline="").readlines()
    if max(map(len, lines), default=0) > LONGEST_LINE:
        number, line = next((n, line) for n, line in enumerate(lines, start=1) if len(line) > LONGEST_LINE)
        raise FileError(
            path,
            f"the line has {len(line):,} characters, more than {LONGEST_LINE:,}; "
            "check the line endings and the format of the file",
            line=number,
        )
    return lines


def check_encoding(encoding: str) -> None:
    """Raise HiNetError for an encoding that is none of text."""
    try:
        io.TextIOWrapper(io.BytesIO(), encoding)  # which refuses codecs from bytes to bytes
        known = codecs.lookup(encoding).name not in _NOT_OF_FILES
    except (LookupError, ValueError):
        known = False
    if not known:
        raise HiNetError(f"unknown encoding {encoding!r}; try 'utf-8', 'latin-1' or 'utf-16' (--encoding)")


def undecoded(text: str, encoding: str) -> str:
    """Tell why text that was decoded with lone surrogates for what is none cannot be used; or nothing."""
    lone = next((character for character in text if "\ud800" <= character <= "\udfff"), None)
    if lone is None:
        return ""
    if "\udc80" <= lone <= "\udcff":
        return f"byte 0x{ord(lone) - 0xDC00:02x} is not {encoding} text; save the file as UTF-8 or {NAME_ENCODING}"
    return "half of a surrogate pair; write the whole character"


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding is UTF-8 by any of its names."""
    return encoding.lower().replace("_", "-") in ("utf-8", "utf8", "utf-8-sig")


def refuse_binary(path: str | Path, data: bytes) -> None:
    """Raise FileError if bytes that should be UTF-8 text are none."""
    if data.startswith(_UTF16):
        raise FileError(path, "is UTF-16 text; save it as UTF-8 or name its encoding, utf-16", line=1)
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
