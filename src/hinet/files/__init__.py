"""Files on disk: checked text, delimited columns with their line numbers, writes that are all or nothing."""

from hinet.files.atomic import write_text
from hinet.files.delimited import DelimitedTable, format_delimited, parse_delimited
from hinet.files.text import numbered_lines, read_text

__all__ = [
    "DelimitedTable",
    "format_delimited",
    "numbered_lines",
    "parse_delimited",
    "read_text",
    "write_text",
]
