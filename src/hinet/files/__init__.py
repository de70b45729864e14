"""Files on disk: decoded text, delimited tables with line numbers, arrays, atomic writes and locks."""

from hinet.files.atomic import LOCK, PROBE_PREFIX, check_writable, locked, write_bytes
from hinet.files.schema import MappedFile, check_plain, map_arrays, narrowest, read_arrays, write_arrays
from hinet.files.streams import decode_text, read_bounded

__all__ = [
    "LOCK",
    "PROBE_PREFIX",
    "MappedFile",
    "check_plain",
    "check_writable",
    "decode_text",
    "locked",
    "map_arrays",
    "narrowest",
    "read_arrays",
    "read_bounded",
    "write_arrays",
    "write_bytes",
]
