"""File formats of hierarchies: each one parses text into a Draft.

To add a format, write a module with a :class:`TaxonomyFormat`, and name it in ``hinet.choices.TAXONOMY_FORMATS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from hinet.choices import TAXONOMY_FORMATS
from hinet.errors import FileError, quoted
from hinet.files.delimited import DelimitedTable, column_names
from hinet.files.sheets import EXCEL, sheet_rows
from hinet.files.streams import STANDARD, open_bytes, read_text, seekable_file, strip_compression
from hinet.taxonomy.draft import Draft, TaxonomyFormat, as_id
from hinet.taxonomy.text_formats import Table, data_lines, detect_lines

FORMATS: dict[str, type[TaxonomyFormat]] = {
    name: getattr(import_module(f"hinet.taxonomy.{module}"), class_name)
    for name, (module, class_name, _) in TAXONOMY_FORMATS.items()
}


def read_draft(path: str | Path, *, format: TaxonomyFormat | str | None = None, encoding: str = "utf-8") -> Draft:
    """Read a file as a draft of its hierarchy; the format is detected unless it is given."""
    if (sheet := _excel_table(path)) is not None:
        if format is not None and format != "table" and not isinstance(format, Table):
            raise FileError(path, "is an Excel file, which holds a table; leave `format` out")
        return (format if isinstance(format, Table) else Table()).draft(sheet)
    name = strip_compression(path).lower()
    by_suffix = next((format for format in FORMATS.values() if name.endswith(format.suffixes)), TaxonomyFormat)
    text = read_text(path, encoding, by_suffix.memory_per_byte)
    if isinstance(format, str):
        if format not in FORMATS:
            raise FileError(path, f"unknown format {quoted(format)}; use one of {', '.join(FORMATS)}")
        format = FORMATS[format]()
    return (format or detect(path, text)).parse(path, text)


def _excel_table(path: str | Path) -> DelimitedTable | None:
    """Return the first sheet of an Excel file as a table of text; None for other files."""
    with open_bytes(path) as raw:
        if str(path) == STANDARD or not raw.peek(len(EXCEL)).startswith(EXCEL):
            return None
        with seekable_file(path, raw, EXCEL) as file:
            rows = list(sheet_rows(path, file))
    if not rows:
        raise FileError(path, "the first sheet is empty; its first row names the columns")
    header, *others = rows
    names = column_names(path, [as_id(cell) for cell in header.cells], header.number)
    for number, cells in others:
        if len(cells) > len(names):
            raise FileError(path, f"expected {len(names)} cells, got {len(cells)}; name all columns", line=number)
    columns: dict[str, Sequence[str]] = {
        name: [as_id(cells[index]) if index < len(cells) else "" for _, cells in others]
        for index, name in enumerate(names)
    }
    return DelimitedTable(str(path), columns, [number for number, _ in others], header.number, [])


def detect(path: str | Path, text: str) -> TaxonomyFormat:
    """Return the detected format of the text, or raise FileError with a remedy."""
    for format in reversed(FORMATS.values()):  # SKOS as JSON-LD comes before other JSON
        if format.recognises(text):
            return format()
    if (lines := detect_lines(path, text)) is not None:
        return lines
    number, first = next(data_lines(path, text), (1, ""))
    raise FileError(
        path,
        f"the format of the hierarchy is not recognised; the first line is {quoted(first)}; set `format` to one of "
        f"{', '.join(FORMATS)}, or `sep` to the separator of the steps if the lines are paths of names",
        line=number,
    )
