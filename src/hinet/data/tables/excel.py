"""Excel files written row by row: one sheet of numbers and texts, in which nothing is computed."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any
from xml.sax.saxutils import escape

from hinet.errors import FileError
from hinet.files.sheets import MAX_ROWS

MAX_COLUMNS = 1 << 14  # maximum columns per sheet in Excel
MAX_CELL = 32_767  # maximum characters per cell in Excel
MAX_EXACT = 2**53  # larger integers lose digits in Excel
MAX_BYTES = (1 << 31) - (1 << 20)  # maximum size of a sheet; Excel offers to repair larger ones
_TIME = (1980, 1, 1, 0, 0, 0)  # time stamp of all parts, so that the bytes are reproducible
_INVALID = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")  # characters that XML cannot hold
_ENTITIES = {"\r": "&#13;"}
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_LINKS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPES = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_PARTS = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPES}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{_TYPES}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_LINKS}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_LINKS}">'
    '<sheets><sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{_LINKS}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}


class Sheet:
    """The sheet of a file, whose first row has the names of the columns."""

    def __init__(self, path: str, stream: IO[bytes], names: Sequence[str]) -> None:
        if len(names) > MAX_COLUMNS:
            raise FileError(path, f"{len(names):,} columns are more than the {MAX_COLUMNS:,} of Excel; write CSV")
        self._path, self._stream, self._rows, self._bytes = path, stream, 0, 0
        self._letters = [_letters(column) for column in range(len(names))]
        self.write([names])

    def write(self, rows: Iterable[Sequence[Any]]) -> None:
        """Write rows of texts, numbers, booleans, and None for empty cells."""
        content = "".join(map(self._row, rows)).encode()
        self._bytes += len(content)
        if self._bytes > MAX_BYTES:
            raise FileError(self._path, "the sheet has more than 2 GB; write CSV or Parquet")
        self._stream.write(content)

    def _row(self, cells: Sequence[Any]) -> str:
        self._rows += 1
        if self._rows > MAX_ROWS:
            raise FileError(self._path, f"a sheet of Excel has at most {MAX_ROWS:,} rows; write CSV or Parquet")
        number = self._rows
        written = [_cell(f"{letters}{number}", cell) for letters, cell in zip(self._letters, cells, strict=True)]
        return f'<row r="{number}">{"".join(written)}</row>'


@contextmanager
def new_sheet(path: str, stream: IO[bytes], names: Sequence[str]) -> Iterator[Sheet]:
    """Yield a sheet to write; the file is complete when the block ends. The stream need not be seekable."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in _PARTS.items():
            archive.writestr(_part(name), _HEAD + content)
        with archive.open(_part("xl/worksheets/sheet1.xml"), "w") as part:
            part.write(f'{_HEAD}<worksheet xmlns="{_MAIN}"><sheetData>'.encode())
            yield Sheet(path, part, names)
            part.write(b"</sheetData></worksheet>")


def _part(name: str) -> zipfile.ZipInfo:
    part = zipfile.ZipInfo(name, _TIME)
    part.compress_type = zipfile.ZIP_DEFLATED
    return part


def _cell(place: str, value: Any) -> str:
    """Return a cell. Texts are marked as texts, so that Excel computes none that looks like a formula."""
    if value is None or value != value:
        return ""
    if isinstance(value, bool):
        return f'<c r="{place}" t="b"><v>{int(value)}</v></c>'
    if isinstance(value, int | float) and abs(value) <= MAX_EXACT:
        return f'<c r="{place}"><v>{value!r}</v></c>'
    text = value if isinstance(value, str) else str(value)
    if not text:
        return ""
    if len(text) > MAX_CELL:
        text = f"{text[: MAX_CELL - 1]}…"
    text = escape(_INVALID.sub("\ufffd", text), _ENTITIES)
    return f'<c r="{place}" t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'


def _letters(column: int) -> str:
    """Return the letters of a column, counted from 0.

    >>> _letters(0), _letters(25), _letters(26), _letters(702)
    ('A', 'Z', 'AA', 'AAA')
    """
    letters = ""
    column += 1
    while column:
        column, letter = divmod(column - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters
