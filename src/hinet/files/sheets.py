"""Excel files: the rows of the first sheet, read within limits that a forged file cannot pass."""

from __future__ import annotations

import re
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from datetime import datetime, time
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from xml.parsers import expat

from hinet import parameters
from hinet.errors import FileError, quoted
from hinet.extras import require

EXCEL = b"PK\x03\x04"  # an Excel file is a zip archive
MAX_ROWS = 1 << 20  # maximum rows per sheet in Excel
MEMORY_PER_BYTE = 8  # memory per byte of the unpacked file: one part with all texts is read whole
MAX_PART = 1 << 20  # unpacked bytes of a part without rows; a million short styles take a minute to read
_ROWS = ("xl/worksheets/", "xl/sharedStrings.xml")
_UNREAD = tuple(f"xl/{part}/" for part in ("media", "embeddings", "drawings", "charts", "pivotCache", "externalLinks"))
MAX_ELEMENTS = 200_000  # XML elements of a row, or between rows; Excel has at most 16,384 cells per row
_READ = 1 << 16  # bytes per read of a part
_CODE = re.compile(r"0{2,30}")  # number format of codes with leading zeros; a longer one fills memory
_BROKEN = (
    zipfile.BadZipFile, zlib.error, SyntaxError, LookupError, ValueError, TypeError, AttributeError, OSError, EOFError,
    RuntimeError, expat.ExpatError,
)  # fmt: skip


class SheetRow(NamedTuple):
    """A non-empty row with its number in the sheet: text, numbers, booleans, and None for empty cells."""

    number: int
    cells: list[Any]


def sheet_rows(
    path: str | Path, file: IO[bytes], *, max_bytes: int | None = None, on_read: Callable[[], None] | None = None
) -> Iterator[SheetRow]:
    """Yield the rows of the first sheet of an open Excel file; formulas have their saved values.

    ``max_bytes`` limits the unpacked size, by default what fits into memory. ``on_read`` is called before each read
    and row, and may raise to stop.

    Raises
    ------
    FileError
        If the file is damaged, is too large when unpacked, or is another archive.
    """
    require("openpyxl", "an Excel file")
    rows = _rows(path, file if on_read is None else cast(IO[bytes], _WatchedFile(file, on_read)), max_bytes, on_read)
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # parts that openpyxl ignores, such as drop-down lists
                row = next(rows, None)
        except FileError:
            raise
        except _BROKEN as error:
            raise FileError(path, f"cannot be read as an Excel file ({error!r}); save it again, or as CSV") from None
        if row is None:
            return
        yield row


class _WatchedFile:
    """A file whose reads can be stopped."""

    def __init__(self, file: IO[bytes], on_read: Callable[[], None]) -> None:
        self._file, self._on_read = file, on_read

    def read(self, size: int = -1) -> bytes:
        self._on_read()
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _check_parts(
    path: str | Path, archive: zipfile.ZipFile, max_bytes: int | None, on_read: Callable[[], None] | None
) -> None:
    """Raise FileError if an archive unpacks to more than can be read; zipfile never unpacks more than declared."""
    parts, workbooks = archive.infolist(), _workbooks(archive)
    size = sum(part.file_size for part in parts)
    if size > parameters.total_memory() // MEMORY_PER_BYTE:
        raise FileError(path, "unpacks to more than there is memory for; save it as CSV")
    if max_bytes is not None and size > max_bytes:
        raise FileError(path, f"unpacks to {size:,} bytes, more than {max_bytes:,}; save it as CSV, or in parts")
    for part in parts:
        is_large = part.filename.startswith((*_ROWS, *_UNREAD)) and part.filename not in workbooks
        if part.file_size > MAX_PART and not is_large:
            name = quoted(part.filename)
            raise FileError(path, f"its part {name} unpacks to more than {MAX_PART:,} bytes; save it as CSV")
    for part in parts:
        with archive.open(part) as stream:
            _check_part(path, part.filename, stream, on_read)


def _workbooks(archive: zipfile.ZipFile) -> set[str]:
    """Return the parts that are read as workbooks, and thus as a whole, wherever a file puts them."""
    found = set()

    def add(tag: str, attributes: dict[str, str]) -> None:
        if "main+xml" in attributes.get("ContentType", ""):
            found.add(attributes.get("PartName", "").lstrip("/"))

    parser = expat.ParserCreate()
    parser.StartElementHandler = add
    with archive.open("[Content_Types].xml") as stream:
        parser.Parse(stream.read(MAX_PART), True)
    return found


def _check_part(path: str | Path, name: str, stream: IO[bytes], on_read: Callable[[], None] | None) -> None:
    """Raise FileError if a part declares entities, or if a row has too many elements: both grow in memory.

    Of a part that is not XML, all up to its first error is checked, which is what openpyxl would read of it.
    """
    elements = 0

    def refuse(*declared: object) -> None:
        raise FileError(path, f"its part {quoted(name)} has a DOCTYPE, which Excel never writes; save it as CSV")

    def count(tag: str, attributes: object) -> None:
        nonlocal elements
        elements = 1 if tag.rpartition(":")[2] in ("row", "si") else elements + 1
        if elements > MAX_ELEMENTS:
            raise FileError(path, f"its part {quoted(name)} has a row of more than {MAX_ELEMENTS:,} elements")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    if not name.startswith(_UNREAD):
        parser.StartElementHandler = count
    while chunk := stream.read(_READ):
        if on_read is not None:
            on_read()
        try:
            parser.Parse(chunk)
        except expat.ExpatError:
            return


def _rows(
    path: str | Path, file: IO[bytes], max_bytes: int | None, on_read: Callable[[], None] | None
) -> Iterator[SheetRow]:
    import openpyxl

    with zipfile.ZipFile(file) as archive:
        _check_parts(path, archive, max_bytes, on_read)
    workbook = openpyxl.load_workbook(file, read_only=True, data_only=True, keep_links=False)
    sheet = workbook.worksheets[0]
    sheet.reset_dimensions()  # programs other than Excel may write wrong dimensions
    for number, row in enumerate(sheet.iter_rows(), 1):
        if on_read is not None:
            on_read()
        if number > MAX_ROWS:
            raise FileError(path, f"the sheet has more than {MAX_ROWS:,} rows; save it as CSV")
        cells = list(map(_plain, row))
        while cells and cells[-1] in (None, ""):
            cells.pop()
        if cells:
            yield SheetRow(number, cells)


def _plain(cell: Any) -> Any:
    """Return a cell as text, a number, a boolean or None; dates and times as in ISO 8601.

    A number that is shown with leading zeros is text: a code.
    """
    value = cell.value
    if value is None or isinstance(value, str | bool | float):
        return value
    if isinstance(value, int):
        return f"{value:0{len(cell.number_format)}d}" if _CODE.fullmatch(cell.number_format) else value
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
