"""The format of a table: as given, by its file name, or by its first bytes; and its approximate number of rows."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from hinet.choices import TableFormat
from hinet.files.delimited import EXCEL_DELIMITER, QuoteError, Records, first_line, guess_delimiter
from hinet.files.excel import EXCEL
from hinet.files.streams import STANDARD, open_bytes, peek_stream, strip_compression
from hinet.files.text import check_encoding
from hinet.taxonomy.arff import is_arff

FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
TEXT_COLUMN = "text"  # the column of plain lines
PARQUET = b"PAR1"
MAX_CELL_LINES = 100  # lines that a quoted cell may span
SAMPLE_BYTES = 1 << 20  # size of the sample from which the number of rows is estimated
COMPRESSION_RATIO = 4  # typical ratio for compressed text

_HEADER = re.compile(r"\w+([,;|\t]\w+)+")  # single words with delimiters and no spaces between them
_BY_SUFFIX: dict[str, TableFormat] = {
    ".csv": "csv", ".tsv": "tsv", ".tab": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".parquet": "parquet", ".pq": "parquet", ".arff": "arff", ".xlsx": "xlsx", ".xlsm": "xlsx",
}  # fmt: skip


@dataclass(frozen=True)
class TableOptions:
    """How to read tables; None means detect."""

    format: TableFormat | None = None
    delimiter: str | None = None
    quotes: bool | None = None  # whether cells may be quoted
    encoding: str = "utf-8"
    on_read: Callable[[], None] | None = None  # called before each read of a text file; may raise to stop

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
        return is_cut and (error.line or 0) > len(lines) - MAX_CELL_LINES  # the text may end within a cell
    return True


def estimate_rows(paths: Sequence[str]) -> int:
    """Return the approximate number of rows in files: exact for Parquet, else estimated from the first lines."""
    return sum(map(_estimate_rows, paths))


def _estimate_rows(path: str) -> int:
    size = Path(path).stat().st_size
    with open_bytes(path) as raw:
        sample = peek_stream(raw).stream.read(SAMPLE_BYTES)
    if sample.startswith(PARQUET):
        import pyarrow.parquet as pq

        return int(pq.read_metadata(path).num_rows)
    if strip_compression(path) != path:
        size *= COMPRESSION_RATIO
    return max(1, round(sample.count(b"\n") * size / max(len(sample), 1)))
