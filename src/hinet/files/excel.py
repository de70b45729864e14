"""Rows of the first sheet of an Excel file (.xlsx), read by openpyxl."""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Iterator
from datetime import datetime, time
from pathlib import Path
from typing import IO, Any, NamedTuple

from hinet import memory
from hinet.errors import FileError
from hinet.extras import require

EXCEL = b"PK\x03\x04"  # an Excel file is a zip archive
MAX_ROWS = 1 << 20  # maximum rows per sheet in Excel
MEMORY_PER_BYTE = 8  # memory per byte of the unpacked file: one part with all texts is read whole

_BROKEN = (
    zipfile.BadZipFile, zlib.error, SyntaxError, LookupError, ValueError, TypeError, AttributeError, OSError, EOFError,
    RuntimeError,
)  # fmt: skip


class SheetRow(NamedTuple):
    """A non-empty row with its number in the sheet: text, numbers, booleans, and None for empty cells."""

    number: int
    cells: list[Any]


def sheet_rows(path: str | Path, file: IO[bytes]) -> Iterator[SheetRow]:
    """Yield the rows of the first sheet of an open Excel file; formulas have their saved values.

    Raises
    ------
    FileError
        If the file is damaged, does not fit into memory when unpacked, or is another archive.
    """
    require("openpyxl", "an Excel file")
    rows = _rows(path, file)
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


def _rows(path: str | Path, file: IO[bytes]) -> Iterator[SheetRow]:
    import openpyxl

    with zipfile.ZipFile(file) as archive:
        if sum(part.file_size for part in archive.infolist()) > memory.total_memory() // MEMORY_PER_BYTE:
            raise FileError(path, "unpacks to more than there is memory for; save it as CSV")
    workbook = openpyxl.load_workbook(file, read_only=True, data_only=True)
    sheet = workbook.worksheets[0]
    sheet.reset_dimensions()  # programs other than Excel may write wrong dimensions
    for number, values in enumerate(sheet.iter_rows(values_only=True), 1):
        if number > MAX_ROWS:
            raise FileError(path, f"the sheet has more than {MAX_ROWS:,} rows; save it as CSV")
        cells = [_plain(value) for value in values]
        while cells and cells[-1] in (None, ""):
            cells.pop()
        if cells:
            yield SheetRow(number, cells)


def _plain(value: Any) -> Any:
    """Return a cell as text, a number, a boolean or None; dates and times as in ISO 8601."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
