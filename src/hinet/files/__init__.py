"""Files on disk: decoded text, delimited tables with line numbers, arrays, and atomic writes."""

from hinet.files.arrays import MappedFile, map_arrays, narrowest, read_arrays, write_arrays
from hinet.files.atomic import new_file, write_bytes, write_text
from hinet.files.delimited import DelimitedTable, format_delimited, parse_delimited
from hinet.files.folders import PROBE_PREFIX, check_writable, new_folder
from hinet.files.locks import LOCK, locked
from hinet.files.plain import check_plain
from hinet.files.streams import open_bytes
from hinet.files.text import decode_text, read_text, split_lines

__all__ = [
    "LOCK",
    "PROBE_PREFIX",
    "DelimitedTable",
    "MappedFile",
    "check_plain",
    "check_writable",
    "decode_text",
    "format_delimited",
    "locked",
    "map_arrays",
    "narrowest",
    "new_file",
    "new_folder",
    "open_bytes",
    "parse_delimited",
    "read_arrays",
    "read_text",
    "split_lines",
    "write_arrays",
    "write_bytes",
    "write_text",
]
