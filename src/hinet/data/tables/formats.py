"""Which format a table is in: as asked, by its name, or by its first bytes."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hinet.files.delimited import EXCEL_DELIMITER, QuoteError, Records, first_line, guess_delimiter
from hinet.files.streams import STANDARD, strip_compression
from hinet.files.text import check_encoding

TableFormat = Literal["csv", "tsv", "jsonl", "parquet", "text"]
FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
TEXT_COLUMN = "text"  # the column of plain lines
PARQUET = b"PAR1"
LONG_CELL_LINES = 100  # that a quoted cell may run over

_HEADER = re.compile(r"\w+([,;|\t]\w+)+")  # single words with a delimiter between them and no blank
_BY_ENDING: dict[str, TableFormat] = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


@dataclass(frozen=True)
class TableOptions:
    """How to read tables; what is None is found out."""

    format: TableFormat | None = None
    delimiter: str | None = None
    quotes: bool | None = None  # whether cells may be quoted
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        check_encoding(self.encoding)


def format_of_name(path: str | Path) -> TableFormat | None:
    """Return the format that the ending of a name stands for, compressed or not."""
    return _BY_ENDING.get(Path(strip_compression(path)).suffix.lower())


def format_of(path: str | Path, head: bytes, options: TableOptions, wanted: Sequence[str], named: bool) -> TableFormat:
    """Return the format of a file with such first bytes.

    Without a telling name, text that does not start with a header of the ``wanted`` columns is plain lines, unless the
    columns were ``named`` on purpose, or its first line looks like no text but a header.
    """
    if options.format is not None:
        return options.format
    if head.startswith(PARQUET):
        return "parquet"
    by_name = None if str(path) == STANDARD else format_of_name(path)
    if by_name is not None:
        return by_name
    text = head.decode(options.encoding, errors="replace").lstrip("\ufeff")
    if text.lstrip().startswith("{"):
        return "jsonl"
    delimiter = options.delimiter or delimiter_of(text)
    line = first_line(io.StringIO(text, newline="")).strip()
    header = [name.strip().strip('"') for name in line.split(delimiter)]
    if named or all(column in header for column in wanted) or _HEADER.fullmatch(line):
        return "tsv" if delimiter == "\t" else "csv"
    return "text"


def delimiter_of(text: str) -> str:
    """Return the delimiter that the first lines of a table suggest."""
    excel = EXCEL_DELIMITER.match(text)
    return excel[1] if excel else guess_delimiter(first_line(io.StringIO(text, newline=""))) or ","


def has_quotes(text: str, delimiter: str, cut: bool) -> bool:
    """Return whether cells may be quoted: always, but in tab-separated files whose first lines break the rules."""
    if delimiter != "\t":
        return True
    lines = io.StringIO(text, newline="").readlines()
    try:
        for _ in Records("", lines[:-1] if cut else lines, delimiter, quotes=True):
            pass
    except QuoteError as error:
        return cut and (error.line or 0) > len(lines) - LONG_CELL_LINES  # the text may have been cut within a cell
    return True
