"""The format of a table: as given, by its file name, or by its first bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from hinet.choices import TableFormat
from hinet.files.arff import is_arff
from hinet.files.delimited import EXCEL_DELIMITER, QuoteError, Records, first_line, guess_delimiter
from hinet.files.excel import EXCEL
from hinet.files.streams import STANDARD, strip_compression
from hinet.files.text import check_encoding

FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
TEXT_COLUMN = "text"  # the column of plain lines
PARQUET = b"PAR1"
LONG_CELL_LINES = 100  # lines that a quoted cell may span

_HEADER = re.compile(r"\w+([,;|\t]\w+)+")  # single words with delimiters and no spaces between them
_BY_SUFFIX: dict[str, TableFormat] = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet", ".arff": "arff", ".xlsx": "xlsx", ".xlsm": "xlsx",
}  # fmt: skip


def _do_nothing() -> None:
    pass


@dataclass(frozen=True)
class TableOptions:
    """How to read tables; None means detect."""

    format: TableFormat | None = None
    delimiter: str | None = None
    quotes: bool | None = None  # whether cells may be quoted
    encoding: str = "utf-8"
    on_read: Callable[[], None] = _do_nothing  # called before each read of a text file; may raise to stop

    def __post_init__(self) -> None:
        check_encoding(self.encoding)


def format_of_name(path: str | Path) -> TableFormat | None:
    """Return the format of the file suffix, ignoring that of the compression."""
    return _BY_SUFFIX.get(Path(strip_compression(path)).suffix.lower())


def format_of(
    path: str | Path, head: bytes, options: TableOptions, columns: Sequence[str], explicit: bool
) -> TableFormat:
    """Return the format of a file from its name and first bytes.

    If the suffix is unknown, text that does not start with a header of the ``columns`` is plain lines, unless the
    columns are ``explicit`` or its first line looks like a header.
    """
    if options.format is not None:
        return options.format
    if head.startswith(PARQUET):
        return "parquet"
    if head.startswith(EXCEL):
        return "xlsx"
    named_format = None if str(path) == STANDARD else format_of_name(path)
    if named_format is not None:
        return named_format
    text = head.decode(options.encoding, errors="replace").lstrip("\ufeff")
    if text.lstrip().startswith("{"):
        return "jsonl"
    if is_arff(text):
        return "arff"
    delimiter = options.delimiter or delimiter_of(text)
    line = first_line(io.StringIO(text, newline="")).strip()
    header = [name.strip().strip('"') for name in line.split(delimiter)]
    if explicit or all(column in header for column in columns) or _HEADER.fullmatch(line):
        return "tsv" if delimiter == "\t" else "csv"
    return "text"


def delimiter_of(text: str) -> str:
    """Return the delimiter of a table, guessed from its first lines."""
    excel = EXCEL_DELIMITER.match(text)
    return excel[1] if excel else guess_delimiter(first_line(io.StringIO(text, newline=""))) or ","


def has_quotes(text: str, delimiter: str, is_cut: bool) -> bool:
    """Return whether cells may be quoted: always, except in tab-separated files that break the quoting rules."""
    if delimiter != "\t":
        return True
    lines = io.StringIO(text, newline="").readlines()
    try:
        for _ in Records("", lines[:-1] if is_cut else lines, delimiter, quotes=True):
            pass
    except QuoteError as error:
        return is_cut and (error.line or 0) > len(lines) - LONG_CELL_LINES  # the text may end within a cell
    return True
